"""What GPUs can do, from what their driver says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from litz.ir.dtype import BF16, F8E4, F32, I8
from litz.ir.program import Template
from litz.lowering.context import Settings
from litz.lowering.graph import lower_graph
from litz.passes.choose import TakeTemplates
from litz.passes.costs import LARGE, Costs
from litz.targets.triton.costs import costs_of


def gpu(monkeypatch: pytest.MonkeyPatch, major: int, minor: int, **facts: Any) -> None:
    found = {"clock_rate": 1_980_000, "multi_processor_count": 132, "memory_clock_rate": 3_201_000,
             "memory_bus_width": 6144, "L2_cache_size": 50 << 20, **facts}  # fmt: skip
    properties = SimpleNamespace(major=major, minor=minor, **found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_rates_are_those_of_its_units_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, 9, 0)
    found = costs_of("cuda:0")
    assert found is not None and found.matrix == pytest.approx(1.07e15, rel=0.01)
    assert found.memory == pytest.approx(4.18e12, rel=0.01)


def test_units_for_8_bits_are_twice_as_fast_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, floats in (((8, 0), 0), ((8, 9), 2), ((9, 0), 2)):
        gpu(monkeypatch, *version)
        found = costs_of("cuda:0")
        assert found is not None and found.rate(I8) == 2 * found.rate(BF16) == 2 * found.matrix
        assert found.rate(F8E4) == floats * found.matrix and found.rate(F32) == found.single


def test_cudnns_attention_is_known_where_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, major, allowed, own in ((91000, 9, True, 0.84), (None, 9, True, 0),
                                         (91000, 8, True, 0), (91000, 9, False, 0)):  # fmt: skip
        gpu(monkeypatch, major, 0)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda v=version: v)
        monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda v=allowed: v)
        found = costs_of("cuda")
        assert found is not None and found.attention == own


@pytest.mark.parametrize("facts", [{"memory_clock_rate": 0}, {"multi_processor_count": 0}])
def test_what_says_nothing_is_large(monkeypatch: pytest.MonkeyPatch, facts: Any) -> None:
    assert costs_of("cpu") is LARGE
    gpu(monkeypatch, 9, 0, **facts)
    assert costs_of("cuda") is LARGE
    gpu(monkeypatch, 99, 0)
    assert costs_of("cuda") is LARGE


def test_old_ones_have_no_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, 7, 5)
    assert costs_of("cuda:1") is None


@pytest.mark.parametrize(
    ("m", "n", "k", "own"),
    [
        (16, 4096, 4096, True),  # memory alone counts
        (4096, 4096, 512, True),  # what is behind it need not go through memory
        (128, 4096, 11008, False),  # small blocks read too much from the cache
        (512, 768, 3072, False),
    ],
)
def test_products_with_an_activation(m: int, n: int, k: int, own: bool) -> None:
    with FakeTensorMode():
        x, w = (torch.empty(s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
        graph = make_fx(lambda x, w: (torch.relu(x @ w),))(x, w)
    assert is_template(graph) is own


@pytest.mark.parametrize(
    ("m", "n", "k", "own"),
    [
        (8192, 30522, 768, True),
        (512, 32001, 4096, True),  # longer rows of the weights are a copy as well
        (4096, 50257, 1024, True),
        (8192, 8191, 16384, False),  # a copy of the result takes little beside the product
        (8192, 30528, 768, False),  # nothing is copied
    ],
)
@pytest.mark.parametrize("memory", [2.8e12, 4.1e12])
def test_results_of_uneven_rows_lie_in_memory_once(
    m: int, n: int, k: int, own: bool, memory: float
) -> None:
    """Where that takes little more time, whatever a copy of them takes."""
    with FakeTensorMode():
        x, w = (torch.empty(s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (n, k)))
        graph = make_fx(lambda x, w: (x @ w.mT,))(x, w)
    assert is_template(graph, replace(LARGE, matrix=1.07e15, memory=memory)) is own


def is_template(graph: GraphModule, costs: Costs = LARGE) -> bool:
    program = TakeTemplates({"cuda": costs})(lower_graph(graph, Settings(inference=True)))
    return any(isinstance(n, Template) for n in program.nodes)


@pytest.mark.parametrize("count", [1, 8])
def test_rows_of_a_group_read_the_matrix_of_that_group_alone(count: int) -> None:
    """Of eight, the blocks of 64 rows read one matrix once; of one, they all read it."""
    with FakeTensorMode():
        made = {"device": "cuda", "dtype": torch.bfloat16}
        x, w = torch.empty(512, 2048, **made), torch.empty(count, 2048, 4096, **made)
        ends = torch.empty(count, device="cuda", dtype=torch.int32)
        grouped = torch.ops.aten._grouped_mm.default
        graph = make_fx(lambda x, w, ends: (torch.relu(grouped(x, w, ends)),))(x, w, ends)
    assert is_template(graph) is (count == 8)
