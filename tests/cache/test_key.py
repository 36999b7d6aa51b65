"""Near misses: whatever changes an artifact changes the key, and what has no key says why."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from litz.artifact import to_bytes
from litz.cache import key as keys
from litz.cache.key import NotCached, graph_key
from litz.compiler import compile_graph
from litz.dynamo import real_tensors
from litz.options import Options, make_options

aten = torch.ops.aten
PLAIN = make_options({"check_calls": False}, environ={})


def traced(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> GraphModule:
    """The ATen graph that AOTAutograd makes for inference."""
    found: list[GraphModule] = []

    def take(gm: GraphModule, _: Any) -> Any:
        found.append(gm)
        return gm.forward

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=take, keep_inference_input_mutations=True)
    with torch.no_grad():
        torch.compile(fn, backend=backend, dynamic=dynamic)(*args)
    return found[0]


def key(gm: GraphModule, options: Options = PLAIN, **kwargs: bool) -> str:
    with real_tensors():
        return graph_key(gm, options, **{"inference": True, "guarded": True, **kwargs})


def key_of(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    return key(traced(fn, *args), **kwargs)


def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2.0 + y, -1)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(4, 6), torch.ones(4, 6)


def test_the_same_graph_has_the_same_key_and_artifact() -> None:
    first, second = traced(model, *inputs()), traced(model, *inputs())
    assert key(first) == key(second)
    made = [
        to_bytes(compile_graph(g, PLAIN, inference=True, guarded=True)) for g in (first, second)
    ]
    assert made[0] == made[1]


def _int(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 + y, -1)


def _constant(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2.0000000000000004 + y, -1)


def _dim(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2.0 + y, 0)


def _swapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(y + x * 2.0, -1)


def _both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r = torch.softmax(x * 2.0 + y, -1)
    return r, r.sin()


NEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "shape": (model, (torch.ones(4, 7), torch.ones(4, 7))),
    "broadcast": (model, (torch.ones(4, 6), torch.ones(1, 6))),
    "stride": (model, (torch.ones(6, 4).t(), torch.ones(4, 6))),
    "one stride": (model, (torch.ones(4, 7)[:, :6], torch.ones(4, 6))),
    "offset": (model, (torch.ones(25)[1:].view(4, 6), torch.ones(4, 6))),
    "dtype": (model, (torch.ones(4, 6).double(), torch.ones(4, 6).double())),
    "dtype of one": (model, (torch.ones(4, 6), torch.ones(4, 6).half())),
    "an int": (_int, inputs()),
    "constant": (_constant, inputs()),
    "dim": (_dim, inputs()),
    "order": (_swapped, inputs()),
    "results": (_both, inputs()),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_of_graphs(name: str) -> None:
    fn, args = NEAR[name]
    assert key_of(fn, *args) != key_of(model, *inputs())


def test_near_misses_of_options() -> None:
    gm = traced(model, *inputs())
    given: list[dict[str, Any]] = [
        {},
        {"numerics": "fast"},
        {"rng": "eager"},
        {"fuel": 1},
        {"isa": "generic"},
        {"mode": "max-autotune"},
        {"equal_regions": False},
    ]
    keys = [key(gm, make_options({"check_calls": False, **g}, environ={})) for g in given]
    keys += [key(gm, inference=False), key(gm, guarded=False)]
    assert len(set(keys)) == len(keys)
    # Where kernels are kept says nothing of the code.
    assert key(gm, make_options({"cache_dir": "/nowhere", "check_calls": False})) == keys[0]


def test_a_users_pass_counts_by_its_uuid() -> None:
    class Pass:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, gm: Any) -> None: ...

        def uuid(self) -> str:
            return self.name

    gm = traced(model, *inputs())
    a, b, again = (
        key(gm, make_options({"before_passes": Pass(n), "check_calls": False})) for n in "aba"
    )
    assert a == again and len({a, b, key(gm)}) == 3


def test_near_misses_of_metadata() -> None:
    """One thing changed in the metadata of one node."""
    gm = traced(model, *inputs())
    base = key(gm)
    mode = next(iter(gm.graph.nodes)).meta["val"].fake_mode

    def fake(**kwargs: Any) -> torch.Tensor:
        with mode:
            return torch.empty((4, 6), **kwargs)

    with mode:
        one = torch.empty(4, 6)
        others = {
            "strides": torch.empty(6, 4).t(),
            "dtype": torch.empty(4, 6, dtype=torch.int32),
            "offset": torch.empty(30)[6:].view(4, 6),
            "gradient": torch.empty(4, 6, requires_grad=True),
            "conjugate": torch.empty(4, 6, dtype=torch.complex64).conj(),
            "plain complex": torch.empty(4, 6, dtype=torch.complex64),
            "none": None,
        }
    seen = {base}
    nodes = [n for n in gm.graph.nodes if n.op != "output"]
    for at in range(len(nodes)):
        for val in others.values():
            changed = copy.copy(gm)
            n = nodes[at]
            old = n.meta["val"]
            n.meta["val"] = val
            seen.add(key(changed))
            n.meta["val"] = old
    assert len(seen) == 1 + len(nodes) * len(others)
    # Inputs in one memory.
    first, second = nodes[:2]
    apart = key(gm)
    first.meta["val"] = second.meta["val"] = one
    assert key(gm) != apart
    with mode:
        second.meta["val"] = torch.empty(4, 6)
    assert key(gm) == apart


def test_near_misses_of_arguments() -> None:
    """Values that Python holds to be equal."""
    gm = traced(model, *inputs())
    (mul,) = (n for n in gm.graph.nodes if n.target is aten.mul.Tensor)
    keys = set()
    values = (2.0, 2, True, 1, 1.0, 0.0, -0.0, "2.0", None, float("nan"), -float("nan"), 2j)
    for value in (*values, torch.float32, "torch.float32", (2,), [2], ((2,),), mul.args[0]):
        mul.args = (mul.args[0], value)
        keys.add(key(gm))
    assert len(keys) == len(values) + 6


def test_sizes_that_are_symbols_count_with_all_that_is_known_of_them() -> None:
    def with_guard(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return model(x, y) if x.shape[0] > 3 else x

    def at(rows: int, fn: Callable[..., Any] = model, **limits: int) -> str:
        x, y = torch.ones(rows, 6), torch.ones(rows, 6)
        for t in (x, y):
            torch._dynamo.mark_dynamic(t, 0, **limits)
        return key(traced(fn, x, y))

    keys = [at(4), at(5), at(4, min=2, max=64), at(4, with_guard), key_of(model, *inputs())]
    assert len(set(keys)) == len(keys) and at(4) == keys[0]


def test_a_name_and_the_order_of_nodes_count() -> None:
    gm = traced(lambda x: (x.sin(), x.cos()), torch.ones(3))
    base = key(gm)
    sin, cos = (n for n in gm.graph.nodes if n.op == "call_function")
    cos.append(sin)
    moved = key(gm)
    sin._rename("other")
    assert len({base, moved, key(gm)}) == 3


def test_where_dropout_stands_counts() -> None:
    drop = torch.nn.functional.dropout

    def before(x: torch.Tensor) -> torch.Tensor:
        return drop(x, 0.5).sin()

    def after(x: torch.Tensor) -> torch.Tensor:
        return drop(x.sin(), 0.5)

    def less(x: torch.Tensor) -> torch.Tensor:
        return drop(x.sin(), 0.25)

    assert len({key_of(f, torch.ones(8)) for f in (before, after, less)}) == 3


def test_contents_of_constants_count() -> None:
    def with_constant(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x + torch.tensor([1.0, value, 3.0])

    a, b, again = (traced(with_constant(v), torch.ones(3)) for v in (2.0, 2.5, 2.0))
    assert any(n.op == "get_attr" for n in a.graph.nodes)
    assert key(a) == key(again) != key(b)


def test_the_state_of_the_process_counts() -> None:
    gm = traced(model, *inputs())
    base, threads = key(gm), torch.get_num_threads()
    found = set()
    try:
        torch.set_default_dtype(torch.float64)
        found.add(key(gm))
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(True)
        found.add(key(gm))
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads + 1)
        found.add(key(gm))
        torch.set_num_threads(threads)
        with sdpa_kernel(SDPBackend.MATH):
            found.add(key(gm))
        with torch.backends.cudnn.flags(enabled=False):
            found.add(key(gm))
        if torch.set_flush_denormal(True):
            found.add(key(gm))
            torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision("medium")
        found.add(key(gm))
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # of this backend alone
        found.add(key(gm))
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    assert base not in found and len(found) >= 7 and key(gm) == base


def test_sources_that_changed_since_their_import(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = traced(model, *inputs())
    keys._sources.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(keys, "_STARTED", 0.0)
        with pytest.raises(NotCached, match="changed after"):
            key(gm)
    assert key(gm)


def test_without_a_key() -> None:
    def why(gm: GraphModule, **options: Any) -> str:
        with pytest.raises(NotCached) as e:
            key(gm, make_options({"check_calls": False, **options}))
        return str(e.value)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert "depend" in why(traced(lambda x: x.nonzero() * 2, torch.ones(3)))
    gm = traced(model, *inputs())
    for name in ("verify", "check_ir", "check_calls"):
        assert name in why(gm, **{name: True})
    assert "show" in why(gm, show="host") and "target" in why(gm, target="triton")
    logger = logging.getLogger("litz.schedule")
    logger.setLevel(logging.DEBUG)
    try:
        assert "schedule" in why(gm)
    finally:
        logger.setLevel(logging.NOTSET)
    assert "meta" in why(traced(lambda x: x + 1, torch.ones(3, device="meta")))

    (mul,) = (n for n in gm.graph.nodes if n.target is aten.mul.Tensor)
    mul.args = (mul.args[0], torch.Generator())
    assert "Generator" in why(gm)


def test_bodies_are_part_of_the_key() -> None:
    def branch(factor: float, other: Any = torch.cos) -> Any:
        def fn(x: torch.Tensor) -> Any:
            return torch.cond(x.sum() > 0, lambda x: x.sin() * factor, lambda x: other(x), (x,))

        return traced(fn, torch.ones(3))

    graphs = [branch(2.0), branch(3.0), branch(2.0, torch.exp)]
    assert all("get_attr" in {n.op for n in g.graph.nodes} for g in graphs)
    assert len({key(g) for g in graphs}) == 3 and key(graphs[0]) == key(branch(2.0))
    (body, *_) = (m for m in graphs[0].children() if isinstance(m, torch.fx.GraphModule))
    (mul,) = (n for n in body.graph.nodes if n.target is aten.mul.Tensor)
    mul.args = (mul.args[0], torch.Generator())
    with pytest.raises(NotCached, match="Generator"):
        key(graphs[0])


def test_operators_whose_fake_kernel_is_not_known_have_no_key() -> None:
    with torch.library._scoped_library("litz_cache_test", "DEF") as lib:
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: x * 2, "CPU")
        lib.impl("twice", lambda x: torch.empty_like(x), "Meta")
        gm = traced(lambda x: torch.ops.litz_cache_test.twice(x), torch.ones(3))
        with pytest.raises(NotCached, match="no fake kernel in Python"):
            key(gm)


def test_a_constant_that_others_may_change_has_no_key() -> None:
    gm = traced(lambda x: x + torch.tensor([1.0, 2.0]), torch.ones(2))
    for n in gm.graph.nodes:
        if n.target is aten.lift_fresh_copy.default:
            n.target = aten.clone.default
    with pytest.raises(NotCached, match="no constant that is written down"):
        key(gm)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.parametrize("op, key_of_kernel", [("sin", "CPU"), ("cos", "Meta"), ("silu", "CPU")])
def test_kernels_over_atens_have_no_key(op: str, key_of_kernel: str) -> None:
    """Whether the graph calls the operator or not: composite ones are traced by others' kernels."""
    gm = traced(model, *inputs())
    called = traced(lambda x: getattr(aten, op)(x), torch.ones(3))
    base = key(gm)
    with torch.library._scoped_library("aten", "IMPL") as lib:
        lib.impl(op, lambda x: torch.empty_like(x), key_of_kernel)
        for graph in (gm, called):
            with pytest.raises(NotCached, match=f"stands over PyTorch's: aten::{op}"):
                key(graph)
    assert key(gm) == base and key(called)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_kernels_that_nobody_named_are_found_by_their_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As C++ registers them."""
    gm = traced(lambda x: x.sin(), torch.ones(3))
    monkeypatch.setattr(keys, "users_kernels", str)
    with torch.library._scoped_library("aten", "IMPL") as lib:
        lib.impl("sin", lambda x: x, "CPU")
        with pytest.raises(NotCached, match="not PyTorch's, of .*library.py"):
            key(gm)
    assert key(gm)


def test_libraries_of_operators_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gm = traced(model, *inputs())
    found, library = [key(gm)], tmp_path / "ops.so"
    monkeypatch.setattr(torch.ops, "loaded_libraries", {str(library)})
    for content in ("one", "other code"):
        library.write_text(content)
        found.append(key(gm))
    assert len(set(found)) == 3 and key(gm) == found[-1]
    library.unlink()
    with pytest.raises(NotCached, match="not where it was"):
        key(gm)
