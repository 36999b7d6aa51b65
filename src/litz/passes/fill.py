"""Updates of what a constant has just filled: their kernel fills it, row by row.

The zeros that an embedding's gradient is added into, say: filled by themselves they go to memory
and come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from litz.dataclass import dataclass
from litz.index import Const as Number
from litz.index import Var, mixed_radix, product
from litz.ir.body import Const, Fill, Store
from litz.ir.program import Loops, Program, ProgramNode

LARGE = 1 << 20  # bytes that no cache near a core holds


@dataclass(frozen=True)
class FillUnderUpdates:
    """The nest that fills a buffer goes where the next that touches it updates it.

    blocks: kinds of devices whose kernels run over blocks: there it stays.
    """

    blocks: tuple[str, ...] = ()
    name: ClassVar[str] = "fill under updates"

    def __call__(self, program: Program) -> Program:
        nodes: list[ProgramNode | None] = []
        filled: dict[str, tuple[int, Fill]] = {}  # by buffer: where, and with what
        for n in program.nodes:
            mine = self._updated(program, n, filled)
            if mine is not None:
                assert isinstance(n, Loops)
                at, fill = filled[mine]
                stores = (replace(s, fill=fill if s.buffer == mine else s.fill) for s in n.stores)
                was = nodes[at]
                assert isinstance(was, Loops)
                origins = tuple(dict.fromkeys((*was.origins, *n.origins)))
                nodes[at], n = None, replace(n, stores=tuple(stores), origins=origins)
            for b in (*n.read_buffers(), *n.write_buffers()):
                filled.pop(program.root(b), None)
            made = self._fill(program, n)
            if made is not None:
                filled[n.write_buffers()[0]] = len(nodes), made
            nodes.append(n)
        left = tuple(n for n in nodes if n is not None)
        return program if len(left) == len(nodes) else replace(program, nodes=left)

    def _updated(
        self, program: Program, n: ProgramNode, filled: dict[str, tuple[int, Fill]]
    ) -> str | None:
        """The filled buffer that a nest only updates, at places that data gives."""
        if not isinstance(n, Loops):
            return None
        touched = [program.root(s.buffer) for s in n.stores]
        touched += [program.root(x.buffer) for x in n.reads()]
        for s in n.stores:
            if s.buffer in filled and s.updates and s.indirect and touched.count(s.buffer) == 1:
                return s.buffer
        return None

    def _fill(self, program: Program, n: ProgramNode) -> Fill | None:
        """What a nest fills all of one large buffer with; None of others."""
        if not isinstance(n, Loops) or n.device.partition(":")[0] in self.blocks:
            return None
        if len(n.stores) != 1 or not _is_plain(s := n.stores[0]):
            return None
        b, size = program.buffers[s.buffer], product(program.buffers[s.buffer].shape)
        if b.alias is not None or b.kind != "temp" or not isinstance(size, Number):
            return None
        radix = mixed_radix(s.index, [v for v in n.axes if isinstance(v, Var)])
        whole = radix is not None and radix.dense and radix.size is size
        assert isinstance(s.value, Const)
        large = size.value * b.dtype.bytes >= LARGE
        return Fill(s.value, size.value) if whole and large else None


def _is_plain(s: Store) -> bool:
    constant = isinstance(s.value, Const) and s.mode == "set"
    return constant and s.mask is None and not s.indirect
