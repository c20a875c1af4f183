"""Where the tests of tests/node at 7473401 live now: tests/evidence/node-tests.tsv, without a head.

Its columns: the old test, the program and the test that prove its rule now, and whether that is kept or of the soak.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "evidence" / "node-tests.tsv"
OLD_COMMIT, OLD_COUNT = "7473401", 46
KINDS = {"kept": 20, "soak": 5}  # runs of each


@dataclass(frozen=True)
class Moved:
    """An old test, and the one that proves its rule now: kept in `make test`, or of the soak."""

    old: str
    program: str
    test: str
    kind: str

    @property
    def runs(self):
        return KINDS[self.kind]


def read(file=FILE):
    with open(file, newline="") as lines:
        rows = csv.reader((line for line in lines if line.strip() and not line.startswith("#")), delimiter="\t")
        return [Moved(*row) for row in rows]


def faults(moved, names):
    """What is wrong with the table. `names` is program -> what libtest.list_of says of it, of those that were built."""
    found = []
    seen = set()
    for row in moved:
        if row.kind not in KINDS:
            found.append(f"{row.old}: {row.kind!r} is neither of {', '.join(KINDS)}")
        if row.old in seen:
            found.append(f"{row.old}: it is there twice")
        seen.add(row.old)
        if row.program not in names:
            continue
        if row.test not in names[row.program]:
            found.append(f"{row.old}: {row.program} has no test {row.test}")
        elif row.kind == "kept" and names[row.program][row.test] is not None:
            found.append(f"{row.old}: {row.program} {row.test} is said to be kept, and is ignored")
    return found
