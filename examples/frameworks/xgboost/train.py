"""Boosted trees on several workers: each has its share of the rows, and all agree on every split.

XGBoost reads no environment (since 2.1): the program of worker 0 starts the tracker, and every worker gives
XGBoost the tracker's address and its own rank.
"""

import os
from pathlib import Path

import numpy
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

rank, workers = int(os.environ["DMLC_TASK_ID"]), int(os.environ["DMLC_NUM_WORKER"])
port = int(os.environ["DMLC_TRACKER_PORT"])
rounds = int(os.environ["HYPERPARAM_ROUNDS"])
last = os.environ["RESUME_FROM_CHECKPOINT"]  # the same for all; empty if there is none


class Save(xgboost.callback.TrainingCallback):
    """Every fifth round a folder with the trees so far. `.complete` comes last: no attempt resumes without it."""

    def after_iteration(self, model, epoch, evals_log):
        done = model.num_boosted_rounds()
        if rank == 0 and done % 5 == 0:
            folder = Path(os.environ["CHECKPOINT_DIR"], f"step-{done}")
            folder.mkdir(exist_ok=True)
            model.save_model(folder / "trees.ubj")
            (folder / ".complete").touch()
        return False


random = numpy.random.default_rng(rank)
x = random.normal(size=(20_000, 20))
y = (x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * random.normal(size=len(x)) > 0).astype(int)
train, test = xgboost.DMatrix(x[1000:], y[1000:]), xgboost.DMatrix(x[:1000], y[:1000])

if rank == 0:
    tracker = RabitTracker(host_ip=os.environ["POD_IP"], n_workers=workers, port=port, sortby="task")
    tracker.start()

# Without dmlc_retry a worker gives up after 6 s, which the imports of worker 0 may take.
with collective.CommunicatorContext(dmlc_tracker_uri=os.environ["DMLC_TRACKER_URI"], dmlc_tracker_port=port,
                                    dmlc_task_id=str(rank), dmlc_retry=60):
    trees = xgboost.Booster(model_file=Path(last, "trees.ubj")) if last else None
    done = trees.num_boosted_rounds() if trees else 0
    print(f"worker {rank} of {workers}: {done} of {rounds} rounds are done")
    parameters = {"objective": "binary:logistic", "eval_metric": "logloss", "max_depth": 4, "eta": 0.1, "nthread": 1}
    trees = xgboost.train(parameters, train, num_boost_round=rounds - done, xgb_model=trees,
                          evals=[(train, "train"), (test, "test")], callbacks=[Save()])
    print(f"worker {rank}: a model of {trees.num_boosted_rounds()} rounds")

if rank == 0:
    tracker.wait_for()
