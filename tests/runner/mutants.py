"""Faults put into the code: which of them the tests notice. tests/evidence/mutants has the commands."""

import random
from dataclasses import dataclass

FOLDERS = ("lifecycle", "failure", "checkpoint", "gang", "store", "plan")
BASELINE = "(none)"  # the name under which a program's run without a fault is kept


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    diff: str

    @property
    def folder(self):
        return self.file.split("/")[1]

    @property
    def old_file(self):
        """Where the file was when all crates were modules of one."""
        room = "cause" if self.folder == "failure" else self.folder
        path = self.file.split("/src/", 1)[-1]
        return f"src/{room}/{'mod.rs' if path == 'lib.rs' else path}"

    def patch(self, file):
        """The diff of a file, with a head that `git apply` understands: cargo-mutants names the change there."""
        body = self.diff.splitlines()[2:]
        return "\n".join([f"--- a/{file}", f"+++ b/{file}", *body]) + "\n"


def shuffled(listed, seed):
    """The mutants of cargo's list, in an order that follows from the seed alone."""
    found = sorted((Mutant(one["name"], one["file"], one["diff"]) for one in listed), key=lambda mutant: mutant.name)
    random.Random(seed).shuffle(found)
    return found


@dataclass
class Verdicts:
    """What is known of each mutant: (mutant, side) -> (result, by whom). Sides are unit, old and new."""

    known: dict

    @classmethod
    def of(cls, rows):
        return cls({(row["mutant"], row["side"]): (row["result"], row["by"]) for row in rows})

    def result(self, mutant, side):
        return self.known.get((mutant, side), (None, ""))[0]

    def missed(self, order):
        """The mutants that are viable and that the unit tests miss."""
        return [mutant for mutant in order if self.result(mutant.name, "unit") == "missed"]

    def counts(self, order):
        """Those of them that both sides have judged."""
        return [mutant for mutant in self.missed(order) if all(
            self.result(mutant.name, side) in ("caught", "missed") for side in ("old", "new"))]

    def share(self, order, side):
        found = self.counts(order)
        return sum(self.result(mutant.name, side) == "caught" for mutant in found), len(found)
