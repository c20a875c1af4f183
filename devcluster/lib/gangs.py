"""Schedulers of gangs beside the cluster's own: Volcano's and the coscheduling plugin's, each as a process.

Their kinds are those of their modules. Their controllers don't run: for a gang whose PodGroup is there the scheduler
does without, but for one thing that Volcano's queues need.
"""

import json

from . import pki, process, tools
from .control import create, kubectl, read
from .host import Failure, say, step, wait

# What its chart sets.
VOLCANO = {
    "actions": "enqueue, allocate, backfill",
    "tiers": [
        {"plugins": [{"name": "priority"}, {"name": "gang", "enablePreemptable": False}, {"name": "conformance"}]},
        {"plugins": [{"name": "overcommit"}, {"name": "drf", "enablePreemptable": False}, {"name": "predicates"},
                     {"name": "proportion"}, {"name": "nodeorder"}, {"name": "binpack"}]},
    ],
}


def start(cluster, name):
    """Starts a scheduler, unless it runs, and waits until it works."""
    if process.pid(cluster, name):
        say(f"{name} already runs in cluster {cluster.name}")
        return
    with step(f"the scheduler of {name}"):
        kinds = read(cluster, *sorted(tools.folder(name).glob("*.yaml")))
        create(cluster, kinds)
        # `--for=condition` fails where there are no conditions at all yet
        for wanted in ("jsonpath={.status.conditions}", "condition=Established"):
            kubectl(cluster, "wait", f"--for={wanted}", "--timeout=60s",
                    *(f"crd/{kind['metadata']['name']}" for kind in kinds))
        pki.make_kubeconfig(cluster, name, f"/O=system:masters/CN={name}")
        SCHEDULERS[name](cluster)


def start_volcano(cluster):
    config = cluster.dir / "volcano.json"
    config.write_text(json.dumps(VOLCANO, indent=1))
    run(cluster, "volcano", f"--kubeconfig={cluster.pki}/volcano.kubeconfig", f"--scheduler-conf={config}",
        "--leader-elect=false", "--cache-dumper=false")
    # It makes these queues, and its controller manager would open them.
    opened = json.dumps({"status": {"state": "Open"}})
    for queue in ("root", "default"):
        wait(lambda queue=queue: kubectl(cluster, "patch", f"queues.scheduling.volcano.sh/{queue}", "--type=merge",
                                         "--subresource=status", "-p", opened, check=False).returncode == 0
             or ended(cluster, "volcano"), 60, lambda: "Volcano to make its queues; the end of its log:\n"
             + process.last_lines(cluster, "volcano"))


def start_coscheduling(cluster):
    config = cluster.dir / "coscheduling.json"
    config.write_text(json.dumps({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": f"{cluster.pki}/coscheduling.kubeconfig"},
        "profiles": [{
            "schedulerName": "scheduler-plugins-scheduler",
            "plugins": {
                "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
            },
        }],
    }, indent=1))
    run(cluster, "coscheduling", f"--config={config}", "--secure-port=0")


SCHEDULERS = {"volcano": start_volcano, "coscheduling": start_coscheduling}


def run(cluster, name, *flags):
    process.start(cluster, name, [tools.path(name), *flags], netns=cluster.netns)


def ended(cluster, name):
    if not process.pid(cluster, name):
        raise Failure(f"{name} has ended; the end of its log:\n{process.last_lines(cluster, name)}")
    return False
