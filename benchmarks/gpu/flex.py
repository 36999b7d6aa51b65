"""``python -m benchmarks.gpu.flex``: attention with functions of scores, beside the peer.

Times of CUDA-graph replays, forward and forward with backward, errors against float64 (of one
head), the allocator's peak and the first call.  Each case and backend has a process of its own;
``--out`` keeps what is measured, a line of JSON each, and a second run goes on where the first was
cut off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu.apart import measured_apart
from benchmarks.gpu.backends import backend_called
from benchmarks.gpu.clock import EventClock, Replay

SECONDS = 0.4


@dataclass(frozen=True)
class Case:
    """batch, heads of queries and keys, queries, keys, head size; which functions.

    learned: what the function of scores captures and trains, by its shape for the sizes.
    making: the mask's blocks are made in the program too.  by_hand: products around a softmax.
    """

    sizes: tuple[int, int, int, int, int, int]
    score: str = ""
    mask: str = ""
    dtype: torch.dtype = torch.bfloat16
    backward: bool = True
    making: bool = False
    by_hand: bool = False

    @property
    def learned(self) -> tuple[int, ...]:
        """The shape of what trains beside the inputs; a head's part is a row."""
        _, h, _, m, n, _ = self.sizes
        return {"table": (h, m + n), "scaled": (h,), "bias": (h, m, n)}.get(self.score, ())


CASES: dict[str, Case] = {
    "causal_linear": Case((2, 16, 16, 4096, 4096, 64), "linear", "causal"),
    "plain": Case((2, 16, 16, 4096, 4096, 64)),
    "causal_128": Case((2, 16, 16, 4096, 4096, 128), "", "causal"),
    "window": Case((2, 16, 16, 8192, 8192, 64), "", "window"),
    "documents": Case((2, 16, 16, 8192, 8192, 128), "", "documents"),
    "grouped": Case((2, 32, 8, 4096, 4096, 128), "", "causal"),
    "softcap": Case((2, 16, 16, 4096, 4096, 128), "softcap", "causal"),
    "long": Case((1, 8, 8, 32768, 32768, 128), "", "causal"),
    "odd": Case((2, 16, 16, 4000, 4000, 64), "linear", "causal"),
    "fp16_96": Case((2, 12, 12, 2048, 2048, 96), "", "causal", torch.float16),
    "learned_table": Case((2, 16, 16, 4096, 4096, 64), "table", "causal"),
    "learned_scale": Case((2, 16, 16, 4096, 4096, 64), "scaled", "causal"),
    "learned_bias": Case((2, 16, 16, 2048, 2048, 64), "bias"),
    "causal": Case((2, 16, 16, 4096, 4096, 64), "", "causal", backward=False),
    "mask_made_too": Case((2, 16, 16, 4096, 4096, 64), "", "causal", backward=False, making=True),
    "by_hand": Case((2, 16, 16, 4096, 4096, 64), backward=False, by_hand=True),
    "by_hand_causal": Case(
        (2, 16, 16, 2048, 2048, 128), "", "causal", backward=False, by_hand=True
    ),
    "by_hand_short": Case((8, 12, 12, 512, 512, 64), backward=False, by_hand=True),
    "decode": Case((8, 32, 8, 1, 32768, 128), backward=False),
    "decode_linear": Case((4, 32, 32, 1, 32768, 64), "linear", "short", backward=False),
}


def build(case: Case) -> tuple[Callable[..., Any], tuple[Tensor, ...], Callable[..., Tensor]]:
    """The program, its inputs, and the same in float64 for one batch and head of each input."""
    b, h, g, m, n, e = case.sizes
    slopes = torch.linspace(0.01, 0.3, h, device="cuda")
    document = torch.arange(n, device="cuda") // 1500

    def linear(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + (j - i) * slopes[h]

    def softcap(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return 20 * torch.tanh(s / 20)

    masks: dict[str, Any] = {
        "causal": lambda b, h, i, j: i >= j,
        "window": lambda b, h, i, j: (i >= j) & (i - j <= 1024),
        "documents": lambda b, h, i, j: (i >= j) & (document[i] == document[j]),
        "short": lambda b, h, i, j: j < n - 100,
        "": None,
    }
    scores: dict[str, Any] = {
        "linear": lambda: linear,
        "softcap": lambda: softcap,
        "table": lambda t: lambda s, b, h, i, j: s + t[h, i - j + n],
        "scaled": lambda t: lambda s, b, h, i, j: s * t[h],
        "bias": lambda t: lambda s, b, h, i, j: s + t[h, i, j],
        "": lambda: None,
    }
    score, mask = scores[case.score], masks[case.mask]
    made = None if mask is None else create_block_mask(mask, None, None, m, n, "cuda")
    gen = torch.Generator("cuda").manual_seed(1)
    shapes = (b, h, m, e), (b, g, n, e), (b, g, n, e), *((case.learned,) if case.learned else ())
    inputs = tuple(
        torch.randn(s, generator=gen, device="cuda", dtype=case.dtype, requires_grad=case.backward)
        for s in shapes
    )

    def fn(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        blocks = made
        if case.making:
            blocks = create_block_mask(mask, None, None, m, n, "cuda")
        return flex_attention(q, k, v, score_mod=score(*more), block_mask=blocks, enable_gqa=h != g)

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = q @ k.mT * e**-0.5
        if mask is not None:
            i, j = (torch.arange(x, device="cuda") for x in (m, n))
            found = found.masked_fill(~mask(0, 0, i[:, None], j), -torch.inf)
        return torch.softmax(found, -1) @ v

    def exact(q: Tensor, k: Tensor, v: Tensor, head: int, *more: Tensor) -> Tensor:
        """Of rows of one head."""
        i = torch.arange(q.shape[0], device="cuda")[:, None]
        j = torch.arange(n, device="cuda")[None, :]
        at = torch.tensor(head, device="cuda")
        s = q.double() @ k.double().T / e**0.5
        modify = score(*more)
        s = s if modify is None else modify(s, at * 0, at, i, j).double()
        s = s if mask is None else s.masked_fill(~mask(at * 0, at, i, j), -torch.inf)
        return torch.softmax(s, -1) @ v.double()

    return by_hand if case.by_hand else fn, inputs, exact


def errors(case: Case, compiled: Any, inputs: Any, exact: Any, grads: Tensor | None) -> list[float]:
    """Relative errors of the result and of each gradient, on the last head."""
    b, h, g, m, n, _ = case.sizes
    out = compiled(*inputs)
    if grads is not None:
        found = [out, *torch.autograd.grad(out, inputs, grads)]
    else:
        found = [out]
    heads = range(h - h // g, h)
    with torch.enable_grad():
        more = [x.detach().double().requires_grad_() for x in inputs[3:]]
        k, v = (x[-1, -1].detach().double().requires_grad_() for x in inputs[1:3])
        q = [inputs[0][-1, x].detach().double().requires_grad_() for x in heads]
        refs = [exact(a, k, v, x, *more) for a, x in zip(q, heads, strict=True)]
        wanted: list[Tensor] = [refs[-1]]
        if grads is not None:
            got = torch.autograd.grad(refs, [q[-1], k, v], [grads[-1, x].double() for x in heads])
            wanted += got
    del refs
    pairs = [*zip((x[-1, -1] for x in found[:4]), wanted, strict=True)]
    if grads is not None and more:  # a head's row is a sum over all batches
        total = torch.zeros_like(more[0][-1])
        for one in range(b):
            rows = (x[one, -1].detach() for x in inputs[:3])
            out = exact(*rows, h - 1, *more)
            total += torch.autograd.grad(out, more, grads[one, -1].double())[0][-1]
        pairs.append((found[4][-1], total))
    return [float((a.double() - r).norm() / r.norm()) for a, r in pairs]


def measured(name: str, backend: str, mode: str | None) -> dict[str, Any]:
    case = CASES[name]
    backend_called(backend)
    fn, inputs, exact = build(case)
    warm = torch.compile(lambda x: x + 1, backend=backend)
    warm(inputs[0])
    compiled = torch.compile(fn, backend=backend, mode=mode)
    start = time.perf_counter()
    out = compiled(*inputs)
    grads = torch.randn_like(out) if case.backward else None
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    if grads is not None:
        torch.autograd.grad(out, inputs, grads)
        torch.cuda.synchronize()
    both = time.perf_counter() - start
    del out
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call = compiled
    found: dict[str, Any] = {"case": name, "backend": backend, "mode": mode, "first": first}
    with torch.no_grad():
        free = tuple(x.detach() for x in inputs)
        timed = torch.compile(fn, backend=backend, mode=mode) if case.backward else compiled
        timed(*free)
        clock = EventClock()
        found["forward"] = median(clock.measure(Replay(lambda: timed(*free)), SECONDS)) * 1e3
    if grads is not None:
        found["first_both"] = both

        def step() -> Any:
            return torch.autograd.grad(call(*inputs), inputs, grads)

        torch.cuda.reset_peak_memory_stats()
        step()
        found["peak"] = (torch.cuda.max_memory_allocated() - before) / 2**30
        found["both"] = median(clock.measure(Replay(step), SECONDS)) * 1e3
    found["errors"] = errors(case, compiled, inputs, exact, grads)
    return found


def show(rows: list[dict[str, Any]], peer: str) -> None:
    by = {(r["case"], r["backend"]): r for r in rows}
    ratios: list[float] = []
    for name in CASES:
        for backend in dict.fromkeys(r["backend"] for r in rows):
            r = by.get((name, backend))
            if r is None:
                continue
            if "failed" in r:
                print(f"{name:14} {backend:9} failed: {r['failed'][-300:]}")
                continue
            text = " ".join(f"{e:.1e}" for e in r["errors"])
            both = f"{r['both']:8.3f} {r['peak']:6.2f}" if "both" in r else " " * 15
            other = by.get((name, peer), {})
            ratio = ""
            if backend != peer and "forward" in other:
                each = [other[k] / r[k] for k in ("forward", "both") if k in r and k in other]
                ratios += each
                ratio = " ".join(f"{x:.2f}" for x in each)
            times = f"{r['forward']:8.3f} {both} first {r['first']:5.2f}"
            print(f"{name:14} {backend:9} {times} {text} {ratio}")
    if ratios:
        print(f"geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.3f}")


def main() -> int:
    rows = measured_apart("gpu.flex", __doc__, CASES, ("litz", "inductor"), measured)
    if rows is not None:
        show(rows, "inductor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
