"""A rank of DeepSpeed's, started by mpirun: what RAISES says raises in the first attempt. The attempt that STAYS names
stays at its 20th step until it is ended."""

import os
import socket
import time

import deepspeed
import torch

# There is no compiler here, for shared memory of its own.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
print(f"rank {rank} of {ranks} on {socket.gethostname()}", flush=True)
if os.environ["ATTEMPT"] == "1" and os.environ.get("RAISES") == str(rank):
    raise ValueError("label 11 is not one of the 10 classes")
model = torch.nn.Linear(8, 10)
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                                  config={"train_micro_batch_size_per_gpu": 4})
last = 20 if os.environ["ATTEMPT"] == os.environ.get("STAYS") else 40
step = 0
while step < 40:
    step = min(step + 1, last)
    loss = torch.nn.functional.cross_entropy(engine(torch.randn(4, 8)), torch.randint(0, 10, (4,)))
    engine.backward(loss)
    engine.step()
    if rank == 0:
        print(f"step {step}/40 loss={loss.item():.4f}", flush=True)
    time.sleep(0.05)
