"""Programs to package, and what another process does with the packages.

As a script: loads the packages of a folder, calls each, and prints whatever differs from what
``torch.compile`` gave in the process that wrote them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """make: the module.  calls: (args, kwargs), the first is exported.  shapes: dynamic ones."""

    make: Callable[[], nn.Module]
    calls: Callable[[], Sequence[Call]]
    shapes: Any = None


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))


class Tower(nn.Module):
    """A small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.inner, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x)).relu()
        x = (x + self.second(self.inner(self.first(x)).relu())).relu()
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Counting(nn.Module):
    """Writes a buffer and an input, has a plain tensor, and nests its results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("unsaved", torch.ones(4), persistent=False)
        self.plain = torch.arange(4.0)
        self.weight = nn.Parameter(torch.randn(4))
        self.tied = self.weight

    def forward(self, x: torch.Tensor, *, pair: tuple[Any, Any], scale: float = 2.0) -> Any:
        a, b = pair
        self.seen.add_(x.sum(0))
        b.mul_(scale)
        y = (x * self.weight + self.plain * self.unsaved) * self.tied
        return {"y": y + a, "rest": (self.seen * 1, [x.view(-1), None, 3]), "b": (b * 1).sum()}


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def then(x: torch.Tensor) -> torch.Tensor:
            return self.a(x).tanh()

        def otherwise(x: torch.Tensor) -> torch.Tensor:
            return self.b(x).softmax(-1) - 1

        found: torch.Tensor = torch.cond(x.sum() > 0, then, otherwise, (x,))
        return found * 2


class Sized(nn.Module):
    """Takes a number, and a size that is a multiple."""

    def forward(self, x: torch.Tensor, n: int) -> Any:
        return x.view(2, -1).softmax(1) * n, x.shape[0] // 2, n + 1


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    return _Logits(BertModel(config).eval(), "last_hidden_state")


def _gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=40, use_cache=False
    )
    return _Logits(GPT2LMHeadModel(config).eval(), "logits")


class _Logits(nn.Module):
    def __init__(self, inner: nn.Module, field: str) -> None:
        super().__init__()
        self.inner, self.field = inner, field

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (
            getattr(self.inner(input_ids=ids, attention_mask=mask, use_cache=False), self.field)
            if "GPT" in type(self.inner).__name__
            else getattr(self.inner(input_ids=ids, attention_mask=mask), self.field)
        )
        return found


def _texts() -> list[Call]:
    shapes = [(2, 7), (3, 11), (5, 32)]
    return [((torch.randint(0, 60, s), torch.ones(s, dtype=torch.int64)), {}) for s in shapes]


def _batches(*shape: int) -> Callable[[], list[Call]]:
    return lambda: [((torch.randn(n, *shape),), {}) for n in (4, 9, 13)]


def _counted() -> list[Call]:
    return [
        ((torch.randn(n, 4),), {"pair": (torch.randn(n, 4), torch.randn(3))}) for n in (5, 2, 8)
    ]


def _signs() -> list[Call]:
    return [((torch.randn(n, 6) + sign,), {}) for n, sign in ((4, 1), (7, -1))]


def _sized() -> list[Call]:
    return [((torch.randn(2 * n), n), {}) for n in (5, 3, 8)]


B, T = Dim("b", max=512), Dim("t", max=40)
TEXT = {"ids": {0: B, 1: T}, "mask": {0: B, 1: T}}
CASES = {
    "mlp": Case(_mlp, _batches(12), ({0: B},)),
    "writes": Case(Counting, _counted, {"x": {0: B}, "pair": ({0: B}, None)}),
    "cond": Case(Choosing, _signs, ({0: B},)),
    "sized": Case(Sized, _sized, ({0: 2 * Dim("h")}, Dim.DYNAMIC)),
    "no rows": Case(_mlp, lambda: [((torch.randn(n, 12),), {}) for n in (3, 0)], ({0: B},)),
    "static": Case(_mlp, lambda: [((torch.randn(4, 12),), {})]),
    "resnet": Case(lambda: Tower().eval(), _batches(3, 8, 8), ({0: B},)),
    "resnet, training": Case(Tower, _batches(3, 8, 8), ({0: B},)),
    "resized": Case(
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _batches(2, 5, 6), ({0: B},)
    ),
    "bert": Case(_bert, _texts, TEXT),
    "gpt": Case(_gpt, _texts, TEXT),
}


def leaves(results: Any) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in pytree.tree_leaves(results)]


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: x.detach().clone() for n, x in module.named_buffers()}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype is b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def results_of(call: Callable[..., Any], calls: Sequence[Call]) -> list[list[Any]]:
    """Of each call its results, and its arguments behind it."""
    found = []
    for args, kwargs in copy.deepcopy(calls):
        with torch.no_grad():
            out = call(*args, **kwargs)
        found.append([*leaves(out), *leaves((args, kwargs))])
    return found


def main(folder: Path) -> None:
    from litz.loading.loaded import load

    for path in sorted(folder.glob("*.litz")):
        saved = torch.load(path.with_suffix(".pt"), weights_only=False)
        program = load(path)
        found = results_of(program, saved["calls"])
        for n, (mine, theirs) in enumerate(zip(found, saved["results"], strict=True)):
            for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                if not same(a, b):
                    print(f"{path.stem}: leaf {k} of call {n}: {a} is not {b}")
        for name, x in saved["state"].items():
            if not torch.equal(program.constants[name], x):
                print(f"{path.stem}: the buffer {name}: {program.constants[name]} is not {x}")
    forbidden = ("litz.compiler", "litz.lowering", "litz.targets", "litz.ir", "litz.host")
    idle = ("litz.runtime.products", "litz.runtime.cublaslt", "litz.runtime.tune")
    print(*[m for m in sys.modules if m.startswith((*forbidden, *idle))], sep="", end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
