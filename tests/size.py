"""``python -m tests.size``: lines of code of every room, beside the most that it may have.

Docstrings, comments and blank lines are left out, as are C++ and Triton headers (counted apart, by
lines that are not blank).  ``--check`` fails where a room has grown beyond its budget, where a file
has over ``FILE`` lines, or where files of a room import each other in a circle.  Budgets stand in
``size.txt``; ``--write`` sets them to what is there and a little more: a change that needs it says
why.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "litz"
BUDGETS = Path(__file__).with_name("size.txt")
FILE = 450
STEP = 50
IDLE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
Graph = Mapping[str, frozenset[str]]


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    with path.open("rb") as f:
        tokens = [t for t in tokenize.tokenize(f.readline) if t.type not in IDLE]
    lines = {
        n
        for t in tokens
        if t.type not in (tokenize.ENCODING, tokenize.ENDMARKER)
        for n in range(t.start[0], t.end[0] + 1)
    }
    return len(lines - _docstrings(ast.parse(path.read_bytes())))


def _docstrings(tree: ast.AST) -> set[int]:
    """Lines of strings that stand by themselves: docstrings, also those of fields."""
    return {
        n
        for x in ast.walk(tree)
        if isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant)
        if isinstance(x.value.value, str)
        for n in range(x.lineno, (x.end_lineno or x.lineno) + 1)
    }


def room(path: Path) -> str:
    """The package directly below ``litz`` that a file is in; ``litz`` for those beside them."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "litz"


def rooms() -> dict[str, dict[Path, int]]:
    """Code lines by room and file."""
    found: dict[str, dict[Path, int]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        found.setdefault(room(path), {})[path] = code_lines(path)
    return found


def headers() -> int:
    """Lines of C++ and CUDA source that kernels are built with."""
    files = (p for p in SOURCE.rglob("*") if p.suffix in (".h", ".hpp", ".cpp", ".cuh", ".c"))
    return sum(bool(line.strip()) for p in files for line in p.read_text().splitlines())


# --- circles --------------------------------------------------------------------------------------


def module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: frozenset[str]) -> frozenset[str]:
    """The modules of Litz that a file names anywhere, for types alone too."""
    found: set[str] = set()
    for x in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(x, ast.Import):
            found |= {a.name for a in x.names}
        elif isinstance(x, ast.ImportFrom) and x.module:
            found |= {f"{x.module}.{a.name}" for a in x.names} | {x.module}
    return frozenset(found & known)


def circles() -> list[tuple[str, ...]]:
    """Groups of files of a room that import each other, the largest first."""
    paths = {module(p): p for p in sorted(SOURCE.rglob("*.py")) if p.name != "__init__.py"}
    known = frozenset(paths)
    graph = {
        m: frozenset(i for i in imports(p, known) if room(paths[i]) == room(p))
        for m, p in paths.items()
    }
    found = [tuple(sorted(c)) for c in components(graph) if len(c) > 1]
    return sorted(found, key=lambda c: (-len(c), c))


def components(graph: Graph) -> Iterator[frozenset[str]]:
    """Strongly connected components, by what each can reach."""
    reach = {m: _reachable(graph, m) for m in graph}
    seen: set[str] = set()
    for m in graph:
        if m not in seen:
            group = frozenset({m, *(o for o in reach[m] if m in reach[o])})
            seen |= group
            yield group


def _reachable(graph: Graph, start: str) -> frozenset[str]:
    found: set[str] = set()
    stack = [start]
    while stack:
        for m in graph[stack.pop()] - found:
            found.add(m)
            stack.append(m)
    return frozenset(found)


# --- the table ------------------------------------------------------------------------------------


def budgets() -> dict[str, int]:
    pairs = (line.split() for line in BUDGETS.read_text().splitlines() if line.strip())
    return {name: int(n) for name, n in pairs}


def roomy(name: str, n: int) -> int:
    """A budget with room for mending."""
    return n if name in ("circles", "long") else -(-n // STEP) * STEP


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true", help="budgets become what is there")
    args = parser.parse_args()
    found = rooms()
    total = Counter({name: sum(files.values()) for name, files in found.items()})
    groups = circles()
    counts = {**total, "all": sum(total.values())}
    counts["headers"] = headers()
    counts["circles"] = sum(map(len, groups))
    counts["long"] = sum(n > FILE for files in found.values() for n in files.values())
    if args.write:
        BUDGETS.write_text("".join(f"{name} {roomy(name, n)}\n" for name, n in counts.items()))
    most = budgets()
    print(f"{'room':10} {'lines':>7} {'at most':>7}   files, the longest")
    for name, n in total.most_common():
        files = found[name]
        longest = max(files, key=lambda p: files[p])
        line = f"{len(files):3}, {longest.name} {files[longest]}"
        print(f"{name:10} {n:7} {most.get(name, 0):7}   {line}")
    for name in ("all", "headers"):
        print(f"{name:10} {counts[name]:7} {most.get(name, 0):7}")
    for group in groups:
        print(f"a circle of {len(group)}: {', '.join(g.removeprefix('litz.') for g in group)}")
    for path, n in ((p, n) for files in found.values() for p, n in files.items() if n > FILE):
        print(f"over {FILE} lines: {path.relative_to(ROOT)} {n}")
    grown = [name for name, n in counts.items() if n > most.get(name, 0)]
    for name in grown if args.check else ():
        print(f"{name}: {counts[name]}, at most {most.get(name, 0)}", file=sys.stderr)
    return 1 if grown and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
