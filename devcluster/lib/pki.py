"""Certificates and kubeconfigs, by openssl with elliptic keys (RSA would take seconds)."""

import base64
import json

from .host import run

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
DAYS = "365"


def make_authority(cluster):
    pki = cluster.pki
    run("openssl", "req", "-x509", *KEY, "-keyout", pki / "ca.key", "-out", pki / "ca.crt",
        "-subj", "/CN=devcluster-ca", "-days", DAYS, "-addext", "keyUsage=critical,keyCertSign,digitalSignature")
    run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", pki / "sa.key")
    run("openssl", "pkey", "-in", pki / "sa.key", "-pubout", "-out", pki / "sa.pub")


def make_certificate(cluster, name, subject, alternatives):
    return sign(cluster.pki, name, subject, alternatives)


def sign(folder, name, subject, alternatives):
    """A certificate by the authority of this folder, with a new key."""
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={','.join(alternatives)}\nextendedKeyUsage=serverAuth,clientAuth\n")
    run("openssl", "req", "-new", *KEY, "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr",
        "-subj", subject)
    run("openssl", "x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key",
        "-CAcreateserial", "-days", DAYS, "-out", folder / f"{name}.crt", "-extfile", extensions)
    return folder / f"{name}.crt", folder / f"{name}.key"


def make_kubeconfig(cluster, name, subject, path=None):
    """A kubeconfig that carries its certificates, so that it can be copied anywhere."""
    certificate, key = make_certificate(cluster, name, subject, [f"DNS:{name}"])

    def data(file):
        return base64.b64encode(file.read_bytes()).decode()

    context = f"trainingjob-{cluster.name}"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": context,
        "clusters": [{"name": context, "cluster": {
            "server": cluster.server, "certificate-authority-data": data(cluster.pki / "ca.crt")}}],
        "users": [{"name": name, "user": {
            "client-certificate-data": data(certificate), "client-key-data": data(key)}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": name}}],
    }
    path = path or cluster.pki / f"{name}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path
