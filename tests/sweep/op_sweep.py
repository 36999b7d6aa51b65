"""PyTorch's operator database through ``torch.compile(backend="litz")``: results against eager.

``python tests/sweep/op_sweep.py [--dtype float32] [--samples 3] [--only add,mul] [--out FILE]``
prints one line an operator: ``ok native``, ``ok extern (reason)``, ``skip`` or ``FAIL`` with why.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parents[1]))

from judge import assert_close, widen

from litz.backend import compile_with
from litz.compiler import Stages
from litz.options import make_options

# Values that no two runs share, or that are uninitialised by definition.
UNDEFINED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform", "rand",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout_with_train",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu", "svd_lowrank", "pca_lowrank",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    op: str
    state: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.op:48} {self.state} {self.detail}".rstrip()


def run_one(op: Any, sample: Any, seen: list[Stages]) -> None:
    """Compile one call; raises where it differs from eager."""

    def fn(args: Any, kwargs: Any) -> Any:
        return op(*args, **kwargs)

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def observe(kind: str, graph: Any, stages: Stages) -> None:
            seen.append(stages)

        return compile_with(gm, inputs, make_options({"verify": True}), observe)

    args, kwargs = (sample.input, *sample.args), sample.kwargs
    eager = fn(*pytree.tree_map(_copy, (args, kwargs)))
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=backend, dynamic=False)
    actual = compiled(*pytree.tree_map(_copy, (args, kwargs)))
    try:
        ref = fn(*pytree.tree_map(widen, (args, kwargs)))
        if [type(x) for x in pytree.tree_leaves(ref)] != [
            type(x) for x in pytree.tree_leaves(eager)
        ]:
            ref = None
    except Exception:
        ref = None
    assert_close(actual, eager, ref)


def _copy(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


def sweep(dtype: torch.dtype, samples: int, only: set[str]) -> Iterator[Outcome]:
    for op in op_db:
        if only and op.name not in only:
            continue
        if op.name in UNDEFINED or dtype not in op.supported_dtypes("cpu"):
            yield Outcome(op.name, "skip")
            continue
        seen: list[Stages] = []
        try:
            torch.manual_seed(0)
            for n, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
                if n >= samples:
                    break
                run_one(op, sample, seen)
        except Exception as e:
            text = str(e).replace("\n", " | ")
            yield Outcome(op.name, "FAIL", f"{type(e).__name__}: {text[:300]}")
            continue
        reasons = {f"{x.target_name}: {x.reason}" for s in seen for x in s.externs()}
        reasons |= {s.fallback for s in seen if s.fallback}
        state = "ok extern" if reasons else "ok native"
        yield Outcome(op.name, state, "; ".join(sorted(reasons))[:160])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="0/1", help="k/n: every n-th operator from the k-th")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    k, n = map(int, args.part.split("/"))
    only = {x for x in args.only.split(",") if x} or {o.name for o in op_db[k::n]}
    rows = []
    for row in sweep(getattr(torch, args.dtype), args.samples, only):
        rows.append(row)
        print(row, flush=True)
    count = {s: sum(r.state == s for r in rows) for s in ("ok native", "ok extern", "skip", "FAIL")}
    print(", ".join(f"{v} {key}" for key, v in count.items()))
    if args.out:
        Path(args.out).write_text("\n".join(map(str, rows)) + "\n")
    return 1 if count["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
