"""One way to compute a product of matrices: what is known of one, without the libraries."""

from __future__ import annotations

from litz.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Instance:
    """One way to compute a problem, as data.  what: for the library alone; workspace: bytes."""

    library: str
    what: str = ""
    workspace: int = 0
