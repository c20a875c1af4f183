"""A rank of MPI: what RAISES says raises in the first attempt, and no other rank waits for it. The attempt that STAYS
names stays at its 20th step until it is ended."""

import os
import socket
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
print(f"rank {world.rank} of {world.size} on {socket.gethostname()} sum {total}", flush=True)
if os.environ["ATTEMPT"] == "1" and os.environ.get("RAISES") == str(world.rank):
    raise ValueError("label 11 is not one of the 10 classes")
last = 20 if os.environ["ATTEMPT"] == os.environ.get("STAYS") else 40
step = 0
while step < 40:
    step = min(step + 1, last)
    loss = world.allreduce(1.0 / (step + world.rank)) / world.size
    if world.rank == 0:
        print(f"step {step}/40 loss={loss:.4f}", flush=True)
    time.sleep(0.05)
if world.rank == 0:
    print("all is well", flush=True)
