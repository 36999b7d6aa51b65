"""Making a failing program smaller while it fails in the same way, and a script of it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tests.fuzz import custom
from tests.fuzz.machine import replay
from tests.fuzz.program import INTS, Input, Program, Step, memory, source, tensors
from tests.fuzz.run import Failure, failure

Fails = Callable[[Program], Failure | None]


def without(p: Program, gone: set[int], use: dict[int, int]) -> Program:
    """Without some values (inputs or steps); reads of them go to what ``use`` says."""

    def final(k: int) -> int:
        while k in use:
            k = use[k]
        return k

    total = len(p.inputs) + len(p.steps)
    numbers: dict[int, int] = {}
    for k in range(total):
        if k not in gone:
            numbers[k] = len(numbers)
    inputs = tuple(i for k, i in enumerate(p.inputs) if k not in gone)
    inputs = tuple(replace(i, share=numbers[i.share]) if i.share >= 0 else i for i in inputs)
    others = tuple(i for k, i in enumerate(p.others) if k not in gone)
    steps = tuple(
        replace(s, args=tuple(numbers[final(a)] for a in s.args))
        for k, s in enumerate(p.steps, len(p.inputs))
        if k not in gone
    )
    results = tuple(numbers[final(r)] for r in p.results if final(r) in numbers)
    return Program(inputs, steps, results, others, p.rng)


def _unused(p: Program) -> set[int]:
    """Steps and inputs that no result, and no write to memory, needs."""
    read = {a for s in p.steps for a in s.args} | set(p.results)
    read |= {i.share for i in p.inputs}
    gone = set()
    for k in range(len(p.inputs) + len(p.steps)):
        step = None if k < len(p.inputs) else p.steps[k - len(p.inputs)]
        if k not in read and not (step is not None and step.writes):
            gone.add(k)
    return gone


def pruned(p: Program) -> Program:
    while gone := _unused(p):
        p = without(p, gone, {})
    return p


def _as_input(p: Program, k: int) -> Program | None:
    """Step ``k`` (a value number) replaced by an argument of the same layout."""
    if p.others:
        return None
    m = replay(p, p.inputs)
    v = m.values[k]
    if not isinstance(v, torch.Tensor):
        return None
    strides = v.stride()
    dims = sorted(range(v.ndim), key=lambda d: (-strides[d], d))
    made = Input(str(v.dtype)[6:], tuple(v.shape), tuple(dims), seed=k)
    at = len(p.inputs)

    def move(a: int) -> int:
        return at if a == k else a + 1 if a >= at else a

    steps = tuple(
        replace(s, args=tuple(move(a) for a in s.args)) for n, s in enumerate(p.steps, at) if n != k
    )

    def shift(a: int) -> int:
        b = move(a)
        return b - 1 if b > k + 1 else b

    steps = tuple(replace(s, args=tuple(b - 1 if b > k + 1 else b for b in s.args)) for s in steps)
    return replace(
        p, inputs=(*p.inputs, made), steps=steps, results=tuple(shift(r) for r in p.results)
    )


def _fewer_results(p: Program) -> Iterator[Program]:
    n = len(p.results)
    size = n // 2
    while size >= 1:
        for start in range(0, n, size):
            kept = (*p.results[:start], *p.results[start + size :])
            if kept:
                yield pruned(replace(p, results=kept))
        size //= 2


def _fewer_steps(p: Program) -> Iterator[Program]:
    first = len(p.inputs)
    for k in reversed(range(first, first + len(p.steps))):
        step = p.steps[k - first]
        for a in dict.fromkeys(step.args):
            yield pruned(without(p, {k}, {k: a}))
        made = _as_input(p, k)
        if made is not None:
            yield pruned(made)


def _plain(i: Input) -> Iterator[Input]:
    """Simpler forms of one input."""
    bare = replace(i, order=(), step=1, gap=0, still=(), offset=0)
    if bare != i:
        yield bare
        yield replace(i, order=())
        yield replace(i, still=())
        yield replace(i, step=1, gap=0)
        yield replace(i, offset=0)
    if i.values not in ("normal", "small") and ":" not in i.values:
        yield replace(i, values="normal")
    if i.grad:
        yield replace(i, grad=False)
    if i.dtype in ("float16", "bfloat16", "float64"):
        yield replace(i, dtype="float32")


def _simpler_inputs(p: Program) -> Iterator[Program]:
    for k, i in enumerate(p.inputs):
        for j in _plain(i):
            inputs = (*p.inputs[:k], j, *p.inputs[k + 1 :])
            if p.others:
                o = replace(j, shape=p.others[k].shape, values=p.others[k].values)
                yield replace(p, inputs=inputs, others=(*p.others[:k], o, *p.others[k + 1 :]))
            else:
                yield replace(p, inputs=inputs)


def _smaller_sizes(p: Program) -> Iterator[Program]:
    """One size made smaller wherever it stands."""
    sizes = sorted({s for i in p.inputs for s in i.shape if s > 1}, reverse=True)
    for s in sizes:
        for t in dict.fromkeys((2, 3, s // 2, s - 1)):
            if t < s and t >= 1:
                inputs = tuple(
                    replace(i, shape=tuple(t if x == s else x for x in i.shape)) for i in p.inputs
                )
                yield replace(p, inputs=inputs, others=() if not p.others else p.others)


def _static(p: Program) -> Iterator[Program]:
    if p.others:
        yield replace(p, others=())
        yield replace(p, inputs=p.others, others=())


def shrink(f: Failure, fails: Fails = failure, budget: int = 250, seconds: float = 300) -> Failure:
    """The smallest failure found by ``budget`` runs at most, of so many seconds."""
    best = f
    left = budget
    until = time.monotonic() + seconds
    progress = True
    while progress and left > 0:
        progress = False
        for moves in (_static, _fewer_results, _fewer_steps, _simpler_inputs, _smaller_sizes):
            again = True
            while again and left > 0:
                again = False
                for p in moves(best.program):
                    left = left - 1 if time.monotonic() < until else 0
                    if left <= 0:
                        break
                    found = _tried(p, fails, best.kind)
                    if found is not None:
                        best, again, progress = found, True, True
                        break
    return best


def _fits(inputs: tuple[Input, ...]) -> bool:
    """Whether inputs lie inside the memory that they share."""
    return all(i.share < 0 or i.room - 3 <= inputs[i.share].room for i in inputs)


def _tried(p: Program, fails: Fails, kind: str) -> Failure | None:
    if not p.results or not (_fits(p.inputs) and _fits(p.others)):
        return None
    try:
        found = fails(p)
    except Exception:
        return None  # eager refuses it: not a program
    return found if found is not None and found.kind == kind else None


# --- script --------------------------------------------------------------------------------------

SCRIPT = """\
# {why}

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import inf, nan

{extra}
{function}

{arguments}


for args in {calls}:
    eager_args, litz_args = args(), args()
    torch.manual_seed(0)
    eager = f(*eager_args)
    torch.manual_seed(0)
    compiled = torch.compile(
        f, backend="litz", fullgraph=True, dynamic={dynamic}, options={{"rng": {rng!r}}}
    )
    litz = compiled(*litz_args)
    for name, es, cs in (("result", eager, litz), ("argument", eager_args, litz_args)):
        for k, (e, c) in enumerate(zip(es, cs)):
            print(name, k, e.dtype, tuple(e.shape), e.stride(), "litz:", c.dtype, c.stride())
            print("  largest difference", (e.double() - c.double()).abs().max().item())
    wanted = [x for x in eager_args if x.requires_grad]
    if wanted:
        ours = [x for x in litz_args if x.requires_grad]
        total = lambda rs: sum(r.double().sum() for r in rs if r.requires_grad)
        es = torch.autograd.grad(total(eager), wanted, allow_unused=True)
        cs = torch.autograd.grad(total(litz), ours, allow_unused=True)
        for k, (e, c) in enumerate(zip(es, cs)):
            if e is not None:
                print("gradient", k, (e.double() - c.double()).abs().max().item())
"""


def _values(i: Input) -> str:
    """An expression for the elements of the memory, equal to ``program._fill``."""
    n = i.room
    what, _, top = i.values.partition(":")
    g = f"generator=torch.Generator().manual_seed({i.seed})"
    dtype = f"torch.{i.dtype}"
    if what == "index":
        return f"torch.randint(0, {max(int(top), 1)}, ({n},), {g}).to({dtype})"
    if i.dtype == "bool":
        return f"torch.rand({n}, {g}) < 0.5"
    if what == "wide" and i.dtype in INTS:
        info = torch.iinfo(getattr(torch, i.dtype))
        ends = [info.min, info.max, info.min + 1, 0, 1, info.max // 2]
        return f"torch.tensor({ends})[torch.randint(0, 6, ({n},), {g})].to({dtype})"
    if i.dtype in INTS:
        low = max(-9, torch.iinfo(getattr(torch, i.dtype)).min)
        return f"torch.randint({low}, 10, ({n},), {g}).to({dtype})"
    if what == "small":
        return f"(torch.randint(-4, 5, ({n},), {g}) * 0.5).to({dtype})"
    return f"torch.randn({n}, {g}, dtype=torch.float64).to({dtype})"


def _argument_lines(inputs: tuple[Input, ...], name: str) -> str:
    lines = [f"def {name}():"]
    for k, (i, x) in enumerate(zip(inputs, tensors(inputs), strict=True)):
        layout = f"({i.shape}, {i.stride}, {i.offset})"
        listed = x.numel() <= 64 and not i.still
        if i.share >= 0:
            lines.append(f"    m{k} = m{i.share}")
        elif listed or i.values.split(":")[0] in ("unique", "edges"):
            dtype = f"torch.{i.dtype}"
            lines.append(f"    m{k} = torch.tensor({memory(x.detach()).tolist()}, dtype={dtype})")
        else:
            lines.append(f"    m{k} = {_values(i)}")
        if i.device != "cpu" and i.share < 0:
            lines.append(f"    m{k} = m{k}.to({i.device!r})")
        lines.append(f"    a{k} = m{k}.as_strided{layout}")
        if i.grad:
            lines.append(f"    a{k} = a{k}.detach().requires_grad_()")
    names = ", ".join(f"a{k}" for k in range(len(inputs)))
    lines.append(f"    return [{names}]")
    return "\n".join(lines)


def _extra(p: Program) -> str:
    """What the program needs besides PyTorch: the definitions of custom operators."""
    text = "torch._dynamo.config.capture_dynamic_output_shape_ops = True\n"
    text += "torch._dynamo.config.capture_scalar_outputs = True\n"
    text += "torch.backends.cudnn.allow_tf32 = False\n"
    if p.draws and p.rng == "litz":
        text += "# Random numbers are others than eager's here: compare what does not go by them.\n"
    if any("litz_fuzz" in s.text for s in p.steps):
        text += inspect.getsource(custom).partition("import torch\n")[2].replace(": Any", "")
    return text


def script(f: Failure) -> str:
    """A stand-alone script that shows the failure."""
    p = f.program
    parts = [_argument_lines(p.inputs, "arguments")]
    calls = "(arguments,)"
    if p.others:
        parts.append(_argument_lines(p.others, "others"))
        calls = "(arguments, others)"
    return SCRIPT.format(
        why=" ".join(" ".join(f.mismatches[:5]).split()),
        extra=_extra(p),
        function=source(p),
        arguments="\n\n\n".join(parts),
        calls=calls,
        dynamic=bool(p.others),
        rng=p.rng,
    )


__all__ = ["Step", "pruned", "script", "shrink"]
