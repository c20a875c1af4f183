"""The network namespace of a cluster with real nodes, and the name server and Service proxy in it.

In a namespace two clusters don't meet: kube-proxy's rules are each one's own, and all of it goes when the namespace
goes.
A cable leads from the host to the namespace, so the host reaches API server, pods and Services. Nothing leads further.
"""

from . import pki, process, tools
from .host import Failure, run


def make(cluster):
    made = run("ip", "netns", "add", cluster.netns, check=False)
    if made.returncode != 0:
        raise Failure(f"this machine lets no network namespace be made ({made.stderr.strip()}). In a container, "
                      "it has to be a privileged one; or use --control-only, which needs none.")
    inside = ("nsenter", f"--net=/run/netns/{cluster.netns}")
    run("ip", "link", "add", cluster.link, "type", "veth", "peer", "name", "host0", "netns", cluster.netns)
    run("ip", "addr", "add", f"{cluster.host_ip}/30", "dev", cluster.link)
    run("ip", "link", "set", cluster.link, "up")
    run(*inside, "ip", "link", "set", "lo", "up")
    run(*inside, "ip", "addr", "add", f"{cluster.ip}/30", "dev", "host0")
    run(*inside, "ip", "link", "set", "host0", "up")
    # kube-proxy acts on what is routed, so Services need a route inside too: pods ask their bridge, programs here this
    run(*inside, "ip", "route", "add", "default", "via", cluster.host_ip)
    for network in (f"{cluster.pod_net}.0.0/16", cluster.service_cidr):
        run("ip", "route", "add", network, "via", cluster.ip, "dev", cluster.link)
    run(*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1")


def start_services(cluster):
    """CoreDNS and kube-proxy as processes: the cluster has no registry to pull them from."""
    pki.make_kubeconfig(cluster, "coredns", "/O=system:masters/CN=coredns")
    pki.make_kubeconfig(cluster, "kube-proxy", "/CN=system:kube-proxy")
    corefile = cluster.dir / "Corefile"
    # Names that don't exist yet are remembered for a second alone: workers ask for each other before they are there.
    # Any other name is answered at once with "no such name": a resolver would take a failure for worth waiting.
    corefile.write_text(f"""cluster.local:53 in-addr.arpa:53 {{
  bind {cluster.ip}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {cluster.pki}/coredns.kubeconfig
    pods insecure
    ttl 5
  }}
  cache 5 cluster.local {{
    denial 1000 1
  }}
}}
.:53 {{
  bind {cluster.ip}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
""")
    process.start(cluster, "coredns", [tools.path("coredns"), "-conf", corefile], netns=cluster.netns)
    process.start(cluster, "kube-proxy", [
        tools.path("kube-proxy"), f"--kubeconfig={cluster.pki}/kube-proxy.kubeconfig",
        f"--cluster-cidr={cluster.pod_net}.0.0/16", "--hostname-override=node0", "--conntrack-max-per-core=0",
        "--metrics-bind-address=127.0.0.1:10249",
    ], netns=cluster.netns)


def remove(cluster):
    run("ip", "link", "del", cluster.link, check=False)
    run("ip", "netns", "del", cluster.netns, check=False)
