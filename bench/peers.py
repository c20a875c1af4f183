"""Other operators beside the same control plane: built from their modules, with the kinds and webhooks that these ship.

Webhooks are called at an address on loopback, with a certificate by the cluster's authority, since no Service leads
there.
"""

import base64
import contextlib
import json
import pathlib
import re
import socket
import subprocess

from plane import CLUSTER, Failure, wait

NAMESPACE = "peers"
# Where controller-runtime looks for certificates, below its folder for temporary files.
CERTIFICATES = "k8s-webhook-server/serving-certs"


def build(name):
    """Builds a peer, unless it is there, and returns its folder: the program, its CRDs, its webhooks."""
    tools = subprocess.run([CLUSTER, "tools", name], stdout=subprocess.PIPE, text=True, check=False)
    if tools.returncode:
        raise Failure(f"{name} could not be built; why stands above")
    return pathlib.Path(tools.stdout.strip())


def prepare(plane, process, env):
    """Makes what a process needs before it starts, and returns its environment.

    Its service account may do everything, as API priority and fairness treats it as what it is: one account.
    """
    folder = build(process["program"])
    crds = [file for file in sorted(folder.glob("*.yaml")) if file.name != "manifests.yaml"]
    plane.kubectl("apply", "--server-side", *(f"--filename={crd}" for crd in crds))
    # `--for=condition` fails where there are no conditions at all yet
    for wanted in ("jsonpath={.status.conditions}", "condition=Established"):
        plane.kubectl("wait", f"--for={wanted}", "--timeout=60s", *(f"--filename={crd}" for crd in crds))
    account = process["account"].split("/")[1]
    rights = "rbac.authorization.k8s.io"
    plane.apply([
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": NAMESPACE}},
        {"apiVersion": f"{rights}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": account},
         "roleRef": {"apiGroup": rights, "kind": "ClusterRole", "name": "cluster-admin"},
         "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]},
        *process.get("objects", []),
    ])
    temporary = plane.work / account
    certify(plane, temporary / CERTIFICATES)
    for place in process.get("certificates_also_in", []):
        plane.kept.enter_context(there(pathlib.Path(place), temporary / CERTIFICATES))
    config = plane.work / f"{account}.json"
    config.write_text(json.dumps(process.get("config", {})).replace('"$WEBHOOK_PORT"', env["WEBHOOK_PORT"]))
    return {**env, "PROGRAM": str(folder / process["program"]), "CONFIG": str(config), "TMPDIR": str(temporary)}


def certify(plane, folder):
    """A certificate for loopback, by the cluster's authority."""
    folder.mkdir(parents=True)
    pki, key, names = plane.dir / "pki", folder / "tls.key", folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
            "-out", folder / "tls.csr", "-subj", "/CN=webhooks")
    openssl("x509", "-req", "-in", folder / "tls.csr", "-CA", pki / "ca.crt", "-CAkey", pki / "ca.key",
            "-CAserial", folder / "serial", "-CAcreateserial", "-days", "2", "-extfile", names,
            "-out", folder / "tls.crt")


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@contextlib.contextmanager
def there(place, source):
    """Certificates where a program looks for them, whatever its flags say. Those of others stay there."""
    missing = [name for name in ("tls.crt", "tls.key") if not (place / name).exists()]
    place.mkdir(parents=True, exist_ok=True)
    for name in missing:
        (place / name).write_bytes((source / name).read_bytes())
    try:
        yield
    finally:
        for name in missing:
            (place / name).unlink(missing_ok=True)


def register(plane, process, port):
    """Has the API server call the webhooks, once the process listens."""
    def listens():
        plane.check()
        try:
            socket.create_connection(("127.0.0.1", int(port)), 1).close()
        except OSError:
            return False
        return True

    wait(listens, 120, f"{process['name']} to listen on port {port}")
    shipped = plane.kubectl("create", "--dry-run=client", "--output=json",
                            f"--filename={build(process['program']) / 'manifests.yaml'}")
    authority = base64.b64encode((plane.dir / "pki/ca.crt").read_bytes()).decode()
    # one document after the other
    for configuration in map(json.loads, re.split(r"(?<=^\})\n(?=\{)", shipped, flags=re.M)):
        # not the name that its own certificates' keeper looks for
        configuration["metadata"]["name"] = f"bench-{process['name']}-{configuration['metadata']['name']}"
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
            # as its kustomization has it
            if selector := process.get("selectors", {}).get(hook["name"]):
                hook["objectSelector"] = selector
        plane.apply([configuration])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])

