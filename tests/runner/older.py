"""The operator that users upgrade from: the image and the manifests of an older commit, kept in the cache."""

import contextlib
import shutil
import subprocess

from runner import buildfolder
from runner.console import Failure

# The last commit whose operator runs beside the jobs, in ml-training, and whose agents don't prove their answers:
# docs/install.md, "Upgrade", is about it.
COMMIT = "74734012e9d50ca9d85d679bdd2fa012f613fda2"
# v0.2.0, the tag before this version, by its commit: a clone may lack tags.
TAG_BEFORE = "8e07575f45c9f858660a96a7495cdb9ee7b14746"
TAG = "older"  # of its image, beside which a node has the one of this checkout
PROGRAMS = ("operator", "agent")
MANIFESTS = ("crds", "deploy")


class Older:
    """What is kept of that commit: the programs, an image of them, and the manifests as they lay in its checkout."""

    def __init__(self, cache, root, commit=COMMIT):
        self.root, self.commit = root, commit
        self.cache, self.folder = cache, cache / f"older-{commit[:7]}"
        self.checkout = cache / f"older-{commit[:7]}.checkout"  # while it is compiled
        self.image = self.folder / "image.tar"

    def prepare(self, run):
        """Makes what is missing. `run(*words, env={})` runs a command in this checkout."""
        if self.image.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if not all((self.folder / name).exists() for name in (*PROGRAMS, *MANIFESTS)):
            self.check_history()
            self.check_out(run)
            self.keep_manifests()
            self.keep_programs(run)  # last: where they are, all is there
        self.pack(run)

    def check_history(self):
        found = subprocess.run(["git", "cat-file", "-e", f"{self.commit}^{{commit}}"], cwd=self.root, check=False,
                               capture_output=True)
        if found.returncode:
            raise Failure(f"the history of this checkout lacks commit {self.commit}, from which the test upgrades; "
                          "fetch the whole history: git fetch --unshallow")

    def check_out(self, run):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.checkout)  # it was cut short
        self.checkout.mkdir()
        archive = self.checkout / "all.tar"
        run("git", "archive", "--output", archive, self.commit)
        run("tar", "-C", self.checkout, "-xf", archive)
        archive.unlink()

    def keep_manifests(self):
        for name in MANIFESTS:
            shutil.copytree(self.checkout / name, self.folder / name, dirs_exist_ok=True)

    def keep_programs(self, run):
        """Compiled in a build folder of its own, and static as .cargo/config.toml of this checkout says.

        Without debug information, which no pod needs and each import would copy.
        """
        target, build = self.checkout / "target", buildfolder.prepare(self.cache, self.checkout)
        bins = [word for name in PROGRAMS for word in ("--bin", name)]
        run("cargo", "build", "--locked", "--manifest-path", self.checkout / "Cargo.toml", "--target-dir", target,
            *bins, env={"CARGO_BUILD_BUILD_DIR": build})
        for name in PROGRAMS:
            built = next(target.glob(f"*/debug/{name}"))
            run("strip", built)
            built.replace(self.folder / name)
        # Nothing is compiled there again, and a new checkout would take the build folder over.
        for folder in (build, self.checkout):
            shutil.rmtree(folder)

    def pack(self, run):
        programs = [word for name in PROGRAMS for word in (f"--{name}", self.folder / name)]
        run("devcluster/cluster", "operator-image", *programs, "--tag", TAG, "--out", self.image)
