# %% [markdown]
# # Debug a wrong number
# A model whose compiled result differs from eager's. Is Litz wrong, or is it rounding?

# %%
import torch

import litz

torch.manual_seed(0)
weights = torch.randn(64, 64)


def model(x):
    y = (x @ weights).relu()
    z = y.exp().sum(-1, keepdim=True).log()
    return (y - z).exp() * 1000 + 1e4 - 1e4  # the digits of a sum with 1e4 are few


compiled = torch.compile(model, backend="litz")
x = torch.randn(32, 64) * 0.1
difference = (compiled(x) - model(x)).abs().max()
print(f"largest difference {difference:.2g}")

# %% [markdown]
# Compare both with float64: neither is the truth.

# %%
weights = weights.double()
exact = model(x.double())
weights = weights.float()
mine, eagers = ((f(x) - exact).abs().max() for f in (compiled, model))
print(f"error against float64: {mine:.2g}, eager's {eagers:.2g}")
assert mine <= 2 * eagers + 1e-3

# %% [markdown]
# `verify` judges each kernel by itself, against float64 and what rounding can do to it. It raises
# `VerificationError` for the first that is wrong; here none is.

# %%
torch.compiler.reset()
torch.compile(model, backend="litz", options={"verify": True})(x)

# %% [markdown]
# For a whole program: `litz bisect script.py`, which also finds the fusion by which a number
# changes, and writes a repro of some lines. Without any fusion:

# %%
torch.compiler.reset()
unfused = torch.compile(model, backend="litz", options={"fuel": 0})(x)
print("fusion changes", (unfused != compiled(x)).sum().item(), "of", unfused.numel(), "numbers")

# %% [markdown]
# And what each kernel computes, with the line that it comes from:

# %%
print(litz.explain(model, x))
