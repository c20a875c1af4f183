"""Ranks of torchrun that all-reduce over gloo until they are ended. FAULT says how they stall:

silent   they print what no form of the agent's knows; a test stops a rank
absent   in attempt 1 rank 1 never enters the first collective
stuck    the same lines; in attempt 1 rank 1 looks after each step for a file, which a test makes its volume not answer
volume   they print steps and save each fifth; a test makes the whole volume not answer
"""

import os
import time

import torch
import torch.distributed as dist

fault, attempt = os.environ["FAULT"], int(os.environ["ATTEMPT"])
folder, resume = os.environ.get("CHECKPOINT_DIR"), os.environ.get("RESUME_FROM_CHECKPOINT")
dist.init_process_group("gloo")
rank = dist.get_rank()
if fault == "absent" and attempt == 1 and rank == 1:
    print("rank 1 is away", flush=True)
    time.sleep(100_000)
step = torch.load(resume)["step"] if resume else 0
tensor = torch.ones(1)
dist.all_reduce(tensor)
print(f"attempt {attempt}: all ranks have met, {step} done", flush=True)
while True:
    step += 1
    dist.all_reduce(tensor.fill_(1))
    if rank == 0:
        print(f"step {step} loss={1 / step:.6f}" if fault == "volume" else f"still at it {time.time():.0f}", flush=True)
    if fault == "stuck" and attempt == 1 and rank == 1:
        os.path.exists(f"{folder}/stuck")
    if fault == "volume" and rank == 0 and step % 5 == 0:
        torch.save({"step": step}, f"{folder}/step-{step}.tmp")
        os.rename(f"{folder}/step-{step}.tmp", f"{folder}/step-{step}.pt")
    time.sleep(0.5)
