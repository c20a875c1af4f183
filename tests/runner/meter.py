"""CPU seconds of what the runner starts, and their weight: a cgroup for each phase and lane, as root.

The daemons of a test's cluster are children of init, in sessions of their own. Only a cgroup counts them, and only a
cgroup's weight applies to them: with the kernel's autogroup, `nice` weighs inside one session. Without root, only
children that were waited for are counted.
"""

import contextlib
import os
import statistics
import sys
import time
from pathlib import Path

TOP = Path("/sys/fs/cgroup")
PREFIX = "trainingjob-tests-"
CLUSTERS = "trainingjob"  # where devcluster makes the cgroups of nodes, by their cluster's name


def is_unified():
    return (TOP / "cgroup.controllers").exists()


def hierarchies():
    """Where groups are made to count and weigh: one folder on version 2, one or two on version 1."""
    if is_unified():
        return [TOP]
    found = {(TOP / name).resolve() for name in ("cpuacct", "cpu") if (TOP / name / "cgroup.procs").exists()}
    return sorted(found, key=lambda path: "cpuacct" not in path.name)


def usage(folder):
    """CPU seconds of a cgroup and all below it since it was made; None if it is gone."""
    try:
        if is_unified():
            words = (folder / "cpu.stat").read_text().split()
            return int(words[words.index("usage_usec") + 1]) / 1e6
        return int((folder / "cpuacct.usage").read_text()) / 1e9
    except (OSError, ValueError):
        return None


def shares(nice):
    """The weight that a nice value has in the kernel's scheduler, of 1024 for 0: a tenth less time for each step."""
    return max(2, round(1024 / 1.25**nice))


class Group:
    """What one phase or lane has started. Without cgroups only the children are counted that `add_child` is given.

    All groups of a runner are in one: they weigh less or more among themselves, and together as two processes beside
    everything else on the machine.
    """

    def __init__(self, name, nice=0, has_cgroup=True):
        self.nice, self.children, self.folders = nice, 0.0, []
        if os.geteuid() != 0 or not has_cgroup:
            return
        try:
            for top in hierarchies():
                own = top / f"{PREFIX}{os.getpid()}"
                own.mkdir(exist_ok=True)
                for folder in (top, own):
                    if is_unified() and "cpu" not in (folder / "cgroup.subtree_control").read_text().split():
                        with contextlib.suppress(OSError):  # then all groups weigh the same
                            (folder / "cgroup.subtree_control").write_text("+cpu")
                write_if_there(own / "cpu.weight", 200)
                write_if_there(own / "cpu.shares", 2 * shares(0))
                (own / name).mkdir(exist_ok=True)
                self.folders.append(own / name)
                write_if_there(own / name / "cpu.weight.nice", nice)
                write_if_there(own / name / "cpu.shares", shares(nice))
        except OSError:
            self.remove()
            self.folders = []

    def command(self, words):
        """The command that enters the group and becomes this one."""
        words = [str(word) for word in words]
        if self.nice:
            words = ["nice", "-n", str(self.nice), *words]
        if not self.folders:
            return words
        script = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 > "$1"; shift; n=$((n - 1)); done; exec "$@"'
        files = [str(folder / "cgroup.procs") for folder in self.folders]
        return ["sh", "-c", script, "enter", str(len(files)), *files, *words]

    def add_child(self, rusage):
        self.children += rusage.ru_utime + rusage.ru_stime

    def seconds(self):
        found = usage(self.folders[0]) if self.folders else None
        return self.children if found is None else found

    def processes(self):
        """The processes that are still in it."""
        found = set()
        for folder in self.folders[:1]:
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
        return found - {0, os.getpid()}

    def wait_empty(self, seconds):
        """Waits until all that was started has ended; returns the processes that have not."""
        deadline = time.monotonic() + seconds
        while (living := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return living

    def remove(self):
        for folder in self.folders:
            for path in (folder, folder.parent):  # the parent goes with its last child
                with contextlib.suppress(OSError):
                    path.rmdir()


def write_if_there(file, value):
    if file.exists():
        file.write_text(str(value))


def prune():
    """Removes the groups of runners that were killed; they are empty."""
    for top in hierarchies():
        for own in top.glob(f"{PREFIX}*"):
            if not Path("/proc", own.name.removeprefix(PREFIX)).exists():
                remove_tree(own)


def remove_all():
    """Removes all groups of this process, whose processes have ended."""
    for top in hierarchies():
        remove_tree(top / f"{PREFIX}{os.getpid()}")


def remove_tree(own):
    with contextlib.suppress(OSError):
        for folder in (*(path for path in own.iterdir() if path.is_dir()), own):
            folder.rmdir()


class Nodes:
    """CPU seconds of the nodes of clusters, whose cgroups are devcluster's. A test's cluster has its pid in its name.

    The cgroups are gone with the cluster, so they are read every second. What a node uses in its last second is not
    counted.
    """

    def __init__(self):
        self.seen = {}

    def look(self):
        for top in hierarchies()[:1]:
            for folder in (top / CLUSTERS).glob("*-*"):
                if (seconds := usage(folder)) is not None:
                    self.seen[folder.name] = max(seconds, self.seen.get(folder.name, 0.0))

    def seconds(self, pid):
        return sum(seconds for name, seconds in list(self.seen.items()) if name.endswith(f"-{pid}"))


def machine_seconds():
    """CPU seconds of the whole machine since it was started: neither idle, nor waiting for a disk or its host."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = (int(word) for word in stat.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def unit():
    """CPU seconds that a fixed piece of work takes now: how this machine compares to that of the budgets.

    An interpreter starts and imports. That is what tests are made of: new processes, page faults, files, and memory
    that is in no cache. Arithmetic tells less: it took a sixth less time on a machine whose lanes took half as much
    again.
    """
    program = "import json, socket, subprocess, threading"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", program], os.environ)
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        raise RuntimeError(f"{sys.executable} ended with {status}")
    return used.ru_utime + used.ru_stime


class Pace:
    """How fast the machine is while work runs on it, measured every few seconds.

    It may be slower when all its cores are busy, or while its host serves others: the same work then takes more CPU
    seconds. One measurement at the beginning, on a quiet machine, says nothing of that.
    """

    EACH = 5  # seconds between two measurements, of which one takes a hundredth

    def __init__(self):
        self.found = [(time.monotonic(), unit())]

    def look(self):
        if time.monotonic() - self.found[-1][0] >= self.EACH:
            self.found.append((time.monotonic(), unit()))

    def unit(self, begin=0.0):
        """The median of what was measured since `begin`, by time.monotonic(); the last one if that is none."""
        return statistics.median([seconds for when, seconds in self.found if when >= begin] or [self.found[-1][1]])
