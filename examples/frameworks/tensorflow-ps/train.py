"""TensorFlow's parameter servers: the chief hands out steps, workers take them, parameter servers have the weights.

TF_CONFIG has all of it. The chief exits when it is done, and the operator ends the others, which would serve for ever.
"""

import json
import os

import numpy
import tensorflow as tf

task = json.loads(os.environ["TF_CONFIG"])["task"]
cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()

if task["type"] in ("ps", "worker"):
    tf.distribute.Server(cluster.cluster_spec(), job_name=task["type"], task_index=task["index"]).join()

epochs, steps, batch = int(os.environ["HYPERPARAM_EPOCHS"]), 100, 64
strategy = tf.distribute.ParameterServerStrategy(cluster)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


def batches(_):
    x = numpy.random.default_rng(0).normal(size=(4096, 16)).astype("float32")
    y = (x[:, :8].sum(axis=1, keepdims=True) > x[:, 8:].sum(axis=1, keepdims=True)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).repeat().batch(batch)


with strategy.scope():
    weights = tf.Variable(tf.zeros([16, 1]), name="weights")
    epoch = tf.Variable(0, dtype=tf.int64, name="epoch")


@tf.function
def step(iterator):
    def one(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, x @ weights))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    return strategy.run(one, args=next(iterator))


saved = tf.train.CheckpointManager(tf.train.Checkpoint(weights=weights, epoch=epoch), os.environ["CHECKPOINT_DIR"],
                                   max_to_keep=3)
if last := os.environ["RESUME_FROM_CHECKPOINT"]:
    saved.checkpoint.restore(last)
print(f"chief: {int(epoch.numpy())} of {epochs} epochs are done", flush=True)
data = iter(coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(batches)))
for number in range(int(epoch.numpy()) + 1, epochs + 1):
    losses = [coordinator.schedule(step, args=(data,)) for _ in range(steps)]
    coordinator.join()
    loss = float(numpy.mean(coordinator.fetch(losses)))
    epoch.assign(number)
    saved.save(checkpoint_number=number)
    print(f"Epoch {number}/{epochs} - loss: {loss:.4f}", flush=True)
