"""Trains a classifier of handwritten digits with DistributedDataParallel. Run by torchrun on every worker.

Environment: MODEL (mlp or cnn), DIGITS (the data, .csv.gz), HYPERPARAM_EPOCHS, HYPERPARAM_LEARNING_RATE,
HYPERPARAM_BATCH_SIZE (per rank), CHECKPOINT_DIR, CHECKPOINT_FREQUENCY (epochs), RESUME_FROM_CHECKPOINT (a file;
without it the newest checkpoint of CHECKPOINT_DIR is taken).
"""

import gzip
import os
import re
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = int(os.environ.get("HYPERPARAM_EPOCHS") or 10)
LEARNING_RATE = float(os.environ.get("HYPERPARAM_LEARNING_RATE") or 0.05)
BATCH_SIZE = int(os.environ.get("HYPERPARAM_BATCH_SIZE") or 32)
FREQUENCY = int(os.environ.get("CHECKPOINT_FREQUENCY") or os.environ.get("HYPERPARAM_CHECKPOINT_FREQUENCY") or 2)
CHECKPOINTS = Path(os.environ["CHECKPOINT_DIR"]) if os.environ.get("CHECKPOINT_DIR") else None
DATA = os.environ.get("DIGITS") or "/usr/share/digits/digits.csv.gz"


class Stopped(Exception):
    """SIGTERM came: save and leave."""


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def say(text):
        print(f"[rank {rank}/{world}] {text}", flush=True)

    train, test = digits()
    sampler = DistributedSampler(train, shuffle=True, drop_last=True)
    loader = DataLoader(train, batch_size=BATCH_SIZE, sampler=sampler)
    model = network(os.environ.get("MODEL") or "mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    done = resume(model, optimizer, say) if rank == 0 else 0
    # Rank 0 alone reads the checkpoint, so that all ranks go on from the same one whatever their disks hold.
    start = [done, optimizer.state_dict()]
    dist.broadcast_object_list(start, src=0)
    done = start[0]
    optimizer.load_state_dict(start[1])
    ddp = DistributedDataParallel(model)  # hands rank 0's parameters to the others
    if done < EPOCHS:
        say(f"training on {len(train)} digits, {len(sampler)} of them here, epochs {done + 1} to {EPOCHS}")
    elif rank == 0:
        say(f"Epoch {done}/{EPOCHS} test_accuracy: {evaluate(model, test):.4f} (done before: nothing is left to train)")

    try:
        for epoch in range(done + 1, EPOCHS + 1):
            sampler.set_epoch(epoch)
            loss, accuracy = train_epoch(ddp, optimizer, loader, stop)
            line = f"Epoch {epoch}/{EPOCHS} loss: {loss:.4f} accuracy: {accuracy:.4f}"
            if rank == 0:
                line += f" test_accuracy: {evaluate(model, test):.4f}"
            say(line)
            done = epoch
            if rank == 0 and (epoch % FREQUENCY == 0 or epoch == EPOCHS):
                save(model, optimizer, done, say)
    except (Stopped, RuntimeError):
        # A rank that is stopped a moment earlier leaves its peers in a collective that fails: the same end.
        if not stopped(stop):
            raise
        if rank == 0:
            save(model, optimizer, done, say)
        say(f"stopped by SIGTERM after epoch {done}")
        os._exit(0)  # the process group can't be left in order: the peers may be gone
    dist.barrier()  # nobody leaves before rank 0 has saved
    dist.destroy_process_group()


def stopped(stop):
    """Whether SIGTERM has come. It does not reach all pods of a gang at the same moment."""
    end = time.monotonic() + 5
    while not stop and time.monotonic() < end:
        time.sleep(0.05)
    return bool(stop)


def digits():
    """1,797 images of 8x8 pixels as (train, test), every fifth image a test."""
    with gzip.open(DATA, "rt") as file:
        rows = torch.tensor([[float(cell) for cell in line.split(",")] for line in file])
    images, labels = rows[:, :64] / 16.0, rows[:, 64].long()
    held_out = torch.arange(len(rows)) % 5 == 0
    return TensorDataset(images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def network(name):
    if name == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
        )
    if name == "mlp":
        return nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(),
            nn.Linear(512, 512), nn.ReLU(),
            nn.Linear(512, 10),
        )
    sys.exit(f"MODEL is {name!r}; this script knows mlp and cnn")


def train_epoch(ddp, optimizer, loader, stop):
    """Mean loss and accuracy over this rank's share of the data."""
    total = right = seen = 0
    for images, labels in loader:
        if stop:
            raise Stopped
        optimizer.zero_grad()
        output = ddp(images)
        loss = nn.functional.cross_entropy(output, labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        right += (output.argmax(1) == labels).sum().item()
        seen += len(labels)
    return total / seen, right / seen


@torch.no_grad()
def evaluate(model, test):
    images, labels = test
    return (model(images).argmax(1) == labels).float().mean().item()


def save(model, optimizer, epoch, say):
    """Writes checkpoint-<epoch>.pt so that a reader sees all of it or none."""
    if not CHECKPOINTS:
        return
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINTS / f"checkpoint-{epoch}.pt"
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    say(f"checkpoint saved: {path}")


def resume(model, optimizer, say):
    """Loads the checkpoint to go on from, if there is one; the number of epochs already done."""
    path = os.environ.get("RESUME_FROM_CHECKPOINT") or newest()
    if not path:
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    say(f"resumed from {path}, epoch {state['epoch']} of {EPOCHS} done")
    return state["epoch"]


def newest():
    found = {}
    for path in CHECKPOINTS.glob("checkpoint-*.pt") if CHECKPOINTS else []:
        if match := re.fullmatch(r"checkpoint-(\d+)\.pt", path.name):
            found[int(match[1])] = path
    return found[max(found)] if found else None


if __name__ == "__main__":
    main()
