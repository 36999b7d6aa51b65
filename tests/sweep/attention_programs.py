"""The program of a case of the attention sweep, and its arguments."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from attention_cases import Spec
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS: Final = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
WINDOW: Final = 300  # positions in the buffer that a mask is cut from
FLOATS: Final = ("float", "float_row", "float_grad", "bias_grad", "sliced")

Leaves = dict[str, Tensor]


@dataclass(frozen=True)
class Lengths:
    """Positions of one call."""

    queries: int
    keys: int


def lengths_of(spec: Spec) -> list[Lengths]:
    """Of one call, or of the three of a case with dynamic sizes."""
    keys = int(spec.keys)
    each = (keys, keys + 3, 2 * keys - 1) if spec.mode.startswith("dynamic") else (keys,)
    found = []
    for k in each:
        queries = {"same": k, "one": 1, "fewer": k // 2 + 1, "more": k + 5}
        found.append(Lengths(queries[spec.queries], k))
    return found


# --- arguments -----------------------------------------------------------------------------------


@dataclass
class Maker:
    """Tensors of one case, always the same ones."""

    spec: Spec
    device: str
    seed: int
    leaves: Leaves = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = torch.Generator().manual_seed(self.seed)
        self.dtype = getattr(torch, self.spec.dtype)

    def add(self, name: str, *shape: int, scale: float = 1.0, grad: bool = True) -> None:
        x = torch.randn(shape, generator=self.random) * scale
        x = x.to(self.device, self.dtype)
        self.leaves[name] = x.requires_grad_(grad and self.spec.grad)

    def placed(self, name: str, b: int, heads: int, length: int) -> None:
        """Queries, keys or values in the memory that the layout asks for, of shape (b,h,l,d)."""
        d = int(self.spec.size)
        if self.spec.layout == "blhd":
            self.add(name, b, length, heads, d)
            x = self.leaves[name].detach().transpose(1, 2)
        elif self.spec.layout == "cut":  # rows that no multiple of 16 bytes lies between
            self.add(name, b, heads, length, d + 1)
            x = self.leaves[name].detach()[..., :d]
        else:
            self.add(name, b, heads, length, d)
            return
        self.leaves[name] = x.requires_grad_(self.spec.grad)


def make_leaves(spec: Spec, n: Lengths, device: str, seed: int = 0) -> Leaves:
    """The arguments of a call."""
    m = Maker(spec, device, seed)
    heads, kv_heads = spec.head_counts
    b, d = int(spec.batch), int(spec.size)
    if spec.use == "call":
        _call_leaves(m, b, d, heads, kv_heads, n)
    elif spec.use == "nested":
        _nested_leaves(m, d, heads)
    else:
        hidden = heads * d
        deviation = 1 / math.sqrt(hidden)
        m.add("x", b, n.queries, hidden)
        m.add("y", b, n.keys, hidden)
        wide = hidden + 2 * kv_heads * d
        m.add("weight", wide, hidden, scale=deviation)
        m.add("bias", wide, scale=0.1)
        m.add("out", hidden, hidden, scale=deviation)
        m.add("out_bias", hidden, scale=0.1)
        if spec.use == "block":
            for name in ("norm", "norm2"):
                m.add(name, hidden)
            m.add("up", 2 * hidden, hidden, scale=deviation)
            m.add("down", hidden, 2 * hidden, scale=deviation)
    _mask_leaves(m, b, heads, n)
    return m.leaves


def _call_leaves(m: Maker, b: int, d: int, heads: int, kv_heads: int, n: Lengths) -> None:
    if m.spec.layout == "packed":
        m.add("qkv", b, n.keys, 3, heads, d)
        return
    m.placed("q", b, heads, n.queries)
    kv_batch = 1 if m.spec.layout == "expanded" else b
    m.placed("k", kv_batch, kv_heads, n.keys)
    m.placed("v", kv_batch, kv_heads, n.keys)


def _nested_lengths(spec: Spec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Queries and keys of each sequence."""
    n = lengths_of(spec)[0]
    keys = (n.keys, max(1, n.keys // 2), n.keys - 1)
    if spec.queries == "same":
        return keys, keys
    return (n.queries, max(1, n.queries // 2), n.queries), keys


def _nested_leaves(m: Maker, d: int, heads: int) -> None:
    queries, keys = _nested_lengths(m.spec)
    for name, rows in (("q", queries), ("k", keys), ("v", keys)):
        m.add(name, sum(rows), heads, d)
    for name, rows in (("q_offsets", queries), ("k_offsets", keys)):
        ends = torch.tensor((0, *rows)).cumsum(0)
        m.leaves[name] = ends.to(m.device)


def _mask_leaves(m: Maker, b: int, heads: int, n: Lengths) -> None:
    """The mask, where it is an argument; causal and similar ones are made in the program."""
    mask, q, k = m.spec.mask, n.queries, n.keys
    if m.spec.use == "mha" and mask == "float_grad":
        m.add("mask", b * heads, q, k)
    elif mask in FLOATS:
        sizes = {
            "float_row": (1, 1, 1, k),
            "bias_grad": (1, heads, q, k),
            "sliced": (1, 1, WINDOW + WINDOW, WINDOW + WINDOW + 1),
        }
        m.add("mask", *sizes.get(mask, (b, heads, q, k)), grad=mask.endswith("grad"))
    elif mask.startswith("bool") or mask == "dead_rows":
        shapes: dict[str, tuple[int, ...]] = {
            "bool_row": (1, 1, 1, k),
            "bool_batch": (b, 1, q, k),
            "dead_rows": (b, 1, q, k),
            "bool_2d": (q, k),
        }
        kept = torch.rand(shapes.get(mask, (b, heads, q, k)), generator=m.random) < 0.7
        kept[..., 0] = True
        if mask == "dead_rows":
            kept[..., ::3, :] = False
        m.leaves["mask"] = kept.to(m.device)
    elif mask == "padding":
        each = [max(1, k - 5 * i) for i in range(b)]
        m.leaves["lengths"] = torch.tensor(each, device=m.device)


# --- the program ---------------------------------------------------------------------------------


def program(spec: Spec, *, exact: bool = False) -> Callable[[Leaves], Any]:
    """A function of the arguments.  exact: by plain arithmetic, whatever backend is forced."""
    forced = "math" if exact else spec.forced
    make = {"mha": _mha, "nested": _nested, "call": _call}.get(spec.use, _projected)
    inner = make(spec)
    if forced == "any":
        return inner

    def inside(x: Leaves) -> Any:
        with sdpa_kernel(BACKENDS[forced]):
            return inner(x)

    return inner if forced.startswith("@") else inside


def around(spec: Spec) -> contextlib.AbstractContextManager[Any]:
    """What the call is made under."""
    if spec.forced.startswith("@"):
        return sdpa_kernel(BACKENDS[spec.backend])
    return contextlib.nullcontext()


def mask_of(spec: Spec, x: Leaves, q: int, k: int, like: Tensor) -> Tensor | None:
    """The mask as scaled_dot_product_attention takes it."""
    if spec.mask in ("none", "causal"):
        return None
    if spec.mask == "padding":
        positions = torch.arange(k, device=like.device)
        return (positions < x["lengths"][:, None])[:, None, None, :]
    if spec.mask == "inf":
        minus = torch.full((q, k), -math.inf, dtype=like.dtype, device=like.device)
        return minus.triu(1)
    if spec.mask == "sliced":
        return x["mask"][:, :, k - q + WINDOW : k + WINDOW, :k]
    return x["mask"]


def attend(spec: Spec, x: Leaves, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries, keys and values of shape (b,h,l,d)."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        mask_of(spec, x, q.shape[2], k.shape[2], q),
        dropout_p=float(spec.dropout),
        is_causal=spec.mask == "causal",
        scale=0.3 if spec.scale == "given" else None,
        enable_gqa=spec.heads != "4:4",
    )


def _call(spec: Spec) -> Callable[[Leaves], Any]:
    b = int(spec.batch)

    def call(x: Leaves) -> Tensor:
        if spec.layout == "packed":
            q, k, v = x["qkv"].permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = x["q"], x["k"], x["v"]
        if spec.layout == "expanded":
            k, v = k.expand(b, -1, -1, -1), v.expand(b, -1, -1, -1)
        return attend(spec, x, q, k, v)

    return call


def _projected(spec: Spec) -> Callable[[Leaves], Any]:
    heads, kv_heads = spec.head_counts
    d = int(spec.size)
    widths = (heads * d, kv_heads * d, kv_heads * d)

    def split(x: Tensor, count: int) -> Tensor:
        x = x.view(x.shape[0], x.shape[1], count, d).transpose(1, 2)
        return x.contiguous() if spec.layout == "bhld" else x

    def project(x: Leaves, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if spec.layout == "packed":
            q, k, v = F.linear(a, x["weight"], x["bias"]).split(widths, dim=-1)
        else:
            weights = zip(x["weight"].split(widths), x["bias"].split(widths), strict=True)
            inputs = zip((a, c, c), weights, strict=True)
            q, k, v = (F.linear(i, w, bias) for i, (w, bias) in inputs)
        k, v = split(k, kv_heads), split(v, kv_heads)
        if spec.layout == "expanded":
            k, v = k[:1].expand(k.shape), v[:1].expand(v.shape)
        return split(q, heads), k, v

    def attention(x: Leaves, a: Tensor, c: Tensor) -> Tensor:
        out = attend(spec, x, *project(x, a, c))
        return F.linear(out.transpose(1, 2).flatten(2), x["out"], x["out_bias"])

    def block(x: Leaves) -> Tensor:
        shape = x["norm"].shape
        a = x["x"] + attention(x, F.layer_norm(x["x"], shape, x["norm"]), x["y"])
        up = F.linear(F.layer_norm(a, shape, x["norm2"]), x["up"])
        return a + F.linear(F.gelu(up), x["down"])

    if spec.use == "block":
        return block
    return lambda x: attention(x, x["x"], x["y"])


def _mha(spec: Spec) -> Callable[[Leaves], Any]:
    """nn.MultiheadAttention by its functional form; scale "given" asks for the weights too."""
    heads, d = spec.head_counts[0], int(spec.size)
    hidden = heads * d
    # Both only of one sort of module: evaluation under no_grad takes PyTorch's fast path.
    module = torch.nn.MultiheadAttention(
        hidden, heads, dropout=float(spec.dropout), batch_first=spec.layout == "blhd"
    )
    module = module.eval() if spec.mode == "no_grad" else module

    def call(x: Leaves) -> Any:
        a, c = x["x"], x["y"]
        if spec.queries == "same":
            c = a
        q, k = a.shape[1], c.shape[1]
        if spec.layout != "blhd":
            a, c = a.transpose(0, 1), c.transpose(0, 1)
            c = a if spec.queries == "same" else c
        mask, padding = None, None
        if spec.mask == "padding":
            padding = torch.arange(k, device=a.device) >= x["lengths"][:, None]
        elif spec.mask == "causal":
            mask = torch.ones(q, k, dtype=torch.bool, device=a.device).triu(1)
        elif spec.mask == "bool_2d":
            mask = ~x["mask"]
        elif spec.mask != "none":
            mask = mask_of(spec, x, q, k, a)
        return torch.func.functional_call(
            module,
            {
                "in_proj_weight": x["weight"],
                "in_proj_bias": x["bias"],
                "out_proj.weight": x["out"],
                "out_proj.bias": x["out_bias"],
            },
            (a, c, c),
            {
                "key_padding_mask": padding,
                "need_weights": spec.scale == "given",
                "attn_mask": mask,
                "is_causal": spec.mask == "causal",
            },
        )

    return call


def _nested(spec: Spec) -> Callable[[Leaves], Any]:
    """Sequences of several lengths in one tensor of their rows."""

    queries, keys = _nested_lengths(spec)

    def part(x: Leaves, name: str, offsets: str, rows: tuple[int, ...]) -> Tensor:
        # The least and the greatest length are given: else they are read from the offsets, for
        # which Dynamo leaves the graph.
        nested = torch.nested.nested_tensor_from_jagged(
            x[name], x[offsets], min_seqlen=min(rows), max_seqlen=max(rows)
        )
        return nested.transpose(1, 2)

    def call(x: Leaves) -> Tensor:
        of_keys = "q_offsets" if spec.queries == "same" else "k_offsets"
        q = part(x, "q", "q_offsets", queries)
        k, v = part(x, "k", of_keys, keys), part(x, "v", of_keys, keys)
        scale = 0.3 if spec.scale == "given" else None
        causal = spec.mask == "causal"
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return out.transpose(1, 2).values()

    return call
