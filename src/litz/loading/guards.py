"""Checks of what a loaded program is called with: its kernels trust their arguments blindly.

Each call asks one function, generated from the record, whether all is well.  Where it is not, the
slow way says what is wrong, or lays out anew what lies otherwise than in the run that was exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from litz.errors import PackageError
from litz.index import PYTHON, Expr, parse, render, symbol
from litz.loading.record import FixedInput, Input, NumberInput, ObjectInput, Program, TensorInput
from litz.runtime.arguments import Argument
from litz.runtime.script_objects import class_of
from litz.runtime.torch_private import same_memory

__all__ = ["Guards"]

Copies = list[tuple[torch.Tensor, torch.Tensor]]


class Guards:
    """The checks of one program.

    ``good(values)`` says whether all inputs, in order, are as the program wants them;
    ``mend(values)`` raises PackageError, or gives such that are.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._scope = {n: symbol(n, b.low, b.high) for n, b in program.symbols.items()}
        _check_bindings(program)
        self.good: Callable[[Sequence[Any]], bool] = self._compiled()

    def _expr(self, text: str) -> Expr:
        return parse(text, self._scope)

    # --- the quick way -----------------------------------------------------------------------

    def _compiled(self) -> Callable[[Sequence[Any]], bool]:
        scope: dict[str, Any] = {
            "plain": (torch.Tensor, torch.nn.Parameter),
            "strided": torch.strided,
            "class_of": class_of,
            "is_fixed": _is,
            "same_memory": same_memory,
        }
        tests, bound = list(self._tests(scope)), self._bound()
        body = [f"    if not ({t}): return False" for t in tests]
        body += [f"    {b}" for b in bound]
        body += [f"    if not ({t}): return False" for t in self._of_sizes()]
        text = "\n".join(["def good(values):", *body, "    return True"])
        exec(compile(text, "<litz guards of a package>", "exec"), scope)
        good: Callable[[Sequence[Any]], bool] = scope["good"]
        return good

    def _tests(self, scope: dict[str, Any]) -> Iterator[str]:
        """Conditions of single inputs."""
        for n, i in enumerate(self._program.inputs):
            v = f"values[{n}]"
            match i:
                case TensorInput():
                    scope[f"type{n}"], scope[f"device{n}"] = i.dtype, i.device
                    yield f"type({v}) in plain and {v}.layout is strided"
                    yield f"{v}.dim() == {len(i.shape)}"
                    yield f"{v}.dtype is type{n} and {v}.device == device{n}"
                    yield f"not {v}.is_neg()" + (
                        f" and not {v}.is_conj()" if i.dtype.is_complex else ""
                    )
                    if i.contiguous:
                        yield f"{v}.is_contiguous()"
                case NumberInput():
                    yield f"type({v}) is int"
                case ObjectInput():
                    yield f"class_of({v}) == {i.type!r}"
                case FixedInput():
                    scope[f"fixed{n}"] = i.value
                    yield f"is_fixed({v}, fixed{n})"

    def _bound(self) -> list[str]:
        """Statements that give sizes and symbols their values."""
        lines = []
        for n, i in enumerate(self._program.inputs):
            if isinstance(i, TensorInput) and i.shape:
                sizes = "".join(f"d{n}_{k}, " for k in range(len(i.shape)))
                lines.append(f"{sizes}= values[{n}].shape")
            elif isinstance(i, NumberInput):
                lines.append(f"d{n}_0 = values[{n}]")
        for b in self._program.bindings:
            lines.append(f"{_name(b.symbol)} = (d{b.input}_{b.dim} - {b.rest}) // {b.factor}")
        return lines

    def _text(self, text: str) -> str:
        e = self._expr(text)
        return render(e, PYTHON, {str(s): _name(str(s)) for s in e.free})

    def _of_sizes(self) -> Iterator[str]:
        """Conditions of symbols, sizes and strides."""
        for found in self._program.bindings:
            low, high = self._bounds(found.symbol)
            yield f"{low} <= {_name(found.symbol)}" + ("" if high is None else f" <= {high}")
        for n, i in enumerate(self._program.inputs):
            if isinstance(i, NumberInput):
                yield f"d{n}_0 == {self._text(i.value)}"
            if isinstance(i, TensorInput):
                for k, size in enumerate(i.shape):
                    yield f"d{n}_{k} == {self._text(size)}"
                if not i.contiguous:
                    strides = "".join(f"{self._text(s)}, " for s in i.strides)
                    yield f"values[{n}].stride() == ({strides})"
        for a, b in self._written_beside():
            yield f"not same_memory(values[{a}], values[{b}])"
        for g in self._program.guards:
            yield self._text(g)

    def _written_beside(self) -> Iterator[tuple[int, int]]:
        """Pairs of an input that the program writes into, and another one."""
        tensors = [n for n, i in enumerate(self._program.inputs) if isinstance(i, TensorInput)]
        for a in tensors:
            i = self._program.inputs[a]
            if isinstance(i, TensorInput) and i.written:
                yield from ((a, b) for b in tensors if b != a)

    def _bounds(self, name: str) -> tuple[int, int | None]:
        b = self._program.symbols[name]
        return b.low, b.high

    # --- the slow way ------------------------------------------------------------------------

    def mend(self, values: Sequence[Any]) -> tuple[list[Any], Copies]:
        """The values as the program wants them, and what is to be copied back behind the call.

        Pairs of (the caller's, ours).  Raises PackageError.
        """
        inputs = self._program.inputs
        for i, v in zip(inputs, values, strict=True):
            if fault := _fault(i, v):
                raise PackageError(f"litz: the input {i.name} {fault}")
        known = self._symbols(values)
        for a, b in self._written_beside():
            if same_memory(values[a], values[b]):
                raise PackageError(
                    f"litz: the program writes into the input {inputs[a].name}, which shares "
                    f"memory with {inputs[b].name}: hand in a copy of one"
                )
        out, copies = list(values), Copies()
        for n, (i, v) in enumerate(zip(inputs, values, strict=True)):
            if isinstance(i, TensorInput):
                strides = [self._value(s, known) for s in i.strides]
                fresh = _laid_out(v, strides)
                if fresh is not v and i.written:
                    copies.append((v, fresh))
                out[n] = fresh
        return out, copies

    def _value(self, text: str, known: dict[str, int]) -> int:
        return int(eval(self._text(text), {"__builtins__": {"min": min, "max": max}}, known))

    def _symbols(self, values: Sequence[Any]) -> dict[str, int]:
        """The values of symbols, by the names that generated code has for them."""
        known: dict[str, int] = {}
        where: dict[str, str] = {}
        for b in self._program.bindings:
            size, at = self._size(values, b.input, b.dim)
            value, odd = divmod(size - b.rest, b.factor)
            if odd:
                raise PackageError(
                    f"litz: {at} is {size}; the package takes {b.factor} * n + {b.rest}"
                )
            low, high = self._bounds(b.symbol)
            if value < low or (high is not None and value > high):
                least = low * b.factor + b.rest
                most = "" if high is None else f" to {high * b.factor + b.rest}"
                raise PackageError(
                    f"litz: {at} is {size}; the package takes {least}{most or ' and more'}"
                )
            known[_name(b.symbol)], where[b.symbol] = value, at
        for n, i in enumerate(self._program.inputs):
            texts = i.shape if isinstance(i, TensorInput) else ()
            texts = (i.value,) if isinstance(i, NumberInput) else texts
            for k, text in enumerate(texts):
                size, at = self._size(values, n, k)
                wanted = self._value(text, known)
                if size != wanted:
                    free = [where[str(s)] for s in self._expr(text).free if str(s) in where]
                    why = f", by {' and '.join(free)}" if free else ""
                    raise PackageError(f"litz: {at} is {size}; the package takes {wanted}{why}")
        for g in self._program.guards:
            if not self._value(g, known):
                found = ", ".join(f"{s} is {at}, {known[_name(s)]} here" for s, at in where.items())
                raise PackageError(
                    f"litz: the package holds only while {g} ({found}): export the program with "
                    "other sizes"
                )
        return known

    def _size(self, values: Sequence[Any], n: int, dim: int) -> tuple[int, str]:
        i = self._program.inputs[n]
        if isinstance(i, NumberInput):
            return values[n], f"the input {i.name}"
        return values[n].shape[dim], f"dimension {dim} of the input {i.name}"


def fits(a: Argument, i: TensorInput) -> bool:
    """Whether what is checked of an input is all that the graph wants of its argument."""
    same = len(a.shape) == len(i.shape) == len(i.strides)
    known = all(n is None or str(n) == t for n, t in zip(a.shape, i.shape, strict=False))
    return same and known and (a.dtype, a.device) == (i.dtype, i.device)


def _check_bindings(program: Program) -> None:
    """Raise ValueError where not every symbol has one place to come from."""
    for b in program.bindings:
        i = program.inputs[b.input]
        dims = len(i.shape) if isinstance(i, TensorInput) else isinstance(i, NumberInput)
        if not 0 <= b.dim < dims or b.input < 0 or b.factor < 1:
            raise ValueError(f"the symbol {b.symbol} comes from nowhere")
    if sorted(b.symbol for b in program.bindings) != sorted(program.symbols):
        raise ValueError("its symbols are not those of its sizes")


def _name(symbol: str) -> str:
    return f"s_{symbol}"


def _is(value: object, fixed: object) -> bool:
    return type(value) is type(fixed) and (value == fixed or value != value and fixed != fixed)


def _fault(i: Input, v: Any) -> str:
    """What is wrong with an input by itself; "" for nothing."""
    match i:
        case FixedInput():
            if not _is(v, i.value):
                return f"is {v!r}; the program was exported for {i.value!r} alone"
        case NumberInput():
            if type(v) is not int:
                return f"is a {type(v).__name__}, not an int"
        case ObjectInput():
            if class_of(v) != i.type:
                return f"is a {class_of(v) or type(v).__name__}, not a {i.type}"
        case TensorInput():
            if not isinstance(v, torch.Tensor):
                return f"is a {type(v).__name__}, not a tensor"
            if type(v) not in (torch.Tensor, torch.nn.Parameter) or v.layout is not torch.strided:
                return f"is a {type(v).__name__} ({v.layout}): the package takes plain tensors"
            if v.dtype is not i.dtype:
                return f"has the type {v.dtype}, not {i.dtype}: call .to({i.dtype})"
            if v.device != i.device:
                return f"is on {v.device}; the package was made for {i.device}"
            if v.dim() != len(i.shape):
                return f"has {v.dim()} dimensions (shape {list(v.shape)}), not {len(i.shape)}"
    return ""


def _laid_out(v: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor itself where it lies so, else a copy that does."""
    fits = (
        all(n == 1 or a == b for n, a, b in zip(v.shape, v.stride(), strides, strict=True))
        or not v.numel()
    )
    if fits and not v.is_neg() and not v.is_conj():
        return v
    fresh = torch.empty_strided(v.shape, strides, dtype=v.dtype, device=v.device)
    return fresh.copy_(v.detach())
