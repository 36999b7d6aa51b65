"""The text of a translation unit; who binds an artifact needs no more of the printers."""

from __future__ import annotations

from collections.abc import Sequence

ALWAYS = ("litz/loops.h", "litz/vec.h")  # the first has the other


def joined(kernels: Sequence[tuple[Sequence[str], str]]) -> str:
    """A translation unit of kernels, given as the headers that they need and their sources."""
    needed = sorted({h for found, _ in kernels for h in found})
    lines = [f"#include <{h}>" for h in (ALWAYS[0], *needed)]
    return "\n".join([*lines, "using namespace litz;", "", *(text for _, text in kernels)])
