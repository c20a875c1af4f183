"""DeepSpeed with ZeRO 1: each rank holds its part of the optimizer. All ranks write their part of a checkpoint."""

import os
from pathlib import Path

import deepspeed
import torch

EPOCHS = int(os.environ["HYPERPARAM_EPOCHS"])
CHECKPOINTS = os.environ["CHECKPOINT_DIR"]
torch.set_num_threads(1)
# On CPUs DeepSpeed would compile an operator for messages within a node, and the image has no compiler.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 32,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
rank = engine.global_rank
done = 0
if last := os.environ["RESUME_FROM_CHECKPOINT"]:  # the folder of one save
    folder = Path(last)
    engine.load_checkpoint(str(folder.parent), folder.name)
    done = int(folder.name.rpartition("-")[2])
print(f"rank {rank}: {done} of {EPOCHS} epochs are done", flush=True)

for epoch in range(done + 1, EPOCHS + 1):
    torch.manual_seed(epoch * 1000 + rank)
    for _ in range(10):
        x = torch.randn(32, 8, device=engine.device)
        loss = torch.nn.functional.mse_loss(engine(x), x.sum(1, keepdim=True))
        engine.backward(loss)
        engine.step()
    if rank == 0:
        print(f"Epoch {epoch}/{EPOCHS} loss: {loss.item():.4f}", flush=True)
    if epoch % 2 == 0:
        engine.save_checkpoint(CHECKPOINTS, f"epoch-{epoch}")
