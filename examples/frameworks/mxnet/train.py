"""MXNet's Module with a parameter server: workers push gradients to the servers and pull weights.

The same program runs in the scheduler and in the servers, where `import mxnet` serves until the workers have ended.
"""

import logging
import os
from pathlib import Path

import mxnet
import numpy

logging.basicConfig(level=logging.INFO)
store = mxnet.kvstore.create("dist_sync")
epochs, batch = int(os.environ["HYPERPARAM_EPOCHS"]), 32

random = numpy.random.RandomState(store.rank)
x = random.normal(size=(20_480, 16))
y = x[:, :8].sum(axis=1) > x[:, 8:].sum(axis=1)
data = mxnet.io.NDArrayIter(x, y, batch, shuffle=True, label_name="softmax_label")

net = mxnet.sym.FullyConnected(mxnet.sym.Variable("data"), num_hidden=32)
net = mxnet.sym.FullyConnected(mxnet.sym.Activation(net, act_type="relu"), num_hidden=2)
net = mxnet.sym.SoftmaxOutput(net, name="softmax")



def save(epoch, symbol, arguments, auxiliary):
    """A folder for each epoch. `.complete` comes last: no attempt resumes from a folder without it."""
    at = Path(os.environ["CHECKPOINT_DIR"], f"epoch-{epoch + 1}")
    at.mkdir(exist_ok=True)
    mxnet.model.save_checkpoint(str(at / "mlp"), epoch + 1, symbol, arguments, auxiliary)
    (at / ".complete").touch()


last = os.environ["RESUME_FROM_CHECKPOINT"]  # the same for all; empty if there is none
done = int(last.rpartition("-")[2]) if last else 0
_, arguments, auxiliary = mxnet.model.load_checkpoint(f"{last}/mlp", done) if last else (None, None, None)
logging.info("worker %d of %d: %d of %d epochs are done", store.rank, store.num_workers, done, epochs)
mxnet.mod.Module(net).fit(
    data, kvstore=store, num_epoch=epochs, begin_epoch=done, arg_params=arguments, aux_params=auxiliary,
    initializer=mxnet.initializer.Xavier(), optimizer_params={"learning_rate": 0.1}, eval_metric=["acc", "ce"],
    batch_end_callback=mxnet.callback.Speedometer(batch, 160), epoch_end_callback=save if store.rank == 0 else None)
