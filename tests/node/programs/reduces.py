"""One process of each worker, without a launcher: torch.distributed by the variables that PyTorchJobs read."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 11):
    loss = torch.tensor([1.0 / step])
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"step {step}/10 loss={loss.item():.4f} accuracy={step / 10:.4f}", flush=True)

# gloo's threads outlive the interpreter now and then, which ends the program by SIGABRT.
sys.stdout.flush()
os._exit(0)
