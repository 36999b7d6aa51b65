"""What PyTorch loads for ``backend="litz"``: a module that is quick to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from litz.runtime.collector import uncollected

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
    with uncollected():
        from litz.backend import compile_with
        from litz.options import make_options

        return compile_with(gm, example_inputs, make_options(options, mode))
