"""A rank of MPI: what RAISES says raises in the first attempt, and nobody waits for it."""

import os
import socket
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
print(f"rank {world.rank} of {world.size} on {socket.gethostname()} sum {total}", flush=True)
if os.environ["ATTEMPT"] == "1" and os.environ.get("RAISES") == str(world.rank):
    raise ValueError("label 11 is not one of the 10 classes")
for step in range(1, 41):
    loss = world.allreduce(1.0 / (step + world.rank)) / world.size
    if world.rank == 0:
        print(f"step {step}/40 loss={loss:.4f}", flush=True)
    time.sleep(float(os.environ.get("STEP_SECONDS", "0.1")))
if world.rank == 0:
    print("all is well", flush=True)
