"""Simulated nodes by kwok, for scale: the scheduler and the Job controller see them as any other."""

from . import process, tools
from .control import client
from .host import HERE, Failure, say, step, wait
from .node import is_ready

STAGES = HERE / "simulated" / "stages.yaml"


def add(cluster, count, stages=None, gpus=8):
    """Makes it COUNT simulated nodes, sim-0 and on."""
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
    api = client(cluster)
    with step(f"{count} simulated nodes"):
        for node in nodes:
            api.call("POST", "/api/v1/nodes", node)  # one that is there already stays as it is
        # Lists of many nodes are long: the more there are, the less often they are read.
        wait(lambda: ready(cluster, api) >= count, 60,
             lambda: "the simulated nodes to be Ready; the end of kwok's log:\n" + process.last_lines(cluster, "kwok"),
             every=max(0.1, count / 1000))
    if taints:
        say("  they carry the taint simulated=true:NoSchedule, since this cluster has real nodes too")


def ready(cluster, api):
    if not process.pid(cluster, "kwok"):
        raise Failure(f"kwok has ended; the end of its log:\n{process.last_lines(cluster, 'kwok')}")
    nodes = api.get("/api/v1/nodes?labelSelector=type%3Dsimulated")["items"]
    return sum(is_ready(node) and not any("not-ready" in taint["key"] for taint in node["spec"].get("taints", []))
               for node in nodes)
