# %% [markdown]
# # Train a small GPT
# A character model of two layers, written out, trained for some steps. Cells (`# %%`) run in any
# editor that knows them, and the whole file as a program.

# %%
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
TEXT = "the quick brown fox jumps over the lazy dog. " * 40
letters = sorted(set(TEXT))
data = torch.tensor([letters.index(c) for c in TEXT])
WIDTH, HEADS, LENGTH, BATCH = 32, 4, 24, 16


# %%
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(len(letters), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, len(letters))

    def forward(self, ids, targets):
        x = self.token(ids) + self.place.weight
        logits = self.head(self.blocks(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# %% [markdown]
# The model and the optimizer's step are compiled; the loop stays Python.

# %%
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loss_of = torch.compile(model, backend="litz")
step = torch.compile(optimizer.step, backend="litz")

losses = []
for _ in range(30):
    at = torch.randint(len(data) - LENGTH - 1, (BATCH, 1)) + torch.arange(LENGTH)
    loss = loss_of(data[at], data[at + 1])
    loss.backward()
    step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
assert losses[-1] < 0.8 * losses[0]
