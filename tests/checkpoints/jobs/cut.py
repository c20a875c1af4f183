"""Runs a Python program unchanged, and kills it in the middle of a save: when it is about to write a certain file.

  python3 cut.py PROGRAM [ARGUMENTS]

Environment:
  CUT_AT    pattern of a path (*/checkpoint-20/trainer_state.json); unset, the program runs undisturbed. The moment is
            when Python opens the file to write, or moves or copies something to it.
  CUT_HALF  pattern of a file name beside it of which only the first half is left, as if it had not all been written;
            `.` for the file of CUT_AT itself, of what is moved to it
  CUT_ON    attempts in which this is done (0)
  CUT_BY    `kill`: SIGKILL to itself; `hold`: it stays there and waits to be killed
"""

import fnmatch
import os
import runpy
import signal
import sys
import time
from pathlib import Path

WRITES = os.O_WRONLY | os.O_RDWR
AT = os.environ.get("CUT_AT")
HALF = os.environ.get("CUT_HALF")
BY = os.environ.get("CUT_BY") or "kill"
IS_ARMED = AT and (os.environ.get("ATTEMPT") or "0") in (os.environ.get("CUT_ON") or "0").split(",")
reached = []  # what is written from then on is our own doing


def watch(event, args):
    if not IS_ARMED or reached:
        return
    if event == "open" and args[2] & WRITES:
        source, path = None, args[0]
    elif event in ("os.rename", "shutil.move", "shutil.copyfile"):
        source, path = args[0], args[1]
    else:
        return
    if isinstance(path, str | os.PathLike) and fnmatch.fnmatch(os.fspath(path), AT):
        reached.append(path)
        cut(source, Path(path))


def cut(source, path):
    if HALF == "." and source:
        data = Path(source).read_bytes()
        path.write_bytes(data[: len(data) // 2])
        print(f"\ncut: {len(data) // 2} of {len(data)} bytes are in {path}", flush=True)
    else:
        for file in path.parent.glob(HALF) if HALF else ():
            os.truncate(file, file.stat().st_size // 2)
            print(f"\ncut: half of {file} is left", flush=True)
        print(f"\ncut: before {path} is written", flush=True)
    while BY == "hold":
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(watch)
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
runpy.run_path(sys.argv[0], run_name="__main__")
