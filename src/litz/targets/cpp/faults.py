"""Why a compiler process failed: the source is wrong, or the machine is in a bad way."""

from __future__ import annotations

import errno
import os
import re
import signal
from enum import Enum

_SHELL_SIGNAL = 128
_NOT_RUN = (126, 127)
_KILLED = re.compile(
    r"signal terminated program|Killed \(program |cannot allocate memory|out of memory|"
    r"memory exhausted",
    re.I,
)
# ld speaks of a "final link" that failed where it could not write its output.
_FULL = re.compile(
    "|".join(
        re.escape(os.strerror(number))
        for number in (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG)
    )
)


class Failure(Enum):
    """What became of a compiler process."""

    REFUSED = "refused the source"
    KILLED = "was killed"
    FULL = "cannot write its output"
    GONE = "is not there"


def diagnose(status: int, said: str) -> Failure:
    """From the exit status of the shell that ran the compiler, and its words."""
    if status in _NOT_RUN:
        return Failure.GONE
    if _FULL.search(said):
        return Failure.FULL
    if status < 0 or _by_signal(status) or _KILLED.search(said):
        return Failure.KILLED
    return Failure.REFUSED


def _by_signal(status: int) -> bool:
    number = status - _SHELL_SIGNAL
    return 0 < number < signal.NSIG
