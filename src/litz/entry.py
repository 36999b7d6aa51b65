"""What PyTorch loads for ``backend="litz"``: a module that is quick to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from litz.logs import events
from litz.runtime.cache import told_of_entries
from litz.runtime.collector import uncollected
from litz.runtime.dispatcher import through_aten
from litz.runtime.torch_private import bundled_entries, put_backend

if TYPE_CHECKING:
    from torch.fx import GraphModule


def litz(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph (PyTorch calls this).

    mode, options: as given to ``torch.compile``; see ``litz.options.Options``.
    Raises OptionError, CompilationError.
    """
    with uncollected(), through_aten():
        from litz.backend import compile_with
        from litz.options import make_options

        return compile_with(gm, example_inputs, make_options(options, mode))


def __getattr__(name: str) -> Any:
    """``registered``: what PyTorch asks for when a thread compiles first, and registers.

    It refuses a second backend of a name, which other threads may bring at the same time.  So this
    registers ``litz``, once, and is None, of which PyTorch registers nothing.
    """
    if name != "registered":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return None if put_backend("litz", litz) else litz


def _bundle_entries() -> None:
    """Have ``torch.compiler.save_cache_artifacts`` carry what Litz keeps, if this PyTorch can."""

    def arrived(name: str, data: bytes) -> None:
        from litz.cache import portable

        portable.arrived(name, data)

    record = bundled_entries("litz", arrived)
    if record is None:
        events.info(
            "this PyTorch's save_cache_artifacts carries no caches but its own: Litz's entries are "
            "not in what it gives; `litz cache export` writes them to a file"
        )
    else:
        told_of_entries(record)


# PyTorch can read what Litz wrote once this module is there: before anything is compiled.
_bundle_entries()
