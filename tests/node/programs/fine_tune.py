"""Fine-tunes a sentence encoder of the BERT family on pairs of sentences that mean the same, with torch alone.

Reads config.json, vocab.txt and model.safetensors of $MODEL and pairs.tsv of $DATASET, and writes the model with its
changed weights to $OUTPUT_DIR. With STEPS=0 it only measures the loss.
"""

import json
import os
import shutil
import unicodedata
from pathlib import Path

import torch
from torch.nn import functional as f

STEPS = int(os.environ.get("STEPS", "12"))
HEAD_BYTES = 8
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
NAMES = {kind: name for name, kind in TYPES.items()}


def load(path):
    """The tensors of a safetensors file, and its metadata."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:HEAD_BYTES], "little")
    head = json.loads(data[HEAD_BYTES:HEAD_BYTES + length])
    metadata = head.pop("__metadata__", {})
    tensors = {}
    for name, entry in head.items():
        begin, end = entry["data_offsets"]
        kind = TYPES[entry["dtype"]]
        flat = torch.frombuffer(data, dtype=kind, count=(end - begin) // kind.itemsize,
                                offset=HEAD_BYTES + length + begin)
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors, metadata


def save(tensors, metadata, path):
    head, at, bodies = {"__metadata__": metadata}, 0, []
    for name, tensor in tensors.items():
        body = bytes(tensor.contiguous().view(torch.uint8).flatten().numpy())
        head[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(body)]}
        at += len(body)
        bodies.append(body)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % HEAD_BYTES)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(HEAD_BYTES, "little") + text)
        file.writelines(bodies)


class Tokenizer:
    """WordPiece: the longest pieces of the vocabulary, from the left."""

    def __init__(self, path):
        self.ids = {piece: number for number, piece in enumerate(path.read_text().splitlines())}

    def pieces(self, word):
        start, found = 0, []
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.ids:
                    break
            else:
                return [self.ids["[UNK]"]]
            found.append(self.ids[piece])
            start = end
        return found

    def __call__(self, text):
        text = unicodedata.normalize("NFD", text.lower())
        spaced = "".join(c if c.isalnum() else f" {c} " for c in text if unicodedata.category(c) != "Mn")
        inner = [number for word in spaced.split() for number in self.pieces(word)]
        return [self.ids["[CLS]"], *inner, self.ids["[SEP]"]]


class Encoder:
    """The mean of BERT's last hidden states, of length 1."""

    def __init__(self, weights, config, tokenizer):
        self.weights, self.config, self.tokenizer = weights, config, tokenizer

    def linear(self, name, x):
        return f.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name, x):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return f.layer_norm(x, weight.shape, weight, bias, self.config["layer_norm_eps"])

    def __call__(self, texts):
        rows = [self.tokenizer(text) for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1.0] * len(row) + [0.0] * (longest - len(row)) for row in rows])
        table = "embeddings.{}_embeddings.weight".format
        x = self.weights[table("word")][ids] + self.weights[table("position")][:longest]
        x = self.norm("embeddings.LayerNorm", x + self.weights[table("token_type")][0])
        heads, hidden = self.config["num_attention_heads"], self.config["hidden_size"]
        bias = (mask - 1)[:, None, None, :] * 1e9
        for number in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{number}"
            parts = [self.linear(f"{layer}.attention.self.{part}", x) for part in ("query", "key", "value")]
            parts = [part.view(*part.shape[:2], heads, hidden // heads).transpose(1, 2) for part in parts]
            mixed = f.scaled_dot_product_attention(*parts, attn_mask=bias).transpose(1, 2).reshape(x.shape)
            x = self.norm(f"{layer}.attention.output.LayerNorm",
                          self.linear(f"{layer}.attention.output.dense", mixed) + x)
            wide = f.gelu(self.linear(f"{layer}.intermediate.dense", x))
            x = self.norm(f"{layer}.output.LayerNorm", self.linear(f"{layer}.output.dense", wide) + x)
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return f.normalize(mean, dim=1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Path(os.environ["MODEL"])
    weights, metadata = load(model / "model.safetensors")
    encoder = Encoder(weights, json.loads((model / "config.json").read_text()), Tokenizer(model / "vocab.txt"))
    lines = (Path(os.environ["DATASET"]) / "pairs.tsv").read_text().splitlines()
    left, right = zip(*(line.split("\t") for line in lines), strict=True)

    def loss_of_all():
        # Each sentence has to find its pair among all others.
        scores = encoder(left) @ encoder(right).T * 20
        return f.cross_entropy(scores, torch.arange(len(left)))

    trained = [weight.requires_grad_() for weight in weights.values() if weight.is_floating_point()]
    optimizer = torch.optim.AdamW(trained, lr=2e-5)
    for step in range(STEPS):
        loss = loss_of_all()
        print(json.dumps({"step": step, "loss": loss.item()}), flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(json.dumps({"step": STEPS, "loss": loss_of_all().item()}), flush=True)
    if STEPS:
        output = Path(os.environ["OUTPUT_DIR"])
        shutil.copytree(model, output, dirs_exist_ok=True, copy_function=shutil.copyfile)
        save({name: weight.detach() for name, weight in weights.items()}, metadata, output / "model.safetensors")


main()
