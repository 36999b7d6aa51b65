"""Recording and replaying compiled graphs, on a stand-in for a GPU that keeps to addresses."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

import litz
from litz.artifact import Recording
from litz.binding import Recorder
from litz.host.capturable import groups_of, varying_and_written, why_not_recorded
from litz.ir.parse import parse
from litz.options import make_options
from litz.runtime import collectives
from litz.runtime.cuda_graphs import RECORDINGS, CudaGraphs, Family, Recordable


@dataclass
class FakeDevice:
    """Replaying runs the call once more on the memory of the recording, as a GPU would."""

    current: int = 7
    capturing: bool = False
    broken: str = ""
    pools: int = 0
    replays: int = 0
    captured: list[object] = field(default_factory=list)

    def stream(self) -> int:
        return self.current

    def is_capturing(self) -> bool:
        return self.capturing

    def new_pool(self) -> object:
        self.pools += 1
        return self.pools

    def capture(
        self, call: Callable[[list[Any]], Any], args: list[Any], pool: object
    ) -> tuple[Callable[[], None], Any]:
        if self.broken:
            raise RuntimeError(self.broken)
        self.captured.append(pool)
        given, args = args, [at_address(a) for a in args]
        before = [(m, m.clone()) for m in map(memory_of, args) if m is not None]
        results = call(given)
        for m, old in before:  # recording runs nothing
            m.copy_(old)
        memory = [r for r in results if isinstance(r, torch.Tensor)]
        memory = [at_address(r) for r in memory]

        def replay() -> None:
            self.replays += 1
            new = [r for r in call(list(args)) if isinstance(r, torch.Tensor)]
            for r, n in zip(memory, new, strict=True):
                if r.data_ptr() != n.data_ptr():
                    r.copy_(n)

        return replay, results


def at_address(a: Any) -> Any:
    """The tensor as a recording has it: by its address, which keeps nothing alive."""
    m = memory_of(a)
    if m is None:
        return a
    whole = (ctypes.c_char * (m.numel() * m.element_size())).from_address(a.data_ptr())
    return torch.frombuffer(whole, dtype=a.dtype).as_strided(a.shape, a.stride())


def memory_of(a: Any) -> torch.Tensor | None:
    """All memory from a tensor's first element to its last."""
    if not isinstance(a, torch.Tensor) or a.numel() == 0:
        return None
    span = 1 + sum((n - 1) * st for n, st in zip(a.shape, a.stride(), strict=True))
    return a.as_strided((span,), (1,))


def about(varying: tuple[int, ...] = (), written: tuple[int, ...] = ()) -> Recordable:
    return Recordable("inference", varying, frozenset(written))


def graphed(
    call: Callable[[list[Any]], Any], what: Recordable | None = None, **kwargs: Any
) -> tuple[CudaGraphs, FakeDevice]:
    device = FakeDevice()
    return CudaGraphs(call, what or about(), Family(device), **kwargs), device


def affine(args: list[Any]) -> tuple[torch.Tensor, ...]:
    x, w = args
    args.clear()
    return (x * 2 + w,)


def test_the_second_call_records_and_others_replay() -> None:
    run, device = graphed(affine)
    w = torch.randn(4)
    kept = [torch.randn(4) for _ in range(6)]  # alive: each at an address of its own
    for k, x in enumerate(kept):
        args = [x, w]
        (y,) = run(args)
        assert args == [] or k == 0
        torch.testing.assert_close(y, x * 2 + w)
        del y
    assert (run.recorded, device.replays) == (1, 5)
    w += 1  # a parameter's new values are seen: it is read where it is
    (y,) = run([kept[0], w])
    torch.testing.assert_close(y, kept[0] * 2 + w)


def test_held_results_are_never_overwritten() -> None:
    run, device = graphed(affine)
    w = torch.randn(4)
    xs = [torch.randn(4) for _ in range(9)]
    held: list[torch.Tensor] = []
    for x in xs:
        (y,) = run([x, w])
        held.append(y[1:])  # a view keeps the memory too
        del y
    for x, y in zip(xs, held, strict=True):
        torch.testing.assert_close(y, (x * 2 + w)[1:])
    assert run.recorded == RECORDINGS and device.replays == RECORDINGS
    assert "held" in run.reason
    held.clear()
    run([xs[0], w])
    assert device.replays == RECORDINGS + 1  # recordings are replayed again when they can be


def test_each_call_returns_objects_of_its_own() -> None:
    run, _ = graphed(affine)
    x, w = torch.randn(4), torch.randn(4)
    seen = []
    for _ in range(3):
        (y,) = run([x, w])
        assert not y._is_view()
        seen.append(id(y))
        y.requires_grad_()
        del y
    (y,) = run([x, w])
    assert not y.requires_grad


def test_writes_to_results_in_one_memory_are_counted_as_they_were() -> None:
    def call(args: list[Any]) -> tuple[torch.Tensor, ...]:
        y = args.pop() * 2
        return y, y, y.as_strided((2,), (1,), 1).detach(), y.data

    run, _ = graphed(call)
    x = torch.randn(4)
    for _ in range(3):
        y, same, part, other = run([x])
        assert not part._is_view()
        torch.testing.assert_close(part, y[1:3])
        part.add_(1)
        torch.testing.assert_close(y[1:3], x[1:3] * 2 + 1)
        assert (y._version, same._version) == (1, 1) and other._version == 0
        del y, same, part, other
    assert run.recorded == 1


def test_an_address_that_moves_is_copied_from_then_on() -> None:
    run, device = graphed(affine)
    x, w = torch.randn(4), torch.randn(4)
    run([x, w])
    run([x, w])
    others = [torch.randn(4) for _ in range(4)]
    for other in others:
        (y,) = run([other, w])
        torch.testing.assert_close(y, other * 2 + w)
        del y
    assert run.recorded == 1  # the first was let go
    assert len(device.captured) == 2 and run.reason == ""


def test_copies_keep_strides_gaps_and_overlaps() -> None:
    def call(args: list[Any]) -> tuple[torch.Tensor, ...]:
        (x,) = args
        assert x.stride() == stride
        return (x + 1,)

    base = torch.arange(40.0)
    for view in (
        lambda t: t.view(5, 8).t(),
        lambda t: t.view(5, 8)[:, 1:4],
        lambda t: t[:4].expand(3, 4),
        lambda t: t[:0],
    ):
        run, _ = graphed(call)
        kept = []
        for k in range(4):
            own = base.clone() + k
            kept.append(own)
            x = view(own)
            stride = x.stride()
            (y,) = run([x])
            torch.testing.assert_close(y, x + 1)
            del y
        assert run.recorded == 1


def test_written_arguments_are_written_where_they_are() -> None:
    def call(args: list[Any]) -> tuple[torch.Tensor, ...]:
        cache, x = args
        cache += x
        return (cache.sum(),)

    run, _ = graphed(call, about(written=(0,)))
    a, b = torch.zeros(3), torch.zeros(3)
    for k in range(8):
        cache = (a, b)[k % 2]
        x = torch.full((3,), float(k))
        before = cache.clone()
        (total,) = run([cache, x])
        torch.testing.assert_close(cache, before + x)
        torch.testing.assert_close(total, cache.sum())
        del total
    assert run.recorded == 2  # one for each cache


def test_arguments_among_the_results() -> None:
    def call(args: list[Any]) -> tuple[Any, ...]:
        x, w = args
        return x, w, w[1:], x * w, None, 3

    run, _ = graphed(call)
    w = torch.randn(4)
    kept = []
    for _ in range(4):
        x = torch.randn(4)
        kept.append(x)
        out = run([x, w])
        assert out[0] is x and out[1] is w and out[4:] == (None, 3)
        assert out[2].data_ptr() == w[1:].data_ptr()
        torch.testing.assert_close(out[3], x * w)
        del out
    assert run.recorded == 1


def test_shapes_and_numbers_have_recordings_of_their_own() -> None:
    def call(args: list[Any]) -> tuple[torch.Tensor, ...]:
        n, x, scale = args
        return (x[:n] * scale,)

    run, device = graphed(call, about((0, 1, 2)), limit=3)
    for n, scale in ((2, 0.0), (3, 0.5), (2, -0.0)) * 3:
        x = torch.ones(n + 1)
        (y,) = run([n, x, scale])
        torch.testing.assert_close(y, x[:n] * scale)
        assert torch.equal(torch.signbit(y), torch.signbit(x[:n] * scale))
        del y
    assert run.recorded == 3 and run.reason == ""
    (y,) = run([5, torch.ones(6), 2.0])
    assert y.tolist() == [2.0] * 5 and "more than 3 shapes" in run.reason
    replays = device.replays
    run([2, torch.ones(3), 0.0])
    assert device.replays == replays + 1  # what is recorded stays so


def test_forward_and_backward_share_a_pool() -> None:
    device = FakeDevice()
    family = Family(device)

    def forward(args: list[Any]) -> tuple[torch.Tensor, ...]:
        x, w = args
        return x * w, x + w

    def backward(args: list[Any]) -> tuple[torch.Tensor, ...]:
        saved, w, grad = args
        return (saved * grad * w,)

    fw, bw = (CudaGraphs(f, about(), family) for f in (forward, backward))
    w = torch.randn(4)
    kept = []
    for _ in range(5):
        x, grad = torch.randn(4), torch.randn(4)
        kept += [x, grad]
        y, saved = fw([x, w])
        (g,) = bw([saved, w, grad])
        torch.testing.assert_close(g, (x + w) * grad * w)
        del y, saved, g
    assert (fw.recorded, bw.recorded) == (1, 1)
    assert set(device.captured) == {1}
    (recording,) = next(iter(bw.shapes.values())).recordings
    assert [k for k, _ in recording.copied] == [2]  # what forward saved is read where it is


def test_a_held_result_of_a_later_recording_makes_an_earlier_one_move() -> None:
    """The earlier one's temporaries may lie where the later one's results are."""
    device = FakeDevice()
    family = Family(device)
    fw, bw = (CudaGraphs(affine, about(), family) for _ in range(2))
    x, w = torch.randn(4), torch.randn(4)
    for _ in range(2):
        fw([x, w])
        bw([x, w])
    (grad,) = bw([x, w])
    replayed = device.captured[:]
    assert replayed == [1, 1]
    fw([x, w])
    assert device.captured == [1, 1, 2]  # a pool of its own
    del grad
    fw([x, w])
    assert device.captured == [1, 1, 2]


def test_what_is_let_go_still_counts_while_its_results_are_held() -> None:
    device = FakeDevice()
    family = Family(device)
    first, second = (CudaGraphs(affine, about(), family) for _ in range(2))
    x, w = torch.randn(4), torch.randn(4)
    for _ in range(2):
        first([x, w])
        second([x, w])
    (held,) = second([x, w])
    other = torch.randn(4)
    second([other, w])  # records anew, with the argument copied; the old recording goes
    assert not family.is_safe(next(iter(first.shapes.values())).recordings[0])
    del held
    family.forget()
    assert family.is_safe(next(iter(first.shapes.values())).recordings[0])


def test_calls_that_run_plainly(caplog: pytest.LogCaptureFixture) -> None:
    x, w = torch.randn(4), torch.randn(4)
    run, device = graphed(affine)
    device.capturing = True
    for _ in range(3):
        run([x, w])
    assert run.recorded == 0 and run.reason == ""
    device.capturing = False
    run([x, w])
    device.current = 8
    with caplog.at_level(logging.INFO, "litz"):
        for _ in range(3):
            run([x, w])
    assert run.recorded == 0 and "several streams" in run.reason
    assert [m for m in caplog.messages if "several streams" in m] == [
        "the inference graph is not recorded as a CUDA graph: it is called on several streams"
    ]


def test_a_recording_that_fails_leaves_plain_calls() -> None:
    run, device = graphed(affine)
    device.broken = "operation not permitted when stream is capturing\nmore"
    x, w = torch.randn(4), torch.randn(4)
    for _ in range(3):
        (y,) = run([x, w])
        torch.testing.assert_close(y, x * 2 + w)
    assert run.reason.endswith("RuntimeError: operation not permitted when stream is capturing")
    device.broken = ""
    run([x, w])
    assert run.recorded == 0


# --- what may be recorded -------------------------------------------------------------------------


def program(body: str, inputs: str = "a: f32[4]{1} @cuda:0 input") -> Any:
    names = [line.partition(":")[0].strip() for line in inputs.split("\n")]
    text = f"program({', '.join(names)}) {{\n{inputs}\n{body}\n}}"
    return parse(text, resolve=_resolve)


def _resolve(name: str) -> object:
    found: object = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


LOOPS = """buf: f32[4]{1} @cuda:0 temp
l = loops [i0 < 4] @cuda:0 {
  %0: f32 = load a[i0]
  store buf[i0] = %0
}
"""
EXTERN = "o: f32[4]{1} @cuda:0 extern\nx = extern "


@pytest.mark.parametrize(
    ("body", "inputs", "reason"),
    [
        (LOOPS + "return (buf)", None, ""),
        (LOOPS.replace("cuda:0", "cpu") + "return (buf)", "a: f32[4]{1} @cpu input", "on a GPU"),
        (
            LOOPS + "return (buf)",
            "a: f32[4]{1} @cuda:0 input\nb: f32[]{} @cpu input",
            "b is on cpu",
        ),
        (
            LOOPS + "return (buf)",
            "a: f32[4]{1} @cuda:0 input\nb: f32[]{} @cuda:1 input",
            "cuda:0 and cuda:1",
        ),
        (
            "symbol u0 in [0, inf]\n"
            "x = extern aten.item.default(a) -> (_) @cuda:0 symbols (0: u0) because 'r'\nreturn ()",
            None,
            "aten.item.default reads a number back",
        ),
        (
            "symbol u0 in [0, inf]\no: f32[u0]{1} @cuda:0 extern\n"
            "x = extern aten.nonzero.default(a) -> (o) @cuda:0 sizes (0.0: u0) because 'r'\n"
            "return (o)",
            None,
            "depends on data",
        ),
        (EXTERN + "aten.relu.default(a) -> (o) @cuda:0 because 'r'\nreturn (o)", None, ""),
    ],
)
def test_reasons_against_recording(body: str, inputs: str | None, reason: str) -> None:
    p = program(body, inputs) if inputs else program(body)
    found = why_not_recorded(p)
    assert reason in found and bool(reason) == bool(found)


def test_what_a_recording_knows_of_the_arguments() -> None:
    p = parse(
        """program(s0, a, b, c) {
  symbol s0 in [2, inf] hint 8
  bind s0 = 0
  a: f32[4]{1} @cuda:0 input
  b: f32[s0]{1} @cuda:0 input
  c: u8[]{} @cuda:0 opaque
  l = loops [i0 < 4] @cuda:0 {
    %0: f32 = load b[i0]
    store a[i0] = %0
  }
  return (a)
}"""
    )
    assert varying_and_written(p) == ((0, 2, 3), frozenset({1}))


@pytest.mark.parametrize(
    ("mode", "shapes", "wanted"),
    [
        ("reduce-overhead", 8, True),
        ("max-autotune", 8, True),
        ("max-autotune-no-cudagraphs", 8, False),
        ("default", 8, False),
        ("reduce-overhead", 0, False),
    ],
)
def test_modes(mode: str, shapes: int, wanted: bool) -> None:
    assert Recorder(make_options({"cuda_graph_shapes": shapes}, mode)).wanted is wanted


def test_transfers_are_recorded_where_they_are_calls_on_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(make_options({}, "reduce-overhead"))
    about = Recording("", groups=("0", "1"))
    backends = {"0": "nccl", "1": "gloo"}
    monkeypatch.setattr(collectives, "gpu_backend", backends.get)
    assert recorder.record(affine, about, "forward") == "process group 1 communicates by gloo"
    backends["1"] = "nccl"
    assert isinstance(recorder.record(affine, about, "forward"), CudaGraphs)
    backends["0"] = ""
    assert "not known" in str(recorder.record(affine, about, "forward"))


@pytest.mark.skipif(not dist.is_available(), reason="PyTorch was built without it")
def test_a_recording_knows_with_whom_it_communicates() -> None:
    from collective_cases import compiled, one_process

    ops = torch.ops._c10d_functional
    with one_process():
        name = dist.group.WORLD.group_name

        def fn(x: torch.Tensor) -> torch.Tensor:
            return ops.wait_tensor(ops.all_reduce(x * 2, "sum", name)) + 1

        stages, _ = compiled(fn, torch.randn(8))
        assert stages.program is not None
        assert groups_of(stages.program) == (name,)
        assert collectives.why_not_recorded(name) == f"process group {name} communicates by gloo"
    assert why_not_recorded(stages.program) == "no tensor is on a GPU"


def test_explain_says_why_not() -> None:
    x = torch.randn(4)
    report = litz.explain(torch.sin, x, options={"mode": "reduce-overhead"})
    assert "not a CUDA graph: no tensor is on a GPU" in str(report)
    torch._dynamo.reset()
    compiled: Any = torch.compile(torch.sin, backend="litz", mode="reduce-overhead")
    torch.testing.assert_close(compiled(x), x.sin())
