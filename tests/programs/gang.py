#!/usr/bin/env python3
"""A training of the standard library: a launcher as torchrun is, and ranks that all-reduce, save and resume.

It stands for torchrun and a program of PyTorch where neither is the subject of a test: it starts in 50 ms, not in 10 s.
tests/node/gang.rs compares its launcher with torchrun, process by process.

    gang.py [SCRIPT ARGUMENT...]    starts PET_NPROC_PER_NODE ranks of SCRIPT, of itself by default
    gang.py                         with LOCAL_RANK in its environment: is such a rank

What a training ends with depends on nothing but the number of steps: it is the same for any number of ranks, and after
any number of restarts from whole checkpoints. Each step has a batch of 8 samples, which the ranks divide between them:

    sample(k, i) = the first 8 bytes of sha256("k i"), little-endian
    weights(0)   = 32 bytes of 0
    weights(k)   = sha256(weights(k - 1) + sum of sample(k, 0..8), 8 bytes, little-endian)

A rank that loses its peers raises what gloo raises. Ranks of two attempts that meet raise MixedAttempts.

Environment, beside torchrun's:
  CHECKPOINT_DIR          where rank 0 saves step-K.safetensors. If unset nothing is saved, and only STEPS ends it
  RESUME_FROM_CHECKPOINT  the file to resume from, read by every rank; nothing if unset or empty
  RANKS_PORT              MASTER_PORT: where rank 0 listens. Another one under torchrun, whose store has that port
  STEPS                   0: the number of steps; with 0 only the file `.enough` ends the training
  SAVE_EVERY              5: every 5th step and the last one are saved
  STEP_SECONDS            0.1: the least time that a step takes
  BYTES                   4096: the size of what is saved beside the weights
  ATOMIC                  1. With 0 a checkpoint is written in place, piece by piece
  CUT_ATTEMPTS            0: in the first N attempts rank 0 kills itself in the middle of its second save
  HISTORY                 CHECKPOINT_DIR/.history: a file to which each attempt, when its ranks have met, adds its
                          number and the step that it resumes from
  BEST_AT                 names files epoch=K-step=K-val_loss=L.safetensors, where L is least at this step

Files in CHECKPOINT_DIR, by which a test leads it:
  .enough                 ends the training after the current step, which is saved
  .hold                   has the number of an attempt: its next save stops in the middle, writes `ATTEMPT STEP` to the
                          file `.held`, and waits until `.hold` is gone or has another number
"""

import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

BATCH = 8
PIECES = 16
# torch.distributed.elastic: time between two looks at the ranks, and between SIGTERM and SIGKILL.
MONITOR_SECONDS = 0.1
CLOSE_SECONDS = 30
MEET_SECONDS = 120


def variable(name, default, kind=str):
    return kind(os.environ.get(name) or default)


# ---- the launcher


class SignalException(Exception):
    pass


def launch(command):
    """Runs the ranks of this node; the exit code. See SubprocessContext and LocalElasticAgent of PyTorch."""
    count = variable("PET_NPROC_PER_NODE", 1, int)
    folder = f"{variable('TMPDIR', '/tmp')}/gang-{os.getpid()}"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, interrupt)
    ranks = []
    try:
        for local in range(count):
            environment = os.environ | environment_of(local, count, folder)
            os.makedirs(os.path.dirname(environment["TORCHELASTIC_ERROR_FILE"]), exist_ok=True)
            ranks.append(subprocess.Popen(command, env=environment, start_new_session=True))
        failures = {}
        while not failures and any(rank.poll() is None for rank in ranks):
            time.sleep(MONITOR_SECONDS)
            failures = {local: rank.poll() for local, rank in enumerate(ranks) if rank.poll()}
        close(ranks, signal.SIGTERM)
    except SignalException as exception:
        number = exception.args[0]
        log(f"Received {number} death signal, shutting down workers")
        close(ranks, number)
        record_exception(exception)
        log(f"SignalException: Process {os.getpid()} got signal: {int(number)}")
        return 1
    if not failures:
        return 0
    local = next(iter(failures))
    tell_of(failures, local, ranks, count, command[0])
    hand_on(f"{folder}/{local}/error.json", failures[local])
    return 1


def environment_of(local, count, folder):
    node = variable("PET_NODE_RANK", 0, int)
    nodes = variable("PET_NNODES", 1, int)
    rank, world = str(node * count + local), str(nodes * count)
    environment = {
        "LOCAL_RANK": str(local),
        "RANK": rank,
        "GROUP_RANK": str(node),
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(count),
        "WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": variable("PET_MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": variable("PET_MASTER_PORT", "29500"),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": variable("PET_MAX_RESTARTS", "0"),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "TORCHELASTIC_ERROR_FILE": f"{folder}/{local}/error.json",
    }
    if count > 1:
        environment["OMP_NUM_THREADS"] = variable("OMP_NUM_THREADS", "1")
    return environment


def interrupt(number, _):
    raise SignalException(signal.Signals(number))


def close(ranks, number):
    """Ends the ranks that still run: by this signal to the group of each, and by SIGKILL to those that remain."""
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, number)
    end = time.monotonic() + CLOSE_SECONDS
    for rank in ranks:
        try:
            rank.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def log(text):
    sys.stderr.write(f"E {os.getpid()} gang.py] {text}\n")


def tell_of(failures, first, ranks, count, program):
    """The failure in torchrun's words, of which the agent reads the cause."""
    code, pid = failures[first], ranks[first].pid
    rank = variable("PET_NODE_RANK", 0, int) * count + first
    log(f"failed (exitcode: {code}) local_rank: {first} (pid: {pid}) of binary: {program}")
    ruler, line = "=" * 60, "-" * 60
    sys.stderr.write(
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{ruler}\n{program} FAILED\n{line}\n"
        f"Failures:\n  <NO_OTHER_FAILURES>\n{line}\nRoot Cause (first observed failure):\n[0]:\n"
        f"  rank      : {rank} (local_rank: {first})\n  exitcode  : {code} (pid: {pid})\n{ruler}\n"
    )


def hand_on(error_file, code):
    """Copies what the rank that failed first has recorded to the launcher's own error file."""
    own = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if own and os.path.exists(error_file):
        with open(error_file) as file:
            error = json.load(file)
        if isinstance(error.get("message"), dict):
            error["message"]["errorCode"] = code
        with open(own, "w") as file:
            json.dump(error, file)


def record_exception(exception):
    own = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if own:
        message = f"{type(exception).__name__}: Process {os.getpid()} got signal: {int(exception.args[0])}"
        with open(own, "w") as file:
            extra = {"py_callstack": "", "timestamp": str(int(time.time()))}
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)


# ---- the ranks


class MixedAttempts(Exception):
    pass


class Peers:
    """The connections of a rank: rank 0 has one to each of the others, which have one to rank 0."""

    REDUCED = struct.Struct("<Q?")
    CONTRIBUTED = struct.Struct("<Q")
    HELLO = struct.Struct("<III")

    def __init__(self, rank, world, attempt):
        address = (os.environ["MASTER_ADDR"], variable("RANKS_PORT", os.environ["MASTER_PORT"], int))
        self.peers = []
        if rank > 0:
            self.peers.append(connect(address))
            self.peers[0].sendall(self.HELLO.pack(rank, world, attempt))
            return
        with socket.create_server(("", address[1]), backlog=world) as server:
            server.settimeout(MEET_SECONDS)
            seen = {0}
            while len(seen) < world:
                peer, _ = server.accept()
                # The timeout of its server is not its own.
                peer.setblocking(True)
                other, size, of_attempt = self.HELLO.unpack(receive(peer, self.HELLO.size))
                if (size, of_attempt) != (world, attempt) or other in seen:
                    raise MixedAttempts(f"rank {other} of {size} in attempt {of_attempt} calls {world} in {attempt}")
                seen.add(other)
                self.peers.append(peer)
        for peer in self.peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reduce(self, rank, value, is_last):
        """The sum of all ranks' values modulo 2**64, and whether rank 0 says that this is the last step."""
        try:
            if rank > 0:
                self.peers[0].sendall(self.CONTRIBUTED.pack(value))
                return self.REDUCED.unpack(receive(self.peers[0], self.REDUCED.size))
            for peer in self.peers:
                value += self.CONTRIBUTED.unpack(receive(peer, self.CONTRIBUTED.size))[0]
            answer = value % 2**64, is_last
            for peer in self.peers:
                peer.sendall(self.REDUCED.pack(*answer))
            return answer
        except OSError as error:
            raise lost_peer(error) from None


def lost_peer(error):
    return RuntimeError(f"[gloo/transport/tcp/pair.cc:534] Connection closed by peer [{error}]")


def connect(address):
    """Connects to rank 0, which may not be there yet, nor its name."""
    end = time.monotonic() + MEET_SECONDS
    while True:
        try:
            peer = socket.create_connection(address, timeout=10)
            peer.settimeout(None)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return peer
        except OSError as error:
            if time.monotonic() > end:
                raise RuntimeError(f"gloo: timed out waiting for {address}: {error}") from None
            time.sleep(0.05)


def receive(peer, count):
    data = b""
    while len(data) < count:
        piece = peer.recv(count - len(data))
        if not piece:
            raise lost_peer("end of file")
        data += piece
    return data


class Training:
    def __init__(self):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.attempt = variable("ATTEMPT", 0, int)
        self.folder = os.environ.get("CHECKPOINT_DIR")
        self.steps = variable("STEPS", 0, int)
        self.step, self.weights = 0, bytes(32)
        self.saves = 0

    def run(self):
        resume = os.environ.get("RESUME_FROM_CHECKPOINT")
        if resume:
            self.load(resume)
        peers = Peers(self.rank, self.world, self.attempt)
        # All have met when the first sum is there.
        peers.reduce(self.rank, 0, False)
        say(f"resumed from {resume} at step {self.step}" if resume else "starts from nothing")
        self.note()
        save_every = variable("SAVE_EVERY", 5, int)
        is_last = 0 < self.steps <= self.step
        while not is_last:
            begun = time.monotonic()
            self.step += 1
            share = sum(sample(self.step, i) for i in range(self.rank, BATCH, self.world)) % 2**64
            ends = self.step == self.steps or self.is_told(".enough")
            total, is_last = peers.reduce(self.rank, share, ends)
            self.weights = hashlib.sha256(self.weights + struct.pack("<Q", total)).digest()
            if self.rank == 0:
                say(f"step {self.step}{f'/{self.steps}' if self.steps else ''} loss={1 / self.step:.6f}")
                if self.folder and (is_last or self.step % save_every == 0):
                    self.save()
            time.sleep(max(0, variable("STEP_SECONDS", 0.1, float) - (time.monotonic() - begun)))
        # No rank leaves before the last checkpoint is written.
        peers.reduce(self.rank, 0, True)
        say(f"trained {self.step} steps")
        say(f"weights {self.weights.hex()}")

    def is_told(self, name):
        return self.rank == 0 and self.folder is not None and os.path.exists(f"{self.folder}/{name}")

    def note(self):
        history = os.environ.get("HISTORY") or (self.folder and f"{self.folder}/.history")
        if self.rank == 0 and history:
            os.makedirs(os.path.dirname(history) or ".", exist_ok=True)
            with open(history, "a") as file:
                file.write(f"{self.attempt} {self.step}\n")

    def load(self, path):
        with open(path, "rb") as file:
            data = file.read()
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        begin, end = header["weights"]["data_offsets"]
        self.step = int(header["__metadata__"]["step"])
        self.weights = data[8 + length + begin : 8 + length + end]

    def save(self):
        """A file of safetensors: the length of its header, the header, the tensors."""
        self.saves += 1
        say(f"saving step {self.step}")
        name = f"step-{self.step}.safetensors"
        if os.environ.get("BEST_AT"):
            loss = abs(self.step - variable("BEST_AT", 0, int))
            name = f"epoch={self.step}-step={self.step}-val_loss={loss}.safetensors"
        path = f"{self.folder}/{name}"
        temporary = path if variable("ATOMIC", "1") == "0" else f"{path}.tmp"
        ballast = variable("BYTES", 4096, int)
        tensors = {
            "__metadata__": {"step": str(self.step)},
            "weights": {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]},
            "ballast": {"dtype": "U8", "shape": [ballast], "data_offsets": [32, 32 + ballast]},
        }
        header = json.dumps(tensors).encode()
        header += b" " * (-len(header) % 8)
        data = struct.pack("<Q", len(header)) + header + self.weights + bytes(ballast)
        os.makedirs(self.folder, exist_ok=True)
        with open(temporary, "wb") as file:
            for piece in range(PIECES):
                file.write(data[len(data) * piece // PIECES : len(data) * (piece + 1) // PIECES])
                file.flush()
                if piece == PIECES // 2 - 1:
                    self.in_the_middle(f"{file.tell()} of {len(data)} bytes are in {temporary}")
            os.fsync(file.fileno())
        if temporary != path:
            os.rename(temporary, path)
        say(f"saved step {self.step}")

    def in_the_middle(self, where):
        if self.attempt <= variable("CUT_ATTEMPTS", 0, int) and self.saves == 2:
            say(f"cut: {where}")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.is_held():
            say(f"held: {where}")
            with open(f"{self.folder}/.held.new", "w") as file:
                file.write(f"{self.attempt} {self.step}\n")
            os.rename(f"{self.folder}/.held.new", f"{self.folder}/.held")
            while self.is_held():
                time.sleep(0.02)

    def is_held(self):
        try:
            with open(f"{self.folder}/.hold") as file:
                return int(file.read() or 0) == self.attempt
        except FileNotFoundError:
            return False


def sample(step, i):
    return int.from_bytes(hashlib.sha256(f"{step} {i}".encode()).digest()[:8], "little")


def say(text):
    """In one write: the ranks of a worker share its output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1 or "LOCAL_RANK" not in os.environ:
        sys.exit(launch([sys.executable, "-u", *(sys.argv[1:] or [sys.argv[0]])]))
    Training().run()
