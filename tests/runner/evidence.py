"""What is kept of a run: the load of the machine second by second, and the output of what failed."""

import shutil
import threading
import time
from pathlib import Path

PRESSURES = [(resource, kind) for resource in ("cpu", "memory", "io") for kind in ("some", "full")]
HEAD = ["seconds", "clock", "load1", "load5", "load15", "running",
        *(f"{resource}_{kind}_avg10" for resource, kind in PRESSURES)]


class Evidence:
    """The folder of a run. Tests write theirs below it, by TRAININGJOB_EVIDENCE."""

    def __init__(self, folder):
        self.folder = Path(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "steps").mkdir(parents=True)

    def log_of(self, step):
        return self.folder / "steps" / f"{step}.log"

    def of(self, program, test):
        """Where a test of a program leaves what explains its failure."""
        folder = self.folder / program / file_name(test)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def output_of(self, program, stream):
        folder = self.folder / program
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{stream}.log"


def file_name(test):
    """A test's name as that of a file: there are file systems that have no colons."""
    return test.replace("::", ".").replace("/", "_")[:200]


class Sampler:
    """Calls `each` and writes a line, once a second until it is stopped."""

    def __init__(self, file, begin, each):
        self.file, self.begin, self.each, self.stopped = file, begin, each, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        with open(self.file, "w") as out:
            print(*HEAD, sep="\t", file=out, flush=True)
            while not self.stopped.wait(1):
                self.each()
                print(*sample(self.begin), sep="\t", file=out, flush=True)

    def stop(self):
        self.stopped.set()
        self.thread.join()


def sample(begin, proc=Path("/proc")):
    load = (proc / "loadavg").read_text().split()
    pressures = {resource: read(proc / "pressure" / resource) for resource in ("cpu", "memory", "io")}
    return [f"{time.monotonic() - begin:.0f}", time.strftime("%H:%M:%S"), *load[:4],
            *(averages(pressures[resource]).get(kind, "") for resource, kind in PRESSURES)]


def averages(text):
    """`some avg10=1.50 avg60=...` -> {"some": "1.50"}."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: row[1].removeprefix("avg10=") for row in rows if len(row) > 1}


def read(path):
    try:
        return path.read_text()
    except OSError:
        return ""  # a kernel without PSI
