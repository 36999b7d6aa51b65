"""Rules about what the sources may name, checked on their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src" / "litz"
# The peer, and a rule of the house: only benchmarks name it.
FORBIDDEN = "torch._inductor"


def is_forbidden(name: str) -> bool:
    return name == FORBIDDEN or name.startswith(FORBIDDEN + ".")


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an attribute chain that starts at a name; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def names_in(node: ast.AST) -> Iterator[str]:
    """The module paths that one node names: imports, attribute chains, strings."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute):
        yield dotted(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        # Whole strings only (importlib, source templates by line): prose may mention the peer.
        yield from (word for line in node.value.splitlines() for word in imported_by(line))


def imported_by(line: str) -> list[str]:
    """The module that a line of generated Python imports, or that the line as a whole is."""
    words = line.split()
    if len(words) > 1 and words[0] in ("import", "from"):
        return [words[1]]
    return words if len(words) == 1 else []


def offences(source: str) -> list[int]:
    """Lines of ``source`` that name the forbidden package."""
    tree = ast.parse(source)
    return sorted(
        {
            getattr(node, "lineno", 0)
            for node in ast.walk(tree)
            if any(map(is_forbidden, names_in(node)))
        }
    )


def test_litz_does_not_import_the_peer() -> None:
    paths = sorted(SOURCES.rglob("*.py"))
    assert paths, f"no sources under {SOURCES}"
    found = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path in paths
        for line in offences(path.read_text())
    ]
    assert not found, f"{FORBIDDEN} is named in " + ", ".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import torch._inductor",
        "import torch._inductor.config as c",
        "from torch._inductor import config",
        "from torch import _inductor",
        "import torch\ntorch._inductor.config.debug = True",
        "import importlib\nimportlib.import_module('torch._inductor.ir')",
        "TEMPLATE = '''\nimport torch\nfrom torch._inductor.codecache import x\n'''",
        "def f():\n    from torch._inductor.utils import y",
    ],
)
def test_the_check_finds_each_way_in(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch._inductors import x",
        "'''Never imports torch._inductor; see the design.'''",
        "from . import _inductor",
    ],
)
def test_the_check_leaves_others_alone(source: str) -> None:
    assert not offences(source)
