"""Artifacts of whole programs, bound in another process: what to compile, record and compare.

``python artifact_cases.py FILE`` is that other process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

from litz import backend
from litz.artifact import from_bytes, to_bytes
from litz.binding import bind
from litz.compiler import Stages
from litz.runtime.strided import copy_as_it_is


@dataclass(frozen=True)
class Case:
    """A program and its arguments; what requires gradients is trained."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool = False


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def _in_place(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x.mul_(2).index_add_(0, i, torch.ones(3, 4))
    return x.sum(0)


def _model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = [torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU()]
        return torch.nn.Sequential(*layers, torch.nn.Dropout(0.3), torch.nn.Linear(32, 4))


def _scan(x: torch.Tensor) -> torch.Tensor:
    return (x.cumsum(0) * 2).sort(-1).values + torch.tensor([1.5, float("nan"), -0.0])


def _complex(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.fft.fft(x) * (2 - 1j)) + 1


def _by_data(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x * n.sum().item() + x[x > 0].sum()


def _attended(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q * 2, q, is_causal=True)


def _cond(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.cond(x.sum() > 0, lambda x: (x @ w).sin(), lambda x: x.cos() - w.sum(), (x,))
    return y.exp() + 1


def _while(x: torch.Tensor) -> torch.Tensor:
    def body(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.cond(y.mean() > 0, lambda y: y.cos() - 1, lambda y: y.exp() * 0.5, (y,))
        return i + 1, z + x

    return while_loop(lambda i, y: i < 4, body, (torch.tensor(0), x * 2))[1].exp()


def _map(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return hop_map(lambda row, w: (row * w[0]).sin() * row, x * 2, w).exp()


def _scanned(x: torch.Tensor) -> torch.Tensor:
    def step(total: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (total + row).tanh(), total * row + 1

    last, every = scan(step, x[0] * 0, x * 2)
    return last + every.sum(1)


def _combined(x: torch.Tensor) -> torch.Tensor:
    return associative_scan(lambda a, b: a + b * 0.5, x * 2, 0, combine_mode="generic").exp()


@torch.compiler.nested_compile_region
def _block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w) + x


def _regions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = _block(x, w)
    return x * 2


def _scored(q: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)


def _square(n: int = 5) -> torch.Tensor:
    return rand(n, n)


class _Trained(torch.nn.Module):
    """A function whose first argument depends on a parameter."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn, self.weight = fn, torch.nn.Parameter(_square())

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.fn(x * self.weight, *others)


CONTROL_FLOW = {
    "cond": Case(_cond, (_square(), _square())),
    "cond, open": Case(_cond, (_square(), _square()), dynamic=True),
    "cond, trained": Case(_Trained(_cond), (_square(), _square())),
    "while_loop and cond": Case(_while, (_square(),)),
    "map": Case(_map, (_square(), _square())),
    "map, trained": Case(_Trained(_map), (_square(), _square())),
    "scan": Case(_scanned, (_square(),)),
    "scan, trained": Case(_Trained(_scanned), (_square(),)),
    "associative_scan": Case(_combined, (_square(),)),
    "regions": Case(_regions, (_square(), _square())),
    "regions, trained": Case(_Trained(_regions), (_square(), _square())),
    # In double precision it runs step by step.
    "flex_attention": Case(_scored, (rand(1, 2, 8, 16, dtype=torch.float64),)),
}  # fmt: skip

PROGRAMS = {
    "scores": Case(_scored, (rand(1, 2, 8, 16),)),
    "chain": Case(lambda x, y: (torch.sigmoid(x) * y + 1, x.t()), (rand(9, 5), rand(5))),
    "reduced": Case(lambda x: (F.softmax(x, -1), x.var(0), x.amax()), (rand(17, 33),)),
    "half": Case(lambda x: F.layer_norm(x, (48,)), (rand(5, 48, dtype=torch.bfloat16),)),
    "dynamic": Case(lambda x: (x.softmax(1) @ x.t(), len(x) * 2), (rand(7, 12),), dynamic=True),
    "constants": Case(lambda x: x[torch.tensor([2])] + torch.tensor([[1.0], [2]]), (rand(3, 4),)),
    "random": Case(lambda x: F.dropout(x) + torch.rand_like(x) * torch.randn(6), (rand(4, 6),)),
    "eager random": Case(lambda x: torch.rand_like(x) + x, (rand(4, 6),), {"rng": "eager"}),
    "in place": Case(_in_place, (rand(5, 4), torch.tensor([1, 1, 4]))),
    "externs": Case(lambda x, w: F.conv2d(x, w).relu(), (rand(2, 3, 8, 8), rand(4, 3, 3, 3))),
    "scan": Case(_scan, (rand(4, 3),)),
    "complex": Case(_complex, (rand(4, 8),)),
    "by data": Case(_by_data, (rand(6, 4), torch.tensor([2, 3]))),
    "training": Case(_model(), (rand(6, 16),)),
    "attention": Case(_attended, (rand(1, 2, 8, 16),)),
    "checked": Case(lambda x: (x + 1) @ x.t(), (rand(4, 6),), {"check_calls": True}),
    "ways": Case(lambda x: x.sum(0), (rand(100, 64),)),  # a GPU has several to choose from
    "fast": Case(lambda x: F.gelu(x) * x, (rand(40, dtype=torch.float16),), {"numerics": "fast"}),
}  # fmt: skip
TRITON = ("chain", "half", "dynamic", "random", "in place", "by data", "training", "ways")


def _kept(args: Any) -> list[Any]:
    return [copy_as_it_is(a.detach()) if isinstance(a, torch.Tensor) else a for a in args]


def recorded(case: Case, **options: Any) -> list[dict[str, Any]]:
    """Each call of each graph of a program: artifact, state of random numbers, what goes in and
    comes out, as plain data."""
    found: list[dict[str, Any]] = []
    made = backend.compile_and_bind

    def compile_one(graph: Any, opts: Any, stages: Stages, **how: Any) -> Any:
        call = made(graph, opts, stages, **how)
        assert stages.artifact is not None
        data = to_bytes(stages.artifact)

        def run(given: list[Any]) -> Any:
            after = list(given)
            entry = {"artifact": data, "before": _kept(given), "rng": torch.get_rng_state()}
            out = call(given)
            found.append({**entry, "results": _kept(out), "after": _kept(after)})
            return out

        return run

    torch._dynamo.reset()
    torch.manual_seed(1)
    with mock.patch.object(backend, "compile_and_bind", compile_one):
        fn: Any = torch.compile(
            case.fn, backend="litz", dynamic=case.dynamic, options={**case.options, **options}
        )
        out = fn(*_kept(case.args))
        if isinstance(out, torch.Tensor) and out.requires_grad:
            out.square().mean().backward()
    assert found
    return found


def same(a: Any, b: Any) -> bool:
    """Whether two values are bitwise the same, with the same strides."""
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and (a == b or a != a)
    if (a.dtype, a.shape, a.stride(), a.device) != (b.dtype, b.shape, b.stride(), b.device):
        return False
    x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)


def rerun(entry: dict[str, Any]) -> str:
    """Bind the artifact and call it: what differs from the recording, or ""."""
    artifact = from_bytes(entry["artifact"])
    if to_bytes(artifact) != entry["artifact"]:
        return "written again it is another"
    given = entry["before"]
    after = list(given)
    torch.set_rng_state(entry["rng"])
    with torch.no_grad():
        results = bind(artifact)(given)
    for what, now in (("results", results), ("after", after)):
        if len(now) != len(entry[what]):
            return f"{len(now)} {what}"
        for k, (a, b) in enumerate(zip(now, entry[what], strict=True)):
            if not same(a.detach() if isinstance(a, torch.Tensor) else a, b):
                return f"{what} {k}: {a} instead of {b}"
    return ""


def main(path: str) -> None:
    recordings: dict[str, list[dict[str, Any]]] = torch.load(path, weights_only=True)
    for name, entries in recordings.items():
        for k, entry in enumerate(entries):
            try:
                fault = rerun(entry)
            except Exception as e:
                fault = f"{type(e).__name__}: {e}"
            if fault:
                print(f"{name}, call {k}: {' '.join(fault.split())[:400]}")


def write(path: Path, recordings: dict[str, list[dict[str, Any]]]) -> None:
    torch.save(recordings, path)


if __name__ == "__main__":
    main(sys.argv[1])
