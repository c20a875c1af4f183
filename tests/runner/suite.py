"""Runs test programs in lanes, and knows in the end what passed."""

import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner import lanes, libtest, meter, soak
from runner.console import BEGIN, Failure, duration, quoted, say
from runner.libtest import Report, Test
from runner.processes import Reader, Stopping, kill, left_behind
from runner.steps import Step


@dataclass
class Run:
    """One run of a program: which, and with what."""

    program: str
    arguments: tuple = ()
    env: dict = field(default_factory=dict)
    label: str = ""  # what it is called in the tables, if not by its program
    shows: bool = False  # what its tests print, also of those that pass: a trial prints its figures
    limit: int | None = None  # seconds, if not those of its program

    @property
    def name(self):
        return self.label or self.program


@dataclass
class Ended:
    """What came of a run."""

    run: Run
    lane: str
    passed: int
    failed: int
    ignored: int
    seconds: float
    cpu: float  # beside what its lane's group counts


class Suite:
    def __init__(self, plan, nodes, pace):
        self.plan, self.nodes, self.pace = plan, nodes, pace
        self.lock = threading.Lock()
        self.tests, self.ended, self.failures, self.running = [], [], [], {}
        self.cpu = {}  # lane -> CPU seconds
        self.units = {}  # lane -> what meter.unit() took while it ran

    # ---- lanes

    def lane_step(self, lane, runs, schedule):
        """A step that runs these programs, one after the other, each when its needs are there."""
        return Step(f"lane {lane.name}", f"{', '.join(run.name for run in runs)} with {lane.threads} threads",
                    lambda step: self.run_lane(step, lane, runs, schedule), is_lane=True,
                    after=tuple(f"lane {name}" for name in lane.after))

    def run_lane(self, step, lane, runs, schedule):
        group = self.plan.group(f"lane-{lane.name}", lane.nice)
        begin = time.monotonic()
        pending = list(runs)
        while pending:
            run = self.next_run(pending, schedule())
            pending.remove(run)
            try:
                if missing := schedule().wait_for(self.needs_of(run)):
                    raise Failure(f"it did not run, for {missing} failed")
                self.run_program(lane, run, group)
            except Failure as failure:
                self.fail(lane.name, run.name, str(failure))
        step.cpu = group.seconds() + sum(ended.cpu for ended in self.ended if ended.lane == lane.name)
        self.cpu[lane.name] = step.cpu
        self.units[lane.name] = self.pace.unit(begin)
        group.remove()
        if any(failed == lane.name for failed, _, _ in self.failures):
            raise Failure("tests failed, see above")

    def needs_of(self, run):
        program = lanes.PROGRAMS.get(run.program, lanes.Program(run.program))
        return (*program.needs, *(() if program.file else ("compile",)))

    def next_run(self, pending, schedule):
        """The first program whose needs are there; while there is none, one is waited for."""
        while True:
            for run in pending:
                if schedule.are_done(self.needs_of(run)) is not None:
                    return run
            with schedule.changed:
                schedule.changed.wait(1)

    # ---- programs

    def run_program(self, lane, run, group):
        """Runs a program to its end, and says at once what fails."""
        program = lanes.PROGRAMS.get(run.program, lanes.Program(run.program))
        program = replace(program, limit=run.limit or program.limit)
        report = Report(run.name)
        words = self.words(program, run, lane.threads)
        env = {**self.plan.common, **self.plan.env, "TRAININGJOB_TEST_ALL": 1,
               "TRAININGJOB_EVIDENCE": self.plan.evidence.folder, **run.env}
        if program.has_harness and not program.file:
            env |= libtest.ENVIRONMENT
        elif program.file:
            env["PYTHONPATH"] = self.plan.root / "tests"
        of_lane = group
        if program.makes_cgroups and meter.is_unified():
            group = meter.Group(run.name, lane.nice, has_cgroup=False)
        begin, before = time.monotonic(), group.seconds()
        errors = self.plan.evidence.output_of(run.name, "stderr")
        output = self.plan.evidence.output_of(run.name, "stdout")
        say(f"{run.name}: begins in lane {lane.name}")
        with open(errors, "w") as stderr, open(output, "wb", buffering=0) as stdout:
            process = self.plan.processes.start(words, group, env, stdout=subprocess.PIPE, stderr=stderr,
                                                cwd=self.plan.root)
            reader = Reader(process.stdout, lambda line: self.read(line, run, report, stdout))
            if not program.has_harness:
                report.tests["main"] = Test(run.name, "main", time.monotonic() - BEGIN)
            with self.lock:
                self.running[run.name] = report
            try:
                code = self.plan.processes.wait(process, program.limit)
            finally:
                with self.lock:
                    del self.running[run.name]
            reader.finish()
        if self.plan.processes.is_stopping:
            raise Stopping
        if left := left_behind(group):
            say(f"{run.name}: {len(left)} processes were left behind and are ended: {commands(left)}")
            kill(left)
        seconds = time.monotonic() - begin
        self.close(lane, run, program, report, code, seconds, group.seconds() - before, process.pid, group is of_lane)
        reader.check(output)

    def words(self, program, run, threads):
        if program.file:
            return [sys.executable, "-B", "-m", "runner.unittests", program.file, *run.arguments]
        file = self.plan.kept.tests.get(program.name)
        if file is None:
            raise Failure(f"cargo built no test program {program.name}: correct tests/runner/lanes.py")
        if not program.has_harness:
            return [file, *run.arguments]
        shown = ["--show-output"] if run.shows else []
        return [file, *libtest.ARGUMENTS, *shown, "--test-threads", threads, *run.arguments]

    def read(self, line, run, report, copy):
        """Reads an event of a program. It is bytes: what a child of it prints may be no text."""
        test = report.feed(line.decode(errors="replace"), time.monotonic() - BEGIN)
        copy.write(line)
        if test is not None and test.result == "failed":
            self.show_failure(run, test)
        elif test is not None and run.shows and test.output:
            say(f"{test.full_name} printed:\n{quoted(test.output)}")

    def show_failure(self, run, test):
        """The harness's folder of the test is the same one."""
        folder = self.plan.evidence.of(run.program, test.name)
        (folder / "output.txt").write_text(test.output + "\n")
        say(f"FAILED: {test.full_name} after {duration(test.seconds or 0)}; evidence is in {folder}:\n"
            f"{quoted(test.output)}")

    def close(self, lane, run, program, report, code, seconds, cpu, pid, is_of_lane):
        if not program.has_harness:
            self.close_plain(run, report, code, seconds)
        broken = report.broken(code, program.limit if seconds > program.limit else None)
        tests = [test for test in report.tests.values() if test.result != "ignored"]
        for test in tests:
            if test.result == "running" and report.closing is None:
                test.result, test.seconds = "died", time.monotonic() - BEGIN - test.start
        failed = report.of("failed")
        with self.lock:
            self.tests += tests
            for test in failed:
                evidence = f"its evidence is in {self.plan.evidence.of(run.program, test.name)}"
                self.failures.append((lane.name, test.full_name, "\n".join([evidence, *libtest.cause(test.output)])))
        if broken:
            self.fail(lane.name, run.name, broken)
        count = len(failed) + (1 if broken else 0)
        cpu_of_nodes = self.nodes.seconds(pid)
        with self.lock:
            # The lane's group counts all but the nodes and what runs outside of it.
            beside = cpu_of_nodes + (0 if is_of_lane else cpu)
            self.ended.append(Ended(run, lane.name, report.passed, count, report.ignored, seconds, beside))
        more = f", {report.ignored} ignored" if report.ignored else ""
        say(f"{run.name}: {report.passed} passed, {count} failed{more} in {duration(seconds)}, "
            f"{cpu + cpu_of_nodes:.0f} CPU seconds")

    def close_plain(self, run, report, code, seconds):
        """A program without the harness is one test."""
        test = report.tests["main"]
        test.result, test.seconds = ("ok" if code == 0 else "failed"), seconds
        report.closing = {"passed": int(code == 0), "failed": int(code != 0)}
        if code != 0:
            folder = self.plan.evidence.folder / run.name
            test.output = (folder / "stdout.log").read_text(errors="replace") + (folder / "stderr.log").read_text(
                errors="replace")
            self.show_failure(run, test)

    def fail(self, lane, name, why):
        """Notes what failed beside the tests that say so themselves."""
        tail = ""
        log = self.plan.evidence.folder / name / "stderr.log"
        if log.exists():
            tail = "\n" + quoted(log.read_text(errors="replace"), 30)
        say(f"FAILED: {name}: {why}{tail}")
        with self.lock:
            self.failures.append((lane, name, why))

    def under_way(self):
        """A line of what runs."""
        with self.lock:
            reports = dict(self.running)
        parts = []
        for name, report in sorted(reports.items()):
            running = report.of("running")
            done = len(report.tests) - len(running)
            longest = min(running, key=lambda test: test.start, default=None)
            now = f", {longest.name} for {duration(time.monotonic() - BEGIN - longest.start)}" if longest else ""
            parts.append(f"{name} {done} of {report.expected or '?'}{now}")
        return "; ".join(parts)


def commands(pids):
    names = []
    for pid in sorted(pids)[:5]:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            names.append(f"{b' '.join(words[:3]).decode(errors='replace')} ({pid})")
        except OSError:
            continue
    return ", ".join(names)


def with_slice(run, chosen, listed):
    """The run of a program, with those of its soak's tests that are in the slice; `listed` is its list of all tests."""
    ignored = [name for name, why in listed.items() if why is not None]
    taken = [name for name in libtest.of_soak(listed) if any(part in name for part in chosen.tests)]
    skipped = [word for name in ignored if name not in taken for word in ("--skip", name)]
    arguments = ("--include-ignored", "--exact", *skipped) if taken else ()
    return Run(run.program, (*run.arguments, *arguments), {**run.env, **chosen.env}, run.label)


def slice_run(chosen):
    """The slice as a run of its own."""
    return Run(chosen.program, ("--include-ignored", *chosen.tests), chosen.env, f"slice-{chosen.name}", shows=True)


def trial_run(trial, listed):
    """How a trial of the soak runs its program, of which this is the list of tests; None if there is none for it."""
    env = {"TRAININGJOB_SOAK": 1, **trial.env}
    if trial.tests:
        arguments, shows = ("--include-ignored", *trial.tests), True
    elif trial.kubernetes:
        arguments, shows = (), False
    else:
        names = soak.names_of(trial, libtest.of_soak(listed), soak.TRIALS)
        if not names:
            return None
        arguments, shows = ("--ignored", "--exact", *names), True
    return Run(trial.program, arguments, env, f"soak-{trial.name}", shows, trial.limit)
