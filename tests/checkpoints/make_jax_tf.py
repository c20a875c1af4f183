"""Writes checkpoints of two steps each with TensorFlow and Orbax: make_jax_tf.py FOLDER [SEED]"""

import os
import sys
from pathlib import Path

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorflow as tf

out = Path(sys.argv[1]).absolute()
random = np.random.default_rng(int(sys.argv[2]) if len(sys.argv) > 2 else 0)


def tensorflow():
    import keras

    model = keras.Sequential([keras.layers.Input((20,)), keras.layers.Dense(24), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam()
    model.compile(optimizer, "mse")
    step = tf.Variable(0, dtype=tf.int64)
    names = tf.Variable(["first", "", "third"])
    epoch = tf.Variable(0)
    state = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step, names=names, epoch=epoch)
    manager = tf.train.CheckpointManager(state, str(out / "tensorflow"), max_to_keep=5)
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=4096)
    sharded = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    for number in (10, 20):
        model.fit(random.normal(size=(80, 20)), random.normal(size=(80, 3)), batch_size=8, verbose=0)
        step.assign(number)
        epoch.assign(number // 10)
        manager.save()
        state.write(str(out / "tensorflow-sharded" / f"weights-{number}"), options=sharded)


def saver():
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        v1.get_variable("split", shape=(30, 8), partitioner=v1.fixed_size_partitioner(3))
        step = v1.train.get_or_create_global_step()
        more = v1.assign_add(step, 10)
        saver = v1.train.Saver()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(2):
                session.run(more)
                (out / "tensorflow-saver").mkdir(parents=True, exist_ok=True)
                saver.save(session, str(out / "tensorflow-saver" / "model.ckpt"), global_step=step)


def tree(step):
    return {
        "params": {
            "dense": {
                "kernel": jnp.asarray(random.normal(size=(20, 24)), jnp.float32),
                "bias": jnp.zeros((24,), jnp.float32),
            },
            "half": jnp.asarray(random.normal(size=(16,)), jnp.bfloat16),
        },
        "opt_state": [jnp.asarray(random.integers(0, 99, (5, 6)), jnp.int32), {"count": jnp.asarray(step)}],
        "host": np.arange(9.0),
        "step": step,
        "rate": 0.25,
    }


def orbax():
    best = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"], best_mode="min")
    with ocp.CheckpointManager(out / "orbax-standard", options=best) as manager:
        for step in (10, 20):
            manager.save(step, args=ocp.args.StandardSave(tree(step)), metrics={"loss": 1 / step, "nan": float("nan")})
        manager.wait_until_finished()
    with ocp.CheckpointManager(out / "orbax-items") as manager:
        for step in (10, 20):
            items = {"state": ocp.args.StandardSave(tree(step)), "data": ocp.args.JsonSave({"position": step})}
            manager.save(step, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
    forms = {"orbax-files": (False, False), "orbax-files3": (False, True), "orbax-zarr3": (True, True)}
    for name, (database, third) in forms.items():
        checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=database, use_zarr3=third))
        for step in (10, 20):
            saved = tree(step) | {"name": f"run of {step}", "nothing": {}}
            checkpointer.save(out / name / f"step_{step}", args=ocp.args.PyTreeSave(saved))


tensorflow()
saver()
orbax()
