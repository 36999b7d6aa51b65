"""What a process keeps of memory over training steps, beside eager mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import sys, torch

def resident(what):
    text = open("/proc/self/status").read()
    return int(text.split(what + ":")[1].split()[0]) >> 10

torch.set_num_threads(1)
blocks = [
    torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    for _ in range(4)
]
model = torch.nn.Sequential(*blocks)
step = torch.compile(model, backend="litz") if sys.argv[1] == "litz" else model
def run(x):
    step(x).square().mean().backward()
    for p in model.parameters():
        p.grad = None
run(torch.randn(8, 256))  # compiles, and makes what lasts
torch._dynamo.reset()
step = torch.compile(model, backend="litz", dynamic=False) if sys.argv[1] == "litz" else model
x = torch.randn(2048, 256)
before = resident("VmRSS")
for _ in range(5):
    run(x)
print(resident("VmHWM") - before, resident("VmRSS") - before)
"""


def grown(how: str, cache: Path) -> tuple[int, int]:
    """MiB at the most, and those that stay."""
    env = {**os.environ, "LITZ_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", STEPS, how]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    most, left = map(int, done.stdout.split())
    return most, left


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_five_steps_take_no_more_than_eager_s(tmp_path: Path) -> None:
    most, left = grown("litz", tmp_path)
    eager_most, eager_left = grown("eager", tmp_path)
    room = 8  # MiB: compiling in the process leaves some
    assert most <= eager_most + room
    assert left <= eager_left + room
