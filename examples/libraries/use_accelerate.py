"""accelerate: the model is compiled by name, once Litz is in accelerate's own list of backends."""

import torch
from accelerate import Accelerator

from litz.tools.accelerate import allow

allow()
accelerator = Accelerator(dynamo_backend="litz", cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))

x, y = torch.randn(64, 16), torch.randint(4, (64,))
losses = []
for _ in range(5):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
