"""Lightning's Trainer on all workers: learns a sine. torchrun has started the processes, and Lightning joins them."""

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume", help="a checkpoint of Lightning")
resume = parser.parse_args().resume
torch.set_num_threads(1)


class Wave(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layers(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


x = torch.linspace(-3, 3, 1024).unsqueeze(1)
data = DataLoader(TensorDataset(x, x.sin()), batch_size=16, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=int(os.environ["HYPERPARAM_EPOCHS"]), num_nodes=int(os.environ["NUM_WORKERS"]), devices=1,
    strategy="ddp", accelerator="auto", logger=False,
    callbacks=[ModelCheckpoint(dirpath=os.environ["CHECKPOINT_DIR"], save_top_k=-1)],
)
trainer.fit(Wave(), data, ckpt_path=resume)
print(f"trained to epoch {trainer.current_epoch}")
