"""What the processor of this machine can do, and the compiler flags that say so.

The flags are named one by one instead of `-march=native`, so that they can be part of a cache key
and mean the same on every machine.
"""

from __future__ import annotations

import platform
import sys
from functools import lru_cache

from litz.dataclass import dataclass
from litz.errors import OptionError

ISA_NAMES = ("generic", "avx2", "avx512", "neon")

_AVX2_NEEDS = ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe")
_AVX512_NEEDS = (*_AVX2_NEEDS, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_AVX2_FLAGS = (
    "-mavx2 -mfma -mf16c -mbmi -mbmi2 -mlzcnt -mpopcnt -mmovbe -mcx16 -msahf -mtune=generic"
).split()
_AVX512_FLAGS = (
    "-mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl -mprefer-vector-width=512"
).split()
# /proc/cpuinfo's name of a further ability, and its compiler flag.
_FURTHER = (("avx512_vnni", "-mavx512vnni"), ("avx512_bf16", "-mavx512bf16"))
# Instructions that gather are quick on processors with this ability. Loads a lane are quicker on
# AMD's, on Intel's that must not leak data by them, and beside registers of 32 bytes. Code that
# gathers runs on all, so this is none of the abilities that it needs.
_GATHERS = ("avx512_fp16", "-DLITZ_GATHERS")
_FURTHER_ARM = (("asimddp", "dotprod"), ("bf16", "bf16"), ("asimdhp", "fp16"))


@dataclass(frozen=True)
class Isa:
    """An instruction set: one of `ISA_NAMES`, the float32 lanes of a vector register, the further
    abilities that there are (sorted), and the compiler flags."""

    name: str
    lanes_f32: int
    features: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


def detect_isa(name: str | None = None) -> Isa:
    """The best instruction set of this machine, or the one named.

    Naming one that is less than the machine has is how to debug; naming one that it has not gives
    code that can be built but not run.  OptionError: an unknown name.
    """
    if name is None:
        return _native()
    if name not in ISA_NAMES:
        raise OptionError(f"unknown instruction set {name!r}; there are {', '.join(ISA_NAMES)}")
    native = _native()
    return native if native.name == name else _isa(name, ())


def plain_isa(name: str) -> Isa:
    """An instruction set of this kind of machine without further abilities.

    OptionError: an unknown name, or one of another kind of machine.
    """
    arm = platform.machine().lower() in ("aarch64", "arm64")
    here = ("generic", "neon") if arm else ("generic", "avx2", "avx512")
    if name not in here:
        raise OptionError(f"no instruction set {name!r} here; there are {', '.join(here)}")
    return _isa(name, ())


def needs(name: str, features: tuple[str, ...]) -> tuple[str, ...]:
    """What the processor must have for an instruction set, as Linux names it."""
    own = {"avx2": _AVX2_NEEDS, "avx512": _AVX512_NEEDS}.get(name, ())
    return tuple(sorted({*own, *features}))


@lru_cache(maxsize=1)
def _native() -> Isa:
    machine = platform.machine().lower()
    has = cpu_flags()
    if machine in ("x86_64", "amd64"):
        if all(flag in has for flag in _AVX512_NEEDS):
            return _isa("avx512", has)
        if all(flag in has for flag in _AVX2_NEEDS):
            return _isa("avx2", has)
    if machine in ("aarch64", "arm64"):
        return _isa("neon", has)
    return _isa("generic", has)


def _isa(name: str, has: tuple[str, ...]) -> Isa:
    if name == "avx512":
        further = [(ability, flag) for ability, flag in _FURTHER if ability in has]
        features = tuple(sorted(ability for ability, _ in further))
        more = [flag for ability, flag in (*further, _GATHERS) if ability in has]
        flags = (*_AVX2_FLAGS, *_AVX512_FLAGS, *more)
        return Isa(name, 16, features, flags)
    if name == "avx2":
        return Isa(name, 8, (), tuple(_AVX2_FLAGS))
    if name == "neon":
        extensions = [extension for ability, extension in _FURTHER_ARM if ability in has]
        return Isa(
            name,
            4,
            tuple(sorted(extensions)),
            ("-march=" + "+".join(["armv8.2-a", *extensions]),) if extensions else (),
        )
    return Isa(name, 4)


def cpu_flags() -> tuple[str, ...]:
    """The abilities of the first processor, as Linux names them; elsewhere what PyTorch saw."""
    if sys.platform.startswith("linux"):
        try:
            # The first processor's lines are enough; the whole file is slow to make on a large
            # machine.
            with open("/proc/cpuinfo", encoding="ascii", errors="replace") as stream:
                for line in stream:
                    key, _, value = line.partition(":")
                    if key.strip().lower() in ("flags", "features"):
                        return tuple(value.split())
        except OSError:
            pass
    import torch  # noqa: PLC0415 - only where the system does not say

    capability = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": _AVX512_NEEDS, "AVX2": _AVX2_NEEDS}.get(capability, ())
