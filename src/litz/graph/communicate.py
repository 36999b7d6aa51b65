"""What is sent among processes, in fewer bytes and in fewer calls.

A gathered parameter of float32 of which only its cast to 16 bits is read is cast where it lies in
parts: each element's value is the same, and half of the bytes move.

Small transfers that follow each other share a call, whose start is paid once: gathers where the
first was, reductions where the last was.  Which do, all processes have to choose alike, so that it
depends on the calls of the graph, on the sizes of what is sent and on what their group moves a
second, which is one figure for all of them, and on no estimate of a time.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from litz.graph.calls import op_name
from litz.runtime.collectives import group_name, is_start, is_wait

aten = torch.ops.aten
CASTS: Final = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
VIEWS: Final = (aten.view.default, aten._unsafe_view.default, aten.slice.Tensor)
FORMS: Final = ("all_gather_into_tensor", "reduce_scatter_tensor")
"""Collectives with a form for several tensors."""


def narrow_before_gathering(gm: GraphModule) -> bool:
    """Casts to types of fewer bytes come before the gather that alone they read."""
    changed, communicates = False, any(is_wait(n.target) for n in gm.graph.nodes)
    for cast in [n for n in gm.graph.nodes if communicates and n.target in CASTS]:
        *views, gather = _gathered(cast) or [cast]
        if gather is cast:
            continue
        part, dtype = gather.args[0], cast.meta["val"].dtype
        with gm.graph.inserting_before(gather):
            narrow = gm.graph.call_function(cast.target, (part, *cast.args[1:]), dict(cast.kwargs))
        narrow.meta = {**cast.meta, "val": part.meta["val"].to(dtype)}
        gather.args = (narrow, *gather.args[1:])
        for n in (gather, *views):
            n.meta["val"] = n.meta["val"].to(dtype)
        cast.replace_all_uses_with(views[0])
        gm.graph.erase_node(cast)
        changed = True
    return changed


def _gathered(cast: Node) -> list[Any] | None:
    """What is alone read by a cast to a type of fewer bytes, back to a gather, if one is there."""
    found: list[Any] = [cast.args[0]]
    if not isinstance(cast.args[0], Node):  # a number, in a function that a graph applies
        return None
    while (n := found[-1]).target in VIEWS and _is_whole(n):
        found.append(n.args[0])
    if not is_wait(n.target) or op_name(n.args[0].target) != FORMS[0]:
        return None
    found.append(n.args[0])
    before, after = (n.meta["val"].dtype for n in (found[0], cast))
    floats = before.is_floating_point and after.is_floating_point
    only = {k for k, v in cast.kwargs.items() if v is not None} <= {"dtype"}
    alone = all(len(n.users) == 1 for n in found)
    return found if floats and only and alone and after.itemsize < before.itemsize else None


def _is_whole(n: Node) -> bool:
    """Whether a view has all elements of what it is of, in order."""
    sizes = [a.meta["val"].shape for a in (n, n.args[0])]  # type: ignore[union-attr]
    known = all(type(s) is int for shape in sizes for s in shape)
    return known and len({shape.numel() for shape in sizes}) == 1


def share_calls(gm: GraphModule, limits: Mapping[str, int]) -> bool:
    """Transfers of one kind share a call as long as it moves at most so many bytes.

    limits: by the group of processes: its members are in other groups too, each in its own.
    """
    found = [_Bucket(())]
    for n in [*gm.graph.nodes]:
        if not is_start(n.target):
            found[-1].pass_by(n)
            continue
        kind, limit = _kind(n), limits.get(group_name(n.target, n.args, n.kwargs), 0)
        if not kind or kind != found[-1].kind or not found[-1].takes(n, limit):
            found.append(_Bucket(kind))
            found[-1].takes(n, _bytes(n) if kind else 0)
    several = [b for b in found if len(b.members) > 1]
    for bucket in several:
        bucket.merge(gm)
    return bool(several)


class _Bucket:
    """Transfers that share a call, while a graph is looked at in order.

    made: they, and what is made of them so far.  stays: whether that, or what stands between,
    cannot move.
    """

    def __init__(self, kind: tuple[Any, ...]) -> None:
        self.kind = kind
        self.members: list[Node] = []
        self.made: dict[Node, None] = {}
        self.bytes, self.stays = 0, False

    def pass_by(self, n: Node) -> None:
        """Look at what is no start of a transfer."""
        self.stays |= not _writes_nothing(n)
        if self._is_made(n):
            self.made[n] = None
            self.stays |= self.kind[0] != FORMS[0] and not _moves(n)

    def _is_made(self, n: Node) -> bool:
        return any(m in self.made for m in n.all_input_nodes)

    def takes(self, n: Node, limit: int) -> bool:
        """Take a transfer in; False where it is too large, or what it needs stands between.

        Gathers come to the first, with what they are made of.
        """
        if not self.kind:
            return False
        size = self.bytes + _bytes(n)
        if size > limit or self.stays or self._is_made(n):
            return False
        if self.members and self.kind[0] == FORMS[0]:
            first, moving, left = self.members[0], set[Node](), n.all_input_nodes
            while left:
                if (m := left.pop()) not in moving and first < m:
                    moving.add(m)
                    left += m.all_input_nodes
            if not all(map(_moves, moving)):
                return False
            for m in sorted(moving):
                first.prepend(m)
            self.members[-1].append(n)
        self.members.append(n)
        self.made[n] = None
        self.bytes = size
        return True

    def merge(self, gm: GraphModule) -> None:
        """One call for all; reductions where the last was, and what is made of them behind it."""
        *others, last = self.members
        if self.kind[0] != FORMS[0]:
            for m in others:  # so that no member is left among what stands before the last
                last.append(m)
            for m in reversed([m for m in self.made if m < last]):
                last.append(m)
            for m in others:
                last.prepend(m)
        _merge(gm, self.members)


def _kind(n: Node) -> tuple[Any, ...]:
    """What transfers that share a call have in common; () of one that shares none.

    Open sizes may be others in other processes.
    """
    if op_name(n.target) not in FORMS or n.kwargs:
        return ()
    part, whole = n.args[0].meta["val"], n.meta["val"]  # type: ignore[union-attr]
    if not all(type(size) is int for size in (*part.shape, *whole.shape)):
        return ()
    return op_name(n.target), n.args[1:], whole.dtype, whole.device


def _bytes(n: Node) -> int:
    values = n.args[0].meta["val"], n.meta["val"]  # type: ignore[union-attr]
    return max(int(v.numel() * v.element_size()) for v in values)


def _writes_nothing(n: Node) -> bool:
    if n.target is operator.getitem:
        return True
    return isinstance(n.target, torch._ops.OpOverload) and not n.target._schema.is_mutable


def _moves(n: Node) -> bool:
    """Whether a call may change places with others that write nothing: it computes, or waits."""
    return is_wait(n.target) or not (is_start(n.target) or n.is_impure())


def _merge(gm: GraphModule, bucket: list[Node]) -> None:
    """One call for the transfers of a bucket, which stand behind each other."""
    first, last = bucket[0], bucket[-1]
    target = getattr(torch.ops._c10d_functional, f"{op_name(first.target)}_coalesced").default
    with gm.graph.inserting_after(last):
        call = gm.graph.call_function(target, ([n.args[0] for n in bucket], *first.args[1:]))
    call.meta = {**last.meta, "val": [n.meta["val"] for n in bucket]}
    for k, n in reversed([*enumerate(bucket)]):
        with gm.graph.inserting_after(call):
            part = gm.graph.call_function(operator.getitem, (call, k))
        part.meta = dict(n.meta)
        n.replace_all_uses_with(part)
        gm.graph.erase_node(n)
