"""Loggers, by Python's own ``logging``: ``litz`` for what happens, one a stage for what it made.

INFO of ``litz``: graphs, recompiles, guards, what runs through ATen, each with its reason.  DEBUG
of a stage's logger: its text.  Loggers have the names of the packages that make the text, so that
``TORCH_LOGS`` and ``torch._logging.set_logs(modules=...)`` know them without being told:
``TORCH_LOGS=litz`` for the events, ``TORCH_LOGS=+litz.schedule`` for the schedules.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

STAGE_LOGGERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "graph": "litz.graph",
        "program": "litz.lowering",
        "schedule": "litz.schedule",
        "plan": "litz.kernel",
        "kernels": "litz.targets",
        "host": "litz.host",
        "code": "litz.host.python",
        "time": "litz.compiler",
    }
)

events: Final = logging.getLogger("litz")


def stage_logger(stage: str) -> logging.Logger:
    """The logger that gets the text of a stage, at DEBUG."""
    return logging.getLogger(STAGE_LOGGERS[stage])
