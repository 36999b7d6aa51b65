"""A fault of NVIDIA's assembler, and how PTX avoids it."""

from __future__ import annotations

import re

_PAIRS = re.compile(r"add\.[su]16x2\s+(?P<to>[^,]+),\s*(?P<a>[^,]+),\s*(?P<b>[^;]+);")
_APART = """{{
	.reg .b32 %litz_a, %litz_b;
	.reg .b16 %litz_al, %litz_ah, %litz_bl, %litz_bh;
	mov.b32 %litz_a, {a};
	mov.b32 %litz_b, {b};
	mov.b32 {{%litz_al, %litz_ah}}, %litz_a;
	mov.b32 {{%litz_bl, %litz_bh}}, %litz_b;
	add.s16 %litz_al, %litz_al, %litz_bl;
	add.s16 %litz_ah, %litz_ah, %litz_bh;
	mov.b32 {to}, {{%litz_al, %litz_ah}};
	}}"""


def without_pairs(ptx: str) -> str:
    """PTX whose sums of two 16-bit integers at once are two sums.

    ptxas 12.8 adds 0 where such a sum has a constant operand and half of it is used.
    """
    return _PAIRS.sub(lambda m: _APART.format(**m.groupdict()), ptx)
