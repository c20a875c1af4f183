"""TensorFlow's MultiWorkerMirroredStrategy: every worker has its share of each batch, and all have the same weights.

TF_CONFIG tells it all. With a role `chief` that one leads, else worker 0 does. An `evaluator`, of which the others do
not know, measures every checkpoint. The loop is its own: Keras 3 has no `fit` for several workers.
"""

import json
import os

import numpy
import tensorflow as tf

config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
leads = role == "chief" or ("chief" not in config["cluster"] and role == "worker" and index == 0)
epochs, steps, batch = int(os.environ["HYPERPARAM_EPOCHS"]), 100, 64
folder = os.environ["CHECKPOINT_DIR"]


def rows(seed, count):
    x = numpy.random.default_rng(seed).normal(size=(count, 16)).astype("float32")
    return x, (x[:, :8].sum(axis=1, keepdims=True) > x[:, 8:].sum(axis=1, keepdims=True)).astype("float32")


def loss_of(x, y):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, x @ weights))


def variables():
    return (tf.Variable(tf.zeros([16, 1]), name="weights", aggregation=tf.VariableAggregation.MEAN),
            tf.Variable(0, name="epoch", aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA))


if role == "evaluator":
    weights, epoch = variables()
    for path in tf.train.checkpoints_iterator(folder):
        tf.train.Checkpoint(weights=weights, epoch=epoch).restore(path)
        print(f"evaluated {os.path.basename(path)}: val_loss: {float(loss_of(*rows(99, 1000))):.4f}", flush=True)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights, epoch = variables()
saved = tf.train.CheckpointManager(tf.train.Checkpoint(weights=weights, epoch=epoch), folder, max_to_keep=None)
if last := os.environ["RESUME_FROM_CHECKPOINT"]:  # the same for all; empty if there is none
    saved.checkpoint.restore(last)
done = int(epoch.numpy())
print(f"{role} {index}: {done} of {epochs} epochs are done", flush=True)


@tf.function
def step(iterator):
    def one(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))  # the mean of all workers
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(one, args=next(iterator)), axis=None)


data = tf.data.Dataset.from_tensor_slices(rows(0, steps * batch)).shuffle(1000).repeat().batch(batch)
data = iter(strategy.experimental_distribute_dataset(data))
for number in range(done + 1, epochs + 1):
    loss = numpy.mean([step(data) for _ in range(steps)])
    epoch.assign(number)
    print(f"Epoch {number}/{epochs} - loss: {loss:.4f}", flush=True)
    if leads:
        saved.save(checkpoint_number=number)
