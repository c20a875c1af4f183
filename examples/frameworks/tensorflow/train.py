"""TensorFlow's MultiWorkerMirroredStrategy: every worker has its share of each batch, and all have the same weights.

TF_CONFIG tells it all. With a role `chief` that one leads, else worker 0 does. An `evaluator`, of which the others do not
know, measures every checkpoint.
"""

import json
import os

import numpy
import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
leads = role == "chief" or ("chief" not in config["cluster"] and role == "worker" and index == 0)
epochs, steps, batch = int(os.environ["HYPERPARAM_EPOCHS"]), 20, 64
folder = os.environ["CHECKPOINT_DIR"]


def rows(seed, count):
    x = numpy.random.default_rng(seed).normal(size=(count, 16)).astype("float32")
    return x, (x[:, :8].sum(axis=1, keepdims=True) > x[:, 8:].sum(axis=1, keepdims=True)).astype("float32")


def make():
    layers = [tf.keras.layers.Input([16]), tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss=tf.keras.losses.BinaryCrossentropy(from_logits=True))
    return model


if role == "evaluator":
    model = make()
    saved = tf.train.Checkpoint(model=model)
    for path in tf.train.checkpoints_iterator(folder):
        saved.restore(path).expect_partial()
        print(f"evaluated {path}: loss {model.evaluate(*rows(99, 1000), verbose=0):.4f}", flush=True)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = make()
saved = tf.train.Checkpoint(model=model)
last = os.environ["RESUME_FROM_CHECKPOINT"]  # the same for all; empty if there is none
if last:
    saved.restore(last)
done = int(last.rpartition("-")[2]) if last else 0
print(f"{role} {index}: {done} of {epochs} epochs are done", flush=True)


class Save(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if leads:
            saved.write(f"{folder}/epoch-{epoch + 1}")


data = tf.data.Dataset.from_tensor_slices(rows(0, steps * batch)).shuffle(1000).repeat().batch(batch)
model.fit(data, epochs=epochs, initial_epoch=done, steps_per_epoch=steps, callbacks=[Save()], verbose=2)
