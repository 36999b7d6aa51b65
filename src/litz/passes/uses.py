"""Who writes and who reads the memory of a program's buffers."""

from __future__ import annotations

from collections.abc import Sequence

from litz.ir.program import Program, ProgramNode

Nodes = dict[str, ProgramNode]


class Uses:
    """Found in one walk, for passes that ask of many nodes.

    makers, readers: who writes and who reads a buffer's memory, by its root and their names, in
    order.  nodes: by their names; reads: the buffers that each reads; places: where it stands.
    shown: roots of what the program returns.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.places: dict[str, float] = {n.name: k for k, n in enumerate(program.nodes)}
        self.makers: dict[str, Nodes] = {}
        self.readers: dict[str, Nodes] = {}
        self.nodes: Nodes = {}
        self.reads: dict[str, frozenset[str]] = {}
        self.shown = {program.root(r.buffer) for r in program.output_refs()}
        for n in program.nodes:
            self.add(n)

    def add(self, n: ProgramNode) -> None:
        """Note a node."""
        self.nodes[n.name] = n
        self.reads[n.name] = frozenset(n.read_buffers())
        for uses, names in ((self.readers, self.reads[n.name]), (self.makers, n.write_buffers())):
            for b in names:
                uses.setdefault(self.program.root(b), {})[n.name] = n

    def drop(self, n: ProgramNode) -> None:
        """Forget a node."""
        for uses, names in ((self.readers, self.reads[n.name]), (self.makers, n.write_buffers())):
            for b in names:
                uses[self.program.root(b)].pop(n.name, None)

    def opened(self, program: Program, call: ProgramNode, nodes: Sequence[ProgramNode]) -> Uses:
        """The same of a program in which nodes stand in a call's place, and of no other change."""
        made = object.__new__(Uses)
        made.program, made.shown = program, self.shown
        made.nodes, made.reads = dict(self.nodes), dict(self.reads)
        first, step = self.places[call.name], 1 / len(nodes)
        made.places = self.places | {n.name: first + k * step for k, n in enumerate(nodes)}
        made.makers, made.readers = dict(self.makers), dict(self.readers)
        for n in (call, *nodes):
            for b in (*n.read_buffers(), *n.write_buffers()):
                for mine, theirs in ((made.makers, self.makers), (made.readers, self.readers)):
                    mine[program.root(b)] = dict(theirs.get(program.root(b), {}))
        made.drop(call)
        for n in nodes:
            made.add(n)
        return made

    def maker(self, buffer: str) -> ProgramNode | None:
        """The one node that writes a buffer's memory, if there is one."""
        made = [*self.makers.get(self.program.root(buffer), {}).values()]
        return made[0] if len(made) == 1 else None
