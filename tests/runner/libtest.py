"""What a test program reports, in the JSON of Rust's test harness, one event a line.

The harness of a stable toolchain prints it only where RUSTC_BOOTSTRAP is set in the environment of the test program
itself; that changes nothing of how it was compiled. It has been `-Z unstable-options` for years, so `Report` takes a
program without the closing event for one that failed.
"""

import json
import os
import subprocess
from dataclasses import dataclass, field

ARGUMENTS = ["-Z", "unstable-options", "--format", "json", "--report-time"]
ENVIRONMENT = {"RUSTC_BOOTSTRAP": "1"}


@dataclass
class Test:
    """One test that ran, or began to. Times are in seconds, since the runner's start."""

    program: str
    name: str
    start: float
    result: str = "running"  # ok, failed, ignored
    seconds: float | None = None
    output: str = ""

    @property
    def full_name(self):
        return f"{self.program} {self.name}"


def cause(output, lines=6, width=400):
    """The first lines of what a failed test has said last: of a panic its place and its words, without the stack. What
    comes before a panic may be long."""
    before_stack = output.split("\nstack backtrace:")[0].rstrip().splitlines()
    begins = [at for at, line in enumerate(before_stack) if line.startswith("thread ") and "panicked at" in line]
    told = before_stack[begins[-1]:][:lines] if begins else before_stack[-lines:]
    return [line[:width] for line in told if line.strip()]


@dataclass
class Report:
    """The events of one run of a program. `feed` takes its standard output, line by line."""

    program: str
    tests: dict = field(default_factory=dict)
    closing: dict | None = None
    expected: int | None = None

    def feed(self, line, now):
        """Takes a line; returns the test that has just ended, if one has, or None. What is no event is output."""
        event = parse(line)
        if event is None:
            return None
        kind, what = event.get("type"), event.get("event")
        if kind == "suite":
            if what == "started":
                self.expected = event.get("test_count")
            else:
                self.closing = event
            return None
        if kind != "test":
            return None
        name = event.get("name", "")
        if what == "started":
            self.tests[name] = Test(self.program, name, now)
            return None
        if what not in ("ok", "failed", "ignored"):  # "timeout": it has run for a minute
            return None
        test = self.tests.setdefault(name, Test(self.program, name, now))
        test.result = what
        test.seconds = event.get("exec_time", now - test.start)
        test.output = "\n".join(text for text in (event.get("stdout"), event.get("message")) if text)
        return test

    def of(self, result):
        return [test for test in self.tests.values() if test.result == result]

    def broken(self, exit_code, hung=None):
        """Why this run can't be believed, or None: the harness ended early, or says other than its tests did.

        `hung` are the seconds after which the runner has ended it, if it has.
        """
        if self.closing is None:
            running = ", ".join(test.name for test in self.of("running")) or "no test"
            how = f"it ended by signal {-exit_code}" if exit_code < 0 else f"it ended by exit code {exit_code}"
            how = how if hung is None else f"it hung and was ended after {hung} s"
            return f"{how} before its last test; under way: {running}"
        failed = len(self.of("failed"))
        if self.closing.get("failed", 0) != failed:
            return f"it counted {self.closing['failed']} failed tests, but reported {failed}; its output says which"
        if (exit_code != 0) != (failed > 0):
            return f"its exit code is {exit_code} after {failed} failed tests"
        if self.closing.get("passed", 0) == 0 and failed == 0:
            return "it ran no test"
        return None

    @property
    def passed(self):
        """By the harness's own count where there is one: an event may be torn by what a child process prints."""
        return self.closing.get("passed", 0) if self.closing else len(self.of("ok"))

    @property
    def ignored(self):
        return self.closing.get("ignored", 0) if self.closing else len(self.of("ignored"))


def parse(line):
    """The event in a line. A child process may have written the beginning of the line."""
    start = line.find('{ "type": "')
    if start < 0:
        return None
    try:
        event = json.loads(line[start:])
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def list_of(program, folder):
    """The tests of a program: name -> why it is ignored, None if it is not."""
    words = [str(program), "--list", "-Z", "unstable-options", "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env={**os.environ, **ENVIRONMENT},
                          check=True)
    return listed(done.stdout)


def listed(text):
    events = (event for line in text.splitlines() if (event := parse(line)))
    return {event["name"]: event.get("ignore_message", "") if event.get("ignore") else None
            for event in events if event.get("event") == "discovered"}


def of_soak(found):
    """The tests of a list that only the soak runs; what is ignored for another reason, as a benchmark, nothing runs."""
    return [name for name, why in found.items() if why is not None and why.startswith("soak:")]
