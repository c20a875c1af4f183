"""This machine: commands, progress on stderr, the Debian packages that are needed."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # the checkout
HERE = ROOT / "devcluster"


class Failure(Exception):
    """Ends the program with a message a person can act on."""


def say(text):
    """Prints progress. Where it can't, as on a full disk, the work goes on: other threads may wait for this one."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what):
    """`with step("what"):` prints what and, at the end, how long it took."""
    start = time.monotonic()
    say(f"  {what} ...")
    try:
        yield
    except BaseException:
        say(f"  {what}: failed after {time.monotonic() - start:.1f} s")
        raise
    say(f"  {what}: done in {time.monotonic() - start:.1f} s")


def run(*command, check=True, timeout=None, **options):
    """Runs a command with its output captured; a Failure quotes it."""
    options.setdefault("stdin", subprocess.DEVNULL if "input" not in options else None)
    if "input" in options:
        options.pop("stdin")
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, timeout=timeout,
                          check=False, **options)
    if check and done.returncode != 0:
        words = " ".join(str(part) for part in command)
        raise Failure(f"`{words}` ended with {done.returncode}:\n{(done.stderr or done.stdout).strip()[-4000:]}")
    return done


def wait(until, seconds, what, every=0.1):
    """Waits for `until()` to be true; `what` is a string or a function, for the message."""
    deadline = time.monotonic() + seconds
    while not (result := until()):
        if time.monotonic() > deadline:
            raise Failure(f"waited {seconds} s for {what() if callable(what) else what}")
        time.sleep(every)
    return result


def cache():
    path = Path(os.environ.get("TRAININGJOB_CACHE") or Path.home() / ".cache" / "trainingjob")
    path.mkdir(parents=True, exist_ok=True)
    return path


def is_root():
    return os.geteuid() == 0


def need_root(what):
    if not is_root():
        raise Failure(f"{what} needs root: it makes network namespaces, mounts and cgroups. Use sudo, "
                      "or `devcluster/cluster up --control-only` for a cluster without real nodes.")


# a command, a file or a module of Python that must be there -> the Debian package that brings it
NODE = {"runc": "runc", "ip": "iproute2", "iptables": "iptables", "conntrack": "conntrack", "nsenter": "util-linux",
        "setpriv": "util-linux", "/usr/lib/cni/bridge": "containernetworking-plugins", "mount": "mount",
        "sysctl": "procps"}
PKI = {"openssl": "openssl"}
IMAGES = {"gcc": "gcc", "/usr/include/stdlib.h": "libc6-dev", "mmdebstrap": "mmdebstrap", "buildah": "buildah"}
# without ensurepip, venvs have no pip; Argo CD runs health scripts in this version of Lua
TESTS = {"import pip": "python3-pip", "import ensurepip": "python3-venv", "lua5.1": "lua5.1"}
# what only failing programs of the soak are written in
LANGUAGES = {"g++": "g++", "java": "default-jdk-headless", "node": "nodejs", "tclsh": "tcl", "cmake": "cmake",
             "jq": "jq"}


def need(*groups):
    """Installs what is missing by apt-get on Debian as root; else says what to install."""
    missing = {thing: package for group in groups for thing, package in group.items() if not is_here(thing)}
    if not missing:
        return
    packages = sorted(set(missing.values()))
    if not (is_root() and shutil.which("apt-get")):
        raise Failure(f"missing on this machine: {', '.join(sought(thing) for thing in sorted(missing))}. "
                      f"As root on Debian: apt-get install {' '.join(packages)}")
    with step(f"installing Debian packages: {' '.join(packages)}"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        if run(*install, env=env, check=False).returncode != 0:  # the package lists may be old or absent
            run("apt-get", "update", "-qq", env=env)
            run(*install, env=env)
    if still := [sought(thing) for thing in sorted(missing) if not is_here(thing)]:
        raise Failure(f"still missing with {' '.join(packages)} installed: {', '.join(still)}")


def sought(thing):
    """What is missing, in words; of a module, by which Python."""
    if not thing.startswith("import "):
        return thing
    return f"the module {thing.removeprefix('import ')} of {shutil.which('python3')} (is that not Debian's?)"


def is_here(thing):
    if thing.startswith("/"):
        return Path(thing).exists()
    if thing.startswith("import "):
        return run("python3", "-c", thing, check=False).returncode == 0
    return shutil.which(thing, path=search_path()) is not None


def search_path():
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
