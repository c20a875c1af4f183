#!/usr/bin/env python3
"""An environment of Python with the packages of a list, made below the cache once for each list.

  tests/runner/venv.py NAME REQUIREMENTS    # prints its Python
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("TRAININGJOB_CACHE") or Path.home() / ".cache" / "trainingjob")


def python(name, requirements, cache=CACHE):
    """The Python of the environment, made now if it is not there."""
    requirements = Path(requirements)
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]
    folder = cache / f"{name}-{digest}"
    if not folder.exists():
        print(f"installing the packages of {requirements.name} into {folder} (once)", file=sys.stderr, flush=True)
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        subprocess.run([sys.executable, "-m", "venv", "--copies", part], check=True)
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "-r", requirements]
        subprocess.run([part / "bin" / "python3", *pip], stdin=subprocess.DEVNULL, check=True)
        try:
            part.rename(folder)
        except OSError:  # another one was faster
            shutil.rmtree(part)
    return folder / "bin" / "python3"


if __name__ == "__main__":
    print(python(*sys.argv[1:]))
