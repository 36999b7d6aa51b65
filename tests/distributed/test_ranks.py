"""Programs of several processes, compiled and in eager mode."""

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
    "tensor_parallel_in_pieces",
    "sharded",
    "alone",
    "uneven",
    "fsdp_mixed",
    "hybrid",
    "distributed_tensors",
    "pipeline",
)


def run(world: int, cases: tuple[str, ...], folder: Path) -> None:
    """Run cases in so many processes; what the first one that fails said is the failure."""
    ranks = []
    for rank in range(world):
        said = (folder / f"rank{rank}").open("w+")
        command = [*RANKS, str(rank), str(world), str(folder / "store"), *cases]
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        ranks.append((process, said))
    try:
        for process, said in ranks:
            status = process.wait(240)
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
