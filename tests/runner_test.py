"""The runner of the tests: its parts, its choice of a build folder, and a whole run of a small cargo project.

`python3 -B tests/runner_test.py` runs it; it needs cargo, and neither a network nor a cluster.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from runner import (
    buildfolder,
    cargo,
    console,
    evidence,
    lanes,
    libtest,
    licences,
    meter,
    older,
    plan,
    report,
    soak,
    steps,
    suite,
    venv,
)
from runner.console import Failure
from runner.processes import PATIENCE, Processes, left_behind

ROOT = Path(__file__).resolve().parents[1]
FOLDER = None


def setUpModule():
    global FOLDER  # noqa: PLW0603 - one for all tests
    FOLDER = tempfile.TemporaryDirectory(prefix="runner-test-")


def tearDownModule():
    FOLDER.cleanup()


def room(test):
    """A folder for a test."""
    folder = Path(FOLDER.name, test.id().replace(".", "-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def event(**fields):
    return json.dumps(fields).replace("{", "{ ", 1)


def closing(passed=0, failed=0, ignored=0):
    verdict = "failed" if failed else "ok"
    return event(type="suite", event=verdict, passed=passed, failed=failed, ignored=ignored)


class Libtest(unittest.TestCase):
    def report(self, *lines):
        report = libtest.Report("node")
        self.ended = [test for at, line in enumerate(lines) if (test := report.feed(line, float(at)))]
        return report

    def test_tests_have_start_result_and_duration(self):
        report = self.report(
            event(type="suite", event="started", test_count=2),
            event(type="test", event="started", name="a"),
            event(type="test", event="started", name="b"),
            event(type="test", name="b", event="failed", exec_time=1.5, stdout="panicked\n"),
            event(type="test", name="a", event="ok", exec_time=2.5),
            closing(1, 1))
        self.assertEqual([(test.name, test.result, test.start, test.seconds) for test in self.ended],
                         [("b", "failed", 2.0, 1.5), ("a", "ok", 1.0, 2.5)])
        self.assertEqual(self.ended[0].output, "panicked\n")
        self.assertIsNone(report.broken(101))
        self.assertEqual((report.passed, report.expected), (1, 2))

    def test_a_program_that_dies_is_broken_and_names_what_ran(self):
        report = self.report(
            event(type="suite", event="started", test_count=3),
            event(type="test", event="started", name="done"),
            event(type="test", event="started", name="under_way"),
            event(type="test", name="done", event="ok", exec_time=0.1))
        broken = report.broken(-6)
        self.assertIn("signal 6", broken)
        self.assertIn("it hung and was ended after 9 s before", report.broken(-9, 9))
        self.assertIn("under way: under_way", broken)
        self.assertNotIn("done,", broken)
        self.assertEqual(report.passed, 1)

    def test_a_program_that_dies_before_its_first_test(self):
        self.assertIn("exit code 2", self.report().broken(2))

    def test_output_before_an_event_in_its_line(self):
        report = self.report("a child's words " + event(type="test", event="started", name="a"),
                             '{ "type": "test", "ev', "[1, 2]", '{"type": "test"}', closing(1))
        self.assertEqual(list(report.tests), ["a"])

    def test_a_torn_event_of_a_failure_is_noticed(self):
        report = self.report(event(type="test", event="started", name="a"), closing(0, 1))
        self.assertIn("counted 1 failed tests, but reported 0", report.broken(101))

    def test_exit_code_and_tests_agree(self):
        self.assertIn("exit code is 1", self.report(closing(3)).broken(1))
        self.assertIn("exit code is 0", self.report(
            event(type="test", name="a", event="failed"), closing(0, 1)).broken(0))

    def test_no_test_is_no_success(self):
        self.assertEqual(self.report(closing(0)).broken(0), "it ran no test")

    def test_ignored_tests_are_counted(self):
        report = self.report(event(type="test", name="a", event="ignored"), closing(1, 0, 1))
        self.assertEqual((report.passed, report.ignored), (1, 1))
        self.assertIsNone(report.broken(0))

    def test_a_list_with_what_is_ignored_and_why(self):
        found = libtest.listed("\n".join([
            event(type="suite", event="discovery"),
            event(type="test", event="discovered", name="a", ignore=False, ignore_message=""),
            event(type="test", event="discovered", name="b", ignore=True, ignore_message="soak: takes hours"),
            event(type="test", event="discovered", name="c", ignore=True, ignore_message="a benchmark"),
            event(type="suite", event="completed", tests=3)]))
        self.assertEqual(found, {"a": None, "b": "soak: takes hours", "c": "a benchmark"})
        self.assertEqual(libtest.of_soak(found), ["b"])


    def test_the_cause_is_the_panic_without_its_stack(self):
        output = ("12/90: the job has failed\nthread 'old' was a line of the program's\n\n"
                  "thread 'a::b' (17) panicked at tests/a.rs:5:9:\n2 of 90 trials failed:\n"
                  "suspend-after-7: it differs\n"
                  "stack backtrace:\n   0: core::panicking::panic_fmt\n")
        self.assertEqual(libtest.cause(output), [
            "thread 'a::b' (17) panicked at tests/a.rs:5:9:", "2 of 90 trials failed:", "suspend-after-7: it differs"])
        self.assertEqual(libtest.cause("a thread panicked\n" + "x" * 900), ["a thread panicked", "x" * 400])
        self.assertEqual(libtest.cause(""), [])
        long = "thread 'a' panicked at a.rs:1:1:\n" + "\n".join(f"line {n}" for n in range(30))
        self.assertEqual(libtest.cause(long)[-1], "line 4")

    def test_what_failed_is_listed_with_its_cause(self):
        why = "its evidence is in /e\nthread 'a' panicked at a.rs:1:1:\nboom"
        self.assertEqual(report.failure("wire a", why),
                         "  wire a: its evidence is in /e\n      thread 'a' panicked at a.rs:1:1:\n      boom")
        self.assertEqual(report.failure("wire a", ""), "  wire a")


class Messages(unittest.TestCase):
    """Of cargo."""

    def message(self, name, kind, is_test, executable="/x", manifest="/checkout/Cargo.toml"):
        return json.dumps({"reason": "compiler-artifact", "manifest_path": manifest, "executable": executable,
                           "target": {"name": name, "kind": [kind]}, "profile": {"test": is_test}})

    def test_executables_by_kind(self):
        built = cargo.read("\n".join([
            "warning: not JSON",
            self.message("operator", "lib", False, None),
            self.message("operator", "lib", True, "/lib"),
            self.message("harness", "lib", True, "/harness", "/checkout/crates/harness/Cargo.toml"),
            self.message("agent", "bin", False, "/agent"),
            self.message("agent", "bin", True, "/agent-test"),
            self.message("node", "test", True, "/node"),
            json.dumps({"reason": "build-finished", "success": True}),
        ]), "/checkout")
        self.assertEqual({name: str(file) for name, file in built.tests.items()},
                         {"lib": "/lib", "lib-harness": "/harness", "bin-agent": "/agent-test", "node": "/node"})
        self.assertEqual({name: str(file) for name, file in built.programs.items()}, {"agent": "/agent"})

    def test_own_packages_are_compiled_as_for_cargo_test(self):
        found = tomllib.loads(cargo.profile(ROOT))["profile"]["release"]["package"]
        self.assertEqual({name: found[name]["opt-level"] for name in ("checkpoint", "search", "text")},
                         {"checkpoint": 1, "search": 2, "text": 0})
        self.assertTrue(all(one["debug-assertions"] and one["debug"] is False for one in found.values()))
        self.assertNotIn("sha2", found)

    def test_a_later_build_does_not_change_what_is_kept(self):
        folder = room(self)
        program = folder / "node-0123"
        program.write_text("first")
        kept = cargo.keep(cargo.Built({"node": program}, {}), folder / "run")
        newer = folder / "newer"
        newer.write_text("second")
        newer.rename(program)
        self.assertEqual(kept.tests["node"].read_text(), "first")

    def test_environment_of_a_test(self):
        kept = cargo.Built({}, {"kubectl-trainingjob": Path("/run/kubectl-trainingjob")})
        self.assertEqual(cargo.environment(kept, "/c")["TRAININGJOB_TEST_BINARIES"], Path("/run"))

    def test_no_shell_drops_a_variable_of_a_test(self):
        kept = cargo.Built({}, {"kubectl-trainingjob": Path("/run/kubectl-trainingjob")})
        for name in cargo.environment(kept, "/c"):
            self.assertRegex(name, "^[A-Z_]+$")


class Lanes(unittest.TestCase):
    def test_every_program_is_in_one_lane(self):
        placed = [name for lane in lanes.LANES for name in lane.programs]
        self.assertEqual(sorted(placed), sorted(lanes.PROGRAMS))

    def test_every_lane_has_a_budget(self):
        self.assertEqual(set(lanes.budgets()["lanes"]), {lane.name for lane in lanes.LANES} | {"slice"})

    def test_needs_are_steps(self):
        made = plan.Plan(ROOT, None, None)
        names = {step.name for step in made.all_steps()}
        for program in lanes.PROGRAMS.values():
            self.assertLessEqual(set(program.needs), names, program.name)
        for trial in soak.TRIALS:
            self.assertLessEqual(set(trial.needs), names, trial.name)

    def test_over_budget_is_said_with_what_to_do(self):
        found = {"unit": 0.1, "lanes": {"node": 100, "cpu": 50}}
        units = {"node": 0.1, "cpu": 0.1, "strays": 0.1}
        self.assertEqual(lanes.over_budget({"node": 100.0, "cpu": 50.0, "strays": 9.0}, found, units), [])
        said = lanes.over_budget({"node": 100.6, "cpu": 100.0}, found, units | {"cpu": 0.2})
        self.assertEqual(len(said), 1)
        self.assertIn("lane node used 101 CPU seconds of 100", said[0])
        self.assertIn("An issue may add 60 CPU seconds or says what it took out", said[0])

    def test_a_slower_machine_may_use_more_and_a_faster_one_the_same(self):
        found = {"unit": 0.1, "lanes": {"node": 100}}
        self.assertEqual(lanes.allowed("node", found, 0.2), 200)
        self.assertEqual(lanes.allowed("node", found, 0.05), 100)

    def test_strays_and_missing_programs(self):
        known = [name for name, program in lanes.PROGRAMS.items() if not program.file]
        self.assertEqual(lanes.unplaced(known), ([], []))
        self.assertEqual(lanes.unplaced([*known[1:], "forgotten"]), (["forgotten"], known[:1]))


class Soak(unittest.TestCase):
    def test_the_slice_follows_from_the_commit(self):
        commit = hashlib.sha1(b"commit").hexdigest()
        self.assertEqual(soak.slice_of(commit, soak.SLICES), soak.slice_of(commit, soak.SLICES))
        seen = {soak.slice_of(hashlib.sha1(str(n).encode()).hexdigest(), soak.SLICES).name for n in range(200)}
        self.assertEqual(seen, {part.name for part in soak.SLICES})

    def test_the_seed_follows_from_the_commit(self):
        part = [soak.Slice("s", "wire", ("storm",), {"SEED": "{seed}", "JOBS": 3})]
        first, second = (soak.slice_of(commit * 40, part).env for commit in "ab")
        self.assertNotEqual(first["SEED"], second["SEED"])
        self.assertRegex(first["SEED"], r"^\d+$")
        self.assertEqual(first["JOBS"], "3")

    def test_names_are_unique(self):
        for table in (soak.TRIALS, soak.SLICES):
            names = [row.name for row in table]
            self.assertEqual(len(names), len(set(names)))

    def test_a_trial_without_names_takes_what_no_other_names(self):
        trials = (soak.Trial("kills", "", "node", ("kills_in",)), soak.Trial("rest", "", "node"))
        self.assertEqual(soak.names_of(trials[1], ["a::kills_in_a_save", "b"], trials), ["b"])

    def test_a_trial_with_nothing_to_run_is_none(self):
        self.assertIsNone(suite.trial_run(soak.Trial("rest", "", "node"), {"a": None, "c": "a benchmark"}))
        run = suite.trial_run(soak.Trial("rest", "", "node"), {"a": None, "b": "soak: hours", "c": "a benchmark"})
        self.assertEqual(run.arguments, ("--ignored", "--exact", "b"))
        self.assertEqual(run.env["TRAININGJOB_SOAK"], 1)

    def test_a_trial_may_take_longer_than_its_program_in_a_usual_run(self):
        for trial in soak.TRIALS:
            if trial.program and (run := suite.trial_run(trial, {"a": "soak: hours"})):
                self.assertGreater(run.limit, lanes.PROGRAMS[trial.program].limit, trial.name)

    def test_a_slice_that_joins_leaves_the_other_tests_of_the_soak_out(self):
        part = soak.Slice("s", "node", ("kills",), {"KILLS": 10})
        listed = {"a::kills": "soak: long", "b": "soak: long", "c": "a benchmark", "d": None}
        run = suite.with_slice(suite.Run("node"), part, listed)
        self.assertEqual(run.arguments, ("--include-ignored", "--exact", "--skip", "b", "--skip", "c"))
        self.assertEqual(run.env, {"KILLS": 10})
        self.assertEqual(suite.with_slice(suite.Run("node"), part, {"b": "soak: long"}).arguments, ())

    def test_what_passed_is_not_repeated_for_the_same_commit(self):
        file = room(self) / "soak.tsv"
        results = soak.Results(file, "one")
        results.add("fuzz", "passed", 60.0)
        results.add("storm", "failed", 5.0)
        self.assertEqual(soak.Results(file, "one").passed(), {"fuzz": 60.0})
        self.assertEqual(soak.Results(file, "two").passed(), {})


class Venv(unittest.TestCase):
    def test_an_environment_is_made_once_for_each_list(self):
        folder, made = room(self), []

        def run(words, **_):
            made.append(words[2])
            if words[2] == "venv":
                Path(words[-1]).mkdir()

        requirements = folder / "requirements.txt"
        with mock.patch.object(venv.subprocess, "run", run), mock.patch("sys.stderr"):
            requirements.write_text("a==1\n")
            first = [venv.python("libraries", requirements, folder) for _ in range(2)]
            self.assertEqual(made, ["venv", "pip"])
            requirements.write_text("a==2\n")
            second = venv.python("libraries", requirements, folder)
        self.assertEqual(made, ["venv", "pip"] * 2)
        self.assertEqual(first[0], first[1])
        self.assertNotEqual(first[0], second)
        self.assertTrue(second.parents[1].exists())


class Schedule(unittest.TestCase):
    def run_steps(self, *made):
        schedule = steps.Schedule(made)
        with mock.patch.object(steps, "say") as said:
            schedule.run()
        self.said = "\n".join(call.args[0] for call in said.call_args_list)
        return {step.name: step.state for step in made}

    def test_steps_that_need_nothing_of_each_other_overlap(self):
        barrier = threading.Barrier(2, timeout=20)
        states = self.run_steps(*(steps.Step(name, "", lambda _: barrier.wait()) for name in "ab"))
        self.assertEqual(states, {"a": "done", "b": "done"})

    def test_a_failed_step_leaves_out_what_needs_it_and_not_what_follows(self):
        def fails(_):
            raise Failure("no Go")

        order = []
        states = self.run_steps(
            steps.Step("tools", "", fails),
            steps.Step("node", "", lambda _: order.append("node"), needs=("tools",)),
            steps.Step("lint", "", lambda _: order.append("lint"), after=("tools",)))
        self.assertEqual(states, {"tools": "failed", "node": "left out", "lint": "done"})
        self.assertEqual(order, ["lint"])
        self.assertIn("tools: FAILED: no Go", self.said)
        self.assertIn("node: left out, for tools has failed", self.said)

    def test_what_was_done_before_is_not_done_again(self):
        order = []
        tools = steps.Step("tools", "", lambda _: order.append("tools"))
        self.run_steps(tools)
        self.assertEqual(self.run_steps(tools, steps.Step("node", "", lambda _: order.append("node"), ("tools",))),
                         {"tools": "done", "node": "done"})
        self.assertEqual(order, ["tools", "node"])

    def test_a_fault_of_the_runner_fails_its_step(self):
        self.assertEqual(self.run_steps(steps.Step("a", "", lambda _: 1 / 0)), {"a": "failed"})
        self.assertIn("ZeroDivisionError", self.said)

    def test_circles_and_unknown_needs_are_refused(self):
        with self.assertRaisesRegex(ValueError, "wait for one another: a -> b -> a"):
            steps.Schedule([steps.Step("a", "", None, ("b",)), steps.Step("b", "", None, (), ("a",))])
        with self.assertRaisesRegex(ValueError, "no step"):
            steps.Schedule([steps.Step("a", "", None, ("b",))])

    def test_the_plan_has_no_circle(self):
        made = plan.Plan(ROOT, None, None)
        steps.Schedule(made.all_steps())
        names = [step.name for step in made.steps(["dev-image"])]
        self.assertEqual(names, ["compile", "dev-image"])


class OlderOperator(unittest.TestCase):
    """What the test of an upgrade begins with."""

    def setUp(self):
        self.folder = room(self)
        self.root, self.cache = self.folder / "checkout", self.folder / "cache"
        for name in older.MANIFESTS:
            (self.root / name).mkdir(parents=True)
            (self.root / name / "kustomization.yaml").write_text("then\n")
        (self.root / "Cargo.lock").touch()
        self.cache.mkdir()
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "--message", "then")
        self.commit = self.git("rev-parse", "HEAD").strip()
        (self.root / "crds" / "kustomization.yaml").write_text("now\n")
        self.words = []

    def git(self, *words):
        return subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True, check=True).stdout

    def run_command(self, *words, env=None):
        """Runs what needs neither cargo nor a cluster, and makes the files that the others would make."""
        words = [str(word) for word in words]
        self.words.append(words)
        if words[0] == "cargo":
            self.assertTrue(str(env["CARGO_BUILD_BUILD_DIR"]).startswith(str(self.cache)))
            folder = Path(words[words.index("--target-dir") + 1], "triple", "debug")
            folder.mkdir(parents=True)
            for name in older.PROGRAMS:
                (folder / name).write_text("compiled")
        elif words[0] == "strip":
            self.assertTrue(Path(words[1]).is_file())
        elif words[0].startswith("devcluster"):
            Path(words[words.index("--out") + 1]).touch()
        else:
            subprocess.run(words, cwd=self.root, check=True)

    def prepare(self, commit=None):
        self.words = []
        made = older.Older(self.cache, self.root, commit or self.commit)
        made.prepare(self.run_command)
        return made

    def commands(self):
        return [words[0] for words in self.words]

    def test_it_is_made_once_of_that_commit(self):
        made = self.prepare()
        self.assertEqual(self.commands(), ["git", "tar", "cargo", "strip", "strip", "devcluster/cluster"])
        self.assertIn(older.TAG, self.words[-1])
        self.assertEqual((made.folder / "crds" / "kustomization.yaml").read_text(), "then\n")
        self.assertFalse(made.checkout.exists())
        self.assertFalse(buildfolder.folder_of(self.cache, made.checkout).exists())
        self.prepare()
        self.assertEqual(self.words, [])

    def test_programs_that_are_there_are_packed(self):
        made = self.prepare()
        made.image.unlink()
        self.prepare()
        self.assertEqual(self.commands(), ["devcluster/cluster"])

    def test_one_that_was_cut_short_is_made_again(self):
        made = self.prepare()
        made.image.unlink()
        (made.folder / "agent").unlink()
        (made.checkout / "target").mkdir(parents=True)
        self.prepare()
        self.assertEqual(self.commands(), ["git", "tar", "cargo", "strip", "strip", "devcluster/cluster"])

    def test_a_history_without_that_commit(self):
        with self.assertRaisesRegex(Failure, "lacks commit 0{40}.*git fetch --unshallow"):
            self.prepare("0" * 40)
        self.assertEqual(self.words, [])

    def test_the_trial_has_it(self):
        trial = next(trial for trial in soak.TRIALS if trial.name == "upgrade")
        self.assertIn("older-image", trial.needs)
        made = plan.Plan(ROOT, None, None)
        with mock.patch.object(older.Older, "prepare"):
            made.make_older_image(steps.Step("older-image", "", None))
        self.assertEqual(made.env["TRAININGJOB_TEST_OLDER"].parent, made.cache)


class Meter(unittest.TestCase):
    def test_cpu_seconds_of_what_was_started_are_counted(self):
        processes, group = Processes(), meter.Group("self-test", 5)
        try:
            burn = "os.setsid() if os.fork() == 0 else os.wait()\nwhile time.process_time() < 0.3: pass"
            processes.run([sys.executable, "-c", f"import os, time\n{burn}"], group, room(self) / "log")
            self.assertGreater(group.seconds(), 0.5)
            self.assertEqual(group.wait_empty(10), set())
        finally:
            group.remove()

    def test_a_nice_value_is_a_weight(self):
        self.assertEqual([meter.shares(nice) for nice in (0, 10, 19)], [1024, 110, 15])

    def test_a_machine_has_used_its_processors(self):
        self.assertGreater(meter.machine_seconds(), 0)

    def test_a_machine_that_slows_down_while_a_lane_runs_gives_it_more(self):
        with mock.patch.object(meter, "unit", side_effect=[1, 1, 3, 2]), \
                mock.patch.object(meter.time, "monotonic", side_effect=[0, 2, 5, 5, 10, 10, 15, 15]):
            pace = meter.Pace()
            for _ in range(4):
                pace.look()
        self.assertEqual(pace.found, [(0, 1), (5, 1), (10, 3), (15, 2)])
        self.assertEqual([pace.unit(begin) for begin in (0, 5, 10, 16)], [1.5, 2, 2.5, 2])


class Started(unittest.TestCase):
    """What the runner starts."""

    def setUp(self):
        self.processes, self.group = Processes(), meter.Group(f"started-{self.id().rsplit('.')[-1][-12:]}")
        self.addCleanup(self.group.remove)

    def test_a_command_that_fails_is_quoted(self):
        log = room(self) / "log"
        with self.assertRaises(Failure) as raised:
            self.processes.run(["sh", "-c", "echo out; echo no space left >&2; exit 3"], self.group, log)
        self.assertIn("ended with 3", str(raised.exception))
        self.assertIn("no space left", str(raised.exception))
        self.assertIn("out", log.read_text())

    def test_a_command_that_hangs_is_ended(self):
        begin = time.monotonic()
        with self.assertRaises(Failure):
            self.processes.run(["sleep", "1000"], self.group, room(self) / "log", limit=0.2)
        self.assertLess(time.monotonic() - begin, 60)

    def test_a_command_ends_although_the_disk_is_full(self):
        log, words = room(self) / "log", ["sh", "-c", "seq 100000; seq 100000 >&2; exit $0"]
        causes = {0: f"not all that it printed is in {log}: .*File too large", 3: r"ended with 3[^$]*100000$"}
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        for code, cause in causes.items():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            try:
                with self.assertRaisesRegex(Failure, cause):
                    self.processes.run([*words, code], self.group, log, limit=60)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            log.unlink()

    def test_all_are_ended_at_the_end_and_none_is_started_after_it(self):
        process = self.processes.start(["sleep", "1000"], self.group)
        waiting = threading.Thread(target=self.processes.wait, args=(process,))
        waiting.start()
        self.processes.end_all()
        waiting.join(20)
        self.assertEqual(process.returncode, -signal.SIGTERM)
        with self.assertRaises(Exception):  # noqa: B017 - Stopping
            self.processes.start(["true"], self.group)

    def test_a_watchdog_is_waited_for_and_nothing_else(self):
        sleeps = [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"]
        started = [self.processes.start([*sleeps, *words], self.group, stdout=subprocess.PIPE)
                   for words in (("_watch", "--name", "some"), ("watch", "--name=_watch"))]
        try:
            for process in started:
                process.stdout.readline()  # it is no longer the shell that becomes it
            watchdog, other = ({process.pid} for process in started)
            group = mock.Mock(wait_empty=mock.Mock(side_effect=[watchdog | other, watchdog | other, other]))
            self.assertEqual(left_behind(group), other)
            self.assertEqual(group.wait_empty.call_args_list, [mock.call(PATIENCE), mock.call(1), mock.call(1)])
            for seconds, left in ((1000, other), (0, watchdog)):
                group = mock.Mock(wait_empty=mock.Mock(return_value=left))
                self.assertEqual(left_behind(group, seconds), left)
                group.wait_empty.assert_called_once_with(min(PATIENCE, seconds))
        finally:
            for process in started:
                process.kill()
                self.processes.wait(process)
                process.stdout.close()


class Kept(unittest.TestCase):
    """The evidence of a run."""

    def test_load_and_pressure(self):
        proc = room(self)
        (proc / "pressure").mkdir()
        (proc / "loadavg").write_text("1.50 1.00 0.50 3/200 77\n")
        (proc / "pressure" / "cpu").write_text("some avg10=12.50 avg60=1.00 avg300=0.00 total=1\n")
        row = dict(zip(evidence.HEAD, evidence.sample(time.monotonic(), proc), strict=True))
        self.assertEqual((row["load1"], row["running"], row["cpu_some_avg10"]), ("1.50", "3/200", "12.50"))
        self.assertEqual(row["io_full_avg10"], "")

    def test_a_folder_for_each_test(self):
        kept = evidence.Evidence(room(self) / "evidence")
        folder = kept.of("node", "gang::replaced")
        self.assertTrue(folder.is_dir())
        self.assertEqual(folder.relative_to(kept.folder), Path("node/gang.replaced"))


class Tables(unittest.TestCase):
    def test_numbers_are_to_the_right(self):
        text = console.table(("name", "s"), [("a", 1.0), ("bcd", None), ("e", 100.25)])
        self.assertEqual(text.splitlines(), ["name      s", "a       1.0", "bcd       -", "e     100.2"])

    def test_durations(self):
        self.assertEqual([console.duration(seconds) for seconds in (0.4, 59.4, 200)], ["0 s", "59 s", "3 min 20 s"])

    def test_a_long_output_is_quoted_from_its_end(self):
        quoted = console.quoted("\n".join(str(n) for n in range(10)), 2)
        self.assertEqual(quoted.splitlines(), ["    ... 8 lines before these", "    8", "    9"])


RULES = """
[graph]
targets = ["x86_64-unknown-linux-gnu"]
[licenses]
allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
private = { ignore = true }
[bans]
multiple-versions = "allow"
wildcards = "deny"
deny = [{ name = "openssl-sys", reason = "TLS is rustls" }]
[sources]
unknown-registry = "deny"
unknown-git = "deny"
"""
DEFAULT_REGISTRY = licences.DEFAULT_REGISTRY


class Licences(unittest.TestCase):
    def check(self, rules=RULES, **package):
        """The faults of a workspace with one package that depends on one other."""
        other = {"id": "other", "name": "other", "version": "1.0.0", "license": "MIT", "source": DEFAULT_REGISTRY,
                 "dependencies": [], "publish": None, **package}
        wanted = {"name": other["name"], "req": "^1", "source": DEFAULT_REGISTRY}
        own = {"id": "own", "name": "own", "version": "0.1.0", "license": None, "source": None, "publish": [],
               "dependencies": [wanted | package.pop("wanted", {})]}
        metadata = {"packages": [own, other], "workspace_members": ["own"], "workspace_default_members": ["own"],
                    "resolve": {"nodes": [
            {"id": "own", "dependencies": ["other"]}, {"id": "other", "dependencies": []}]}}
        return licences.check(rules, json.dumps(metadata))

    def test_what_is_allowed(self):
        for expression in ("MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(MIT OR GPL-2.0) AND Apache-2.0",
                           "Apache-2.0 WITH LLVM-exception"):
            self.assertEqual(self.check(license=expression), [], expression)

    def test_what_is_not(self):
        for expression in ("GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0 WITH Other-exception", "MIT-0", "mit",
                           "(MIT AND GPL-2.0) OR BSD-3-Clause"):
            self.assertEqual(len(self.check(license=expression)), 1, expression)

    def test_what_is_no_expression(self):
        for expression in ("MIT OR", "(MIT", "MIT)", "MIT MIT", "OR", "MIT WITH", "MIT; rm -rf /", "MIT\nOR GPL-3.0 )"):
            said = self.check(license=expression)
            self.assertEqual(len(said), 1, expression)
        self.assertIn("names no licence", self.check(license=None)[0])
        self.assertIn("names no licence", self.check(license="")[0])

    def test_a_package_of_no_member_is_not_excused_for_being_private(self):
        self.assertEqual(len(self.check(license="GPL-3.0", publish=None)), 1)
        self.assertEqual(len(self.check(license="GPL-3.0", publish=[], source="git+https://x.example/other")), 2)

    def test_sources(self):
        for source in ("git+https://x.example/other?rev=1", "registry+https://x.example/index", "sparse+https://x/",
                       "registry+https://github.com/rust-lang/crates.io-index.evil"):
            self.assertIn("not from the default registry", "".join(self.check(source=source)))
        self.assertIn("not part of this workspace", "".join(self.check(source=None)))

    def test_bans(self):
        self.assertEqual(self.check(name="openssl-sys"), ["openssl-sys 1.0.0 is banned: TLS is rustls"])
        self.assertIn('("*")', "".join(self.check(wanted={"req": "*"})))

    def test_rules_that_are_not_known_are_no_rules(self):
        for more in ('[licenses]\nexceptions = []', '[advisories]\nyanked = "deny"'):
            rules = RULES.replace("[licenses]", more) if more.startswith("[licenses]") else RULES + more
            self.assertIn("is not known", "".join(self.check(rules)))
        self.assertIn("can only be", "".join(self.check(RULES.replace('wildcards = "deny"', 'wildcards = "allow"'))))
        self.assertIn("can only be", "".join(self.check(RULES.replace('unknown-git = "deny"', ""))))
        self.assertIn("is not known", "".join(self.check(RULES.replace("reason =", 'version = "1", reason ='))))

    def test_the_rules_of_this_project_are_known(self):
        self.assertEqual(licences.unknown_rules(licences.rules_of((ROOT / "deny.toml").read_text())), [])


class PythonTests(unittest.TestCase):
    """Tests of Python report as Rust's do."""

    def test_results(self):
        file = room(self) / "some.py"
        file.write_text(
            "import sys, unittest\n"
            "class A(unittest.TestCase):\n"
            "    def test_good(self): print('words'); sys.stdout.flush()\n"
            "    def test_bad(self): self.fail('because')\n"
            "    @unittest.skip('no root')\n"
            "    def test_skipped(self): pass\n")
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "TRAININGJOB_TEST_ALL": "1"}
        done = subprocess.run([sys.executable, "-B", "-m", "runner.unittests", str(file)], capture_output=True,
                              text=True, env=env, check=False)
        report = libtest.Report("python")
        for line in done.stdout.splitlines():
            report.feed(line, 0.0)
        self.assertEqual({test.name: test.result for test in report.tests.values()},
                         {"A.test_good": "ok", "A.test_bad": "failed", "A.test_skipped": "failed"}, done)
        self.assertIn("because", report.tests["A.test_bad"].output)
        self.assertIsNone(report.broken(done.returncode))
        self.assertNotIn("words", done.stdout)


TOY = {
    "Cargo.toml": """
[package]
name = "toy-operator"
version = "0.1.0"
edition = "2021"
autobins = false
[[bin]]
name = "agent"
path = "src/agent.rs"
test = false
[dependencies]
from-registry = "1"
[profile.dev]
debug = false
""",
    ".cargo/config.toml": """
[source.crates-io]
replace-with = "vendored"
[source.vendored]
directory = "REGISTRY"
""",
    "src/lib.rs": """
pub const CHECKOUT: &str = "WORD";
#[test]
fn the_library() { assert_eq!(from_registry::built(), "once"); }
""",
    "src/agent.rs": 'fn main() { println!("{}", toy_operator::CHECKOUT); }',
    "tests/which.rs": """
#[test]
fn says_which() {
    let folder = std::env::var("TRAININGJOB_TEST_BINARIES").unwrap();
    let agent = std::process::Command::new(format!("{folder}/agent")).output().unwrap();
    panic!("program WORD, library {}, agent {}", toy_operator::CHECKOUT, String::from_utf8(agent.stdout).unwrap());
}
#[test]
fn passes() {
    if std::env::var_os("HANGS").is_some() {
        std::thread::sleep(std::time::Duration::from_secs(1000));
    }
}
#[test]
#[ignore = "soak: takes hours"]
fn takes_hours() { println!("took {} hours", 1 + 1); }
""",
    "tests/dies.rs": """
#[test]
fn passes_before() {}
#[test]
fn then_aborts() { while !std::env::var("NEVER").is_ok() { std::process::abort() } }
""",
}
REGISTRY = {  # at one path for all checkouts, as a registry's sources are
    "Cargo.toml": """
[package]
name = "from-registry"
version = "1.0.0"
edition = "2021"
build = "build.rs"
""",
    ".cargo-checksum.json": '{"files": {}, "package": "SUM"}'.replace("SUM", "0" * 64),
    "build.rs": """
fn main() {
    println!("cargo:rerun-if-env-changed=TOY_BUILT");
    println!("cargo:rustc-env=BUILT={}", std::env::var("TOY_BUILT").unwrap_or("once".into()));
}
""",
    "src/lib.rs": 'pub fn built() -> &\'static str { env!("BUILT") }',
}


class Checkouts(unittest.TestCase):
    """Whole builds of a small project: each checkout runs its own programs, and none compiles a dependency again."""

    def setUp(self):
        self.folder = room(self)
        self.cache = self.folder / "cache"
        self.addCleanup(shutil.rmtree, self.folder, True)

    def checkout(self, name):
        root, registry = self.folder / name, self.folder / "registry"
        for folder, files in ((root, TOY), (registry / "from-registry", REGISTRY)):
            for path, text in files.items():
                file = folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text.replace("WORD", name).replace("REGISTRY", str(registry)))
                os.utime(file, (1e9, 1e9))  # older than anything that was ever compiled
        return root

    def build(self, root, words=None, **env):
        """The programs, and the names of the packages that were compiled for them."""
        folder = buildfolder.prepare(self.cache, root)
        env = console.clean_environment(CARGO_BUILD_BUILD_DIR=folder, CARGO_TERM_COLOR="never", **env)
        env.pop("RUSTFLAGS", None)
        words = (*(words or plan.compile_all(root)), "--offline")
        done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        compiled = {message["target"]["name"] for message in messages
                    if message["reason"] == "compiler-artifact" and not message["fresh"]}
        return cargo.read(done.stdout, root), compiled

    def lock(self, root):
        """Cargo writes it at the first build; a checkout of this project has it from the first."""
        subprocess.run(["cargo", "generate-lockfile", "--offline", "--quiet"], cwd=root, check=True)

    def run_suite(self, root, *runs):
        """Runs programs as `tests/run` does, and returns what it knows afterwards."""
        kept = cargo.keep(self.build(root)[0], root / "target" / "run")
        processes = Processes()
        planned = SimpleNamespace(root=root, kept=kept, env=cargo.environment(kept, root), common={},
                                  processes=processes, evidence=evidence.Evidence(root / "target" / "evidence"))
        made = suite.Suite(planned, meter.Nodes(), meter.Pace())
        group = meter.Group("checkouts")
        self.addCleanup(group.remove)
        with mock.patch.object(suite, "say") as said:
            for run in runs:
                made.run_program(lanes.Lane("toy", (), threads=1), run, group)
        return made, "\n".join(call.args[0] for call in said.call_args_list)

    def says(self, root):
        made, _ = self.run_suite(root, suite.Run("which", ("says_which",)))
        return next(line for line in made.tests[0].output.splitlines() if line.startswith("program"))

    def test_each_checkout_runs_its_own(self):
        first = self.checkout("first")
        self.lock(first)
        _, compiled = self.build(first)
        self.assertIn("from_registry", compiled)

        second = self.checkout("second")
        self.lock(second)
        _, compiled = self.build(second)
        self.assertNotIn("from_registry", compiled, "the dependency is taken from the first checkout")
        self.assertIn("toy_operator", compiled)
        self.assertEqual(self.says(second), "program second, library second, agent second")
        self.assertEqual(self.says(first), "program first, library first, agent first")

        # One that has compiled nothing yet is the newest, and no help.
        empty = self.checkout("empty")
        self.lock(empty)
        time.sleep(0.01)
        buildfolder.prepare(self.cache, empty)
        fourth = self.checkout("fourth")
        self.lock(fourth)
        self.assertNotIn("from_registry", self.build(fourth)[1])

        # What one builds again of a dependency changes nothing of the other's.
        _, compiled = self.build(second, TOY_BUILT="again")
        self.assertIn("from_registry", compiled)
        self.assertEqual(self.build(first)[1], set())
        self.assertEqual(self.run_suite(first, suite.Run("lib"))[0].ended[0].passed, 1)

        # The folder of a checkout that is gone is taken over.
        old = buildfolder.folder_of(self.cache, first.resolve())
        shutil.rmtree(first)
        third = self.checkout("third")
        self.lock(third)
        _, compiled = self.build(third)
        self.assertNotIn("from_registry", compiled)
        self.assertFalse(old.exists())
        self.assertEqual(self.says(third), "program third, library third, agent third")

    def test_a_release_takes_the_crates_of_others_from_the_tests(self):
        root = self.checkout("first")
        release = (ROOT / "Cargo.toml").read_text().split("[profile.release]")[1].split("\n[")[0]
        with (root / "Cargo.toml").open("a") as manifest:
            manifest.write(f"[profile.release]{release}\n")
        self.lock(root)
        self.assertIn("from_registry", self.build(root)[1])
        _, compiled = self.build(root, ("cargo", "build", "--release", plan.MESSAGES))
        self.assertIn("agent", compiled)
        self.assertNotIn("from_registry", compiled)

    def test_another_checkout_at_the_same_path_runs_its_own(self):
        root = self.checkout("first")
        self.lock(root)
        self.build(root)
        shutil.rmtree(root)
        self.checkout("other")
        self.folder.joinpath("other").rename(root)
        self.lock(root)
        _, compiled = self.build(root)
        self.assertNotIn("from_registry", compiled)
        self.assertEqual(self.says(root), "program other, library other, agent other")

    def follow(self, root, change=None):
        """Replaces a checkout by a new one with the same files, but for one change."""
        but_target = shutil.ignore_patterns("target")
        shutil.copytree(root, self.folder / "new", ignore=but_target, copy_function=shutil.copyfile)
        shutil.rmtree(root)
        (self.folder / "new").rename(root)
        if change:
            path, old, new = change
            (root / path).write_text((root / path).read_text().replace(old, new))
            os.utime(root / path, (1e9, 1e9))  # a clone may be older than what was compiled

    def recorded(self, root):
        """A checkout at the end of a run."""
        subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
        (root / ".gitignore").write_text("target\n")
        self.lock(root)
        folder = buildfolder.prepare(self.cache, root)
        before = buildfolder.sources(root)
        self.build(root)
        buildfolder.record(folder, root, before)
        self.assertTrue((folder / buildfolder.RECORD).exists())
        return folder

    def test_a_new_checkout_compiles_what_has_changed(self):
        root = self.checkout("first")
        self.recorded(root)
        self.follow(root)
        self.assertEqual(self.build(root)[1], set())
        self.assertEqual(self.says(root), "program first, library first, agent first")

        self.follow(root, ("src/lib.rs", "first", "other"))
        self.assertIn("toy_operator", self.build(root)[1])
        self.assertEqual(self.says(root), "program first, library other, agent other")

    def test_a_record_is_void_after_another_build(self):
        root = self.checkout("first")
        self.recorded(root)
        library = root / "src/lib.rs"
        text, time_then = library.read_text(), library.stat().st_mtime
        library.write_text(text.replace("first", "edited"))
        self.build(root)
        library.write_text(text)
        os.utime(library, (time_then, time_then))
        self.follow(root)
        self.assertIn("toy_operator", self.build(root)[1])
        self.assertEqual(self.says(root), "program first, library first, agent first")

    def test_nothing_is_recorded_of_sources_that_changed_during_the_run(self):
        root = self.checkout("first")
        folder = self.recorded(root)
        before = buildfolder.sources(root)
        (root / "src/lib.rs").touch()
        buildfolder.record(folder, root, before)
        self.assertFalse((folder / buildfolder.RECORD).exists())

    def test_folders_of_checkouts_that_are_gone_are_pruned(self):
        for name in ("first", "second"):
            self.lock(self.checkout(name))
            buildfolder.prepare(self.cache, self.folder / name)
        for name in ("first", "second"):
            shutil.rmtree(self.folder / name)
        self.lock(self.checkout("third"))
        folder = buildfolder.prepare(self.cache, self.folder / "third")
        self.assertEqual([path for path in folder.parent.iterdir() if path.is_dir()], [folder])

    def test_failures_are_shown_and_kept_and_a_dead_program_is_one(self):
        root = self.checkout("first")
        self.lock(root)
        made, said = self.run_suite(root, suite.Run("which"), suite.Run("dies"), suite.Run("lib"))
        self.assertEqual([(ended.run.name, ended.passed, ended.failed, ended.ignored) for ended in made.ended],
                         [("which", 1, 1, 1), ("dies", 1, 1, 0), ("lib", 1, 0, 0)])
        self.assertIn("FAILED: which says_which", said)
        self.assertIn("program first, library first", said)
        kept = root / "target/evidence/which/says_which/output.txt"
        self.assertIn("program first", kept.read_text())
        why = {name: why for _, name, why in made.failures}
        self.assertIn("signal 6", why["dies"])
        self.assertIn("under way: then_aborts", why["dies"])

    def test_a_run_ends_at_its_limit(self):
        root = self.checkout("first")
        self.lock(root)
        made, _ = self.run_suite(root, suite.Run("which", ("passes",), {"HANGS": 1}, limit=0.5), suite.Run("lib"))
        self.assertIn("it hung and was ended", made.failures[0][2])
        self.assertEqual((len(made.failures), made.ended[-1].passed), (1, 1))

    def test_tests_of_the_soak_run_when_they_are_named(self):
        root = self.checkout("first")
        self.lock(root)
        kept = cargo.keep(self.build(root)[0], root / "target" / "run")
        self.assertEqual(libtest.list_of(kept.tests["which"], root),
                         {"passes": None, "says_which": None, "takes_hours": "soak: takes hours"})
        trial = soak.Trial("hours", "", "which", ("takes_hours",))
        made, said = self.run_suite(root, suite.trial_run(trial, {}), suite.Run("which", ("no_such_test",)))
        self.assertEqual([(ended.passed, ended.failed) for ended in made.ended], [(1, 0), (0, 1)])
        self.assertEqual(made.failures[0][2], "it ran no test")
        self.assertIn("soak-hours takes_hours printed:\n    took 2 hours", said)
        _, said = self.run_suite(root, suite.Run("which", ("--ignored",)))
        self.assertNotIn("took 2 hours", said)


# Appended to the runner's own tables, which they replace.
TOY_LANES = """
PROGRAMS = {program.name: program for program in (
    Program("slow", ("tools", "images", "dev-image")), Program("lib"), Program("py", file="tests/py.py"))}
LANES = (Lane("node", ("slow",), threads=4), Lane("cpu", ("py", "lib"), threads=2, nice=10))
HEAVY = {"release-image": ("node",)}
"""
TOY_SOAK = """
TRIALS = (
    Trial("words", "a command", command=("echo", "hello")),
    Trial("slow", "for longer", "slow", ("sleeps",), {"SLEEPS": 0.5}, ("release-image",)),
    Trial("moved", "all others", "slow"),
    Trial("none", "nothing", "lib"),
    Trial("fast", "optimised", "lib", ("the_library",), is_release=True),
    Trial("other", "another version", "slow", env={"VERSION": "1.30"}, command=("echo", "a demo"), kubernetes="1.30"),
)
SLICES = (
    Slice("joined", "slow", ("hours",), {"SLEEPS": 0.1}, joins=True),
    Slice("own", "lib", ("the_library",), {"SEED": "{seed}"}),
)
"""
TOY_RUN = {
    "tests/slow.rs": """
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
#[test]
fn sleeps() {
    assert_eq!(variable("TRAININGJOB_KUBERNETES"), variable("VERSION"));
    assert_eq!(variable("TRAININGJOB_TEST_TOOLS"), format!("/tools{}", variable("VERSION")));
    let seconds = variable("SLEEPS").parse().unwrap_or(0.2);
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
}
#[test]
#[ignore = "soak: hours"]
fn hours() {}
#[test]
#[ignore = "a benchmark"]
fn figures() {
    panic!("nothing runs it")
}
""",
    "tests/lint/words.py": "",
    "tests/py.py": "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): pass\n",
    "tests/runner/budgets.toml": "unit = 0.001\n[lanes]\nnode = 100\ncpu = 100\nslice = 100\n",
    "deny.toml": RULES,
    "Makefile": "ruff:\n\t@true\nimage:\n\t@mkdir -p dist && touch dist/image.tar\n",
    "devcluster/cluster": """#!/bin/sh
case "$1" in
tools) echo "/tools$TRAININGJOB_KUBERNETES" ;;
images) echo /images ;;
operator-image) touch "$7" ;;
esac
""",
    "demo/run": "#!/bin/sh\necho the demo\n",
    "src/operator.rs": "fn main() {}\n",
    ".gitignore": "target\ndist\n",
}


class WholeRuns(unittest.TestCase):
    """`tests/run` of a small project whose clusters and images are a shell script."""

    def setUp(self):
        self.folder = room(self)
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.root, registry = self.folder / "checkout", self.folder / "registry"
        toy = {path: text for path, text in TOY.items() if not path.startswith("tests/")}
        for folder, files in ((self.root, toy | TOY_RUN), (registry / "from-registry", REGISTRY)):
            for path, text in files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text.replace("REGISTRY", str(registry)).replace(
                    'edition = "2021"', 'edition = "2021"\nlicense = "MIT"'))
        program = '[[bin]]\nname = "operator"\npath = "src/operator.rs"\ntest = false\n'
        self.change("Cargo.toml", "[dependencies]", f"{program}[dependencies]")
        self.change("Cargo.toml", "[package]", "[package]\npublish = false")
        shutil.copytree(ROOT / "tests" / "runner", self.root / "tests" / "runner", dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__", "budgets.toml"))
        shutil.copy2(ROOT / "tests" / "run", self.root / "tests" / "run")
        for file, text in (("lanes", TOY_LANES), ("soak", TOY_SOAK)):
            with open(self.root / "tests" / "runner" / f"{file}.py", "a") as table:
                table.write(text)
        for program in ("devcluster/cluster", "demo/run"):
            (self.root / program).chmod(0o755)
        subprocess.run("cargo generate-lockfile --offline --quiet && cargo fmt && git init --quiet && git add --all && "
                       "git -c user.name=test -c user.email=test@example.com commit --quiet --message test",
                       shell=True, cwd=self.root, check=True)

    def change(self, path, old, new):
        file = self.root / path
        file.write_text(file.read_text().replace(old, new, 1))

    def env(self, **more):
        """Nothing of the run that this test is part of."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("CARGO_", "TRAININGJOB_"))}
        return {**env, "TRAININGJOB_CACHE": str(self.folder / "cache"), **more}

    def run_tests(self, *words):
        done = subprocess.run([self.root / "tests" / "run", *words], capture_output=True, text=True, check=False,
                              env=self.env())
        return done.returncode, done.stdout + done.stderr

    def assert_ends(self, said, *lines):
        self.assertEqual(said.rstrip().splitlines()[-len(lines):], list(lines), said)

    def test_all_is_green(self):
        code, said = self.run_tests("--slice", "joined")
        self.assert_ends(said, "4 passed, 0 failed")
        self.assertEqual(code, 0)
        self.assertRegex(said, r"(?m)^node +slow +2 +0 +0 ")
        self.assertRegex(said, r"(?m)^smoke .* done$")
        self.assertTrue((self.root / "target/evidence/load.tsv").exists())

    def test_a_slice_that_does_not_join_is_a_lane(self):
        code, said = self.run_tests("--slice", "own")
        self.assert_ends(said, "4 passed, 0 failed")
        self.assertEqual(code, 0)
        self.assertRegex(said, r"(?m)^slice +slice-own +1 +0 +0 ")

    def test_what_is_red_is_named_at_the_end(self):
        (self.root / "tests/stray.rs").write_text('#[test]\nfn fails() {\n    panic!("because");\n}\n\n'
                                                  "#[test]\nfn returns() {\n    return;\n}\n")
        self.change("demo/run", "echo the demo", "exit 3")
        self.change("tests/runner/budgets.toml", "unit = 0.001", "unit = 1000.0")
        self.change("tests/runner/budgets.toml", "cpu = 100", "cpu = 0")
        code, said = self.run_tests("--slice", "own")
        self.assertEqual(code, 1)
        self.assert_ends(said, "5 passed, 5 failed")
        self.assertEqual(said.count("warning: unneeded `return` statement"), 1, said)
        failed = said.split("\nfailed\n")[1]
        self.assertIn("stray: it is in no lane", failed)
        self.assertIn("stray fails: its evidence is in", failed)
        self.assertIn("step clippy: failed", failed)
        self.assertIn("step smoke: failed", failed)
        self.assertRegex(failed, r"lane cpu used \d+ CPU seconds of 0\. An issue may add 60 CPU seconds")

    def test_a_program_of_python_needs_nothing_compiled(self):
        code, said = self.run_tests("py")
        self.assert_ends(said, "1 passed, 0 failed")
        self.assertEqual(code, 0)
        self.assertNotIn("compile: ", said)

    def test_a_run_ends_although_nothing_can_be_printed(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([self.root / "tests" / "run", "py"], stdout=full, stderr=full, check=False,
                                  env=self.env(), timeout=120)
        self.assertEqual(done.returncode, 0)

    def test_one_program_and_one_test(self):
        code, said = self.run_tests("slow", "--include-ignored", "hours")
        self.assert_ends(said, "1 passed, 0 failed")
        self.assertEqual(code, 0)
        self.assertNotIn("smoke", said)

    def test_the_soak_resumes(self):
        code, said = self.run_tests("--soak")
        self.assert_ends(said, "4 passed, 0 failed")
        self.assertEqual(code, 0)
        for trial, result in (("words", "passed"), ("slow", "passed"), ("moved", "passed"), ("none", "no test"),
                              ("fast", "passed"), ("other", "passed")):
            self.assertRegex(said, rf"(?m)^{trial} .* {result} ")
        self.assertTrue((buildfolder.folder_of(self.folder / "cache", self.root) / buildfolder.RECORD).exists())
        code, said = self.run_tests("--soak")
        self.assert_ends(said, "0 passed, 0 failed")
        self.assertRegex(said, r"(?m)^slow .* passed before ")
        code, said = self.run_tests("--soak", "--only", "slow")
        self.assert_ends(said, "1 passed, 0 failed")

    def test_what_was_started_is_ended(self):
        with subprocess.Popen([self.root / "tests" / "run", "slow"], stdout=subprocess.PIPE, text=True,
                              env=self.env(SLEEPS="1000")) as process:
            for line in process.stdout:
                if "slow: begins" in line:
                    break
            process.terminate()
            said = process.stdout.read()
        self.assertEqual(process.returncode, 130, said)
        mark = str(self.root / "target/run/tests/slow").encode()
        left = [file for file in Path("/proc").glob("[0-9]*/cmdline") if mark in read_bytes(file)]
        self.assertEqual(left, [])


def read_bytes(file):
    try:
        return file.read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    unittest.main()
