"""Users' code in words: functions with all that they depend on, and operators that run them.

Tracing runs Python of the user's: the fake kernels of custom operators, and their gradients.  What
it does is known if it is written out whole: the bytecode, the values of its closure, defaults and
globals, the functions that it calls in turn, and of PyTorch what is a function of its arguments
(PyTorch's version and its settings are in every key).  Kernels that compute are not: programs call
them by their operator's name, whatever they are by then.

Tensors' subclasses are the functions, properties and data in them and in their bases.  Classes, and
Triton kernels of the user's, are objects that every process has of its own: they stand in a key by
name, and whoever writes it is told which they are.

Whatever is not data, nor such a function, stands against a key: ``NotCached`` says what.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import struct
import sys
import types
from itertools import pairwise
from typing import Any, Final

import torch

from litz.runtime.torch_private import CustomOpDef, Registrations, is_operator, registrations
from litz.runtime.user_kernels import kernel_name

NAMESPACES: Final = ("aten", "prims")
# Of these modules everything is a function of its arguments, but for what ``_asks``.
_PURE: Final = ("math", "operator", "functools", "itertools")
_OF_TORCH: Final = (
    *("torch", "torch.nn", "torch.nn.functional", "torch.functional", "torch.library"),
    *("torch.special", "torch.linalg", "torch.fft", "torch.ops"),
    *("torch.utils._pytree", "torch.utils._python_dispatch"),
    *("triton", "triton.language"),
)
# What asks, or changes, what no key holds.
_ASKING: Final = frozenset(
    "getattr setattr delattr eval exec compile open input globals locals vars dir id __import__ "
    "breakpoint memoryview hash seed initial_seed manual_seed get_rng_state set_rng_state load "
    "default_generator from_file classes loaded_libraries load_library import_module _C "
    "__dict__ __globals__ __builtins__ __class__ __subclasses__ f_globals".split()
)
_IN_KEYS: Final = (
    *("get_default_dtype", "get_num_threads", "get_float32_matmul_precision", "get_device"),
    *("is_grad_enabled", "is_inference_mode_enabled", "set_grad_enabled"),
)
# What may be asked of ``torch._C``.
_WITHOUT_HOOKS: Final = ("DisableTorchFunctionSubclass", "DisableTorchFunction")
_OF_KERNELS: Final = ("triton.runtime.jit", "triton.runtime.autotuner")
_OF_CLASSES: Final = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __qualname__ __annotations__ "
    "__firstlineno__ __static_attributes__ "  # Python 3.13
    "__annotate_func__ __annotations_cache__".split()  # Python 3.14
)
_METHODS: Final = (types.FunctionType, staticmethod, classmethod, property)
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
_NAMING: Final = (
    "builtins",
    "enum",
    "torch._C",
    "torch._C._nn",
    "torch.functional",
    "torch._tensor",
)
_RUN_ALONE: Final = frozenset({"CPU", "CUDA", "CompositeExplicitAutograd[alias]"})
"""Dispatch keys of kernels that compute; tracing with fake tensors calls none of them."""
_DATA: Final = (
    *(bool, int, str, bytes, type(None), type(...), type(NotImplemented)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class NotCached(Exception):
    """What has no key; the message says why."""


def function_text(fn: object) -> str:
    """What a function does, so that unequal ones differ.  Raises NotCached."""
    try:
        return _Writer().value(fn, "it")
    except RecursionError as e:
        raise NotCached("it holds itself") from e


def value_text(value: object, what: str, objects: dict[str, object]) -> str:
    """A tensor's subclass, or data; objects: is told of classes and kernels.  Raises NotCached."""
    try:
        return _Writer(objects).value(value, what)
    except RecursionError as e:
        raise NotCached(f"{what} holds itself") from e


def kernel_text(kernel: object, objects: dict[str, object]) -> str:
    """A Triton kernel of the user's; objects: is told of it.  Raises NotCached."""
    try:
        name = kernel_name(kernel)
    except ValueError as e:
        raise NotCached(str(e)) from e
    objects[name] = kernel
    return name


def operator_text(
    op: torch._ops.OpOverload, objects: dict[str, object] | None = None, *, traced: bool
) -> str:
    """What compiling a program that calls a custom operator depends on.  Raises NotCached.

    objects: is told of classes and kernels.
    traced: AOTAutograd traces it too, with its gradient; else its fake kernel alone is asked.
    """
    try:
        return _Writer(objects).operator(op, traced)
    except RecursionError as e:
        raise NotCached(f"what {op} depends on holds itself") from e


def overloads(packet: Any) -> list[torch._ops.OpOverload]:
    """All overloads of an operator."""
    return [getattr(packet, name) for name in packet.overloads()]


class _Writer:
    """Writes values out; seen: what stands already, by number, as functions may call each other.

    objects: the classes and kernels that were written, by their names.
    """

    def __init__(self, objects: dict[str, object] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.seen: dict[int, tuple[int, object]] = {}

    def value(self, value: Any, what: str) -> str:
        kind = type(value)
        if kind in _DATA:
            return repr(value)
        if kind in (float, complex):
            return f"{kind.__name__} {struct.pack('<dd', value.real, value.imag).hex()}"
        if kind in (tuple, list, torch.Size):
            return f"{kind.__name__}[{', '.join([self.value(v, what) for v in value])}]"
        if kind in (set, frozenset):
            return f"{kind.__name__}[{', '.join(sorted([self.value(v, what) for v in value]))}]"
        if kind is dict:
            pairs = [f"{self.value(k, what)}: {self.value(v, what)}" for k, v in value.items()]
            return "{" + ", ".join(pairs) + "}"
        if id(value) in self.seen:
            return f"again {self.seen[id(value)][0]}"
        self.seen[id(value)] = len(self.seen), value
        if known := _named(value):
            return known
        if kind is functools.partial:
            return f"partial {self.value((value.func, value.args, value.keywords), what)}"
        if kind is types.FunctionType:
            return self.function(value)
        if isinstance(value, torch._ops.OpOverload):
            return self.operator(value, True)
        if isinstance(value, torch._ops.OpOverloadPacket):
            return f"packet {[self.value(op, what) for op in overloads(value)]}"
        if isinstance(value, CustomOpDef):
            return self.operator(value._opoverload, True)
        if isinstance(value, torch._ops._OpNamespace) and value.name in NAMESPACES:
            return f"operators of {value.name}"
        if any(c.__module__ in _OF_KERNELS for c in kind.__mro__):
            return f"kernel {kernel_text(value, self.objects)}"
        if isinstance(value, type):
            return self.type(value, what)
        if isinstance(value, enum.Enum):
            return f"{self.value(kind, what)} {self.value(value.value, what)}"
        raise NotCached(f"{what} has a {kind.__name__}, which is no data")

    def type(self, of: type, what: str) -> str:
        """A class of the user's: what it has, its bases, and nothing that makes classes."""
        name = f"class {of.__module__}.{of.__qualname__}"
        if type(of) not in (type, type(torch.Tensor), enum.EnumMeta):
            raise NotCached(f"{what} has a class that a {type(of).__name__} made")
        if self.objects.setdefault(name, of) is not of:
            raise NotCached(f"two classes are called {name}")
        own = {k: v for k, v in vars(of).items() if k not in _OF_CLASSES}
        if type(of) is enum.EnumMeta:
            members: Any = of.__members__
            own = {k: v for k, v in own.items() if isinstance(v, _METHODS) and not _of_enum(v)}
            own |= {k: member.value for k, member in members.items()}
        said = [f"{k!r}: {self.attribute(own[k], f'{name}.{k}')}" for k in sorted(own)]
        return f"{name} {[self.value(b, what) for b in of.__bases__]} {said}"

    def attribute(self, value: Any, what: str) -> str:
        """What a class has under a name."""
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__} {self.value(value.__func__, what)}"
        if type(value) is property:
            return f"property {self.value([value.fget, value.fset, value.fdel], what)}"
        if isinstance(value, types.MemberDescriptorType):
            return "slot"
        return self.value(value, what)

    def function(self, fn: types.FunctionType) -> str:
        name = f"{fn.__module__}.{fn.__qualname__}"
        if vars(fn).keys() - {"__wrapped__"}:
            raise NotCached(f"{name} has attributes")
        cells = [self.cell(c, f"{name}: {n}") for n, c in _cells(fn)]
        defaults = self.value((fn.__defaults__, fn.__kwdefaults__), name)
        return f"function [{self.code(fn.__code__, fn.__globals__, name)}] {cells} {defaults}"

    def cell(self, cell: types.CellType, what: str) -> str:
        try:
            return self.value(cell.cell_contents, what)
        except ValueError as e:
            raise NotCached(f"{what} is not set") from e

    def code(self, code: types.CodeType, names: dict[str, Any], where: str) -> str:
        used: dict[str, str] = {}
        steps = [at for at in dis.get_instructions(code) if at.opname != "EXTENDED_ARG"]
        for k, at in enumerate(steps):
            if at.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "LOAD_NAME"):
                raise NotCached(f"{where} writes {at.argval}, which is global")
            if at.opname == "IMPORT_NAME" and (
                steps[k - 2].argval != 0  # relative to a package
                or not _is_pure(sys.modules.get(at.argval))
            ):
                raise NotCached(f"{where} imports {at.argval}")
            if at.opname == "LOAD_GLOBAL" and at.argval not in used:
                used[at.argval] = self.variable(at.argval, names, where)
        bare = {s.argval for at, s in pairwise(steps) if at.argval == "_C"} <= {*_WITHOUT_HOOKS}
        asked = [n for n in code.co_names if _asks(n) and not (n == "_C" and bare)]
        if asked:
            raise NotCached(f"{where} may ask for more than a key holds: {asked[0]}")
        constants = [
            self.code(c, names, where) if isinstance(c, types.CodeType) else self.value(c, where)
            for c in code.co_consts
        ]
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        variables = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        table = getattr(code, "co_exceptiontable", b"")
        called = [self.operator(op, True) for op in _called(steps, where)]
        return repr((code.co_code, table, counts, variables, constants, used, called))

    def variable(self, name: str, names: dict[str, Any], where: str) -> str:
        """A global variable, or a name of Python's own."""
        if name in names:
            value = names[name]
            if _is_pure(value) and (value is not torch.ops or name == "ops"):
                return f"module {value.__name__}"  # of which the code's names say what is used
            return self.value(value, f"{where}: {name}")
        own = names.get("__builtins__", {})
        own = vars(own) if isinstance(own, types.ModuleType) else own
        if name not in own or own[name] is not getattr(builtins, name, None):
            raise NotCached(f"{where}: {name} is not there")
        return f"built in {name}"

    def operator(self, op: torch._ops.OpOverload, traced: bool) -> str:
        said = f"{op} {op._schema} {sorted(map(str, op.tags))}"
        if op.namespace in NAMESPACES:
            return said
        found = registrations(op)
        if isinstance(found, str):
            raise NotCached(f"{op} {found}")
        if found.fake is None and op._schema.returns:
            raise NotCached(f"{op} has no fake kernel in Python")
        said += f" fake {self.value(found.fake, f'the fake kernel of {op}')}"
        return said + self.gradient(op, found) if traced else said

    def gradient(self, op: torch._ops.OpOverload, found: Registrations) -> str:
        """What AOTAutograd traces of an operator beside its fake kernel."""
        if odd := [k for k in found.others if k not in _RUN_ALONE]:
            raise NotCached(f"{op} has a kernel for {odd[0]}, of which the code is not known")
        return f" {self.value(found.traced, f'{op}')}"


def _of_enum(method: object) -> bool:
    """Whether Python gives a method to every enumeration."""
    return getattr(method, "__module__", "") == enum.__name__


def _cells(fn: types.FunctionType) -> list[tuple[str, types.CellType]]:
    return list(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))


def _named(value: Any) -> str:
    """A name by which PyTorch or Python has an object that is a function of its arguments."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(name, str) or _asks(name):
        return ""
    for room in (module, "torch", "torch._C._nn", "torch._C"):
        around = sys.modules.get(room) if isinstance(room, str) else None
        if around is not None and (room in _NAMING or _is_pure(around)):
            found: Any = around
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is value:
                return f"{room}.{name}"
    return ""


def _is_pure(value: object) -> bool:
    inside = isinstance(value, types.ModuleType) and value.__name__.startswith("triton.language.")
    return inside or any(value is room for room in _rooms())


def _rooms() -> list[types.ModuleType]:
    """The modules of which everything is a function of its arguments, but for what ``_asks``."""
    return [m for name in (*_PURE, *_OF_TORCH) if (m := sys.modules.get(name)) is not None]


def _asks(name: str) -> bool:
    """Whether an attribute may be one of PyTorch's or Python's that knows what no key holds.

    Those are other modules, of which anything may be asked, and what asks for settings or sets
    them, unless they are in every key.
    """
    found = [getattr(room, name, None) for room in _rooms() if room is not torch.ops]
    if name in _ASKING or any(isinstance(f, types.ModuleType) and not _is_pure(f) for f in found):
        return True
    settings = name.startswith(("get_", "set_")) or name.endswith(("_enabled", "_available"))
    return settings and hasattr(torch, name) and name not in _IN_KEYS


def _called(steps: list[dis.Instruction], where: str) -> list[torch._ops.OpOverload]:
    """The custom operators that code calls as ``torch.ops.NAMESPACE.NAME``."""
    found: list[torch._ops.OpOverload] = []
    for k, at in enumerate(steps):
        if at.argval == "ops" and at.opname.startswith("LOAD_") and at.opname != "LOAD_CONST":
            path = [s.argval for s in steps[k + 1 : k + 3] if s.opname in _ATTRIBUTES]
            if len(path) != 2 or not is_operator("::".join(path)):
                raise NotCached(f"{where} calls an operator that is not known")
            if path[0] not in NAMESPACES:
                found += overloads(getattr(getattr(torch.ops, path[0]), path[1]))
    return found
