"""The kinds of skeletons, and what tells whether stores are such a kind's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from litz.index import Expr
from litz.ir import attention, matmul, updates
from litz.ir.body import Store
from litz.ir.program import Template

PARTS: Final[Mapping[str, Callable[[Sequence[Store], Sequence[Expr]], object]]] = MappingProxyType(
    {
        attention.KIND: attention.parts,
        attention.GRADIENT: attention.gradient_parts,
        matmul.KIND: matmul.parts,
        updates.KIND: updates.parts,
    }
)
# Of these, bodies may be put around what the stores say.
GROWING: Final = frozenset({matmul.KIND, updates.KIND})


def fault(t: Template) -> str:
    """Why a template's stores are none of its skeleton's; "" where they are."""
    known = PARTS.get(t.skeleton.kind)
    if known is None:
        return f"there is no skeleton {t.skeleton.kind}"
    try:
        known(t.stores, t.axes)
    except (ValueError, KeyError, StopIteration) as e:
        return str(e) or f"it is no {t.skeleton.kind}"
    return ""
