"""Programs of several processes, compiled and in eager mode.

python -m pytest tests/distributed -m slow -k long    # 50 steps of training, 2 and 4 processes
python -m pytest tests/distributed -m slow -k hangs   # 200 steps
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

if not dist.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
RANKS = (sys.executable, "-m", "tests.distributed.ranks")
FEW = ("collectives", "ddp", "fsdp", "tensor_parallel", "agreement", "one_compiles")
MORE = (
    *("reports", "tensor_parallel_in_pieces", "sharded", "alone", "uneven", "fsdp_mixed"),
    *("fsdp_uneven", "hybrid", "distributed_tensors", "pipeline", "stages", "experts"),
    "order_of_hooks",
)
TRAINED = (
    *("ddp", "fsdp", "fsdp_mixed", "fsdp_uneven", "hybrid", "sharded", "tensor_parallel"),
    *("tensor_parallel_in_pieces", "stages", "experts", "distributed_tensors", "uneven"),
)


def run(
    world: int, cases: tuple[str, ...], folder: Path, steps: int = 3, within: float = 240
) -> None:
    """Run cases in so many processes; what the first one that fails said is the failure.

    within: seconds that they may take.
    """
    ranks = []
    for rank in range(world):
        said = (folder / f"rank{rank}").open("w+")
        command = [*RANKS, str(rank), str(world), str(folder / "store"), *cases]
        command += ["--steps", str(steps)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        ranks.append((process, said))
    try:
        for process, said in ranks:
            status = process.wait(within)
            said.seek(0)
            text = said.read()
            assert not status, text[-6000:]
            assert all(f"{name} ok" in text for name in cases)
    finally:
        for process, said in ranks:
            process.kill()
            said.close()


def test_two_processes(tmp_path: Path) -> None:
    run(2, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_more_programs(world: int, tmp_path: Path) -> None:
    run(world, (*FEW, *MORE), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("world", [2, 4])
def test_long_training(world: int, tmp_path: Path) -> None:
    """Losses of 50 steps lie as near to eager mode's as roundings let them."""
    run(world, TRAINED, tmp_path, steps=50, within=1200)


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("world", [2, 4])
def test_nothing_hangs(world: int, tmp_path: Path) -> None:
    """Two hundred repetitions."""
    cases = ("ddp", "fsdp", "sharded", "tensor_parallel", "stages", "experts", "uneven")
    run(world, cases, tmp_path, steps=200, within=1200)
