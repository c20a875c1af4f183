"""Paddle, collective: `paddle.distributed.launch` starts this on every worker, with all that it needs in PADDLE_*."""

import os
from pathlib import Path

import numpy
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
rank, workers = dist.get_rank(), dist.get_world_size()
epochs, steps, batch = int(os.environ["HYPERPARAM_EPOCHS"]), 300, 64

random = numpy.random.default_rng(rank)
x = random.normal(size=(steps * batch, 16)).astype("float32")
y = (x[:, :8].sum(axis=1, keepdims=True) > x[:, 8:].sum(axis=1, keepdims=True)).astype("float32")

model = paddle.nn.Sequential(paddle.nn.Linear(16, 32), paddle.nn.ReLU(), paddle.nn.Linear(32, 1))
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
last = os.environ["RESUME_FROM_CHECKPOINT"]  # the same for all; empty if there is none
if last:
    model.set_state_dict(paddle.load(f"{last}/weights.pdparams"))
done = int(last.rpartition("-")[2]) if last else 0
print(f"worker {rank} of {workers}: {done} of {epochs} epochs are done", flush=True)
parallel = paddle.DataParallel(model)

for epoch in range(done + 1, epochs + 1):
    for step in range(1, steps + 1):
        part = slice((step - 1) * batch, step * batch)
        loss = paddle.nn.functional.binary_cross_entropy_with_logits(
            parallel(paddle.to_tensor(x[part])), paddle.to_tensor(y[part]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step % 100 == 0:
            print(f"epoch: {epoch}/{epochs}, step: {step}/{steps}, loss: {float(loss):.4f}", flush=True)
    if rank == 0:
        folder = Path(os.environ["CHECKPOINT_DIR"], f"epoch-{epoch}")
        folder.mkdir(exist_ok=True)
        paddle.save(model.state_dict(), str(folder / "weights.pdparams"))
        (folder / ".complete").touch()  # last: no attempt resumes from a folder without it
