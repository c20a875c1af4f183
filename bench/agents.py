#!/usr/bin/env python3
"""The agents of simulated pods, all in this one process: agents.py PORT SECONDS PODS

A pod's address says whose agent it is: 100.64.0.0 and what follows answer at once, with a step that grows every
SECONDS; 100.96.0.0 and what follows take what they are asked and never answer. NETWORK is run first, in a network
namespace where nothing else is: it makes all of these addresses its own. PODS is a file with the UID of the pod at
each address, as JSON; it is read again when this process is sent SIGHUP.
"""

import asyncio
import datetime
import ipaddress
import json
import pathlib
import signal
import sys
import time

FIRST, SILENT = (int(ipaddress.IPv4Address(first)) for first in ("100.64.0.0", "100.96.0.0"))
# A Service's endpoints can't be of loopback.
NETWORK = "ip link set lo up && ip route add local 100.64.0.0/10 dev lo"
STEPS = 10  # each time


def address(number, silent=False):
    """Of the agents of one job."""
    return str(ipaddress.IPv4Address((SILENT if silent else FIRST) + 1 + number))


class Agent(asyncio.Protocol):
    """One connection to one agent."""

    every, pods = 5.0, {}

    def connection_made(self, transport):
        self.transport, self.rest = transport, b""
        self.of = int(ipaddress.IPv4Address(transport.get_extra_info("sockname")[0]))

    def data_received(self, data):
        *asked, self.rest = (self.rest + data).split(b"\r\n\r\n")
        for question in asked:
            if self.of < SILENT:
                body = self.status()
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                self.transport.write(head.encode() + body)
                if b"connection: close" in question.lower():
                    self.transport.close()

    def status(self):
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
            "podUid": self.pods.get(str(ipaddress.IPv4Address(self.of))),
            "percent": count / 1000,
            "gang": {"attempt": 1, "phase": "Running", "ended": []},
        }).encode()


async def serve(port, pods):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: Agent.pods.update(json.loads(pods.read_text())))
    await (await loop.create_server(Agent, "0.0.0.0", port, backlog=4096)).serve_forever()


if __name__ == "__main__":
    Agent.every = float(sys.argv[2])
    asyncio.run(serve(int(sys.argv[1]), pathlib.Path(sys.argv[3])))
