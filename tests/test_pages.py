"""docs/options.md says what the options say, and every page is on the site."""

from __future__ import annotations

from pathlib import Path

from tests.pages import PAGE, page


def test_the_page_is_what_the_options_say() -> None:
    assert PAGE.read_text() == page(), "python -m tests.pages --write"


def test_every_page_is_on_the_site() -> None:
    config = PAGE.parents[1].joinpath("mkdocs.yml").read_text()
    missing = [p.name for p in PAGE.parent.glob("*.md") if f": {p.name}\n" not in config]
    assert not missing, "add them to nav in mkdocs.yml"


def test_the_reference_has_every_public_name() -> None:
    import litz

    text = Path(PAGE.parent, "api.md").read_text()
    missing = [n for n in litz.__all__ if not n.startswith("__") and f"litz.{n}" not in text]
    assert not [n for n in missing if f"litz.errors.{n}" not in text]
