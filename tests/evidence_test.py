"""The scripts of tests/evidence, with small repositories instead of this one. `python3 -B tests/evidence_test.py`."""

import difflib
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from runner import cargo, lanes, libtest, moved, mutants, soak
from runner.records import Records

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "evidence"


def script(name):
    """A script as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(SCRIPTS / name))
    spec = importlib.util.spec_from_loader(name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="evidence-test-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def repository(self, *commits):
        """A repository with these commits, each a dict of files; returns it and the commits' names."""
        root = self.folder / "repository"
        root.mkdir()
        self.git(root, "init", "--quiet")
        names = []
        for files in commits:
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            self.git(root, "add", "--all")
            author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
            self.git(root, *author, "commit", "--quiet", "--message", "test")
            names.append(self.git(root, "rev-parse", "--short=12", "HEAD"))
        return root, names

    def git(self, root, *words):
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    def run_script(self, name, *words):
        done = subprocess.run([SCRIPTS / name, *map(str, words)], capture_output=True, text=True, check=False,
                              env={**os.environ, "TRAININGJOB_CACHE": str(self.folder / "cache")})
        return done.returncode, done.stdout + done.stderr


class Rows(Folder):
    def test_a_line_that_was_cut_short_is_left_out(self):
        records = Records(self.folder / "some.tsv", "a", "b")
        records.add("one\ttwo", 1.25)
        with open(records.file, "a") as file:
            file.write("cut")
        self.assertEqual(records.rows(), [{"a": "one two", "b": "1.2"}])


MAKEFILE = """
demo:
	@echo "$$HOME $$CARGO_HOME $$GOCACHE $$GOMODCACHE" > {log}.env
	@echo "$$PIP_CACHE_DIR $$npm_config_cache $$TRAININGJOB_CACHE" >> {log}.env
	@test ! -e $$TRAININGJOB_CACHE || {{ echo "the cache is not empty"; exit 1; }}
	@echo done
test:
	@echo "$$(if [ -e $$TRAININGJOB_CACHE ]; then echo warm; else echo cold; fi)" >> {log}
	@mkdir -p $$TRAININGJOB_CACHE
	@echo "3 passed, {failed} failed"
	@exit {failed}
clean:
	@echo clean >> {log}
"""


class Compare(Folder):
    def make(self, failed=0):
        return {"README": str(failed), "Makefile": MAKEFILE.format(failed=failed, log=self.folder / "log")}

    def compare(self, *words):
        return self.run_script("compare", *words, "--folder", self.folder / "out", "--repository", self.root)

    def rows(self):
        return Records(self.folder / "out" / "results.tsv").rows()

    def test_two_commits_in_turns(self):
        self.root, names = self.repository(self.make(), {"README": "newer"})
        _, said = self.compare(*names)
        self.assertEqual([(row["kind"], row["commit"], row["result"]) for row in self.rows()],
                         [(kind, commit, "green") for kind in ("demo", "cold", "warm") for commit in names])
        self.assertEqual([line for line in (self.folder / "log").read_text().split() if line != "clean"],
                         ["cold", "cold", "warm", "warm"])
        caches = (self.folder / "log.env").read_text().split()
        self.assertTrue(all(cache.startswith(str(self.folder / "out" / names[1])) for cache in caches), caches)
        self.assertRegex(said, r"warm +green +green +\d")
        self.assertEqual(self.rows()[-1]["last"], "3 passed, 0 failed")

        # What is there is not measured again.
        self.compare(*names)
        self.assertEqual(len(self.rows()), 6)
        self.compare(*names, "--busy")
        self.assertEqual((self.rows()[-1]["kind"], self.rows()[-1]["commit"]), ("busy", names[1]))

    def test_what_is_red_is_no_success_and_is_measured_again(self):
        self.root, names = self.repository(self.make(), self.make(failed=1))
        for count in (1, 2):
            code, said = self.compare(*names, "--only", "cold")
            self.assertEqual(code, 1, said)
            self.assertEqual([row["result"] for row in self.rows() if row["commit"] == names[1]], ["red"] * count)

    def test_aims(self):
        self.root, names = self.repository(self.make(), {"README": "newer"})
        comparison = script("compare").Comparison(*names, self.folder / "out", self.root)
        for kind, commit, seconds in (("demo", 0, 100), ("demo", 1, 50), ("warm", 0, 100), ("warm", 1, 40),
                                      ("warm", 1, 42)):
            comparison.records.add(names[commit], kind, 1, "green", float(seconds), seconds * 2.0, 0.1, "", "now")
        self.assertTrue(comparison.is_green())
        self.assertRegex(comparison.report(), r"warm +green +green +100\.0 +41\.0 +0\.41 +0\.45 +200\.0 +82\.0 +0\.41")
        comparison.records.add(names[1], "demo", 2, "green", 60.0, 1.0, 0.1, "", "now")
        self.assertFalse(comparison.is_green(), "the median is 0.55")

    def test_a_commit_that_is_none(self):
        self.root, _ = self.repository(self.make())
        code, said = self.compare("nothing", "HEAD")
        self.assertEqual(code, 1)
        self.assertIn("nothing is no commit here", said)

    def test_a_folder_that_is_in_this_checkout(self):
        code, said = self.run_script("compare", "--folder", ROOT / "target" / "compare")
        self.assertEqual(code, 1)
        self.assertIn("is in this checkout", said)


LIB = """
pub mod plan;
"""
PLAN = """pub fn twice(number: u32) -> u32 {
    number + number
}

pub fn thrice(number: u32) -> u32 {
    number * 3
}

pub fn name() -> String {
    String::from("plan")
}

pub const fn four() -> u32 {
    4
}
#[cfg(test)]
mod tests {
    #[test]
    fn twice() { assert_eq!(super::twice(3), 6); }
}
"""
NEWER = "pub fn zero() -> u32 {\n    0\n}\n"
PACKAGE = '[package]\nname = "{}"\nversion = "0.1.0"\nedition = "2021"\n'
# `bare` has no test.
CARGO = (PACKAGE.format("toy") + '[workspace]\nmembers = ["bare"]\ndefault-members = [".", "bare"]\n'
         "[profile.dev]\ndebug = false\n")
LOCK = "version = 4\n" + "".join(f'\n[[package]]\nname = "{name}"\nversion = "0.1.0"\n' for name in ("bare", "toy"))
CRATES = {"Cargo.toml": CARGO, "Cargo.lock": LOCK, "src/lib.rs": LIB, "src/plan/mod.rs": PLAN,
          "bare/Cargo.toml": PACKAGE.format("bare"), "bare/src/lib.rs": "pub fn bare() {}\n"}
CATCHERS = "".join(f"[{folder}]\nold = []\nnew = []\n" for folder in mutants.FOLDERS if folder != "plan") + """
[plan]
old = [{ program = "red" }, { program = "old" }]
new = [{ program = "new", filter = ["thr"] }]
"""


def fault(before, after, text=PLAN, file="src/plan/mod.rs"):
    """As cargo-mutants describes it."""
    change = f"replace {before} with {after} /* fault */"
    lines = text.splitlines(keepends=True), text.replace(before, f"{after} /* fault */").splitlines(keepends=True)
    diff = "".join(difflib.unified_diff(*lines, file, change, n=8))
    return {"name": f"{file}: {change}", "file": file, "package": "toy", "diff": diff}


class Mutants(Folder):
    FAULTS = (
        fault("number + number", "number - number"),  # caught by the unit test
        fault("number * 3", "number + 3"),
        fault('String::from("plan")', "String::new()"),
        fault('String::from("plan")', "0"),  # does not compile
        fault("4", "5"),  # compiles alone only: a constant function can't ask which fault is awake
        fault("0", "1", NEWER, "src/newer.rs"),  # can't be put into the old code
    )

    def setUp(self):
        super().setUp()
        test = "#[test]\nfn {0}() {{ assert_eq!(toy::plan::{0}({1}), {2}); }}\n"
        late = ("#[test]\nfn thrice_late() { if toy::plan::thrice(3) != 9 { std::thread::sleep(std::time::Duration::"
                f'from_secs(30)); std::fs::write("{self.folder}/late", "").unwrap(); }} }}\n')
        self.root, self.names = self.repository(
            CRATES | {"tests/old.rs": test.format("thrice", 3, 9),
                      "tests/red.rs": '#[test]\nfn fails() { std::fs::write("left", "").unwrap(); panic!() }\n'},
            {"src/newer.rs": NEWER, "tests/new.rs": test.format("thrice", 3, 9) + late})
        (self.folder / "faults.json").write_text(json.dumps(self.FAULTS))
        (self.folder / "catchers.toml").write_text(CATCHERS)

    def try_faults(self, count, *words):
        return self.run_script("mutants", *self.names, "--list", self.folder / "faults.json", "--count", count,
                               "--folder", self.folder / "out", "--catchers", self.folder / "catchers.toml",
                               "--repository", self.root, *words)

    def test_faults_are_judged_once(self):
        code, said = self.try_faults(2)
        self.assertEqual(code, 0, said)
        file = next((self.folder / "out").glob("results-*.tsv"))
        rows = {(row["mutant"].split("with ")[-1], row["side"]): row["result"] for row in Records(file).rows()
                if row["mutant"] != mutants.BASELINE}
        wanted = {("number + 3 /* fault */", "unit"): "missed", ("number + 3 /* fault */", "old"): "caught",
                  ("number + 3 /* fault */", "new"): "caught", ("String::new() /* fault */", "unit"): "missed",
                  ("String::new() /* fault */", "old"): "missed", ("String::new() /* fault */", "new"): "missed"}
        self.assertEqual(rows, wanted, said)
        self.assertIn("unit: 5 faults, 3 of them compiled at once", said)
        self.assertFalse((self.folder / "late").exists(), "the program went on after the first test that failed")
        self.assertFalse((self.folder / "out" / "old" / "left").exists(), "what a test leaves stays")
        self.assertIn("old: 1 of 2 caught (50 %)", said)
        self.assertIn("new: 1 of 2 caught (50 %)", said)
        self.assertIn("not used, for they fail without a fault: old red", said)
        before = file.read_text()
        self.assertEqual(self.try_faults(2)[0], 0)
        self.assertEqual(file.read_text(), before)

    def test_faults_can_be_found_beforehand(self):
        for _ in range(2):
            code, said = self.try_faults(2, "--units")
            self.assertEqual(code, 0, said)
            self.assertIn("5 of them can be put into the old code, too", said)
            self.assertIn("replace number * 3 with number + 3", said.split("2 are not", 1)[1])
        self.assertEqual(self.try_faults(4, "--units")[0], 1)
        rows = Records(next((self.folder / "out").glob("results-*.tsv"))).rows()
        self.assertEqual({row["side"] for row in rows if row["mutant"] != mutants.BASELINE}, {"unit"})
        self.assertIn("old: 1 of 2 caught (50 %)", self.try_faults(2)[1])

    def test_the_first_of_the_order_are_tried_and_no_others(self):
        # With this seed: number - number, 5, String::new(), 0, number + 3.
        code, said = self.try_faults(2, "--units", "--seed", 29)
        self.assertEqual(code, 0, said)
        _, found = said.split("3 faults tried: 0 do not compile, 1 are caught by unit tests, 2 are not")
        self.assertEqual([line.split("with ")[-1] for line in found.split("\n") if line],
                         ["5 /* fault */", "String::new() /* fault */"], said)
        self.assertNotIn("unviable", said)

    def test_an_incomplete_list_is_an_error(self):
        lister = self.folder / "cargo-mutants"
        one = json.dumps([{"name": "n", "file": "crates/plan/src/lib.rs", "diff": ""}])
        lister.write_text(f"#!/bin/sh\necho '{one}'\n")
        lister.chmod(0o755)
        with mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}"):
            code, said = self.run_script("mutants", *self.names, "--folder", self.folder / "out", "--repository",
                                         self.root)
        self.assertEqual(code, 1, said)
        self.assertIn("cargo mutants lists no fault of checkpoint, failure, gang, lifecycle, store", said)

    def test_too_few_faults_are_no_success(self):
        code, said = self.try_faults(4)
        self.assertEqual(code, 1, said)
        self.assertIn("5 faults tried: 1 do not compile, 1 are caught by unit tests, 3 are not", said)

    def test_bodies_of_functions_among_what_looks_like_them(self):
        text = """
// fn in_a_comment() { }
/* fn in_another() { */
const TEXT: &str = "fn in_a_string() { \\" }";
const RAW: &str = r#"fn in_a_raw_string() { " "#;
trait Some { fn declared(&self) -> [u8; 2]; }
type Pointer = fn(u32) -> u32;
fn of<'a>(text: &'a str, open: [char; 2]) -> bool where [u8; 2]: Sized {
    fn inner() { 1; }
    text.starts_with('{') || text.starts_with('\\'') // }
}
impl Other { async fn next(&self) { { 2; } } }
"""
        self.assertEqual([" ".join(text[start:end].split()) for start, end in mutants.bodies(text)],
                         ["fn inner() { 1; } text.starts_with('{') || text.starts_with('\\'') // }", "{ 2; }"])

    def test_unit_tests_of_crates_that_use_the_faulty_one_are_asked(self):
        def package(folder, *uses, name="own_name", kind="lib"):
            paths = [{"name": use, "path": f"/root/crates/{use}"} for use in uses] + [{"name": "serde"}]
            return {"manifest_path": f"/root/{folder}Cargo.toml", "dependencies": paths,
                    "targets": [{"name": name, "kind": [kind]}, {"name": "main", "kind": ["bin"]}]}

        metadata = {"packages": [
            package("", "agent"), package("crates/gang/"), package("crates/text/"),
            package("crates/agent/", "gang", "text", name="agent"), package("crates/tool/", "gang", kind="proc-macro"),
            package("crates/searcher/", "text", name="searcher")]}
        self.assertEqual(mutants.users(metadata, Path("/root"), "crates/gang"), {"lib", "lib-agent"})
        self.assertEqual(mutants.users(metadata, Path("/root"), "crates/searcher"), set())

    def test_what_does_not_compile_is_found_by_its_lines(self):
        text = "const A: u32 = 1;\nfn one() -> u32 { 1 }\nfn two() -> u32 {\n    2\n}\n"
        changed = {number: text.replace(*change) for number, change in enumerate(
            (("{ 1", "{ 10"), ("{ 1", "{ 11"), ("    2", "    20"), ("= 1", "= 3")), 1)}
        code, lines = mutants.woven(text, changed, "/switch")
        self.assertEqual(sorted(lines), [1, 2, 3], "the constant is in no function")
        rows = ["", *code.splitlines()]

        def by(*at, primary=True):
            spans = [{"file_name": "a.rs", "is_primary": primary, "line_start": line} for line in at]
            return mutants.broken(json.dumps({"message": {"level": "error", "spans": spans}}), {"a.rs": lines})

        self.assertEqual(by(rows.index("1 => { 10 ")), {1})
        self.assertEqual(by(rows.index("    20")), {3})
        self.assertEqual(by(rows.index("    2"), rows.index("2 => { 11 "), primary=False), {2})
        self.assertEqual(by(rows.index("fn one() -> u32 {")), {1, 2})
        self.assertEqual(by(rows.index("    2")), {3})
        self.assertEqual(by(len(rows) + 1), {1, 2, 3})

    def test_the_order_follows_from_the_seed(self):
        listed = [{"name": str(n), "file": "src/plan/mod.rs", "diff": ""} for n in range(50)]
        self.assertEqual(mutants.shuffled(listed, 1), mutants.shuffled(reversed(listed), 1))
        self.assertNotEqual(mutants.shuffled(listed, 1), mutants.shuffled(listed, 2))

    def test_folders_have_catchers_in_this_repository(self):
        found = tomllib.loads((SCRIPTS / "catchers.toml").read_text())
        self.assertEqual(sorted(found), sorted(mutants.FOLDERS))
        before = {"crates/failure/src/lib.rs": "src/cause/mod.rs", "crates/plan/src/a/b.rs": "src/plan/a/b.rs"}
        self.assertEqual({file: mutants.Mutant("", file, "").old_file for file in before}, before)


class Faults(Folder):
    TEST = "--lib twice"

    def setUp(self):
        super().setUp()
        self.root, _ = self.repository(CRATES)
        (self.folder / "patches").mkdir()

    def patch(self, name, before, after, test=TEST):
        lines = PLAN.splitlines(keepends=True), PLAN.replace(before, after).splitlines(keepends=True)
        path = "src/plan/mod.rs"
        diff = f"diff --git a/{path} b/{path}\n" + "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}"))
        text = f"finding: one 1\nfault: of {name}\ntest: {test}\n\n{diff}"
        (self.folder / "patches" / f"{name}.patch").write_text(text)

    def put_in(self):
        return self.run_script("faults", "--patches", self.folder / "patches", "--repository", self.root,
                               "--folder", self.folder / "out")

    def test_what_each_fault_is_noticed_by(self):
        self.patch("a", "number + number", "number - number")
        code, said = self.put_in()
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"a +one 1 +of a +caught +twice")
        self.patch("b", "number * 3", "number * 4")
        self.patch("c", "number + number", "nothing")
        self.patch("d", "number + number", "number", "--lib gone")
        self.patch("e", "number + number", "number")
        patch = self.folder / "patches" / "e.patch"
        patch.write_text(patch.read_text().replace("pub fn thrice", "pub fn threefold"))
        code, said = self.put_in()
        self.assertEqual(code, 1, said)
        for name, result in {"a": "caught", "b": "missed", "c": "unviable", "d": "unusable", "e": "stale"}.items():
            self.assertRegex(said, rf"\n{name} +one 1 +of {name} +{result}", said)

    def test_patches_fit_to_the_code(self):
        for patch in sorted((SCRIPTS / "faults.d").glob("*.patch")):
            with self.subTest(patch.stem):
                script("faults").read(patch)
                self.git(ROOT, "apply", "--check", patch)


TABLE = """# old, program, test, kind
demo\tnode\tdemo_and_more\tkept
suspended\tnode\tdemo_and_more\tkept
newest\tagents\tkeeper::newest\tkept
hostile\tnode\thostile\tsoak
"""


class Repeat(Folder):
    def repetition(self, runs=None, since=None):
        (self.folder / "table.tsv").write_text(TABLE)
        self.module = script("repeat")
        args = SimpleNamespace(folder=self.folder, results=None, since=since, runs=runs, load=2)
        return self.module.Repetition(moved.read(self.folder / "table.tsv"), args)

    def add(self, repetition, test, result, count=1, program="node"):
        for _ in range(count):
            repetition.records.add(repetition.commit, program, test, result, 2.0, 1.0, "now")

    def test_each_test_lacks_its_runs(self):
        repetition = self.repetition()
        self.add(repetition, "demo_and_more", "passed", 19)
        self.add(repetition, "hostile", "passed", 5)
        self.assertEqual(repetition.lacking(),
                         {("node", False): ["demo_and_more"], ("agents", False): ["keeper::newest"]})
        self.add(repetition, "demo_and_more", "passed")
        self.add(repetition, "keeper::newest", "passed", 20, "agents")
        self.assertEqual(repetition.lacking(), {})
        self.assertTrue(repetition.is_green())

    def test_runs_of_earlier_commits_count_from_one_on(self):
        for since, runs in ((None, 1), ("head", 1), ("before", 3), ("other", 1)):
            repetition = self.repetition(since=since)
            repetition.records.file.unlink(missing_ok=True)
            history = ["before", "head", repetition.commit]
            repetition.is_ancestor = lambda old, new, of=history: old in of and new in of[of.index(old):]
            for commit, count in (("before", 2), (repetition.commit, 1), ("other", 4)):
                for _ in range(count):
                    repetition.records.add(commit, "node", "hostile", "passed", 2.0, 1.0, "now")
            self.assertEqual(len(repetition.results()["node", "hostile"]), runs, since)

    def test_a_failure_is_no_success(self):
        repetition = self.repetition(runs=1)
        for test, program in (("demo_and_more", "node"), ("keeper::newest", "agents"), ("hostile", "node")):
            self.add(repetition, test, "failed" if test == "hostile" else "passed", 1, program)
        self.assertFalse(repetition.is_green())
        self.assertRegex(repetition.report(), r"hostile +node hostile +soak +1 +1 +-")
        self.assertRegex(repetition.report(), r"suspended +node demo_and_more +kept +1 +0 +2\.0")

    def test_a_round_runs_the_tests_that_lack_runs(self):
        repetition = self.repetition()
        suite = mock.create_autospec(self.module.Suite)  # with its own arguments
        suite.return_value.tests = [libtest.Test("node", "demo_and_more", 0.0, "ok", 2.5)]
        suite.return_value.failures = []
        with mock.patch.object(self.module, "Suite", suite), mock.patch.object(self.module.meter, "Group"):
            repetition.round(SimpleNamespace(), "node", False, ["demo_and_more", "died"], 1)
            repetition.round(SimpleNamespace(), "node", True, ["hostile"], 2)
        run, of_soak = (call.args[1] for call in suite.return_value.run_program.call_args_list)
        self.assertEqual(run.arguments, ("--exact", "--include-ignored", "demo_and_more", "died"))
        self.assertEqual((run.limit, of_soak.limit), (None, self.module.SOAK_LIMIT))
        results = repetition.results()
        self.assertEqual([results["node", test][0]["result"] for test in ("demo_and_more", "died")],
                         ["passed", "failed"])

    def test_the_load_ends_with_a_round_that_breaks(self):
        repetition = self.repetition()
        broken = mock.patch.object(repetition, "round", side_effect=RuntimeError("no more"))
        with broken, mock.patch.object(self.module.plan, "Plan") as plan:
            plan.return_value.steps.return_value = []
            with self.assertRaisesRegex(RuntimeError, "no more"):
                repetition.run()
        (needs,) = plan.return_value.steps.call_args.args
        self.assertLessEqual({"compile", *soak.NODE_IMAGES}, needs)
        repetition.close()
        self.assertEqual(repetition.processes.living, {})

    def test_faults_of_a_table(self):
        rows = moved.read(self.repetition().args.folder / "table.tsv")
        names = {"node": {"demo_and_more": "soak: no", "hostile": "soak: yes"}, "agents": {}}
        self.assertEqual(moved.faults([*rows, moved.Moved("demo", "lib", "x", "gone")], names), [
            "demo: node demo_and_more is said to be kept, and is ignored",
            "suspended: node demo_and_more is said to be kept, and is ignored",
            "newest: agents has no test keeper::newest",
            "demo: 'gone' is neither of kept, soak", "demo: it is there twice"])


class Names(unittest.TestCase):
    """The tables name tests that exist. It is looked at where all programs were compiled, as in a whole run."""

    def listed(self):
        """Program -> its tests."""
        folder = os.environ.get("TRAININGJOB_TEST_PROGRAMS")
        programs = [name for name, program in lanes.PROGRAMS.items() if not program.file and program.has_harness]
        return {program: libtest.list_of(Path(folder, program), ROOT) for program in programs} if folder else {}

    def test_of_slices_trials_and_catchers(self):
        listed = self.listed()
        wanted = [(f"{type(row).__name__} {row.name}", row.program, row.tests) for row in (*soak.SLICES, *soak.TRIALS)
                  if row.program]
        for folder, sides in tomllib.loads((SCRIPTS / "catchers.toml").read_text()).items():
            wanted += [(f"catchers.toml {folder}", row["program"], row.get("filter", [])) for row in sides["new"]]
        for where, program, parts in wanted:
            self.assertIn(program, lanes.PROGRAMS, where)
            file = lanes.PROGRAMS[program].file
            names = re.findall(r"def (test_\w+)", (ROOT / file).read_text()) if file else listed.get(program, ())
            for part in parts if names else ():
                self.assertTrue(any(part in name for name in names), f"{where}: {program} has no {part}")

    def test_of_what_ignored_tests_are_proved_by(self):
        texts = {path: path.read_text() for folder in ("tests", "crates") for path in (ROOT / folder).rglob("*.rs")}
        ignored = re.compile(r'#\[ignore = "((?:[^"\\]|\\.)*)"\]', re.DOTALL)
        code = "\n".join(ignored.sub("", text) for text in texts.values())
        known = set(re.findall(r"\w+", code)) | {path.stem for path in texts} | {path.parent.name for path in texts}
        for path, text in texts.items():
            for reason in ignored.findall(text):
                for name in re.findall(r"\w+::[\w:]+", reason):
                    exists = name.rsplit("::", 1)[-1] in known
                    self.assertTrue(exists, f"{path.relative_to(ROOT)}: there is no {name}: {reason}")

    def test_of_node_tests(self):
        rows = moved.read()
        self.assertEqual(moved.faults(rows, self.listed()), [])
        self.assertEqual(len(rows), moved.OLD_COUNT)


class Gpu(Folder):
    """tests/gpu/run without a GPU: what it asks for, and its cases with a PyTorch and an nvidia-smi made here."""

    TORCH = """
        class OutOfMemoryError(RuntimeError): pass
        class cuda:
            is_available = staticmethod(lambda: True)
        class Tensor:
            def pow(self, _): return self
            mean = detach = backward = lambda self: self
            def item(self): return 0.5
        class nn:
            Linear = lambda *_, **more: lambda tensor: tensor
        uint8 = None
        randn = lambda *_, **more: Tensor()
        def empty(*_, **more):
            import os, sys
            if sys.argv[1] == "memory":
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
    """

    def run_gpu(self, *words, **env):
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
        env = {**os.environ, "PATH": path, "PYTHONPATH": str(self.folder / "py"), **env}
        done = subprocess.run([sys.executable, ROOT / "tests" / "gpu" / "run", "--fixtures", self.folder / "fixtures",
                               *words], capture_output=True, text=True, check=False, env=env)
        return done.returncode, done.stdout + done.stderr

    def program(self, name, text):
        (self.folder / "bin").mkdir(exist_ok=True)
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def module(self, name, text):
        (self.folder / "py").mkdir(exist_ok=True)
        (self.folder / "py" / f"{name}.py").write_text(textwrap.dedent(text))

    def test_it_says_what_is_missing(self):
        self.program("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
        self.module("torch", "class cuda:\n    is_available = staticmethod(lambda: False)")
        code, said = self.run_gpu("--agent", self.folder / "no-agent")
        self.assertEqual(code, 2, said)
        for words in ("nvidia-smi lists no GPU: NVIDIA-SMI has failed", "sees no CUDA device",
                      "torchrun is not on PATH", "no-agent is not there: `make gpu` builds"):
            self.assertIn(words, said)

    def test_cases_pass_fail_and_are_skipped(self):
        agent = cargo.own_programs(ROOT) / "agent"
        self.program("torchrun", 'exec python3 "$@"')
        self.program("nvidia-smi", """case "$*" in
            --list-gpus) echo 'GPU 0: NVIDIA A' ;;
            --query-gpu*) echo '0, GPU-1, 97, 40000, 81559, 612.34, 61' ;;
            esac""")
        self.module("torch", self.TORCH)
        for only, code, words in (("nvidia_smi", 0, "in /metrics"), ("memory", 0, "CudaOutOfMemory: "),
                                  ("killed", 0, "Signal: "), ("nccl", 1, "exit code 1, "),
                                  ("deepspeed", 0, "deepspeed is not installed")):
            found, said = self.run_gpu("--agent", agent, "--only", only)
            self.assertEqual(found, code, said)
            self.assertIn(words, said)
        csv = (self.folder / "fixtures" / "nvidia-smi.csv").read_text()
        self.assertEqual(csv, "0, GPU-1, 97, 40000, 81559, 612.34, 61\n")
        self.assertIn("step 3/3", (self.folder / "fixtures" / "memory.stdout").read_text())
        self.assertIn("out of memory", (self.folder / "fixtures" / "memory.stderr").read_text())


if __name__ == "__main__":
    unittest.main()
