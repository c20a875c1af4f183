"""The control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and the claims' provisioner."""

import json
import sys

from . import pki, process, storage, tools
from .api import Api
from .host import HERE, Failure, run, step, wait

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "omitManagedFields": True,
    "rules": [{"level": "None", "users": ["system:apiserver"]}, {"level": "Metadata"}],
}


def start(cluster, args):
    make_credentials(cluster)
    with step("etcd and kube-apiserver"):
        start_etcd(cluster)
        start_apiserver(cluster, args)
        wait_ready(cluster)
    secrets = cluster.pki
    for name, extra in {
        "kube-controller-manager": [
            f"--service-account-private-key-file={secrets}/sa.key", f"--root-ca-file={secrets}/ca.crt",
            "--use-service-account-credentials=true", f"--kube-api-qps={args.kcm_qps}",
            f"--kube-api-burst={args.kcm_burst}", *grace(args), *args.kcm_arg],
        "kube-scheduler": [f"--kube-api-qps={args.scheduler_qps}", f"--kube-api-burst={args.scheduler_qps}"],
    }.items():
        # no port of their own: two clusters share the loopback
        process.start(cluster, name, [tools.path(name), f"--kubeconfig={secrets}/{name}.kubeconfig",
                                      "--leader-elect=false", "--secure-port=0", *gates(args), *extra],
                      netns=cluster.netns)
    start_provisioner(cluster)


def gates(args):
    return [f"--feature-gates={args.feature_gates}"] if args.feature_gates else []


def grace(args):
    return [f"--node-monitor-grace-period={args.node_monitor_grace_period}"] if args.node_monitor_grace_period else []


def wait_service_account(cluster):
    """The controller manager takes some seconds to begin; without this account no pod is admitted."""
    api, path = client(cluster), "/api/v1/namespaces/default/serviceaccounts/default"
    wait(lambda: api.says(path, lambda account: True), 60,
         lambda: "the controller manager to make the default service account:\n"
         + process.last_lines(cluster, "kube-controller-manager"))


def make_credentials(cluster):
    pki.make_authority(cluster)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
             "localhost"]
    addresses = {"127.0.0.1", cluster.ip, cluster.service_ip}
    pki.make_certificate(cluster, "apiserver", "/CN=kube-apiserver",
                         [f"DNS:{name}" for name in names] + [f"IP:{address}" for address in sorted(addresses)])
    pki.make_kubeconfig(cluster, "admin", "/O=system:masters/CN=admin", cluster.kubeconfig)
    pki.make_kubeconfig(cluster, "kube-controller-manager", "/CN=system:kube-controller-manager")
    pki.make_kubeconfig(cluster, "kube-scheduler", "/CN=system:kube-scheduler")
    # clients of the cluster's own, apart from `admin` so that the audit log tells people from machinery
    pki.make_kubeconfig(cluster, "devcluster", "/O=system:masters/CN=devcluster")


def start_etcd(cluster):
    peer = f"http://127.0.0.1:{cluster.etcd_port + 1}"
    process.start(cluster, "etcd", [
        tools.path("etcd"), "--data-dir", cluster.dir / "etcd", "--unsafe-no-fsync", "--log-level", "warn",
        "--quota-backend-bytes", 8 << 30,  # the most that etcd recommends; by default it is 2 GiB
        "--listen-client-urls", cluster.etcd, "--advertise-client-urls", cluster.etcd,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
    ], netns=cluster.netns)


def start_apiserver(cluster, args):
    secrets = cluster.pki
    command = [
        tools.path("kube-apiserver"), f"--etcd-servers={cluster.etcd}", f"--secure-port={cluster.api_port}",
        f"--bind-address={'0.0.0.0' if cluster.real else '127.0.0.1'}", f"--advertise-address={cluster.ip}",
        "--allow-privileged=true", "--authorization-mode=Node,RBAC",
        f"--tls-cert-file={secrets}/apiserver.crt", f"--tls-private-key-file={secrets}/apiserver.key",
        f"--client-ca-file={secrets}/ca.crt",
        f"--service-account-key-file={secrets}/sa.pub", f"--service-account-signing-key-file={secrets}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-cluster-ip-range={cluster.service_cidr}",
        f"--kubelet-client-certificate={secrets}/admin.crt", f"--kubelet-client-key={secrets}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
    ]
    if not cluster.real:
        command.append("--endpoint-reconciler-type=none")  # a Service can't lead to loopback
    if args.audit:
        policy = args.audit_policy or cluster.dir / "audit-policy.json"
        if not args.audit_policy:
            policy.write_text(json.dumps(AUDIT_POLICY, indent=1))
        command += [f"--audit-policy-file={policy}", f"--audit-log-path={cluster.audit_log}",
                    "--audit-log-maxsize=4000"]
    if args.runtime_config:
        command.append(f"--runtime-config={args.runtime_config}")
    process.start(cluster, "kube-apiserver", command + gates(args) + args.apiserver_arg, netns=cluster.netns)


def wait_ready(cluster):
    api = client(cluster)

    def ready():
        for name in ("etcd", "kube-apiserver"):
            if not process.pid(cluster, name):
                raise Failure(f"{name} has ended; the end of {cluster.logs}/{name}.log:\n"
                              + process.last_lines(cluster, name))
        return api.is_ready()

    wait(ready, 90, lambda: f"the API server to be ready; the end of {cluster.logs}/kube-apiserver.log:\n"
         + process.last_lines(cluster, "kube-apiserver"))


def start_provisioner(cluster):
    (cluster.dir / "volumes").mkdir(exist_ok=True)
    client(cluster).call("POST", storage.CLASSES, storage.STANDARD)
    process.start(cluster, "provisioner", [sys.executable, HERE / "cluster", "_provision", "--name", cluster.name,
                                           "--state-dir", cluster.dir])


def kubectl(cluster, *args, **options):
    return run(tools.path("kubectl"), f"--kubeconfig={cluster.pki}/devcluster.kubeconfig", *args, **options)


def read(cluster, *files):
    """The objects of YAML files."""
    flags = [f"--filename={file}" for file in files]
    text = kubectl(cluster, "create", "--dry-run=client", "--validate=false", "-o", "json", *flags).stdout
    decoder, objects, at = json.JSONDecoder(), [], 0
    while at < len(text):
        found, at = decoder.raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        objects += found["items"] if found["kind"] == "List" else [found]
    return objects


def create(cluster, objects):
    """Makes what is not there yet; not by `apply`, whose annotation such large CRDs don't fit into."""
    everything = {"apiVersion": "v1", "kind": "List", "items": objects}
    made = kubectl(cluster, "create", "-f", "-", input=json.dumps(everything), check=False)
    if wrong := [line for line in made.stderr.splitlines() if "(AlreadyExists)" not in line]:
        raise Failure("these objects could not be made: " + "\n".join(wrong))


def client(cluster, timeout=10):
    """A client with the rights of the cluster's own machinery."""
    return Api(json.loads((cluster.pki / "devcluster.kubeconfig").read_text()), timeout)


def reachable(cluster):
    try:
        return client(cluster, timeout=3).is_ready()
    except FileNotFoundError:  # it was left before it had credentials
        return False


def stop_apiserver(cluster):
    """From now on no client reaches the API server."""
    process.stop(cluster, "kube-apiserver")


def start_apiserver_again(cluster):
    """Starts it again, and the programs that ended without it. Returns when it is ready."""
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        process.start_again(cluster, name)
    api = client(cluster, timeout=3)
    wait(api.is_ready, 90, lambda: "the API server to answer again")
