"""Users' code in keys: all that it does and depends on counts, and what is not known is refused."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.cache.code import NotCached, function_text, operator_text

HEAD = """
import enum, functools, math, os, random, types, torch
from torch import ops
from torch.nn import functional as F
helped = 2
table = {"a": [1, 2.5]}
def helper(x): return x * helped
def again(n): return again(n - 1) if n else helper(n)
"""


def made(text: str, **names: Any) -> Any:
    """The function ``f`` of a module."""
    room: dict[str, Any] = {"__name__": "a_users_module", "__builtins__": __builtins__}
    exec(HEAD + textwrap.dedent(text), room)
    room.update(names)
    return room["f"]


KNOWN = {
    "a fake kernel": "def f(x, n=1): return torch.empty_like(x).new_empty(x.shape[0] // 2, n)",
    "another number": "def f(x, n=2): return torch.empty_like(x).new_empty(x.shape[0] // 2, n)",
    "another constant": "def f(x, n=1): return torch.empty_like(x).new_empty(x.shape[0] // 3, n)",
    "another function": "def f(x, n=1): return torch.zeros_like(x).new_empty(x.shape[0] // 2, n)",
    "by keyword": "def f(x, *, n=1): return torch.empty_like(x).new_empty(x.shape[0] // 2, n)",
    "zero": "def f(x): return x * 0.0",
    "negative zero": "def f(x): return x * -0.0",
    "integer": "def f(x): return x * 0",
    "a helper": "def f(x): return helper(x)",
    "a global": "def f(x): return x * helped",
    "a table": "def f(x): return x * table['a'][1]",
    "functions that call each other": "def f(x): return again(3)",
    "other rooms": "def f(x): return F.relu(x) * math.sqrt(torch.nn.functional.gelu(x).numel())",
    "a closure": "def g(k):\n    return lambda x: x * k\nf = g(3)",
    "another closure": "def g(k):\n    return lambda x: x * k\nf = g(4)",
    "a list": "def g(k):\n    return lambda x: x * k\nf = g([4])",
    "a set": "def g(k):\n    return lambda x: x in k\nf = g({'a', 'b', 'c'})",
    "a function within": "def f(x): return [(lambda y: y + 1)(v) for v in x]",
    "partial": "f = functools.partial(helper, x=3)",
    "an import": "def f(x):\n    import math\n    return math.ceil(x)",
    "an operator": "def f(x): return torch.ops.aten.sin.default(x)",
    "another": "def f(x): return ops.aten.cos(x)",
    "type": "def f(x): return torch.empty_like(x, dtype=torch.float16)",
    "a class": "class C:\n    n = 3\ndef f(x): return x * C.n",
    "another class": "class C:\n    n = 4\ndef f(x): return x * C.n",
    "a method": "class C:\n    def n(self): return 4\ndef f(x): return x * C().n()",
    "another method": "class C:\n    def n(self): return 5\ndef f(x): return x * C().n()",
    "a property": "class C:\n    n = property(helper)\ndef f(x): return x * C().n",
    "enumeration": "class C(enum.Enum): A = 1\ndef f(x): return x * C.A.value",
    "another enumeration": "class C(enum.Enum): A = 2\ndef f(x): return x * C.A.value",
    "its member": "class C(enum.Enum): A = 1; B = 2\nb = C.B\ndef f(x): return x is b",
    "another member": "class C(enum.Enum): A = 1; B = 2\nb = C.A\ndef f(x): return x is b",
    "its method": "class C(enum.Enum):\n    A = 1\n    def m(s): return 3\ndef f(x): return C.A",
    "other method": "class C(enum.Enum):\n    A = 1\n    def m(s): return 4\ndef f(x): return C.A",
    "inherited": "class B: n = 3\nclass C(B): m = 1\ndef f(x): return x * C.n",
    "inherited otherwise": "class B: n = 4\nclass C(B): m = 1\ndef f(x): return x * C.n",
    "operators by a name": "aten = torch.ops.aten\ndef f(x): return aten.sin.default(x)",
    "as a tensor": "def f(x):\n    with torch._C.DisableTorchFunctionSubclass(): return x",
    "errors": "def f(x):\n    if x.dim() > 3:\n        raise ValueError('no')\n    return x",
    "caught": "def f(x):\n    try: return x.view(3)\n    except ValueError: return x",
}


def test_whatever_a_function_does_counts() -> None:
    texts = {name: function_text(made(text)) for name, text in KNOWN.items()}
    assert len(set(texts.values())) == len(texts)
    for name, text in KNOWN.items():
        assert function_text(made("\n\n" + text)) == texts[name], name


@pytest.mark.parametrize(
    "text, changed",
    [
        ("def f(x): return helper(x)", {"helper": lambda x: x * 3}),
        ("def f(x): return helper(x)", {"helped": 3}),
        ("def f(x): return again(3)", {"helped": 3}),
        ("def f(x): return x * helped", {"helped": 2.0}),
        ("def f(x): return x * helped", {"helped": True}),
        ("def f(x): return x * table['a'][1]", {"table": {"a": [1, 2.6]}}),
        ("def f(x): return len(x)", {"len": math.ceil}),
        ("def f(x): return F.relu(x)", {"F": torch}),
    ],
)
def test_what_a_function_reads_counts(text: str, changed: dict[str, Any]) -> None:
    assert function_text(made(text)) != function_text(made(text, **changed))


def test_a_function_that_ran_often_is_the_same() -> None:
    f = made("def f(x):\n    return sum(helper(i) for i in range(x)) + again(2)")
    before = function_text(f)
    for _ in range(5000):
        f(9)
    assert function_text(f) == before


class Config:
    factor = object()


UNKNOWN = {
    "environment": "def f(x): return x * int(os.environ['N'])",
    "by name": "def f(x): return getattr(x, 'a' + 'b')",
    "by room": "def f(x): return torch.os.environ",
    "by another room": "def f(x): return F.torch.utils",
    "a device": "def f(x): return torch.cuda.device_count()",
    "a setting": "def f(x): return torch.backends.cudnn.enabled",
    "a seed": "def f(x): return torch.initial_seed()",
    "a set seed": "def f(x): return torch.manual_seed(3)",
    "sets": "def f(x): return torch.set_num_threads(3)",
    "an object": "def f(x): return x * config.factor",
    "a class": "def f(x): return Config.factor",
    "a random number": "def f(x): return random.random()",
    "writes": "def f(x):\n    global helped\n    helped = 3\n    return x",
    "runs text": "def f(x): return eval('x')",
    "imports": "def f(x):\n    import os\n    return os.getpid()",
    "imports a room": "def f(x):\n    from torch import backends\n    return backends",
    "imports beside": "def f(x):\n    from .math import sqrt\n    return sqrt",
    "an operator that is not known": "def f(x): return torch.ops.aten",
    "operators by another name": "named = torch.ops\ndef f(x): return named.aten.sin(x)",
    "operators in a variable": "def f(x):\n    o = torch.ops.aten\n    return o.sin(x)",
    "a room in a closure": "def g(k):\n    return lambda x: k.sin(x)\nf = g(torch)",
    "a metaclass": "class M(type): pass\nclass C(metaclass=M): pass\ndef f(x): return C",
    "of C": "def f(x): return torch._C._get_tracing_state()",
    "of triton": "import triton\ndef f(x): return triton.knobs.runtime",
    "a tensor": "def g(k):\n    return lambda x: x * k\nf = g(torch.ones(3))",
    "itself": "def g(k):\n    return lambda x: x * k[0]\nk = []\nk.append(k)\nf = g(k)",
    "an attribute": "def f(x): return f.n\nf.n = 3",
    "nothing there": "def f(x): return missing",
    "its names": "def f(x): return helper.__globals__['helped']",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(NotCached) as e:
        function_text(made(UNKNOWN[name], config=Config(), Config=Config))
    assert str(e.value)


# --- operators ---


def fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def other_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)


def gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * 2


def other_gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * 3


def define(
    fakes: Callable[..., Any] | None = fake,
    grads: Callable[..., Any] | None = gradient,
    **how: Any,
) -> Any:
    """A custom operator of one name."""
    op = torch.library.custom_op("litz_code::op", lambda x: x * 2, mutates_args=(), **how)
    if fakes is not None:
        op.register_fake(fakes)
    if grads is not None:
        op.register_autograd(grads)
    return op


def text_of(op: Any, traced: bool = True) -> str:
    return operator_text(op._opoverload, traced=traced)


SCHEMA = {"schema": "(Tensor x) -> Tensor"}


def test_what_is_registered_for_an_operator_counts() -> None:
    with_autocast = define(**SCHEMA)
    first = text_of(with_autocast)
    with_autocast.register_autocast("cpu", torch.bfloat16)
    texts = [
        first,
        text_of(with_autocast),
        text_of(define(other_fake, **SCHEMA)),
        text_of(define(grads=other_gradient, **SCHEMA)),
        text_of(define(grads=None, **SCHEMA)),
        text_of(define(schema="(Tensor y) -> Tensor")),
        text_of(define(tags=(torch.Tag.needs_fixed_stride_order,), **SCHEMA)),
    ]
    assert len(set(texts)) == len(texts)
    assert text_of(define(**SCHEMA)) == first


def test_a_gradient_counts_only_where_it_is_traced() -> None:
    texts = [text_of(define(grads=g, **SCHEMA), False) for g in (gradient, other_gradient)]
    assert texts[0] == texts[1] != text_of(define(other_fake, **SCHEMA), False)


def test_the_kernel_that_computes_does_not_count() -> None:
    op = define(**SCHEMA)
    before = text_of(op)
    op.register_kernel("cpu")(lambda x: x * 3)
    assert text_of(op) == before


def test_operators_that_a_gradient_calls_count() -> None:
    def inner(of: Callable[..., Any]) -> Any:
        op = torch.library.custom_op(
            "litz_code::inner", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
        )
        op.register_fake(of)
        return op

    texts = []
    for of in (fake, other_fake):
        called = inner(of)
        by_value = define(grads=lambda ctx, g, called=called: called(g), **SCHEMA)
        texts.append(text_of(by_value))
        by_name = define(grads=lambda ctx, g: torch.ops.litz_code.inner(g), **SCHEMA)
        texts.append(text_of(by_name))
    assert len(set(texts)) == 4


def why_not(op: torch._ops.OpOverload, traced: bool = True) -> str:
    with pytest.raises(NotCached) as e:
        operator_text(op, traced=traced)
    return str(e.value)


def test_collectives_are_pytorchs() -> None:
    pytest.importorskip("torch.distributed._functional_collectives")
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no collectives")
    gather = torch.ops._c10d_functional.all_gather_into_tensor.default
    assert "group_size" in operator_text(gather, traced=False)
    assert "Autograd" in why_not(gather)


def test_operators_of_a_library() -> None:
    with torch.library._scoped_library("litz_code_lib", "DEF") as lib:
        for name in ("plain", "meta", "grad", "parts", "python"):
            lib.define(f"{name}(Tensor x) -> Tensor")
            lib.impl(name, lambda x: x * 2, "CPU")
        ops = torch.ops.litz_code_lib
        assert "no fake kernel" in why_not(ops.plain.default)
        lib._register_fake("plain", fake)
        lib._register_fake("grad", fake)
        lib._register_fake("python", fake)
        first = operator_text(ops.plain.default, traced=True)
        ops.plain.default(torch.ones(3, device="meta"))  # PyTorch looks at the stub once
        assert operator_text(ops.plain.default, traced=True) == first

        lib.impl("meta", lambda x: torch.empty_like(x), "Meta")
        assert "no fake kernel" in why_not(ops.meta.default)
        lib.impl("grad", lambda x: x, "AutogradCPU")
        assert "AutogradCPU" in why_not(ops.grad.default)
        assert operator_text(ops.grad.default, traced=False)
        lib.impl("parts", lambda x: x + 1, "CompositeImplicitAutograd")
        assert "made of other operators" in why_not(ops.parts.default, False)
        ops.python.default.py_impl(torch._C.DispatchKey.Functionalize)(lambda x: x)
        assert "Python code" in why_not(ops.python.default, False)


def test_what_newer_pythons_add_to_classes_does_not_count() -> None:
    """Where a class stands and what its annotations are: the latter appear as they are read."""
    body = "class C:\n    n = 3\n    {}\ndef f(x): return x * C.n"
    names = "__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"
    added = "\n    ".join(f"{name} = [object()]" for name in names)
    assert function_text(made(body.format(added))) == function_text(made(body.format("")))
