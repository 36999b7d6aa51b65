"""The names that a generated Python host program imports; it needs nothing else of Litz.

empty_strided(size, stride, dtype)       a new CPU tensor; for buffers below `LARGE` bytes
empty_large(size, stride, dtype)         the same on recycled huge pages; any size is right
workspace(nbytes)                        bytes of scratch, recycled
reinterpret(base, size, stride, offset)  another shape over base's storage, from element `offset`
in_memory(tensor)                        a tensor at no address, with memory for its elements
aligned(tensor)                          a tensor, copied where it begins at an odd address
retype(base, dtype)                      all of base's storage as a flat tensor of `dtype`
check_call(...)                          an operator's arguments against the graph's metadata
look(...)                                a look at what a step reads or writes
"""

from __future__ import annotations

from litz.runtime.checks import check_call
from litz.runtime.looking import look
from litz.runtime.memory import default_allocator, in_memory, retype
from litz.runtime.strided import aligned
from litz.runtime.torch_private import empty_strided_cpu as empty_strided
from litz.runtime.torch_private import reinterpret

__all__ = [
    "aligned",
    "check_call",
    "empty_large",
    "empty_strided",
    "in_memory",
    "look",
    "reinterpret",
    "retype",
    "workspace",
]

empty_large = default_allocator().empty_strided
workspace = default_allocator().workspace
