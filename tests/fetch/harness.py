"""What the tests of `agent fetch` share: the program, its measured runs, and a server whose answers are raw bytes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runner import cargo

ROOT = Path(__file__).resolve().parents[2]
# Within which everything ends that has no deadline of its own, in seconds.
DEADLINE = 120
KIB, MIB = 1 << 10, 1 << 20


def agent_program():
    return cargo.own_programs(ROOT) / "agent"


@dataclass
class Ended:
    """A program that has ended: how, after how many seconds, with which greatest memory in bytes, and CPU seconds."""

    code: int
    seconds: float
    memory: int
    cpu: float
    stdout: str
    stderr: str

    @property
    def result(self):
        """The first line of its standard output."""
        return json.loads(self.stdout.splitlines()[0])

    def __str__(self):
        end = f"exit {self.code} after {self.seconds:.1f} s with {self.memory / MIB:.0f} MiB"
        return f"{end}\n{self.stdout}{self.stderr[-3000:]}"


# Starts a program, and reports its end. A program inherits the greatest memory of the one that forks it, and this is a
# small one.
LAUNCH = """
import json, os, sys
report, *words = sys.argv[1:]
pid = os.posix_spawn(words[0], words, os.environ)
with open(report + ".pid", "w") as file:
    print(pid, file=file)
_, status, usage = os.wait4(pid, 0)
with open(report, "w") as file:
    json.dump([os.waitstatus_to_exitcode(status), usage.ru_maxrss, usage.ru_utime + usage.ru_stime], file)
"""


class Running:
    """A program with its output in files of `folder`."""

    def __init__(self, folder, *words, env=None):
        names = ("stdout", "stderr", "report")
        self.out, self.err, self.report = (Path(folder, f"{name}-{time.monotonic_ns()}") for name in names)
        self.begin = time.monotonic()
        command = [sys.executable, "-I", "-S", "-c", LAUNCH, self.report, *words]
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.launcher = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out,
                                             stderr=err, env={**os.environ, **(env or {})}, start_new_session=True)

    @property
    def pid(self):
        file = self.report.with_name(f"{self.report.name}.pid")
        return int(until("its start", lambda: file.exists() and file.read_text().strip()))

    def wait(self, deadline=DEADLINE):
        """Waits for its end, and ends it by SIGKILL after `deadline` seconds."""
        try:
            self.launcher.wait(deadline)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self.launcher.wait(DEADLINE)
        seconds = time.monotonic() - self.begin
        out, err = (file.read_text(errors="replace") for file in (self.out, self.err))
        if not self.report.exists():
            raise AssertionError(f"the launcher failed: {err}")
        code, memory, cpu = json.loads(self.report.read_text())
        return Ended(code, seconds, memory * KIB, cpu, out, err)


def fetch(room, *words, cache="cache", deadline=DEADLINE, env=None):
    """Runs `agent fetch` to its end, with a cache in `room`."""
    return start_fetch(room, *words, cache=cache, env=env).wait(deadline)


def start_fetch(room, *words, cache="cache", env=None):
    folder = Path(room, cache)
    folder.mkdir(exist_ok=True)
    running = Running(room, agent_program(), "fetch", "--into", folder, *words, env=env)
    running.cache = folder
    return running


def secret(room, name="secret", **values):
    """A folder with a file for each value, as a Secret is mounted."""
    folder = Path(room, name)
    folder.mkdir(exist_ok=True)
    for key, value in values.items():
        (folder / key.replace("__", ".")).write_text(value)
    return folder


def until(what, look, deadline=DEADLINE):
    """Waits for a condition, and returns what it gives."""
    end = time.monotonic() + deadline
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline} s for {what}")
        time.sleep(0.02)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def content(folder):
    """Path -> bytes of all files below a folder."""
    folder = Path(folder)
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class Request:
    def __init__(self, head):
        lines = head.decode("latin-1").split("\r\n")
        self.method, target = [*lines[0].split(" "), "", ""][:2]
        self.path, _, self.query = target.partition("?")
        self.path = unquote(self.path)
        pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
        self.headers = {name.strip().lower(): value.strip() for name, value in pairs}

    def range(self, size):
        """First and end of the range that is asked for."""
        wanted = self.headers.get("range", "").removeprefix("bytes=")
        first, _, last = wanted.partition("-")
        return (int(first), min(int(last) + 1, size)) if wanted else (0, size)

    def __repr__(self):
        return f"{self.method} {self.path}?{self.query} {self.headers.get('range', '')}"


class Server:
    """Calls `handler(connection, request)` for each request, and closes the connection after it."""

    def __init__(self, handler, address="127.0.0.1", port=0):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.create_server((address, port), family=family, backlog=512)
        self.address, self.port = address, self.socket.getsockname()[1]
        self.handler, self.requests, self.is_over = handler, [], threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self):
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection, contextlib.suppress(OSError):
            connection.settimeout(DEADLINE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(64 * KIB)
                if not piece:
                    return
                head += piece
            request = Request(head.partition(b"\r\n\r\n")[0])
            self.requests.append(request)
            self.handler(connection, request)
            # A close while the client still sends is a reset, which would take the answer away.
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)

    def pause(self, seconds):
        """Waits, and ends the connection if the server has ended meanwhile."""
        if self.is_over.wait(seconds):
            raise OSError("the server has ended")

    def close(self):
        self.is_over.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def answer(connection, status=200, body=b"", **headers):
    """A whole answer. The body's length is in it unless the headers have another one; None leaves a header out."""
    headers = {"content-length": len(body), "connection": "close",
               **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)


def answer_file(connection, request, body, tag='"one"', **headers):
    """A file by the rules of HTTP."""
    first, end = request.range(len(body))
    is_part = "range" in request.headers
    more = {"content-range": f"bytes {first}-{end - 1}/{len(body)}"} if is_part else {}
    more["accept-ranges"] = "bytes"
    answer(connection, 206 if is_part else 200, body[first:end], etag=tag, **more, **headers)
