"""Elementwise steps."""

from __future__ import annotations

import torch

from tests.fuzz.generate import Draft, Made, Maker
from tests.fuzz.program import Step

DTYPES = (
    *("float32", "float32", "float64", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)


def is_float(t: torch.Tensor) -> bool:
    return t.is_floating_point()


def is_int(t: torch.Tensor) -> bool:
    return not t.is_floating_point()


def is_whole(t: torch.Tensor) -> bool:
    return not t.is_floating_point() and t.dtype is not torch.bool


def is_bool(t: torch.Tensor) -> bool:
    return t.dtype is torch.bool


EXACT = (
    "-{0}", "{0}.abs()", "torch.relu({0})", "torch.square({0})", "{0}.sgn()", "{0} * 2",
    "{0} + 1.5", "1 - {0}", "{0} * 0.3", "{0} / 3", "torch.clamp({0}, -1, 1.5)",
    "{0}.clamp(min=0)", "{0}.clamp_max(1)", "{0}.nan_to_num(0.5, 2.0, -3.0)", "{0} ** 2",
    "{0}.neg()", "F.hardtanh({0})", "F.leaky_relu({0}, 0.25)", "torch.zeros_like({0})",
    "torch.ones_like({0})", "torch.full_like({0}, 3)", "{0}.clone()", "{0}.positive()",
    "torch.reciprocal({0})", "F.threshold({0}, 0.1, -2.0)", "F.relu6({0})",
    "{0} + {0}", "{0} * {0}", "{0}.tril()", "{0}.triu(1)", "{0}.new_zeros({0}.shape)",
    "torch.rsub({0}, 2)", "{0}.sub(3, alpha=2)", "{0}.detach()",
)  # fmt: skip
DISCRETE = (
    "{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0}.frac()", "{0}.sign()",
    "torch.isnan({0})", "torch.isinf({0})", "{0}.isfinite()", "torch.signbit({0})",
    "{0} > 0", "{0} <= 0.5", "{0} == 1", "{0} != 0", "torch.logical_not({0})",
    "torch.heaviside({0}, torch.ones_like({0}))", "F.hardshrink({0}, 0.5)",
    "F.softshrink({0}, 0.3)", "{0} % 3", "torch.remainder({0}, -1.5)", "torch.fmod({0}, 0.7)",
    "{0} // 2", "torch.div({0}, 0.6, rounding_mode='trunc')", "{0}.round(decimals=1)",
)  # fmt: skip
ROUGH = (
    "{0}.exp()", "torch.sin({0})", "torch.cos({0})", "torch.tanh({0})", "torch.sigmoid({0})",
    "F.gelu({0})", "F.gelu({0}, approximate='tanh')", "F.silu({0})", "torch.erf({0})",
    "torch.log1p({0}.abs())", "torch.expm1({0})", "torch.rsqrt({0}.abs() + 0.5)",
    "F.softplus({0})", "torch.atan({0})", "torch.asinh({0})", "F.elu({0})", "F.hardswish({0})",
    "F.hardsigmoid({0})", "F.mish({0})", "F.celu({0}, 0.7)", "F.selu({0})", "torch.exp2({0})",
    "torch.log2({0}.abs() + 0.25)", "torch.log({0}.abs() + 0.1)", "F.logsigmoid({0})",
    "torch.erfc({0})", "torch.log10({0}.abs() + 2)", "{0}.sinh()", "{0}.cosh()",
    "torch.pow({0}, 3)", "torch.pow({0}.abs(), 0.5)", "torch.pow({0}, -1)", "2.0 ** {0}",
    "torch.sqrt({0}.abs())",
    "torch.xlogy({0}, {0}.abs() + 1)", "torch.tan({0}.clamp(-1, 1))", "F.softsign({0})",
    "F.tanhshrink({0})", "torch.sinc({0})", "torch.erfinv({0}.clamp(-0.9, 0.9))",
    "torch.asin({0}.clamp(-0.9, 0.9))", "torch.acos({0}.clamp(-0.9, 0.9))",
    "torch.atanh({0}.clamp(-0.9, 0.9))", "torch.acosh({0}.abs() + 1.1)", "{0}.deg2rad()",
    "torch.lgamma({0}.abs() + 0.5)", "torch.digamma({0}.abs() + 0.5)",
)  # fmt: skip
WHOLE = (
    "~{0}", "{0} & 12", "{0} | 5", "{0} ^ 3", "{0} << 2", "{0} >> 1", "{0} // 3", "{0} % 5",
    "{0} % -4", "torch.fmod({0}, 3)", "torch.div({0}, 2, rounding_mode='trunc')",
    "torch.div({0}, -3, rounding_mode='floor')", "{0} ** 3", "{0}.bitwise_not()", "{0} - 7",
)  # fmt: skip


def unary(d: Draft) -> Made:
    kind = d.rng.choice(("exact", "exact", "discrete", "rough", "rough", "whole"))
    if kind == "whole":
        k = d.pick(is_whole)
        return None if k is None else Step(d.rng.choice(WHOLE), (k,))
    if kind == "rough":
        k = d.pick(is_float) if d.rng.random() < 0.9 else d.pick()
        return None if k is None else Step(d.rng.choice(ROUGH), (k,), "rough")
    if kind == "exact":
        k = d.pick()
        return None if k is None else Step(d.rng.choice(EXACT), (k,))
    k = d.exact()
    return None if k is None else Step(d.rng.choice(DISCRETE), (k,), "discrete")


BINARY = (
    # Eager's vector lanes and its tail disagree on the larger of 0.0 and -0.0: a sum with 0 has
    # one sign.
    "torch.maximum({0}, {1}) + 0", "torch.minimum({0}, {1}) + 0",
    "torch.fmax({0} * 1, {1} * 1) + 0", "torch.fmin({0} * 1, {1} * 1) + 0",
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "torch.add({0}, {1}, alpha=2)",
    "{0} / {1}", "{0} / ({1}.abs() + 1)", "torch.sub({0}, {1}, alpha=2)", "{1} - {0}",
    "torch.copysign({0}, {1}.nan_to_num())",
)  # fmt: skip
BINARY_ROUGH = (
    "torch.atan2({0}, {1})", "torch.hypot({0}, {1})", "torch.logaddexp({0}, {1})",
    "torch.pow({0}.abs() + 0.1, {1})", "torch.lerp({0}, {1}, 0.3)", "torch.xlogy({0}, {1}.abs())",
    "torch.addcmul({0}, {1}, {1}, value=0.5)", "torch.addcdiv({0}, {1}, {1}.abs() + 1)",
    "F.smooth_l1_loss({0}, {1}, reduction='none')", "F.mse_loss({0}, {1}, reduction='none')",
    "torch.logaddexp2({0}, {1})", "torch.add({0}, {1}, alpha=3)",
    "F.huber_loss({0}, {1}, reduction='none')",
)  # fmt: skip
COMPARE = (
    "{0} > {1}", "{0} <= {1}", "{0} == {1}", "{0} != {1}", "torch.logical_and({0}, {1})",
    "torch.logical_xor({0}, {1})", "torch.logical_or({0}, {1})", "{0} < {1}", "{0} >= {1}",
    "torch.floor_divide({0}, {1}.abs() + 1)", "torch.remainder({0}, {1}.abs() + 1)",
    "torch.fmod({0}, {1}.abs() + 1)", "torch.isclose({0}, {1})",
)  # fmt: skip
WHOLE_BINARY = (
    "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} << ({1} & 7)", "{0} >> ({1} & 7)",
    "{0} // ({1}.abs() | 1)", "{0} % ({1}.abs() | 1)", "torch.fmod({0}, {1}.abs() | 1)",
    "torch.div({0}, {1}.abs() | 1, rounding_mode='trunc')", "torch.gcd({0}, {1})",
)  # fmt: skip


def binary(d: Draft) -> Made:
    kind = d.rng.choice(("exact", "exact", "exact", "rough", "compare", "whole"))
    if kind in ("exact", "rough"):
        k = d.pick(is_float if kind == "rough" else None)
        other = None if k is None else d.partner(k, same_type=kind == "rough")
        if k is None or other is None:
            return None
        texts: tuple[str, ...] = BINARY if kind == "exact" else BINARY_ROUGH
        return Step(d.rng.choice(texts), (k, other), kind)
    k = d.exact(is_int if kind == "whole" else None)
    other = None if k is None else d.partner(k)
    if k is None or other is None:
        return None
    if kind == "whole" and not (is_whole(d.tensor(k)) and is_whole(d.tensor(other))):
        return None
    texts = COMPARE if kind == "compare" else WHOLE_BINARY
    return Step(d.rng.choice(texts), (k, other), "discrete")


def select(d: Draft) -> Made:
    """``where`` and masks."""
    mask = d.pick(is_bool)
    k = d.pick()
    if k is None:
        return None
    if mask is None or d.rng.random() < 0.4:
        at = d.exact()
        if at is None:
            return None
        compare = Step("{0} > 0", (at,), "discrete")
        return compare
    other = d.partner(k)
    form = d.rng.randrange(4)
    if form == 0 and other is not None:
        return Step("torch.where({0}, {1}, {2})", (mask, k, other))
    if form == 1:
        return Step("torch.where({0}, {1}, 0.5)", (mask, k))
    if form == 2:
        return Step("{1}.masked_fill({0}, 2)", (mask, k))
    return Step("torch.where({0}, -1, {1})", (mask, k))


def cast(d: Draft) -> Made:
    dtype = d.rng.choice(DTYPES)
    k = d.pick() if dtype.startswith(("float", "bfloat")) else d.exact()
    if k is None:
        return None
    kind = "exact" if dtype.startswith(("float", "bfloat")) else "cast"
    text = d.rng.choice(("{0}.to(torch.%s)", "{0}.type(torch.%s)", "{0}.to(dtype=torch.%s)"))
    return Step(text % dtype, (k,), kind)


def twice(d: Draft) -> Made:
    """One shared subexpression, read by two steps."""
    k = d.pick(is_float)
    if k is None:
        return None
    at = len(d.machine.values)
    return (
        Step(d.rng.choice(ROUGH), (k,), "rough"),
        Step("{0} * {1}", (at, k)),
        Step("{0} - {1}", (at + 1, at)),
    )


MAKERS: tuple[tuple[float, Maker], ...] = (
    (5, unary),
    (6, binary),
    (2, select),
    (2, cast),
    (0.6, twice),
)
