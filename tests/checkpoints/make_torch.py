"""Makes small checkpoints with the libraries that people use: torch, Lightning, transformers, safetensors, Keras.

    python make_torch.py FOLDER

Every checkpoint lies in FOLDER/FORMAT/VARIANT/. DeepSpeed and Megatron-LM need GPUs to run: their folders are laid out
as they lay them out, and written with the same call of torch.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch import nn


def model(seed: int = 0, hidden: int = 6) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 2))


def trained(seed: int = 0, steps: int = 2):
    net = model(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return net, optimizer


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def make_torch(root: Path) -> None:
    net, optimizer = trained()
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "epoch": 1}
    torch.save(state, fresh(root / "torch/full") / "step-7.pt")
    torch.save(net.state_dict(), fresh(root / "torch/weights") / "weights.pth")
    odd = {
        "bf16": torch.randn(3, 5).bfloat16(),
        "int8": torch.arange(7, dtype=torch.int8),
        "bool": torch.tensor([True, False]),
        "complex": torch.randn(3, dtype=torch.complex64),
        "empty": torch.empty(0),
        "scalar": torch.tensor(3.5),
        "shared": (base := torch.arange(12.0)),
        "view": base[2:6],
        "transposed": torch.randn(2, 3).t(),
        "sparse": torch.eye(3).to_sparse(),
        "parameter": nn.Parameter(torch.ones(2)),
        "nested": [1, 2.5, None, "text", b"bytes", {"set": {1, 2}}, (1,), 2**70],
    }
    torch.save(odd, fresh(root / "torch/odd") / "model.bin")
    torch.save(net, fresh(root / "torch/module") / "module.pt")
    torch.save(state, fresh(root / "torch/protocol4") / "p4.pt", pickle_protocol=4)
    torch.save({}, fresh(root / "torch/nothing") / "nothing.pt")
    old = {"tiny": {"a": torch.zeros(1)}, "full": state, "odd": odd, "module": net}
    for name, value in old.items():
        folder = fresh(root / f"torch/legacy-{name}")
        torch.save(value, folder / "old.pt", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save(state, fresh(root / "torch/unchecked") / "unchecked.pt")
    torch.serialization.set_crc32_options(True)


def make_lightning(root: Path) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"width": 6, "name": "tiny"})
            self.net = model()

        def training_step(self, batch, _):
            loss = self.net(batch[0]).square().mean()
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
    folder = fresh(root / "lightning/fit")
    keep = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=folder, monitor="train_loss")
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        callbacks=[keep],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), data)


def make_safetensors(root: Path) -> None:
    from safetensors.torch import save_file

    net, _ = trained()
    save_file(net.state_dict(), fresh(root / "safetensors/one") / "model.safetensors", metadata={"format": "pt"})
    save_file(
        {
            "bf16": torch.randn(3).bfloat16(),
            "f8": torch.zeros(3).to(torch.float8_e4m3fn),
            "none": torch.empty(0, 3),
            "scalar": torch.tensor(1),
            "bool": torch.tensor([True]),
        },
        fresh(root / "safetensors/odd") / "odd.safetensors",
    )
    save_file({}, fresh(root / "safetensors/nothing") / "nothing.safetensors")
    tiny_gpt().save_pretrained(fresh(root / "safetensors/sharded"), max_shard_size="4KB")


def tiny_gpt():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2))


def hugging_face_trainer(folder, save: str = "steps", **more):
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": torch.arange(6) % 16, "labels": torch.arange(6) % 16} for _ in range(8)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        per_device_train_batch_size=2,
        save_strategy=save,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )
    return Trainer(model=tiny_gpt(), args=arguments, train_dataset=data, eval_dataset=data)


def make_hugging_face(root: Path) -> None:
    folder = fresh(root / "hugging-face/plain")
    trainer = hugging_face_trainer(folder, load_best_model_at_end=True, metric_for_best_model="eval_loss")
    trainer.train()
    # Many ranks: each leaves its own state of random numbers. And weights in shards, as a large model's are.
    ranks = root / "hugging-face/sharded/checkpoint-4"
    shutil.rmtree(ranks.parent, ignore_errors=True)
    shutil.copytree(folder / "checkpoint-4", ranks)
    (ranks / "model.safetensors").unlink()
    trainer.model.save_pretrained(ranks, max_shard_size="4KB")
    state = torch.load(ranks / "rng_state.pth", weights_only=False)
    (ranks / "rng_state.pth").unlink()
    for rank in range(2):
        torch.save(state, ranks / f"rng_state_{rank}.pth")


def one_rank(rank: int, ranks: int, folder: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    dcp.save(sharded_state(rank, ranks), checkpoint_id=folder)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def sharded_state(rank: int, ranks: int):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (ranks,))
    net, optimizer = trained()

    def shard(value):
        return distribute_tensor(value, mesh, [Shard(0)])

    return {
        "model": {name: shard(value) if value.dim() else value for name, value in net.state_dict().items()},
        "optimizer": {"exp_avg": {str(i): s["exp_avg"] for i, s in optimizer.state_dict()["state"].items()}},
        "progress": {"step": 9, "epoch": 2, "note": "text"},
        "list": [torch.ones(2), {"deep": torch.zeros(3)}],
        #: Fewer rows than ranks.
        "short": shard(torch.ones(1, 2)),
    }


def make_dcp(root: Path) -> None:
    fresh(root / "dcp")
    net, optimizer = trained()
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
    dcp.save(state, checkpoint_id=str(root / "dcp/alone/step-3"))
    net, optimizer = trained(steps=4)
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 4}
    dcp.save(state, checkpoint_id=str(root / "dcp/alone/step-4"))
    dcp.save(net.state_dict(), checkpoint_id=str(root / "dcp/flat/100"))
    torch.multiprocessing.spawn(one_rank, args=(3, str(root / "dcp/ranks/step_9"), 29611), nprocs=3)


def make_keras(root: Path) -> None:
    import keras

    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])
    net.compile("adam", "mse")
    net.save(fresh(root / "keras/one") / "epoch-1.keras")
    net.save(fresh(root / "keras/zipped") / "zipped.keras", zipped=True)


def make_deepspeed(root: Path) -> None:
    net, optimizer = trained()
    folder = fresh(root / "deepspeed/zero/global_step10")
    for rank in range(2):
        torch.save(
            {"optimizer_state_dict": optimizer.state_dict(), "ds_version": "0.16.0"},
            folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
    torch.save(
        {
            "module": net.state_dict(),
            "global_steps": 10,
            "mp_world_size": 1,
            "dp_world_size": 2,
            "ds_config": {"zero_optimization": {"stage": 1}},
        },
        folder / "mp_rank_00_model_states.pt",
    )
    (folder.parent / "latest").write_text("global_step10")
    folder = fresh(root / "deepspeed/zero3/global_step20")
    for rank in range(2):
        torch.save(
            {
                "module": net.state_dict(),
                "global_steps": 20,
                "mp_world_size": 1,
                "dp_world_size": 2,
                "ds_config": {"zero_optimization": {"stage": 3}},
            },
            folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt",
        )
        torch.save(
            {"optimizer_state_dict": optimizer.state_dict()},
            folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )


def make_megatron(root: Path) -> None:
    net, optimizer = trained()
    folder = fresh(root / "megatron/legacy/iter_0000030")
    for rank in range(2):
        (folder / f"mp_rank_{rank:02d}").mkdir()
        arguments = argparse.Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
        torch.save(
            {"args": arguments, "model": net.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 30},
            folder / f"mp_rank_{rank:02d}" / "model_optim_rng.pt",
        )
    folder = root / "megatron/distcp/iter_0000040"
    fresh(folder.parent)
    dcp.save({"model." + k: v for k, v in net.state_dict().items()}, checkpoint_id=str(folder))
    torch.save({"args": {"lr": 0.1}, "iteration": 40, "checkpoint_version": 3.0}, folder / "common.pt")
    versions = {"sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", **versions}))


def make_marked(root: Path) -> None:
    folder = fresh(root / "marked/step-5")
    (folder / "weights.npy").write_bytes(b"anything" * 100)
    (folder / ".complete").write_bytes(b"")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    makers = [make_torch, make_lightning, make_safetensors, make_hugging_face, make_dcp, make_keras, make_deepspeed]
    makers += [make_megatron, make_marked]
    for make in makers:
        if len(sys.argv) < 3 or make.__name__.removeprefix("make_") in sys.argv[2:]:
            make(target)
