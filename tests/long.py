"""Which tests ``make test`` leaves to ``make test-long``: continuous integration runs both.

``python -m tests.long JUNIT.xml...`` reads how long tests took (``pytest --junitxml``, of runs of
both) and writes ``long.txt``: functions of which a case took more than a second.  The quickest
function of a file stays with ``make test`` unless it takes five, so that files have a part in it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
LIST = HERE / "long.txt"
MOST = 1.0  # seconds of a case
ALONE = 5.0  # of the quickest function of a file


def listed() -> frozenset[str]:
    """The functions in ``long.txt``, as ``folder/file.py::function``."""
    return frozenset(LIST.read_text().split())


def function(node: str) -> str:
    """The function of a test, which pytest calls ``tests/e2e/test_x.py::test_y[case]``."""
    return node.split("[")[0].removeprefix("tests/")


def chosen(times: Iterable[tuple[str, float]]) -> list[str]:
    """The functions that take long, of names and seconds of tests."""
    files: dict[str, dict[str, float]] = defaultdict(dict)
    for name, seconds in times:
        found = files[name.split("::")[0]]
        found[name] = max(found.get(name, 0.0), seconds)
    long = []
    for of in files.values():
        stays = min(of, key=lambda name: (of[name], name))
        long += [n for n, seconds in of.items() if seconds > (ALONE if n == stays else MOST)]
    return sorted(long)


def measured(path: Path) -> list[tuple[str, float]]:
    """Names and seconds of the tests of a run."""
    cases = ElementTree.parse(path).getroot().iter("testcase")
    made = []
    for case in cases:
        file = case.attrib["classname"].removeprefix("tests.").replace(".", "/") + ".py"
        made.append((function(f"{file}::{case.attrib['name']}"), float(case.attrib["time"])))
    return made


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    times = [time for path in sys.argv[1:] for time in measured(Path(path))]
    LIST.write_text("\n".join(chosen(times)) + "\n")
