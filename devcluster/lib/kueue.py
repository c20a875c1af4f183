"""Kueue, the queue manager for Jobs: its own program with its own webhooks, as a process beside the control plane.

Objects and webhooks are those of its module, with two changes: webhooks are called at an address on loopback, since no
Service leads there, and Jobs are the only kind that it is configured to manage.
"""

import json

from . import pki, process, tools
from .control import client, create, read
from .host import Failure, run, say, step, wait

NAMESPACE = "kueue-system"
# What Kueue calls its parts, and what its certificates therefore have to say.
SERVICE = f"kueue-webhook-service.{NAMESPACE}.svc"
SECRET = "kueue-webhook-server-cert"
AUTHORITY = "kueue-ca"
KINDS = {"kueue.x-k8s.io", "batch"}


def start(cluster, port=None):
    """Starts Kueue, unless it runs, and waits until it answers the API server."""
    if process.pid(cluster, "kueue"):
        say(f"Kueue already runs in cluster {cluster.name}")
        return
    url = f"https://127.0.0.1:{port or cluster.kueue_port}"
    with step(f"Kueue at {url}"):
        home = cluster.dir / "kueue"
        home.mkdir(exist_ok=True)
        make_certificates(home)
        pki.make_kubeconfig(cluster, "kueue", "/O=system:masters/CN=kueue")
        create(cluster, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        create(cluster, [secret(home), *kinds(cluster, url), *webhooks(cluster, url)])
        config = home / "config.json"
        config.write_text(json.dumps(configuration(home, port or cluster.kueue_port), indent=1))
        process.start(cluster, "kueue", [tools.path("kueue"), f"--config={config}"], netns=cluster.netns,
                      env={"KUBECONFIG": str(cluster.pki / "kueue.kubeconfig")})
        api = client(cluster, timeout=30)  # a webhook has ten seconds to answer
        wait(lambda: answers(cluster, api), 120, lambda: "Kueue to answer the API server; the end of its log:\n"
             + process.last_lines(cluster, "kueue"))


def make_certificates(home):
    """Kueue would make its own, for a Service and into a Secret that a kubelet mounts. Here is neither: they are given.

    It uses what it finds if its authority has a name and an RSA key that it can read, as below.
    """
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", home / "ca.pem", "-out", home / "ca.crt",
        "-subj", f"/O=kueue/CN={AUTHORITY}", "-days", pki.DAYS, "-addext", f"subjectAltName=DNS:{AUTHORITY}",
        "-addext", "keyUsage=critical,keyCertSign,digitalSignature,keyEncipherment")
    run("openssl", "rsa", "-traditional", "-in", home / "ca.pem", "-out", home / "ca.key")
    pki.sign(home, "tls", f"/CN={SERVICE}", [f"DNS:{SERVICE}", "IP:127.0.0.1"])


def secret(home):
    data = {file: (home / file).read_text() for file in ("ca.crt", "ca.key", "tls.crt", "tls.key")}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE},
            "stringData": data}


def kinds(cluster, url):
    """The CRDs; those with several versions are converted by Kueue."""
    crds = read(cluster, *sorted(tools.folder("kueue").glob("kueue.x-k8s.io_*.yaml")))
    for crd in crds:
        if len(crd["spec"]["versions"]) > 1:
            crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"], "clientConfig": {"url": f"{url}/convert"}}}
    return crds


def webhooks(cluster, url):
    configurations = read(cluster, tools.folder("kueue") / "manifests.yaml")
    for configuration in configurations:
        configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
        configuration["webhooks"] = [hook for hook in configuration["webhooks"] if is_for(hook, KINDS)]
        for hook in configuration["webhooks"]:
            hook["clientConfig"] = {"url": url + hook["clientConfig"]["service"]["path"]}
    return configurations


def is_for(hook, groups):
    return all(set(rule["apiGroups"]) <= groups for rule in hook["rules"])


def configuration(home, port):
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": "0"}, "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(home)},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},  # it listens on a port that can't be chosen
    }


def answers(cluster, api):
    """Whether an object of Kueue's passes its webhooks."""
    if not process.pid(cluster, "kueue"):
        raise Failure(f"Kueue has ended; the end of its log:\n{process.last_lines(cluster, 'kueue')}")
    probe = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    status, _ = api.ask("POST", "/apis/kueue.x-k8s.io/v1beta2/resourceflavors?dryRun=All", probe)
    return status == 201
