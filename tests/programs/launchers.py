"""Runs the same ranks under torchrun and under gang.py, and prints as JSON what either does in each scenario.

Everything runs at once. torch is imported once: each torchrun is a fork of this process.
"""

import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback

# What the two ranks of a launcher do once both are there. One that stays ends at SIGTERM; one that is deaf does not.
SCENARIOS = {
    "succeeds": ("exits 0", "exits 0"),
    "exits": ("stays", "exits 3"),
    "raises": ("stays", "raises"),
    "killed": ("stays", "is killed"),
    "told to end": ("stays", "is deaf"),
}
PORT = 24100
GANG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gang.py")


def main():
    from torch.distributed.run import main as torchrun

    with tempfile.TemporaryDirectory() as folder:
        launchers = []
        for number, name in enumerate(SCENARIOS):
            launchers.append(Launcher("torchrun", name, f"{folder}/torchrun-{number}", PORT + 2 * number, torchrun))
            launchers.append(Launcher("gang.py", name, f"{folder}/gang-{number}", PORT + 2 * number + 1, None))
        while any(launcher.exit is None for launcher in launchers):
            for launcher in launchers:
                launcher.look()
            time.sleep(0.02)
        facts = {"torchrun": {}, "gang.py": {}}
        for launcher in launchers:
            facts[launcher.kind][launcher.name] = launcher.facts()
        print(json.dumps(facts))


class Launcher:
    def __init__(self, kind, name, folder, port, torchrun):
        self.kind, self.name, self.folder = kind, name, folder
        self.exit, self.signalled, self.begun = None, False, time.monotonic()
        os.mkdir(folder)
        self.environment = {name: value for name, value in os.environ.items() if name[:4] != "PET_"} | {
            "PET_NNODES": "1",
            "PET_NPROC_PER_NODE": "2",
            "PET_NODE_RANK": "0",
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(port),
            "PET_RDZV_BACKEND": "static",
            "PET_MAX_RESTARTS": "0",
            "TORCHELASTIC_ERROR_FILE": f"{folder}/launcher.json",
            "SCENARIO": name,
            "FACTS": folder,
        }
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            if torchrun is None:
                os.execve(sys.executable, [sys.executable, GANG, os.path.abspath(__file__)], self.environment)
            os.environ.clear()
            os.environ.update(self.environment)
            os._exit(self.call(torchrun))

    def call(self, torchrun):
        """As `sys.exit(main())` of the program torchrun ends."""
        try:
            torchrun([os.path.abspath(__file__)])
            return 0
        except SystemExit as end:
            return end.code or 0
        except BaseException:
            traceback.print_exc()
            return 1

    def look(self):
        if self.name == "told to end" and not self.signalled and len(self.ranks()) == 2:
            # Taken before, because the launcher may begin to wait before this process runs again.
            self.signalled, self.begun = True, time.monotonic()
            os.kill(self.pid, signal.SIGTERM)
        if self.exit is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit, self.took = os.waitstatus_to_exitcode(status), time.monotonic() - self.begun

    def ranks(self):
        return [rank for rank in map(self.read, ("rank-0", "rank-1")) if rank]

    def read(self, name):
        try:
            with open(f"{self.folder}/{name}.json") as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def facts(self):
        with open(f"{self.folder}/log") as file:
            log = file.read()
        ranks = self.ranks()
        for rank in ranks:
            rank["child"] = rank.pop("parent") == self.pid
            rank["left"] = is_alive(rank.pop("pid"))
            rank["got SIGTERM"] = os.path.exists(f"{self.folder}/SIGTERM-{rank['environment']['LOCAL_RANK']}")
            port = rank["environment"].pop("MASTER_PORT")
            rank["port is the launcher's"] = port == self.environment["PET_MASTER_PORT"]
        error = (self.read("launcher") or {}).get("message") or {}
        message = re.sub(r"Process \d+", "Process N", error.get("message", ""))
        failed = re.search(r"\] failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: \d+\) of binary: (\S+)", log)
        root = re.search(r"Root Cause(?s:.*?) rank +: (\d+)(?s:.*?) exitcode +: (-?\d+)", log)
        return {
            "exit": self.exit,
            "ranks": ranks,
            "error": {"code": error.get("errorCode"), "message": message},
            "failed": failed and failed.groups(),
            "root cause": root and root.groups(),
            "waited for the deaf": self.name == "told to end" and self.took >= 30,
        }


def is_alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


# ---- a rank


def run_rank():
    folder, local = os.environ["FACTS"], int(os.environ["LOCAL_RANK"])
    does = SCENARIOS[os.environ["SCENARIO"]][local]

    def terminate(*_):
        open(f"{folder}/SIGTERM-{local}", "w").close()
        if does != "is deaf":
            os._exit(0)

    signal.signal(signal.SIGTERM, terminate)
    error_file = os.environ.pop("TORCHELASTIC_ERROR_FILE")
    names = ["MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "ROLE_NAME"] + [
        part + name for name in ("RANK", "WORLD_SIZE") for part in ("", "LOCAL_", "GROUP_", "ROLE_")
    ]
    names += [name for name in os.environ if name[:5] in ("TORCH", "PET_N", "PET_R")]
    facts = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "own session": os.getsid(0) == os.getpid(),
        "own group": os.getpgrp() == os.getpid(),
        "folder for its error": os.path.isdir(os.path.dirname(error_file)),
        "environment": {name: os.environ.get(name) for name in names},
    }
    with open(f"{folder}/.rank-{local}", "w") as file:
        json.dump(facts, file)
    os.rename(f"{folder}/.rank-{local}", f"{folder}/rank-{local}.json")
    while not all(os.path.exists(f"{folder}/rank-{other}.json") for other in (0, 1)):
        time.sleep(0.01)
    if does.startswith("exits"):
        sys.exit(int(does.split()[1]))
    if does == "raises":
        # As @record writes it.
        with open(error_file, "w") as file:
            extra = {"py_callstack": "", "timestamp": str(int(time.time()))}
            json.dump({"message": {"message": "ValueError: label 11", "extraInfo": extra}}, file)
        raise ValueError("label 11")
    if does == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(0.05)  # a signal that comes just before a long sleep would be handled after it


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        run_rank()
    else:
        main()
