"""Prints 2,000 evaluations as fast as it can and exits at once. The first attempt fails after 1,000, the next repeats some."""

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
