"""JAX on several workers. JAX itself reads JAX_COORDINATOR_ADDRESS; its two numbers are passed by the program."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

processes, process = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
jax.distributed.initialize(num_processes=processes, process_id=process)
worker, EPOCHS = jax.process_index(), int(os.environ["HYPERPARAM_EPOCHS"])
rate = float(os.environ["HYPERPARAM_LEARNING_RATE"])
mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("rows"))

random = np.random.default_rng(worker)
x = random.normal(size=(512, 4)).astype(np.float32)
y = x @ np.arange(1, 5, dtype=np.float32)
x, y = (jax.make_array_from_process_local_data(rows, part) for part in (x, y))


@jax.jit
def step(weights, x, y):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - rate * gradient, loss


weights, done = jnp.zeros(4), 0
if last := os.environ["RESUME_FROM_CHECKPOINT"]:
    saved = np.load(last)
    weights, done = jnp.asarray(saved["weights"]), int(saved["epoch"])
print(f"worker {worker} of {jax.process_count()}: {done} of {EPOCHS} epochs are done", flush=True)
for epoch in range(done + 1, EPOCHS + 1):
    weights, loss = step(weights, x, y)
    if worker == 0:
        print(f"Epoch {epoch}/{EPOCHS} loss: {float(loss):.6f}", flush=True)
        if epoch % 10 == 0:
            half = Path(os.environ["CHECKPOINT_DIR"], f"epoch-{epoch}.tmp.npz")
            np.savez(half, weights=np.asarray(weights), epoch=epoch)
            half.rename(half.with_name(f"epoch-{epoch}.npz"))
print(f"worker {worker}: weights {np.asarray(weights).round(2).tolist()}")
jax.distributed.shutdown()
