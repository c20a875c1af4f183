"""Processes of a cluster: recorded with their start time, so that only what was started here is ever ended."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

# In the environment of every program started here, with the state folder: finds those that were started but, in a crash
# of the starter, never recorded.
MARK = "TRAININGJOB_CLUSTER_DIR"


def start_time(pid):
    """Start of the process in clock ticks since boot, None if it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def start(cluster, name, command, netns=None, env=None, cgroup=None):
    """Starts a program of the cluster in the background, its output in log/NAME.log."""
    command = [str(part) for part in command]
    if netns:
        command = ["nsenter", f"--net=/run/netns/{netns}", *command]

    def enter():
        for procs in cgroup or ():
            Path(procs, "cgroup.procs").write_text("0")

    with open(log(cluster, name), "ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                                   cwd="/", env={**os.environ, **(env or {}), MARK: str(cluster.dir)},
                                   preexec_fn=enter)  # noqa: PLW1509 - one thread
    record = {"pid": process.pid, "start": start_time(process.pid), "command": command}
    (cluster.pids / f"{name}.json").write_text(json.dumps(record))
    return process


def start_again(cluster, name):
    """Starts a program of the cluster as it was started before, if it has ended."""
    if not pid(cluster, name):
        record = json.loads((cluster.pids / f"{name}.json").read_text())
        start(cluster, name, record["command"])


def pid(cluster, name):
    """The process id if the recorded process still lives."""
    try:
        record = json.loads((cluster.pids / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None
    return record["pid"] if record["start"] is not None and start_time(record["pid"]) == record["start"] else None


def names(cluster):
    return sorted(file.stem for file in cluster.pids.glob("*.json"))


def stop(cluster, *which):
    """Ends recorded processes at once, and remembers how they were started; returns when they are gone."""
    living = [found for name in which if (found := pid(cluster, name)) and found != os.getpid()]
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_gone(living)


def kill(cluster, *which):
    """Ends recorded processes at once, and forgets them; returns when they are gone."""
    stop(cluster, *which)
    for name in which:
        if pid(cluster, name) != os.getpid():
            (cluster.pids / f"{name}.json").unlink(missing_ok=True)


def kill_unrecorded(cluster):
    """Ends what carries this cluster's mark without having been recorded."""
    mark, found = f"{MARK}={cluster.dir}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0") and int(environ.parent.name) != os.getpid():
                found.append(int(environ.parent.name))
        except OSError:
            continue  # gone, or another user's
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    wait_gone(found)


def wait_gone(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while any(start_time(process) for process in pids) and time.monotonic() < deadline:
        for process in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)  # ours if this program started it
        time.sleep(0.02)
    return [process for process in pids if start_time(process)]


def log(cluster, name):
    return cluster.logs / f"{name}.log"


def last_lines(cluster, name):
    return end_of(log(cluster, name))


def end_of(file, lines=15):
    try:
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
