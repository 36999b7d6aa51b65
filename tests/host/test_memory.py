"""Memory plans never change results: freed memory is poisoned, reuse is random programs' own."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, settings

from litz.host.inplace import inplace_pairs
from litz.host.lines import HostProgram, host_text
from litz.host.memory import plan_memory
from litz.host.peak import peak_bytes
from litz.host.plan import plan
from litz.host.python import load_host, print_host
from litz.schedule.groups import Group, Schedule

sys.path.insert(0, str(Path(__file__).parent))
from doubles import Arena, natives, prelude
from programs import S0, schedules

ROWS = {S0: 8}


def run(host: HostProgram, schedule: Schedule) -> tuple[list[torch.Tensor], Arena]:
    arena = Arena()
    groups = {s.name: s for s in schedule.steps if isinstance(s, Group)}
    source = print_host(host)
    call = load_host(source.source, {**source.values, **natives(host, groups)})
    call.__globals__.update(prelude(arena))
    gen = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(8, 8, generator=gen) if name in host.buffers else 8 for name in host.inputs
    ]
    out = call(tensors)
    assert tensors == []
    assert out[-2:] == (None, 7)
    return [o for o in out if isinstance(o, torch.Tensor)], arena


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(schedules())
def test_plans_keep_results(made):
    schedule, kernels = made
    plain = plan(schedule, kernels)
    buffers = schedule.program.buffers
    pairs = {
        s.name: inplace_pairs(s, buffers) for s in schedule.steps if isinstance(s, Group)
    }
    expected, _ = run(plain, schedule)
    ideal = peak_bytes(plain, ROWS)
    for options in ({"segments": False}, {"slack": 0}, {}, {"slack": 1 << 12}):
        planned = plan_memory(plain, pairs, ROWS, **options)
        got, arena = run(planned, schedule)
        for e, g in zip(expected, got, strict=True):
            assert torch.equal(e, g), host_text(planned)
            assert not e.isnan().any()
        peak = peak_bytes(planned, ROWS)
        assert peak <= ideal + options.get("slack", 1 << 20), host_text(planned)
        assert arena.peak <= peak, host_text(planned)
