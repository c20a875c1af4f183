"""Programs that the runner starts: each in a session of its own, and all of them ended when the runner is."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from runner.console import Failure, clean_environment, quoted, say

PATIENCE = 10  # seconds that a program gets after SIGTERM, and what it leaves behind after its end
# Seconds in which the watchdogs of clusters have taken them down. To remove the images of all frameworks took 93 s on a
# slow disk, and what a watchdog that is ended has not removed stays.
CLUSTERS_END = 300


class Stopping(Exception):
    """The runner is about to end: nothing more is started."""


class Processes:
    def __init__(self):
        self.lock, self.living, self.is_stopping = threading.Lock(), {}, False

    def start(self, words, group, env=None, **options):
        """Starts a command in a group."""
        with self.lock:
            if self.is_stopping:
                raise Stopping
            process = subprocess.Popen(group.command(words), stdin=subprocess.DEVNULL, start_new_session=True,
                                       env=clean_environment(**(env or {})), **options)
            self.living[process] = group
            return process

    def wait(self, process, limit=None):
        """Waits for the end of a process, and returns its exit code; one that takes longer than `limit` is ended."""
        group = self.living[process]
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            # It stays a zombie until its resources are counted, so its pid is not another process's yet.
            found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | (os.WNOHANG if deadline else 0))
            if found is not None:
                break
            if time.monotonic() > deadline:
                end(process, signal.SIGKILL)
                deadline = None
            else:
                time.sleep(0.05)
        with self.lock:
            _, status, rusage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            del self.living[process]
        group.add_child(rusage)
        return process.returncode

    def run(self, words, group, log, env=None, prefix=None, shows_all=False, limit=None,
            cwd=None):
        """Runs a command to its end and returns what it wrote to its standard output.

        Both outputs go into the file `log` as well. With `prefix` the lines of its standard error are shown, with
        `shows_all` those of its standard output too. A Failure quotes the end of what it wrote.
        """
        shown = " ".join(str(word) for word in words)
        output, errors = [], []
        with open(log, "ab", buffering=0) as file:
            file.write(f"$ {shown}\n".encode())
            process = self.start(words, group, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 errors="replace", cwd=cwd)

            def keep(line, lines, prefix):
                lines.append(line)
                if prefix:
                    say(f"{prefix}: {line.strip()}")
                file.write(line.encode())

            readers = [Reader(process.stdout, lambda line: keep(line, output, prefix if shows_all else None)),
                       Reader(process.stderr, lambda line: keep(line, errors, prefix))]
            code = self.wait(process, limit)
            for reader in readers:
                reader.finish()
        if code != 0 and self.is_stopping:
            raise Stopping
        if code != 0:
            words = "".join(errors or output)
            raise Failure(f"`{shown}` ended with {code}; its output is in {log}:\n{quoted(words)}")
        for reader in readers:
            reader.check(log)
        return "".join(output)

    def end_all(self):
        """Ends what was started, by SIGTERM, then SIGKILL. The watchdogs of clusters get the time to take them down."""
        with self.lock:
            self.is_stopping = True
            living = dict(self.living)
            for process in living:
                end(process, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while self.living and time.monotonic() < deadline:
            time.sleep(0.1)
        with self.lock:
            for process in self.living:
                end(process, signal.SIGKILL)
        deadline = time.monotonic() + CLUSTERS_END
        for group in set(living.values()):
            kill(left_behind(group, max(0, deadline - time.monotonic())))


class Reader(threading.Thread):
    """Calls `each` with every line of a pipe, to its end: a program whose output is not read waits forever."""

    def __init__(self, stream, each):
        super().__init__(daemon=True)
        self.stream, self.each, self.fault = stream, each, None
        self.start()

    def run(self):
        for line in self.stream:
            try:
                self.each(line)
            except Exception as error:  # a full disk, most likely; the next line may find room
                self.fault = self.fault or error

    def finish(self):
        self.join(5)
        if not self.is_alive():  # a daemon of a cluster may hold its end of the pipe
            self.stream.close()

    def check(self, log):
        """Raises what `each` raised first."""
        if isinstance(self.fault, OSError):
            raise Failure(f"not all that it printed is in {log}: {self.fault}") from self.fault
        if self.fault is not None:
            raise self.fault


def left_behind(group, seconds=CLUSTERS_END):
    """The processes of a group that do not end. It waits for PATIENCE, and longer while a watchdog is at work."""
    deadline = time.monotonic() + seconds
    left = group.wait_empty(min(PATIENCE, seconds))
    while any(is_watchdog(pid) for pid in left) and time.monotonic() < deadline:
        left = group.wait_empty(1)
    return left


def is_watchdog(pid):
    """Whether a process is the watchdog of a cluster (devcluster/cluster)."""
    with contextlib.suppress(OSError):
        return b"_watch" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def end(process, number):
    """Sends a signal to a process that was not waited for yet, and to those of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
