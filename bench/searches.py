#!/usr/bin/env python3
"""Measure what large searches cost the operator, and how much they delay other jobs.

A control plane with simulated nodes has 20 TuningJobs. Each has 20 hyperparameters with names of 63 characters, and 980
of 1,000 trials. They are resumed at once. Meanwhile other TrainingJobs are created in another namespace. The same jobs
are created before, when there are no searches.

    cargo build --release --bin operator
    bench/searches.py --operator target/x86_64-unknown-linux-gnu/release/operator
"""

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path

import plane

ROOT = Path(__file__).resolve().parents[1]
SEARCHES, TRIALS, KNOWN, PARAMETERS, JOBS = 20, 1000, 980, 20, 100
NAMES = [f"p{at:0>62}" for at in range(PARAMETERS)]
NOW = "2026-11-01T00:00:00Z"
API = "/apis/ml.example.com/v1/namespaces"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--operator", type=Path, required=True, help="the operator, as a release")
    arguments.add_argument("--port", type=int, default=18080, help="port of its metrics")
    args = arguments.parse_args()
    plane.find_programs()
    with plane.Plane(1000, 1000, 4) as cluster:
        cluster.kubectl("apply", "--server-side", "-k", str(ROOT / "crds"))
        plane.wait(lambda: cluster.api("GET", f"{API}/default/tuningjobs", check=False)[0] == 200, 60, "the kinds")
        for name in ("searches", "others"):
            cluster.kubectl("create", "namespace", name)
        config = {"KUBECONFIG": str(cluster.kubeconfig), "PATH": os.environ["PATH"]}
        cluster.run("operator", f'"{args.operator}" --no-leader-election --agent-access off --agent-image agent:bench '
                    f"--agent-delivery image --metrics-address 127.0.0.1:{args.port}", config)
        process = cluster.processes["operator"]
        delays(cluster, "warm-up", 1)
        before = delays(cluster, "before")
        memory = plane.memory_mb(process.pid)
        status = known_trials()
        size = len(json.dumps(status, separators=(",", ":")))
        for at in range(SEARCHES):
            cluster.api("POST", f"{API}/searches/tuningjobs", search(at))
            # The operator writes this status, too.
            cluster.api("PATCH", f"{API}/searches/tuningjobs/s{at}/status", {"status": status})
        with_searches = plane.memory_mb(process.pid)
        started = time.monotonic()
        for at in range(SEARCHES):
            cluster.api("PATCH", f"{API}/searches/tuningjobs/s{at}", {"spec": {"suspend": False}})
        during = delays(cluster, "during")
        plane.wait(lambda: all(count(cluster, at) == TRIALS for at in range(SEARCHES)), 1200, "all trials", every=5)
        seconds = time.monotonic() - started
        cluster.check()
        print(f"status of a search with {KNOWN} trials: {size / 1000:.0f} kB")
        print(f"operator's memory: {memory} MB without searches, {with_searches} MB with {SEARCHES}, "
              f"{plane.memory_mb(process.pid, 'VmHWM')} MB at most")
        print(f"the last {TRIALS - KNOWN} trials of each search: suggested and created in {seconds:.0f} s")
        for what, times in (("without searches", before), ("while they search", during)):
            median, p99 = statistics.median(times), sorted(times)[int(len(times) * 0.99)]
            print(f"from a job's creation to its first status, {what}: median {median * 1000:.0f} ms, "
                  f"p99 {p99 * 1000:.0f} ms")


def search(at):
    """A TuningJob that is suspended."""
    parameters = {name: {"type": "double", "min": 0.001, "max": 0.1, "scale": "log"} for name in NAMES}
    spec = {"numWorkers": 1, "gpusPerWorker": 0, "image": "train:bench", "checkpoint": {"enabled": False},
            "podTemplate": {"metadata": {"annotations": {"simulated/duration": "3600s"}}, "spec": {}}}
    return {"apiVersion": "ml.example.com/v1", "kind": "TuningJob", "metadata": {"name": f"s{at}"}, "spec": {
        "maxTrials": TRIALS, "parallelTrials": TRIALS - KNOWN, "maxFailedTrials": TRIALS, "seed": at, "suspend": True,
        "metric": {"name": "loss", "goal": "minimize"}, "parameters": parameters, "template": {"spec": spec}}}


def known_trials():
    """The status of a search whose trials have ended."""
    draw = random.Random(1)

    def row(at):
        return {
            "trial": at, "values": [float(f"{10 ** draw.uniform(-3, -1):.9e}") for _ in NAMES], "state": "Succeeded",
            "after": max(0, at - 4), "end": at, "value": draw.random(), "step": 1000, "gpuHours": 0, "startTime": NOW,
            "endTime": NOW}

    accepted = {"type": "Accepted", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": NOW}
    return {"state": "Suspended", "conditions": [accepted], "seed": 1, "parameters": NAMES, "running": 0, "stopped": 0,
            "failed": 0, "succeeded": KNOWN, "gpuHours": 0, "startTime": NOW,
            "trials": [row(at + 1) for at in range(KNOWN)]}


def count(cluster, at):
    """Trials of a search that have a TrainingJob or have ended."""
    status = cluster.get(f"{API}/searches/tuningjobs/s{at}")["status"]
    return len(status["trials"]) if status.get("running") else 0


def delays(cluster, name, jobs=JOBS):
    """Seconds from the creation of jobs, one each tenth of a second, to their first status."""
    times = []
    for at in range(jobs):
        job = {"apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": {"name": f"{name}-{at}"}, "spec": {
            "numWorkers": 1, "gpusPerWorker": 0, "image": "train:bench", "checkpoint": {"enabled": False}}}
        started = time.monotonic()
        cluster.api("POST", f"{API}/others/trainingjobs", job)
        path = f"{API}/others/trainingjobs/{name}-{at}"
        plane.wait(lambda path=path: cluster.get(path).get("status", {}).get("state"), 120, "a status", every=0.005)
        times.append(time.monotonic() - started)
        time.sleep(0.1)
    return times


if __name__ == "__main__":
    try:
        main()
    except plane.Failure as failure:
        raise SystemExit(f"bench/searches.py: {failure}") from None
