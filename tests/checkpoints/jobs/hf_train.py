"""Trains a classifier with Hugging Face's Trainer, written as its own examples are: nothing here knows of TrainingJob.

The model is made from a configuration and the data from a seed, so that nothing is downloaded.
"""

import hashlib
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    hidden_size: int = field(default=32, metadata={"help": "Width of the encoder."})
    num_hidden_layers: int = field(default=2, metadata={"help": "Layers of the encoder."})


@dataclass
class DataArguments:
    train_samples: int = field(default=256, metadata={"help": "Size of the training set."})
    eval_samples: int = field(default=64, metadata={"help": "Size of the evaluation set."})


class Sums(Dataset):
    """Whether the sum of sixteen numbers is even."""

    def __init__(self, samples, seed):
        self.words = torch.randint(0, 50, (samples, 16), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        words = self.words[index]
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.sum() % 2}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    config = BertConfig(
        vocab_size=50,
        hidden_size=model_args.hidden_size,
        num_hidden_layers=model_args.num_hidden_layers,
        num_attention_heads=2,
        intermediate_size=2 * model_args.hidden_size,
        num_labels=2,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=Sums(data_args.train_samples, seed=1),
        eval_dataset=Sums(data_args.eval_samples, seed=2),
    )

    if training_args.do_train:
        checkpoint = None
        if training_args.resume_from_checkpoint is not None:
            checkpoint = training_args.resume_from_checkpoint
        result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.log_metrics("train", result.metrics)
    if training_args.do_eval:
        trainer.log_metrics("eval", trainer.evaluate())

    sha = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        sha.update(name.encode() + tensor.cpu().numpy().tobytes())
    print(f"weights {sha.hexdigest()}")


if __name__ == "__main__":
    main()
