"""Does one thing that an alert reports, until the file /tmp/fixed is there: `alerts.py CAUSE`."""

import json
import os
import sys
import time
from pathlib import Path

FIXED = Path("/tmp/fixed")
LARGE = 5 << 20


def main(cause):
    tries = count_tries()
    step = 0
    while True:
        step += 1
        is_fixed = FIXED.exists()
        report(step, **(RATES if is_fixed else LOW).get(cause, {"loss": 0.5 - step / 10000}))
        fails = cause == "fails" or (cause == "fails-four-times" and tries <= 4)
        if fails and not is_fixed and step > 3 + 2 * tries:
            raise ValueError(f"row {step} has no label")  # never twice at one step, as one failure again and again
        if cause == "stops" and step > 5:
            while not FIXED.exists():
                time.sleep(0.5)
        if step == 5 and cause == "large":
            save(step, LARGE)
        if step % 30 == 5 and cause == "copies":
            save(step, 1 << 16)
        if cause == "damaged" and step == 5:
            save(step, 1 << 16, damaged=True)
        if is_fixed and step % 5 == 0 and cause in {"damaged", "saves-nothing"}:
            save(5 if cause == "damaged" else step, 1 << 16)
        time.sleep(1)


LOW = {"slow": {"loss": float("nan"), "throughput": 12}, "flat": {"loss": 0.5}}
RATES = {"slow": {"loss": 0.5, "throughput": 30}}


def count_tries():
    """How often this program has begun in this container."""
    begun = Path("/tmp/begun")
    begun.touch()
    with begun.open("a") as file:
        file.write(".")
    return begun.stat().st_size


def report(step, **values):
    with Path(os.environ["TRAININGJOB_PROGRESS_FILE"]).open("a") as file:
        file.write(json.dumps({"step": step, "total_steps": 100_000, **values}) + "\n")


def save(step, size, damaged=False):
    """A checkpoint in the format of safetensors; the header of a damaged one is nonsense."""
    head = json.dumps({"weights": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    head = b"x" * len(head) if damaged else head
    path = Path(os.environ["CHECKPOINT_DIR"]) / f"step-{step}.safetensors"
    path.with_suffix(".new").write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    path.with_suffix(".new").rename(path)


main(sys.argv[1])
