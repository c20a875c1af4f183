"""What a cluster is called, where its state lies, and which addresses are its own."""

import contextlib
import fcntl
import json
import os
import re
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .host import ROOT, Failure, is_root, run, say

SLOTS = 60


@dataclass
class Cluster:
    """Fixed when the cluster is made, kept as cluster.json in its state folder.

    Slot S gives a cluster of its own: pods 10.(64+S).0.0/16 (node I has 10.(64+S).I.0/24), Services 10.(128+S).0.0/16.
    With real nodes everything runs in a network namespace; the host and it meet on a /30 at the end of the pod net.
    A control plane alone needs no root and listens on loopback.
    """

    name: str
    dir: Path
    slot: int
    real: bool  # real nodes, or a control plane alone
    pod_net: str  # the first two numbers
    service_cidr: str
    api_port: int
    etcd_port: int
    bridge: str = "cni"
    gpus: int = 8
    checkout: str = str(ROOT)
    owner_pid: int | None = None
    snapshotter: str = "overlayfs"
    nodes: list = field(default_factory=list)
    images: dict = field(default_factory=dict)  # archive path -> what it contains
    ready: bool = False

    @property
    def pki(self):
        return self.dir / "pki"

    @property
    def logs(self):
        return self.dir / "log"

    @property
    def pids(self):
        return self.dir / "pids"

    @property
    def kubeconfig(self):
        return self.dir / "kubeconfig"

    @property
    def audit_log(self):
        return self.logs / "audit.jsonl"

    @property
    def netns(self):
        return f"tj-{self.name}" if self.real else None

    @property
    def link(self):
        """The host's end of the cable into the namespace."""
        return f"tj{self.slot}"

    @property
    def host_ip(self):
        return f"{self.pod_net}.255.1" if self.real else "127.0.0.1"

    @property
    def ip(self):
        """Where API server and DNS listen."""
        return f"{self.pod_net}.255.2" if self.real else "127.0.0.1"

    @property
    def server(self):
        return f"https://{self.ip}:{self.api_port}"

    @property
    def etcd(self):
        return f"http://127.0.0.1:{self.etcd_port}"

    @property
    def kueue_port(self):
        """Where Kueue answers the API server, unless another port is set."""
        return 9443 if self.real else 16447 + 10 * self.slot

    @property
    def service_ip(self):
        """The `kubernetes` Service: the first address of the range."""
        return self.service_cidr.rsplit(".", 1)[0] + ".1"

    @property
    def cgroup(self):
        return f"trainingjob/{self.name}"

    def save(self):
        record = asdict(self) | {"dir": str(self.dir)}
        temporary = self.dir / ".cluster.json"
        temporary.write_text(json.dumps(record, indent=1))
        temporary.rename(self.dir / "cluster.json")


def base():
    """The folder with one state folder per cluster. Short, since the kubelet's sockets lie below it."""
    if os.environ.get("TRAININGJOB_CLUSTERS"):
        return Path(os.environ["TRAININGJOB_CLUSTERS"]).resolve()
    if is_root():
        return Path("/var/lib/trainingjob")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "trainingjob"


def state_dir(name, given=None):
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?", name):
        raise Failure(f"cluster name {name!r}: use at most 30 lower-case letters, digits and dashes")
    return Path(given).resolve() if given else base() / name


def load(directory):
    """The cluster of a state folder; None if there is none."""
    try:
        record = json.loads((Path(directory) / "cluster.json").read_text())
    except FileNotFoundError:
        return None
    return Cluster(**{**record, "dir": Path(record["dir"])})


def all_clusters():
    found = [load(path.parent) for path in sorted(base().glob("*/cluster.json"))]
    for path in sorted(slot_folder().glob("slot-*")):  # those whose state folder was chosen by hand
        with contextlib.suppress(OSError):
            found.append(load(path.read_text()))
    return list({cluster.dir: cluster for cluster in found if cluster}.values())


@contextlib.contextmanager
def locked(directory, what):
    """One command at a time works on a cluster."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(directory.parent / f".{directory.name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another command works on the cluster at {directory}: waiting for it ({what})")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(args):
    """A new cluster's settings, with a free slot taken by it and its state folder made."""
    directory = state_dir(args.name, args.state_dir)
    real = not args.control_only
    with slots_locked():
        slot = args.slot if args.slot is not None else free_slot(directory, real)
        if not 0 <= slot < SLOTS:
            raise Failure(f"--slot {slot}: slots are 0 to {SLOTS - 1}")
        if other := holder(slot, directory):
            raise Failure(f"--slot {slot} is taken by the cluster at {other}; leave the flag out to get a free one")
        cluster = Cluster(
            name=args.name, dir=directory, slot=slot, real=real, gpus=args.gpus, owner_pid=args.owner_pid,
            pod_net=args.pod_net or f"10.{64 + slot}",
            service_cidr=args.service_cidr or f"10.{128 + slot}.0.0/16",
            # in its namespace a cluster has the usual ports for itself
            api_port=args.api_port or (6443 if real else 16443 + 10 * slot),
            etcd_port=args.etcd_port or (2379 if real else 16444 + 10 * slot),
            bridge=args.bridge)
        for path in (cluster.pki, cluster.logs, cluster.pids):
            path.mkdir(parents=True, exist_ok=True)
        cluster.save()
        slot_file(slot).write_text(str(directory))
    return cluster


def release(cluster):
    with slots_locked(), contextlib.suppress(OSError):
        if slot_file(cluster.slot).read_text() == str(cluster.dir):
            slot_file(cluster.slot).unlink()


def slot_folder():
    return Path("/run/trainingjob") if is_root() else Path(f"/tmp/trainingjob-{os.getuid()}")


def slot_file(slot):
    return slot_folder() / f"slot-{slot}"


@contextlib.contextmanager
def slots_locked():
    slot_folder().mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(slot_folder() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_slot(directory, real):
    taken = run("ip", "-o", "addr").stdout + run("ip", "-o", "route").stdout if real else ""
    for slot in range(SLOTS):
        if holder(slot, directory):
            continue
        if real and re.search(rf"\b10\.({64 + slot}|{128 + slot})\.", taken):
            continue  # the host has a use for these addresses
        if not real and not all(port_free(16443 + 10 * slot + offset) for offset in range(5)):
            continue
        return slot
    raise Failure(f"no free slot for a cluster: {SLOTS} are in use; see `devcluster/cluster status --all`")


def holder(slot, directory):
    """The state folder of another cluster that has the slot; a file whose cluster is gone means nothing."""
    with contextlib.suppress(FileNotFoundError):
        other = slot_file(slot).read_text()
        if other != str(directory) and (Path(other) / "cluster.json").exists():
            return other
    return None


def port_free(port):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
