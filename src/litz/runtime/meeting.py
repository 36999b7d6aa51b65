"""What the processes of a group tell each other beside their collectives, through their store.

Nothing here blocks for longer than it is told: a rank that others wait for may never come, since it
runs what it has compiled before.  All that is remembered lies in the store.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from litz.dataclass import dataclass
from litz.logs import events
from litz.runtime.torch_private import default_store, process_group

BYTES: Final = {"cpu": 1 << 22, "cuda": 1 << 26}  # that are reduced to measure a group
TURNS: Final = 4
_POLL: Final = 0.005  # seconds


@dataclass(frozen=True, eq=False)
class Group:
    """The processes of a group, by their numbers in the world: ranks, and this one's, rank.

    store: what all of them read and write.  live: PyTorch's object.
    """

    name: str
    ranks: tuple[int, ...]
    rank: int
    store: Any
    live: Any

    def key(self, *parts: object) -> str:
        return "/".join(map(str, ("litz", self.name, *self.ranks, *parts)))

    def said(self, key: str) -> str:
        """What somebody wrote; "" until then."""
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def first(self, key: str, text: str) -> str:
        """What the first who said anything under the key said."""
        found: bytes = self.store.compare_set(key, "", text)
        return found.decode()

    def await_(self, topic: str, ready: Callable[[], bool], seconds: float) -> bool:
        """Whether something comes about in time; where ranks did not meet once, whether now.

        Holds no lock of the store meanwhile, which the watchdogs of collectives read too.
        """
        end = time.monotonic() + (0 if self.apart(topic) else seconds)
        while not (came := ready()) and time.monotonic() < end:
            time.sleep(_POLL)
        if not came:
            self.store.set(self.key("apart", topic), "yes")
        return came

    def apart(self, topic: str) -> bool:
        """Whether ranks did not meet once: their words may be of other turns from then on."""
        return bool(self.said(self.key("apart", topic)))


def rank() -> int | None:
    """This process's number among those that compute together; None where it is alone.

    Where there is no process group, what started the processes says so (``torchrun``).
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        mine, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    else:
        told = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        mine, world = (int(x) if x.isdecimal() else 0 for x in told)
    return mine if world > 1 else None


def group_of(name: str) -> Group | None:
    """The group of a name; None of one process, or where PyTorch only pretends to communicate."""
    found = process_group(name)
    if found is None:
        return None
    live, backend, ranks = found
    store = default_store()
    if len(ranks) < 2 or backend == "fake" or store is None:
        return None
    return Group(name, tuple(ranks), torch.distributed.get_rank(), store, live)


def exchange(group: Group, topic: str, word: str, seconds: float) -> dict[int, str]:
    """What the ranks say on a topic, this one's word among it; who does not come in time is not.

    The n-th word of one rank on a topic meets the n-th of the others.  seconds: 0 waits for nobody.
    """
    turn = group.store.add(group.key("turns", topic, group.rank), 1)
    keys = {rank: group.key("words", topic, turn, rank) for rank in group.ranks}
    group.store.set(keys[group.rank], word)
    if seconds:
        group.await_(topic, lambda: bool(group.store.check([*keys.values()])), seconds)
    return {rank: said for rank, key in keys.items() if (said := group.said(key))}


def bandwidth(group: Group, kind: str, topic: str, seconds: float) -> int:
    """MB a second that collectives of a group move on a kind of device; 0 where it is not known.

    Measured once, when all ranks are there, as of the first rank's clock and rounded to a power of
    two, so that all have the same figure and tomorrow's is likely today's.  As ``overlap`` counts:
    what is reduced goes there and back.  topic: what the ranks are about to do.
    """
    figure, decided = group.key("bandwidth", kind), group.key("measure", kind)
    if known := group.said(figure):
        return int(known)
    ready = [group.key("ready", kind, rank) for rank in group.ranks]
    group.store.set(group.key("ready", kind, group.rank), "yes")
    leads = group.rank == group.ranks[0]
    wanted = ready if leads else [decided]
    came = group.await_(topic, lambda: bool(group.store.check(wanted)), seconds)
    # Whoever gives up first gives up for all.
    if group.first(decided, "yes" if leads and came else "no") == "yes":
        found = _measured(group, kind)
        if leads:
            events.info("group %s moves %d MB/s between ranks %s", group.name, found, group.ranks)
            group.first(figure, str(found))
        # All were there just now, whether or not they met before on this topic.
        group.await_(figure, lambda: bool(group.said(figure)), 60)
    return int(group.first(figure, "0"))


def _measured(group: Group, kind: str) -> int:
    """MB a second of reductions everywhere, rounded to a power of two."""
    x = torch.zeros(BYTES[kind], dtype=torch.uint8, device=kind)
    times = []
    for _ in range(TURNS):
        _finish(kind)
        start = time.perf_counter()
        torch.distributed.all_reduce(x, group=group.live)
        _finish(kind)
        times.append(time.perf_counter() - start)
    rate = 2 * x.numel() / min(times) / 1e6
    return 1 << max(0, round(math.log2(rate)))


def _finish(kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


def known(names: Iterable[str]) -> list[Group]:
    """The groups of names, in an order that all ranks share."""
    return [g for name in sorted(set(names)) if (g := group_of(name)) is not None]
