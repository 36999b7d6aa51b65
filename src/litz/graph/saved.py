"""What a forward graph saves for its backward graph, with as few bytes as that can have.

A log-softmax that the forward graph itself need not store is not saved: the backward graph computes
it anew, to the same bits, from what it was made of and from two numbers a row; a norm likewise, and
what it is made into element by element.  Of an argument, which may be written in between, the
softmax is saved on CPUs: its exponentials are there, and are not computed again.  Products that are
saved keep rows of whole 16 bytes, behind which nobody reads: nothing is copied where the library
computes more columns, and kernels read such rows whole.  What is only converted to a wider type is
saved as it was.  Of a view of an input the input is saved: by that PyTorch sees that somebody wrote
it before the backward pass.  What the forward graph itself writes is copied first: the partitioner
has the backward graph compute things anew from it as from any other input.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from litz.graph.aliasing import DESCRIPTIONS, is_view_op, owner, writes
from litz.graph.calls import is_random
from litz.graph.eager_calls import ELEMENTS
from litz.graph.values import EAGER_VAL, add_call, fake_mode, same_dims
from litz.ir.matmul import GROWTH, SHORT, padded_size
from litz.runtime.torch_private import same_memory

aten = torch.ops.aten

MOST: Final = 16  # calls in front of a softmax that the backward graph makes again
COPIES: Final = frozenset({aten._to_copy.default, aten.clone.default})
# Beside what works element by element, those that read a value without having it stored.
PASSING: Final = frozenset({
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.gather.default,
    aten.nll_loss_forward.default, aten.nll_loss2d_forward.default, aten.amax.default,
    aten._log_softmax.default, aten._softmax.default,
})  # fmt: skip
# Norms: how many of their results are the norm and its statistics, and where weight and bias stand.
ROWS: Final = {
    aten.native_layer_norm.default: (3, slice(2, 4)),
    aten._fused_rms_norm.default: (2, slice(2, 3)),
}
CHANNELS: Final = dict.fromkeys(
    (
        aten.native_group_norm.default, aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_functional.default,
    ),
    (3, slice(1, 3)),
)  # fmt: skip
NORMS: Final = ROWS | CHANNELS
# How AOTAutograd has a forward part leave new values in its inputs.
REPLACING: Final = (aten.copy_.default, aten.set_.source_Tensor)
# Of values that an ``autograd.Function`` keeps unasked: PyTorch saves those behind the others.
UNCHECKED: Final = "saved_tensor_with_no_vc_check"
PRODUCTS: Final = frozenset({
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default,
})  # fmt: skip
# Of what the forward call was given, these read the sizes alone.
SIZES: Final = frozenset({aten.nll_loss_backward.default, aten.nll_loss2d_backward.default})


def save_less(forward: GraphModule, backward: GraphModule, results: int) -> None:
    """Change the graphs of both parts of a joint graph; their text stays what it was.

    results: of the forward part, ahead of what is saved.
    """
    both = _Parts(forward.graph, backward.graph, results)
    both.forget_sizes()
    for n in dict.fromkeys(both.saved if both.replaced else ()):
        if isinstance(n, Node) and owner(n) in both.replaced:
            both.save_old(n)
    for n in dict.fromkeys(both.saved):
        if isinstance(n, Node):
            both.save_input(n)
    for n in dict.fromkeys(both.saved):
        made = _attached(n) if isinstance(n, Node) else None
        if made is not None and made.target is aten._log_softmax.default:
            both.leave_out(n, made)
    for n in dict.fromkeys(both.saved):
        if isinstance(n, Node) and n.op == "call_function":
            both.leave_out_norm(n)
    for n in dict.fromkeys(both.saved):
        if isinstance(n, Node) and _is_widened(n):
            both.save_narrow(n)
    for n in both.saved:
        if isinstance(n, Node) and n.target in PRODUCTS:
            both.widen(n)
    for gm in (forward, backward) if both.changed else ():
        gm.graph.lint()


class _Parts:
    """Both parts of a joint graph: what one saves are inputs of the other, by their names."""

    def __init__(self, forward: Graph, backward: Graph, results: int) -> None:
        self.forward, self.backward, self.results = forward, backward, results
        self.changed = False
        (self.output,) = forward.find_nodes(op="output")
        self.inputs = {n.name: n for n in backward.find_nodes(op="placeholder")}
        self.written = {owner(w) for n in forward.nodes for w in writes(n)}
        calls = (n for t in REPLACING for n in forward.find_nodes(op="call_function", target=t))
        self.replaced = {owner(n.args[0]) for n in calls}

    @property
    def saved(self) -> Sequence[Any]:
        values: Any = self.output.args[0]
        found: Sequence[Any] = values[self.results :]
        return found

    @property
    def shown(self) -> list[Node]:
        values: Any = self.output.args[0]
        return [a for a in values[: self.results] if isinstance(a, Node)]

    def forget_sizes(self) -> None:
        """Save nothing for the sake of its sizes."""
        saved = {n.name: n for n in self.saved if isinstance(n, Node)}
        for u in [*self.backward.nodes]:
            if u.target not in SIZES or (val := u.args[1].meta["val"])._has_symbolic_sizes_strides:
                continue
            own, named = u.args[1], {"dtype": val.dtype, "device": val.device}
            with self.backward.inserting_before(u):
                like = add_call(u, aten.full.default, ([*val.shape], 0), named)
            u.replace_input_with(own, like)
            self.changed = True
            if own.op == "placeholder" and not own.users and own.name in saved:
                self._save(saved[own.name], own, ())
                self.backward.erase_node(own)

    def save_old(self, n: Node) -> None:
        """Save a copy of what lies in memory that the forward part writes behind all it reads."""
        own = self.inputs.get(n.name)
        if own is None or any(owner(w) is own for u in self.backward.nodes for w in writes(u)):
            return
        at = n.next
        while at.op == "placeholder":
            at = at.next
        self.changed = True
        with self.forward.inserting_before(at):
            old = add_call(at, aten.clone.default, (n,), {})
        if UNCHECKED in n.meta:
            old.meta[UNCHECKED] = n.meta[UNCHECKED]
        own.replace_all_uses_with(*self._save(n, own, [old]))
        self.backward.erase_node(own)

    def save_input(self, n: Node) -> None:
        """Save the input that a value is a view of, by itself alone, in the value's place."""
        own, chain, at = self.inputs.get(n.name), list[Node](), n
        while len(at.all_input_nodes) == 1:
            if at.target is not operator.getitem and not is_view_op(at.target):
                return
            chain.append(at)
            (at,) = at.all_input_nodes
        given = at is not n and at.op == "placeholder" and at not in self.written
        if own is None or not given or not same_memory(n.meta["val"], at.meta["val"]):
            return
        self.changed = True
        self._save(n, own, [] if at in self.saved else [at])
        known = self.inputs[at.name]
        first = next(a for a in self.backward.nodes if a.op != "placeholder")
        with self.backward.inserting_before(first):
            for c in reversed(chain):
                known = self.backward.node_copy(c, dict.fromkeys(c.all_input_nodes, known).get)
        own.replace_all_uses_with(known)
        self.backward.erase_node(own)

    def leave_out(self, n: Node, made: Node) -> None:
        """Save what a log-softmax is made of in its place, where that is no more.

        n: what is saved.  made: the call that ``n`` is, or is detached from.
        """
        x, dim, own = made.args[0], made.args[1], self.inputs.get(n.name)
        assert isinstance(x, Node)
        found = next(filter(None, (self._sources(made, a) for a in (self._made_of(x), []))), None)
        powers = own is not None and 2 * _row_bytes(made) < _bytes(made) and _reads_powers(own)
        if own is None or not self._passes(made, n) or not (found or powers):
            return
        again, sources = found or ([], [])
        self.changed = True
        with self.forward.inserting_before(made):
            wide = _wide(made, x)
            top = add_call(made, aten.amax.default, (wide, [dim], True), {})
            low = add_call(made, aten.sub.Tensor, (wide, top), {})
            parts = add_call(made, aten.exp.default, (low,), {})
            total = add_call(made, aten.sum.dim_IntList, (parts, [dim], True), {})
            logs = add_call(made, aten.log.default, (total,), {})
            value = _laid_out(made, add_call(made, aten.sub.Tensor, (low, logs), {}))
            if found is None:
                share = add_call(made, aten.div.Tensor, (parts, total), {})
                sources = [_laid_out(made, share)]
        known = {a: self.inputs[a.name] for a in sources if a in self.saved}
        rows = [top, logs] if found else []
        fresh = [a for a in (*sources, *rows) if a not in known]
        with self.forward.inserting_before(self.output):
            for shown in self._shown_too(fresh):
                copy = add_call(self.output, aten.clone.default, (shown,), {})
                self.output.replace_input_with(shown, copy)
        known |= zip(fresh, self._save(n, own, fresh), strict=True)
        made.replace_all_uses_with(value)
        self.forward.erase_node(made)
        first = next(a for a in self.backward.nodes if a.op != "placeholder")
        with self.backward.inserting_before(first):
            if found:
                for c in again:
                    known[c] = self.backward.node_copy(c, known.__getitem__)
                low = add_call(own, aten.sub.Tensor, (_wide(own, known[x]), known[top]), {})
                value = add_call(own, aten.sub.Tensor, (low, known[logs]), {})
            else:
                value = add_call(own, aten.log.default, (known[sources[0]],), {})
            own.replace_all_uses_with(_laid_out(own, value))
        self.backward.erase_node(own)

    def leave_out_norm(self, n: Node) -> None:
        """Compute anew, to the same bits, what a norm is made into element by element.

        That is where what it is of is saved besides, and all that reads it is of that kind.  Its
        weight and bias are inputs.
        """
        again, at, own = list[Node](), _attached(n), self.inputs.get(n.name)
        while len(again) < MOST and _is_pointwise(at) and len(at.all_input_nodes) == 1:
            again.append(at)
            (at,) = at.all_input_nodes
        norm: Any = at.args[0] if at.target is operator.getitem and at.args[1] == 0 else None
        if own is None or norm is None or norm.target not in NORMS or not _is_of_itself(norm):
            return
        if any(c in self.shown for c in (*again, at)):
            return
        of: dict[Any, Node] = {u.args[1]: u for u in norm.users}
        results, affine = NORMS[norm.target]
        statistics = [of.get(k) for k in range(1, results)]
        x, read = norm.args[0], [norm.args[0], *statistics, *norm.args[affine]]
        known = {_attached(a): self.inputs[a.name] for a in self.saved if isinstance(a, Node)}
        fresh = [a for a in read[results:] if a is not None and a not in known]
        wide = torch.float32 if x.meta["val"].dtype.itemsize == 2 else x.meta["val"].dtype
        kept = all(a in known for a in read[:results]) and self._are_little(fresh, n)
        exact = all(a is not None and a.meta["val"].dtype is wide for a in statistics)
        if not kept or not exact or not all(map(_is_pointwise, own.users)):
            return
        if not all(u.op == "output" or _is_pointwise(u) for c in (*again, at) for u in c.users):
            return
        self.changed = True
        known |= zip(fresh, self._save(n, own, fresh), strict=True)
        first = next(a for a in self.backward.nodes if a.op != "placeholder")
        with self.backward.inserting_before(first):
            made = _normed(own, norm, [None if a is None else known[a] for a in read])
            for c in reversed(again):
                made = self.backward.node_copy(c, dict.fromkeys(c.all_input_nodes, made).get)
            own.replace_all_uses_with(made)
        self.backward.erase_node(own)

    def _are_little(self, given: Sequence[Node], beside: Node) -> bool:
        """Whether inputs that nobody writes may be saved in the place of one value."""
        inputs = all(a.op == "placeholder" and a not in self.written for a in given)
        return inputs and 2 * sum(map(_bytes, given)) < _bytes(beside)

    def save_narrow(self, n: Node) -> None:
        """Save what a value was before it got a wider type, where nobody has it stored as it is.

        An argument is copied: whoever gave it may write it before the backward pass.
        """
        own, narrow = self.inputs.get(n.name), n.args[0]
        assert isinstance(narrow, Node)
        if own is None or self._shown_too([n]) or not self._passes(n, n):
            return
        if not all(_is_pointwise(u) or u.target in (*PASSING, *COPIES) for u in own.users):
            return
        if not same_dims(narrow.meta["val"].stride(), n.meta["val"].stride()):
            return
        self.changed = True
        if narrow not in self.saved and not self._is_made(narrow):
            with self.forward.inserting_before(n):
                narrow = add_call(n, aten.clone.default, (narrow,), {})
        fresh = [] if narrow in self.saved else [narrow]
        for made in self._save(n, own, fresh):
            self.inputs[narrow.name] = made
        first = next(a for a in self.backward.nodes if a.op != "placeholder")
        with self.backward.inserting_before(first):
            known = self.inputs[narrow.name]
            wide = add_call(own, aten._to_copy.default, (known,), {"dtype": n.meta["val"].dtype})
        own.replace_all_uses_with(wide)
        self.backward.erase_node(own)

    def _is_made(self, n: Node) -> bool:
        """Whether a value lies in memory of its own, which no result shares."""
        own = n.op == "call_function" and owner(n) is n and n not in self.shown
        return own and not self._shown_too([n])

    def widen(self, n: Node) -> None:
        """Let rows of a product begin at whole 16 bytes, unless results show how it lies."""
        val, own = n.meta["val"], self.inputs.get(n.name)
        fast = val.device.type == "cuda" and val.dtype in (torch.float16, torch.bfloat16)
        plain = fast and not val._has_symbolic_sizes_strides and val.is_contiguous()
        if own is None or not plain or min(val.shape[-2:]) < SHORT:
            return
        columns = val.shape[-1]
        wide = padded_size(columns)
        if wide == columns:
            return
        lies: Any = self.output.args[0]
        shown = [k for k, a in enumerate(lies) if isinstance(a, Node) and owner(a) is n]
        if len(shown) > 1 or shown[0] < self.results:
            return
        strides = (*(s // columns * wide for s in val.stride()[:-1]), 1)
        with fake_mode(self.forward):
            laid = torch.empty_strided(val.shape, strides, dtype=val.dtype, device=val.device)
        n.meta[EAGER_VAL] = laid
        own.meta = own.meta | {"val": laid}

    def _made_of(self, x: Node) -> list[Node]:
        """The calls that compute a value from what is saved or is no more made of anything."""
        found, todo = dict[Node, None](), [x]
        while todo:
            n = todo.pop()
            if n not in found and n not in self.saved and _is_cheap(n, x):
                found[n] = None
                todo += n.all_input_nodes
        return [n for n in self.forward.nodes if n in found]

    def _sources(self, n: Node, again: list[Node]) -> tuple[list[Node], list[Node]] | None:
        """The calls to make again, and what is saved for them; None where that is more.

        Where a result shares its memory the caller is to have a copy of that: PyTorch would not see
        that somebody writes it.
        """
        read = dict.fromkeys(a for c in (*again, n) for a in c.all_input_nodes if a not in again)
        fresh = [a for a in read if a not in self.saved]
        given = any(not isinstance(a.meta["val"], Tensor) or a.op == "placeholder" for a in fresh)
        shown = self._shown_too(fresh)
        given = given or len(shown) > 1 or not all(map(self._may_be_copied, shown))
        new = filter(self._is_hidden, fresh)
        less = sum(map(_bytes, new)) + _row_bytes(n) < GROWTH * _bytes(n) and len(again) <= MOST
        return (again, [*read]) if less and not given else None

    def _is_hidden(self, n: Node) -> bool:
        """Whether no result is this value, with the memory that it was made in."""
        return n not in self.shown or owner(n) is not n

    def _shown_too(self, values: Sequence[Node]) -> list[Node]:
        """The results that share memory with values which are none themselves."""
        owners = {*map(owner, filter(self._is_hidden, values))}
        return [*dict.fromkeys(s for s in self.shown if owner(s) in owners)]

    def _may_be_copied(self, n: Node) -> bool:
        """Whether a result is a view that may as well be a copy, which lies as it does."""
        known = owner(n) is not n and owner(n).op != "placeholder" and n not in self.saved
        return known and bool(n.meta["val"].is_contiguous())

    def _passes(self, n: Node, saved: Node) -> bool:
        """Whether all readers of a value, and of views of it, take it as it is computed.

        saved: the one that is no more.
        """
        for u in n.users:
            if u.op == "output":
                passes = n is saved and n not in self.output.args[0][: self.results]
            elif is_view_op(u.target):
                passes = self._passes(u, saved)
            else:
                passes = u.target in (*PASSING, *COPIES) or _is_pointwise(u)
            if not passes:
                return False
        return True

    def _save(self, n: Node, own: Node, fresh: Sequence[Node]) -> list[Node]:
        """Save values in the place of one, whose input is ``own``; the inputs of those."""
        results: Any = self.output.args[0]
        described = self.output.meta.get(DESCRIPTIONS)
        at = results.index(n, self.results)
        self.output.args = ((*results[:at], *fresh, *results[at + 1 :]),)
        if described is not None:
            described = [*described[:at], *(described[at] for _ in fresh), *described[at + 1 :]]
            self.output.meta[DESCRIPTIONS] = described
        with self.backward.inserting_before(own):
            made = [self.backward.placeholder(a.name) for a in fresh]
        for a, p in zip(fresh, made, strict=True):
            p.meta = dict(a.meta)
            self.inputs[a.name] = p
        return made


def _wide(n: Node, x: Node) -> Node:
    """``x`` in the type that sums for ``n`` have."""
    found = x.meta["val"].dtype
    wide = torch.float32 if found.itemsize == 2 else found
    return x if found is wide else add_call(n, aten._to_copy.default, (x,), {"dtype": wide})


def _laid_out(n: Node, found: Node) -> Node:
    """A value in the type of ``n``, and as that lies: each row whole."""
    val = n.meta["val"]
    if not same_dims(found.meta["val"].stride(), val.stride()):
        rows = {"memory_format": torch.contiguous_format}
        found = add_call(n, aten.clone.default, (found,), rows)
    narrow = found.meta["val"].dtype is not val.dtype
    return add_call(n, aten._to_copy.default, (found,), {"dtype": val.dtype}) if narrow else found


def _reads_powers(own: Node) -> bool:
    """Whether all that reads a log-softmax in the backward graph wants exponentials, on a CPU.

    Of few elements they cost less than whatever else a call does.
    """
    val, of = own.meta["val"], aten._log_softmax_backward_data.default
    wide = val.device.type == "cpu" and val.dtype in (torch.float32, torch.float64)
    detached = all(map(_reads_powers, (u for u in own.users if u.target is aten.detach.default)))
    users = [u for u in own.users if u.target is not aten.detach.default]
    many = math.prod(_sizes(own)) >= ELEMENTS["cpu"]
    read = all(u.target is of and u.args[0] is not own for u in users)
    return many and wide and detached and read


def _normed(n: Node, norm: Any, known: Sequence[Node | None]) -> Node:
    """A norm from its argument, its statistics, and its weight and bias."""
    results, _ = NORMS[norm.target]
    x, *others = known
    assert x is not None
    if norm.target in CHANNELS:
        others = [_by_channel(n, a, x) for a in others]
    statistics, affine = others[: results - 1], others[results - 1 :]
    made = _wide(n, x)
    if len(statistics) > 1:
        made = add_call(n, aten.sub.Tensor, (made, statistics[0]), {})
    made = add_call(n, aten.mul.Tensor, (made, statistics[-1]), {})
    for a, op in zip(affine, (aten.mul.Tensor, aten.add.Tensor), strict=False):
        made = made if a is None else add_call(n, op, (made, _wide(n, a)), {})
    dtype = norm.meta["val"][0].dtype
    narrow = made.meta["val"].dtype is not dtype
    return add_call(n, aten._to_copy.default, (made,), {"dtype": dtype}) if narrow else made


def _by_channel(n: Node, a: Node | None, x: Node) -> Node | None:
    """What each channel has, or each group of them in each image, for the elements of ``x``."""
    if a is None:
        return None
    channels, by_group = x.meta["val"].shape[1], a.meta["val"].ndim == 2
    if by_group and channels != a.meta["val"].shape[1]:
        size = [-1, -1, channels // a.meta["val"].shape[1]]
        a = add_call(n, aten.unsqueeze.default, (a, 2), {})
        a = add_call(n, aten.expand.default, (a, size), {})
        a = add_call(n, aten.clone.default, (a,), {"memory_format": torch.contiguous_format})
        a = add_call(n, aten.view.default, (a, [-1, channels]), {})
    for _ in x.meta["val"].shape[2:]:
        a = add_call(n, aten.unsqueeze.default, (a, -1), {})
    return a


def _is_of_itself(norm: Any) -> bool:
    """Whether a norm's statistics are its argument's own; those of groups of a known size."""
    ours = not any(a is False for a in norm.args)
    return ours and (norm.target in ROWS or isinstance(norm.args[0].meta["val"].shape[1], int))


def _attached(n: Node) -> Node:
    """What a value is that is detached, or is not."""
    while n.target is aten.detach.default:
        n = n.args[0]  # type: ignore[assignment]
    return n


def _is_widened(n: Node) -> bool:
    """Whether a value is another's in a type that has all values of that one's, on its device."""
    if n.target is not aten._to_copy.default or not isinstance(n.args[0], Node):
        return False
    val, of = n.meta["val"], n.args[0].meta["val"]
    floating = val.is_floating_point() and of.is_floating_point()
    wider = floating and torch.promote_types(val.dtype, of.dtype) is val.dtype is not of.dtype
    return wider and val.device == of.device


def _is_pointwise(n: Node) -> bool:
    tags = getattr(n.target, "tags", ())
    return torch.Tag.pointwise in tags and not is_random(n.target)


def _is_cheap(n: Node, like: Node) -> bool:
    """Whether a call that moves or computes each element by itself, on the device of ``like``."""
    known = is_view_op(n.target) or n.target in COPIES or _is_pointwise(n)
    val = n.meta.get("val")
    return known and isinstance(val, Tensor) and val.device == like.meta["val"].device


def _bytes(n: Node) -> int:
    """Of a tensor; open sizes are those that they were traced with."""
    return math.prod(_sizes(n)) * int(n.meta["val"].itemsize)


def _row_bytes(n: Node) -> int:
    """Of two numbers for each row of a log-softmax, in the type of sums."""
    sizes, dim = _sizes(n) or [1], n.args[1]
    assert isinstance(dim, int)
    sizes[dim] = 2
    return math.prod(sizes) * max(4, int(n.meta["val"].itemsize))


def _sizes(n: Node) -> list[int]:
    shape = n.meta["val"].shape
    return [s.node.hint or 1 if isinstance(s, torch.SymInt) else s for s in shape]
