"""The programs of a release, compiled from a commit for each architecture.

Sources, registry and build folder are given fixed names in what the compilers write, so that the bytes do not depend
on the folder. Programs of another architecture need Rust's standard library for it and a C compiler. Where this machine
has none, both are taken from Debian testing, unpacked into a folder of the cache, and the compilation runs inside.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lib.host import Failure, cache, is_root, need, run, say, step

NAMES = ("operator", "agent", "kubectl-trainingjob")
# Architecture -> the machine as Python names it, and the prefix of its C compiler.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
CROSS_PACKAGES = {
    "arm64": ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
    "amd64": ("gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross")}
# Where Debian has chroot and mount, and the other root its compilers.
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# Lists of a mirror that is a snapshot have an old date. Their signatures are checked all the same.
OLD_LISTS = "Acquire::Check-Valid-Until"


@dataclass(frozen=True)
class Toolchain:
    """How programs of an architecture are compiled, and what says so to people."""

    triple: str
    env: dict
    root: Path | None  # the folder in which the compilation runs, if not this machine's own
    what: str


def triple(architecture):
    return f"{ARCHITECTURES[architecture]}-unknown-linux-gnu"


def is_native(architecture):
    return platform.machine() == ARCHITECTURES[architecture]


def toolchain(architecture):
    """The toolchain for an architecture; a Failure says what to install."""
    target = triple(architecture)
    prefix = f"{ARCHITECTURES[architecture]}-linux-gnu"
    variable = target.replace("-", "_")
    cross = {} if is_native(architecture) else {
        f"CARGO_TARGET_{variable.upper()}_LINKER": f"{prefix}-gcc", f"CC_{variable}": f"{prefix}-gcc",
        f"AR_{variable}": f"{prefix}-ar"}
    library = Path(run("rustc", "--print", "target-libdir", "--target", target).stdout.strip())
    if library.is_dir() and any(library.glob("libstd-*")) and (not cross or shutil.which(f"{prefix}-gcc")):
        return Toolchain(target, cross, None, run("rustc", "--version").stdout.strip())
    if not (is_root() and shutil.which("apt-get")):
        raise Failure(f"programs for {architecture} need Rust's library and a C compiler for it: "
                      f"rustup target add {target}; apt-get install {' '.join(CROSS_PACKAGES[architecture])}")
    root = cross_root(architecture)
    version = run("chroot", root, "rustc", "--version").stdout.strip()
    return Toolchain(target, cross, root, f"{version} of Debian testing")


def cross_root(architecture):
    """Debian testing with Rust, and with Rust's library and a C compiler for the architecture."""
    need({"mmdebstrap": "mmdebstrap"})
    packages = ",".join(("cargo", "rustc", "gcc", "libc6-dev", *CROSS_PACKAGES[architecture]))
    library = (f'chroot "$1" sh -c "dpkg --add-architecture {architecture} && '
               f'apt-get -o {OLD_LISTS}=false update -qq && cd /tmp && '
               f'apt-get download -qq libstd-rust-dev:{architecture} && dpkg-deb -x libstd-rust-dev_*.deb / && '
               'rm libstd-rust-dev_*.deb && apt-get clean"')
    command = ["mmdebstrap", "--quiet", f'--aptopt={OLD_LISTS} "false"', "--variant=apt", f"--include={packages}",
               f"--customize-hook={library}", "testing"]
    digest = hashlib.sha256(repr(command).encode()).hexdigest()[:16]
    root = cache() / f"cross-{architecture}-{digest}"
    with open(cache() / f".cross-{architecture}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            new = root.with_suffix(".new")
            run("rm", "-rf", new)
            with step(f"Debian testing with Rust for {architecture} (a minute, 1.2 GB)"):
                run(*command, new)
                for folder in ("source", "cargo"):
                    (new / folder).mkdir()
            new.rename(root)
    return root


def export(root, commit, folder):
    """The files of a commit, without what is not committed."""
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    run("git", "-C", root, "archive", "--output", archive, commit)
    run("tar", "-C", folder, "-xf", archive)
    archive.unlink()


def compile_for(architecture, source, out, epoch):
    """Compiles the programs in `source` and puts them into `out`."""
    tools = toolchain(architecture)
    cargo_home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    here = (Path("/source"), Path("/cargo")) if tools.root else (source, cargo_home)
    names = {here[0]: "/trainingjob", here[1]: "/cargo"}
    flags = ["-C target-feature=+crt-static", *(f"--remap-path-prefix={path}={name}" for path, name in names.items())]
    maps = " ".join(f"-ffile-prefix-map={path}={name}" for path, name in names.items())
    variables = {
        "RUSTFLAGS": " ".join(flags), "CFLAGS": maps, "SOURCE_DATE_EPOCH": str(epoch), "CARGO_HOME": str(here[1]),
        "CARGO_TARGET_DIR": str(here[0] / "target"), "CARGO_INCREMENTAL": "0", **tools.env}
    bins = [word for name in NAMES for word in ("--bin", name)]
    cargo = ["cargo", "build", "--quiet", "--release", "--locked", "--target", tools.triple, *bins]
    run("cargo", "fetch", "--locked", "--quiet", cwd=source)
    say(f"  {architecture}: compiling with {tools.what}")
    with step(f"programs for {architecture} (some 310 crates with full optimisation)"):
        if tools.root:
            within(tools.root, source, cargo_home, [*cargo, "--offline"], variables)
        else:
            env = {**os.environ, **variables}
            env.pop("CARGO_BUILD_BUILD_DIR", None)
            run(*cargo, cwd=source, env=env)
    out.mkdir(parents=True)
    for name in NAMES:
        shutil.copy(source / "target" / tools.triple / "release" / name, out / name)
    shutil.rmtree(source / "target")


def within(root, source, cargo_home, command, variables):
    """Runs a command in another root, with the sources and cargo's folder in it, in mounts of its own."""
    script = ('mount --bind "$1" "$0/source" && mount --bind "$2" "$0/cargo" && mount -t proc proc "$0/proc" && '
              'root=$0 && shift 2 && exec chroot "$root" sh -c \'cd /source && exec "$@"\' sh "$@"')
    env = {"PATH": PATH, "HOME": "/root", **variables}
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, root, source, cargo_home, *command], env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"`{' '.join(command)}` in {root} ended with {done.returncode}:\n{done.stderr[-4000:]}")
