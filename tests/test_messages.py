"""Every error and warning of Litz stands on the page of symptoms."""

from __future__ import annotations

import re
from pathlib import Path

from tests.messages import collected

PAGE = Path(__file__).resolve().parents[1] / "docs" / "troubleshooting.md"


def test_every_message_has_its_place() -> None:
    listed = re.findall(r"^\* `+(.*?)`+$", PAGE.read_text(), re.MULTILINE)
    # Of what is a gap and little else, somebody else wrote the text.
    found = {t: place for _, t, place in collected() if len(re.sub(r"\W", "", t)) > 5}
    missing = {place: t for t, place in found.items() if t not in listed}
    assert not missing, "write what to do into docs/troubleshooting.md"
    assert sorted(set(listed) - set(found)) == [], "no code says so any more"


def test_every_symptom_has_one_anchor() -> None:
    heads = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(heads) == len(set(heads))
