"""The programs of a cluster, made once into the cache: most from the pinned Go modules in devcluster/tools.

What imports Kubernetes is one program, started by several names, for most of what these import is the same. containerd
and kubectl are Debian's where its versions will do.
"""

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import debs
from .host import HERE, Failure, cache, run, say

MODULES = HERE / "tools"
KUBERNETES = "k8s.io/kubernetes"
CONTAINERD = "github.com/containerd/containerd/v2"
KUEUE = "sigs.k8s.io/kueue"


@dataclass(frozen=True)
class Program:
    """How a program is built: the module's folder, a package of it, and the names it is started by if not its own."""

    module: str
    package: str
    seconds: int  # it usually takes on two quiet cores with what comes before it built
    tags: str = ""
    links: tuple = ()
    measured: bool = False  # beside our own operator, so it is compiled as its makers do


# In this order: the first fills Go's build cache for what is of the same module.
PROGRAMS = {
    "kubernetes": Program("kubernetes", ".", 180, links=(
        "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns", "etcd")),
    "kubectl": Program("kubernetes", f"{KUBERNETES}/cmd/kubectl", 15),
    **{name: Program("containerd", f"{CONTAINERD}/cmd/{name}", seconds, "no_btrfs no_zfs no_devmapper")
       for name, seconds in {"containerd": 40, "containerd-shim-runc-v2": 2, "ctr": 3}.items()},
}
RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr")
# What a cluster with real nodes starts, and what one without them does.
BINARIES = (*PROGRAMS["kubernetes"].links, "kubectl", *RUNTIME)
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "kubectl")
# Programs that a cluster can do without. Each is kept apart, so that none is built again for another's sake. kwok and
# Kueue take what they share with Kubernetes from Go's cache.
EXTRAS = {
    "kwok": Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", 15),
    "kueue": Program("kueue", f"{KUEUE}/cmd/kueue", 60),
    # schedulers of gangs: of one module here, for they share most of their packages
    "volcano": Program("gangs", "volcano.sh/volcano/cmd/scheduler", 200),
    "coscheduling": Program("gangs", "sigs.k8s.io/scheduler-plugins/cmd/scheduler", 60),
    # other operators, for `make bench PEERS=1`
    "jobset": Program("jobset", "sigs.k8s.io/jobset", 100, measured=True),
    "trainer": Program("trainer", "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager", 100, measured=True),
    "training-operator": Program("training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1",
                                 100, measured=True),
    # object stores for tests: one that speaks S3, one that speaks Google's protocol
    "versitygw": Program("versitygw", "github.com/versity/versitygw/cmd/versitygw", 60),
    "fake-gcs-server": Program("fake-gcs-server", "github.com/fsouza/fake-gcs-server", 60),
}
# What an extra needs of its module's files: (module, patterns). Kept beside the program.
FILES = {
    "kueue": (KUEUE,
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
# Other versions of Kubernetes that a cluster can have, by TRAININGJOB_KUBERNETES: the oldest that docs/install.md
# promises, and the newest. Each has a module of its own; etcd, CoreDNS, kubectl and containerd are those of all.
OTHERS = {
    version: Program(f"kubernetes-{version}", ".", 200, links=(
        "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"))
    for version in ("1.34", "1.37")
}
# What a folder of ready-made control-plane binaries, as other projects' tests use it, may supply instead.
ASSETS = ("kube-apiserver", "etcd", "kubectl")


# The variables by which programs know their version: (module that has it, variable, what of it).
STAMPS = {
    **{module: [(KUBERNETES, f"k8s.io/component-base/version.{variable}", part) for variable, part in
                (("gitVersion", "{0}"), ("gitMajor", "{1}"), ("gitMinor", "{2}"))]
       for module in ("kubernetes", *(program.module for program in OTHERS.values()))},
    "containerd": [(CONTAINERD, f"{CONTAINERD}/version.Version", "{0}")],
    "kueue": [(KUEUE, f"{KUEUE}/pkg/version.GitVersion", "{0}")],
}


def path(name):
    """Where the program is, or will be after build()."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and name in ASSETS and os.access(Path(assets) / name, os.X_OK):
        return Path(assets) / name
    return folder(name) / name


def other_version():
    """The version of Kubernetes that is asked for instead of the usual one."""
    version = os.environ.get("TRAININGJOB_KUBERNETES")
    if version and version not in OTHERS:
        raise Failure(f"TRAININGJOB_KUBERNETES={version}: there are {' and '.join(OTHERS)}")
    return version or None


def folder(name=None):
    """Where a program is kept: those of a cluster are together, an extra is alone."""
    other = None if name in EXTRAS else other_version()
    programs = {name: EXTRAS[name]} if name in EXTRAS else {**PROGRAMS, other: OTHERS[other]} if other else PROGRAMS
    digest = hashlib.sha256(repr([(program, linker_flags(program.module), sorted(go_settings(program).items()))
                                  for program in programs.values()]).encode())
    digest.update(repr(packages() if programs is PROGRAMS else None).encode())
    modules = {program.module for program in programs.values()}
    for file in sorted(file for file in MODULES.glob("*/*") if file.parent.name in modules):
        digest.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
    kind = name if name in EXTRAS else f"tools-{other}" if other else "tools"
    return cache() / f"{kind}-{digest.hexdigest()[:16]}"


def version(folder, module):
    """The version of a module that a folder's go.mod pins: all of it, major and minor."""
    text = (MODULES / folder / "go.mod").read_text()
    return re.search(rf"(?m)^\s*(?:require )?{re.escape(module)} (v(\d+)\.(\d+)\S*)", text).groups()


def linker_flags(folder):
    """No symbols, and the version that the program tells."""
    stamps = [f"-X {variable}={part.format(*version(folder, module))}" for module, variable, part in
              STAMPS.get(folder, ())]
    return " ".join(["-s -w", *stamps])


def packages():
    """The packages of Debian that serve as well, unless everything is to be built from source."""
    if os.environ.get("TRAININGJOB_FROM_SOURCE"):
        return ()
    _, major, minor = version("kubernetes", KUBERNETES)
    major, minor = int(major), int(minor)
    return (
        # Kubernetes supports a kubectl that is one minor version off.
        debs.Package("kubectl", (major, minor - 1), (major, minor + 2), {"kubectl": ("version", "--client")}),
        # The configuration that devcluster writes is the one of 2.x; the kubelet asks for what 2.1 has.
        debs.Package("containerd", (2, 1), (3, 0), {
            "containerd": ("--version",), "containerd-shim-runc-v2": ("-v",), "ctr": ("--version",)}),
    )


def build(names=BINARIES):
    """Makes sure that a cluster's programs are there, and returns their folder."""
    if other := other_version():
        return build_other(other)
    out = folder()
    with missing_from(out, names) as missing:
        linked = [name for name in missing if name in PROGRAMS["kubernetes"].links]
        wanted = [package for package in packages() if set(package.programs) & set(missing)]
        with concurrent.futures.ThreadPoolExecutor() as beside:
            fetched = beside.submit(debs.fetch, wanted, out) if wanted else None
            if linked:
                build_one("kubernetes", out)
            if fetched:
                fetched.result()
        for name in missing:
            if not is_there(name):
                build_one(name, out)
    return out


def build_extra(name):
    """Makes sure that an extra is there with the files that belong to it, and returns its folder."""
    out = folder(name)
    with missing_from(out, [name]) as missing:
        if missing:
            keep_files(name, out)
            build_one(name, out)
    return out


def build_other(other):
    """The programs of another version of Kubernetes, with links to all others of a cluster."""
    env = {name: value for name, value in os.environ.items() if name != "TRAININGJOB_KUBERNETES"}
    usual = Path(run(HERE / "cluster", "tools", env=env).stdout.split()[-1])
    out = folder()
    with missing_from(out, BINARIES) as missing:
        if missing:
            build_one(other, out)
            for name in missing:
                if name not in OTHERS[other].links:
                    (out / name).unlink(missing_ok=True)
                    (out / name).symlink_to(usual / name)
    return out


def is_there(name):
    return os.access(path(name), os.X_OK)


@contextlib.contextmanager
def missing_from(out, names):
    """Those of the programs that are missing, for one caller at a time; others wait until they are there."""
    if all(map(is_there, names)):
        yield []
        return
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building into {out}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield [name for name in names if not is_there(name)]


def build_one(name, out):
    need_go()
    program = (PROGRAMS | EXTRAS | OTHERS)[name]
    what = ", ".join(program.links) or name
    start = time.monotonic()
    say(f"  building {what} into {out} (once; usually {program.seconds} s on 2 quiet cores)")
    temporary = out / f".{name}.{os.getpid()}"
    command = ["go", "build", "-ldflags", linker_flags(program.module), "-o", str(temporary)]
    process = subprocess.Popen(command + (["-tags", program.tags] if program.tags else []) + [program.package],
                               cwd=MODULES / program.module, env=go_environment(program), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    output = []
    try:
        while True:
            try:
                output.append(process.communicate(timeout=30)[0])
                break
            except subprocess.TimeoutExpired:
                say(f"  building {name} ... {time.monotonic() - start:.0f} s")
        if process.returncode != 0:
            raise Failure(f"building {name} failed:\n{''.join(output)[-4000:]}")
        temporary.rename(out / name)
    finally:
        if process.poll() is None:
            process.kill()
        temporary.unlink(missing_ok=True)
    for link in program.links:
        temporary.symlink_to(name)
        temporary.rename(out / link)
    say(f"  {what}: built in {time.monotonic() - start:.0f} s")


def keep_files(name, out):
    """Copies what an extra needs of its module's files to where the program will be."""
    module, patterns = FILES.get(name, (None, ()))
    if not patterns:
        return
    program = EXTRAS[name]
    found = run("go", "mod", "download", "-json", module, cwd=MODULES / program.module, env=go_environment(program))
    source = Path(json.loads(found.stdout)["Dir"])
    for file in (file for pattern in patterns for file in source.glob(pattern)):
        (out / file.name).write_bytes(file.read_bytes())


def go_settings(program):
    """How a program is compiled. Go keeps packages by these flags, so those that have the same ones share them."""
    # -dwarf=false: the linker drops debug information anyway, so none is made. -c=1: one thread for each compiler, of
    # which Go starts one per processor. -l: no inlining. devcluster/README.md has the figures.
    flags = "-dwarf=false -c=1" if program.measured else "-dwarf=false -c=1 -l"
    return {
        # static programs, and no C compiler
        "CGO_ENABLED": "0", "GOWORK": "off",
        # -mod=readonly: what is built is what go.sum pins. -buildvcs=false: a program does not depend on the state of
        # the checkout. Without -trimpath: with it Go keeps what it compiles by the version that go.mod requires, and
        # not by the one that `replace` gives it, so what kwok and Kueue share with Kubernetes would be compiled three
        # times.
        "GOFLAGS": f"-mod=readonly -buildvcs=false '-gcflags=all={flags}'",
    }


def go_environment(program):
    # A collector that runs less often saves a quarter of the compiler's CPU time. A compiler then takes up to 0.9 GB
    # instead of 0.5; the linker takes 2 GB in any case.
    # A module that needs a newer Go names it (`toolchain`), and Go fetches that one from the modules' proxy.
    return {**os.environ, "GOGC": os.environ.get("GOGC", "1600"), "GOTOOLCHAIN": "auto", **go_settings(program)}


def need_go():
    if not shutil.which("go"):
        raise Failure("Go is missing: the cluster's programs are built from Go modules. Install Go 1.26 or newer "
                      "(1.21 and later fetch the right one themselves) and put `go` on PATH.")
    run("go", "version")
