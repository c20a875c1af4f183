#!/usr/bin/env python3
"""Uploads 2 GiB in one file, and 10,000 small files, with our client, `rclone` and `aws` in turns to one S3 server.

    cargo test --release --test files --no-run
    tests/store/bench.py PATH-OF-THE-TEST-PROGRAM

Prints seconds and the greatest memory of each, and ours by each other's. The server is built by
`devcluster/cluster tools versitygw`; of the other clients those are taken that are on PATH.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEY, SECRET, BUCKET = "test-key", "test-secret", "bucket"
TEST = "store::s3::upload_of_a_killed_process_is_continued_by_the_next"
ROUNDS = 2


def main():
    program = Path(sys.argv[1]).resolve()
    folder = subprocess.run([HERE.parents[1] / "devcluster/cluster", "tools", "versitygw"], check=True, text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="trainingjob-bench-") as temporary:
        home = Path(temporary)
        server, url = start(Path(folder) / "versitygw", home)
        try:
            for name, fill in {"2 GiB in one file": one_large, "10,000 small files": many_small}.items():
                root = home / "root"
                fill(root / "checkpoint-1")
                compare(name, home, root, url, program)
                shutil.rmtree(root)
        finally:
            server.kill()
            server.wait()


def start(program, home):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "store" / BUCKET).mkdir(parents=True)
    command = [program, "--access", KEY, "--secret", SECRET, "--region", "us-east-1", "--quiet",
               "--port", f"127.0.0.1:{port}", "posix", home / "store"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while socket.socket().connect_ex(("127.0.0.1", port)):
        time.sleep(0.1)
    return server, f"http://127.0.0.1:{port}"


def one_large(folder):
    folder.mkdir(parents=True)
    block = os.urandom(1 << 20)
    with open(folder / "model.safetensors", "wb") as file:
        for number in range(2048):
            file.write(number.to_bytes(8, "little") + block[8:])


def many_small(folder):
    for number in range(10_000):
        file = folder / f"{number % 100:02}" / f"{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(4096))


def compare(name, home, root, url, program):
    secret = home / "secret"
    secret.mkdir(exist_ok=True)
    (secret / "AWS_ACCESS_KEY_ID").write_text(KEY)
    (secret / "AWS_SECRET_ACCESS_KEY").write_text(SECRET)
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    source = str(root / "checkpoint-1")
    clients = {"ours": ([program, "--exact", TEST], {"STORE_TEST_HELPER": f"s3://{BUCKET}/runs\n{url}\n{secret}\n{root}"})}
    if shutil.which("rclone"):
        remote = f":s3,provider=Other,env_auth=true,endpoint='{url}':{BUCKET}/rclone"
        clients["rclone"] = (["rclone", "copy", "--config", "/dev/null", "--transfers", "8", "--checkers", "8",
                              "--s3-no-check-bucket", source, remote], keys)
    if shutil.which("aws"):
        clients["aws"] = (["aws", "--endpoint-url", url, "s3", "cp", "--recursive", "--only-show-errors", source,
                           f"s3://{BUCKET}/aws"], keys)
    best = {}
    for _ in range(ROUNDS):
        for client, (command, variables) in clients.items():
            empty(home, root)
            os.sync()
            seconds, memory = measure(command, variables)
            check(client, home, root)
            best[client] = min(best.get(client, (seconds, memory)), (seconds, memory))
    print(name)
    for client, (seconds, memory) in best.items():
        ratio = "" if client == "ours" else f"   ours takes {best['ours'][0] / seconds:.2f} of the time, " \
                                            f"{best['ours'][1] / memory:.2f} of the memory"
        print(f"  {client:7} {seconds:7.1f} s  {memory / 1024:6.0f} MiB{ratio}", flush=True)


def empty(home, root):
    shutil.rmtree(home / "store" / BUCKET)
    (home / "store" / BUCKET).mkdir()
    shutil.rmtree(root / ".trainingjob", ignore_errors=True)


def measure(command, variables):
    begin = time.monotonic()
    child = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{command[0]} has failed with {child.returncode}")
    return time.monotonic() - begin, usage.ru_maxrss


def check(client, home, root):
    prefix = {"ours": "runs/checkpoint-1"}.get(client, client)
    sent = sum(1 for path in (home / "store" / BUCKET / prefix).rglob("*") if path.is_file())
    had = sum(1 for path in (root / "checkpoint-1").rglob("*") if path.is_file())
    if sent != had:
        raise SystemExit(f"{client} has sent {sent} of {had} files")


if __name__ == "__main__":
    main()
