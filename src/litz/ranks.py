"""Ranks that compile one program agree on what they communicate before any of them runs it.

Where a graph has collectives, each rank says in the store of the process group which ones, in what
order and of what sizes, or why it cannot compile the graph.  A difference is an error that names
the ranks and the first call in which they differ, instead of processes that wait for each other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from litz.dataclass import dataclass
from litz.errors import CompilationError, LitzError, RanksDiffer
from litz.graph.calls import leaves
from litz.graph.frames import FRAME
from litz.logs import events
from litz.options import Options
from litz.runtime.collectives import group_name, is_start
from litz.runtime.meeting import Group, bandwidth, exchange, known

SIZED: Final = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")
"""Collectives that have one size in all processes."""


@dataclass(frozen=True, eq=False)
class Agreement:
    """A graph that communicates with other processes.

    program: the graph's name among those that a process compiles.  kind: of the devices.
    seconds: for which others are waited for.
    """

    graph: GraphModule
    program: str
    kind: str
    groups: tuple[Group, ...]
    seconds: float

    def bandwidths(self, given: int) -> dict[str, int]:
        """MB a second that each group moves, 0 where it is not known: what is given, unless 0."""
        return {
            g.name: given or bandwidth(g, self.kind, self.program, self.seconds)
            for g in self.groups
        }

    def figures(self, what: str, mine: Sequence[float]) -> dict[str, list[float]]:
        """Figures of the devices of each group, by which its ranks decide alike: those of whichever
        compiled a graph first.  mine: of this rank's device."""
        said = ((g.name, g.first(g.key(what, self.kind), json.dumps(mine))) for g in self.groups)
        return {name: json.loads(text) for name, text in said}

    def calls(self) -> dict[str, list[Any]]:
        """The collectives of each group, in order."""
        found: dict[str, list[Any]] = {}
        for n in _starts(self.graph):
            name = group_name(n.target, n.args, n.kwargs)
            found.setdefault(name, []).append(_call(n))
        return found

    def reached(self, calls: Mapping[str, list[Any]], failure: str = "") -> None:
        """Wait until all ranks have compiled the graph, or say that this one could not.

        Raises CompilationError where another rank failed, RanksDiffer where it calls otherwise;
        warns of either where ranks have not met before.
        """
        for g in self.groups:
            word = json.dumps({"failed": failure} if failure else {"calls": calls[g.name]})
            apart = g.apart(self.program)
            said = exchange(g, self.program, word, 0 if failure else self.seconds)
            words = {rank: json.loads(text) for rank, text in said.items()}
            if not failure and (wrong := _wrong(g, self.program, words)):
                if not apart:
                    raise wrong
                events.warning("%s (perhaps: ranks did not meet here before)", wrong)


def agreement(graph: GraphModule, program: str, options: Options) -> Agreement | None:
    """What a graph of ATen calls has ranks agree on; None where it communicates with nobody."""
    nodes = _starts(graph)
    if not nodes or not options.agreement:
        return None
    groups = known(group_name(n.target, n.args, n.kwargs) for n in nodes)
    kind = next((t.device.type for n in nodes for t in _tensors(n)), "")
    if not groups or kind not in ("cpu", "cuda"):
        return None
    return Agreement(graph, program, kind, tuple(groups), options.agreement)


def _starts(graph: GraphModule) -> list[Node]:
    return [n for n in graph.graph.nodes if is_start(n.target)]


def program_name(gm: GraphModule) -> str:
    """A name of Dynamo's graph that ranks share: the line of its first call that has one."""
    found = (FRAME.search(n.stack_trace or "") for n in gm.graph.nodes)
    if (m := next(filter(None, found), None)) is None:
        return "a graph"
    return f"{os.path.basename(m['file'])}, line {m['number']}, in {m['function']}"


def _tensors(n: Node) -> Iterator[torch.Tensor]:
    for argument in n.all_input_nodes:
        values = leaves(argument.meta.get("val"))
        yield from (v for v in values if isinstance(v, torch.Tensor))


def _call(n: Node) -> list[Any]:
    """A collective as ranks compare it: its name, what it reduces by, types and sizes.

    A size is None where it is open; without sizes where those may differ.
    """
    name = str(n.target).split(".")[1]
    plain = [a for a in n.args if isinstance(a, str | int) and a != n.args[-1]]
    if name.rstrip("_").removesuffix("_coalesced") not in SIZED:
        return [name, [], []]
    sizes = [
        [str(t.dtype).removeprefix("torch."), *(s if type(s) is int else None for s in t.shape)]
        for t in _tensors(n)
    ]
    return [name, plain, sizes]


def _wrong(group: Group, program: str, words: dict[int, Any]) -> LitzError | None:
    for rank, word in words.items():
        if "failed" in word:
            return CompilationError(f"rank {rank} could not compile {program}: {word['failed']}")
    first = min(words)
    for rank, word in words.items():
        mine, theirs = words[first]["calls"], word["calls"]
        for k in range(max(len(mine), len(theirs))):
            a, b = (calls[k] if k < len(calls) else None for calls in (mine, theirs))
            if not _equal(a, b):
                return RanksDiffer(
                    f"litz: ranks {first} and {rank} communicate otherwise in {program}: call "
                    f"{k + 1} of group {group.name} is {_text(a)} of rank {first} and "
                    f"{_text(b)} of rank {rank}.  Give all ranks tensors of the same sizes, and "
                    "have them make the same calls in the same order."
                )
    if missing := [rank for rank in group.ranks if rank not in words]:
        events.warning(
            "ranks %s of group %s do not compile %s: whether they communicate alike is not "
            "known; nobody waits for them there again",
            missing,
            group.name,
            program,
        )
    return None


def _equal(a: Any, b: Any) -> bool:
    """Whether two calls may meet: equal but for what is not known of either."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(
            x is None or y is None or _equal(x, y) for x, y in zip(a, b, strict=True)
        )
    return bool(a == b)


def _text(call: Any) -> str:
    if call is None:
        return "missing"
    name, plain, sizes = call
    tensors = [f"{t[0]}[{', '.join('?' if s is None else str(s) for s in t[1:])}]" for t in sizes]
    return f"{name}({', '.join([*tensors, *map(repr, plain)])})"
