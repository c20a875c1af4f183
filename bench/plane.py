"""A throwaway control plane with simulated nodes, and what its processes cost."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
CLUSTER = ROOT / "devcluster" / "cluster"
TICK = os.sysconf("SC_CLK_TCK")


class Failure(Exception):
    """Ends the program with a message a person can act on."""


def wait(until, seconds, what, every=0.25):
    """Returns what `until` returns, once that is something."""
    deadline = time.monotonic() + seconds
    while not (found := until()):
        if time.monotonic() > deadline:
            raise Failure(f"waited {seconds:.0f} s for {what}")
        time.sleep(every)
    return found


def cpu_seconds(pid):
    """CPU of a process and of its children that have ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICK


def memory_mb(pid, field="VmRSS"):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return round(int(line.split()[1]) / 1024, 1)
    return None


def machine_seconds():
    """CPU used by everything on this machine."""
    first, *_ = pathlib.Path("/proc/stat").read_text().splitlines()
    fields = list(map(int, first.split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) / TICK


class Plane:
    """`with Plane(...) as plane:` runs a cluster of its own; it goes, with all of its processes, at the end."""

    def __init__(self, kcm_qps, kcm_burst, nodes):
        # The scheduler's own limit would hide what the operators cost: 1000 is more than it needs.
        self.flags = ["--control-only", f"--kcm-qps={kcm_qps}", f"--kcm-burst={kcm_burst}", "--scheduler-qps=1000",
                      f"--simulated-nodes={nodes}", "--audit-policy", HERE / "audit-policy.yaml"]
        self.local, self.processes = threading.local(), {}
        # what is to be undone at the end, beside the cluster
        self.kept = contextlib.ExitStack()

    def __enter__(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="bench-"))
        self.dir = self.work / "cluster"
        self.name = ["--name", f"bench-{os.getpid()}", "--state-dir", str(self.dir)]
        up = subprocess.run([CLUSTER, "up", *self.name, "--owner-pid", str(os.getpid()), *self.flags],
                            stdout=subprocess.DEVNULL, check=False)
        if up.returncode:
            raise Failure("the cluster did not start; what it said stands above")
        self.audit_log, self.kubeconfig = self.dir / "log/audit.jsonl", self.dir / "kubeconfig"
        config = json.loads(self.kubeconfig.read_text())
        self.server = config["clusters"][0]["cluster"]["server"].removeprefix("https://")
        pki = self.dir / "pki"
        self.anonymous, self.tls = (ssl.create_default_context(cafile=str(pki / "ca.crt")) for _ in range(2))
        self.tls.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        self.kept.close()
        subprocess.run([CLUSTER, "down", *self.name], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.work, ignore_errors=True)

    def run(self, name, command, env):
        """Starts an operator's process; its output in log/NAME.log."""
        with open(self.dir / "log" / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(["/bin/sh", "-c", "exec " + command], stdout=log, stderr=log,
                                                    env=env, start_new_session=True)

    def check(self):
        for name, process in self.processes.items():
            if process.poll() is not None:
                log = (self.dir / "log" / f"{name}.log").read_text(errors="replace")
                raise Failure(f"{name} has ended with {process.returncode}; its log ends:\n{log[-2000:]}")

    def cpu(self):
        """CPU seconds of each process: the operator's, and the cluster's."""
        records = (self.dir / "pids").glob("*.json")
        used = {file.stem: cpu_seconds(json.loads(file.read_text())["pid"]) for file in records}
        return used | {name: cpu_seconds(process.pid) for name, process in self.processes.items()}

    def token(self, namespace, name):
        """Of a service account."""
        # the controller manager starts a little later than the API server
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        wait(lambda: self.api("GET", account, check=False)[0] == 200, 60, f"the service account {namespace}/{name}")
        request = {"spec": {"expirationSeconds": 86400}}
        return json.loads(self.api("POST", f"{account}/token", request)[1])["status"]["token"]

    def account(self, user, namespace, name):
        """A kubeconfig with the token of a service account."""
        token = self.token(namespace, name)
        config = json.loads(self.kubeconfig.read_text())
        config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
        path = self.work / f"{user}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def api(self, method, path, body=None, check=True, token=None):
        """One request on a connection that each thread keeps, as the administrator or by an account's token; `body` is
        YAML text, the bytes of JSON, or an object.
        """
        if isinstance(body, bytes):
            data = body
        else:
            data = body.encode() if isinstance(body, str) else body and json.dumps(body).encode()
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = "application/yaml" if isinstance(body, str) else patch
        headers = {"Content-Type": content, "User-Agent": "bench"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        kept = self.local.__dict__.setdefault("kept", {})
        connection, used = kept.get(token, (None, 0))
        # The API server closes a connection that was not used for 90 s: that is found out only by using it again.
        if not connection or time.monotonic() - used > 60:
            tls = self.anonymous if token else self.tls
            connection = http.client.HTTPSConnection(self.server, context=tls, timeout=60)
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        kept[token] = connection, time.monotonic()
        answer = response.read()
        if check and response.status >= 300:
            raise Failure(f"{method} {path}: {response.status} {answer[:600].decode(errors='replace')}")
        return response.status, answer

    def kubectl(self, *arguments, given=None):
        """What kubectl prints, as the cluster's administrator."""
        done = subprocess.run(["kubectl", "--kubeconfig", self.kubeconfig, *arguments], input=given,
                              capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failure(f"kubectl {' '.join(arguments[:2])}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def apply(self, objects):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "--server-side", "--filename=-", given=text)

    def get(self, path):
        return json.loads(self.api("GET", path)[1])


class Node(Plane):
    """A cluster with one real node, which has some images."""

    def __init__(self, *images):
        super().__init__(20, 30, 0)
        self.flags = ["--nodes=1", "--no-audit", *(f"--image={image}" for image in images)]


def find_programs():
    """Builds the control plane's programs and kwok, if they are not there, and puts them on PATH."""
    for extra in ([], ["kwok"]):
        tools = subprocess.run([CLUSTER, "tools", *extra], stdout=subprocess.PIPE, text=True, check=False)
        if tools.returncode:
            raise Failure("the control plane's programs could not be built; why stands above")
        os.environ["PATH"] = f"{tools.stdout.strip()}:{os.environ['PATH']}"


def machine():
    processors = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in processors if line.startswith("model name")), "?")
    memory = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) / 1024 ** 2
    versions = {}
    for program in ("kube-apiserver", "etcd", "kwok"):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        versions[program] = re.search(r"\d+\.\d+\.\d+", said)[0]
    return {"cpus": os.cpu_count(), "cpu": model, "memory_gb": round(memory), "kernel": os.uname().release,
            "load_before": os.getloadavg()[0], "versions": versions, "when": time.strftime("%Y-%m-%d")}
