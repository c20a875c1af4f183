"""A Trainer of Hugging Face with a model of two layers, made here: nothing is downloaded."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))
rows = [{"input_ids": (row := torch.randint(0, 256, (64,))), "labels": row} for _ in range(256)]
arguments = TrainingArguments(output_dir=sys.argv[1], max_steps=30, logging_steps=5, per_device_train_batch_size=8,
                              report_to=[], save_strategy="no")
Trainer(model=model, args=arguments, train_dataset=rows).train()
