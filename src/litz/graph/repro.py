"""Stand-alone repros of graphs that failed to compile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from litz.options import Options

_HEAD = '''"""A graph that Litz failed to compile: run this file with Python to see it again.

{error}
"""

import torch
from torch import device, inf, nan, tensor  # noqa: F401  (names that the graph may use)

import litz
'''

_TAIL = """

def inputs():
    torch.manual_seed(0)
    return [
{inputs}
    ]


OPTIONS = {options}

if __name__ == "__main__":
    module = Repro()
    expected = module(*inputs())
    actual = torch.compile(module, backend="litz", options=OPTIONS)(*inputs())
    print("compiled; largest differences:")
    for a, b in zip(actual, expected):
        if isinstance(a, torch.Tensor):
            print("  ", (a.double() - b.double()).abs().max().item() if a.numel() else 0.0)
"""


def example_input(val: Any) -> Any:
    """What a repro calls a graph on in place of ``val``."""
    if not isinstance(val, torch.Tensor):
        return _hint(val) if isinstance(val, torch.SymInt | int) else None
    size, stride = ([_hint(s) for s in sizes] for sizes in (val.shape, val.stride()))
    x = torch.empty_strided(size, stride, dtype=val.dtype, device=val.device)
    if val.dtype.is_floating_point:
        return x.copy_(torch.randn(size))
    return x.copy_(torch.rand(size) > 0.5 if val.dtype is torch.bool else torch.zeros(size))


def _input_text(val: Any) -> str:
    if isinstance(val, torch.Tensor):
        size = [_hint(s) for s in val.shape]
        stride = [_hint(s) for s in val.stride()]
        if val.dtype.is_floating_point:
            fill = f"torch.randn({size}).to({val.dtype})"
        elif val.dtype is torch.bool:
            fill = f"torch.rand({size}) > 0.5"
        else:
            fill = f"torch.zeros({size}, dtype={val.dtype})"
        where = "" if val.device.type == "cpu" else f", device={str(val.device)!r}"
        return f"torch.empty_strided({size}, {stride}, dtype={val.dtype}{where}).copy_({fill})"
    return repr(_hint(val)) if isinstance(val, torch.SymInt | int) else "None"


def _hint(value: Any) -> int:
    if isinstance(value, torch.SymInt):
        hint = value.node.hint
        return int(hint) if isinstance(hint, int) else 8  # a ragged size has no number
    return int(value)


def repro_text(gm: GraphModule, error: Exception, options: Mapping[str, object]) -> str:
    """Python source that builds the graph as a module, with random inputs of the same layout."""
    body = gm.print_readable(print_output=False, include_stride=False, include_device=False)
    lines = body.replace(f"class {type(gm).__name__}", "class Repro").splitlines()
    lines = [line for line in lines if line.strip()]
    code = "\n".join(lines).replace("class <lambda>", "class Repro")
    inputs = [
        f"        {_input_text(n.meta.get('val'))},"
        for n in gm.graph.nodes
        if n.op == "placeholder"
    ]
    message = str(error).replace('"""', "'''")
    tail = _TAIL.format(inputs="\n".join(inputs), options=repr(dict(options)))
    return _HEAD.format(error=message) + "\n\n" + code + tail


def save_repro(gm: GraphModule, options: Options, error: Exception) -> str | None:
    """Write the repro; its path, or None where the folder cannot be written."""
    text = repro_text(gm, error, options.given())
    name = "litz_repro_" + hashlib.sha256(text.encode()).hexdigest()[:10]
    try:
        place = Path(options.repro_dir or ".") / name
        place.mkdir(parents=True, exist_ok=True)
        path = place / "repro.py"
        path.write_text(text)
    except OSError:
        return None
    return str(path)
