"""``python -m tests.pages --write``: docs/options.md, with the options' own words.

The prose stands in ``pages.md``.  ``--check`` fails where the page is not what comes out.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from litz.options import ENV_PREFIX, MODES, SHOWN, Options

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"
TEXT = Path(__file__).with_suffix(".md")
MADE = "<!-- made by `python -m tests.pages --write`; prose in `tests/pages.md` -->\n"
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
    table = "\n".join((HEAD, *rows))
    words = {"modes": MODES, "stages": SHOWN}
    text = TEXT.read_text().replace("<<options>>", table)
    for name, all_ in words.items():
        text = text.replace(f"<<{name}>>", ", ".join(f"`{x}`" for x in all_))
    return MADE + text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.write:
        PAGE.write_text(page())
    elif args.check and PAGE.read_text() != page():
        print(f"{PAGE.name} is not what the options say: python -m tests.pages --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
