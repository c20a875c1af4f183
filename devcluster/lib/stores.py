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
import subprocess
import tempfile
from pathlib import Path

from . import containerd, images, imports, settings, tools
from .host import cache, is_root, run, step, wait

# the parts of containerd's root folder that hold images
PARTS = ("io.containerd.content.v1.content", "io.containerd.metadata.v1.bolt", "io.containerd.snapshotter.v1.")
# A program that ends with the one that starts it, as do its mounts.
BOUND = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount")


def give(cluster, home):
    """Fills a new node's store with pause and those of the cluster's images that are the cache's own."""
    kept = [path for path in map(Path, cluster.images) if path.parent == cache() / "images" and path.exists()]
    if not kept or not takes_links(home):
        return  # the images are imported as any other
    archives = [images.pause(), *sorted(set(kept))]
    store = make(archives, cluster.snapshotter)
    root = home / "containerd" / "root"
    run("cp", "-al", store, root)
    for database in root.glob("*/*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.rename(database)
    for archive in archives:
        imports.mark(home, archive)


def takes_links(folder):
    """Whether a folder is on the cache's file system."""
    return os.stat(folder).st_dev == os.stat(cache()).st_dev


def prepare(archives):
    """Unpacks these images for the nodes of new clusters, if they will take links."""
    clusters = settings.base()
    if is_root():
        clusters.mkdir(parents=True, exist_ok=True)
        if takes_links(clusters):
            make(archives, containerd.snapshotter(clusters))


def make(archives, snapshotter):
    """The store with these images, which is made if it is not there."""
    key = json.dumps([[archive.name for archive in archives], tools.folder().name, snapshotter])
    folder = cache() / "stores"
    folder.mkdir(exist_ok=True)
    store = folder / hashlib.sha256(key.encode()).hexdigest()[:16]
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not store.exists():
            with step(f"unpacking {', '.join(archive.name for archive in archives)} into the cache"):
                new = unpack(archives, snapshotter, folder / "unpacking")
            for old in sorted(folder.glob("?" * 16), key=lambda path: path.stat().st_mtime)[:-1]:
                shutil.rmtree(old, ignore_errors=True)
            new.rename(store)
    return store


def unpack(archives, snapshotter, root):
    """Fills a folder by a containerd of its own."""
    shutil.rmtree(root, ignore_errors=True)  # from a crash
    tools.build(tools.RUNTIME)
    with tempfile.TemporaryDirectory(prefix="trainingjob-") as state:  # a short path, for a socket
        home = Path(state)
        command, env = containerd.configure(home, root, snapshotter)
        with open(home / "log", "wb") as log:
            program = subprocess.Popen([*BOUND, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                                       env={**os.environ, **env})
        try:
            containerd.wait_serving(home, lambda: program.poll() is None, home / "log")
            for archive in archives:  # all of them: those of an earlier store went with it
                containerd.load(home, snapshotter, archive)
            program.terminate()  # gently, for its databases
            wait(lambda: program.poll() is not None, 20, "the unpacking containerd to end")
        finally:
            program.kill()
            program.wait()
    for part in root.iterdir():
        if not part.name.startswith(PARTS):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    return root
