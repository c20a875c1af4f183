"""Damages checkpoints as they were damaged before, loads them with the libraries that wrote them, and compares.

    python check_torch.py FOLDER CASES [FROM EVERY]

CASES is what the Rust test has written: one damage a line, with what was said of it. Prints a table, and fails if
something that was called valid can't be loaded, or if something loads with other values where checksums should have
shown it.
"""

import collections
import copy
import functools
import hashlib
import io
import json
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
BATCH = 400
#: Formats of which every byte that counts has a checksum.
CHECKED = {"torch", "lightning", "keras", "deepspeed"}


def take(value, into, seen) -> None:
    """Puts all that a value is made of into a hash."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            value = value.to_dense()
        if value.is_quantized:
            value = value.dequantize()
        into.update(f"{value.dtype}{tuple(value.shape)}".encode())
        flat = value.detach().contiguous().reshape(-1)
        into.update(bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    elif isinstance(value, torch.nn.Module):
        into.update(repr(value).encode())
        take(value.state_dict(), into, seen)
    elif isinstance(value, dict):
        for key in value:
            take(key, into, seen)
            take(value[key], into, seen)
    elif isinstance(value, (list, tuple)):
        into.update(type(value).__name__.encode())
        for item in value:
            take(item, into, seen)
    elif isinstance(value, (set, frozenset)):
        into.update(repr(sorted(map(repr, value))).encode())
    elif hasattr(value, "tobytes"):
        into.update(value.tobytes())
    elif isinstance(value, (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.Size)):
        into.update(repr(value).encode())
    elif hasattr(value, "__dict__") and id(value) not in seen:
        into.update(type(value).__name__.encode())
        take(vars(value), into, seen | {id(value)})
    else:
        into.update(type(value).__name__.encode())
    into.update(b";")


def digest(value) -> str:
    into = hashlib.sha256()
    take(value, into, frozenset())
    return into.hexdigest()


def pickles(folder: Path):
    found = sorted(folder.rglob("*.pt"))
    return {str(path.relative_to(folder)): torch.load(path, weights_only=False) for path in found}


def load_torch(folder: Path, name: str):
    return torch.load(folder / name, weights_only=False)


def load_safetensors(folder: Path, name: str):
    from safetensors.torch import load_file

    if (folder / name).is_file():
        return load_file(folder / name)
    loaded = {}
    for index in folder.glob("*.index.json"):
        weight_map = json.loads(index.read_text())["weight_map"]
        shards = {shard: load_file(folder / shard) for shard in sorted(set(weight_map.values()))}
        loaded = {tensor: shards[shard][tensor] for tensor, shard in weight_map.items()}
    return loaded


@functools.cache
def trainer():
    """A trainer of the same model, and the states in which it begins."""
    sys.path.insert(0, str(Path(__file__).parent))
    from make_torch import hugging_face_trainer

    made = hugging_face_trainer(tempfile.mkdtemp())
    made.create_optimizer_and_scheduler(4)
    parts = (made.model, made.optimizer, made.lr_scheduler)
    return made, parts, [copy.deepcopy(part.state_dict()) for part in parts]


def load_hugging_face(folder: Path, name: str):
    from transformers.trainer_callback import TrainerState

    made, parts, clean = trainer()
    for part, state in zip(parts, clean, strict=True):
        part.load_state_dict(copy.deepcopy(state))
    if not any((folder / file).exists() for file in ("model.safetensors", "model.safetensors.index.json")):
        raise FileNotFoundError("weights")
    made._load_from_checkpoint(str(folder))
    made._load_optimizer_and_scheduler(str(folder))
    state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
    others = sorted([*folder.glob("*.pth"), *folder.glob("*.bin")])
    others = [torch.load(path, weights_only=False) for path in others]
    return [[part.state_dict() for part in parts], vars(state), others]


TEMPLATES = {}


def load_dcp(folder: Path, name: str):
    #: What the program would have made before it loads: known from the whole checkpoint.
    if name not in TEMPLATES:
        state = {}
        reader = dcp.FileSystemReader(folder)
        _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
        TEMPLATES[name] = state
    state = copy.deepcopy(TEMPLATES[name])

    def clear(value):
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            if isinstance(item, torch.Tensor):
                item.zero_()
            clear(item)

    clear(state)
    dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    return [state, pickles(folder)]


def load_keras(folder: Path, name: str):
    import keras

    model = keras.models.load_model(folder / name)
    return [model.get_config(), model.get_weights(), [variable.numpy() for variable in model.optimizer.variables]]


def load_folder(folder: Path, name: str):
    if (folder / ".metadata").exists():
        json.loads((folder / "metadata.json").read_text())
        if not (folder / "common.pt").exists():
            raise FileNotFoundError("common.pt")
        return load_dcp(folder, name)
    return pickles(folder)


LOADERS = {
    "torch": load_torch,
    "lightning": load_torch,
    "safetensors": load_safetensors,
    "hugging-face": load_hugging_face,
    "dcp": load_dcp,
    "keras": load_keras,
    "deepspeed": load_folder,
    "megatron": load_folder,
}


def damage(root: Path, folder: Path, path: str, kind: str, arguments) -> None:
    file = folder / path
    if kind == "missing":
        file.unlink()
        return
    data = bytearray(file.read_bytes())
    if kind == "cut":
        del data[arguments[0] :]
    elif kind == "flip":
        data[arguments[0]] ^= 1 << arguments[1]
    elif kind == "zeros":
        data[arguments[0] : arguments[0] + arguments[1]] = bytes(arguments[1])
    elif kind == "longer":
        data += bytes(arguments[0])
    elif kind == "empty":
        data.clear()
    elif kind == "other":
        data[:] = (root / arguments[0] / path).read_bytes()
    file.write_bytes(data)


def run(root: Path, cases, answers) -> None:
    """In a process of its own, which a library may bring down."""
    sys.stdout = sys.stderr = io.StringIO()
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    whole = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, (format, folder, name, path, _, kind, *arguments) in cases:
            here = Path(scratch) / Path(folder).name
            key = (folder, name)
            if key not in whole:
                TEMPLATES.clear()
                shutil.rmtree(here, ignore_errors=True)
                shutil.copytree(root / folder, here)
                whole = {key: digest(LOADERS[format](here, name))}
            answers.put((number, None))
            damage(root, here, path, kind, arguments)
            try:
                answer = "same" if digest(LOADERS[format](here, name)) == whole[key] else "differs"
            except BaseException as error:
                answer = f"fails: {type(error).__name__}: {error}"[:300]
            (here / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / folder / path, here / path)
            answers.put((number, answer))
    answers.put((-1, None))


def main() -> int:
    root = Path(sys.argv[1])
    cases = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    cases = [(number, case) for number, case in enumerate(cases) if case[0] in LOADERS]
    first, every = map(int, sys.argv[3:5]) if len(sys.argv) > 4 else (0, 1)
    cases.sort(key=lambda case: case[1][1:3])
    batches = [cases[at : at + BATCH] for at in range(0, len(cases), BATCH)][first::every]
    told = {}
    context = multiprocessing.get_context("fork")
    for batch in batches:
        left = [(number, *case) for number, case in batch]
        left = [(case[0], case[1:]) for case in left]
        while left:
            answers = context.SimpleQueue()
            child = context.Process(target=run, args=(root, left, answers))
            child.start()
            now, silent = None, 0
            while True:
                if answers._reader.poll(1):
                    silent = 0
                    number, answer = answers.get()
                    if number == -1:
                        break
                    if answer is None:
                        now = number
                    else:
                        told[number] = answer
                        now = None
                else:
                    silent += 1
                    if silent == 60:
                        child.kill()
                if not child.is_alive() and not answers._reader.poll(0):
                    break
            child.join()
            if now is not None:
                told[now] = f"fails: the process died ({child.exitcode})"
            done = len(left)
            left = [case for case in left if case[0] not in told]
            if len(left) == done:
                raise SystemExit(f"nothing goes on at {left[0]}")
    table = collections.Counter()
    wrong, unseen = [], 0
    for number, case in cases:
        if number not in told:
            continue
        format, folder, name, path, verdict, kind, *arguments = case
        answer = told[number].split(":")[0]
        table[(kind, format, verdict, answer)] += 1
        bad = answer == "fails" or (answer == "differs" and format in CHECKED and kind != "other")
        if verdict == "complete" and answer == "fails":
            unseen += 1
        elif verdict == "valid" and bad:
            wrong.append((folder, name, path, kind, *arguments, told[number]))
    print(f"{len(told)} damaged checkpoints loaded")
    print("| damage | format | verdict | library: same | differs | fails |\n|---|---|---|---|---|---|")
    for kind, format, verdict in sorted({key[:3] for key in table}):
        counts = [table[(kind, format, verdict, answer)] for answer in ("same", "differs", "fails")]
        print(f"| {kind} | {format} | {verdict} | {counts[0]} | {counts[1]} | {counts[2]} |")
    for case in wrong[:60]:
        print("WRONG", *case)
    print(f"{unseen} called complete that can't be loaded")
    print(f"{len(wrong)} called valid wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
