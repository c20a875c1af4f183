"""The Kubernetes binaries, built once from the pinned Go modules in devcluster/tools into the cache."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from .host import HERE, Failure, cache, run, say

MODULES = HERE / "tools"
KUBERNETES = "k8s.io/kubernetes"
# binary -> (module folder, package, build tags). In this order: the first fills Go's build cache for the next five.
BINARIES = {
    "kube-apiserver": ("kubernetes", f"{KUBERNETES}/cmd/kube-apiserver", ""),
    "kube-controller-manager": ("kubernetes", f"{KUBERNETES}/cmd/kube-controller-manager", ""),
    "kube-scheduler": ("kubernetes", f"{KUBERNETES}/cmd/kube-scheduler", ""),
    "kubelet": ("kubernetes", f"{KUBERNETES}/cmd/kubelet", ""),
    "kubectl": ("kubernetes", f"{KUBERNETES}/cmd/kubectl", ""),
    "kube-proxy": ("kubernetes", f"{KUBERNETES}/cmd/kube-proxy", ""),
    "etcd": ("etcd", ".", ""),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok", ""),
    "containerd": ("containerd", "github.com/containerd/containerd/v2/cmd/containerd", "no_btrfs no_zfs no_devmapper"),
    "containerd-shim-runc-v2": ("containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                                "no_btrfs no_zfs no_devmapper"),
    "ctr": ("containerd", "github.com/containerd/containerd/v2/cmd/ctr", "no_btrfs no_zfs no_devmapper"),
    "coredns": ("coredns", "github.com/coredns/coredns", ""),
}
# Programs that a cluster can do without. Each is kept apart, so that none is built anew for another's sake.
EXTRAS = {
    "kueue": ("kueue", "sigs.k8s.io/kueue/cmd/kueue", ""),
    # schedulers of gangs: of one module here, for they share most of their packages
    "volcano": ("gangs", "volcano.sh/volcano/cmd/scheduler", ""),
    "coscheduling": ("gangs", "sigs.k8s.io/scheduler-plugins/cmd/scheduler", ""),
    # other operators, for `make bench PEERS=1`
    "jobset": ("jobset", "sigs.k8s.io/jobset", ""),
    "trainer": ("trainer", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager", ""),
    "training-operator": ("training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1", ""),
    # object stores for tests: one that speaks S3, one that speaks Google's protocol
    "versitygw": ("versitygw", "github.com/versity/versitygw/cmd/versitygw", ""),
    "fake-gcs-server": ("fake-gcs-server", "github.com/fsouza/fake-gcs-server", ""),
}
# What an extra needs of its module's files: (module, patterns). Kept beside the program.
FILES = {
    "kueue": ("sigs.k8s.io/kueue",
              ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml")),
    "jobset": ("sigs.k8s.io/jobset",
               ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml")),
    "trainer": ("github.com/kubeflow/trainer/v2",
                ("manifests/base/crds/*.org_*.yaml", "manifests/base/webhook/manifests.yaml")),
    "training-operator": ("github.com/kubeflow/training-operator",
                          ("manifests/base/crds/*.org_*.yaml", "manifests/base/webhook/manifests.yaml")),
    "volcano": ("volcano.sh/volcano", tuple(f"config/crd/volcano/bases/{group}.volcano.sh_*.yaml"
                                            for group in ("nodeinfo", "scheduling", "topology"))),
    "coscheduling": ("sigs.k8s.io/scheduler-plugins", ("config/crd/bases/scheduling.x-k8s.io_podgroups.yaml",)),
}
# What a folder of ready-made control-plane binaries, as other projects' tests use it, may supply instead.
ASSETS = ("kube-apiserver", "etcd", "kubectl")


def path(name):
    """Where the binary is, or will be after build()."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and name in ASSETS and os.access(Path(assets) / name, os.X_OK):
        return Path(assets) / name
    return folder(name) / name


def folder(name=None):
    """Where a program is kept: those of a cluster are together, an extra is alone."""
    programs = {name: EXTRAS[name]} if name in EXTRAS else BINARIES
    digest = hashlib.sha256(repr([(name, *spec, flags(spec[0])) for name, spec in programs.items()]).encode())
    modules = {module for module, _, _ in programs.values()}
    for file in sorted(file for file in MODULES.glob("*/*") if file.parent.name in modules):
        digest.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
    return cache() / f"{name if name in EXTRAS else 'tools'}-{digest.hexdigest()[:16]}"


def flags(module):
    """Linker flags: no symbols, and the version that the program tells."""
    text = (MODULES / module / "go.mod").read_text()
    if module == "kubernetes":
        version = re.search(rf"{KUBERNETES} (v\d+\.(\d+)\S*)", text)
        base = "k8s.io/component-base/version"
        return (f"-s -w -X {base}.gitVersion={version[1]} -X {base}.gitMajor=1 -X {base}.gitMinor={version[2]}")
    if module == "containerd":
        package = "github.com/containerd/containerd/v2"
        return f"-s -w -X {package}/version.Version={re.search(rf'{package} (v[^ ]+)', text)[1]}"
    if module == "kueue":
        package = "sigs.k8s.io/kueue"
        return f"-s -w -X {package}/pkg/version.GitVersion={re.search(rf'{package} (v[^ ]+)', text)[1]}"
    return "-s -w"


def build(names=BINARIES):
    """Makes sure that a cluster's programs are there, and returns their folder."""
    return build_into(folder(), names)


def build_extra(name):
    """Makes sure that an extra is there with the files that belong to it, and returns its folder."""
    return build_into(folder(name), [name])


def build_into(out, names):
    """Builds what is missing, one caller at a time."""
    if all(os.access(path(name), os.X_OK) for name in names):
        return out
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building into {out}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [name for name in names if not os.access(path(name), os.X_OK)]
        if missing:
            need_go()
            minutes = 9 if out == folder() else 5
            say(f"building {len(missing)} program{'s' if len(missing) > 1 else ''} from Go modules into {out} "
                f"(once; about {minutes} minutes on 2 cores if Go's cache is empty)")
        begin = time.monotonic()
        for count, name in enumerate(missing, 1):
            keep_files(name, out)
            build_one(name, out, f"[{count}/{len(missing)}]", begin)
    return out


def build_one(name, out, counter, begin):
    module, package, tags = (BINARIES | EXTRAS)[name]
    start = time.monotonic()
    say(f"  {counter} {name} ...")
    temporary = out / f".{name}.{os.getpid()}"
    # -mod=readonly: what is built is what go.sum pins
    command = ["go", "build", "-trimpath", "-mod=readonly", "-ldflags", flags(module), "-o", str(temporary)]
    process = subprocess.Popen(command + (["-tags", tags] if tags else []) + [package], cwd=MODULES / module,
                               env=go_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = []
    try:
        while True:
            try:
                output.append(process.communicate(timeout=30)[0])
                break
            except subprocess.TimeoutExpired:
                say(f"  {counter} {name} ... {time.monotonic() - start:.0f} s")
        if process.returncode != 0:
            raise Failure(f"building {name} failed:\n{''.join(output)[-4000:]}")
        temporary.rename(out / name)
    finally:
        if process.poll() is None:
            process.kill()
        temporary.unlink(missing_ok=True)
    now = time.monotonic()
    say(f"  {counter} {name}: {now - start:.0f} s ({now - begin:.0f} s in all)")


def keep_files(name, out):
    """Copies what an extra needs of its module's files to where the program will be."""
    module, patterns = FILES.get(name, (None, ()))
    if not patterns:
        return
    found = run("go", "mod", "download", "-json", module, cwd=MODULES / EXTRAS[name][0], env=go_environment())
    source = Path(json.loads(found.stdout)["Dir"])
    for file in (file for pattern in patterns for file in source.glob(pattern)):
        (out / file.name).write_bytes(file.read_bytes())


def go_environment():
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}


def need_go():
    if not shutil.which("go"):
        raise Failure("Go is missing: the cluster's programs are built from Go modules. Install Go 1.26 or newer "
                      "(1.21 and later fetch the right one themselves) and put `go` on PATH.")
    run("go", "version")
