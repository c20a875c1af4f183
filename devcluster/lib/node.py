"""A real node: containerd and kubelet. Several run side by side on this machine, to lose one of."""

import json
import os
import re
import signal
from pathlib import Path

from . import cgroups, containerd, images, imports, pki, process, stores, tools
from .api import JSON_PATCH
from .control import client
from .host import Failure, run, say, step, wait

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def taint(text):
    """A taint from `key=value:Effect` or `key:Effect`."""
    found = re.fullmatch(rf"([^=:]+)(?:=([^:]*))?:({'|'.join(EFFECTS)})", text)
    if not found:
        raise ValueError(f"{text!r} is not of the form key=value:Effect with one of {', '.join(EFFECTS)}")
    key, value, effect = found.groups()
    return {"key": key, "value": value or "", "effect": effect}


def start(cluster, index, taints=()):
    """Adds node INDEX and waits for it to be Ready; it registers with `taints`, so no pod can come before them.

    Each has its own containerd, bridge, ports, cgroup and log folder: two kubelets that shared the latter two would
    end each other's pods and delete each other's logs.
    """
    if not 0 <= index < 200:
        raise Failure(f"node {index}: the number of a node is 0 to 199")
    name = f"node{index}"
    if index in cluster.nodes:
        raise Failure(f"{name} is already there (a lost node can't come back: its number is used up)")
    cluster.nodes.append(index)
    cluster.save()
    with step(name):
        home = cluster.dir / name
        for part in ("cni", "containerd"):
            (home / part).mkdir(parents=True, exist_ok=True)
        make_bridge(cluster, index)
        runtime = cgroups.enter_runtime(f"{cluster.cgroup}/{name}")
        write_network_config(cluster, index)
        stores.give(cluster, home)
        containerd.start(cluster, home, f"{name}-containerd", cgroup=runtime)
        # Before there is a kubelet: a pod that came to the node first would fail for want of its image.
        imports.load(cluster, home, images.pause())
        for archive in cluster.images:
            # an older one of the same name may be gone from the cache
            if Path(archive).exists() and not imports.is_marked(home, Path(archive)):
                with step(f"image {Path(archive).name} into {name}"):
                    imports.load(cluster, home, archive)
        start_kubelet(cluster, index, runtime, taints)
        api = client(cluster)
        wait(lambda: ready(cluster, api, name), 60, lambda: f"{name} to be Ready; the end of its kubelet's log:\n"
             + process.last_lines(cluster, f"{name}-kubelet"))
        offer_gpus(cluster, api, name)


def ready(cluster, api, name):
    for service in ("containerd", "kubelet"):
        if not process.pid(cluster, f"{name}-{service}"):
            raise Failure(f"the {service} of {name} has ended; the end of {cluster.logs}/{name}-{service}.log:\n"
                          + process.last_lines(cluster, f"{name}-{service}"))
    return api.says(f"/api/v1/nodes/{name}", is_ready)


def is_ready(node):
    """Whether a Node's condition says so."""
    return any(condition["type"] == "Ready" and condition["status"] == "True"
               for condition in node["status"].get("conditions", []))


def address(cluster, index):
    return f"{cluster.pod_net}.{index}.1"


def make_bridge(cluster, index):
    bridge = f"{cluster.bridge}{index}"
    inside = ("nsenter", f"--net=/run/netns/{cluster.netns}", "ip")
    # Without an address of its own it takes the lowest of the pods' that are there, another one as they come and go,
    # and for a minute pods that know the last one reach neither DNS nor the API server.
    octets = [int(part) for part in address(cluster, index).split(".")]
    hardware = ":".join(f"{octet:02x}" for octet in [0x0A, 0x58, *octets])
    run(*inside, "link", "add", bridge, "address", hardware, "type", "bridge")
    run(*inside, "addr", "add", f"{address(cluster, index)}/24", "dev", bridge)
    run(*inside, "link", "set", bridge, "up")


def write_network_config(cluster, index):
    bridge = f"{cluster.bridge}{index}"
    home = cluster.dir / f"node{index}"
    # no masquerading: the host has a route to the pods, and nothing beyond it is reached
    (home / "cni" / "10-bridge.conflist").write_text(json.dumps({
        "cniVersion": "1.0.0", "name": f"pods{index}", "plugins": [
            {"type": "bridge", "bridge": bridge, "isGateway": True, "hairpinMode": True, "ipam": {
                "type": "host-local", "dataDir": str(home / "ipam"), "routes": [{"dst": "0.0.0.0/0"}],
                "ranges": [[{"subnet": f"{cluster.pod_net}.{index}.0/24"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": True}}]}, indent=1))


def start_kubelet(cluster, index, runtime, taints=()):
    name = f"node{index}"
    home = cluster.dir / name
    config = pki.make_kubeconfig(cluster, name, f"/O=system:nodes/CN=system:node:{name}")
    certificate, key = pki.make_certificate(
        cluster, f"{name}-server", f"/CN={name}", [f"DNS:{name}", f"IP:{address(cluster, index)}", "IP:127.0.0.1"])
    (home / "kubelet.json").write_text(json.dumps({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": address(cluster, index), "port": 10250 + index, "healthzPort": 0,
        "authentication": {"x509": {"clientCAFile": str(cluster.pki / "ca.crt")}, "webhook": {"enabled": False},
                           "anonymous": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{cluster.cgroup}/{name}",
        "failCgroupV1": False,  # a kubelet of 1.35 and later refuses hosts with version 1 otherwise
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{containerd.socket(home)}",
        "clusterDNS": [cluster.ip], "clusterDomain": "cluster.local", "resolvConf": resolv_conf(cluster),
        "tlsCertFile": str(certificate), "tlsPrivateKeyFile": str(key),
        "containerLogMaxSize": "200Mi",  # `kubectl logs` shows the newest file only: no cause is lost here
        "maxPods": 200, "podLogsDir": str(home / "logs"), "serializeImagePulls": False,
        "localStorageCapacityIsolation": False,  # on disks without a partition cAdvisor finds no file system
        "evictionHard": {"memory.available": "50Mi"},  # a developer's disk is often nearly full; pods need little of it
        "registerWithTaints": list(taints),
        "imageGCHighThresholdPercent": 100,  # there is no registry to fetch a collected image from again
    }, indent=1))
    process.start(cluster, f"{name}-kubelet", [
        tools.path("kubelet"), f"--config={home}/kubelet.json", f"--kubeconfig={config}", f"--hostname-override={name}",
        f"--node-ip={address(cluster, index)}", f"--root-dir={home}/kubelet", "--v=2",
    ], netns=cluster.netns, cgroup=runtime)


def resolv_conf(cluster):
    """Pods must not inherit the host's name servers or search domains: neither can be reached or means anything."""
    path = cluster.dir / "resolv.conf"
    path.write_text(f"nameserver {cluster.ip}\n")
    return str(path)


def offer_gpus(cluster, api, name):
    """GPUs for the scheduler, without any: an extended resource. Allocatable too, else it comes ten seconds later."""
    patch = [{"op": "add", "path": f"/status/{part}/nvidia.com~1gpu", "value": str(cluster.gpus)}
             for part in ("capacity", "allocatable")]
    api.call("PATCH", f"/api/v1/nodes/{name}/status", patch, JSON_PATCH)


def lose(cluster, index):
    """The node dies as if its power went: no pod gets a signal, and nothing is cleaned up."""
    name = f"node{index}"
    if index not in cluster.nodes:
        raise Failure(f"{cluster.name} has no {name}")
    process.kill(cluster, f"{name}-kubelet", f"{name}-containerd")
    run("nsenter", f"--net=/run/netns/{cluster.netns}", "ip", "link", "set", f"{cluster.bridge}{index}", "down")
    left = cgroups.kill(f"{cluster.cgroup}/{name}")
    if left:
        raise Failure(f"processes of {name} don't end: {sorted(left)}")
    say(f"{name} is lost; the API server will call it NotReady in about 50 s")


def cut(cluster, index):
    """The node is unreachable while its programs run on: its kubelet is stopped, and its pods' network is down."""
    change_contact(cluster, index, signal.SIGSTOP, "down")


def mend(cluster, index):
    """The node that was cut off is back, with all that runs on it."""
    change_contact(cluster, index, signal.SIGCONT, "up")


def change_contact(cluster, index, kubelet, bridge):
    pid = process.pid(cluster, f"node{index}-kubelet")
    if index not in cluster.nodes or not pid:
        raise Failure(f"{cluster.name} has no node{index} that runs")
    os.kill(pid, kubelet)
    run("nsenter", f"--net=/run/netns/{cluster.netns}", "ip", "link", "set", f"{cluster.bridge}{index}", bridge)
