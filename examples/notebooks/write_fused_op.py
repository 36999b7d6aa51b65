# %% [markdown]
# # Write a fused operator
# No kernel is written by hand: an operator is a function of PyTorch's calls, which Litz makes one
# kernel of. Here a gated activation with a norm behind it, forward and backward.

# %%
import torch
from torch.nn import functional as F

import litz


def gated_norm(x, gate, weight, eps: float = 1e-6):
    """``rms_norm(silu(gate) * x) * weight`` over the last dimension."""
    y = F.silu(gate) * x
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight


fused = torch.compile(gated_norm, backend="litz", dynamic=True)

# %% [markdown]
# Is it one kernel? `explain` says what each kernel computes, and why something is not fused.

# %%
x, gate, weight = torch.randn(64, 300), torch.randn(64, 300), torch.randn(300)
report = litz.explain(gated_norm, x, gate, weight)
print(report)
assert len(report.kernels) == 1 and not report.externs

# %% [markdown]
# Is it right? Against float64, as near as eager mode, gradients too.

# %%
inputs = [t.requires_grad_() for t in (x, gate, weight)]
wide = [t.detach().double().requires_grad_() for t in inputs]
exact = torch.autograd.grad(gated_norm(*wide).sin().sum(), wide)
eager = torch.autograd.grad(gated_norm(*inputs).sin().sum(), inputs)
found = torch.autograd.grad(fused(*inputs).sin().sum(), inputs)
for f, e, r in zip(found, eager, exact, strict=True):
    assert (f - r).norm() <= 2 * (e - r).norm() + 1e-6 * r.norm()
