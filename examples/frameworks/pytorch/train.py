"""DistributedDataParallel: is a point in a circle? Rank 0 saves each fifth epoch, and all ranks resume from that."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EPOCHS = int(os.environ["HYPERPARAM_EPOCHS"])
cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
torch.set_num_threads(1)

model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=float(os.environ["HYPERPARAM_LEARNING_RATE"]))
done = 0
if last := os.environ["RESUME_FROM_CHECKPOINT"]:  # a path, the same for all ranks; empty if there is none
    state = torch.load(last, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["epoch"]
print(f"rank {rank} of {dist.get_world_size()}: {done} of {EPOCHS} epochs are done", flush=True)

ddp = DistributedDataParallel(model)
loss_of = torch.nn.BCEWithLogitsLoss()
for epoch in range(done + 1, EPOCHS + 1):
    torch.manual_seed(epoch * 1000 + rank)  # each rank has its own points
    for _ in range(10):
        x = torch.randn(256, 2, device=device)
        inside = (x.pow(2).sum(1, keepdim=True) < 1).float()
        loss = loss_of(ddp(x), inside)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"Epoch {epoch}/{EPOCHS} loss: {loss.item():.4f}", flush=True)
        if epoch % 5 == 0:
            # A file has its name only when it is whole.
            path = Path(os.environ["CHECKPOINT_DIR"], f"epoch-{epoch}.pt")
            half = path.with_suffix(".tmp")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, half)
            half.rename(path)
dist.destroy_process_group()
