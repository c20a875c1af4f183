"""The tables at the end of a run."""

from runner import lanes, soak
from runner.console import table

PACE = "(pace: what the same work costs here while the lane runs; above 1, the lane may use so much more)"


def indented(text):
    return "\n".join(f"  {line}" for line in text.splitlines())


def failure(name, why):
    """A line for what failed, and below it the first lines of why."""
    first, *rest = why.splitlines() or [""]
    return "\n".join([f"  {name}{': ' + first if first else ''}", *(f"      {line}" for line in rest[:8])])


def phase_table(steps):
    rows = [(step.name, None if step.wall is None else round(step.wall, 1), None if step.cpu is None else
             round(step.cpu, 1), step.state) for step in steps if not step.is_lane and step.name != lanes.STRAYS]
    return table(("phase", "seconds", "CPU s", ""), rows)


def run_table(ended, steps, budgets, units):
    """The programs, and below them the lanes with what they may use."""
    programs = [(run.lane, run.run.name, run.passed, run.failed, run.ignored, run.seconds) for run in ended]
    first = table(("lane", "program", "passed", "failed", "ignored", "seconds"), programs)
    rows = []
    for step in steps:
        if step.is_lane and step.wall is not None:
            name = step.name.removeprefix("lane ")
            unit = units.get(name, budgets["unit"])
            pace = f"{unit / budgets['unit']:.2f}"
            rows.append((name, step.wall, step.cpu, lanes.allowed(name, budgets, unit), pace))
    return f"{first}\n\n{table(('lane', 'seconds', 'CPU s', 'budget', 'pace'), rows)}\n{PACE}"


def slowest_table(tests, count=20):
    """The slowest tests, and when each began."""
    slowest = sorted((test for test in tests if test.seconds is not None), key=lambda test: -test.seconds)[:count]
    rows = [(float(test.seconds), float(test.start), test.program, test.name, test.result) for test in slowest]
    return f"the {len(rows)} slowest tests\n" + table(("seconds", "began at", "program", "test", ""), rows)


def soak_table(rows):
    return table(("trial", "what", "result", "seconds"), rows)


def lane_table(budgets):
    return table(("lane", "programs", "threads", "nice", "budget"), [
        (lane.name, ", ".join(lane.programs), lane.threads, lane.nice, budgets.get(lane.name)) for lane in lanes.LANES])


def program_table():
    return table(("program", "needs"), [
        (program.name, ", ".join(program.needs) or "nothing") for program in lanes.PROGRAMS.values()])


def trial_table():
    return table(("trial", "what", "program", "tests", "environment"), [
        (trial.name, trial.what, trial.program or " ".join(trial.command), ", ".join(trial.tests) or
         ("" if trial.command else "all that are ignored and that no other trial names"),
         " ".join(f"{name}={value}" for name, value in trial.env.items())) for trial in soak.TRIALS])


def slice_table():
    return table(("slice", "program", "tests", "environment"), [
        (part.name, part.program, ", ".join(part.tests),
         " ".join(f"{name}={value}" for name, value in part.env.items())) for part in soak.SLICES])
