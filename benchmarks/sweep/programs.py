"""Programs of small graphs: solvers, some that decide on the host, metrics, sequences, spectra."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.sweep.tensors import Job, Place, leaf

# In a loop: the function runs in Python, and what it calls is compiled, a graph each.
break_: Callable[[], None] = torch._dynamo.graph_break


# --- differential equations -----------------------------------------------------------------------


def pendulum(y: Tensor) -> Tensor:
    """Slopes of positions and momenta, N x 2."""
    q, p = y.unbind(-1)
    return torch.stack((p, -torch.sin(q) - 0.1 * p), -1)


def runge_kutta(y: Tensor, h: float) -> Tensor:
    """A step of fourth order."""
    a = pendulum(y)
    b = pendulum(y + h / 2 * a)
    c = pendulum(y + h / 2 * b)
    return y + h / 6 * (a + 2 * b + 2 * c + pendulum(y + h * c))


def solve(y: Tensor) -> Tensor:
    """Ten steps, one graph."""
    for _ in range(10):
        y = runge_kutta(y, 0.05)
    return y


def solve_by_sides(y: Tensor) -> Tensor:
    """The same, with a graph for each right side alone."""
    h = 0.05
    for _ in range(10):
        break_()
        a = pendulum(y)
        b = pendulum(y + h / 2 * a)
        c = pendulum(y + h / 2 * b)
        y = y + h / 6 * (a + 2 * b + 2 * c + pendulum(y + h * c))
    return y


def trial(y: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A step of third order (Bogacki and Shampine), and how far one of second order is from it."""
    a = pendulum(y)
    b = pendulum(y + h / 2 * a)
    c = pendulum(y + 3 * h / 4 * b)
    new = y + h / 9 * (2 * a + 3 * b + 4 * c)
    error = h * (-5 / 72 * a + b / 12 + c / 9 - pendulum(new) / 8)
    return new, error.abs().amax()


def solve_adaptively(y: Tensor) -> Tensor:
    """To time 1, by steps that the host halves and doubles: whatever rounds, they are the same."""
    at, h = 0.0, 0.25
    while at < 1:
        new, error = trial(y, torch.full((), h, dtype=y.dtype, device=y.device))
        if (off := float(error)) <= 1e-5:
            y, at = new, at + h
        h = h / 2 if off > 1e-5 else min(h * 2 if off < 1e-6 else h, 1 - at)
    return y


def of_states(fn: Callable[[Tensor], object]) -> Callable[[Place], Job]:
    return lambda p: Job(fn, (p.make(max(p.size // 2, 1), 2),))


def kalman(state: Tensor, spread: Tensor, seen: Tensor, move: Tensor, look: Tensor) -> Tensor:
    """Filtered states of many tracks: 4 numbers each, of which 2 are seen, in 8 steps."""
    noise = torch.eye(4, dtype=state.dtype, device=state.device)
    found = []
    for z in seen.unbind(0):
        state, spread = state @ move.T, move @ spread @ move.T + 0.01 * noise
        innovation = look @ spread @ look.T + 0.1 * noise[:2, :2]
        gain = torch.linalg.solve(innovation, look @ spread).transpose(-1, -2)
        state = state + (gain @ (z - state @ look.T)[..., None])[..., 0]
        spread = spread - gain @ look @ spread
        found.append(state)
    return torch.stack(found)


def tracks(p: Place) -> Job:
    n = max(p.size // 16, 1)
    moved, look = torch.eye(4, device=p.device), torch.eye(4, device=p.device)[:2]
    moved[0, 2] = moved[1, 3] = 0.1
    spread = torch.eye(4, device=p.device).expand(n, 4, 4)
    return Job(kalman, (p.make(n, 4), spread.clone(), p.make(8, n, 2), moved, look))


# --- metrics --------------------------------------------------------------------------------------

CLASSES = 10


def confusion(scores: Tensor, wanted: Tensor) -> Tensor:
    """How often which class was taken for which."""
    pairs = wanted * CLASSES + scores.argmax(-1)
    return torch.bincount(pairs, minlength=CLASSES * CLASSES).view(CLASSES, CLASSES)


def judged(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Accuracy and the mean F1."""
    hits = counts.diagonal().double()
    f1 = 2 * hits / (counts.sum(0) + counts.sum(1)).clamp(min=1)
    return hits.sum() / counts.sum(), f1.mean()


def accuracy(scores: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    return judged(confusion(scores, wanted))


def accuracy_by_batches(scores: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The same of eight batches that come one after another."""
    counts = torch.zeros(CLASSES, CLASSES, dtype=torch.int64, device=scores.device)
    for part in zip(scores.chunk(8), wanted.chunk(8), strict=True):
        break_()
        counts = counts + confusion(*part)
    return judged(counts)


def area(scores: Tensor, wanted: Tensor) -> Tensor:
    """The area below the curve of true by false positives."""
    hits = wanted[scores.argsort(descending=True, stable=True)].to(scores.dtype)
    true, false = hits.cumsum(0), (1 - hits).cumsum(0)
    return torch.trapezoid(true / true[-1], false / false[-1])


def of_scores(fn: Callable[..., object], classes: int) -> Callable[[Place], Job]:
    def build(p: Place) -> Job:
        n = max(p.size // classes, 16)
        scores = p.make(n, classes) if classes > 1 else p.make(n)
        return Job(fn, (scores, p.indices(max(classes, 2), n)))

    return build


# --- sequences and sound --------------------------------------------------------------------------


def aligned(p: Place) -> Job:
    """A loss over all alignments: 64 steps, 32 letters, 16 of them wanted."""
    n = max(p.size // (64 * 32), 1)
    steps, wants = (torch.full((n,), k, device=p.device) for k in (64, 16))

    def loss(scores: Tensor, wanted: Tensor) -> Tensor:
        return F.ctc_loss(scores.log_softmax(-1), wanted, steps, wants)

    return Job(loss, (leaf(p.make(64, n, 32)), 1 + p.indices(31, n, 16)), training=True)


def waves(sound: Tensor, window: Tensor) -> Tensor:
    return torch.stft(sound, 512, 128, window=window, return_complex=True)


def mel(sound: Tensor, window: Tensor, filters: Tensor) -> Tensor:
    power = filters @ waves(sound, window).abs().square()
    return power.clamp(min=1e-10).log10()


def griffin_lim(sound: Tensor, window: Tensor, size: Tensor) -> Tensor:
    """A step to the sound of a spectrum's magnitudes."""
    found = waves(sound, window)
    turned = size * found / (found.abs() + 1e-8)
    return torch.istft(turned, 512, 128, window=window, length=sound.shape[-1])


def of_sound(
    fn: Callable[..., object], rest: Callable[[int], tuple[int, ...]]
) -> Callable[[Place], Job]:
    """rest: the shape of what goes with a sound and its window, by the number of its frames."""

    def build(p: Place) -> Job:
        rows, n = (8, p.size // 8) if p.size >= 1 << 16 else (1, max(p.size, 2048))
        window = torch.hann_window(512, device=p.device)
        given = p.make(*rest(n // 128 + 1), low=0.0, high=1.0)
        return Job(fn, (p.make(rows, n), window, given))

    return build


PROGRAMS: dict[str, Callable[[Place], Job]] = {
    "solver": of_states(solve),
    "solver_by_sides": of_states(solve_by_sides),
    "adaptive_solver": of_states(solve_adaptively),
    "kalman": tracks,
    "accuracy": of_scores(accuracy, CLASSES),
    "accuracy_by_batches": of_scores(accuracy_by_batches, CLASSES),
    "area": of_scores(area, 1),
    "ctc_training": aligned,
    "mel": of_sound(mel, lambda frames: (80, 257)),
    "griffin_lim": of_sound(griffin_lim, lambda frames: (257, frames)),
}
