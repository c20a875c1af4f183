"""Which test programs there are, in which lanes they run, and what each needs.

Lanes run side by side: one with the real nodes, whose deadlines want an undisturbed machine; two that mostly wait; one
that computes, with what the others leave of the processors. What computes for minutes begins when the real nodes are
done (HEAVY). The programs of a lane run one after the other, a program whose needs are not there yet after those whose
are.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

BUDGETS = Path(__file__).with_name("budgets.toml")
OVER = "An issue may add 60 CPU seconds or says what it took out (tests/runner/budgets.toml)."


@dataclass(frozen=True)
class Program:
    """A test program and the steps (tests/runner/plan.py) that bring what it needs."""

    name: str
    needs: tuple = ()
    file: str | None = None  # of a program in Python; Rust's are built by cargo
    has_harness: bool = True
    makes_cgroups: bool = False  # below its own, which version 2 allows at the root alone
    limit: int = 1500  # seconds, after which it is ended: it hangs


@dataclass(frozen=True)
class Lane:
    name: str
    programs: tuple
    threads: int  # of each program
    nice: int = 0
    after: tuple = ()  # lanes that have ended before it begins


# The unit tests of each crate but the operator, whose are `lib`.
UNITS = tuple(f"lib-{crate}" for crate in (
    "address", "agent", "api", "checkpoint", "exposition", "failure", "fetch", "fuzz", "gang", "kubectl_trainingjob",
    "lifecycle", "objects", "observe", "plan", "protocol", "publish", "search", "store", "text", "trials", "tuning"))

PROGRAMS = {program.name: program for program in (
    Program("node", ("tools", "stores", "images", "dev-image", "python")),
    Program("planes", ("tools", "kueue", "kwok", "python")),
    Program("agents", ("python",), makes_cgroups=True),
    Program("plane", ("tools", "kwok")),
    Program("lib"),
    *(Program(unit, ("stores",) if unit == "lib-publish" else ()) for unit in UNITS),
    Program("files", ("stores", "python", "tools", "helm")),
    Program("api", ("tools",)),
    Program("wire", ("tools", "kwok")),
    Program("runs", has_harness=False),
    Program("devcluster", file="tests/devcluster.py"),
    Program("programs", ("tools",), file="tests/programs.py"),
    Program("runner", file="tests/runner_test.py"),
    Program("evidence", ("compile",), file="tests/evidence_test.py"),
    Program("words", file="tests/lint/words_test.py"),
    Program("book", file="tests/book/book_test.py"),
    Program("documents", file="tests/book/documents_test.py"),
    Program("stop", ("compile",), file="tests/fetch/stop_test.py"),
    Program("cache", ("compile", "packages"), file="tests/fetch/cache_test.py"),
    Program("release", ("compile", "tools", "helm"), file="tests/release/release_test.py"),
    Program("hostile", ("compile", "packages"), file="tests/fetch/hostile_test.py"),
)}

LANES = (
    Lane("node", ("node",), threads=3),
    Lane("cpu", ("words", "book", "documents", "runner", "devcluster", "evidence", "stop", "release", "lib", *UNITS,
                 "runs", "files", "programs", "api"), threads=2, nice=10),
    # These have deadlines as the real nodes have, and not their weight.
    Lane("waits", ("planes", "agents", "plane"), threads=8, after=("node",)),
    # These wait nearly all of their time, for servers that stall: beside what computes, which has less weight.
    Lane("stalls", ("hostile", "cache"), threads=1, after=("waits",)),
    Lane("heavy", ("wire",), threads=2, nice=10, after=("node", "waits")),
)
# The step (tests/runner/plan.py) and the slice of the soak that wait for these lanes, for the same reason. The release
# has the least weight, so it takes only what the waiting lane leaves.
HEAVY = {"release-image": ("node",), "slice": ("node", "waits")}
# One more, for what the table above forgets: it runs, and the run fails.
STRAYS = "strays"


def lane_of(program):
    return next((lane for lane in LANES if program in lane.programs), None)


def budgets():
    return tomllib.loads(BUDGETS.read_text())


def allowed(lane, found, unit):
    """CPU seconds that a lane may use on a machine whose unit() takes this long; None if it has no budget."""
    budget = found["lanes"].get(lane)
    return None if budget is None else budget * max(1.0, unit / found["unit"])


def over_budget(used, found, units):
    """A sentence for each lane of `used` (lane -> CPU seconds) that has used more than it may, by its unit."""
    said = []
    for lane, seconds in used.items():
        limit = allowed(lane, found, units[lane])
        if limit is not None and seconds > limit:
            said.append(f"lane {lane} used {seconds:.0f} CPU seconds of {limit:.0f}. {OVER}")
    return said


def unplaced(built):
    """Test programs that cargo built and that are in no lane, and those of the lanes that it did not build."""
    known = {name for lane in LANES for name in lane.programs if PROGRAMS[name].file is None}
    return sorted(set(built) - known), sorted(known - set(built))
