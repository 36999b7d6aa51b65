"""Litz's version, for rooms that do not import the package's public names, and what goes away."""

import warnings

__version__ = "0.1.0"


def deprecated(what: str, instead: str, until: str) -> None:
    """Warn the user's caller that ``what`` goes away in version ``until``, and what to do instead.

    What is deprecated in one minor version works in the next one still; a test fails once the
    version is reached and the call is still there.
    """
    text = f"litz: {what} goes away in version {until}; {instead}"
    warnings.warn(text, FutureWarning, stacklevel=3)
