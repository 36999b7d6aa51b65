"""Loading a package: a callable with the calling convention of the program that was exported.

Nothing here needs a compiler, Litz's or another: kernels come as binaries.
"""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.artifact import Artifact, from_bytes
from litz.errors import ArtifactError, PackageError, ToolchainError
from litz.loading.container import Container
from litz.loading.guards import Guards, fits
from litz.loading.libraries import libraries
from litz.loading.record import (
    Built,
    FixedInput,
    Program,
    Target,
    Tensor,
    TensorInput,
    from_json,
)
from litz.loading.segments import bind_segments
from litz.loading.values import bind_host, namespace
from litz.runtime.arguments import BoxedCall, stride_fault
from litz.runtime.cpu import cpu_flags
from litz.runtime.executor import Executor
from litz.runtime.native import Function, Library, Runtime
from litz.runtime.shipped import NOT_BUILT, shipped
from litz.runtime.strided import copy_as_it_is
from litz.runtime.torch_private import is_autocasting, set_gradients, without_autocast
from litz.version import __version__

__all__ = ["LoadedProgram", "load"]


def versions() -> dict[str, str]:
    """The packages with whose versions a loaded program has to agree."""
    return {"litz": __version__, "torch": str(torch.__version__).partition("+")[0]}


_NOT_HERE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What PyTorch and Python raise for a record that asks for what there is not: a GPU, a name."""


class LoadedProgram:
    """A program out of a package: call it as the module that was exported.

    Many threads may call it at once.  Results need no gradients.  Buffers that the program writes
    into belong to this object; other constants are the file's memory, which all processes share.
    """

    def __init__(self, container: Container, program: Program, target: Target) -> None:
        self._container = container
        self._program = program
        self.target = target.name
        """For what the kernels that run here were built."""
        self._lock = threading.Lock()
        self._given = [n for n, i in enumerate(program.inputs) if not isinstance(i, FixedInput)]
        self._all_given = len(self._given) == len(program.inputs)
        self._guards = Guards(program)
        self._in_spec, self._out_spec = _spec(program.in_spec), _spec(program.out_spec)
        self._flat = self._takes_leaves()
        self._constants = tuple(_constants(container, program.constants))
        artifact = from_bytes(container.read(target.artifact))
        self._check(artifact)
        self._call = _Binder(container, target).bind(artifact, target.built)
        outputs = [(o.kind, o.position) for o in program.outputs]
        self._plain = outputs == [("result", n) for n in range(len(outputs))]

    def _check(self, artifact: Artifact) -> None:
        """Raise ValueError where the record is not that of the artifact."""
        p, constants = self._program, self._constants
        given = [i for i in p.inputs if not isinstance(i, FixedInput)]
        count = len(constants) + len(given)
        if artifact.count != count or self._in_spec.num_leaves != len(p.inputs):
            raise ValueError("it has other inputs than its graph")
        if self._out_spec.num_leaves != len(p.outputs):
            raise ValueError("it has other results than its graph")
        for o in p.outputs:
            if o.position < 0 or (o.kind == "argument" and o.position >= count):
                raise ValueError("a result of it is none of its arguments")
        for a in artifact.arguments:
            if a.position < len(constants):
                x = constants[a.position]
                fault = a.fault(x) or stride_fault(x, a.strides)
            else:
                i = given[a.position - len(constants)]
                fault = "" if isinstance(i, TensorInput) and fits(a, i) else "is another"
            if fault:
                raise ValueError(f"the argument {a.name} of its graph {fault}")

    def _takes_leaves(self) -> bool:
        """Whether the program takes positional arguments alone, none with a structure."""
        args, kwargs = self._in_spec.children()
        return not kwargs.children() and all(c.is_leaf() for c in args.children())

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the packages that made this one."""
        return self._program.versions

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """The program's constants and buffers by name.  They are its own: do not write to them."""
        return {t.name: x for t, x in zip(self._program.constants, self._constants, strict=True)}

    def update_constants(self, values: Mapping[str, torch.Tensor]) -> None:
        """Replace constants or buffers by copies of tensors, all at once, from the next call on.

        Constants that share memory change together.  Raises PackageError for an unknown name and
        for a tensor of another shape, dtype or device; then nothing is replaced.
        """
        known = {t.name: t for t in self._program.constants}
        fresh: dict[str, torch.Tensor] = {}
        for name, value in values.items():
            if name not in known:
                raise PackageError(
                    f"litz: the package has no constant {name!r}; there are {_list(known)}"
                )
            t = known[name]
            for what, is_, wanted in (
                ("shape", tuple(value.shape), t.shape),
                ("type", value.dtype, t.dtype),
                ("device", value.device, t.device),
            ):
                if is_ != wanted:
                    raise PackageError(
                        f"litz: the constant {name} has the {what} {wanted}, and what is to "
                        f"replace it {is_}"
                    )
            made = torch.empty_strided(t.shape, t.strides, dtype=t.dtype, device=t.device)
            fresh[t.entry] = made.copy_(value.detach())
        with self._lock:
            pairs = zip(self._program.constants, self._constants, strict=True)
            self._constants = tuple(fresh.get(t.entry, x) for t, x in pairs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The program's results.  Raises PackageError for what it was not exported for."""
        if self._flat and not kwargs and len(args) == len(self._program.inputs):
            values: Sequence[Any] = args
        else:
            values = self._leaves(args, kwargs)
        copies: Any = ()
        if not self._guards.good(values):
            values, copies = self._guards.mend(values)
        given = values if self._all_given else [values[n] for n in self._given]
        arguments = [*self._constants, *given]
        results = self._run(arguments)
        for theirs, ours in copies:
            with torch.no_grad():
                theirs.copy_(ours)
        if not self._plain:
            results = self._results(results, given)
        return pytree.tree_unflatten(results, self._out_spec)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        try:
            return list(self._in_spec.flatten_up_to((args, kwargs)))
        except (ValueError, TypeError, LookupError) as e:
            positional, named = self._in_spec.children()
            names = f" and by name {_list(named.context)}" if named.context else ""
            raise PackageError(
                f"litz: the program takes {len(positional.children())} arguments by position"
                f"{names}, with the structure that it was exported with ({e})"
            ) from e

    def _run(self, arguments: list[Any]) -> Any:
        if is_autocasting():
            with without_autocast():
                return self._without_gradients(arguments)
        return self._without_gradients(arguments)

    def _without_gradients(self, arguments: list[Any]) -> Any:
        if not torch.is_grad_enabled():
            return self._call(arguments)
        set_gradients(False)
        try:
            return self._call(arguments)
        finally:
            set_gradients(True)

    def _results(self, results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        count = len(self._constants)
        out: list[Any] = []
        for o in self._program.outputs:
            if o.kind == "result":
                if o.position >= len(results):
                    raise PackageError("litz: the package has fewer results than it says")
                out.append(results[o.position])
            elif o.kind == "argument":
                at = o.position
                out.append(self._constants[at] if at < count else given[at - count])
            else:
                out.append(o.value)
        return out


def load(path: Path | str, *, check: bool = True) -> LoadedProgram:
    """Load a package that ``litz.package`` wrote.

    check: compare the SHA-256 of all constants, which reads them once; code is compared anyway.
    The file has to stay as it is while the program lives: replace it by renaming another over it.

    Raises PackageError for what is no package or damaged, for one that other versions of Litz or
    PyTorch made, and where it has nothing for this machine.
    """
    container = Container(path, check=check)
    try:
        program = from_json(container.read("program.json"))
    except ValueError as e:
        raise PackageError(f"litz: the package {path} cannot be read: {e}") from e
    for name, version in versions().items():
        if (made := program.versions.get(name)) != version:
            raise PackageError(
                f"litz: {path} was made with {name} {made}, and this is {name} {version}: make it "
                "again, or install that version"
            )
    target = _chosen(program.targets, path)
    try:
        return LoadedProgram(container, program, target)
    except (ArtifactError, ToolchainError) as e:
        raise PackageError(f"litz: the package {path} cannot be loaded: {e}") from e
    except _NOT_HERE as e:
        raise PackageError(f"litz: the package {path} wants what this process has not: {e}") from e


def _chosen(targets: Sequence[Target], path: Path | str) -> Target:
    """The first target that this machine can run."""
    here, has = f"{sys.platform} {platform.machine()}", frozenset(cpu_flags())
    for t in targets:
        if t.system == here and has.issuperset(t.needs):
            return t
    lacks = [f"{t.name} ({t.system}; needs {_list(set(t.needs) - has)})" for t in targets]
    raise PackageError(
        f"litz: {path} has nothing for this machine ({here}); it was built for {'; '.join(lacks)}. "
        "Make it again with isas=(...) that name this machine's"
    )


def _list(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing more"


def _spec(text: str) -> pytree.TreeSpec:
    try:
        return pytree.treespec_loads(text)
    except NotImplementedError as e:
        raise PackageError(
            f"litz: {e} Import the module that registers this type with PyTorch's pytree first"
        ) from e


def _constants(container: Container, constants: Sequence[Tensor]) -> list[torch.Tensor]:
    """The tensors over the file's memory, or copies; equal entries have one memory."""
    made: dict[str, torch.Tensor] = {}
    for t in constants:
        if t.entry not in made:
            made[t.entry] = _tensor(container, t)
    return [made[t.entry] for t in constants]


def _tensor(container: Container, t: Tensor) -> torch.Tensor:
    data = container.view(t.entry)
    count = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.strides, strict=True))
    if 0 in t.shape:
        return torch.empty_strided(t.shape, t.strides, dtype=t.dtype, device=t.device)
    if min((*t.shape, *t.strides), default=0) < 0 or count * t.dtype.itemsize != len(data):
        raise ValueError(f"the constant {t.name} is not of the size that its entry has")
    flat = torch.frombuffer(data, dtype=t.dtype)
    if t.device.type != "cpu":
        flat = flat.to(t.device)
    found = flat.as_strided(t.shape, t.strides)
    return copy_as_it_is(found) if t.written and t.device.type == "cpu" else found


class _Binder:
    """Binds artifacts to their binaries."""

    def __init__(self, container: Container, target: Target) -> None:
        self._container, self._products = container, target.products
        self._runtime: Any = None
        self._why = f"litz: {NOT_BUILT}"
        try:
            if target.executor:
                self._runtime = self._library(target.executor, Executor)
            elif (path := shipped()) is not None:  # no kernel is C++: nothing was compiled
                self._runtime = Executor(path)
        except ToolchainError as e:
            self._why = str(e)
        if self._runtime is None and target.runtime:  # the executor runs segments too
            self._runtime = self._library(target.runtime, Runtime)

    def _library(self, entry: str, make: Callable[[Path], Any]) -> Any:
        return libraries().load(self._container.read(entry), make)

    def _executor(self) -> Executor:
        if isinstance(self._runtime, Executor):
            return self._runtime
        raise ToolchainError(self._why)

    def bind(self, artifact: Artifact, built: Built) -> BoxedCall:
        bodies = {n: self.bind(a, built.bodies[n]) for n, a in artifact.bodies.items()}
        functions: dict[str, Function] = {}
        for unit in built.units:
            library = self._library(unit.entry, Library)
            functions.update({k: library.function(k) for k in unit.kernels})
        host = artifact.host
        natives: dict[str, Any] = {**bind_segments(host.segments, self._runtime, functions)}
        if built.launchers:
            from litz.loading.gpu import launcher  # the CPU does without it

            natives |= {x.name: launcher(x, self._container) for x in built.launchers}
        values = namespace(host.values, bodies)
        if self._products:
            from litz.runtime.cublaslt import libraries as of_products
            from litz.runtime.products import Products

            known = Products(of_products, None, 0.0, chosen=dict(self._products))
            values = known.among(values)
        return bind_host(host, values, natives, self._executor)
