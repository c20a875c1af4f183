"""Hugging Face's Trainer, as its documentation shows it: nothing here knows of TrainingJob."""
import os

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sums(Dataset):
    """Whether the sum of sixteen numbers is even."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        words = torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "attention_mask": torch.ones(16, dtype=torch.long), "labels": words.sum() % 2}


config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
arguments = TrainingArguments(
    output_dir="/tmp/out", num_train_epochs=int(os.environ["EPOCHS"]), per_device_train_batch_size=16, logging_steps=8,
    eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True,
)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=Sums(), eval_dataset=Sums()).train()
