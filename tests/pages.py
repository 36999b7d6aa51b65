"""``python -m tests.pages --write``: docs/options.md, with the options' own words.

The prose stands in ``pages.md``.  ``--check`` fails where the page is not what comes out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from litz.options import ENV_PREFIX, MODES, SHOWN, Options
from tests import made

PAGE = made.ROOT / "docs" / "options.md"
TEXT = Path(__file__).with_suffix(".md")
HEAD = "| option | variable | default | in the key | what it does |\n|---|---|---|---|---|"


def page() -> str:
    rows = []
    for f in fields(Options):
        default = "none" if f.default in ("", ()) else f"`{f.default}`"
        variable = "" if isinstance(f.default, tuple) else f"`{ENV_PREFIX}{f.name.upper()}`"
        about = f.metadata["doc"].replace("|", "\\|")
        if choices := [repr(c) for c in f.metadata["choices"] or () if c != ""]:
            told = all(c.strip("'") in about for c in choices) or f.name == "mode"
            about += "" if told else f" ({', '.join(choices)})"
        kept = "yes" if f.metadata["key"] else "no"
        rows.append(f"| `{f.name}` | {variable} | {default} | {kept} | {about} |")
    text = TEXT.read_text().replace("<<options>>", "\n".join((HEAD, *rows)))
    text = text.replace("<<modes>>", code(MODES)).replace("<<stages>>", code(SHOWN))
    return made.head("pages") + text


def code(words: Iterable[str]) -> str:
    return ", ".join(f"`{x}`" for x in words)


if __name__ == "__main__":
    sys.exit(made.main("pages", __doc__, PAGE, page))
