#!/usr/bin/env python3
"""What looking after checkpoints costs: how fast every byte is read, and how much of it a training feels.

    make binaries
    PYTHON-WITH-TORCH tests/checkpoints/bench.py dist/agent [PART ...] [--rounds N]

verify   `agent checkpoints verify` beside `sha256sum` and `crc32` (of libarchive-zip-perl, else Python's zlib), of
         2 GiB in one file of torch.save and of 10,000 files of one torch.distributed.checkpoint. In turns; the page
         cache is warm, then cold (by posix_fadvise of these files alone). Every run reads every byte. `agent` knows
         nothing of the checkpoint before, `agent again` has the agent's ledger, as on the volume of a job.
beside   steps per second of a training on all cores by what the agent does meanwhile: nothing, reading 2 GiB for good,
         uploading them to an S3 server (versitygw of `devcluster/cluster tools`, at niceness 10: elsewhere it is on
         another machine).
restart  what stands between the end of a program and its next start in the same container, with one checkpoint of
         `--gigabytes`: bytes that the agent has read (rchar of its process) divided by the checkpoint's size, and
         seconds; for a save that was never read, and for one that this container has read. Then seconds from the
         start of a new container to that of its program, by `checkpoint.verify`. The page cache is cold. No torch.
idle     CPU and memory of an agent whose program does nothing, without and with 20 checkpoints to look at every 15 s.

Needs 6 GB of disk; `restart` as many as its checkpoint has.
Compare lines of one run: seconds are the machine's, ratios are ours.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLUSTER = HERE.parents[1] / "devcluster/cluster"
KEY, SECRET, BUCKET = "test-key", "test-secret", "bucket"
MIB = 1 << 20
TRAIN = """
import os, sys, torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 10))
optimizer = torch.optim.AdamW(net.parameters())
steps, file = 0, os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    loss = net(torch.randn(256, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
    os.pwrite(file, steps.to_bytes(8, "little"), 0)
"""


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("agent", type=Path)
    arguments.add_argument("parts", nargs="*", default=["verify", "beside", "idle"])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--gigabytes", type=float, default=10)
    arguments.add_argument("--home", type=Path, help="where the files go (default: as tempfile has it)")
    arguments = arguments.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, rounds {arguments.rounds}")
    parts = {"verify": verify, "beside": beside, "idle": idle,
             "restart": partial(restart, size=round(arguments.gigabytes * 1e9))}
    with tempfile.TemporaryDirectory(prefix="trainingjob-bench-", dir=arguments.home) as home:
        for part in arguments.parts:
            parts[part](Path(home), arguments.agent.resolve(), arguments.rounds)


# ---- what is measured


def made(fill, root):
    """By a process of its own: what this one has in memory counts for whatever it starts."""
    child = multiprocessing.Process(target=fill, args=(root,))
    child.start()
    child.join()
    if child.exitcode != 0:
        raise SystemExit(f"{fill.__name__} has failed")


def one_large(root):
    import torch
    generator = torch.Generator().manual_seed(0)
    root.mkdir(parents=True)
    tensors = {f"layer{index}": torch.randint(0, 256, (64 * MIB,), dtype=torch.uint8, generator=generator)
               for index in range(32)}
    torch.save({"model": tensors, "global_step": 500}, root / "step-500.pt")


def many_small(root):
    import torch
    import torch.distributed.checkpoint as dcp
    state = {f"layer{index:05}.weight": torch.randn(1000) for index in range(10_000)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(root / "step-500", single_file_per_rank=False), no_dist=True)


def policy(home, **more):
    """A file with what a job asks for."""
    file = home / f"policy-{len(list(home.glob('policy-*')))}.json"
    file.write_text(json.dumps({"uid": "uid-1", "job": "bench", "workers": 1, "retention": 30, **more}))
    return file


class Kept:
    """A program under an agent that looks after the checkpoints of `root`."""

    def __init__(self, agent, home, root, policy, command):
        more = [f"--checkpoints={policy}", "--attempt=0"] if policy else []
        environment = {name: value for name, value in os.environ.items() if name != "NODE_RANK"}
        self.program = subprocess.Popen(
            [agent, "run", "--grace-seconds", "1", "--termination-log", home / "message", *more, "--", *command],
            env={**environment, "CHECKPOINT_DIR": str(root)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self.proc = Path(f"/proc/{self.program.pid}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.terminate()
        self.program.wait()

    def cpu(self):
        """Seconds, of the threads that there are."""
        return sum(int(file.read_text().split()[0]) for file in self.proc.glob("task/*/schedstat")) / 1e9

    def bytes(self):
        """Read and written, so far."""
        values = dict(line.split(": ") for line in (self.proc / "io").read_text().splitlines())
        return int(values["rchar"]), int(values["wchar"])

    def memory(self):
        lines = dict(line.split(":", 1) for line in (self.proc / "status").read_text().splitlines())
        return {name: int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM", "RssAnon")}


def until(what, seconds, condition):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {seconds} s for {what}")
        time.sleep(0.25)


def is_proven(root, name):
    try:
        ledger = (root / ".trainingjob/ledger.json").read_text().split("\n", 1)[1]
    except (OSError, IndexError):
        return False
    return bool(json.loads(ledger)["checkpoints"].get(name, {}).get("crc32c"))


# ---- verify


def verify(home, agent, rounds):
    for title, fill in {"2 GiB in one file": one_large, "10,000 files": many_small}.items():
        root = home / "root"
        made(fill, root)
        name = next(root.iterdir()).name
        with Kept(agent, home, root, policy(home, lookSeconds=1), ["sleep", "600"]):
            until("the agent to read all", 300, partial(is_proven, root, name))
        (root / ".trainingjob").rename(home / "kept")
        files = sorted(str(path) for path in root.rglob("*") if path.is_file())
        (home / "names").write_text("\0".join(files))
        os.sync()
        ours = [agent, "checkpoints", "verify", "--policy", policy(home), "--root", root]
        tools = {"agent": ours, "agent again": ours, "sha256sum": on_all("sha256sum", home)}
        if shutil.which("crc32"):
            tools["crc32"] = on_all("crc32", home)
        else:
            tools["zlib.crc32"] = on_all([sys.executable, "-c", ZLIB], home)
        for cache in ("warm", "cold"):
            runs = {tool: [] for tool in tools}
            for number in range(rounds):
                order = list(tools)
                for tool in order[number % len(order):] + order[:number % len(order)]:
                    keep(home, root, tool == "agent again")
                    (warm if cache == "warm" else cool)(files)
                    runs[tool].append(measure(tools[tool]))
            show(f"{title}, page cache {cache}", runs)
        keep(home, root, False)
        shutil.rmtree(root)
        shutil.rmtree(home / "kept")


ZLIB = """
import sys, zlib
for name in sys.argv[1:]:
    crc = 0
    with open(name, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    print(f"{crc:08x} {name}")
"""


def on_all(tool, home):
    return ["xargs", "-0", "-a", home / "names", *([tool] if isinstance(tool, str) else tool)]


def keep(home, root, wanted):
    there, away = root / ".trainingjob", home / "kept"
    if wanted and away.exists():
        away.rename(there)
    elif not wanted and there.exists():
        there.rename(away)


def warm(files):
    for name in files:
        with open(name, "rb", buffering=0) as file:
            while file.read(MIB):
                pass


def cool(files):
    for name in files:
        with open(name, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(command):
    """Seconds, CPU seconds, MiB at most."""
    before = os.times()
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{command[0]} has failed with {child.returncode}")
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return seconds, cpu, usage.ru_maxrss / 1024


def show(title, runs):
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{title}: median of {len(next(iter(runs.values())))} (best); less than {floor:.0f} MiB does not show")
    middle = {tool: [statistics.median(values) for values in zip(*of_tool, strict=True)]
              for tool, of_tool in runs.items()}
    ours = middle["agent"]
    by = "   agent takes {:.2f} of the time, {:.2f} of the CPU"
    for tool, (seconds, cpu, memory) in middle.items():
        best = min(runs[tool])
        ratio = "" if tool == "agent" else by.format(ours[0] / seconds, ours[1] / cpu)
        print(f"  {tool:11} {seconds:6.2f} ({best[0]:.2f}) s, CPU {cpu:6.2f} s, {memory:4.0f} MiB{ratio}", flush=True)


# ---- a restart

# Each attempt notes when it begins and ends, and how much its agent has read by then. The first one saves.
RESTARTED = """
note() { echo "$1-$ATTEMPT $(date +%s.%N) $(sed -n 's/rchar: //p' /proc/$PPID/io)" >> "$NOTES"; }
note begin
[ -e "$CHECKPOINT_DIR/step-1" ] || mv "$STAGED" "$CHECKPOINT_DIR/step-1"
dd if="$CHECKPOINT_DIR/step-1/weights" iflag=nocache count=0 status=none
note end
[ "$ATTEMPT" -ge 3 ]
"""


def restart(home, agent, rounds, size):
    staged, root = home / "staged", home / "root"
    staged.mkdir()
    root.mkdir()
    block = os.urandom(64 * MIB)
    with (staged / "weights").open("wb") as file:
        for at in range(0, size, len(block)):
            file.write(block[:size - at])
        os.fsync(file.fileno())
    (staged / ".complete").touch()
    (home / "key").write_text("0123456789abcdef0123456789abcdef")
    figures = {"not yet read": [], "read by this container": [], "new container, Full": [],
               "new container, Structure": []}
    for _ in range(rounds):
        notes = attempts(home, agent, root, 1)
        for name, number in {"not yet read": 1, "read by this container": 2}.items():
            (ended, before), (began, after) = notes[f"end-{number}"], notes[f"begin-{number + 1}"]
            figures[name].append(((after - before) / size, began - ended))
        for mode in ("Full", "Structure"):
            since = time.time()
            began, read = attempts(home, agent, root, 3, structureOnly=mode == "Structure")["begin-3"]
            figures[f"new container, {mode}"].append((read / size, began - since))
        (root / "step-1").rename(staged)
        shutil.rmtree(root / ".trainingjob")
    print(f"\nrestart with {size / 1e9:g} GB, page cache cold: median of {rounds} (largest)")
    for name, values in figures.items():
        of_size, seconds = zip(*values, strict=True)
        print(f"  {name:24} read {statistics.median(of_size):.4f} ({max(of_size):.4f}) of its size, "
              f"{statistics.median(seconds):6.2f} ({max(seconds):.2f}) s", flush=True)
    shutil.rmtree(staged)
    shutil.rmtree(root)


def attempts(home, agent, root, first, **more):
    """What the attempts of one container have noted: seconds since 1970, and bytes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    setup = {"uid": "uid-1", "workers": 1, "leader": "127.0.0.1", "port": port, "masterPort": 29500,
             "restarts": "OnFailure", "backoffLimit": 5}
    (home / "gang.json").write_text(json.dumps(setup))
    (home / "notes").unlink(missing_ok=True)
    command = [agent, "run", f"--attempt={first}", f"--termination-log={home}/message", f"--gang={home}/gang.json",
               f"--gang-key={home}/key", f"--checkpoints={policy(home, lookSeconds=600, shared=True, **more)}",
               "--", "sh", "-c", RESTARTED]
    environment = {**os.environ, "NODE_RANK": "0", "POD_UID": "pod-0", "CHECKPOINT_DIR": str(root),
                   "STAGED": str(home / "staged"), "NOTES": str(home / "notes")}
    subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=(home / "log").open("w"))
    lines = [line.split() for line in (home / "notes").read_text().splitlines()]
    return {name: (float(seconds), int(read)) for name, seconds, read in lines}


# ---- beside a training


def beside(home, agent, rounds):
    ready = home / "ready"
    made(one_large, ready)
    os.sync()
    train = [sys.executable, "-c", TRAIN, home / "steps"]
    store = home / "store"
    results = {"reading": [], "uploading": []}
    used = {"reading": [], "uploading": []}
    with Server(store) as server:
        secret = home / "secret"
        secret.mkdir()
        (secret / "AWS_ACCESS_KEY_ID").write_text(KEY)
        (secret / "AWS_SECRET_ACCESS_KEY").write_text(SECRET)
        place = {"uri": f"s3://{BUCKET}/runs", "endpoint": server.url, "region": "us-east-1",
                 "credentials": str(secret)}
        for _ in range(rounds):
            root = home / "root"
            root.mkdir()
            (home / "steps").write_bytes(bytes(8))
            with Kept(agent, home, root, policy(home, lookSeconds=1, backup={"place": place, "intervalSeconds": 1}),
                      train) as kept:
                until("the training to begin", 60, lambda: steps(home) > 100)
                samples = Samples(home, kept)
                samples.take(10)
                os.utime(ready / "step-500.pt")  # what is older than the job is not its own
                os.link(ready / "step-500.pt", root / "step-500.pt")
                samples.take(480, until=lambda: any(store.rglob("step-500.pt.json")))
                if not any(store.rglob("step-500.pt.json")):
                    print("  it was not uploaded to its end within 480 s")
                samples.take(10)
                for what, (ratio, cpu) in samples.ratios().items():
                    results[what].append(ratio)
                    used[what].append(cpu)
                print(f"  agent's memory {kept.memory()['VmHWM']:.0f} MiB at most", flush=True)
            shutil.rmtree(root)
            shutil.rmtree(store / BUCKET / "runs", ignore_errors=True)
    print("\na training on all cores, its steps per second beside what the agent does, by those before and after")
    for what, ratios in results.items():
        if not ratios:
            continue
        print(f"  {what:10} {statistics.median(ratios):.3f} (" + ", ".join(f"{ratio:.3f}" for ratio in ratios) +
              f"), agent's CPU {statistics.median(used[what]):.2f} s for 2 GiB", flush=True)
    shutil.rmtree(ready)


def steps(home):
    return struct.unpack("<Q", (home / "steps").read_bytes()[:8])[0]


class Samples:
    """What the training and the agent have done by when."""

    def __init__(self, home, kept):
        self.home, self.kept, self.all = home, kept, []

    def take(self, seconds, until=lambda: False):
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            self.all.append((time.monotonic(), steps(self.home), self.kept.cpu(), *self.kept.bytes()))
            time.sleep(0.5)

    def ratios(self):
        """By what the agent does: the training's pace by that of its quiet times, and the agent's CPU seconds."""
        sums = {"quiet": [0, 0, 0], "reading": [0, 0, 0], "uploading": [0, 0, 0]}
        for (time0, steps0, cpu0, read0, wrote0), (time1, steps1, cpu1, read1, wrote1) in pairwise(self.all):
            if wrote1 - wrote0 > 4 * MIB:
                what = "uploading"
            elif read1 - read0 > 4 * MIB:
                what = "reading"
            elif read1 - read0 < MIB // 4:
                what = "quiet"
            else:
                continue
            for at, by in enumerate((time1 - time0, steps1 - steps0, cpu1 - cpu0)):
                sums[what][at] += by
        quiet = sums.pop("quiet")
        print("  " + ", ".join(f"{what} for {of[0]:.0f} s" for what, of in {"quiet": quiet, **sums}.items()))
        return {what: (of[1] / of[0] / (quiet[1] / quiet[0]), of[2]) for what, of in sums.items() if of[0]}


class Server:
    """An S3 server that takes the CPU that no other process wants."""

    def __init__(self, store):
        folder = subprocess.run([CLUSTER, "tools", "versitygw"], check=True, text=True, stdout=subprocess.PIPE).stdout
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (store / BUCKET).mkdir(parents=True)
        command = ["nice", "-n", "10", Path(folder.strip()) / "versitygw", "--access", KEY, "--secret", SECRET,
                   "--region", "us-east-1", "--quiet", "--port", f"127.0.0.1:{self.port}", "posix", store]
        self.url, self.server = f"http://127.0.0.1:{self.port}", subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def __enter__(self):
        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        until("the server to listen", 30, listens)
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()


# ---- idle


def twenty(root):
    import torch
    for step in range(20):
        folder = root / f"step-{step}"
        folder.mkdir(parents=True)
        torch.save({"model": {f"layer{index}": torch.randn(65536) for index in range(4)}}, folder / "model.pt")
        (folder / ".complete").touch()


def idle(home, agent, _rounds):
    root = home / "root"
    made(twenty, root)
    (home / "empty").mkdir()
    with Kept(agent, home, root, policy(home), ["sleep", "600"]) as kept, \
            Kept(agent, home, home / "empty", None, ["sleep", "600"]) as bare:
        until("the agent to read all", 120, lambda: all(is_proven(root, f"step-{step}") for step in range(20)))
        time.sleep(15)
        agents = {"with 20 checkpoints": kept, "without": bare}
        before = {name: (of.cpu(), of.bytes()[0]) for name, of in agents.items()}
        time.sleep(120)
        print("\nan agent whose program sleeps, each minute")
        for name, of in agents.items():
            cpu, read = of.cpu() - before[name][0], of.bytes()[0] - before[name][1]
            memory = of.memory()
            print(f"  {name:20} {cpu / 2 * 1000:4.0f} ms of CPU, {read / 2 / 1024:.0f} KiB read, "
                  f"{memory['VmRSS']:.1f} MiB, of which {memory['RssAnon']:.1f} its own", flush=True)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
