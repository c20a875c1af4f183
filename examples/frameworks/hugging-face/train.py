"""Hugging Face Trainer, as its documentation shows it, over words made here: is their sum even?"""

import argparse
import os

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--resume", help="a folder of the Trainer, such as checkpoint-20")
resume = parser.parse_args().resume
torch.set_num_threads(1)


class Sums(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        words = torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "attention_mask": torch.ones(16, dtype=torch.long), "labels": words.sum() % 2}


config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
arguments = TrainingArguments(
    output_dir=os.environ["CHECKPOINT_DIR"], num_train_epochs=int(os.environ["HYPERPARAM_EPOCHS"]),
    per_device_train_batch_size=16, logging_steps=4, save_steps=8, report_to=[], use_cpu=not torch.cuda.is_available(),
    ddp_backend="nccl" if torch.cuda.is_available() else "gloo",
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Sums())
trainer.train(resume_from_checkpoint=resume)
print(f"trained to step {trainer.state.global_step}")
