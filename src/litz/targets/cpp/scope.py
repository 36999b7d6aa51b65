"""Scopes, and the placement of nodes in them.

A scope is a block being filled and the loop variable it binds.  A node goes to the innermost scope
that binds something it depends on; that is before the loops inside, because a loop joins its
parent's block only once its body is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litz.index import Expr, Symbol, render
from litz.ir.body import Const, Index, Load, Masked, Node, Op, Reduce, Scan, Store, walk
from litz.ir.body import const as const_node
from litz.ir.body import op as op_node
from litz.ir.dtype import BF16, BOOL
from litz.kernel.lanes.access import uniform
from litz.kernel.nodes import as_index, is_check, is_guarded_kind, roots
from litz.targets.cpp import tree
from litz.targets.cpp.tree import Ref, Stmt
from litz.targets.cpp.values import DIALECT, literal


class Scope:
    """A block being filled.  ``mask``: loads here happen only in lanes where it holds.

    own: nodes that mean something else here than outside: a reduction over a part of its range.
    outside: where the loops of the nest begin that this is in.
    """

    __slots__ = (
        "body", "depth", "env", "guard", "guards", "mask", "outside", "own", "parent", "var",
    )  # fmt: skip

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
        self.own: frozenset[Node] = frozenset()
        self.outside: Scope | None = None
        # Depth of the innermost masked region around: what loads may not be hoisted out of it.
        self.guard: int | None = self.depth if guarded else None if parent is None else parent.guard
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
            if n in s.own:
                return None
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


class Nest:
    """Loops one within the other, which join their blocks once the innermost is complete."""

    def __init__(self, body: list[Stmt]) -> None:
        self.scope = Scope(None, body)
        self._chain: list[tuple[Scope, Stmt]] = []

    def enter(self, loop: Callable[[list[Stmt]], Stmt], var: Expr | None = None) -> None:
        """Go on within a loop.  var: what it binds."""
        inner = Scope(self.scope, [], var)
        self.close_with(loop(inner.body))
        self.scope = inner

    def close_with(self, stmt: Stmt) -> None:
        """Have a statement at the end of the block that is being filled."""
        self._chain.append((self.scope, stmt))

    @property
    def innermost(self) -> Stmt | None:
        """The loop that ends the last of the blocks, if there is one."""
        return self._chain[-1][1] if self._chain else None

    def close(self) -> None:
        for outer, stmt in reversed(self._chain):
            outer.body.append(stmt)


_AND = op_node("and_", const_node(BOOL, True), const_node(BOOL, False))


def own_vars(n: Load) -> tuple[Expr, ...]:
    """The variables of a load's index, less those that data stands for."""
    bound = [s for s, _ in n.indirect]
    return tuple(v for v in n.index.free if v not in bound)


class Placer:
    """Places nodes.  Where reductions go is left to a subclass."""

    def __init__(self, name: str, lane: Expr | None, lanes: int, stores: Sequence[Store]) -> None:
        self.lanes = lanes
        self.kernel_name = name
        self.lane = lane
        self.names = 0
        self.checks = False
        self.reads: dict[Node, bool] = {}  # whether a node loads, or checks an index
        self.levels: dict[Node, int] = {}  # reductions in the longest chain below, less one
        self.analyse(roots(stores))
        self.branches: frozenset[Node] = frozenset()  # masked regions that vectors may skip
        self.open: list[Reduce] = []  # reductions that may run before what needs them
        self.unordered: dict[Node, str] = {}  # values whose lanes lie in whatever order, and how

    def analyse(self, nodes: Sequence[Node]) -> None:
        for n in walk(nodes):
            self.reads[n] = is_guarded_kind(n) or any(self.reads[a] for a in n.args)
            level = max((self.levels[a] for a in n.args), default=-1)
            self.levels[n] = level + 1 if isinstance(n, Reduce) else level
            self.checks |= is_check(n)

    def name(self, prefix: str = "t") -> str:
        self.names += 1
        return f"{prefix}{self.names - 1}"

    def place(self, root: Node, scope: Scope) -> Ref:
        """Make ``root`` available in ``scope`` and say how it is called there."""
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            n, ready = stack.pop()
            if isinstance(n, Const) or scope.find(n) is not None:
                continue
            if isinstance(n, Reduce):
                self.emit_reduce(n, scope)
            elif ready or isinstance(n, Index):
                self._emit(n, scope)
            elif isinstance(n, Op) and self.decided(n, scope):
                continue
            elif not self.early(n, scope):
                stack.append((n, True))
                args = n.args
                if isinstance(n, Masked) and self.reads[n.args[1]]:
                    args = (n.args[0], n.args[2])
                stack.extend((a, False) for a in reversed(args))
        return self.ref(root, scope)[0]

    def decided(self, n: Op, scope: Scope) -> bool:
        """Compute a comparison once a vector if all lanes agree: what it masks is a branch."""
        lane = self.lane
        if lane is None or lane not in n.vars or not uniform(n, lane, self.lanes):
            return False
        # Index expressions are spelled for the first lane.
        args = tuple(Ref(f"litz::i64({render(as_index(a), DIALECT)})", a.dtype) for a in n.args)
        home = scope.at(self.bound_depth(n.vars, scope))
        ref = Ref(self.name(), n.dtype)
        home.body.append(tree.Let(ref.text, n, args, False))
        home.env[n] = ref
        return True

    def emit_reduce(self, n: Reduce, scope: Scope) -> None:
        raise NotImplementedError

    def emit_scan(self, n: Scan, scope: Scope) -> None:
        raise NotImplementedError

    def hold(
        self, n: Scan, outside: Scope, home: Scope, values: Sequence[Ref]
    ) -> tuple[tuple[Ref, ...], list[Stmt], list[Stmt]]:
        """The parts of a scan's state, and what stands at ``home`` before and after each step."""
        raise NotImplementedError

    def early(self, n: Node, scope: Scope) -> bool:
        """Whether ``n`` has been computed before the loops around ``scope``."""
        return False

    def ref(self, n: Node, scope: Scope) -> tuple[Ref, int]:
        """A placed node's name, and the depth at which it is known."""
        if isinstance(n, Const):
            return Ref(literal(n), n.dtype), 0
        found = scope.find(n)
        assert found is not None
        return found

    def bound_depth(self, own: Sequence[Expr], scope: Scope) -> int:
        """The outermost depth at which all of ``own`` are bound."""
        depth = 0
        for v in own:
            d = scope.binds(v)
            if d is None:
                raise ValueError(f"{self.kernel_name}: {v} is used outside of its loop")
            depth = max(depth, d)
        return depth

    def _emit(self, n: Node, scope: Scope) -> None:
        if isinstance(n, Masked) and self.reads[n.args[1]]:
            self._emit_masked(n, scope)
            return
        if isinstance(n, Scan):
            self.emit_scan(n, scope)
            return
        args = [self.ref(a, scope) for a in n.args]
        depth = max((d for _, d in args), default=0)
        vec = any(r.vec for r, _ in args)
        if isinstance(n, (Load, Index)):
            own = n.vars if isinstance(n, Index) else own_vars(n)
            depth = max(depth, self.bound_depth(own, scope))
            vec = vec or (self.lane is not None and self.lane in own)
        mask = None
        if is_guarded_kind(n) and scope.guard is not None:
            depth = max(depth, scope.guard)
            mask = scope.mask
            vec = vec or mask is not None
        home = scope.at(depth)
        form = self.unordered.get(n, "")
        ref = Ref(self.name(), n.dtype, vec, bool(form) and n.dtype is not BF16)
        home.body.append(tree.Let(ref.text, n, tuple(r for r, _ in args), vec, mask, form))
        home.env[n] = ref

    def _emit_masked(self, n: Masked, scope: Scope) -> None:
        """A masked region that loads: a branch where the condition is one, else masked loads."""
        cond, cond_depth = self.ref(n.args[0], scope)
        other, other_depth = self.ref(n.args[2], scope)
        depth = max(cond_depth, other_depth, self.bound_depth(n.vars, scope), scope.guard or 0)
        home = scope.at(depth)
        if cond.vec and n in self.branches:
            body: list[Stmt] = []
            mask = self._both(home.mask, cond, home)
            value = self.place(n.args[1], Scope(home, body, guarded=True, mask=mask))
            ref, then = (Ref(self.name(), n.dtype, True) for _ in range(2))
            body.append(tree.Let(then.text, n, (cond, value, other), True))
            some = Ref(f"litz::hany({mask.text})", BOOL)
            home.body.append(tree.Branch(ref.text, n.dtype, True, some, body, then, other))
        elif cond.vec:
            guard = home.guards.get(n.args[0])
            if guard is None:
                mask = self._both(home.mask, cond, home)
                guard = Scope(home, home.body, guarded=True, mask=mask)
                home.guards[n.args[0]] = guard
            value = self.place(n.args[1], guard)
            ref = Ref(self.name(), n.dtype, True)
            home.body.append(tree.Let(ref.text, n, (cond, value, other), True))
        else:
            body = []
            value = self.place(n.args[1], Scope(home, body, guarded=True))
            ref = Ref(self.name(), n.dtype, value.vec or other.vec, n in self.unordered)
            home.body.append(tree.Branch(ref.text, n.dtype, ref.vec, cond, body, value, other))
        home.env[n] = ref

    def _both(self, outer: Ref | None, cond: Ref, home: Scope) -> Ref:
        if outer is None:
            return cond
        ref = Ref(self.name(), BOOL, True)
        home.body.append(tree.Let(ref.text, _AND, (outer, cond), True))
        return ref
