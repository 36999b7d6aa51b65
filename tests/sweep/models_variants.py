"""The ways in which a family is run, a row each, and which families meet which of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from zoo_families import Shape, Zoo

TEXT = ("encoder", "decoder", "experts", "state space", "encoder-decoder")
PICTURES = ("vision", "timm", "diffusers")
OTHERS = ("vision", "speech", "multimodal", "timm", "diffusers")

# Of the variants beyond the base set, how many each family is given.
ROTATED = 5
LENGTHS = (17, 13, 24, 31, 9)
ROWS = (2, 3, 5, 4, 7)


@dataclass(frozen=True)
class Variant:
    """How a family is run: numbers, shapes, and what of PyTorch is around it."""

    about: str
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    training: bool = True
    shape: Shape = Shape()
    dynamic: bool = False
    channels_last: bool = False
    dropout: bool = False
    checkpoint: bool = False
    optimizer: str = ""
    mode: str = "default"
    kinds: tuple[str, ...] = ()
    """The kinds of families that it means something to; empty: all."""
    cost: float = 1.0

    @property
    def rounding(self) -> torch.dtype:
        """The narrowest type that it computes in."""
        return self.autocast or self.dtype

    def shapes(self, kind: str, steps: int) -> list[Shape]:
        """Those of the batches of each step."""
        if not self.dynamic:
            return [self.shape] * steps
        if kind in TEXT:
            return [Shape(length=n) for n in LENGTHS]
        return [Shape(rows=n) for n in ROWS]


F16, BF16 = torch.float16, torch.bfloat16

BASE: Mapping[str, Variant] = {
    "fp32": Variant("float32, training"),
    "eval": Variant("float32, evaluation", training=False, cost=0.5),
    "bf16": Variant("weights in bfloat16, training", BF16),
    "fp16": Variant("weights in float16, training", F16),
    "amp_bf16": Variant("autocast to bfloat16, training", autocast=BF16, cost=1.1),
}

MORE: Mapping[str, Variant] = {
    "amp_fp16": Variant("autocast to float16, training", autocast=F16, cost=1.1),
    "eval_bf16": Variant("weights in bfloat16, evaluation", BF16, training=False, cost=0.5),
    "eval_fp16": Variant("weights in float16, evaluation", F16, training=False, cost=0.5),
    "mask13": Variant("one padded text of 13 tokens", shape=Shape(1, 13, True), kinds=TEXT),
    "mask15": Variant(
        "three texts of 15 tokens, one padded, bfloat16", BF16, shape=Shape(3, 15, True), kinds=TEXT
    ),
    "batch1": Variant("a batch of one", shape=Shape(1), kinds=OTHERS),
    "batch3": Variant("a batch of three, bfloat16", BF16, shape=Shape(3), kinds=OTHERS),
    "channels_last": Variant("memory format channels_last", channels_last=True, kinds=PICTURES),
    "channels_last_amp": Variant(
        "channels_last, autocast to bfloat16", autocast=BF16, channels_last=True, kinds=PICTURES,
        cost=1.1,
    ),
    "dynamic": Variant("`dynamic=True`, five lengths or batch sizes", dynamic=True, cost=2.5),
    "dynamic_eval": Variant(
        "the same in evaluation, bfloat16", BF16, training=False, dynamic=True, cost=1.3
    ),
    "dropout": Variant('dropout, with `rng="eager"` against eager', dropout=True, cost=1.2),
    "dropout_bf16": Variant("the same in bfloat16", BF16, dropout=True, cost=1.2),
    "checkpoint": Variant("gradient checkpointing", checkpoint=True, cost=1.4),
    "checkpoint_dropout": Variant(
        "gradient checkpointing with dropout", checkpoint=True, dropout=True, cost=1.6
    ),
    "adamw": Variant("AdamW's step compiled too", optimizer="AdamW", cost=1.5),
    "sgd": Variant("the step of SGD with momentum compiled too", optimizer="SGD", cost=1.4),
    "overhead": Variant('`mode="reduce-overhead"`, training', mode="reduce-overhead", cost=1.1),
    "overhead_eval": Variant(
        '`mode="reduce-overhead"`, evaluation, bfloat16', BF16, training=False,
        mode="reduce-overhead", cost=0.6,
    ),
}  # fmt: skip

VARIANTS: Mapping[str, Variant] = {**BASE, **MORE}


def meant(name: str, kind: str) -> bool:
    """Whether a variant means something to a kind of families."""
    return not VARIANTS[name].kinds or kind in VARIANTS[name].kinds


def rotation(families: Mapping[str, Zoo]) -> list[tuple[str, str]]:
    """(family, variant): a few of the variants a family, so that each kind meets all of them.

    ``families``: all there are, in their order, else a choice of them would turn it.
    """
    met: dict[str, int] = {}
    tasks = []
    for family, zoo in families.items():
        names = [n for n in MORE if meant(n, zoo.kind)]
        start = met.get(zoo.kind, 0)
        met[zoo.kind] = start + ROTATED
        tasks += [(family, names[(start + i) % len(names)]) for i in range(ROTATED)]
    return tasks


def tasks_of(
    families: Mapping[str, Zoo], only: Sequence[str], variants: str
) -> list[tuple[str, str]]:
    """(family, variant) of what ``--variants`` names, cheap ones first, the base set before others.

    variants: of "base", "rotation", "all" and names of variants, separated by commas.
    """
    wanted: dict[tuple[str, str], None] = {}
    for word in variants.split(","):
        if word == "rotation":
            wanted.update(dict.fromkeys(rotation(families)))
            continue
        names = {"base": list(BASE), "all": list(VARIANTS)}.get(word, [word])
        if names[0] not in VARIANTS:
            raise ValueError(f"no variant {word}; there are base, rotation, all, {[*VARIANTS]}")
        pairs = ((f, n) for n in names for f, zoo in families.items() if meant(n, zoo.kind))
        wanted.update(dict.fromkeys(pairs))
    chosen = [(f, n) for f, n in wanted if f in set(only)]
    return sorted(
        chosen, key=lambda t: (t[1] not in BASE, families[t[0]].cost * VARIANTS[t[1]].cost)
    )
