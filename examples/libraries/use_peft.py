"""peft: a LoRA adapter on a frozen model, trained."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
compiled = torch.compile(model, backend="litz")
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.05)
ids = torch.randint(100, (4, 16))
losses = []
for _ in range(4):
    loss = compiled(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
