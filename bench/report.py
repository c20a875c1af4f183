"""What was measured, as Markdown: beside its aims, and beside what others cost in the same run."""

import collections
import statistics

NAMES = {"operator": "**this operator**", "native": "none: Indexed Job + Service",
         "copied": "none: the objects that this operator makes", "jobset": "JobSet v0.12.0",
         "trainer": "Kubeflow Trainer v2.3.0 + JobSet", "training-operator": "training-operator v1.9.4"}
WORDS = {"burst": "created at once, running", "life": "at once, whole life", "paced": "one after the other"}


def markdown(results):
    rounds = collections.defaultdict(list)
    for run in results["runs"]:
        rounds[run["driver"], run["part"]].append(run)
    runs = {of: middle(of_rounds) for of, of_rounds in rounds.items()}
    return "\n\n".join(filter(None, [
        head(results), aims(runs, rounds), *(costs(part, runs) for part in WORDS), remade(runs), requests(runs),
        processes(runs)])) + "\n"


def middle(values):
    """The median of each number; of all else the first."""
    if isinstance(values[0], dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: middle([value[key] for value in values if value.get(key) is not None] or [None]) for key in keys}
    return round(statistics.median(values), 4) if isinstance(values[0], int | float) else values[0]


def head(results):
    m = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    warning = "**Smoke figures: this machine was busy, so times and CPU are far too high.** "
    busy = warning if any(is_disturbed(run) for run in results["runs"]) else ""
    return (f"{busy}{m['when']}: {m['cpus']} cores ({m['cpu']}), {m['memory_gb']} GB, Linux {m['kernel']}; {versions}; "
            f"load before the start {m['load_before']:.1f}.")


def is_disturbed(run):
    """Whether other programs took a tenth of what was measured, or more."""
    return run.get("foreign_cpu_s", 0) > sum(run["cpu_s"].values()) / 10


def aims(runs, rounds):
    """Those that compare are met or not in one run on one machine; the others do not depend on the machine."""
    life, idle, paced = (runs.get(("operator", part)) for part in ("life", "idle", "paced"))
    burst, bare = rounds.get(("operator", "burst")), rounds.get(("native", "burst"))
    peers = [of_rounds for (driver, part), of_rounds in rounds.items() if part == "burst" and is_peer(driver)]
    rows = [
        life and ("requests per job over its whole life", life["requests_per_job"], 13),
        idle and (f"RSS in MB with {idle['jobs']} jobs x {idle['workers']} workers running", idle["rss_mb"], 30),
        idle and (f"requests in {idle['seconds']} idle s, besides watches and the lease", idle["not_upkeep"], 0),
        burst and bare and ("all CPU of a burst, by that of bare Job and Service",
                            ratio(burst, [bare], "all_cpu_ms_per_job"), 1.25),
        burst and peers and ("the same, by that of the cheapest peer", ratio(burst, peers, "all_cpu_ms_per_job"), 1),
        burst and peers and ("own CPU of a burst, by that of the cheapest peer",
                             ratio(burst, peers, "operator_cpu_ms_per_job"), 0.1),
        paced and ("jobset", "paced") in runs and (
            "TrainingJob to its last child on an idle plane, p50, by JobSet's",
            round(paced["last_child_s"]["p50"] / runs["jobset", "paced"]["last_child_s"]["p50"], 2), 1),
        *((f"a gang of {mine[0]['workers']} made again, by JobSet's",
           ratio(mine, [rounds["jobset", part]], "all_run_s"), 1)
          for (driver, part), mine in rounds.items()
          if driver == "operator" and part.startswith("remake") and ("jobset", part) in runs),
    ]
    lines = [f"| {what} | {value:g} | {aim} | {'yes' if value <= aim else '**no**'} |"
             for what, value, aim in filter(None, rows)]
    return lines and table("| | measured | aim at most | met |\n|---|---|---|---|", lines)


def is_peer(driver):
    return driver not in ("operator", "native", "copied")


def ratio(mine, others, key):
    """By the cheapest of the others: the median of what each round gives, for the next one's machine may be slower."""
    each = [run[key] / min(other[key] for other in by_round) for run, *by_round in zip(mine, *others, strict=True)]
    return round(statistics.median(each), 2)


def costs(part, runs):
    mine = {driver: run for (driver, ran), run in runs.items() if ran == part}
    if not mine:
        return None
    size = next(f"{run['jobs']:g} x {run['workers']:g}" for run in mine.values())
    foreign = ", ".join(f"{run['foreign_cpu_s'] * 1000 / run['jobs']:.0f}" for run in mine.values())
    lines = [row(NAMES.get(driver, driver), run, lambda spread: [spread["p50"], spread["max"]])
             for driver, run in mine.items()]
    return (f"{size} {WORDS[part]} (seconds p50 / max; ms and requests per job)\n\n" + table(
        "| operator | job to last child | job to all pods | requests | its CPU | all CPU | its RSS, MB |\n"
        "|---|---|---|---|---|---|---|",
        lines) + f"\n\nOther programs on this machine used {foreign} ms per job meanwhile (this bench among them).")


def remade(runs):
    """Gangs of which one pod failed."""
    columns = ("workers", "first_pod_made_s", "last_pod_made_s", "all_run_s", "pods_made")
    lines = [f"| {NAMES.get(driver, driver)} | {' | '.join(f'{run[column]:g}' for column in columns)} |"
             for (driver, part), run in sorted(runs.items(), key=lambda item: item[1]["workers"])
             if part.startswith("remake")]
    return lines and "One pod fails, without a kubelet or an agent (seconds from then)\n\n" + table(
        "| operator | workers | first new pod | last new pod | all run again | new pods |\n|---|---|---|---|---|---|",
        lines)


def row(name, run, pair):
    def times(key):
        return " / ".join(f"{value:.3g}" for value in pair(run[key])) if run.get(key) else "–"

    def number(key):
        return f"{run[key]:.4g}" if run.get(key) else "–"

    return (f"| {name} | {times('last_child_s')} | {times('all_pods_s')} | {number('requests_per_job')} | "
            f"{number('operator_cpu_ms_per_job')} | {number('all_cpu_ms_per_job')} | {number('rss_mb')} |")


def requests(runs):
    """Of the operator, by kind."""
    lines = []
    for (_, part), run in runs.items():
        account = next((who for who in run.get("requests", {}) if "trainingjob-operator" in who), None)
        if account and run.get("reconciles_per_job"):
            told = run["requests"][account]
            kinds = ", ".join(f"{kind} {count / run['jobs']:.3g}" for kind, count in told["kinds"].items())
            refused = ", ".join(f"{kind} ({count})" for kind, count in told["refused"].items()) or "none"
            lines.append(f"| {part} | {kinds} | {refused} | {run['reconciles_per_job']:.3g} |")
    head = "| part | the operator's requests per job | refused, in all | reconciles per job |\n|---|---|---|---|"
    return lines and table(head, lines)


def processes(runs):
    lines = []
    for (driver, part), run in runs.items():
        per = 1 if part == "idle" else 1000 / run["jobs"]
        most_first = sorted(run["cpu_s"].items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {used * per:.3g}" for name, used in most_first if used)
        lines.append(f"| {driver}, {part} | {shown} |")
    return table("| run | CPU by process, ms per job (idle: s in all) |\n|---|---|", lines)


def table(head, lines):
    return "\n".join([head, *lines])
