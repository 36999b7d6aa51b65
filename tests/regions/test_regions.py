"""Equal regions, traced once: graphs are node for node PyTorch's own, results bitwise the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.node import map_arg
from torch.nn import functional

from litz import backend as litz_backend
from litz import dynamo
from litz.backend import compile_with
from litz.options import make_options
from litz.regions import find
from litz.regions.memory import Fakes, as_traced
from litz.regions.place import _Call
from litz.regions.placing import Placing
from litz.runtime.torch_private import storage_address
from litz.stages import Stages
from tests.quick import some

Seen = list[tuple[str, list[object], str]]


def text(gm: GraphModule) -> list[object]:
    """A graph without its nodes' names: metadata, and calls with numbers for nodes."""
    number = {n: i for i, n in enumerate(gm.graph.nodes)}

    memory: dict[int, int] = {}

    def described(v: object) -> object:
        if isinstance(v, tuple | list):
            return tuple(map(described, v))
        if not isinstance(v, torch.Tensor):
            return v
        at = memory.setdefault(storage_address(v.untyped_storage()), len(memory))
        return (v.shape, v.stride(), v.dtype, at)

    return [
        (
            n.op,
            "" if n.op == "placeholder" else str(n.target),
            repr(map_arg((n.args if n.op != "placeholder" else (), n.kwargs), number.__getitem__)),
            described(n.meta.get("val")),
        )
        for n in gm.graph.nodes
    ]


def run(
    program: Callable[..., Any], inputs: Sequence[torch.Tensor], regions: bool, **how: Any
) -> tuple[list[torch.Tensor], Seen]:
    """Results and gradients, and the graphs that AOTAutograd made with what was said of regions."""
    seen: Seen = []

    def backend(gm: GraphModule, examples: Sequence[Any]) -> Any:
        def observe(kind: str, graph: GraphModule, stages: Stages) -> None:
            seen.append((kind, text(graph), stages.regions))

        options = make_options({"equal_regions": regions})
        return compile_with(gm, examples, options, observe)

    torch.compiler.reset()
    torch.manual_seed(1)
    program = copy.deepcopy(program)
    own = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    out = torch.compile(program, backend=backend, **how)(*own)
    found = [out.detach()]
    if out.requires_grad:
        with torch.enable_grad():
            out.square().sum().backward()
        given = [*own, *(program.parameters() if isinstance(program, nn.Module) else ())]
        found += [x.grad for x in given if x.grad is not None]
    return found, seen


def check(
    program: Callable[..., Any], inputs: Sequence[torch.Tensor], said: str, **how: Any
) -> None:
    """The same graphs and the same bits as the plain way; ``said`` of the regions."""
    plain, expected = run(program, inputs, False, **how)
    results, seen = run(program, inputs, True, **how)
    assert seen
    assert all(said in s for _, _, s in seen), seen[0][2]
    assert [s[:2] for s in seen] == [s[:2] for s in expected]
    assert len(results) == len(plain)
    assert all(map(torch.equal, results, plain))


class Block(nn.Module):
    """A residual block with whatever follows."""

    def __init__(self, width: int = 16, then: Callable[[torch.Tensor], torch.Tensor] | None = None):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(functional.gelu(self.up(self.norm(x))).sin().cos())
        return x if self.then is None else self.then(x)


@pytest.fixture(autouse=True)
def through_aten(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal graphs compile to equal code; one test compiles them, the others interpret them."""
    if request.node.name != "test_pre_norm":
        run = lambda graph, *_: dynamo.interpreted(graph)  # noqa: E731
        monkeypatch.setattr(litz_backend, "_found_or_compiled", run)


def stack(*blocks: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), *blocks)


X = torch.randn(3, 5, 16)


class Gated(nn.Module):
    """A pre-norm residual block of gated units: its elementwise calls reach from block to block."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def encoder(dropout: float = 0.1, layers: int = 3) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def test_training_with_dropout() -> None:
    check(encoder().train(), [X], "traced once: 2 x")  # the first has no gradient to hand on


def test_inference() -> None:
    with torch.no_grad():
        check(stack(*(Block() for _ in range(3))).eval(), [X], "traced once: 3 x")


class GradientsBehind(nn.Module):
    """Layers without gradients, then a result that has one."""

    def __init__(self, asked: bool) -> None:
        super().__init__()
        self.layers, self.asked = stack(*(Block() for _ in range(3))), asked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.layers(x)
        with torch.set_grad_enabled(self.asked):
            return y * self.layers[0].weight[0]


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs AOTAutograd is not shown, each time that it is called."""
    found: list[int] = []
    shown = Placing.shown

    def counted(self: Placing, given: Sequence[Any]) -> Sequence[Any]:
        made = shown(self, given)
        found.append(len(given) - len(made))
        return made

    monkeypatch.setattr(Placing, "shown", counted)
    return found


@pytest.mark.parametrize("asked", [True, False])
def test_inputs_that_aotautograd_is_not_shown(asked: bool, hidden: list[int]) -> None:
    with torch.no_grad():
        check(GradientsBehind(asked), [X], "traced once: 3 x")
    assert hidden == ([0, 18, 0] if asked else [0, 18])


def test_others_that_aotautograd_puts_together(hidden: list[int]) -> None:
    layers = stack(*(Block() for _ in range(3)))

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.add_(1)
        return layers(X).sum() + a.sum()

    backend = lambda gm, examples: compile_with(gm, examples, make_options({}))  # noqa: E731
    memory, again = torch.ones(12), torch.ones(12)
    torch.compiler.reset()
    with torch.no_grad():
        expected = program(memory[:8], memory[4:])
        found = torch.compile(program, backend=backend)(again[:8], again[4:])
    assert hidden == [18, 0]
    assert torch.equal(memory, again)
    torch.testing.assert_close(found, expected)


def test_pre_norm() -> None:
    check(stack(*(Block() for _ in range(4))), [X], "traced once: 4 x")


def test_two_kinds_of_layers_in_turn() -> None:
    blocks = [Block(then=f) for _ in range(3) for f in (torch.tanh, torch.exp)]
    check(stack(*blocks), [X], "traced once: 3 x")


def test_two_stacks_of_layers() -> None:
    narrow, wide = ([Block(w) for _ in range(3)] for w in (16, 24))
    check(stack(*narrow, nn.Linear(16, 24), *wide), [X], "traced once: 3 x 7 calls, 3 x 7 calls")


def test_input_gradients() -> None:
    check(stack(*(Block() for _ in range(3))), [X.clone().requires_grad_()], "traced once")


class Total(nn.Module):
    """Its gradients reach the last layer expanded from one number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = stack(*(Block(then=torch.sin) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).sum()


def test_gradients_of_another_layout() -> None:
    check(Total(), [X], "traced once: 3 x")


class Gradless(nn.Module):
    """Grad mode and autocast are set before the layers, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = stack(*(Block() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            scale = x.exp().mean()
        return self.layers(x * scale)


def test_modes_that_are_set_back() -> None:
    check(Gradless(), [X], "traced once: 3 x")


# --- parted with four parts ---

MANY = {
    "encoder": lambda: encoder(layers=8).train(),
    "pre-norm": lambda: stack(*(Block() for _ in range(7))),
    "two kinds": lambda: stack(*(Block(then=f) for _ in range(6) for f in (torch.tanh, torch.exp))),
    "gated": lambda: stack(*(Gated() for _ in range(8))),
    "two stacks": lambda: stack(
        *(Block() for _ in range(6)), nn.Linear(16, 24), *(Block(24) for _ in range(7))
    ),
    # Each reads what the one before it gives as a view.
    "norm behind": lambda: stack(
        *(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16)) for _ in range(9))
    ),
}


@pytest.mark.parametrize("kind", some(list(MANY), 2))
def test_many_layers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitioner sees few of them, and forward and backward are what they were."""
    seen: list[int] = []
    own = dynamo.min_cut_rematerialization_partition

    def counted(joint: GraphModule, *args: Any, **kwargs: Any) -> Any:
        seen.append(len(joint.graph.nodes))
        return own(joint, *args, **kwargs)

    monkeypatch.setattr(dynamo, "min_cut_rematerialization_partition", counted)
    check(MANY[kind](), [X], "traced once")
    whole, *_, short = seen
    assert short < 0.85 * whole


class Scaled(nn.Module):
    """Each layer has a scale that is computed before all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = stack(*(Block() for _ in range(6)))
        self.scales = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales = [(k * self.scales).sum() for k in range(6)]
        x = self.layers[0](x)
        for layer, scale in zip(self.layers[1:], scales, strict=True):
            x = layer(x) * scale
        return x


def test_parted_whole() -> None:
    check(Scaled(), [X], "parted whole: parts read what is made before them")


# --- the plain way ---


def test_a_parameter_of_all_layers() -> None:
    block = Block()
    check(stack(block, block, block), [X], "come from several places")


class Kept(nn.Module):
    """All layers' results leave."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = stack(*(Block() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        return torch.stack(found)


def test_results_of_all_layers() -> None:
    check(Kept(), [X], "no equal regions")


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.norm(self.conv(x)) + x).sin().cos().tanh().exp().neg()


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(training: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Convolved() for _ in range(3))).train(training)
    said = "no equal regions" if training else "traced once"
    check(model, [torch.randn(2, 4, 6, 6)], said)


def test_open_sizes() -> None:
    check(stack(*(Block() for _ in range(3))), [X], "sizes are open", dynamic=True)


class Cast(Total):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layers(x)


def test_autocast() -> None:
    """An activation that several calls cast is another one in a part's own trace."""
    check(Cast(), [X], "casts")
    with torch.no_grad():
        check(Cast().eval(), [X], "traced once: 3 x")


class Tied(nn.Module):
    """Two calls of one layer with the same weight, which autocast casts once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.linear(self.norm(x)).sin().cos().tanh().float().exp()).float().neg()


def test_autocast_of_a_weight_used_twice() -> None:
    total = Cast()
    total.layers = stack(*(Tied() for _ in range(3)))
    with torch.no_grad():
        check(total.eval(), [X], "casts")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(total.layers, [X], "traced once: 2 x")


@pytest.mark.parametrize("cache", some([True, False], 1))
def test_autocast_around(cache: bool) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
        check(stack(*(Block() for _ in range(3))), [X], "traced once: 3 x")
        check(encoder(), [X], "traced once: 2 x")
        with torch.no_grad():
            check(stack(*(Block() for _ in range(3))).eval(), [X], "traced once: 3 x")


class CastInTurn(Total):
    """Equal layers under other types, and each within a region of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                x = self.layers[2](self.layers[1](x.float()))
        for layer in self.layers:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = layer(x.float())
        return x


def test_autocasts_in_turn() -> None:
    with torch.no_grad():
        check(CastInTurn().eval(), [X], "")


def test_autocast_around_the_forward_alone() -> None:
    around = torch.autocast("cpu", dtype=torch.bfloat16)
    with around, torch._functorch.config.patch(backward_pass_autocast="off"):
        check(stack(*(Block() for _ in range(3))), [X], "another one for gradients")


class WritesLater(nn.Module):
    """What all layers read is written behind their backs, after them."""

    def __init__(self, on_lists: bool = False) -> None:
        super().__init__()
        self.on_lists = on_lists
        self.layers = stack(*(Block() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.exp()
        for layer in self.layers:
            x = (layer(x) * scale).tanh()
        if self.on_lists:
            torch._foreach_mul_([scale.data], 3)
        else:
            scale.data.mul_(3)
        return x + scale


class Masked(Total):
    """A tensor is filled in before the layers, as T5's masks are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(x)
        mask[:, 1:] = -1.0
        return self.layers(x) + mask


class MaskedWithin(Masked):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(x)
        for layer in self.layers:
            mask[:, 1:] = -1.0
            x = layer(x) + mask
        return x


class MaskedLater(WritesLater):
    """What all layers read is filled in after them, by way of a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.exp()
        for layer in self.layers:
            x = (layer(x) * scale).tanh()
        scale[1:][0, 1:] = 3.0
        return x + scale


def test_items_that_are_set() -> None:
    check(Masked(), [X], "traced once: 3 x")
    check(MaskedWithin(), [X], "no equal regions")
    with torch.no_grad():
        check(MaskedLater(), [X], "scale is written")


class Checkpointed(Total):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x


def test_checkpoints() -> None:
    check(Checkpointed(), [X], "no equal regions")


def test_writes() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        y = x
        for _ in range(4):
            x.mul_(2)
            y = (y + x).sin().cos().tanh().exp().neg()
        return y + x

    check(program, [X], "no equal regions")


@pytest.mark.parametrize("on_lists", [False, True])
def test_writes_past_autograd(on_lists: bool) -> None:
    check(WritesLater(on_lists), [X], "scale is written")


def test_literals_differ() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for k in (0.0, -0.0, 1.0, True):
            x = ((x * k).sin() + 1).cos().tanh().exp().neg().abs().sqrt()
        return x

    check(program, [X], "no equal regions")


def test_a_trace_that_fails_is_made_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("no such call")

    monkeypatch.setattr(_Call, "forward", staticmethod(fails))
    check(stack(*(Block() for _ in range(3))), [X], "the rest by itself: no such call")


def test_a_list_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of its elements are taken: hundreds of tensors in an optimizer's step."""
    looked: list[object] = []
    described = find._described
    monkeypatch.setattr(
        find, "_described", lambda x, seen: (looked.append(x), described(x, seen))[1]
    )
    given = [torch.ones(4 + k) for k in range(30)]
    run(lambda *xs: torch._foreach_add(torch._foreach_mul(xs, 2.0), 1.0)[-1], given, True)
    assert len(looked) < 10 * len(given)


def test_where_to_cut_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many places there are: of a chain, all parts read alike wherever they are cut."""
    tried: list[object] = []
    repeat = find._repeat
    monkeypatch.setattr(find, "_repeat", lambda *a: (tried.append(a), repeat(*a))[1])

    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(90):  # 10 parts of 9 calls, or of one more behind some
            x = x.sin() if k % 9 else x.cos()
        return x.sin().sin().sin()

    check(program, [X], "10 x 9 calls")
    assert len(tried) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_fake_tensors_are_made_as_pytorch_makes_them(device: str) -> None:
    memory = torch.empty(40, device="meta").untyped_storage()
    view = torch.empty(0, device="meta").set_(memory, 3, (5, 4), (1, 5))
    mode = FakeTensorMode()
    like = torch.empty_strided((5, 4), (1, 5), device="meta")
    x = FakeTensor(mode, like, torch.device(device))
    wanted = FakeTensor(mode, view, x.device)
    made = Fakes().like(x)(memory, 3)
    alone = Fakes().like(x)(None)
    assert type(made) is FakeTensor and vars(made) == vars(wanted)
    assert str(torch._C._dispatch_keys(made)) == str(torch._C._dispatch_keys(wanted))
    assert storage_address(made.untyped_storage()) == storage_address(memory)
    assert (made.storage_offset(), made.shape, made.stride()) == (3, wanted.shape, wanted.stride())
    assert alone.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert not alone.requires_grad and alone.device == x.device


def odd_parameters() -> list[torch.Tensor]:
    """Parameters with traits that AOTAutograd carries over by itself, two of one memory last."""
    kept, beside = (nn.Parameter(torch.ones(4, 3)) for _ in range(2))
    kept.grad, beside._is_buffer = torch.zeros(4, 3), True  # type: ignore[attr-defined]
    inside = nn.Parameter(torch.ones(4, 3)[1:])
    shared = nn.Parameter(torch.ones(4, 3))
    return [kept, beside, inside, shared, shared.data]


@pytest.mark.parametrize("wanted", [True, False])
def test_parameters_are_made_as_aotautograd_makes_them(wanted: bool) -> None:
    mode = FakeTensorMode()
    x = nn.Parameter(torch.ones(3, 4).t(), requires_grad=wanted)
    odd = odd_parameters()
    made, *left = as_traced([x, *odd, 1, None], mode)
    like = mode.from_tensor(x)
    assert type(made) is FakeTensor and vars(made) == vars(like) and isinstance(made, nn.Parameter)
    assert str(torch._C._dispatch_keys(made)) == str(torch._C._dispatch_keys(like))
    assert (made.requires_grad, made.is_leaf, made._is_view()) == (wanted, True, False)
    assert (made.shape, made.stride(), made.dtype) == (x.shape, x.stride(), x.dtype)
    assert all(a is b for a, b in zip(left, [*odd, 1, None], strict=True))


def test_parameters_beside_a_subclass() -> None:
    class Own(torch.Tensor):
        pass

    given = [nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Own)]
    assert all(a is b for a, b in zip(as_traced(given, FakeTensorMode()), given, strict=True))
