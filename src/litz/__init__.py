"""Litz: a tensor compiler for PyTorch.  ``torch.compile(model, backend="litz")``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litz import eager
from litz.errors import (
    ArtifactError,
    CompilationError,
    LitzError,
    OptionError,
    PackageError,
    ToolchainError,
)
from litz.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch.export import ExportedProgram
    from torch.nn import Module

    from litz.loading.loaded import LoadedProgram
    from litz.report.profile import Profile
    from litz.tools.explain import Explanation
    from litz.tools.metrics import Metrics


def explain(
    fn: Any,
    *args: Any,
    options: dict[str, Any] | None = None,
    html: str = "",
    backward: bool = False,
    **kwargs: Any,
) -> Explanation:
    """Compile ``fn`` for the given arguments, run it once, and report what was made of it.

    fn: a module or function; args, kwargs: its inputs.  html: a file to write the report to, as a
    page.  backward: run the backward pass as well, whose graphs are compiled when it first runs;
    nobody gets its gradients, and results cannot be differentiated again.

    Returns an ``Explanation`` (graphs, kernels, extern calls with their reasons) whose ``str`` is
    the report and whose ``report`` is the same as data (``litz.report.record.Report``).
    """
    from litz.tools.explain import explain as run

    return run(fn, args, kwargs, options, html, backward)


def metrics() -> Metrics:
    """Counters of what this process compiles, from ``start`` to ``stop`` or as a context.

    ``with litz.metrics() as found: model(x)``, then ``found.counters["seconds.lowering"]``.
    """
    from litz.tools.metrics import Metrics

    return Metrics()


def profile(
    fn: Any,
    *args: Any,
    options: dict[str, Any] | None = None,
    against: tuple[str, ...] = ("eager",),
    seconds: float = 2.0,
    **kwargs: Any,
) -> Profile:
    """Measure ``fn`` under Litz step by step, and beside other ways to run it.

    fn: a module or function, called some hundred times: what it changes it changes as often.
    against: ``eager`` or names of backends, of which whole calls are measured alone.  seconds: for
    which whole calls are measured, in turns.  Returns a ``litz.report.profile.Profile``: ``str``
    is a table, ``to_csv`` and ``to_trace`` (Perfetto) write it for others.
    """
    from litz.tools.profile import profile as run

    return run(fn, args, kwargs, options, against, seconds)


def package(
    program: ExportedProgram | Module,
    path: Path | str,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Mapping[str, Any] | None = None,
    isas: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> None:
    """Compile a program and write it, its constants and its kernels to one file for ``litz.load``.

    program: what ``torch.export.export`` gave, or a module that is exported for ``args``,
    ``kwargs`` and ``dynamic_shapes`` (as that takes them).  options: those of ``torch.compile``.
    isas: instruction sets to build for ("avx2", "avx512", "neon", "generic"), of which loading
    takes the best that the machine has; without any, this machine's best with all its abilities.
    targets: GPU generations to build for ("sm_80", "sm_90"; no GPU is needed then); without any,
    that of the GPU at hand.  Later ones run PTX.
    Raises PackageError for a program that no package can hold, CompilationError, ToolchainError.
    """
    from litz.tools.package import package as write

    write(
        program,
        path,
        args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        options=options,
        isas=isas,
        targets=targets,
    )


def load(path: Path | str, *, check: bool = True) -> LoadedProgram:
    """Load a package: a callable that takes and returns what the exported program did.

    check: compare the SHA-256 of all constants, which reads them once.
    Needs no compiler.  Raises PackageError for what is no package, damaged, made by another version
    of Litz or PyTorch, or for another machine.
    """
    from litz.loading.loaded import load as read

    return read(path, check=check)


def native_folder() -> str:
    """The folder of ``litz.h``, which runs packages from C++, and of its CMake project."""
    import os

    return os.path.join(os.path.dirname(__file__), "native")


__all__ = [
    "ArtifactError",
    "CompilationError",
    "LitzError",
    "OptionError",
    "PackageError",
    "ToolchainError",
    "__version__",
    "eager",
    "explain",
    "metrics",
    "profile",
    "load",
    "native_folder",
    "package",
]
