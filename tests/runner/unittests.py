"""Runs a file of unittest and reports as a Rust test program does. `python3 -B -m runner.unittests FILE [NAME...]`"""

import importlib.util
import json
import os
import sys
import time
import unittest
from pathlib import Path


class Events(unittest.TestResult):
    """Prints an event for each test."""

    def __init__(self, out):
        super().__init__()
        self.out, self.passed, self.failed, self.begun = out, 0, 0, {}

    def emit(self, **event):
        # libtest writes a blank after the brace, by which the runner finds an event in a line.
        print("{ " + json.dumps(event)[1:-1] + " }", file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.begun[test.id()] = time.monotonic()
        self.emit(type="test", event="started", name=short(test))

    def end(self, test, event, output=""):
        seconds = time.monotonic() - self.begun.pop(test.id(), time.monotonic())
        more = {"stdout": output} if output else {}
        self.emit(type="test", event=event, name=short(test), exec_time=seconds, **more)

    def addSuccess(self, test):
        self.passed += 1
        self.end(test, "ok")

    def addFailure(self, test, err):
        self.failed += 1
        self.end(test, "failed", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.failed += 1
            self.emit(type="test", event="failed", name=short(subtest), exec_time=0.0,
                      stdout=self._exc_info_to_string(err, subtest))

    def addSkip(self, test, reason):
        if os.environ.get("TRAININGJOB_TEST_ALL"):
            self.failed += 1
            self.end(test, "failed", f"skipped: {reason}; under TRAININGJOB_TEST_ALL a skipped test fails")
        else:
            self.end(test, "ignored")


def short(test):
    return ".".join(test.id().split(".")[1:]) if "." in test.id() else test.id()


def flat(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from flat(part)
        else:
            yield part


def main():
    # Flags are of the harness of Rust.
    file, *wanted = (word for word in sys.argv[1:] if not word.startswith("--"))
    # Events have the standard output for themselves; what a test prints goes to the standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = importlib.util.spec_from_file_location("tests", file)
    module = sys.modules["tests"] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec.loader.exec_module(module)
    tests = [test for test in flat(unittest.defaultTestLoader.loadTestsFromModule(module))
             if not wanted or any(name in short(test) for name in wanted)]
    result = Events(out)
    result.emit(type="suite", event="started", test_count=len(tests))
    unittest.TestSuite(tests).run(result)
    verdict = "failed" if result.failed else "ok"
    result.emit(type="suite", event=verdict, passed=result.passed, failed=result.failed,
                ignored=max(0, len(tests) - result.passed - result.failed))
    sys.exit(101 if result.failed else 0)


if __name__ == "__main__":
    main()
