"""The cgroups of a cluster's nodes, on version 1 and 2. All that runs on a node is in its cgroup, and ends with it."""

import contextlib
import os
import signal
import time
from pathlib import Path

from .host import Failure

TOP = Path("/sys/fs/cgroup")
# How much processor time all nodes get beside what else is busy on this machine, where a process or group has 1. Pods
# without a request have next to no weight of their own, and a gang whose agents stand still for ten seconds restarts.
WEIGHT = 20


def unified():
    return (TOP / "cgroup.controllers").exists()


def hierarchies():
    """The folders in which a cgroup has to be made: one on version 2, one per controller on version 1."""
    if unified():
        return [TOP]
    found = {path.resolve() for path in TOP.iterdir() if (path / "cgroup.procs").exists()}
    return sorted(path for path in found if path.name != "unified")


def make(name):
    """Makes /NAME (it may have several parts) in every hierarchy."""
    for top in hierarchies():
        path = top
        enable_controllers(path)
        for part in Path(name).parts:
            path = path / part
            path.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):  # version 1 leaves these empty, and then nothing can enter
                if not unified() and (path / file).exists() and not (path / file).read_text().strip():
                    (path / file).write_text((path.parent / file).read_text())
            enable_controllers(path)
        weigh(top / Path(name).parts[0])


def weigh(path):
    for file, one in (("cpu.shares", 1024), ("cpu.weight", 100)):
        if (path / file).exists():
            (path / file).write_text(str(WEIGHT * one))


def enable_controllers(path):
    if not unified():
        return
    wanted = "".join(f"+{name} " for name in (path / "cgroup.controllers").read_text().split())
    try:
        (path / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        if path != TOP:
            raise Failure(f"cgroup {path}: cannot enable controllers ({error})") from error
        # In a container the top may hold processes itself, which version 2 forbids beside children with controllers.
        inner = TOP / "init"
        inner.mkdir(exist_ok=True)
        for pid in (TOP / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # ended, or a thread of the kernel
                (inner / "cgroup.procs").write_text(pid)
        (path / "cgroup.subtree_control").write_text(wanted)


def enter_runtime(node):
    """Makes the cgroup for a node's containerd and kubelet and returns the folders to enter."""
    make(f"{node}/runtime")
    return [top / node / "runtime" for top in hierarchies() if unified() or top.name in ("pids", "memory", "systemd")]


def processes(name):
    found = set()
    for top in hierarchies():
        for folder, _, _ in os.walk(top / name):
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())
    return found - {os.getpid(), 0}


def kill(name, seconds=10):
    """Ends everything in the cgroup; returns what could not be ended."""
    deadline = time.monotonic() + seconds
    while (living := processes(name)) and time.monotonic() < deadline:
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return living


def remove(name):
    for top in hierarchies() + [path for path in TOP.glob("unified") if not unified()]:
        for folder, _, _ in os.walk(top / name, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        with contextlib.suppress(OSError):
            (top / name).parent.rmdir()  # the folder of all clusters, after the last
