"""Trains a small network with DistributedDataParallel over gloo, and saves it every few steps. Run by torchrun.

Its result depends on nothing but WIDTH, STEPS and the number of processes: killed at any moment and resumed from a
whole checkpoint, it prints the same `weights` as undisturbed. Step K takes its data from the seed K.

Environment, beside torchrun's:
  CHECKPOINT_DIR          where it saves: step-K.pt (FORMAT=pt, by torch.save) or the folder step-K (FORMAT=dcp)
  RESUME_FROM_CHECKPOINT  the checkpoint to resume from, read by every process; none if unset or empty
  STEPS, SAVE_EVERY       40 steps, of which every 10th and the last are saved
  WIDTH                   of the network, 64: at 64 a checkpoint has 70 kB, at 1024 13 MB
  STEP_SECONDS            0: how long a step takes at least
  ATOMIC                  1. With 0 step-K.pt is written in place, piece by piece
  SAVE_SECONDS            0: how long a save takes at least: the pieces of step-K.pt, or DCP's time before .metadata
  CUT_SAVE                a step whose save is cut in the middle, in the attempts that CUT_ON lists (0): by SIGKILL, or
  CUT_BY                  `kill`; with `hold` it stays there and waits to be killed. See `cut` in each way of saving.
  CUT_ATTEMPTS            0: in so many attempts the second save is cut, whatever its step
  HISTORY                 a file to which each attempt adds its number and the step that it resumes from
  BEST_AT                 gives step-K.pt the name epoch=K-step=K-val_loss=L.ckpt, where L is least at this step
"""

import hashlib
import io
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ["CHECKPOINT_DIR"])
RESUME = os.environ.get("RESUME_FROM_CHECKPOINT")
STEPS = int(os.environ.get("STEPS") or 40)
SAVE_EVERY = int(os.environ.get("SAVE_EVERY") or 10)
WIDTH = int(os.environ.get("WIDTH") or 64)
FORMAT = os.environ.get("FORMAT") or "pt"
ATOMIC = os.environ.get("ATOMIC") != "0"
STEP_SECONDS = float(os.environ.get("STEP_SECONDS") or 0)
SAVE_SECONDS = float(os.environ.get("SAVE_SECONDS") or 0)
CUT_SAVE = int(os.environ.get("CUT_SAVE") or 0)
CUT_BY = os.environ.get("CUT_BY") or "kill"
CUT_ATTEMPTS = int(os.environ.get("CUT_ATTEMPTS") or 0)
BEST_AT = os.environ.get("BEST_AT")
HISTORY = os.environ.get("HISTORY")
ATTEMPT = int(os.environ.get("ATTEMPT") or 0)
cuts = {CUT_SAVE} if (os.environ.get("ATTEMPT") or "0") in (os.environ.get("CUT_ON") or "0").split(",") else set()
PIECES = 16


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    load, save = (load_dcp, save_dcp) if FORMAT == "dcp" else (load_pt, save_pt)
    done = 0
    if RESUME:
        done = load(RESUME, model, optimizer)
        say(f"resumed from {RESUME} at step {done}", everyone=True)
    else:
        say("starts from nothing", everyone=True)
    if HISTORY and dist.get_rank() == 0:
        with open(HISTORY, "a") as file:
            file.write(f"{ATTEMPT} {done}\n")
    if 0 < ATTEMPT <= CUT_ATTEMPTS:
        cuts.add(done + 2 * SAVE_EVERY)
    # Else the first step adds the gradients up in another order than those after it, and so does a process that resumes
    # from a checkpoint: between more than two that is another sum.
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(done + 1, STEPS + 1):
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank()))
        loss = nn.functional.mse_loss(ddp(x), x.sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        say(f"step {step}/{STEPS} loss={mean.item():.6f}")
        if step % SAVE_EVERY == 0 or step == STEPS:
            say(f"saving step {step}")
            save(step, model, optimizer)
            say(f"saved step {step}")
        time.sleep(STEP_SECONDS)
    dist.barrier()
    say(f"weights {digest(model)}", everyone=True)
    dist.destroy_process_group()


def say(text, everyone=False):
    """Rank 0 says it, or everyone does. In one write: the processes of a worker share its output."""
    if everyone or dist.get_rank() == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def digest(model):
    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode() + tensor.numpy().tobytes())
    return sha.hexdigest()


def cut(step, where):
    """Ends this process here, in the middle of a save, if the environment says so."""
    if step in cuts:
        say(f"cut: {where}")
        while CUT_BY == "hold":
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)


# ---- torch.save, by rank 0


def save_pt(step, model, optimizer):
    """Cut with half of the file written: under its own name if it is not ATOMIC."""
    if dist.get_rank() == 0:
        FOLDER.mkdir(parents=True, exist_ok=True)
        name = f"step-{step}.pt"
        if BEST_AT is not None:
            name = f"epoch={step}-step={step}-val_loss={abs(step - int(BEST_AT))}.ckpt"
        path = FOLDER / name
        temporary = path.with_suffix(".tmp") if ATOMIC else path
        buffer = io.BytesIO()
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
        data = buffer.getbuffer()
        with open(temporary, "wb") as file:
            for piece in range(PIECES):
                file.write(data[len(data) * piece // PIECES : len(data) * (piece + 1) // PIECES])
                file.flush()
                if piece == PIECES // 2 - 1:
                    cut(step, f"{file.tell()} of {len(data)} bytes are in {temporary}")
                time.sleep(SAVE_SECONDS / PIECES)
            os.fsync(file.fileno())
        if ATOMIC:
            temporary.rename(path)
    dist.barrier()


def load_pt(path, model, optimizer):
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


# ---- torch.distributed.checkpoint, by all ranks


class Writer(dcp.FileSystemWriter):
    step = 0

    def finish(self, metadata, results):
        """Only rank 0 comes here, when all have written their part. Cut before .metadata, which DCP writes last."""
        time.sleep(SAVE_SECONDS)
        cut(self.step, f"all but .metadata is in {self.path}")
        super().finish(metadata, results)


def save_dcp(step, model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    writer = Writer(FOLDER / f"step-{step}")
    writer.step = step
    dcp.save({"step": step, "model": weights, "optimizer": moments}, storage_writer=writer)


def load_dcp(path, model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    state = {"step": 0, "model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


if __name__ == "__main__":
    main()
