"""Calling a user's own Triton kernels from compiled graphs.

Nothing here imports Triton before a descriptor is made: the kernels come from the user's program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch

from litz.dataclass import dataclass
from litz.runtime.cache import content_key
from litz.runtime.strided import copy_as_it_is

Grid = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class GridOfConfig:
    """The grid of an autotuned kernel, by the configuration that is tried or was chosen.

    configs: the meta-parameters of each configuration; grids: its grid, in the same order.
    """

    configs: tuple[Mapping[str, object], ...]
    grids: tuple[Grid, ...]

    def __call__(self, meta: Mapping[str, object]) -> Grid:
        """The grid for a launch with the arguments and meta-parameters ``meta``."""
        for config, grid in zip(self.configs, self.grids, strict=True):
            if all(name in meta and meta[name] == value for name, value in config.items()):
                return grid
        raise RuntimeError("litz: an autotuner chose a configuration that the graph does not know")


@dataclass(frozen=True, eq=False)
class UserKernel:
    """A kernel of the user's (``triton.jit``, or with ``triton.autotune`` around it) as a callable.

    configs: the meta-parameters of each of its configurations, none for a plain kernel.
    written: names of the arguments that it writes.
    """

    kernel: Any
    configs: tuple[Mapping[str, object], ...] = ()
    written: tuple[str, ...] = ()
    _tuned: dict[tuple[object, ...], None] = field(default_factory=dict)

    def __call__(self, grids: Sequence[Grid], /, *args: object, **kwargs: object) -> None:
        """Launch it.  grids: of all configurations, or one for all of them."""
        grid: Grid | Callable[[Mapping[str, object]], Grid] = grids[0]
        if len(grids) > 1:
            grid = GridOfConfig(self.configs, tuple(grids))
        if len(self.configs) > 1 and self.written:
            self._tune(grid, args, kwargs)
        self.kernel[grid](*args, **kwargs)

    def _tune(self, grid: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Have the autotuner try its configurations on copies of what the kernel writes.

        Each trial would change the memory once more; that the user has it restored is not certain,
        and Dynamo's own copy of an autotuner that prunes its configurations forgets to.
        """
        names = self.kernel.arg_names
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        keys = [given[k] for k in self.kernel.keys if k in given]
        types = [str(given[k].dtype) for k in names if hasattr(given.get(k), "dtype")]
        key = (*keys, *types)
        if key in self._tuned:
            return
        copies = {k: _copy_of(given[k]) for k in self.written if k in given}
        at = {name: k for k, name in enumerate(names[: len(args)])}
        own = list(args)
        for name, value in copies.items():
            if name in at:
                own[at[name]] = value
        late = {k: v for k, v in copies.items() if k not in at}
        self.kernel[grid](*own, **{**kwargs, **late})
        self._tuned[key] = None


def configurations(kernel: Any) -> tuple[Mapping[str, object], ...]:
    """The meta-parameters of each of a kernel's configurations, none for a plain kernel."""
    return tuple(dict(c.kwargs) for c in getattr(kernel, "configs", ()))


def kernel_name(kernel: Any) -> str:
    """A name for all that compiling asks of a kernel, the same in every process: 40 hex digits.

    That is its source with the functions and constants that it refers to, its parameters and its
    configurations; launches are handed the object itself.  Raises ValueError, with the reason,
    where code of the user's decides more.
    """
    import triton
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    said: list[object] = [triton.__version__]
    fn = kernel
    if type(fn) is Autotuner:
        if fn.perf_model or fn.early_config_prune:
            raise ValueError("the configurations of a Triton kernel are pruned by the user's code")
        hooks = [fn.user_defined_pre_hook, fn.user_defined_post_hook]
        if any(hooks) or any(c.pre_hook for c in fn.configs):
            raise ValueError("a Triton kernel of the user's has hooks")
        said += [[c.all_kwargs() for c in fn.configs], fn.keys, fn.reset_to_zero, fn.restore_value]
        fn = fn.fn
    if not isinstance(fn, JITFunction):
        raise ValueError(f"around a Triton kernel of the user's is a {type(fn).__name__}")
    try:
        said += [fn.__name__, fn.cache_key]
    except Exception as e:  # of Triton's look at what the function refers to
        raise ValueError(f"a Triton kernel of the user's: {e}") from e
    said += [sorted((name, v) for (name, _), (v, _) in fn.used_global_vals.items())]
    said += [(p.name, p.annotation, p.default) for p in fn.params]
    return content_key("a user's kernel", repr(said))


def _copy_of(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        return copy_as_it_is(value)
    return replace(value, base=copy_as_it_is(value.base))  # a TMA descriptor of a tensor


def tensor_descriptor(tensor: torch.Tensor, block_shape: Sequence[int]) -> object:
    """A TMA descriptor of all of ``tensor`` (``TensorDescriptor.from_tensor``), which it holds."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(block_shape))


def tma_descriptor(
    tensor: torch.Tensor, dims: Sequence[int], block_dims: Sequence[int], element_size: int
) -> object:
    """A TMA descriptor of the older interface (``create_1d_tma_descriptor`` and its 2-d sister).

    dims, block_dims: in elements; element_size: in bytes.  Triton's object knows an address alone;
    the tensor is tied to it, so that the memory lives as long.
    """
    from triton.tools import experimental_descriptor as api

    make = api.create_1d_tma_descriptor if len(dims) == 1 else api.create_2d_tma_descriptor
    descriptor = make(tensor.data_ptr(), *dims, *block_dims, element_size)
    descriptor.litz_tensor = tensor
    return descriptor
