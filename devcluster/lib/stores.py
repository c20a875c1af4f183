"""Unpacked images, kept once in the cache and given to each new node as hard links.

To import the demo's image takes ten seconds and 1.3 GB of disk for every node of every cluster, and to delete it takes
as long again; links take one second and nothing. containerd never writes to a file of its store once it is committed,
its databases excepted, which are copied.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

from . import containerd, images, imports, process, tools
from .host import cache, run, step, wait

# the parts of containerd's root folder that hold images
PARTS = ("io.containerd.content.v1.content", "io.containerd.metadata.v1.bolt", "io.containerd.snapshotter.v1.")


def give(cluster, home):
    """Fills a new node's store with pause and those of the cluster's images that are the cache's own."""
    kept = [path for path in map(Path, cluster.images) if path.parent == cache() / "images" and path.exists()]
    if not kept or os.stat(home).st_dev != os.stat(cache()).st_dev:
        return  # nothing to give, or no links between the two disks: the images are imported as any other
    archives = [images.pause(), *sorted(set(kept))]
    store = make(cluster, archives)
    root = home / "containerd" / "root"
    run("cp", "-al", store, root)
    for database in root.glob("*/*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.rename(database)
    for archive in archives:
        imports.mark(home, archive)


def make(cluster, archives):
    key = json.dumps([[archive.name for archive in archives], tools.folder().name, cluster.snapshotter])
    folder = cache() / "stores"
    folder.mkdir(exist_ok=True)
    store = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not store.exists():
            with step(f"unpacking {', '.join(archive.name for archive in archives)} into the cache"):
                new = unpack(cluster, archives)
            for old in sorted(folder.glob("?" * 16), key=lambda path: path.stat().st_mtime)[:-1]:
                shutil.rmtree(old, ignore_errors=True)
            new.rename(store)
    return store


def unpack(cluster, archives):
    """Runs a containerd of its own for the import; like any process and mount of the cluster it ends with it."""
    home = cluster.dir / "unpack"
    root = home / "containerd" / "root"
    root.parent.mkdir(parents=True, exist_ok=True)
    containerd.start(cluster, home, "unpack-containerd")
    for archive in archives:  # all of them: those of an earlier store went with it
        containerd.ctr(home, "images", "import", "--snapshotter", cluster.snapshotter, archive)
    pid = process.pid(cluster, "unpack-containerd")
    os.kill(pid, signal.SIGTERM)  # gently, for its databases
    wait(lambda: not process.wait_gone([pid], 0.1), 20, "the unpacking containerd to end")
    process.kill(cluster, "unpack-containerd")
    for part in root.iterdir():
        if not part.name.startswith(PARTS):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    return root
