"""A containerd of the cluster's own, and asking it."""

import tempfile
from pathlib import Path

from . import images, process, tools
from .host import Failure, run, wait


def socket(home):
    return home / "containerd" / "sock"


def start(cluster, home, record, cgroup=None):
    command, env = configure(home, home / "containerd" / "root", cluster.snapshotter)
    process.start(cluster, record, command, netns=cluster.netns, cgroup=cgroup, env=env)
    wait_serving(home, lambda: process.pid(cluster, record), process.log(cluster, record))


def configure(home, root, snapshotter):
    """Writes the configuration of a containerd; returns the command, and what it needs of an environment."""
    folder = home / "containerd"
    folder.mkdir(parents=True, exist_ok=True)
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc dies with "can't get final child's PID from pipe: EOF"
    # netns_mounts_under_state_dir: so that all mounts lie below the state folder and go with it
    (folder / "config.toml").write_text(f"""version = 3
root = "{root}"
state = "{folder}/run"
[grpc]
  address = "{socket(home)}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
  use_local_image_pull = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{images.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{home}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    SystemdCgroup = false
""")
    shim = tools.path("containerd-shim-runc-v2").parent  # containerd finds it on PATH
    return ([tools.path("containerd"), "-c", folder / "config.toml"],
            {"PATH": f"{shim}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})


def wait_serving(home, lives, log):
    def serving():
        if not lives():
            raise Failure(f"containerd has ended; the end of its log:\n{process.end_of(log)}")
        return socket(home).exists() and ctr(home, "version", check=False).returncode == 0

    wait(serving, 30, "containerd to serve")


def ctr(home, *args, **options):
    return run(tools.path("ctr"), "-a", socket(home), "-n", "k8s.io", *args, **options)


def load(home, snapshotter, archive):
    """Imports a docker-archive."""
    ctr(home, "images", "import", "--snapshotter", snapshotter, archive)


def snapshotter(folder):
    """overlayfs, unless the folder lies on a file system that can't carry it (that of a container, say)."""
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=folder, ignore_cleanup_errors=True) as probe:
        for part in ("lower", "upper", "work", "merged"):
            Path(probe, part).mkdir()
        options = f"lowerdir={probe}/lower,upperdir={probe}/upper,workdir={probe}/work"
        merged = Path(probe, "merged")
        if run("mount", "-t", "overlay", "overlay", "-o", options, merged, check=False).returncode != 0:
            return "native"
        run("umount", merged)
    return "overlayfs"
