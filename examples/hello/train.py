"""Estimates pi by random points: worker 0 collects what the others have counted, over a plain socket."""

import os
import random
import socket
import sys
import time

worker, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
first = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
rounds, points = 20, 20_000


def count(seed):
    dice = random.Random(seed)
    return sum(dice.random() ** 2 + dice.random() ** 2 < 1 for _ in range(points))


def connect():
    """A connection to worker 0, which may start a moment later."""
    for _ in range(600):
        try:
            return socket.create_connection(first, timeout=60)
        except OSError:
            time.sleep(0.1)
    sys.exit(f"worker 0 does not answer at {first}")


if worker == 0:
    server = socket.create_server(("", first[1]))
    others = [server.accept()[0].makefile() for _ in range(1, workers)]
else:
    other = connect().makefile("w")

inside = 0
for step in range(1, rounds + 1):
    mine = count(step * workers + worker)
    if worker != 0:
        print(mine, file=other, flush=True)
        continue
    inside += mine + sum(int(line.readline()) for line in others)
    pi = 4 * inside / (step * workers * points)
    print(f"step {step}/{rounds} loss {abs(pi - 3.14159265):.6f} pi {pi:.5f}", flush=True)
print(f"worker {worker} of {workers} is done")
