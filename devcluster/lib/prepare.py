"""`cluster prepare`: what a demo, the tests or a bench need, with what is independent side by side.

Each step is a command of `devcluster/cluster` that does nothing where nothing is missing. Go's steps follow each other,
since each fills both cores and compiles what the next one shares. Beside them packages and images are made, which
mostly wait for a disk or another machine.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from .host import HERE, Failure, say


@dataclass(frozen=True)
class Step:
    """A command of devcluster/cluster, the lane in which it waits for its turn, and the steps that it needs."""

    lane: str
    command: tuple
    what: str
    seconds: int  # it usually takes on two quiet cores if nothing is there
    needs: tuple = ()


def extra(name, what, seconds):
    return Step("go", ("tools", name), what, seconds, ("tools",))


# In the order in which they are made.
STEPS = {
    "packages": Step("images", ("packages",), "Debian packages that clusters and images need", 10),
    "test-packages": Step("images", ("packages", "--tests"), "Debian packages that tests need", 10, ("packages",)),
    "tools": Step("go", ("tools",), "Kubernetes as one Go program; containerd and kubectl from Debian", 180),
    "images": Step("images", ("images",), "images pause and demo, by mmdebstrap", 25, ("packages",)),
    # It waits for containerd, which is there before Kubernetes is built if it is Debian's.
    "unpacked": Step("unpacked", ("images", "--unpack"), "both images unpacked, for nodes", 10, ("images",)),
    "kwok": extra("kwok", "kwok, which simulates nodes", 15),
    "kueue": extra("kueue", "Kueue", 60),
    "versitygw": extra("versitygw", "an S3 server", 60),
    "fake-gcs-server": extra("fake-gcs-server", "a server of Google's storage protocol", 60),
    "volcano": extra("volcano", "Volcano's scheduler", 200),
    "coscheduling": extra("coscheduling", "the coscheduling plugin's scheduler", 60),
    "small-frameworks": Step("images", ("images", "small-frameworks"), "image with XGBoost, MXNet and MPI", 60,
                             ("test-packages",)),
    "trainers": Step("images", ("images", "trainers"), "image with Hugging Face's Trainer and Lightning", 60,
                     ("test-packages", "images")),
    "large-frameworks": Step("images", ("images", "large-frameworks"), "image with TensorFlow and Paddle", 180,
                             ("test-packages",)),
}
CLUSTER = ("packages", "tools")
DEMO = (*CLUSTER, "images", "unpacked")
STORES = ("versitygw", "fake-gcs-server")
PLANES = ("tools", "kwok")
RUNS = (*DEMO, "test-packages", "kwok", "kueue", *STORES, "small-frameworks")
# What can be asked for beside single steps.
SETS = {
    "cluster": CLUSTER, "demo": DEMO, "stores": STORES, "bench": PLANES, "tests": RUNS,
    "soak": (*RUNS, "volcano", "coscheduling", "trainers", "large-frameworks"),
}


def plan(asked, steps=None):
    """The names of the steps, those that they need before them, by lane; a name in `asked` is a step's or a set's."""
    steps = steps or STEPS
    wanted = {name for word in asked for name in SETS.get(word, (word,))}
    while more := {need for name in wanted for need in steps[name].needs} - wanted:
        wanted |= more
    lanes = {}
    for name in steps:
        if name in wanted:
            lanes.setdefault(steps[name].lane, []).append(name)
    return lanes


def run(asked, steps=None, program=(sys.executable, HERE / "cluster")):
    """Runs the steps; the first failure ends the others."""
    steps = steps or STEPS
    lanes = plan(asked, steps)
    names = [name for lane in lanes.values() for name in lane]
    width = max(map(len, names))
    ended = {name: threading.Event() for name in names}
    running, outcomes, stopping = {}, queue.Queue(), threading.Event()
    starting = threading.Lock()  # each process that is started is known to the code that ends all

    def lane_of(members):
        for name in members:
            for need in steps[name].needs:
                ended[need].wait()
            if stopping.is_set():
                return
            failed = one(name)
            ended[name].set()
            outcomes.put((name, failed))
            if failed:
                return

    def one(name):
        step, begin, shown = steps[name], time.monotonic(), False
        with starting:
            if stopping.is_set():
                return True
            process = running[name] = subprocess.Popen(
                [*program, *step.command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, start_new_session=True)
        with process:
            for line in process.stderr:
                if not shown:
                    say(f"{name:{width}} | {step.what}: usually {step.seconds} s if nothing is there")
                    shown = True
                say(f"{name:{width}} | {line.rstrip()}")
        failed = process.returncode != 0
        del running[name]
        if not stopping.is_set():
            took = f"{time.monotonic() - begin:.1f} s"
            say(f"{name:{width}} | {f'failed after {took}' if failed else f'done in {took}' if shown else 'is there'}")
        return failed

    begin = time.monotonic()
    # A lane that waits for a step of a lane that failed is left behind.
    for members in lanes.values():
        threading.Thread(target=lane_of, args=(members,), daemon=True).start()
    try:
        with ended_by_signal():
            for _ in names:
                name, failed = outcomes.get()
                if failed:
                    raise Failure(f"{name} could not be prepared; the reason stands above")
    finally:
        with starting:
            stopping.set()
            left = list(running.values())
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
    say(f"{'prepared':{width}} | {', '.join(names)}: {time.monotonic() - begin:.1f} s in all")


@contextlib.contextmanager
def ended_by_signal():
    """SIGTERM ends this program as Ctrl-C does, so that it ends what it started."""
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
