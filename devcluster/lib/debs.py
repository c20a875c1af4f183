"""Programs of Debian's suite `testing`, unpacked into the cache and not installed.

containerd takes most of a minute to compile and kubectl a quarter of one; as packages both are there after a few
seconds. The suite moves on, so a range of versions is accepted, and every reason against a package only means that its
programs are built from their Go module.
"""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .host import Failure, is_root, run, say

SUITE = "testing"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
APT = Path("/etc/apt")


class Unavailable(Exception):
    """Why packages can't be had on this machine."""


@dataclass(frozen=True)
class Package:
    """A package, the versions (major, minor) that will do, and how each of its programs prints its own version."""

    name: str
    at_least: tuple
    below: tuple
    programs: dict


@dataclass(frozen=True)
class Source:
    """A source of packages as apt knows it."""

    uris: tuple
    suites: tuple
    components: tuple
    keyring: str = KEYRING


# ---- what follows from texts alone


def fields(text):
    """The fields of a paragraph in Debian's format, with lower-case names; continued lines belong to their field."""
    found, last = {}, None
    for line in text.splitlines():
        if line[:1].isspace() and last:
            found[last] += f" {line.strip()}"
        elif ":" in line and not line.startswith("#"):
            last, value = line.split(":", 1)
            last = last.strip().lower()
            found[last] = value.strip()
    return found


def one_line_source(line):
    """The source of a line `deb [option=value ...] URI SUITE COMPONENT ...`, None if it is something else."""
    found = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", line.strip())
    if not found:
        return None
    options = dict(option.split("=", 1) for option in (found[1] or "").split() if "=" in option)
    return Source((found[2],), (found[3],), tuple(found[4].split()), keyring(options.get("signed-by", "")))


def paragraph_source(text):
    """The source of a paragraph of a .sources file, None if it is switched off or has no programs."""
    found = fields(text)
    off = found.get("enabled", "yes").lower() in ("no", "false", "off", "0", "without", "disable")
    if off or "deb" not in found.get("types", "").split():
        return None
    lists = (tuple(found.get(name, "").split()) for name in ("uris", "suites", "components"))
    return Source(*lists, keyring(found.get("signed-by", "")))


def keyring(signed_by):
    """The file that a source names; a key written into the source itself is passed over for Debian's own file."""
    return signed_by if signed_by.startswith("/") else KEYRING


def sources(files):
    """The sources in apt's files, a text by name each: those of `.list` files have a line, the others a paragraph."""
    found = []
    for name, text in files.items():
        if name.endswith(".sources"):
            paragraphs = re.split(r"\n[ \t]*\n", re.sub(r"(?m)^#.*\n?", "", text))
            found += [paragraph_source(paragraph) for paragraph in paragraphs]
        else:
            found += [one_line_source(line) for line in text.splitlines()]
    return [source for source in found if source and source.uris]


def archive(found, codename):
    """Debian's archive among the sources: the one with this very release. Other people's have suites of their own."""
    return next((source for source in found if codename in source.suites and "main" in source.components), None)


def why_not(release, commands):
    """The reason that no package can be used on this machine, None if there is none."""
    if release.get("id") != "debian":
        return f"this is {release.get('id', 'an unknown system')}, not Debian"
    missing = [name for name, found in commands.items() if not found]
    return f"there is no {' and no '.join(missing)}" if missing else None


def refusal(package, version, depends, libc):
    """The reason that a version of a package is not used with this C library, None if there is none."""
    number = numbers(version)
    if not package.at_least <= number < package.below:
        low, high = (".".join(map(str, bound)) for bound in (package.at_least, package.below))
        return f"{package.name} {version} is not at least {low} and below {high}"
    wanted = re.search(r"\blibc6 \(>= ([\d.]+)", depends)
    if wanted and libc < numbers(wanted[1]):
        return f"{package.name} {version} needs glibc {wanted[1]}, and this is {'.'.join(map(str, libc))}"
    return None


def numbers(version):
    """Major and minor of a version, which may have an epoch before it."""
    found = re.match(r"(?:\d+:)?v?(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


# ---- this machine


def fetch(packages, folder):
    """Puts the programs of those packages that will do into `folder`; says why the others won't."""
    try:
        with tempfile.TemporaryDirectory(dir=folder) as work:
            Apt(Path(work)).fetch(packages, folder)
    except (Unavailable, Failure, OSError, subprocess.TimeoutExpired) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        say(f"  Debian's {' and '.join(package.name for package in packages)}: not used, {reason}")


class Apt:
    """apt-get with lists, cache and state of its own, so that nothing of the machine's is touched or looked at."""

    def __init__(self, work):
        release = os_release()
        programs = ("apt-get", "apt-cache", "dpkg", "dpkg-deb")
        if reason := why_not(release, {name: shutil.which(name) for name in programs}):
            raise Unavailable(reason)
        files = [APT / "sources.list", *sorted(APT.glob("sources.list.d/*.list")),
                 *sorted(APT.glob("sources.list.d/*.sources"))]
        texts = {str(file): file.read_text(errors="replace") for file in files if file.is_file()}
        found = archive(sources(texts), release.get("version_codename", ""))
        if not found:
            raise Unavailable("apt's sources do not have this release of Debian")
        self.work = work
        signed = f" signed-by={found.keyring}" if Path(found.keyring).exists() else ""
        architecture = run("dpkg", "--print-architecture").stdout.strip()
        (work / "list").write_text(f"deb [arch={architecture}{signed}] {found.uris[0]} {SUITE} main\n")
        (work / "status").touch()
        for part in ("lists", "cache/archives"):
            (work / part / "partial").mkdir(parents=True)
        options = {
            "Dir::Etc::sourcelist": work / "list", "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null", "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::State::lists": work / "lists", "Dir::Cache": work / "cache",
            # what is installed has no say: a newer version of another origin would make the download fail
            "Dir::State::status": work / "status",
            "Acquire::Languages": "none", "Acquire::Retries": 1, "Acquire::http::Timeout": 20,
            **({"APT::Sandbox::User": "root"} if is_root() else {}),
        }
        self.options = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]

    def run(self, program, *args):
        return run(program, *self.options, *args, cwd=self.work, timeout=180).stdout

    def fetch(self, packages, folder):
        self.run("apt-get", "-qq", "update")
        for package in packages:
            found = fields(self.run("apt-cache", "show", "--no-all-versions", package.name))
            version = found.get("version", "")
            if reason := refusal(package, version, found.get("depends", ""), glibc()):
                say(f"  Debian's {package.name}: not used, {reason}")
                continue
            self.run("apt-get", "-qq", "download", f"{package.name}={version}")
            self.take(package, version, folder)

    def take(self, package, version, folder):
        """Moves a package's programs into the folder, if all of them run."""
        root = self.work / package.name
        archives = list(self.work.glob(f"{package.name}_*.deb"))
        if len(archives) != 1:
            raise Unavailable(f"{package.name} was not downloaded")
        run("dpkg-deb", "-x", archives[0], root)
        for program, question in package.programs.items():
            said = run(root / "usr" / "bin" / program, *question, check=False, timeout=60)
            if said.returncode != 0:
                say(f"  Debian's {package.name} {version}: not used, {program} does not run: "
                    f"{said.stderr.strip()[-300:]}")
                return
        for program in package.programs:
            (root / "usr" / "bin" / program).rename(folder / program)
        say(f"  {', '.join(package.programs)}: from Debian's {package.name} {version}")


def os_release():
    """The fields of /etc/os-release, with lower-case names."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    return {name.lower(): value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


def glibc():
    """Major and minor of the C library, (0, 0) if it is another one."""
    try:
        return numbers((os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc "))
    except (ValueError, OSError):
        return (0, 0)
