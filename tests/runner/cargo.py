"""What cargo has built, by the messages of `--message-format=json`, kept where a later build doesn't change it."""

import json
import os
import shutil
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from runner import buildfolder

# What cargo gives the profile dev, where Cargo.toml says nothing else.
DEV = {"codegen-units": 256, "debug-assertions": True, "incremental": True, "opt-level": 0, "overflow-checks": True,
       "strip": "none"}


@dataclass
class Built:
    tests: dict = field(default_factory=dict)  # name of the test program -> its file
    programs: dict = field(default_factory=dict)  # name of the binary -> its file


def profile(root):
    """Settings for `cargo build --release`: the project's own packages are compiled as the profiles dev and test say.

    The crates of others stay as in a release.
    """
    profiles = tomllib.loads(Path(root, "Cargo.toml").read_text()).get("profile", {})
    dev, test = (profiles.get(name, {}) for name in ("dev", "test"))
    of_packages = {**dev.pop("package", {}), **test.pop("package", {})}
    lines = []
    for name in buildfolder.own_packages(root):
        lines.append(f'[profile.release.package."{name}"]')
        settings = {**DEV, **dev, **test, **of_packages.get(name, {})}
        lines += [f"{setting} = {json.dumps(value)}" for setting, value in settings.items()]
    return "\n".join(lines) + "\n"


def read(messages, root):
    """The executables in cargo's messages. Unit tests are `lib` of the package at `root`, `lib-PACKAGE` of others.

    Those of a binary are `bin-NAME`, unless its manifest says that it has none.
    """
    built = Built()
    for line in messages.splitlines():
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        target, file = message["target"], Path(message["executable"])
        kinds = target["kind"]
        if not message["profile"]["test"]:
            if "bin" in kinds:
                built.programs[target["name"]] = file
        elif "test" in kinds:
            built.tests[target["name"]] = file
        elif "bin" in kinds:
            if target.get("test", True):  # where all are asked for, those that say they have no tests are built as well
                built.tests[f"bin-{target['name']}"] = file
        else:
            is_root = Path(message["manifest_path"]) == Path(root, "Cargo.toml")
            built.tests["lib" if is_root else f"lib-{target['name']}"] = file
    return built


def warnings(messages):
    """What the compiler says of the code in cargo's messages, as it is shown, once of what is compiled twice."""
    found = [json.loads(line) for line in messages.splitlines() if line.startswith("{")]
    return list(dict.fromkeys(message["message"]["rendered"] for message in found
                              if message["reason"] == "compiler-message" and message["message"]["spans"]))


def keep(built, folder):
    """Links the executables into a folder of this run, and returns where they are now.

    A linker that writes a program again makes a new file, so a link keeps the old one; where the file system has no
    links, or the build folder is on another one, they are copied.
    """
    shutil.rmtree(folder, ignore_errors=True)
    kept = Built()
    for kind in ("tests", "programs"):
        (folder / kind).mkdir(parents=True)
        for name, file in getattr(built, kind).items():
            place = folder / kind / name
            link_or_copy(file, place)
            getattr(kept, kind)[name] = place
    return kept


def link_or_copy(source, place):
    try:
        os.link(source, place)
    except OSError:
        shutil.copy2(source, place)


def own_programs(root):
    """The folder with the project's own programs: of this run, or else of the last `tests/run` of the checkout."""
    return Path(os.environ.get("TRAININGJOB_TEST_BINARIES") or Path(root, "target", "run", "programs"))


def environment(kept, root):
    """What a test program finds: the folder of the project's own programs, and what cargo gives it when it runs it.

    Cargo gives a variable for each of the programs instead, which a shell drops where the name has a dash in it.
    """
    folder = next((file.parent for file in kept.programs.values()), "")
    return {
        "TRAININGJOB_TEST_BINARIES": folder,
        "CARGO_MANIFEST_DIR": root,
        "INSTA_WORKSPACE_ROOT": root,  # else insta asks cargo, which may be busy
    }
