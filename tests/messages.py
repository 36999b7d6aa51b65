"""The messages of Litz's errors and warnings, collected from the code that raises them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from litz import errors

SOURCES = Path(errors.__file__).parent
# VerifyError and VerificationError are about faults of Litz's own: they have one place.
USERS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.LitzError)
} - {"LitzError", "VerifyError", "VerificationError"}
GAP = "…"


def template(node: ast.expr) -> str:
    """The text of a message with a gap for all that varies."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(template, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template(left) + template(right)
    return GAP


def collected() -> Iterator[tuple[str, str, str]]:
    """Kind, text and place of each message."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in USERS or ast.unparse(node.func) == "warnings.warn":
                text = " ".join(template(node.args[0]).split())
                yield name, text, f"{path.relative_to(SOURCES)}:{node.lineno}"


if __name__ == "__main__":
    for kind, text, place in collected():
        print(f"{kind:20} {place:40} {text}")
