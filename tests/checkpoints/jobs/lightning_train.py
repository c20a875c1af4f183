"""Fits a network with Lightning, written as its documentation shows it: nothing here knows of TrainingJob."""

import argparse
import hashlib

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(x), y), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Sines(lightning.LightningDataModule):
    """Shuffled in each epoch by a sampler that gets the epoch's number from Lightning, also after a resume."""

    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size
        x = torch.randn(1280, 4, generator=torch.Generator().manual_seed(1))
        data = TensorDataset(x, x.sin().sum(1, keepdim=True))
        self.train, self.val = data, TensorDataset(*data[:256])

    def train_dataloader(self):
        sampler = DistributedSampler(self.train, num_replicas=1, rank=0, seed=42)
        return DataLoader(self.train, batch_size=self.batch_size, sampler=sampler)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.batch_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint_dir", default="checkpoints")
    parser.add_argument("--ckpt_path", default=None, help="checkpoint to go on from")
    parser.add_argument("--max_epochs", type=int, default=8)
    parser.add_argument("--every_n_epochs", type=int, default=1, help="epochs between two checkpoints")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()

    lightning.seed_everything(42)
    saver = ModelCheckpoint(
        dirpath=args.checkpoint_dir,
        filename="{epoch}-{step}-{val_loss:.4f}",
        every_n_epochs=args.every_n_epochs,
        save_top_k=-1,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=args.max_epochs,
        deterministic=True,
        logger=False,
        callbacks=[saver],
    )
    model = Regression(args.width)
    trainer.fit(model, datamodule=Sines(args.batch_size), ckpt_path=args.ckpt_path)

    sha = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha.update(name.encode() + tensor.numpy().tobytes())
    print(f"weights {sha.hexdigest()}")


if __name__ == "__main__":
    main()
