"""What was measured, as Markdown: beside its aims, and beside what others cost."""

import json
import pathlib

NAMES = {"operator": "**this operator**", "native": "none: Indexed Job + Service",
         "copied": "none: the objects that this operator makes"}
WORDS = {"burst": "created at once, running", "life": "at once, whole life", "paced": "one after the other"}


def markdown(results):
    runs = {(run["driver"], run["part"]): run for run in results["runs"]}
    published = json.loads((pathlib.Path(__file__).parent / "published.json").read_text())
    return "\n\n".join(filter(None, [
        head(results), aims(runs), costs("burst", runs, published), costs("life", runs, {}),
        costs("paced", runs, published), requests(runs), processes(runs)])) + "\n"


def head(results):
    m = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    warning = "**Smoke figures: this machine was busy, so times and CPU are far too high.** "
    busy = "" if m["load_before"] < 1 else warning
    return (f"{busy}{m['when']}: {m['cpus']} cores ({m['cpu']}), {m['memory_gb']} GB, Linux {m['kernel']}; {versions}; "
            f"load before the start {m['load_before']:.1f}.")


def aims(runs):
    burst, life, idle, paced = (runs.get(("operator", part)) for part in ("burst", "life", "idle", "paced"))
    rows = [
        life and ("requests per job over its whole life", life["requests_per_job"], 12, ""),
        burst and ("operator's CPU per job until all run", burst["operator_cpu_ms_per_job"], 6, " ms"),
        life and ("operator's CPU per job over its whole life", life["operator_cpu_ms_per_job"], None, " ms"),
        burst and ("all CPU per job, API server included, until all run", burst["all_cpu_ms_per_job"], 230, " ms"),
        idle and (f"RSS with {idle['jobs']} jobs x {idle['workers']} workers running", idle["rss_mb"], 30, " MB"),
        idle and (f"requests in {idle['seconds']} idle s, besides watches and the lease", idle["not_upkeep"], 0, ""),
        paced and ("TrainingJob to its last child, idle plane, p50", round(1000 * paced["last_child_s"]["p50"]), 15,
                   " ms"),
    ]
    lines = [f"| {what} | {value:g}{unit} | {'' if aim is None else f'{aim}{unit}'} | "
             f"{'' if aim is None else 'yes' if value <= aim else '**no**'} |"
             for what, value, aim, unit in filter(None, rows)]
    return lines and table("| | measured | aim at most | met |\n|---|---|---|---|", lines)


def costs(part, runs, published):
    mine = {driver: run for (driver, ran), run in runs.items() if ran == part}
    if not mine:
        return None
    size = next(f"{run['jobs']} x {run['workers']}" for run in mine.values())
    foreign = ", ".join(f"{run['foreign_cpu_s'] * 1000 / run['jobs']:.0f}" for run in mine.values())
    lines = [row(NAMES.get(driver, driver), run, lambda spread: [spread["p50"], spread["max"]])
             for driver, run in mine.items()]
    lines += [row(f"{other['name']} (published)", other, list) for other in published.get(part, [])]
    return (f"{size} {WORDS[part]} (seconds p50 / max; ms and requests per job)\n\n" + table(
        "| operator | job to last child | job to all pods | requests | its CPU | all CPU | its RSS, MB |\n"
        "|---|---|---|---|---|---|---|",
        lines) + f"\n\nOther programs on this machine used {foreign} ms per job meanwhile (this bench among them).")


def row(name, run, pair):
    def times(key):
        return " / ".join(f"{value:.3g}" for value in pair(run[key])) if run.get(key) else "–"

    def number(key):
        return f"{run[key]:g}" if run.get(key) else "–"

    return (f"| {name} | {times('last_child_s')} | {times('all_pods_s')} | {number('requests_per_job')} | "
            f"{number('operator_cpu_ms_per_job')} | {number('all_cpu_ms_per_job')} | {number('rss_mb')} |")


def requests(runs):
    """Of the operator, by kind."""
    lines = []
    for (_, part), run in runs.items():
        account = next((who for who in run["requests"] if "operator" in who), None) if part != "idle" else None
        if account:
            told = run["requests"][account]
            kinds = ", ".join(f"{kind} {count / run['jobs']:g}" for kind, count in told["kinds"].items())
            refused = ", ".join(f"{kind} ({count})" for kind, count in told["refused"].items()) or "none"
            lines.append(f"| {part} | {kinds} | {refused} | {run['reconciles_per_job']:g} |")
    head = "| part | the operator's requests per job | refused, in all | reconciles per job |\n|---|---|---|---|"
    return lines and table(head, lines)


def processes(runs):
    lines = []
    for (driver, part), run in runs.items():
        per = 1000 / run["jobs"] if part != "idle" else 1
        most_first = sorted(run["cpu_s"].items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name} {used * per:.3g}" for name, used in most_first if used)
        lines.append(f"| {driver}, {part} | {shown} |")
    return table("| run | CPU by process, ms per job (idle: s in all) |\n|---|---|", lines)


def table(head, lines):
    return "\n".join([head, *lines])
