"""Loads checkpoints and compares them with undamaged ones.

Reads lines `KIND<tab>PATH<tab>UNDAMAGED` and answers each with `same`, `same, into a tree`, `differs` or `fails` and a
reason. What loads them may crash, so it is a process of its own, and another goes on behind the one that crashed it.
"""

import os
import subprocess
import sys
from pathlib import Path

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def loader(kind):
    if kind.startswith("tensorflow"):
        import tensorflow as tf

        def load(path, like):
            reader = tf.train.load_checkpoint(path)
            return {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_dtype_map())}

        return load

    import jax
    import orbax.checkpoint as ocp

    def load(path, like):
        path = Path(path)
        if kind in ("orbax-standard", "orbax-items"):
            like = like and jax.tree.map(ocp.utils.to_shape_dtype_struct, like.get("state", like))
            item = "default" if kind == "orbax-standard" else "state"
            names = None if item == "default" else (item, "data")
            with ocp.CheckpointManager(path.parent, item_names=names) as manager:
                step = int(path.name)
                if item == "default":
                    return manager.restore(step, args=ocp.args.StandardRestore(like))
                both = ocp.args.Composite(state=ocp.args.StandardRestore(like), data=ocp.args.JsonRestore())
                restored = manager.restore(step, args=both)
                return {"state": restored.state, "data": restored.data}
        where = like and ocp.checkpoint_utils.construct_restore_args(like)
        return ocp.PyTreeCheckpointer().restore(path, item=like, restore_args=where)

    return load


def flat(value, name=""):
    import numpy as np

    if isinstance(value, dict):
        return {path: leaf for key in sorted(value) for path, leaf in flat(value[key], f"{name}/{key}").items()}
    if isinstance(value, list | tuple):
        return flat(dict(enumerate(value)), name)
    if value is None or isinstance(value, str):
        return {name: value}
    value = np.asarray(value)
    return {name: (value.shape, str(value.dtype), value.tolist() if value.dtype == object else value.tobytes())}


def work():
    import logging

    logging.disable(logging.CRITICAL)
    known, loaders = {}, {}
    # What the libraries print themselves must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        kind, path, undamaged = line.rstrip("\n").split("\t")
        load = loaders.setdefault(kind, loader(kind))
        if undamaged not in known:
            known[undamaged] = load(undamaged, None)
        answer = ""
        # As most programs do it, into a tree that they have, only if it can't be without.
        for like, same in ((None, "same"), (known[undamaged], "same, into a tree")):
            try:
                answer = same if flat(load(path, like)) == flat(known[undamaged]) else "differs"
                break
            except BaseException as error:
                answer = answer or f"fails\t{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if kind.startswith("tensorflow"):
                break
        print(answer, file=answers, flush=True)


def main():
    lines = sys.stdin.read().splitlines()
    while lines:
        command = [sys.executable, __file__, "work"]
        done = subprocess.run(
            command, input="\n".join(lines), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
        )
        answers = done.stdout.splitlines()
        for answer in answers:
            print(answer)
        lines = lines[len(answers) :]
        if lines:
            print(f"fails\tcrashed: {done.returncode}")
            lines = lines[1:]


work() if sys.argv[1:] == ["work"] else main()
