"""Which uses of attention are tried: every pair of options in some case that eager should take.

A full product would be millions of cases.  Faults hide in a pair of options nearly always, so that
a few hundred cases suffice in which every pair occurs (pairwise testing; the greedy choice is that
of Cohen et al., "The AETG system", 1997).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Final


@dataclass(frozen=True)
class Spec:
    """One use of attention; every field is a value of the axis of its name.

    use: a call by itself, behind projections, in a transformer's block, nn.MultiheadAttention, or
    on nested tensors.  forced: the backend that sdpa_kernel asks for, inside the compiled function
    ("flash") or around its call ("@flash").  queries: how many beside ``keys``.  heads: of queries
    and of keys.  layout: how queries, keys and values lie in memory.  mode: what of autograd and of
    dynamic sizes is asked for.
    """

    use: str
    forced: str
    dtype: str
    mask: str
    keys: str
    queries: str
    heads: str
    size: str
    batch: str
    layout: str
    scale: str
    dropout: str
    mode: str

    @property
    def key(self) -> str:
        """The case in one word; ``parse`` reads it."""
        return "/".join(asdict(self).values())

    @property
    def backend(self) -> str:
        return self.forced.removeprefix("@")

    @property
    def head_counts(self) -> tuple[int, int]:
        q, k = self.heads.split(":")
        return int(q), int(k)

    @property
    def grad(self) -> bool:
        return "backward" in self.mode


AXES: Final[dict[str, tuple[str, ...]]] = {
    "use": ("call", "projected", "block", "mha", "nested"),
    "forced": (
        *("any", "math", "flash", "efficient", "cudnn"),
        *("@math", "@flash", "@efficient", "@cudnn"),
    ),
    "dtype": ("float32", "float16", "bfloat16"),
    "mask": (
        *("none", "causal", "float", "float_row", "float_grad", "bias_grad", "sliced", "inf"),
        *("bool", "bool_row", "bool_batch", "bool_2d", "dead_rows", "padding"),
    ),
    "keys": ("13", "15", "17", "32", "64", "77", "128"),
    "queries": ("same", "one", "fewer", "more"),
    "heads": ("4:4", "4:2", "6:1"),
    "size": ("8", "16", "24", "33", "40", "64", "72", "80", "96", "128", "160", "192", "256"),
    "batch": ("1", "3"),
    "layout": ("bhld", "blhd", "packed", "expanded", "cut"),
    "scale": ("default", "given"),
    "dropout": ("0", "0.1"),
    "mode": ("forward", "backward", "no_grad", "dynamic", "dynamic_backward"),
}
NAMES: Final = tuple(f.name for f in fields(Spec))
SEED = 11
ROUNDS = 2  # how often every pair occurs, each time beside other options
REFUSED = 24  # cases that eager should refuse

Partial = Mapping[str, str]
Pair = tuple[str, str, str, str]


def parse(key: str) -> Spec:
    values = key.split("/")
    if len(values) != len(NAMES):
        raise ValueError(f"a case has {len(NAMES)} parts, one of each of {', '.join(NAMES)}")
    for name, value in zip(NAMES, values, strict=True):
        if value not in AXES[name]:
            raise ValueError(f"{name} is one of {', '.join(AXES[name])}, not {value!r}")
    return Spec(*values)


_MHA_MASKS = ("none", "causal", "float_grad", "bool_2d", "inf", "padding")


def sensible(x: Partial) -> bool:
    """Whether the options that are chosen so far mean something together."""
    use, mask, layout = x.get("use"), x.get("mask"), x.get("layout")
    same = x.get("queries", "same") == "same"
    plain = x.get("heads", "4:4") == "4:4"
    if layout == "packed" and not (same and plain):
        return False
    if mask in ("float_grad", "bias_grad") and "backward" not in x.get("mode", "backward"):
        return False
    if use == "mha" and not (
        plain
        and (mask is None or mask in _MHA_MASKS)
        and layout in (None, "bhld", "blhd")
        and (same or mask != "causal")
    ):
        return False
    if use == "nested" and not (
        mask in (None, "none", "causal")
        and (same or mask != "causal")
        and layout in (None, "bhld", "blhd")
        and x.get("dropout", "0") == "0"
        and x.get("mode", "forward") in ("forward", "backward", "no_grad")
        and plain
        and x.get("batch", "3") == "3"
    ):
        return False
    return not (use in ("projected", "block") and layout == "cut")


def likely(x: Partial, device: str) -> bool:
    """Whether eager should take the options that are chosen so far."""
    backend = x.get("forced", "any").removeprefix("@")
    mask, dtype, mode = x.get("mask"), x.get("dtype"), x.get("mode", "")
    dropped = x.get("dropout", "0") != "0"
    plain = x.get("heads", "4:4") == "4:4"
    square = x.get("queries", "same") == "same"
    learned = mask in ("float_grad", "bias_grad")
    weights = x.get("use") == "mha" and x.get("scale") == "given"  # which no kernel returns
    if backend in ("any", "math"):
        return True
    if x.get("use") == "nested" and backend in ("cudnn", "efficient"):
        return False
    if device == "cpu":
        refused = dropped or learned or x.get("use") == "nested" or weights
        return backend == "flash" and not refused
    if backend == "flash":
        return (
            dtype != "float32" and mask in (None, "none", "causal") and (mask != "causal" or square)
        )
    if backend == "efficient":
        return plain
    small = x.get("size", "64") in ("8", "16", "24", "40", "64", "72", "80", "96", "128")
    return dtype != "float32" and small and not learned and not ("dynamic" in mode and dropped)


def pairs_of(x: Partial) -> Iterator[Pair]:
    for a, b in itertools.combinations([n for n in NAMES if n in x], 2):
        yield a, x[a], b, x[b]


def _complete(start: dict[str, str], open_pairs: set[Pair], device: str, rng: Any) -> Spec | None:
    """A case with these options, the others chosen for the open pairs that they make."""
    chosen = dict(start)
    names = [n for n in NAMES if n not in chosen]
    rng.shuffle(names)
    for name in names:
        best: list[str] = []
        most = -1
        for value in AXES[name]:
            option = {**chosen, name: value}
            if not (sensible(option) and likely(option, device)):
                continue
            gain = sum(p in open_pairs for p in pairs_of(option))
            if gain > most:
                best, most = [], gain
            if gain == most:
                best.append(value)
        if not best:
            return None
        chosen[name] = rng.choice(best)
    return Spec(**{n: chosen[n] for n in NAMES})


def wanted_pairs(device: str) -> set[Pair]:
    """All pairs of options that eager should take by themselves."""
    found = set()
    for a, b in itertools.combinations(NAMES, 2):
        for x, y in itertools.product(AXES[a], AXES[b]):
            both = {a: x, b: y}
            if sensible(both) and likely(both, device):
                found.add((a, x, b, y))
    return found


@cache
def select(device: str) -> tuple[Spec, ...]:
    """The cases of a kind of device; the same ones each time.  Mixed, so that a part is of all."""
    rng = random.Random(SEED)
    found: dict[str, Spec] = {}
    for _ in range(ROUNDS):
        open_pairs = wanted_pairs(device)
        for pair in sorted(open_pairs):
            for _ in range(20):
                if pair not in open_pairs:
                    break
                a, x, b, y = pair
                spec = _complete({a: x, b: y}, open_pairs, device, rng)
                if spec is not None:
                    found.setdefault(spec.key, spec)
                    open_pairs.difference_update(pairs_of(asdict(spec)))
    cases = list(found.values())
    rng.shuffle(cases)
    return (*cases, *_refused(device, rng))


def _refused(device: str, rng: random.Random) -> list[Spec]:
    """Some cases that eager should refuse."""
    found: dict[str, Spec] = {}
    for _ in range(100 * REFUSED):
        x = {n: rng.choice(AXES[n]) for n in NAMES}
        if len(found) < REFUSED and sensible(x) and not likely(x, device):
            spec = Spec(**x)
            found.setdefault(spec.key, spec)
    return list(found.values())
