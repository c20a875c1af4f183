"""Simulated nodes by kwok, for scale: the scheduler and the Job controller see them as any other."""

import json

from . import process, tools
from .control import kubectl
from .host import HERE, Failure, say, step, wait

STAGES = HERE / "simulated" / "stages.yaml"


def add(cluster, count, stages=None, gpus=8):
    """Makes it COUNT simulated nodes, sim-0 and on."""
    tools.build([*tools.ASSETS, "kwok"])
    if not process.pid(cluster, "kwok"):
        process.start(cluster, "kwok", [
            tools.path("kwok"), f"--kubeconfig={cluster.pki}/devcluster.kubeconfig", f"--config={stages or STAGES}",
            "--manage-nodes-with-label-selector=type=simulated", "--node-lease-duration-seconds=40",
            "--cidr=10.0.0.0/16", "--node-ip=10.0.0.1"], netns=cluster.netns)
    size = {"cpu": "64", "memory": "512Gi", "pods": "500", "nvidia.com/gpu": str(gpus)}
    # Pods that have to run for real must not land here by chance.
    taints = [{"key": "simulated", "value": "true", "effect": "NoSchedule"}] if cluster.nodes else []
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": f"sim-{i}", "labels": {"type": "simulated", "kubernetes.io/hostname": f"sim-{i}"}},
        "spec": {"taints": taints}, "status": {"capacity": size, "allocatable": size}} for i in range(count)]
    with step(f"{count} simulated nodes"):
        # applied by the client: on the server's side an apply drops the status, which says how large a node is
        kubectl(cluster, "apply", "-f", "-",
                input=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
        wait(lambda: ready(cluster) >= count, 60, lambda: "the simulated nodes to be Ready; the end of kwok's log:\n"
             + process.last_lines(cluster, "kwok"))
    if taints:
        say("  they carry the taint simulated=true:NoSchedule, since this cluster has real nodes too")


def ready(cluster):
    if not process.pid(cluster, "kwok"):
        raise Failure(f"kwok has ended; the end of its log:\n{process.last_lines(cluster, 'kwok')}")
    nodes = json.loads(kubectl(cluster, "get", "nodes", "-l", "type=simulated", "-o", "json").stdout)["items"]
    return sum(any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
               and not any("not-ready" in taint["key"] for taint in node["spec"].get("taints", [])) for node in nodes)
