#!/usr/bin/env python3
"""How soon a gang of agents as plain processes has its programs started again.

    tests/gang_bench.py AGENT [--sizes 4,64,256] [--rounds 5]

Each round makes a gang and kills one program of it. Printed are the seconds from that kill until the last program of
the next attempt has been started, median and largest of all rounds. A program is a shell that writes a file and sleeps,
so what is measured is the agents and the machine's forks. No figure is judged here.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = "echo $$ > began-$NODE_RANK-$ATTEMPT; exec sleep 100000"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait(what, look, seconds=120):
    until = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > until:
            sys.exit(f"waited {seconds} s for {what}")
        time.sleep(0.01)
    return found


def began(room, size, attempt):
    """When the last program of an attempt began, or None while not all have."""
    try:
        files = [room / f"began-{index}-{attempt}" for index in range(size)]
        times = [file.stat() for file in files]
    except FileNotFoundError:
        return None
    return max(time.st_mtime_ns for time in times) if all(time.st_size > 0 for time in times) else None


def measure(agent, size, room):
    """Seconds of one restart."""
    setup = {"uid": "bench", "workers": size, "leader": "127.0.0.1", "port": free_port(), "masterPort": 29500,
             "restarts": "Always", "backoffLimit": 1000}
    (room / "gang.json").write_text(json.dumps(setup))
    (room / "key").write_text("0123456789abcdef0123456789abcdef")
    agents = []
    for index in range(size):
        command = [agent, "run", "--attempt=1", f"--termination-log={room}/message-{index}",
                   f"--gang={room}/gang.json", f"--gang-key={room}/key", "--", "sh", "-c", PROGRAM]
        env = dict(os.environ, NODE_RANK=str(index), POD_UID=f"pod-{index}")
        agents.append(subprocess.Popen(command, cwd=room, env=env, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        wait("the first attempt", lambda: began(room, size, 1))
        victim = int((room / "began-1-1").read_text())
        killed = time.time_ns()
        os.kill(victim, signal.SIGKILL)
        # One restart of each gang: what follows quickly is waited after, and that is no matter of speed.
        return (wait("attempt 2", lambda: began(room, size, 2)) - killed) / 1e9
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            agent.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agent", type=os.path.abspath)
    parser.add_argument("--sizes", default="4,64,256")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("agents  restarts  median s  largest s")
    for size in map(int, args.sizes.split(",")):
        took = []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as room:
                took.append(measure(args.agent, size, pathlib.Path(room)))
        print(f"{size:6}  {len(took):8}  {statistics.median(took):8.3f}  {max(took):9.3f}", flush=True)


main()
