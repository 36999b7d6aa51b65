"""From a plan to its loop tree: every value in the outermost loop that binds all it depends on.

Placement is by demand.  A scope is a block being filled and the loop variable it binds; a node
goes to the innermost scope that binds something it depends on, which is before the loops inside,
because a loop joins its parent's block only once its body is complete.  A reduction becomes a loop
nest in the scope of its free variables, together with all others of the same level and axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from litz.index import Expr, Symbol, product
from litz.ir.body import Const, Index, Load, Masked, Node, Op, Reduce, Store, substitute, walk
from litz.ir.dtype import BOOL, I64
from litz.ir.ops import op as op_row
from litz.kernel.plan import KernelPlan
from litz.targets.cpp import tree
from litz.targets.cpp.prepare import Space, extent, int_value, prepare, roots
from litz.targets.cpp.tree import Acc, Kernel, Ref, Stmt

CHUNK = 1024  # additions into one accumulator before it is added to an outer one


class Scope:
    """A block being filled.  ``mask``: loads here happen only in lanes where it holds."""

    __slots__ = ("body", "depth", "env", "guarded", "guards", "mask", "parent", "var")

    def __init__(
        self,
        parent: Scope | None,
        body: list[Stmt],
        var: Expr | None = None,
        guarded: bool = False,
        mask: Ref | None = None,
    ) -> None:
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.body = body
        self.var = var
        self.env: dict[Node, Ref] = {}
        self.guards: dict[Node, Scope] = {}
        self.guarded: bool = guarded or (parent is not None and parent.guarded)
        self.mask: Ref | None = mask or (parent.mask if parent is not None else None)

    def at(self, depth: int) -> Scope:
        s = self
        while s.depth > depth:
            assert s.parent is not None
            s = s.parent
        return s

    def find(self, n: Node) -> tuple[Ref, int] | None:
        s: Scope | None = self
        while s is not None:
            ref = s.env.get(n)
            if ref is not None:
                return ref, s.depth
            s = s.parent
        return None

    def binds(self, v: Expr) -> int | None:
        """Depth of the scope that binds ``v``; a size is bound at the root."""
        s: Scope | None = self
        while s is not None:
            if s.var is v:
                return s.depth
            s = s.parent
        return 0 if isinstance(v, Symbol) else None


def is_guarded_kind(n: Node) -> bool:
    """Whether ``n`` itself must not run where a mask around it does not hold."""
    return isinstance(n, Load) or (isinstance(n, Op) and n.name == "check_index")


class Builder:
    """Fills one kernel's tree."""

    def __init__(self, plan: KernelPlan, name: str, lanes: int, space: Space) -> None:
        self.plan = plan
        self.space = space
        self.lane = space.lane
        self.lanes = lanes
        self.kernel = Kernel(plan, name, lanes, space.lane, space.units)
        self.names = 0
        self.fresh = 0
        self.reads: dict[Node, bool] = {}
        self.levels: dict[Node, int] = {}
        self._analyse(roots(space.stores))
        self.open = self._open_reduces()

    # --- facts about nodes --------------------------------------------------------------------

    def _analyse(self, nodes: Sequence[Node]) -> None:
        for n in walk(nodes):
            self.reads[n] = is_guarded_kind(n) or any(self.reads[a] for a in n.args)
            level = max((self.levels[a] for a in n.args), default=-1)
            self.levels[n] = level + 1 if isinstance(n, Reduce) else level
            if isinstance(n, Op) and n.name == "check_index":
                self.kernel.checks = True

    def _open_reduces(self) -> list[Reduce]:
        """Reductions that some store needs whatever masks say, in order."""
        out: list[Reduce] = []
        seen: set[Node] = set()
        stack = list(reversed(roots(self.space.stores)))
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if isinstance(n, Reduce):
                out.append(n)
            args = (n.args[0], n.args[2]) if isinstance(n, Masked) else n.args
            stack.extend(reversed(args))
        return out

    def name(self, prefix: str = "t") -> str:
        self.names += 1
        return f"{prefix}{self.names - 1}"

    # --- placement ----------------------------------------------------------------------------

    def place(self, root: Node, scope: Scope) -> Ref:
        """Make ``root`` available in ``scope`` and say how it is called there."""
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            n, ready = stack.pop()
            if isinstance(n, Const) or scope.find(n) is not None:
                continue
            if ready or isinstance(n, (Index, Reduce)):
                self._emit(n, scope)
                continue
            stack.append((n, True))
            args = n.args
            if isinstance(n, Masked) and self.reads[n.args[1]]:
                args = (n.args[0], n.args[2])
            stack.extend((a, False) for a in reversed(args))
        return self.ref(root, scope)[0]

    def ref(self, n: Node, scope: Scope) -> tuple[Ref, int]:
        if isinstance(n, Const):
            from litz.targets.cpp.values import literal

            return Ref(literal(n), n.dtype), 0
        found = scope.find(n)
        assert found is not None
        return found

    def _bound_depth(self, own: Sequence[Expr], scope: Scope) -> int:
        depth = 0
        for v in own:
            d = scope.binds(v)
            if d is None:
                raise ValueError(f"{self.kernel.name}: {v} is used outside of its loop")
            depth = max(depth, d)
        return depth

    def _emit(self, n: Node, scope: Scope) -> None:
        if isinstance(n, Reduce):
            self._emit_reduce(n, scope)
            return
        if isinstance(n, Masked) and self.reads[n.args[1]]:
            self._emit_masked(n, scope)
            return
        args = [self.ref(a, scope) for a in n.args]
        depth = max((d for _, d in args), default=0)
        vec = any(r.vec for r, _ in args)
        if isinstance(n, (Load, Index)):
            own = n.vars if isinstance(n, Index) else _own_vars(n)
            depth = max(depth, self._bound_depth(own, scope))
            vec = vec or (self.lane is not None and self.lane in own)
        mask = None
        if is_guarded_kind(n) and scope.guarded:
            depth = max(depth, _guard_depth(scope))
            mask = scope.mask
            vec = vec or mask is not None
        home = scope.at(depth)
        ref = Ref(self.name(), n.dtype, vec)
        home.body.append(tree.Let(ref.text, n, tuple(r for r, _ in args), vec, mask))
        home.env[n] = ref

    def _emit_masked(self, n: Masked, scope: Scope) -> None:
        """A masked region that loads: a branch where the condition is one, else masked loads."""
        cond, cond_depth = self.ref(n.args[0], scope)
        other, other_depth = self.ref(n.args[2], scope)
        depth = max(cond_depth, other_depth, self._bound_depth(n.vars, scope))
        if scope.guarded:
            depth = max(depth, _guard_depth(scope))
        home = scope.at(depth)
        if cond.vec:
            guard = home.guards.get(n.args[0])
            if guard is None:
                mask = self._both(scope.mask, cond, home)
                guard = Scope(home, home.body, guarded=True, mask=mask)
                home.guards[n.args[0]] = guard
            value = self.place(n.args[1], guard)
            ref = Ref(self.name(), n.dtype, True)
            home.body.append(tree.Let(ref.text, n, (cond, value, other), True))
        else:
            body: list[Stmt] = []
            value = self.place(n.args[1], Scope(home, body, guarded=True))
            ref = Ref(self.name(), n.dtype, value.vec or other.vec)
            home.body.append(tree.Branch(ref.text, n.dtype, ref.vec, cond, body, value, other))
        home.env[n] = ref

    def _both(self, outer: Ref | None, cond: Ref, home: Scope) -> Ref:
        if outer is None:
            return cond
        ref = Ref(self.name(), BOOL, True)
        home.body.append(tree.Let(ref.text, _AND, (outer, cond), True))
        return ref

    # --- reductions -----------------------------------------------------------------------------

    def _emit_reduce(self, n: Reduce, scope: Scope) -> None:
        depth = self._bound_depth(n.vars, scope)
        if scope.guarded and self.reads[n]:
            depth = max(depth, _guard_depth(scope))
        home = scope.at(depth)
        group = [n]
        if not home.guarded:
            group = [r for r in self.open if r is n or self._joins(r, n, home)] or [n]
            if n not in group:
                group = [n]
        self._nest(group, home)

    def _joins(self, r: Reduce, n: Reduce, home: Scope) -> bool:
        """Whether ``r`` runs in the same loops as ``n``."""
        if self.levels[r] != self.levels[n] or set(r.axes) != set(n.axes):
            return False
        depths = [home.binds(v) for v in r.vars]
        if any(d is None for d in depths) or home.find(r) is not None:
            return False
        return max((d for d in depths if d is not None), default=0) == home.depth

    def _nest(self, group: list[Reduce], home: Scope) -> None:
        bodies = group
        axes = [v for v in self.space.reduced if v in group[0].axes]
        if any(home.binds(v) is not None for v in axes):
            bodies, axes = self._renamed(group, axes)
        loops: list[Scope] = []
        accs: list[Acc] = []
        scope = home
        for v in axes:
            scope = Scope(scope, [], v)
            loops.append(scope)
        cost_before = self._op_cost(loops)
        for r in bodies:
            value = self.place(r.args[0], scope)
            vec = value.vec or self.lane in axes
            acc = Acc(self.name("a"), tree.acc_kind(r.kind), r.args[0].dtype, vec)
            acc.folded = self.lane in axes
            if r.kind in ("argmax", "argmin"):
                acc.position = _position(r)
            accs.append(acc)
            scope.body.append(tree.Update(acc, value))
        cost = self._op_cost(loops) - cost_before
        home.body.extend(tree.Clear(a) for a in accs)
        self._close(loops, home, accs, cost)
        for r, acc in zip(group, accs, strict=True):
            ref = Ref(self.name(), r.dtype, acc.vec and not acc.folded)
            home.body.append(tree.Finish(ref.text, acc))
            home.env[r] = ref

    def _renamed(self, group: list[Reduce], axes: list[Expr]) -> tuple[list[Reduce], list[Expr]]:
        """The group with fresh variables, for a nest inside loops over its own axes."""
        from litz.index import var

        mapping: dict[Expr, Expr] = {}
        for v in axes:
            self.fresh += 1
            mapping[v] = var(f"{v}_{self.fresh}", extent(v))
        out: list[Reduce] = []
        for r in group:
            # The value is rewritten below the reduction: its axes are bound by it.
            new = substitute(r, mapping)
            assert isinstance(new, Reduce)
            out.append(new)
        self._analyse(out)
        return out, [mapping[v] for v in axes]

    def _op_cost(self, loops: Sequence[Scope]) -> int:
        total = 0
        for scope in loops[-1:]:
            for s in scope.body:
                if isinstance(s, tree.Let) and isinstance(s.node, Op):
                    total += 1 if s.node.name == "check_index" else op_row(s.node.name).cost
        return total

    def _close(self, loops: list[Scope], home: Scope, accs: list[Acc], cost: int) -> None:
        """Attach the loops, innermost first, each to the block of the one around it."""
        for scope in reversed(loops):
            assert scope.parent is not None and scope.var is not None
            v = scope.var
            stmt: Stmt
            if v is self.lane:
                unroll = self._unroll(v, cost) if scope is loops[-1] and accs else 1
                for a in accs:
                    a.copies = unroll
                stmt = tree.Lanes(
                    v, extent(v), scope.body, unroll=unroll, exact=self._exact(v, unroll)
                )
            else:
                stmt = tree.For(v, extent(v), scope.body)
            scope.parent.body.append(stmt)

    def _unroll(self, v: Expr, cost: int) -> int:
        unroll = 4 if cost <= 8 else 2 if cost <= 20 else 1
        size = extent(v)
        if size.is_const:
            vectors = int_value(size) // self.lanes
            while unroll > 1 and vectors < unroll:
                unroll //= 2
        return unroll

    def _exact(self, v: Expr, unroll: int) -> bool:
        size = extent(v)
        return size.is_const and int_value(size) % (self.lanes * unroll) == 0

    # --- the whole kernel -------------------------------------------------------------------------

    def build(self) -> Kernel:
        space = self.space
        root = Scope(None, self.kernel.body)
        chain: list[tuple[Scope, Stmt | None]] = []
        scope = root
        lane_unit = self.lane is not None and self.lane in space.units
        for v in space.units:
            if v is self.lane:
                continue
            inner = Scope(scope, [], v)
            chain.append((scope, tree.For(v, extent(v), inner.body, part=True)))
            scope = inner
        if lane_unit and self.lane is not None:
            inner = Scope(scope, [])
            chain.append((scope, tree.Range(self.lane, extent(self.lane), inner.body)))
            scope = inner
        for v in space.serial:
            if v is self.lane:
                continue
            inner = Scope(scope, [], v)
            chain.append((scope, tree.For(v, extent(v), inner.body)))
            scope = inner
        if self.lane is not None and (lane_unit or self.lane in space.serial):
            inner = Scope(scope, [], self.lane)
            lanes = tree.Lanes(
                self.lane,
                extent(self.lane),
                inner.body,
                exact=self._exact(self.lane, 1),
                ranged=lane_unit,
            )
            chain.append((scope, lanes))
            scope = inner
        self._point(scope)
        for outer, stmt in reversed(chain):
            assert stmt is not None
            outer.body.append(stmt)
        self.kernel.work = self._work()
        return self.kernel

    def _point(self, scope: Scope) -> None:
        """All that one point of the parallel dims computes and stores."""
        reduced = self.space.reduced
        full = [s for s in self.space.stores if _loops_of(s, reduced)]
        flat = [s for s in self.space.stores if not _loops_of(s, reduced)]
        puts = [self._put(s, scope) for s in flat]
        groups: dict[tuple[Expr, ...], list[Store]] = {}
        for s in full:
            groups.setdefault(_loops_of(s, reduced), []).append(s)
        for dims, stores in _ordered(groups):
            inner = scope
            loops: list[Scope] = []
            for v in dims:
                inner = Scope(inner, [], v)
                loops.append(inner)
            late = [self._put(s, inner) for s in stores]
            inner.body.extend(late)
            self._close(loops, scope, [], 0)
        scope.body.extend(puts)

    def _put(self, s: Store, scope: Scope) -> tree.Put:
        value = self.place(s.value, scope)
        indirect = tuple(self.place(v, scope) for _, v in s.indirect)
        mask = None if s.mask is None else self.place(s.mask, scope)
        return tree.Put(s, value, indirect, mask)

    def _work(self) -> Expr:
        ops = sum(
            op_row(n.name).cost
            for n in walk(roots(self.space.stores))
            if isinstance(n, Op) and n.name != "check_index"
        )
        accesses = sum(self.reads[n] for n in self.reads if isinstance(n, Load))
        cost = ops + 2 * (accesses + len(self.space.stores)) + 1
        points = product(extent(d.var) for d in self.plan.dims)
        return points * cost


_AND = Op.__new__(Op)
_AND.name, _AND.param, _AND.dtype, _AND.args, _AND.vars = "and_", None, BOOL, (), ()


def _own_vars(n: Load) -> tuple[Expr, ...]:
    bound = [s for s, _ in n.indirect]
    return tuple(v for v in n.index.free if v not in bound)


def _guard_depth(scope: Scope) -> int:
    """Depth of the outermost guarded scope around."""
    s = scope
    while s.parent is not None and s.parent.guarded:
        s = s.parent
    return s.depth


def _position(r: Reduce) -> Expr:
    pos: Expr | None = None
    for v in r.axes:
        pos = v if pos is None else pos * extent(v) + v
    assert pos is not None
    return pos


def _loops_of(s: Store, reduced: Sequence[Expr]) -> tuple[Expr, ...]:
    """The reduced dims that a store runs over: none if it runs once a parallel point."""
    used = dict.fromkeys(s.index.free)
    for n in s.roots():
        used.update(dict.fromkeys(n.vars))
    dims = tuple(v for v in reduced if v in used)
    return tuple(reduced) if dims and s.mode != "set" else dims


def _ordered(
    groups: dict[tuple[Expr, ...], list[Store]],
) -> list[tuple[tuple[Expr, ...], list[Store]]]:
    """Groups so that no group loads what an earlier one has overwritten."""
    left = list(groups.items())
    out: list[tuple[tuple[Expr, ...], list[Store]]] = []
    while left:
        for i, (_, stores) in enumerate(left):
            written = {s.buffer for s in stores}
            others = [s for j, (_, g) in enumerate(left) if j != i for s in g]
            read = {n.buffer for n in walk(roots(others)) if isinstance(n, Load)}
            if not written & read:
                out.append(left.pop(i))
                break
        else:
            raise ValueError("stores over different dims overwrite each other's loads")
    return out


def build(plan: KernelPlan, name: str, lanes: int) -> Kernel:
    """The loop tree of ``plan``.  lanes: the width of every vector."""
    return Builder(plan, name, lanes, prepare(plan)).build()


__all__ = ["Builder", "Scope", "build"]
_ = I64
