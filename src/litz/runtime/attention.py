"""Attention by a library that PyTorch has."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from litz.runtime.strided import aligned

Tensor = torch.Tensor
WHOLE = 8  # elements of 16 bits that a head's size and all steps are multiples of
WIDEST = 256  # elements of a head


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, shape: tuple[int, ...]
) -> Tensor:
    """A softmax of ``scale`` times scores, times values: by cuDNN, or by what PyTorch prefers.

    query: [batch, heads, rows, size]; key, value: the same of keys.  Returns the result of
    ``shape``, row by row.
    """
    found, (query, key, value) = None, map(aligned, (query, key, value))
    if query.is_cuda:
        try:
            by_cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention.default
            found = by_cudnn(query, key, value, None, False, scale=scale)[0]
        except RuntimeError:  # it has no plan for these sizes
            pass
    if found is None:
        found = F.scaled_dot_product_attention(query, key, value, scale=scale)
    return found.contiguous().view(shape)
