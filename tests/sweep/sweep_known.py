"""What the sweep leaves out or lets differ, each with its reason."""

from __future__ import annotations

from typing import Any

import torch

# Values that no two runs share: random ones (Litz has a stream of its own), or memory as found.
# Types, shapes, strides and aliases are compared all the same.
RANDOM = frozenset({
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "normal.in_place", "normal.number_mean", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "uniform", "rand", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout.with_train", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "svd_lowrank", "pca_lowrank",
    "nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward",
})  # fmt: skip
UNINITIALISED = frozenset({
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
})  # fmt: skip

# Operators that need another device.
ELSEWHERE = {"jiterator_": "runs on GPUs only"}

# (entry, dtypes or "", checks or "", part of the difference's text): reason
_UNSAFE = "the operator leaves open whether its results share memory: Litz's never do"
_INTEGERS = "uint8,int8,int16,int32,int64"
_SIXTH = "eager's kernels on GPUs multiply by a sixth rounded to float32, Litz's by a sixth"
_CANCEL = "two points are what is left when cosines cancel"
_SUMS = "Chebyshev sums, of which eager's kernels on GPUs round products and sums once"
_SEED = "without dropout nothing writes the seed and its offset"
_TIES = "which of equal elements comes first, which a sort that is not stable leaves open"
_NARROW = "bfloat16,float16,int8,uint8,int16,int32,bool"
KNOWN: dict[tuple[str, str, str, str], str] = {
    ("unsafe_split", "", "", "aliases"): _UNSAFE,
    ("unsafe_chunk", "", "", "aliases"): _UNSAFE,
    ("__rmod__", _INTEGERS, "", ": 0 instead of"): (
        "integers over zero, which CUDA leaves open; on CPUs it raises, here and in eager"
    ),
    ("nn.functional.hardsigmoid", "float64", "", "error 2.98e-08, eager's 0"): _SIXTH,
    ("nn.functional.hardswish", "float64", "", "error 2.98e-08, eager's 0"): _SIXTH,
    ("signal.windows.nuttall", "", "", "error"): _CANCEL,
    ("signal.windows.kaiser", "float64", "", "error 1.33e-15, eager's 0"): _SUMS,
    ("signal.windows.blackman", "", "", "error"): _CANCEL,
    ("nn.functional.normalize", "bfloat16,float16", "backward", "instead of"): (
        "a gradient of 0: what is left of equal terms, where eager rounds a power to -1/2 once in "
        "vectors and twice at their ends"
    ),
    ("tensordot", "bfloat16,float16", "backward", "strides"): (
        "PyTorch's metadata of a 16-bit product with an expanded number has other strides than it"
    ),
    ("torch.ops.aten._flash_attention_forward", "", "", "result 2: "): _SEED,
    ("sort", _NARROW, "", "result 1: "): _TIES,
    ("topk", _NARROW, "", "result 1: "): _TIES,
    ("argsort", _NARROW, "", "result 0: "): _TIES,
    ("kthvalue", _NARROW, "", "result 1: "): _TIES,
    ("median", "", "errors", "no error [float32[1, 1"): "eager's GPU kernel takes 24 dimensions",
    ("unsafe_split", "", "", "strides"): _UNSAFE,
    ("unsafe_chunk", "", "", "strides"): _UNSAFE,
}


def random_values(entry: str) -> bool:
    return entry in RANDOM or entry in UNINITIALISED


def no_run(op: Any, dtype: torch.dtype, check: str, device: str = "cpu") -> str:
    """Why an entry isn't run at all; empty where it is."""
    device = device.split(":")[0]
    for prefix, reason in ELSEWHERE.items():
        if op.name.startswith(prefix):
            return reason
    if check == "errors":
        return ""
    if dtype not in op.supported_dtypes(device):
        return "the operator does not take the type"
    if check == "out" and not op.supports_out:
        return "no out= form"
    if check == "backward" and (
        not op.supports_autograd or dtype not in op.supported_backward_dtypes(device)
    ):
        return "not differentiable in the type"
    return ""


def known_reason(entry: str, dtype: str, check: str, found: str) -> str:
    for (name, dtypes, checks, text), reason in KNOWN.items():
        if (
            name == entry
            and (not dtypes or dtype in dtypes.split(","))
            and (not checks or check in checks.split(","))
            and text in found
        ):
            return reason
    return ""
