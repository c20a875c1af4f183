#!/usr/bin/env python3
"""The agents of simulated pods, all in this one process: agents.py PORT SECONDS PODS

A pod's address says whose agent it is: 100.64.0.0 and what follows answer at once, with a step that grows every
SECONDS; 100.96.0.0 and what follows take what they are asked and never answer; 100.112.0.0 and what follows tell ten
reasons, epochs and metrics that no program has, and different ones each time. NETWORK is run first, in a network
namespace where nothing else is: it makes all of these addresses its own. PODS is a file with the UID of the pod at
each address, and the key by which it proves its answers, as JSON: {"ADDRESS": ["UID", "KEY"]}; it is read again when
this process is sent SIGHUP.
"""

import asyncio
import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

FIRST, SILENT, WILD = (int(ipaddress.IPv4Address(first)) for first in ("100.64.0.0", "100.96.0.0", "100.112.0.0"))
# A Service's endpoints can't be of loopback.
NETWORK = "ip link set lo up && ip route add local 100.64.0.0/10 dev lo"
STEPS = 10  # each time
JOB, INDEX = "training-job", "batch.kubernetes.io/job-completion-index"


def proof(key, nonce, body):
    """As the module `proof` of crates/protocol has it."""
    parts = (b"trainingjob answer v1", bytes.fromhex(nonce), body)
    signed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(bytes.fromhex(key), signed, hashlib.sha256).hexdigest()


def address(number, first=FIRST):
    """Of the agents of one job."""
    return str(ipaddress.IPv4Address(first + 1 + number))


def in_own_network():
    """Begins this program again where the addresses of the agents are, and nothing else."""
    if "BENCH_NETWORK" not in os.environ:
        os.environ["BENCH_NETWORK"] = "own"
        script = f'{NETWORK} && exec "$0" "$@"'
        os.execvp("unshare", ["unshare", "--net", "sh", "-c", script, sys.executable, *sys.argv])


class Agents:
    """One process that is all of the agents of a plane, which ends it."""

    def __init__(self, plane, port, every):
        self.plane, self.port, self.file = plane, port, plane.work / "pods.json"
        self.process = subprocess.Popen([sys.executable, __file__, str(port), str(every), self.file])
        plane.kept.callback(lambda: (self.process.kill(), self.process.wait()))

    def firsts(self, namespace, jobs=""):
        """What PODS has, of the first workers there that have an address, of jobs whose names begin so. An operator of
        before answers were proven makes no keys.
        """
        objects = f"/api/v1/namespaces/{namespace}/{{}}?labelSelector={JOB}"
        pods, secrets = (self.plane.get(objects.format(kind))["items"] for kind in ("pods", "secrets"))
        keys = {secret["metadata"]["labels"][JOB]: base64.b64decode(secret["data"]["answers"]).decode()
                for secret in secrets if "answers" in (secret.get("data") or {})}
        labelled = [(pod, pod["metadata"]["labels"]) for pod in pods if pod["status"].get("podIP")]
        return {pod["status"]["podIP"]: (pod["metadata"]["uid"], keys.get(labels[JOB])) for pod, labels in labelled
                if labels.get(INDEX) == "0" and labels[JOB].startswith(jobs)}

    def tell(self, namespace, jobs=""):
        """Makes them answer for these."""
        self.file.write_text(json.dumps(self.firsts(namespace, jobs)))
        self.process.send_signal(signal.SIGHUP)


class Agent(asyncio.Protocol):
    """One connection to one agent."""

    every, pods = 5.0, {}

    def connection_made(self, transport):
        self.transport, self.rest = transport, b""
        self.of = int(ipaddress.IPv4Address(transport.get_extra_info("sockname")[0]))

    def data_received(self, data):
        *asked, self.rest = (self.rest + data).split(b"\r\n\r\n")
        for question in asked:
            if self.of < SILENT or self.of > WILD:
                uid, key = self.pods.get(str(ipaddress.IPv4Address(self.of)), (None, None))
                body = self.status(uid) if self.of < SILENT else self.wild(uid)
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                if key and (nonce := re.search(rb"\?nonce=([0-9a-f]+) ", question)):
                    head += f"x-trainingjob-proof: {proof(key, nonce[1].decode(), body)}\r\n"
                self.transport.write(f"{head}\r\n".encode() + body)
                if b"connection: close" in question.lower():
                    self.transport.close()

    def status(self, uid):
        """As a leader whose gang trains; not all tell something new at the same instant."""
        # a prime, so that neighbours are apart
        phase = self.of * 7919 % 1000 / 1000 * self.every
        since = (time.time() - phase) % self.every
        told = datetime.datetime.fromtimestamp(time.time() - since, datetime.UTC).isoformat().replace("+00:00", "Z")
        count = int((time.time() - phase) // self.every) % 100_000

        def reading(value):
            return {"value": value, "time": told, "source": "Output"}

        return json.dumps({
            "report": {"version": 1, "attempt": 1, "phase": "Running"},
            "progress": {"epoch": reading(1), "step": reading(count * STEPS), "steps": reading(100_000 * STEPS),
                         "metrics": {"loss": reading(1 / (1 + count)), "throughput": reading(123.5)}},
            "podUid": uid,
            "percent": count / 1000,
            "gang": {"attempt": 1, "phase": "Running", "ended": []},
        }).encode()

    def wild(self, uid):
        now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")

        def word():
            return f"New{random.getrandbits(40):x}"

        def reading(value):
            return {"value": value, "time": now, "source": "Output"}

        ended = [{"attempt": number, "reason": word(), "message": word() * 400, "disruption": True, "time": now}
                 for number in random.sample(range(1, 1 << 30), 10)]
        metrics = {word(): reading(random.random()) for _ in range(10)}
        return json.dumps({
            "report": {"version": 1, "attempt": 1 << 30, "phase": "Running"},
            "progress": {"epoch": reading(random.randrange(1000)), "metrics": metrics},
            "podUid": uid,
            "gang": {"attempt": 1 << 30, "phase": "Running", "ended": sorted(ended, key=lambda end: end["attempt"])},
        }).encode()


async def serve(port, pods):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: Agent.pods.update(json.loads(pods.read_text())))
    await (await loop.create_server(Agent, "0.0.0.0", port, backlog=4096)).serve_forever()


if __name__ == "__main__":
    Agent.every = float(sys.argv[2])
    asyncio.run(serve(int(sys.argv[1]), pathlib.Path(sys.argv[3])))
