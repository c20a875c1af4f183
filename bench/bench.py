"""One operator on one control plane: what a driver says of it is started, and driven."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import string
import subprocess
import sys
import time
import urllib.request

import peers
from audit import Audit, children, requests, spread
from plane import HERE, ROOT, Failure, machine_seconds, memory_mb, wait

CALM = 5  # seconds without a write in the namespace, after which all is thought to be said


def load(name):
    """A driver; its objects as templates, the job's last."""
    folder = HERE / "drivers"
    driver = json.loads((folder / f"{name}.json").read_text())
    return driver | {"objects": {path: (folder / file).read_text() for path, file in driver["objects"].items()}}


def copied(audit_log, accounts, name):
    """A driver without an operator that creates what one created for a job: what remains is the operator's own cost."""
    objects = {}
    with open(audit_log, encoding="utf-8") as log:
        created = [json.loads(line) for line in log if f'"{name}' in line and '"verb":"create"' in line]
    for entry in created:
        ref, body = entry["objectRef"], entry.get("requestObject") or {}
        owners = body.get("metadata", {}).pop("ownerReferences", None)
        if owners and entry["user"]["username"].rsplit(":", 1)[-1] in accounts:
            if body["kind"] == "Job":
                body["metadata"]["name"] = name
            text = json.dumps(body).replace("$", "$$").replace('"24h"', '"${DURATION}"')
            # no Service selects another's pods
            text = text.replace(owners[0]["uid"], name).replace(name, "${NAME}")
            group = f"/apis/{ref['apiGroup']}" if ref.get("apiGroup") else "/api"
            objects[f"{group}/{ref['apiVersion']}/namespaces/bench/{ref['resource']}"] = text
    jobs_last = sorted(objects.items(), key=lambda item: item[0].endswith("/jobs"))
    return {"processes": [], "objects": dict(jobs_last), "kind": "Job"}


class Bench:
    """One operator on one plane."""

    def __init__(self, args, name, driver, plane):
        self.args, self.name, self.driver, self.plane, self.token = args, name, driver, plane, None
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}}
        plane.api("POST", "/api/v1/namespaces", namespace)
        plane.account("bench", "bench", "default")  # pods are admitted from here on
        env = {**os.environ, "ROOT": str(ROOT), "WORK": str(plane.work), "OPERATOR": str(args.operator.resolve()),
               "PORT": peers.free_port(), "KUBECONFIG": str(plane.kubeconfig)}
        self.port = env["PORT"]
        self.shell("setup", env)
        self.accounts = set()
        for process in driver["processes"]:
            self.start(process, {**env, "WEBHOOK_PORT": peers.free_port()})
        self.shell("then", env)
        self.audit = Audit(plane.audit_log)
        self.warm_up()

    def start(self, process, env):
        plane, account = self.plane, process["account"].split("/")
        self.accounts.add(account[1])
        if "program" in process:
            env = peers.prepare(plane, process, env)
        env = {**env, "KUBECONFIG": str(plane.account(process["name"], *account))}
        plane.run(process["name"], process["command"], env)
        if process.get("webhooks"):
            peers.register(plane, process, env["WEBHOOK_PORT"])
        self.environment = env

    def shell(self, step, env):
        """What a driver has to say to the cluster: `setup` before its processes, `then` after them."""
        if step not in self.driver:
            return
        with open(self.plane.dir / f"log/{step}.log", "w+b") as log:
            command = ["/bin/sh", "-ec", self.driver[step]]
            if subprocess.run(command, cwd=HERE / "drivers", env=env, stdout=log, stderr=log, check=False).returncode:
                log.seek(0)
                raise Failure(f"{step} of {self.name} failed:\n{log.read()[-2000:].decode(errors='replace')}")

    def warm_up(self):
        """One job before any figure: what is slow only once (discovery, connections, the lease) is no cost of a job."""
        def admitted():
            self.plane.check()
            try:
                self.create("warm-up", 1, "24h")
            except Failure:
                return False  # an API just applied is served a little later
            return True

        wait(admitted, 60, "the first job to be taken", every=1)
        wait(lambda: self.plane.check() or self.pods() >= 1, 60, "the first job's pod", every=1)
        self.clear()

    def create(self, name, workers, duration, **more):
        for path, template in self.driver["objects"].items():
            values = {"NAME": name, "WORKERS": workers, "DURATION": duration, **more}
            body = string.Template(template).substitute(values)
            self.plane.api("POST", path, body, token=self.token)

    def clear(self):
        for path in self.driver["objects"]:
            for item in self.plane.get(path)["items"]:  # Services can't be deleted as a collection everywhere
                self.plane.api("DELETE", f"{path}/{item['metadata']['name']}?propagationPolicy=Background")
        wait(lambda: self.pods() == 0, 300, "the pods to be gone", every=1)
        self.quiet()

    def pods(self):
        """How many there are, in one small request."""
        page = self.plane.get("/api/v1/namespaces/bench/pods?limit=1")
        return len(page["items"]) + page["metadata"].get("remainingItemCount", 0)

    def reconciles(self):
        """How many there were, if the operator counts them."""
        if "reconciles" not in self.driver:
            return 0
        lines = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10).read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(self.driver["reconciles"]))

    def is_work(self, event):
        """Whether a job still comes or goes, as long as there are such events."""
        return event.writes

    def quiet(self):
        """Until no client has written for a while."""
        def last():
            return max((e.done for e in self.audit.more() if e.namespace == "bench" and self.is_work(e)), default=0)
        wait(lambda: time.time() - last() > CALM, 300, "the writes to end", every=1)

    # ---- parts

    def burst(self, part, jobs=None, gap=0, seconds=None):
        jobs, workers = jobs or self.args.jobs, self.args.workers
        say(f"{self.name}: {part}, {jobs} jobs of {workers} workers")
        names = [f"{part}-{i:04d}" for i in range(jobs)]
        duration = f"{seconds}s" if seconds else "24h"
        profile = self.start_profile(part)
        seen, passes, begun, cpu, machine = (
            len(self.audit.more()), self.reconciles(), time.time(), self.plane.cpu(), machine_seconds())
        with concurrent.futures.ThreadPoolExecutor(1 if gap else 4) as pool:
            creates = []
            for i, name in enumerate(names):
                time.sleep(max(0, begun + i * gap - time.time()))
                creates.append(pool.submit(self.create, name, workers, duration))
        for create in creates:
            create.result()
        wait(lambda: self.plane.check() or self.pods() >= jobs * workers, 300, "all pods to be created", every=0.5)
        if seconds:
            wait(lambda: sum(e.ended for e in self.audit.more()[seen:]) >= jobs * workers, 300, "all pods to end",
                 every=1)
        self.quiet()
        used = {name: round(after - cpu.get(name, 0), 2) for name, after in self.plane.cpu().items()}
        wall, foreign = time.time() - begun, machine_seconds() - machine - sum(used.values())
        stop_profile(profile)
        events = self.audit.more()[seen:]
        found = children(events, self.driver["kind"], names)
        whole = [job for job in found.values() if len(job["pods"]) >= workers]
        made = [sorted(job["pods"])[workers - 1] - job["created"] for job in whole]
        if len(made) < jobs:
            raise Failure(f"only {len(made)} of {jobs} jobs got all their pods")
        begin = min(job["created"] for job in found.values())
        running = sorted(e.done for e in events if e.running and e.namespace == "bench")
        mine = [e for e in events if e.who in self.accounts]
        return self.result(part, used, {
            "jobs": jobs, "workers": workers, "wall_s": round(wall, 1), "foreign_cpu_s": round(foreign, 2),
            "last_child_s": spread(max(times) - job["created"] for job in found.values()
                                   if (times := [when for when, _, who in job["children"] if who in self.accounts])),
            "all_pods_s": spread(made),
            "last_pod_created_s": round(max(max(job["pods"]) for job in found.values()) - begin, 2),
            "last_pod_running_s": round(running[jobs * workers - 1] - begin, 2),
            "requests_per_job": round(sum(not e.upkeep for e in mine) / jobs, 2),
            "reconciles_per_job": round((self.reconciles() - passes) / jobs, 1),
            "operator_cpu_ms_per_job": round(1000 * sum(used[p] for p in self.plane.processes) / jobs, 1),
            "all_cpu_ms_per_job": round(1000 * sum(used.values()) / jobs, 1),
            "requests": {who: requests([e for e in events if e.who == who]) for who in sorted({e.who for e in events})},
        })

    def remake(self, workers):
        """One pod fails, as a kubelet would say it: until as many run again as before."""
        say(f"{self.name}: remake, one of {workers} workers fails")
        name, pods, began = f"remake-{workers}", "/api/v1/namespaces/bench/pods", len(self.audit.more())

        def running(since):
            return sum(e.running and e.namespace == "bench" for e in self.audit.more()[since:])

        self.create(name, workers, "24h")
        wait(lambda: self.plane.check() or running(began) >= workers, 300, "all pods to run", every=0.5)
        self.quiet()
        before = self.plane.get(pods)["items"]
        victim = max(before, key=lambda pod: pod["metadata"]["name"])
        seen, cpu, ended = len(self.audit.more()), self.plane.cpu(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": ended, "finishedAt": ended}}
        failed = {"phase": "Failed", "containerStatuses": [
            {"name": c["name"], "image": c["image"], "imageID": "", "ready": False, "started": False, "restartCount": 0,
             "state": state} for c in victim["spec"]["containers"]]}
        self.plane.api("PATCH", f"{pods}/{victim['metadata']['name']}/status", {"status": failed})
        old = {pod["metadata"]["uid"] for pod in before}

        def again():
            self.plane.check()
            if not running(seen):
                return False
            self.quiet()
            alive = [pod for pod in self.plane.get(pods)["items"] if pod["status"].get("phase") == "Running"]
            return len(alive) == workers and alive

        alive = wait(again, 300, f"{workers} pods to run again", every=0.5)
        events = self.audit.more()[seen:]
        mark = next(e.done for e in events if e.what == "pods/status" and e.failed)
        used = {name: round(after - cpu.get(name, 0), 2) for name, after in self.plane.cpu().items()}
        made = [e.done - mark for e in events if e.made and e.what == "pods" and e.namespace == "bench"]
        self.clear()
        return self.result(f"remake-{workers}", used, {
            "jobs": 1, "workers": workers, "pods_made": sum(pod["metadata"]["uid"] not in old for pod in alive),
            "first_pod_made_s": round(min(made), 2), "last_pod_made_s": round(max(made), 2),
            "all_run_s": round(max(e.done for e in events if e.running and e.namespace == "bench") - mark, 2)})

    def idle(self):
        say(f"{self.name}: idle for {self.args.idle} s")
        seen, cpu = len(self.audit.more()), self.plane.cpu()
        time.sleep(self.args.idle)
        used = {name: round(after - cpu[name], 2) for name, after in self.plane.cpu().items()}
        mine = [e for e in self.audit.more()[seen:] if e.who in self.accounts]
        return self.result("idle", used, {"seconds": self.args.idle, "jobs": self.args.jobs,
                                          "workers": self.args.workers,
                                          "not_upkeep": sum(not e.upkeep for e in mine), "requests": requests(mine),
                                          "operator_cpu_s": round(sum(used[p] for p in self.plane.processes), 2)})

    def result(self, part, used, figures):
        pids = [process.pid for process in self.plane.processes.values()]
        return {"driver": self.name, "part": part, **figures, "cpu_s": used,
                "rss_mb": round(sum(memory_mb(pid) for pid in pids), 1),
                "peak_rss_mb": round(sum(memory_mb(pid, "VmHWM") for pid in pids), 1)}

    # ---- beside the figures

    def start_profile(self, part):
        """Samples the operator by perf, and the API server by its own profiler, until stop_profile()."""
        if not self.args.profile or part == "paced":
            return None
        self.args.results.mkdir(parents=True, exist_ok=True)
        stem, recorders = self.args.results / f"{self.name}-{part}", []
        if self.plane.processes:
            pids = ",".join(str(process.pid) for process in self.plane.processes.values())
            # cpu-clock: a virtual machine may have no counters
            recorders = [subprocess.Popen(["perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-g", "-o",
                                           f"{stem}.perf", "-p", pids])]
        with open(f"{stem}-apiserver.pprof", "wb") as profile:
            server = subprocess.Popen(["kubectl", "--kubeconfig", self.plane.kubeconfig, "get", "--raw",
                                       "/debug/pprof/profile?seconds=15"], stdout=profile)
        return stem, recorders, server

    def keep(self, part):
        if self.args.keep:
            self.args.results.mkdir(parents=True, exist_ok=True)
            for log in ("audit.jsonl", *(f"{name}.log" for name in self.plane.processes)):
                shutil.copy(self.plane.dir / "log" / log, self.args.results / f"{self.name}-{part}-{log}")


def stop_profile(profile):
    if not profile:
        return
    stem, recorders, server = profile
    for recorder in recorders:
        recorder.terminate()
        recorder.wait()
        report = ["perf", "report", "-i", f"{stem}.perf", "--no-children", "-g", "none", "--stdio", "--sort", "symbol",
                  "--percent-limit", "0.5"]
        said = subprocess.run(report, capture_output=True, text=True, check=False).stdout
        pathlib.Path(f"{stem}-operator.txt").write_text(said)
        say(f"profile of the operator: {stem}-operator.txt")
    server.wait()
    say(f"profile of the API server: go tool pprof -top {stem}-apiserver.pprof")


def say(text):
    print(text, file=sys.stderr, flush=True)
