"""Evaluates once a second and gets worse after the third time. Knows nothing of SIGTERM."""

import itertools
import json
import os
import time

for step in itertools.count(1):
    with open(os.environ["TRAININGJOB_PROGRESS_FILE"], "a") as file:
        print(json.dumps({"step": step, "eval_loss": 0.3 + abs(step - 3) / 100}), file=file)
    time.sleep(1)
