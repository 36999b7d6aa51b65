"""What PTX spares NVIDIA's assembler: its faults, and work that does not pay."""

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

# The predicate, the bits, where to, and of what.
_NEGATIONS = (
    re.compile(r"(@!?%\w+\s+)?neg\.s(16|32)\s+([^,]+),\s*([^;]+);"),
    re.compile(r"(@!?%\w+\s+)?sub\.[su](16|32)\s+([^,]+),\s*0,\s*([^;]+);"),
)
_BEST = re.compile(r"\b(?:max|min)\.s(?:16|32)")

_ENTRY = re.compile(r"(\.entry (\w+)\()[^)]*\)")
_LABEL = re.compile(r"(\$L__BB\w+):")
_JUMP = re.compile(r"\sbra(?:\.uni)?\s+(\$L__BB\w+);")
# An instruction of the matrix units, which keeps them busy without its loop unrolled.
_PRODUCT = re.compile(r"\s(?:wgmma\.mma_async|mma)\.sync\b")


def improved(ptx: str) -> str:
    """PTX that the assembler makes right code of, in good time."""
    return with_short_loops(sound(ptx))


def with_array(ptx: str, count: int) -> str:
    """PTX whose entry function has an array of ``count`` numbers in place of its parameters.

    ValueError: it reads others than the first, which is where the array lies then.
    """
    head = _ENTRY.search(ptx)
    if head is None or re.search(rf"\b{head[2]}_param_[1-9]", ptx[head.end() :]):
        raise ValueError("a kernel of an array that has other parameters too")
    array = f".param .align 8 .b8 {head[2]}_param_0[{8 * count}]"
    return f"{ptx[: head.end(1)]}\n\t{array}\n{ptx[head.end() - 1 :]}"


def with_short_loops(ptx: str) -> str:
    """PTX whose loops over matrix products stay loops.

    ptxas unrolls them, as often as they run where it knows that: the code is no faster, and takes
    ten times as long to make (12.8, a block of 128 x 256 values: 0.92 s, 0.08 s kept as a loop).
    """
    lines = ptx.split("\n")
    heads: dict[str, int] = {}
    kept: set[int] = set()
    for i, line in enumerate(lines):
        if label := _LABEL.match(line):
            heads[label[1]] = i
        elif (jump := _JUMP.search(line)) and jump[1] in heads:
            head = heads[jump[1]]
            if any(map(_PRODUCT.search, lines[head:i])):
                kept.add(head)
    for i in sorted(kept, reverse=True):
        lines.insert(i + 1, '\t.pragma "nounroll";')
    return "\n".join(lines)


def sound(ptx: str) -> str:
    """PTX that the assembler makes right code of."""
    return without_negations(without_pairs(ptx))


def without_pairs(ptx: str) -> str:
    """PTX whose sums of two 16-bit integers at once are two sums.

    ptxas 12.8 adds 0 where such a sum has a constant operand and half of it is used.
    """
    return _PAIRS.sub(lambda m: _APART.format(**m.groupdict()), ptx)


def without_negations(ptx: str) -> str:
    """PTX that negates no integer, if it has a largest or least of signed integers.

    Of three values, ptxas 12.8 loses the second one's sign: of max(max(a, -b), c) it makes the
    largest of a, b and c.
    """
    if not _BEST.search(ptx):
        return ptx

    def other(m: re.Match[str]) -> str:
        when, bits, to, a = m.groups(default="")
        return f"{when}not.b{bits} {to}, {a};\n\t{when}add.s{bits} {to}, {to}, 1;"

    for negation in _NEGATIONS:
        ptx = negation.sub(other, ptx)
    return ptx
