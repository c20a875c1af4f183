"""The steps of a run: what is prepared, in which order, and which commands do it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from runner import buildfolder, cargo, licences, older
from runner.console import Failure, quoted
from runner.meter import Group
from runner.steps import Step

CLUSTER = "devcluster/cluster"
IMAGE = "localhost/trainingjob-operator:dev"
MESSAGES = "--message-format=json-render-diagnostics"
# One compilation for the image and the tests: the same profile, flags and features.
TARGETS = ("--bins", "--tests")
# In a whole run clippy compiles the project's own crates. `cargo clippy` starts it by the same variable, but to check
# only, which keeps nothing for a test: every crate, those of others too, would be read a second time. Nor is kept what
# only a next compilation could use. A part of the tests is compiled as by hand.
WHOLE = {"RUSTC_WORKSPACE_WRAPPER": "clippy-driver", "CARGO_INCREMENTAL": "0"}


def is_unit(program):
    return program == "lib" or program.startswith("lib-")


def cargo_flags(root):
    """Cargo's flags: tests are compiled with the crates of a release, which a whole run makes as well."""
    file = Path(root, "target", "tests.toml")
    file.parent.mkdir(exist_ok=True)
    file.write_text(cargo.profile(root))
    return "--release", "--config", file


def compile_all(root):
    return "cargo", "build", *cargo_flags(root), MESSAGES, *TARGETS


def compile_commands(programs, flags=()):
    """What compiles these test programs, and ours; of unit tests all, for one crate's alone has other features."""
    tests = [word for name in sorted(programs) if not is_unit(name) for word in ("--test", name)]
    units = [("cargo", "test", *flags, "--no-run", MESSAGES, "--lib")] if any(map(is_unit, programs)) else []
    return [("cargo", "build", *flags, MESSAGES, "--bins", *tests), *units]


class Plan:
    """Makes the steps that bring what tests need, and knows what they brought."""

    def __init__(self, root, processes, evidence, kept=None, programs=None):
        self.root, self.processes, self.evidence = Path(root), processes, evidence
        self.folder = kept or self.root / "target" / "run"
        self.wanted = programs  # the test programs to compile; None for all
        self.kept = cargo.Built()
        self.env = {}  # for the test programs
        self.groups = {}
        self.prepare_environment()

    def prepare_environment(self):
        """The caches, as the Makefile names them."""
        cache = os.environ.get("TRAININGJOB_CACHE") or str(Path.home() / ".cache" / "trainingjob")
        self.cache = Path(cache)
        self.common = {"TRAININGJOB_CACHE": cache}
        if not os.environ.get("CARGO_BUILD_BUILD_DIR"):
            self.common["CARGO_BUILD_BUILD_DIR"] = buildfolder.prepare(cache, self.root)
        self.sources = buildfolder.sources(self.root)

    def record_sources(self):
        """For the next checkout at this path. Nothing is compiled any more."""
        folder = buildfolder.folder_of(self.cache, self.root.resolve())
        if Path(os.environ.get("CARGO_BUILD_BUILD_DIR") or folder) == folder:
            buildfolder.record(folder, self.root, self.sources)

    def group(self, name, nice=0):
        if name not in self.groups:
            self.groups[name] = Group(name, nice)
        return self.groups[name]

    def command(self, step, *words, env=None, nice=0, prefix=False, shows_all=False, limit=None):
        """Runs a command of a step; returns its standard output."""
        group = self.group(step.name, nice)
        try:
            return self.processes.run(words, group, self.evidence.log_of(step.name), {**self.common, **(env or {})},
                                      step.name if prefix else None, shows_all, limit, self.root)
        finally:
            step.cpu = group.seconds()

    # ---- the steps, by name

    def steps(self, names):
        """These steps, and what they need, and what is before them if that is here as well."""
        made = {step.name: step for step in self.all_steps()}
        chosen, open_ = set(), list(names)
        while open_:
            name = open_.pop()
            if name not in chosen:
                chosen.add(name)
                open_ += made[name].needs
        steps = [step for step in made.values() if step.name in chosen]
        for step in steps:
            step.after = tuple(name for name in step.after if name in chosen)
        return steps

    def all_steps(self):
        cluster, cargo_steps = self.cluster_step, self.cargo_steps()
        return [
            Step("packages", "Debian packages that clusters, images and tests need", self.install_packages, usual=1,
                 cold=30),
            Step("languages", "compilers and virtual machines that failing programs need", self.install_languages,
                 needs=("packages",), usual=1, cold=60),
            Step("python", "Python with pip and venv", self.nothing, needs=("packages",), usual=0),
            cluster("tools", "the programs of a cluster, of Go and of Debian", ("prepare", "tools"), ("packages",),
                    self.take_tools, usual=1, cold=240),
            # One after the other, for each fills the processors; what the longest lane needs comes first.
            cluster("stores", "servers of object stores", ("prepare", "stores"), ("tools",), usual=1, cold=90),
            cluster("kwok", "kwok, which simulates nodes", ("prepare", "kwok"), ("tools",), after=("stores",), usual=1,
                    cold=15),
            cluster("kueue", "Kueue", ("prepare", "kueue"), ("tools",), after=("stores", "kwok"), usual=1, cold=60),
            cluster("images", "the images of the demo and of a pod's pause", ("images",), ("packages",),
                    self.take("TRAININGJOB_TEST_DEMO_IMAGE"), usual=1, cold=40),
            cluster("small-frameworks", "the image with XGBoost, MXNet and MPI", ("images", "small-frameworks"),
                    ("images",), self.take("TRAININGJOB_TEST_SMALL_FRAMEWORKS_IMAGE"), usual=1, cold=90),
            cluster("large-frameworks", "the image with TensorFlow and Paddle", ("images", "large-frameworks"),
                    ("images",), self.take("TRAININGJOB_TEST_LARGE_FRAMEWORKS_IMAGE"), usual=1, cold=300),
            cluster("trainers", "the image with Hugging Face and Lightning", ("images", "trainers"), ("images",),
                    self.take("TRAININGJOB_TEST_TRAINERS_IMAGE"), usual=1, cold=120),
            cluster("examples-image", "the image with what the examples import", ("images", "examples"), ("images",),
                    self.take("TRAININGJOB_TEST_EXAMPLES_IMAGE"), usual=1, cold=150),
            cluster("helm", "helm, which renders the chart", ("shipping", "helm"), ("packages",),
                    self.take("TRAININGJOB_TEST_HELM"), usual=1, cold=10),
            Step("checkpoint-libraries", "TensorFlow, JAX and Orbax, which write and read checkpoints",
                 self.install_checkpoint_libraries, needs=("python",), usual=1, cold=60),
            Step("gang-schedulers", "Volcano and the coscheduling plugin", self.build_gang_schedulers, ("tools",),
                 usual=1, cold=300),
            *cargo_steps,
        ]

    def cargo_steps(self):
        """One after the other: each of them would use both processors, and they share a lock.

        The tests are compiled first. The release is then compiled beside the lanes, which mostly wait.
        """
        return [
            Step("fmt", "the format of all Rust", self.run_command("cargo", "fmt", "--all", "--check"), usual=2),
            Step("ruff", "what ruff says of all Python", self.run_ruff, needs=("packages",), after=("fmt",), usual=1,
                 cold=10),
            Step("words", "the words of pages, texts and messages", self.check_words, after=("fmt",), usual=2),
            Step("licences", "licences, bans and sources of the dependencies", self.check_licences, after=("fmt",),
                 usual=1),
            Step("compile", "compiling the programs and their tests", self.compile, after=("fmt", "licences"), usual=90,
                 cold=330),
            Step("dev-image", "the operator's image of the tests' programs", self.make_dev_image,
                 needs=("compile",), usual=2),
            Step("clippy", "what clippy says of all Rust", self.run_clippy, after=("compile",)),
            Step("release-image", "the operator's image as it is released (`make image`)", self.make_release_image,
                 needs=("compile",), after=("dev-image", "clippy"), usual=150, cold=360),
            Step("smoke", "the demo with the released image", self.run_smoke_test,
                 needs=("release-image", "tools", "images"), usual=60),
            Step("older-image", "the operator that a test upgrades, of an older commit", self.make_older_image,
                 needs=("packages",), after=("release-image",), usual=1, cold=180),
            Step("tag-image", "the operator of the tag before, which tests upgrade and go back to", self.make_tag_image,
                 needs=("packages",), after=("release-image", "older-image"), usual=1, cold=180),
        ]

    def cluster_step(self, name, what, words, needs=(), take=None, after=(), usual=None, cold=None):
        def function(step):
            output = self.command(step, CLUSTER, *words, prefix=True)
            if take:
                take(step, output)

        return Step(name, what, function, needs, after, usual, cold)

    def take(self, variable):
        """What is done with the output of a command whose last line is a path: tests find it in this variable."""
        def function(_, output):
            lines = output.split()
            if not lines:
                raise Failure("the command printed no path")
            self.env[variable] = lines[-1]

        return function

    def on_kubernetes(self, step, version):
        """The environment of tests that run on another version, whose programs are built if they are not there."""
        env = {"TRAININGJOB_KUBERNETES": version}
        return {**env, "TRAININGJOB_TEST_TOOLS": self.command(step, CLUSTER, "tools", env=env).split()[-1]}

    def run_command(self, *words):
        return lambda step: self.command(step, *words)

    def nothing(self, step):
        step.cpu = 0.0

    def install_packages(self, step):
        self.command(step, CLUSTER, "packages", "--tests", prefix=True)

    def install_languages(self, step):
        self.command(step, CLUSTER, "packages", "--languages", prefix=True)

    def install_checkpoint_libraries(self, step):
        words = ("tests/runner/venv.py", "checkpoints", "tests/checkpoints/requirements.txt")
        self.take("TRAININGJOB_PYTHON")(step, self.command(step, sys.executable, "-B", *words))

    def take_tools(self, step, _):
        self.take("TRAININGJOB_TEST_TOOLS")(step, self.command(step, CLUSTER, "tools"))

    def build_gang_schedulers(self, step):
        for scheduler in ("volcano", "coscheduling"):
            self.command(step, CLUSTER, "tools", scheduler, prefix=True)

    def run_ruff(self, step):
        self.command(step, "make", "--no-print-directory", "ruff")

    def check_words(self, step):
        self.command(step, sys.executable, "-B", "tests/lint/words.py")

    def run_clippy(self, step):
        """Where all is compiled, cargo says again what clippy said of it."""
        if not self.kept.tests:
            self.command(step, "cargo", "clippy", "--all-targets", "--quiet", "--", "-D", "warnings")
            return
        words = ("cargo", "build", *cargo_flags(self.root), "--message-format=json", *TARGETS)
        said = self.command(step, *words, env=WHOLE)
        if warnings := cargo.warnings(said):
            raise Failure("what clippy finds:\n" + quoted("".join(warnings)))

    def check_licences(self, step):
        deny = (self.root / "deny.toml").read_text()
        rules = licences.rules_of(deny)
        metadata = self.command(step, *licences.metadata_command(rules))
        if faults := licences.check(deny, metadata):
            raise Failure("what deny.toml forbids:\n" + quoted("\n".join(faults)))

    def compile(self, step):
        commands, env = [compile_all(self.root)], WHOLE
        if self.wanted is not None:
            commands, env = compile_commands(self.wanted, cargo_flags(self.root)), {}
        built = cargo.read("\n".join(self.command(step, *words, env=env) for words in commands), self.root)
        self.kept = cargo.keep(built, self.folder)
        self.env |= cargo.environment(self.kept, self.root)
        if self.wanted is None:
            self.env["TRAININGJOB_TEST_PROGRAMS"] = self.folder / "tests"  # all of them are there

    def compile_release(self, step, program):
        commands = compile_commands([program], ("--release",))[is_unit(program):]
        if program.startswith("lib-"):
            commands = [(*words, "--package", program.removeprefix("lib-").replace("_", "-")) for words in commands]
        built = cargo.read("\n".join(self.command(step, *words) for words in commands), self.root)
        return cargo.keep(built, self.folder.with_name("run-release"))

    def make_dev_image(self, step):
        """Without debug information, which no pod needs and each import would copy."""
        folder = self.folder / "image"
        folder.mkdir()
        for name in ("operator", "agent"):
            self.command(step, "strip", "-o", folder / name, self.kept.programs[name])
        archive = self.folder / "image.tar"
        self.command(step, CLUSTER, "operator-image", "--operator", folder / "operator", "--agent", folder / "agent",
                     "--out", archive)
        self.env["TRAININGJOB_TEST_IMAGE"] = str(archive)

    def make_release_image(self, step):
        """Behind all tests: what is left of the processors is enough for one image."""
        self.command(step, "make", "--no-print-directory", "image", nice=19)

    def make_older_image(self, step):
        made = older.Older(self.cache, self.root)
        made.prepare(lambda *words, env=None: self.command(step, *words, env=env))
        self.env["TRAININGJOB_TEST_OLDER"] = made.folder

    def make_tag_image(self, step):
        made = older.Older(self.cache, self.root, older.TAG_BEFORE)
        made.prepare(lambda *words, env=None: self.command(step, *words, env=env))
        self.env["TRAININGJOB_TEST_TAG"] = made.folder

    def use_release_image(self):
        self.env["TRAININGJOB_TEST_IMAGE"] = str(self.root / "dist" / "image.tar")

    def run_smoke_test(self, step):
        name = f"smoke-{os.getpid()}"
        try:
            self.command(step, "demo/run", "--name", name, "--image", self.root / "dist" / "image.tar", "--down",
                         limit=900)
        finally:
            # Of a demo that has failed or was ended the cluster is there still.
            subprocess.run([self.root / CLUSTER, "down", "--name", name], check=False, capture_output=True)


def missing_tools():
    """What can't be had by a step."""
    found = []
    if missing := [name for name in ("cargo", "rustc", "clippy-driver") if not shutil.which(name)]:
        found.append(f"Rust's {', '.join(missing)} can't be found: install the stable toolchain (rustup) with rustfmt "
                     "and clippy, and put cargo on PATH")
    if not shutil.which("cc"):
        found.append("a C compiler is missing: on Debian, apt-get install gcc libc6-dev")
    return found
