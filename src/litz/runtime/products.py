"""Matrix products by libraries: what a library can take, its ways to compute it, and their calls.

``product`` is what host programs name: ATen's own call.  Where a graph may be tuned, ``Products``
takes its place: each problem's ways, of all libraries, are measured once, and kept on disk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from typing import Any, Final, Protocol

import torch

from litz.dataclass import dataclass
from litz.runtime.cache import Cache, content_key
from litz.runtime.instance import Chosen, Instance, Matrix, Problem, Told
from litz.runtime.progress import Progress
from litz.runtime.tune import Clock, CudaClock, Run, choose

aten = torch.ops.aten
log = logging.getLogger("litz")
Tensor = torch.Tensor
KIND: Final = "products"  # of the cache's entries
EPILOGUES: Final = ("", "relu", "gelu", "gelu_backward")  # gelu: in its form by tanh
MOST = 8  # ways of one library that are measured
SHARE = 2.0  # seconds that one problem may take
BOUND = 1024  # problems whose calls are held
ALIGNED = 256  # bytes: no library asks for more


@dataclass(frozen=True, slots=True)
class Operands:
    """The tensors of a call."""

    left: Tensor
    right: Tensor
    added: Tensor | None
    out: Tensor
    scales: tuple[Tensor, Tensor] | None = None
    aux: Tensor | None = None

    @property
    def all(self) -> tuple[Tensor, ...]:
        """All of them; what may be written is the last: ``aux``, and the result."""
        added = () if self.added is None else (self.added,)
        aux = () if self.aux is None else (self.aux,)
        return self.left, self.right, *added, *(self.scales or ()), *aux, self.out

    def like(self, args: Sequence[Any]) -> Operands:
        """The same with tensors in the order of ``all``."""
        (left, right, *rest), out = args[:-1], args[-1]
        added = None if self.added is None else rest.pop(0)
        aux = None if self.aux is None else rest.pop()
        return Operands(left, right, added, out, (rest[0], rest[1]) if rest else None, aux)


Call = Callable[[Operands], None]


class Library(Protocol):
    """What offers instances of products on one device."""

    @property
    def version(self) -> str:
        """Its name and version: what is known of instances of others is of no use."""

    def instances(self, problem: Problem, most: int) -> Sequence[Instance]:
        """Ways to compute a problem, the likeliest first; none where it cannot take that."""

    def bind(self, problem: Problem, instance: Instance) -> Call:
        """What computes it on the current stream.  It may be recorded as part of a CUDA graph."""

    def told(self, problem: Problem) -> Told | None:
        """What who has no Python tells the library of a problem; None: ATen computes it."""


# --- the library that every process has -----------------------------------------------------------


class Aten:
    """ATen's operators as a library: activations apart, and where it ``fuses``, as epilogues."""

    version = f"aten {torch.__version__}"

    def __init__(self, fuses: bool = False) -> None:
        self._fuses = fuses

    def instances(self, problem: Problem, most: int) -> Sequence[Instance]:
        apart, p = Instance(self.version), problem
        row = p.added is not None and len(p.added.shape) == 1 and len(p.left.shape) == 2
        row = row and p.aux is None
        return (
            (apart, replace(apart, what="fused")) if p.fusable and row and self._fuses else (apart,)
        )

    def told(self, problem: Problem) -> None:
        return None

    def bind(self, problem: Problem, instance: Instance) -> Call:
        p = problem
        if p.scales is not None:
            return partial(_scaled, p.out.dtype, p.fast)
        added = {"beta": p.beta, "alpha": p.alpha}
        batches = len(p.left.shape) == 3
        if instance.what == "fused":
            fused = partial(aten._addmm_activation.out, use_gelu=p.epilogue == "gelu", **added)
            return lambda o: fused(o.added, o.left, o.right, out=o.out)
        if p.added is None and p.alpha == 1:
            plain = torch.bmm if batches else torch.mm

            def call(o: Operands) -> None:
                plain(o.left, o.right, out=o.out)
        else:
            added["beta"] = 0.0 if p.added is None else p.beta  # of 0 not even nan counts
            adding: Any = partial(torch.baddbmm if batches else torch.addmm, **added)

            def call(o: Operands) -> None:
                adding(o.out if o.added is None else o.added, o.left, o.right, out=o.out)

        if p.aux is not None:
            backward = p.epilogue == "gelu_backward"
            return partial(_backward if backward else _keeping, call)
        return call if not p.epilogue else partial(_then, call, _activation(p.epilogue))


def _scaled(dtype: torch.dtype, fast: bool, o: Operands) -> None:
    assert o.scales is not None
    given, (a, b) = {"bias": o.added, "out_dtype": dtype, "use_fast_accum": fast}, o.scales
    aten._scaled_mm.out(o.left, o.right, a, b, **given, out=o.out)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name == "relu":
        return torch.relu_
    return partial(aten.gelu_.default, approximate="tanh")


def _then(call: Call, activation: Callable[[Tensor], Tensor], o: Operands) -> None:
    call(o)
    activation(o.out)


def _keeping(call: Call, o: Operands) -> None:
    assert o.aux is not None
    call(replace(o, out=o.aux))
    aten.gelu.out(o.aux, approximate="tanh", out=o.out)


def _backward(call: Call, o: Operands) -> None:
    call(o)
    aten.gelu_backward.grad_input(o.out, o.aux, approximate="tanh", grad_input=o.out)


# --- a call ---------------------------------------------------------------------------------------


def matrix(x: Tensor) -> Matrix:
    address = x.data_ptr()
    return Matrix(x.dtype, tuple(x.shape), x.stride(), min(address & -address or ALIGNED, ALIGNED))


def problem_of(
    o: Operands, beta: float = 1, alpha: float = 1, epilogue: str = "", fast: bool = False
) -> Problem:
    added = None if o.added is None else matrix(o.added)
    single = o.left.dtype is torch.float32
    scales = None if o.scales is None else (matrix(o.scales[0]), matrix(o.scales[1]))
    aux = None if o.aux is None else matrix(o.aux)
    return Problem(
        matrix(o.left), matrix(o.right), added, matrix(o.out), float(alpha), float(beta), epilogue,
        single and _tf32(), scales, fast, aux,
    )  # fmt: skip


def _tf32() -> bool:
    """Whether float32 may be multiplied as TF32, by whichever of PyTorch's two names that was said:
    ``allow_tf32`` cannot be asked once the other was used."""
    matmul: Any = torch.backends.cuda.matmul
    return bool(matmul.fp32_precision == "tf32")


def product(
    left: Tensor,
    right: Tensor,
    added: Tensor | None = None,
    *,
    out: Tensor,
    beta: float = 1.0,
    alpha: float = 1.0,
    epilogue: str = "",
    scales: tuple[Tensor, Tensor] | None = None,
    fast: bool = False,
    aux: Tensor | None = None,
) -> Tensor:
    """``out = epilogue(alpha * left @ right + beta * added)`` by ATen.

    left, right: [m, k] and [k, n], or with a batch in front.  added: a row, or what is like out.
    epilogue: one of ``EPILOGUES``.  scales, fast, aux: as those of a ``Problem``.
    """
    given, library = Operands(left, right, added, out, scales, aux), Aten(out.is_cuda)
    p = problem_of(given, beta, alpha, epilogue, fast)
    library.bind(p, *library.instances(p, 1))(given)
    return out


@dataclass
class Products:
    """Products by whichever way was the fastest of its problem.

    libraries: of a device; the first one's first instance is the default.  clock: of a GPU.
    cache: where to look for what was found before, and to keep it.
    seconds: that are left to measure in; spent: those that are not.  progress: whether to say so on
    the terminal.  bound: the call of each problem on each device.
    chosen: what is known, by device, libraries and problem: packages have it along.
    """

    libraries: Callable[[torch.device], Sequence[Library]]
    cache: Cache | None
    seconds: float
    clock: Callable[[int], Clock] = CudaClock
    chosen: dict[str, Chosen] = field(default_factory=dict)
    progress: bool = False
    spent: float = 0.0
    bound: dict[tuple[torch.device, Problem], Call] = field(default_factory=dict)

    def among(self, values: Mapping[str, object]) -> dict[str, object]:
        """What a host program names, with this ``product`` in the place of the function."""
        return {name: self.product if v is product else v for name, v in values.items()}

    def product(
        self,
        left: Tensor,
        right: Tensor,
        added: Tensor | None = None,
        *,
        out: Tensor,
        beta: float = 1.0,
        alpha: float = 1.0,
        epilogue: str = "",
        scales: tuple[Tensor, Tensor] | None = None,
        fast: bool = False,
        aux: Tensor | None = None,
    ) -> Tensor:
        """As the function of that name."""
        given = Operands(left, right, added, out, scales, aux)
        p = problem_of(given, beta, alpha, epilogue, fast)
        call = self.bound.get((out.device, p))
        if call is None:
            call, final = self._found(p, given)
            if final:
                if len(self.bound) >= BOUND:  # of sizes that change from call to call
                    self.bound.clear()
                self.bound[out.device, p] = call
        call(given)
        return out

    def _found(self, p: Problem, given: Operands) -> tuple[Call, bool]:
        """The call for a problem, and whether it stays so: while a graph is recorded none is."""
        device = given.out.device
        first, *more = self.libraries(device)
        if not more:
            return first.bind(p, first.instances(p, 1)[0]), True
        libraries, clock = {x.version: x for x in (first, *more)}, self.clock(device.index or 0)
        key = content_key(clock.device_name, *libraries, json.dumps(asdict(p), default=str))
        kept = self.chosen.get(key)
        known = kept.instance if kept else self._known(key, libraries)
        recording = given.out.is_cuda and torch.cuda.is_current_stream_capturing()
        if known is None and not recording and self.seconds > 0 and self.cache is not None:
            begin = clock.now()
            with Progress(lambda: "timing products", self.progress, self.spent):
                known = self._fastest(key, p, libraries, given, clock, self.cache)
            used = clock.now() - begin
            self.seconds, self.spent = self.seconds - used, self.spent + used
            self.cache.put(KIND, key, json.dumps(asdict(known)), ".json")
        if known is None:
            known = first.instances(p, 1)[0]
        else:
            told = libraries[known.library].told(p)
            self.chosen[key] = Chosen(known, p, clock.device_name, told)
        return libraries[known.library].bind(p, known), not recording

    def _known(self, key: str, libraries: dict[str, Library]) -> Instance | None:
        text = None if self.cache is None else self.cache.get_text(KIND, key, ".json")
        try:
            found = Instance(**json.loads(text)) if text else None
        except (ValueError, TypeError):
            return None
        return found if found and found.library in libraries else None

    def _fastest(
        self,
        key: str,
        p: Problem,
        libraries: dict[str, Library],
        given: Operands,
        clock: Clock,
        cache: Cache,
    ) -> Instance:
        default, *others = (i for x in libraries.values() for i in _offered(x, p))
        if p.epilogue:
            others = keeping(p, given, libraries, default, others)
        ways = [default, *others]
        runs = [_run(libraries[i.library], p, i, given) for i in ways]
        args, budget = given.all, min(self.seconds, SHARE)
        written = range(len(args) - (1 if p.aux is None else 2), len(args))
        found = choose((key,), runs, args, written, clock, cache, budget)
        return ways[found.index]


def _offered(library: Library, p: Problem) -> Sequence[Instance]:
    """What a library offers; nothing where it fails, which is told."""
    try:
        return library.instances(p, MOST)
    except RuntimeError as e:
        log.warning("litz: %s offers nothing for %s: %s", library.version, p, e)
        return ()


def keeping(
    p: Problem,
    given: Operands,
    libraries: Mapping[str, Library],
    default: Instance,
    others: Sequence[Instance],
) -> list[Instance]:
    """Those that make of nan and infinities in a factor, or of an input, what the default does.

    Activations of libraries may not: a maximum that drops nan, say.
    """
    marks = (torch.nan, torch.inf, -torch.inf)
    left, aux = given.left.clone(), None if given.aux is None else given.aux.clone()
    for row, mark in enumerate(marks[: left.shape[-2]]):
        left[..., row, 0] = mark
    if aux is not None and p.epilogue == "gelu_backward":
        for column, mark in enumerate(marks[: aux.shape[-1]]):
            aux[..., len(marks) : 2 * len(marks), column] = mark

    def kinds(way: Instance) -> Tensor | None:
        """Which of the elements that this reaches are nan, and which are infinite."""
        out = torch.empty_like(given.out)
        try:
            libraries[way.library].bind(p, way)(replace(given, left=left, out=out, aux=aux))
        except RuntimeError:
            return None
        found = out[..., : 2 * len(marks), :]
        return torch.stack([found.isnan(), found.isposinf(), found.isneginf()])

    wanted = kinds(default)
    found = [(way, kinds(way)) for way in others]
    return [w for w, k in found if k is not None and wanted is not None and torch.equal(k, wanted)]


def _run(library: Library, p: Problem, instance: Instance, given: Operands) -> Run | None:
    """An instance as a candidate of the tuner; None for one that cannot be bound."""
    try:
        call = library.bind(p, instance)
    except (RuntimeError, ValueError):
        return None
    return lambda args: call(given.like(args))
