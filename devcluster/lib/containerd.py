"""A containerd of the cluster's own, and asking it."""

from . import images, process, tools
from .host import Failure, run, wait


def socket(home):
    return home / "containerd" / "sock"


def start(cluster, home, record, cgroup=None):
    folder = home / "containerd"
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc dies with "can't get final child's PID from pipe: EOF"
    # netns_mounts_under_state_dir: so that all mounts lie below the state folder and go with it
    (folder / "config.toml").write_text(f"""version = 3
root = "{folder}/root"
state = "{folder}/run"
[grpc]
  address = "{socket(home)}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{cluster.snapshotter}"
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
    process.start(cluster, record, [tools.path("containerd"), "-c", folder / "config.toml"],
                  netns=cluster.netns, cgroup=cgroup,
                  env={"PATH": f"{shim}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})

    def serving():
        if not process.pid(cluster, record):
            raise Failure(f"containerd has ended; the end of its log:\n{process.last_lines(cluster, record)}")
        return socket(home).exists() and ctr(home, "version", check=False).returncode == 0

    wait(serving, 30, "containerd to serve")


def ctr(home, *args, **options):
    return run(tools.path("ctr"), "-a", socket(home), "-n", "k8s.io", *args, **options)
