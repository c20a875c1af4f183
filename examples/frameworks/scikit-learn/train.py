"""Support vectors for handwritten digits: one model for each strength of the regularization, and the best of them."""

import json

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

x, y = load_digits(return_X_y=True)
strengths = [0.01, 0.03, 0.1, 0.3, 1, 3, 10]
best = 0.0
for step, strength in enumerate(strengths, 1):
    accuracy = cross_val_score(SVC(C=strength, gamma=0.001), x, y, cv=3).mean()
    best = max(best, accuracy)
    # One line of JSON for each step is the progress of the job.
    progress = {"step": step, "total_steps": len(strengths), "accuracy": round(accuracy, 4), "C": strength}
    print(json.dumps(progress), flush=True)
print(f"best accuracy {best:.4f}")
