"""Prints 2,000 evaluations at once and exits. The first attempt fails after 1,000, the next one repeats some."""

import os
import sys

first = os.environ["ATTEMPT"] == "1"
steps = range(1, 1001) if first else range(901, 2001)
for step in steps:
    # Lowest at step 1,500.
    loss = abs(step - 1500) / 1000 + (0 if first or step > 1000 else 0.25)
    print(f"step {step}/2000 loss={loss + 1:.4f} eval_loss={loss:.4f}")
sys.stdout.flush()
os._exit(1 if first else 0)
