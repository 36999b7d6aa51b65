"""Calls that eager refuses because of their types, though the metadata of their results exists.

Kernels of ATen are there for some types; its functions of metadata ask for few of them.  Such a
call is left to ATen, which refuses it when it runs, as in eager mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch.fx import Node as FxNode

from litz.graph.calls import op_name
from litz.ir.dtype import BF16, BOOL, F16, F32, I32, I64, U8, DType
from litz.lowering.context import Unsupported
from litz.lowering.registry import Result
from litz.lowering.values import TensorValue

# Of these no result is a bool.
_NO_BOOLS: Final = frozenset(
    """
    abs addcdiv addcmul bitwise_left_shift bitwise_right_shift ceil clamp clamp_max clamp_min
    cumprod cumsum dot floor fmod kthvalue linalg_cross median nanmedian reflection_pad1d
    reflection_pad2d reflection_pad3d relu remainder round threshold topk trunc vdot
""".split()
)
_CLAMPS: Final = frozenset(("clamp", "clamp_max", "clamp_min"))
# These take no bool, though their results are other types.
_FROM_NO_BOOLS: Final = frozenset(("argmax", "argmin", "mvlgamma", "trace"))
# Of these all results are floats.
_FLOATS: Final = frozenset(
    """
    _cdist_forward _log_softmax _log_softmax_backward_data _prelu_kernel _softmax
    _softmax_backward_data adaptive_max_pool2d adaptive_max_pool3d celu elu frac gelu glu
    grid_sampler_2d grid_sampler_3d hardsigmoid hardswish hypot im2col lerp log_sigmoid_forward
    logaddexp logaddexp2 logcumsumexp max_pool2d_with_indices_backward max_unpool2d max_unpool3d
    mish nextafter silu softplus std std_mean var var_mean
""".split()
)
# These take floats alone, though the results of others are some.
_FROM_FLOATS: Final = frozenset(
    """
    binary_cross_entropy binary_cross_entropy_with_logits huber_loss nll_loss2d_forward
    nll_loss_forward soft_margin_loss
""".split()
)
# Of these none is.
_NO_FLOATS: Final = frozenset(
    """
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
""".split()
)
# For these a CPU has no kernels of 16-bit floats.
_WIDE_ON_CPUS: Final = frozenset(
    """
    _cdist_forward avg_pool3d special_bessel_j0 special_bessel_j1 special_bessel_y0
    special_bessel_y1 special_erfcx special_log_ndtr special_modified_bessel_i0
    special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_spherical_bessel_j0
""".split()
)
# These take no two types, by the positions of their arguments.
_ALIKE: Final = {
    "_softmax_backward_data": (0, 1), "_log_softmax_backward_data": (0, 1),
    "_unsafe_masked_index_put_accumulate": (0, 3), "_unsafe_index_put": (0, 2),
    "binary_cross_entropy": (0, 1, 2), "heaviside": (0, 1), "index_add": (0, 3),
    "index_copy": (0, 3), "index_put": (0, 2), "index_reduce": (0, 3), "linalg_cross": (0, 1),
    "nll_loss2d_forward": (0, 2), "nll_loss_forward": (0, 2), "put": (0, 2),
}  # fmt: skip
# The first and the parameters of norms: on CPUs of one type, or 16-bit floats and f32.
_NORMS: Final = {
    "_native_batch_norm_legit": (1, 2, 3, 4), "_native_batch_norm_legit_functional": (1, 2, 3, 4),
    "_native_batch_norm_legit_no_training": (1, 2, 3, 4), "native_batch_norm": (1, 2, 3, 4),
    "native_group_norm": (1, 2), "native_layer_norm": (2, 3),
}  # fmt: skip
# Where these are given places, and of which types.
_PLACES: Final = {
    "index_add": (2, (I32, I64)), "index_copy": (2, (I64,)), "index_fill": (2, (I64,)),
    "index_reduce": (2, (I32, I64)), "index_select": (2, (I32, I64)),
    "nll_loss2d_forward": (1, (U8, I64)), "nll_loss_forward": (1, (U8, I64)),
    "put": (1, (I64,)), "take": (1, (I64,)),
}  # fmt: skip
# Along a dimension that their functions of metadata do not look for.
_UNCHECKED_DIMS: Final = frozenset(("cummax", "cummin", "sort"))


def check_types(n: FxNode, args: Sequence[object], results: Sequence[Result | None]) -> None:
    """Raise ``Unsupported`` where eager has no kernel for the types that a call is of.

    args: what the call is given, in order, lists as they are.  results: metadata of its results.
    """
    name = op_name(n.target)
    given = next((a for a in args if isinstance(a, TensorValue)), None)
    made = next((r for r in results if r is not None), None)
    if given is None or made is None:
        return
    if name in _CLAMPS and _is_of_two(n):
        return
    if _refuses(name, given.dtype, made.dtype, made.device):
        raise Unsupported(f"{given.dtype}, of which eager has no kernel")
    if _mixes(name, args, made.device):
        raise Unsupported("types that eager does not take together")
    if name in _UNCHECKED_DIMS:
        dim, rank = n.kwargs.get("dim", n.args[1] if len(n.args) > 1 else -1), max(given.ndim, 1)
        if isinstance(dim, int) and not -rank <= dim < rank:
            raise Unsupported("a dimension that there is not")


def _is_of_two(n: FxNode) -> bool:
    """Whether a clamp has one bound, and it is a tensor: eager takes the maximum or minimum."""
    bounds = [a for a in (*n.args[1:], *n.kwargs.values()) if a is not None]
    return len(bounds) == 1 and getattr(n.target, "_overloadname", "") == "Tensor"


def _mixes(name: str, args: Sequence[object], device: str) -> bool:
    """Whether arguments are of types that a kernel does not take beside each other."""

    def types(positions: Sequence[int]) -> set[DType]:
        given = (args[p] for p in positions if p < len(args))
        return {a.dtype for a in given if isinstance(a, TensorValue)}

    if name in _PLACES:
        place, known = _PLACES[name]
        if not types((place,)) <= {*known}:
            return True
    if name in _NORMS and device == "cpu":
        first, others = types((0,)), types(_NORMS[name])
        narrow = first <= {F16, BF16}
        return len(others) > 1 or not others <= (first | {F32} if narrow else first)
    return len(types(_ALIKE.get(name, ()))) > 1


def _refuses(name: str, given: DType, made: DType, device: str) -> bool:
    if made is BOOL and name in _NO_BOOLS or given is BOOL and name in _FROM_NO_BOOLS:
        return True
    if made in (F16, BF16) and name in _WIDE_ON_CPUS:
        return device == "cpu"
    if name in _FROM_FLOATS:
        return not given.is_float
    return name in _NO_FLOATS if made.is_float else name in _FLOATS
