"""The private names of PyTorch that Litz uses below its door to the compiler stack.

Those for memory are quicker than the public way to do the same, which stands beside each. Nothing
here imports more than ``torch`` does before it is called.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch._library.custom_ops import CustomOpDef as CustomOpDef
from torch.fx import Node
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module
from torch.library import Library

from litz.dataclass import dataclass

CHECKPOINT = tag_activation_checkpoint
"""What Dynamo's graph calls where a part of it is checkpointed."""
LazyGraphModule = _LazyGraphModule
"""A graph with its module, whose code is written when it is called first."""
_Dims = Sequence[int]
_Fake = TypeVar("_Fake", bound=torch.Tensor)


def public_empty_strided_cpu(size: _Dims, stride: _Dims, dtype: torch.dtype, /) -> torch.Tensor:
    """A new CPU tensor with undefined values."""
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


def public_reinterpret(
    base: torch.Tensor, size: _Dims, stride: _Dims, offset: int, /
) -> torch.Tensor:
    """The tensor of that size and stride that starts `offset` elements behind `base`'s first."""
    return torch.as_strided(base, size, stride, base.storage_offset() + offset)


def public_current_raw_stream(device: int, /) -> int:
    """The handle of the current CUDA stream of a device, by its index."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def private(path: str, name: str) -> Any:
    """A name of PyTorch's, or None where this version of PyTorch has none."""
    place: Any = torch
    for part in path.split("."):
        place = getattr(place, part, None)
    return getattr(place, name, None)


empty_strided_cpu: Callable[[_Dims, _Dims, torch.dtype], torch.Tensor] = (
    private("_C._dynamo.guards", "_empty_strided_cpu") or public_empty_strided_cpu
)
reinterpret: Callable[[torch.Tensor, _Dims, _Dims, int], torch.Tensor] = (
    private("_C._dynamo.guards", "_reinterpret_tensor") or public_reinterpret
)
current_raw_stream: Callable[[int], int] = (
    private("_C", "_cuda_getCurrentRawStream") or public_current_raw_stream
)
AUTOCAST_CALLS = tuple(private("amp.autocast_mode", f"_{do}_autocast") for do in ("enter", "exit"))
"""What Dynamo's graphs call where a region of autocast begins, and where it ends."""
storage_use_count: Callable[[int], int] | None = private("_C", "_storage_Use_Count")
"""How many references a storage has, given its `_cdata`; the Python object counts as one.  There is
no public equal: None makes the allocator hand out plain tensors."""


def storage_address(storage: torch.UntypedStorage) -> int:
    """What `storage_use_count` takes."""
    return int(storage._cdata)


def native_functions(names: Sequence[str]) -> dict[str, int]:
    """Addresses of PyTorch's C functions, 0 for what it has not.

    ``wrap`` makes a Python tensor (a new reference) of the address of an ``at::Tensor``;
    ``watched`` says whether a profiler of the thread or the process is told of operators.
    """
    found: dict[str, int] = {}
    there = ("cpu", "cuda", "python")
    libraries = [ctypes.CDLL(path) for n in there if os.path.exists(path := _library(n))]
    of_cpp = {
        "wrap": "_Z16THPVariable_WrapRKN2at10TensorBaseE",
        "watched": "_ZN2at12hasCallbacksEv",
    }
    for name in names:
        symbol = of_cpp.get(name, name)
        functions = (getattr(library, symbol, None) for library in libraries)
        function = next((f for f in functions if f is not None), None)
        found[name] = ctypes.cast(function, ctypes.c_void_p).value or 0 if function else 0
    return found


def dtype_code(dtype: torch.dtype) -> int:
    """The number of a type for PyTorch's C functions."""
    return _number(f"dtype_{str(dtype).removeprefix('torch.')}")


def device_code(kind: str) -> int:
    """The number of a kind of device for PyTorch's C functions."""
    return _number(f"device_type_{kind}")


def _number(name: str) -> int:
    return int(getattr(ctypes.CDLL(_library("cpu")), f"aoti_torch_{name}")())


def _library(name: str) -> str:
    return os.path.join(os.path.dirname(torch.__file__), "lib", f"libtorch_{name}.so")


@lru_cache(maxsize=1)
def tensor_offset() -> int | None:
    """Bytes from a Python tensor's address to the ``at::Tensor`` in it; None if it has none.

    An ``at::Tensor`` is a pointer to what it is of, which this looks for.
    """
    pointers = private("_C._aoti", "unsafe_alloc_void_ptrs_from_tensors")
    steal = private("_C._aoti", "alloc_tensors_by_stealing_from_void_ptrs")
    if pointers is None or steal is None:
        return None
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    tensors = [torch.empty(1, device="cpu") for _ in range(2)]
    capsules = pointers(tensors)
    places = []
    for tensor, capsule in zip(tensors, capsules, strict=True):
        (wanted,) = (ctypes.c_void_p * 1).from_address(pointer_of(capsule, None))
        words = (ctypes.c_void_p * (torch.Tensor.__basicsize__ // 8)).from_address(id(tensor))
        places.append([8 * i for i, word in enumerate(words) if word == wanted])
    steal(capsules)
    return places[0][0] if places[0] == places[1] and len(places[0]) == 1 else None


def address(tensor: torch.Tensor) -> int:
    """Of the memory that a tensor is in or, while PyTorch traces, would be in."""
    return storage_address(tensor.untyped_storage())


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors, fake ones too, lie in one storage."""
    return address(a) == address(b)


NOTED = {"_dynamo_static_input_type"}
"""What Dynamo notes on parameters, and AOTAutograd carries over to none of its fake tensors."""


def another_fake(
    like: type[_Fake], memory: torch.Tensor, device: torch.device, state: Mapping[str, Any]
) -> _Fake:
    """What ``FakeTensor(mode, memory, device)`` is, in a fifth of the time.

    like: the class.  memory: on the device meta.  state: the attributes of such a tensor of that
    mode and device, from when it was made.
    """
    made: Any = torch.Tensor._make_subclass(
        like, memory, False, dispatch_device=True, device_for_backend_keys=device
    )
    if state["fake_mode"]._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
    else:
        torch._C._set_throw_on_mutable_data_ptr(made)
    vars(made).update(state)
    return made  # type: ignore[no-any-return]


def is_written(tensor: Any) -> bool:
    """Whether something has written into a tensor that stands for one where nothing is written."""
    return bool(torch._functionalize_has_data_mutation(tensor.elem))  # type: ignore[attr-defined]


def register_fake(name: str, fake: Callable[..., Any], library: Library) -> None:
    """What ``torch.library.register_fake`` does, without its look through all modules for where it
    is called from, which takes longer than to import a room."""
    operators: Any = private("_library.simple_registry", "singleton")
    try:
        operators.find(name).fake_impl.register(fake, __name__, lib=library, allow_override=True)
    except (AttributeError, TypeError):  # another version of PyTorch
        torch.library.register_fake(name, fake, lib=library)


def tracing_mode() -> Any:
    """The mode of the fake tensors that AOTAutograd traces with now, None outside of a backend.

    Those of Dynamo, which is done, have another one.
    """
    context = torch._guards.TracingContext.try_get()
    return context.fake_mode if context is not None else None


def lazy_modules() -> AbstractContextManager[Any]:
    """Where PyTorch writes the code of a graph that it makes when that is called first."""
    context: AbstractContextManager[Any] = _use_lazy_graph_module(True)
    return context


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is zero everywhere by what it is, without memory."""
    return tensor._is_zerotensor()


def attention_order() -> object:
    """In which order attention's implementations are tried."""
    return torch._C._get_sdp_priority_order()


def attention_choice(operands: Sequence[torch.Tensor], scale: float) -> str:
    """Whose kernel PyTorch takes for attention that trains: ``cudnn``, ``flash``, or "": another.

    operands: query, key, value, [batch, heads, rows, size] each, one with a gradient; they may be
    fake, of which PyTorch tells by what it calls alone.
    """
    query, key, value = operands
    with torch.enable_grad():
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)
    name = out.grad_fn.name() if out.grad_fn is not None else ""
    known = {"Cudnn": "cudnn", "Flash": "flash"}
    return known.get(name.removeprefix("ScaledDotProduct").partition("Attention")[0], "")


@dataclass(frozen=True)
class LongChains:
    """A rule of PyTorch's partitioner: what ends a long chain of calls is not computed anew.

    From each forward call on, calls that ``chains`` pairs with one before are visited in the
    graph's order, none twice and none that is not to be computed anew already.  One that is more
    than ``most`` calls behind the first ends its chain where none other is left to be visited.

    chains: whether calls are chained, one reading the other.  views: calls that the rule spares.
    """

    chains: Callable[[Node, Node], bool]
    views: Callable[[Node], bool]
    most: int = 100


def long_chains() -> LongChains | None:
    """The rule as PyTorch's partitioner has it; None where it is off."""
    config = torch._functorch.config
    if not config.ban_recompute_long_fusible_chains or config.aggressive_recomputation:
        return None
    ops = torch._functorch.partitioners.get_default_op_list()

    def chains(a: Node, b: Node) -> bool:
        joins = getattr(b.target, "overloadpacket", None) is torch.ops.aten.cat
        return joins or bool(ops.is_fusible(a) and ops.is_fusible(b))

    return LongChains(chains, ops.is_view)


def without_long_chains() -> AbstractContextManager[Any]:
    """Where PyTorch's partitioner has no such rule."""
    patch = torch._functorch.config.patch
    patched: AbstractContextManager[Any] = patch(ban_recompute_long_fusible_chains=False)
    return patched


def untraced(call: Callable[..., Any]) -> Callable[..., Any]:
    """What Dynamo does not look into: a compiler of graphs, or a compiled one."""
    disable: Any = torch.compiler.disable
    found: Callable[..., Any] = disable(call, reason="a compiled graph")
    return found


def skipped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What Dynamo does not trace where it meets it: a backward pass is run by users' frames."""
    disable: Any = torch.compiler.disable
    found: Callable[..., Any] = disable(fn, recursive=False)
    return found


def put_backend(name: str, compile: Callable[..., Any]) -> bool:
    """Register a backend that PyTorch found as an entry point, unless it is; whether that went."""
    try:
        from torch._dynamo.backends.registry import _COMPILER_FNS
    except ImportError:
        return False
    compile._tags = ()  # type: ignore[attr-defined]  # as register_backend() does
    _COMPILER_FNS.setdefault(name, compile)
    return True


def in_transform() -> bool:
    """Whether code runs in one of functorch's transforms (``vmap``, ``grad``)."""
    return torch._C._functorch.peek_interpreter_stack() is not None


_BATCHES: Any = torch._C._dispatch_key_parse("VmapMode")


def in_batches() -> bool:
    """Whether gradients may be batched in what this thread runs."""
    return bool(torch._C._dispatch_tls_is_dispatch_key_included(_BATCHES))


def is_batched(x: torch.Tensor) -> bool:
    """Whether a tensor stands for a batch of gradients, of which it shows one."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(x))


def unbatched(x: torch.Tensor, level: int) -> torch.Tensor:
    """The elements of a batch along dim 0: none where ``x`` is of no batch of that level."""
    return torch._remove_batch_dim(x, level, 0, 0)


def batch(x: torch.Tensor, level: int) -> torch.Tensor:
    """A batch of what lies along dim 0; ``unbatched`` takes it apart."""
    return torch._add_batch_dim(x, 0, level)


def in_dual_level() -> bool:
    """Whether code runs in a level of forward-mode AD, where tensors may have tangents."""
    return torch.autograd.forward_ad._current_level >= 0


def has_tangent(x: torch.Tensor) -> bool:
    """Whether a tensor has a tangent in the level of forward-mode AD that code runs in."""
    found: Any = torch.autograd.forward_ad.unpack_dual(x)  # type: ignore[no-untyped-call]
    return found.tangent is not None


def without_autocast() -> AbstractContextManager[Any]:
    """Where no operator is cast, whatever the dispatcher is told."""
    context: AbstractContextManager[Any] = torch._C._DisableAutocast()
    return context


is_autocasting: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether operators are cast in this thread, on any device."""
set_gradients: Callable[[bool], None] = torch._C._set_grad_enabled
"""Turns gradients on or off in this thread."""


@contextmanager
def recording_guards(env: Any) -> Iterator[list[Any]]:
    """Where a shape environment takes guards again, though it was exported: those it then took.

    Ranges of its symbols are afterwards what they were.
    """
    found: list[Any] = []
    before, frozen, ranges = len(env.guards), env.frozen, dict(env.var_to_range)
    env.frozen = False
    try:
        yield found
    finally:
        found += [g.expr for g in env.guards[before:]]
        env.frozen = frozen
        env.var_to_range.update(ranges)


def widen(env: Any, lows: Mapping[str, int]) -> None:
    """Have symbols, by their names, range from other numbers on."""
    for symbol, ranges in list(env.var_to_range.items()):
        if str(symbol) in lows:
            env.var_to_range[symbol] = type(ranges)(lows[str(symbol)], ranges.upper)


def takes_anything(type_: Any) -> bool:
    """Whether an argument of a schema's type may be anything: a graph, say."""
    return isinstance(type_, torch._C.AnyType)


@lru_cache(maxsize=1)
def slices_count_from_storage() -> bool:
    """Whether ``auto_functionalized_v2`` counts a slice's start from where the storage begins.

    It should from where the base does; PyTorch up to 2.13 confuses the two.
    """
    from torch._higher_order_ops.auto_functionalize import try_use_slice

    base = torch.empty(4, device="meta")[1:]
    found = try_use_slice(base, base[:2])  # type: ignore[no-untyped-call]
    return found is not None and found[1] == 1


def user_kernel(number: int, constants: int) -> tuple[Any, Mapping[str, object]]:
    """A user's Triton kernel and its constant arguments, by their numbers in Dynamo's table."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table.get_kernel(number), kernel_side_table.get_constant_args(constants)


@dataclass(frozen=True)
class AotNames:
    """What keeps a graph ahead of AOTAutograd: PyTorch's record of all that it made of one.

    cache, key: the module that keeps records, and its function for a graph's key.
    code: the class of compiled graphs that records may have.  compiler: marks what makes them.
    bypass: raised to keep a record from PyTorch's own cache.  check: raises for a graph whose
    functions may do something else another time.  config, counter: AOTAutograd's.
    """

    cache: Any
    key: str
    code: type
    compiler: Callable[..., Any]
    bypass: type[Exception]
    check: Callable[[Any], None]
    config: Any
    counter: Any
    context: Any
    tracing: Callable[[Any], Any]
    compile_context: Any
    compiling: Callable[[Any], Any]


def aot_names() -> AotNames | None:
    """AOTAutograd's names; None where this version of PyTorch has others.

    Without them graphs are found behind AOTAutograd alone.
    """
    try:
        from torch import _guards
        from torch._functorch import aot_autograd, config
        from torch._functorch._aot_autograd import aot_autograd_result, autograd_cache

        if not callable(autograd_cache.autograd_cache_key):
            return None
        return AotNames(
            autograd_cache,
            "autograd_cache_key",
            aot_autograd_result.OutputCode,  # type: ignore[attr-defined]
            aot_autograd.SerializableAOTDispatchCompiler,  # type: ignore[attr-defined]
            autograd_cache.BypassAOTAutogradCache,
            autograd_cache.check_cacheable,
            config,
            aot_autograd.AOT_COUNTER,
            _guards.TracingContext,
            _guards.tracing,
            _guards.CompileContext,
            _guards.compile_context,
        )
    except (ImportError, AttributeError):
        return None


def bundled_entries(
    kind: str, arrived: Callable[[str, bytes], None]
) -> Callable[[str, bytes], None] | None:
    """What puts a cache's entry, its name and bytes, into `torch.compiler.save_cache_artifacts`.

    kind: names this cache among others.  arrived: told of the entries that `load_cache_artifacts`
    finds in a bundle.  None where this version of PyTorch lets no other cache take part.
    """
    try:
        from torch.compiler import _cache

        class Entry(_cache.CacheArtifact):
            def populate_cache(self) -> None:
                arrived(self.key, self.content)

            @staticmethod
            def type() -> str:
                return kind

        _cache.CacheArtifactFactory.register(Entry)
        manager = _cache.CacheArtifactManager
        if not callable(manager.record_artifact):
            return None
    except (ImportError, AttributeError, TypeError, AssertionError):
        return None

    def record(name: str, content: bytes) -> None:
        manager.record_artifact(kind, name, content)

    return record


def is_packing() -> bool:
    """Whether PyTorch will ask for the bytes of what a backend gives (``litz.packed``)."""
    from torch._functorch import config

    saved = getattr(config, "bypass_autograd_cache_key", False)  # `aot_compile` alone sets it
    return bool(saved or getattr(torch._dynamo.config, "caching_precompile", False))


def packed_classes() -> tuple[type, type, Callable[[Any], None]]:
    """Bases of what PyTorch's packages hold of a backend: callables, and entries that Dynamo keeps
    on disk; and what takes such an entry."""
    from torch._dynamo.aot_compile_types import SerializableCallable
    from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext

    return SerializableCallable, BackendCacheArtifact, PrecompileContext.record_artifact


def partitioning(share: Callable[[], bool]) -> AbstractContextManager[Any]:
    """Where the partitioner hands states of random numbers on as tensors, no generators, on GPUs
    too, and does not look for equal calls where ``share`` has.

    share: asked where the partitioner would look for them; whether it has made them one.
    """
    config = torch._functorch.config
    wanted = {"graphsafe_rng_functionalization": False}
    if getattr(config, "cse", False) and share():
        wanted["cse"] = False
    known: dict[str, Any] = {name: v for name, v in wanted.items() if hasattr(config, name)}
    patched: AbstractContextManager[Any] = config.patch(known)
    return patched


def backward_autocasts_as_forward() -> bool:
    """Whether AOTAutograd traces gradients under the autocast that is on around the forward."""
    return bool(private("_functorch.config", "backward_pass_autocast") == "same_as_forward")


# --- kernels that a process registered over PyTorch's ---

_own: weakref.WeakSet[Library] = weakref.WeakSet()
_AT = re.compile(r"registered at (.*?):\d+")


def users_kernels() -> str:
    """An operator of ATen's for which Python code other than PyTorch's has a kernel; "" if none.

    Whatever ran `torch.library.Library(...).impl` or `torch.library.impl` counts, for as long as
    it stands, but for Litz's own.  Where the registrations cannot be found, that is what it says.
    """
    registry = getattr(weakref.finalize, "_registry", None)
    if registry is None:
        return "one that cannot be found in this Python"
    for finalizer in list(registry):  # every library has one
        library, *_ = finalizer.peek() or (None,)
        if not isinstance(library, Library) or library in _own:
            continue
        if library.ns != "aten" or library.m is None:
            continue
        for name in sorted(library._op_impls):  # "aten/add.Tensor/CPU"
            _, op, key = name.split("/")
            at = _registered(f"aten::{op}", key or "CompositeImplicitAutograd")
            if not at or not (_of_pytorch(at[0]) or _of_litz(at[0])):
                return f"aten::{op}"
            _own.add(library)
            break  # all that a library registers comes from one file
    return ""


def step_by_step(operator: object) -> Callable[..., Any]:
    """What a higher-order operator runs where nothing compiles it."""
    kernels: Any = operator.py_kernels  # type: ignore[attr-defined]
    return kernels[torch._C.DispatchKey.CompositeExplicitAutograd]  # type: ignore[no-any-return]


def strange_kernels(op: torch._ops.OpOverload) -> str:
    """Where a kernel of ATen's operator was registered, if not in PyTorch; "" if all were there.

    Of a PyTorch that does not say where it was built, nothing is known: "".
    """
    name = op.name()  # type: ignore[no-untyped-call]
    built = _built_in()
    found = (at for at in _registered(name) if not at.startswith(built) and not _of_pytorch(at))
    return next((at for at in found if not _of_litz(at)), "")


def _registered(name: str, key: str = "") -> list[str]:
    """The files that registered an operator's kernels, those for a dispatch key alone if given."""
    lines = torch._C._dispatch_dump(name).splitlines()
    if key:
        lines = [line for line in lines if line.startswith((f"{key}:", f"{key}[alias]:"))]
    return [found[1] for line in lines if (found := _AT.search(line))]


def _of_pytorch(file: str) -> bool:
    """Whether a Python file is one of PyTorch's, but none by which anybody registers kernels."""
    installed = os.path.join(os.path.dirname(torch.__file__), "")
    doors = [os.path.join(installed, *d) for d in (("library.py",), ("_library", ""))]
    return file.startswith(installed) and not file.startswith(tuple(doors))


def has_kernel_of_litz(name: str, key: str) -> bool:
    """Whether a kernel of Litz's stands over that of an operator for a dispatch key."""
    return any(map(_of_litz, _registered(name, key)))


def _of_litz(file: str) -> bool:
    """Whether a file is one of Litz's, whose kernels no compile sees (``dispatcher``)."""
    return file.startswith(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


@lru_cache(maxsize=1)
def _built_in() -> str:
    """The folder in which PyTorch was built, of which each kernel's file begins; "" if unknown."""
    schema = next(iter(_registered("aten::add.Tensor", "debug")), "")
    folder, found, _ = schema.replace("\\", "/").partition("build/aten/")
    return schema[: len(folder)] if found else ""


# --- custom operators ---


def is_operator(name: str) -> bool:
    """Whether there is an operator of a name, ``aten::add``."""
    return bool(torch._C._jit_get_operation(name)[1])


_KERNEL = re.compile(r"(\w+(?:\[alias\])?): registered at (.*?):\d+")


@dataclass(frozen=True)
class Registrations:
    """What was registered for an operator.

    fake: the function that is run on fake tensors, or that it is PyTorch's; None if not known.
    traced: what PyTorch runs where it traces the operator besides, if that is known: the functions
    for gradients and for `vmap`, types of autocast.  others: dispatch keys of all other kernels.
    """

    fake: Any
    traced: tuple[Any, ...]
    others: tuple[str, ...]


def registrations(op: torch._ops.OpOverload) -> Registrations | str:
    """What was registered for a custom operator, or what stands against telling."""
    try:
        from torch._decomp import decomposition_table
        from torch._library import custom_ops, simple_registry

        entry = simple_registry.singleton.find(op._name)
        definition = custom_ops.OPDEFS.get(op._name)
        rules = len(entry.torch_dispatch_rules._data) - _is_triton_op(definition)
        if op.py_kernels or op in decomposition_table or rules:
            return "is traced by Python code of the user's"
        if getattr(getattr(entry, "effect", None), "effect", None) is not None:
            return "has effects"
        lines = torch._C._dispatch_dump(op._name).splitlines()
        files = {found[1]: found[2] for found in map(_KERNEL.match, lines) if found}
        files.pop("debug", None)
        if "CompositeImplicitAutograd[alias]" in files:
            return "is made of other operators"
        fakes = entry.fake_impl.kernels
        if definition is None:
            fake = _inside(fakes[-1].func) if fakes else None
            if not fakes and _of_pytorch(files.get("Meta", "")):
                fake = "PyTorch's"
            others = [k for k in files if k != "Meta" or fake is None]
            return Registrations(fake, (), tuple(others))
        if len(fakes) > 1:
            return "is traced by Python code of the user's"
        # Older PyTorch has the types of autocast in a field a device.
        autocast = [v for k, v in sorted(vars(definition).items()) if k.startswith("_autocast_")]
        if not autocast:
            return "is registered otherwise in this PyTorch (no types of autocast)"
        traced = (
            definition._setup_context_fn,
            definition._backward_fn,
            definition._vmap_fn,
            *autocast,
        )
        others = [k for k in files if files[k] != custom_ops.__file__]
        return Registrations(definition._abstract_fn, traced, tuple(others))
    except (ImportError, AttributeError, ValueError) as e:
        return f"is registered otherwise in this PyTorch ({e})"


def _is_triton_op(definition: Any) -> bool:
    """Whether an operator is one of ``torch.library.triton_op``, which traces its fake kernel."""
    from torch._library import triton
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    rules: dict[Any, Any] = getattr(definition, "_torch_dispatch_fns", {})
    rule: Any = rules.get(FunctionalTensorMode)
    if len(rules) != 1 or getattr(rule, "__module__", "") != triton.__name__:
        return False
    names = dict(zip(rule.__code__.co_freevars, rule.__closure__, strict=True))
    return "fn" in names and names["fn"].cell_contents is definition._abstract_fn


def _inside(fake: Any) -> Any:
    """The function that `register_fake` was given: PyTorch wraps it, to look at it once."""
    names = getattr(getattr(fake, "__code__", None), "co_freevars", ())
    if fake.__qualname__ == "_check_pystubs_once.<locals>.inner" and "func" in names:
        return fake.__closure__[names.index("func")].cell_contents
    return fake


def traced() -> bool:
    """Whether somebody reads PyTorch's structured trace (``TORCH_TRACE``, for tlparse)."""
    return bool(logging.getLogger("torch.__trace").handlers)


def trace_artifact(name: str, encoding: str, text: Callable[[], str]) -> None:
    """Put a text into the structured trace of the compile that runs now."""
    write = private("_logging", "trace_structured")
    if write is not None:
        write("artifact", metadata_fn=lambda: {"name": name, "encoding": encoding}, payload_fn=text)


@contextmanager
def noted_lines() -> Iterator[None]:
    """Meanwhile autograd's nodes note the stack trace of the graph node that they come from.

    As AOTAutograd has them do it: by anomaly mode, without its checks and its warning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with torch.autograd.detect_anomaly(check_nan=False):
            yield


def keep_lines(results: Sequence[torch.Tensor]) -> None:
    """Have graph nodes of a backward pass that is traced get what ``noted_lines`` has noted."""
    hooks = private("_functorch._aot_autograd.logging_utils", "setup_stacktrace_preservation_hooks")
    if hooks is not None:
        hooks([r.grad_fn for r in results if r.grad_fn is not None])


# --- process groups ---


def process_group(name: str) -> tuple[Any, str, Sequence[int]] | None:
    """A process group by its name: PyTorch's object, its backend, its ranks in the world.

    None where there is no such group.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    try:
        pg = private("distributed.distributed_c10d", "_resolve_process_group")(name)
    except (RuntimeError, ValueError, KeyError):
        return None
    return pg, torch.distributed.get_backend(pg), torch.distributed.get_process_group_ranks(pg)


def gpu_backend(name: str) -> str:
    """By what a process group communicates between GPUs; "" where that is not known."""
    if (found := process_group(name)) is None:
        return ""
    try:
        return str(found[0]._get_backend(torch.device("cuda")).name())
    except RuntimeError:
        return ""


def default_store() -> Any:
    """What all processes of the world read and write."""
    return private("distributed.distributed_c10d", "_get_default_store")()
