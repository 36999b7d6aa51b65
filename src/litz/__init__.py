"""Litz: a tensor compiler for PyTorch.  ``torch.compile(model, backend="litz")``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litz import eager
from litz.errors import (
    ArtifactError,
    CompilationError,
    LitzError,
    OptionError,
    ToolchainError,
)
from litz.version import __version__

if TYPE_CHECKING:
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


__all__ = [
    "ArtifactError",
    "CompilationError",
    "LitzError",
    "OptionError",
    "ToolchainError",
    "__version__",
    "eager",
    "explain",
    "metrics",
    "profile",
]
