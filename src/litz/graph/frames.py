"""The user's lines in the stack traces that graph nodes keep."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from typing import Final

import torch

FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<number>\d+)(?:, in (?P<function>.+))?')
_LIBRARIES: Final = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/")
_PYTHON: Final = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED: Final = tuple(f"{_PYTHON}{x}-packages/" for x in ("site", "dist"))


def is_own(file: str) -> bool:
    """Whether a file is neither PyTorch's nor Litz's nor of Python itself."""
    if file.startswith(_PYTHON):
        return file.startswith(_INSTALLED) and not file.startswith(_LIBRARIES)
    return not file.startswith((*_LIBRARIES, "<frozen"))


def own_places(trace: str) -> tuple[str, ...]:
    """The places (``model.py:14``, with whole paths) of the user's frames, outermost first."""
    found = FRAME.finditer(trace)
    return tuple(f"{m['file']}:{m['number']}" for m in found if is_own(m["file"]))
