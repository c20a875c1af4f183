"""What tests/gpu/run starts on a GPU: the first argument says what goes wrong, in attempt 1 alone."""

import os
import signal
import sys
import time

import torch

case, attempt = sys.argv[1], int(os.environ.get("ATTEMPT", "1"))


def steps(count, reduce=lambda tensor: None):
    model = torch.nn.Linear(1024, 1024, device="cuda")
    for step in range(1, count + 1):
        loss = model(torch.randn(256, 1024, device="cuda")).pow(2).mean()
        loss.backward()
        reduce(loss.detach())
        print(f"step {step}/{count} loss={loss.item():.6f}", flush=True)


def together(backend):
    import torch.distributed as dist

    dist.init_process_group(backend)
    # gloo reduces what lies in the host's memory.
    steps(20, lambda loss: dist.all_reduce(loss if backend == "nccl" else loss.cpu()))
    dist.barrier()
    dist.destroy_process_group()


if case in ("nccl", "gloo"):
    together(case)
elif attempt > 1:
    steps(3)
elif case == "memory":
    kept = []
    while True:
        kept.append(torch.empty(2**30, dtype=torch.uint8, device="cuda"))
elif case == "spin":
    steps(3)
    torch.cuda._sleep(2**62)
    torch.cuda.synchronize()
elif case == "killed":
    kept = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    steps(3)
    print(f"pid {os.getpid()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
elif case == "wait":
    kept = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    time.sleep(float(sys.argv[2]))
