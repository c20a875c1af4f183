"""A cluster of roles that only talk, as TF_CONFIG or TRAININGJOB_CLUSTER describes it, without any framework.

Servers (ps, worker) answer until they are ended. The chief asks each of them in every round and exits. An evaluator
knows of itself alone. The role and index in FAILS (as in `ps 1`) fails in the first attempt, when it has been asked
three times.
"""

import json
import os
import signal
import socket
import time

attempt = int(os.environ["ATTEMPT"])
if "TF_CONFIG" in os.environ:
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, role, index = config["cluster"], config["task"]["type"], config["task"]["index"]
else:
    port = os.environ["MASTER_PORT"]
    hosts = json.loads(os.environ["TRAININGJOB_CLUSTER"])
    cluster = {name: [f"{host}:{port}" for host in all_of_it] for name, all_of_it in hosts.items()}
    role, index = os.environ["TRAININGJOB_ROLE"], int(os.environ["NODE_RANK"])
assert role == os.environ["TRAININGJOB_ROLE"], role
print(f"{role} {index} knows of {sorted(cluster)}", flush=True)


def serve():
    port = int(cluster[role][index].rsplit(":", 1)[1])
    asked = 0
    with socket.create_server(("", port)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"here")
            asked += 1
            if attempt == 1 and asked == 3 and os.environ.get("FAILS") == f"{role} {index}":
                raise ValueError("the parameters are gone")


def coordinate():
    servers = [server for name in ("ps", "worker") for server in cluster.get(name, [])]
    for epoch in range(1, 11):
        for server in servers:
            host, port = server.rsplit(":", 1)
            until = time.monotonic() + 60
            while True:
                try:
                    with socket.create_connection((host, int(port)), timeout=10) as connection:
                        assert connection.recv(4) == b"here"
                    break
                except OSError:
                    # A server of this attempt may be starting, as with TensorFlow.
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.1)
        print(f"Epoch {epoch}/10 loss: {1 / epoch:.3f}", flush=True)
        time.sleep(0.5)


def evaluate():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.sigwait({signal.SIGTERM})  # a handler would run after signal.pause() if the signal came just before that
    print("the last evaluation", flush=True)


if role == "chief":
    coordinate()
elif role == "evaluator":
    evaluate()
else:
    serve()
