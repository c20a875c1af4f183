"""The folder in which cargo compiles for this checkout, below the cache.

Cargo takes a compiled file for fresh by the times of its sources, and its hashes do not contain the path of a
workspace: in one folder, two checkouts would run each other's tests (rust-lang/cargo#3611, #16642, #17312). So each
checkout has a folder of its own, named by its path.

A new folder begins with the crates from registries that are in the newest other folder. It is taken over whole if its
checkout is gone. Otherwise libraries are hard-linked, and all else is copied: fingerprints, lists of dependencies and
the output of build scripts are written in place.

Of a new checkout at the path of a former one, only what has changed is compiled again. A run of tests records the
content of each source and its time. A file that has the recorded content gets the recorded time, and any other the
present one: cargo then finds what it would find in the former checkout, had the same files been edited there.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

MARK = "checkout.json"
RECORD = "sources.json"
# What rustc replaces by a new file instead of writing into it.
LINKED = {".rlib", ".rmeta", ".so"}


def folder_of(cache, checkout):
    """Where a checkout's build folder is, whether it is there or not."""
    return Path(cache) / "cargo" / hashlib.sha256(str(checkout).encode()).hexdigest()[:12]


def prepare(cache, checkout):
    """Makes sure that the checkout has its build folder, and returns it."""
    checkout = Path(checkout).resolve()
    folder = folder_of(cache, checkout)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent):
        mark = {"checkout": str(checkout), "identity": identity(checkout), "packages": own_packages(checkout)}
        old = mark_of(folder)
        if old == mark:
            os.utime(folder / MARK)  # the folder that was used last is the newest
            return folder
        if old is None:
            if folder.exists():
                shutil.rmtree(folder)  # the making of it was cut short
            seed(folder, checkout, mark["packages"])
        elif old["identity"] != mark["identity"] and not continue_from(folder, checkout, old["packages"]):
            # Another checkout at the same path, whose files may be older than what was compiled of the former.
            forget(folder, {*old["packages"], *mark["packages"]})
        write_mark(folder, mark)
    return folder


@contextlib.contextmanager
def locked(base):
    with open(base / ".build-folders.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def identity(checkout):
    """Which folder it is that now has this path: its inode and when that was made, to the nanosecond."""
    done = subprocess.run(["stat", "-c", "%i %w", str(checkout)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def own_packages(checkout):
    """The packages of a checkout's workspace: in Cargo.lock they have no source."""
    lock = tomllib.loads((Path(checkout) / "Cargo.lock").read_text())
    return sorted(package["name"] for package in lock.get("package", []) if "source" not in package)


def mark_of(folder):
    try:
        return json.loads((folder / MARK).read_text())
    except (OSError, ValueError):
        return None


def write_mark(folder, mark):
    write(folder / MARK, mark)


def write(path, value):
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(value, indent=1) + "\n")
    temporary.replace(path)


# ---- another checkout at the same path


def sources(checkout):
    """The SHA-256 and the time, in nanoseconds, of each file that git does not ignore; None where there is no git."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=checkout, capture_output=True, check=False)
    if done.returncode != 0:
        return None
    found = {}
    for name in map(os.fsdecode, filter(None, done.stdout.split(b"\0"))):
        path = Path(checkout, name)
        if path.is_file() and not path.is_symlink():
            found[name] = [hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns]
    return found


def record(folder, checkout, before):
    """Records of which sources the folder is, at the end of a run that began with `before` and changed none."""
    with locked(folder.parent):
        (folder / RECORD).unlink(missing_ok=True)
        if before is not None and sources(checkout) == before:
            write(folder / RECORD, {"sources": before, "compiled": compiled(folder, own_packages(checkout))})


def continue_from(folder, checkout, packages):
    """Gives the files of a new checkout the times with which cargo finds what has changed since the record.

    Returns whether it did. It does not if there is no record, or if something was compiled after it.
    """
    try:
        known = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return False
    present = sources(checkout)
    if present is None or known["compiled"] != compiled(folder, packages):
        return False
    now = time.time_ns()
    for name, (content, _) in present.items():
        content_then, time_then = known["sources"].get(name, (None, now))
        changed = time_then if content == content_then else now
        os.utime(Path(checkout, name), ns=(changed, changed))
    say(f"cargo's build folder of the former checkout at {checkout}: what has not changed is not compiled again")
    return True


def compiled(folder, packages):
    """When each unit of these packages was last compiled: cargo writes a file into its fingerprint before it begins."""
    return {str(begun.relative_to(folder)): begun.stat().st_mtime_ns
            for profile in profiles(folder)
            for fingerprint in sorted(fingerprints_of(profile, packages))
            if (begun := fingerprint / "invoked.timestamp").exists()}


# ---- the first use


def seed(folder, checkout, packages):
    """Makes the folder, with the dependencies that others have compiled."""
    others = sorted((other for other in folder.parent.iterdir() if other.is_dir() and mark_of(other)),
                    key=lambda other: (other / MARK).stat().st_mtime, reverse=True)
    gone = [other for other in others if is_gone(mark_of(other))]
    # One in which nothing was compiled yet is of no use.
    living = [other for other in others if other not in gone and profiles(other)]
    if newest := next((other for other in gone if profiles(other)), None):
        say(f"cargo's build folder of {mark_of(newest)['checkout']}, which is gone, becomes that of {checkout}")
        forget(newest, {*mark_of(newest)["packages"], *packages})
        (newest / MARK).unlink()
        newest.rename(folder)
    elif living:
        say(f"cargo's build folder of {checkout} begins with the dependencies of {mark_of(living[0])['checkout']}")
        folder.mkdir()
        copy(living[0], folder, {*mark_of(living[0])["packages"], *packages})
    else:
        folder.mkdir()
    for other in gone:
        shutil.rmtree(other, ignore_errors=True)


def is_gone(mark):
    return not Path(mark["checkout"], "Cargo.toml").exists()


def say(text):
    print(f"  {text}", file=sys.stderr, flush=True)


def profiles(folder):
    """The folders of profiles and targets: debug, release, TRIPLE/debug and so on."""
    return sorted(fingerprints.parent for fingerprints in
                  [*folder.glob("*/.fingerprint"), *folder.glob("*/*/.fingerprint")])


def own_names(profile, packages):
    """The names that the files of these packages begin with: of the packages, and of their crates.

    A fingerprint's folder says of which package it is, and the files in it of which crates.
    """
    names = set(packages)
    for fingerprint in fingerprints_of(profile, packages):
        for file in fingerprint.iterdir():
            if found := re.fullmatch(r"(?:dep-)?(?:(?:test|bench)-)?(?:lib|bin|integration-test|bench|example)-([^.]+)",
                                     file.name):
                names.add(found[1])
    return names | {name.replace("-", "_") for name in names}


def fingerprints_of(profile, packages):
    return [path for path in (profile / ".fingerprint").iterdir() if belongs(path.name, packages)]


def belongs(name, names):
    """Whether a file or folder is that of a crate or package: NAME-HASH, libNAME-HASH.rlib, NAME."""
    stem = re.sub(r"-[0-9a-f]{16}(\..*)?$", "", name)
    return stem in names or stem.removeprefix("lib") in names


def forget(folder, packages):
    """Removes all that was compiled of these packages. A crate without its fingerprint is compiled again."""
    for profile in profiles(folder):
        names = own_names(profile, packages)
        for part in (".fingerprint", "build", "deps"):
            for path in (profile / part).iterdir() if (profile / part).is_dir() else ():
                if belongs(path.name, names):
                    remove(path)
        for part in ("incremental", "examples"):
            remove(profile / part)
    remove(folder / "tmp")
    (folder / RECORD).unlink(missing_ok=True)


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def copy(source, folder, packages):
    """Copies what was compiled, but for these packages.

    Fingerprints first: one that is there says that its outputs are complete, also while cargo is at work in the source.
    """
    for file in (".rustc_info.json", "CACHEDIR.TAG"):
        if (source / file).exists():
            shutil.copy2(source / file, folder / file)
    for profile in profiles(source):
        target = folder / profile.relative_to(source)
        names = own_names(profile, packages)
        for part in (".fingerprint", "build", "deps"):
            (target / part).mkdir(parents=True, exist_ok=True)
            for path in (profile / part).iterdir() if (profile / part).is_dir() else ():
                if not belongs(path.name, names):
                    copy_tree(path, target / part / path.name)


def copy_tree(source, target):
    """A copy with the times of the original, which are what cargo compares."""
    with contextlib.suppress(FileNotFoundError):  # a file of the compiler that works there meanwhile
        if source.is_dir():
            target.mkdir(exist_ok=True)
            for path in source.iterdir():
                copy_tree(path, target / path.name)
            shutil.copystat(source, target)
        elif source.suffix in LINKED:
            try:
                os.link(source, target)
            except OSError:
                shutil.copy2(source, target)
        else:
            shutil.copy2(source, target)
