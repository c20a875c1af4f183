"""A linear layer in an engine of DeepSpeed, whose own lines have the steps."""

import deepspeed
import torch

config = {"train_batch_size": 16, "steps_per_print": 5, "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
          "wall_clock_breakdown": True}
model = torch.nn.Linear(256, 256)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(30):
    loss = engine(torch.randn(16, 256, device=engine.device)).pow(2).mean()
    engine.backward(loss)
    engine.step()
