"""Fills the folder of checkpoints with what is meant to do harm, then saves a checkpoint of its own every second until
a file `enough` is there. Beside the checkpoints FILES files lie in one folder, and as many in a checkpoint."""

import os
import pathlib
import sys
import time
import zlib

import torch

root, outside = pathlib.Path(os.environ["CHECKPOINT_DIR"]), pathlib.Path("/outside")
files = int(os.environ["FILES"])
# A new line, then reverse video, the title of the window, and the way back to the beginning of the line. No save has
# the step 7 or 0: a file whose name has the number of a save is part of that save.
UGLY = "ugly\n\x1b[7mFAKE\x1b[0m\x1b]0;owned\x07\r"


class Bomb:
    def __reduce__(self):
        return os.system, (f"touch {root}/pwned /outside/pwned",)


def saved(folder):
    folder.mkdir()
    (folder / "weights").write_text("weights")
    (folder / ".complete").touch()
    return folder


def fill(folder):
    for number in range(files):
        os.close(os.open(folder / f"file-{number}", os.O_CREAT | os.O_WRONLY))


(outside / "secret").write_text("SECRET-OF-OUTSIDE")
(saved(outside / "step-90000") / "weights").write_text("SECRET-OF-OUTSIDE")
before = sorted(str(path) for path in outside.rglob("*"))

# What would run when it is loaded: as torch writes it now, as it wrote it once, and packed a thousand times over.
torch.save({"model": Bomb()}, root / "bomb.pt")
torch.save({"model": Bomb()}, root / "old-bomb.pt", _use_new_zipfile_serialization=False)
(root / "packed-bomb.pt").write_bytes(zlib.compress(bytes(100 << 20)))

# Links out of the root: to folders, to a checkpoint, and within checkpoints.
(root / "etc").symlink_to("/etc")
(root / "all").symlink_to("/")
(root / "step-90001").symlink_to(outside / "step-90000")
(root / "step-90002.pt").symlink_to(outside / "secret")
(saved(root / "step-1") / "secret").symlink_to(outside / "secret")
(root / "step-1" / "more").symlink_to(outside)

# A process that opens these waits for ever.
os.mkfifo(root / "step-90003.pt")
os.mkfifo(saved(root / "step-2") / "more")

# Names that must never be shown as they are.
saved(root / UGLY)
(root / f"{UGLY}.pt").write_bytes(bytes(1000))
os.close(os.open(os.fsencode(root) + b"/\xff\xfe.pt", os.O_CREAT | os.O_WRONLY))

(root / "data").mkdir()
fill(root / "data")
fill(saved(root / "step-3"))
print("the folder is full", flush=True)

step = 10
while not (root / "enough").exists():
    torch.save({"step": step, "model": {"weights": torch.full((1000,), float(step))}}, root / "saving.tmp")
    (root / "saving.tmp").rename(root / f"step-{step}.pt")
    print(f"step={step} loss={1 / step}", flush=True)
    step += 1
    time.sleep(1)

if sorted(str(path) for path in outside.rglob("*")) != before:
    sys.exit(f"outside of the root something was changed: {list(outside.rglob('*'))}")
