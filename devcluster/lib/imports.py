"""Which docker-archives a node has, and importing those that it lacks."""

import hashlib
from pathlib import Path

from . import containerd, process
from .host import Failure, say, step


def load(cluster, home, archive):
    """Imports an archive into one node, unless that very archive is in it."""
    archive = Path(archive)
    if not archive.exists():
        raise Failure(f"cannot import {archive}: there is no such file")
    if is_marked(home, archive):
        return False
    containerd.load(home, cluster.snapshotter, archive)
    mark(home, archive)
    return True


def mark(home, archive):
    """Notes that a node has this archive."""
    path, state = note(home, archive)
    path.parent.mkdir(exist_ok=True)
    path.write_text(state)


def is_marked(home, archive):
    path, state = note(home, archive)
    return path.exists() and path.read_text() == state


def note(home, archive):
    status = archive.stat()
    name = hashlib.sha256(str(archive).encode()).hexdigest()[:16]
    return home / "imported" / name, f"{archive}\n{status.st_size} {status.st_mtime_ns}"


def everywhere(cluster, archive):
    """Imports an archive into every living node, and into those that come later; whether any lacked it."""
    archive = Path(archive).resolve()
    new = False
    for index in cluster.nodes:
        if process.pid(cluster, f"node{index}-containerd"):
            home = cluster.dir / f"node{index}"
            if archive.exists() and is_marked(home, archive):
                say(f"  image {archive.name} is on node{index} already")
                continue
            with step(f"image {archive.name} into node{index}"):
                new = load(cluster, home, archive) or new
    cluster.images.pop(str(archive), None)
    cluster.images[str(archive)] = True  # the last one of a name counts
    cluster.save()
    return new
