"""Results in a file of tab-separated values, a line as soon as one is there: what was cut short resumes."""

import csv
from pathlib import Path


class Records:
    def __init__(self, file, *head):
        self.file, self.head = Path(file), head

    def rows(self):
        """Each line as a dict, in the order in which they came."""
        if not self.file.exists():
            return []
        with open(self.file, newline="") as file:
            return [row for row in csv.DictReader(file, delimiter="\t") if None not in row.values()]

    def add(self, *values):
        is_new = not self.file.exists()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.file, "a", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            if is_new:
                writer.writerow(self.head)
            writer.writerow([clean(value) for value in values])


def clean(value):
    """A value without what would end its column or line."""
    return f"{value:.1f}" if isinstance(value, float) else " ".join(str(value).split())
