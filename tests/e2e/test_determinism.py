"""The same graph gives the same bytes in every process, and so does each of its stages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / x) for x in ("cpp", "host", "ir")]

from cpp_plans import source  # noqa: E402
from test_cpp_tree import softmax  # noqa: E402
from test_host_memory import fixed_example  # noqa: E402
from test_ir_text import EXAMPLE, parse, program_text, resolve  # noqa: E402

from tests.replay.corpus import Entry  # noqa: E402
from tests.replay.record import record  # noqa: E402


class Loss(nn.Module):
    """Of a small transformer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 96, activation="gelu", batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2)
        self.layers = nn.Sequential(nn.Embedding(99, 64), encoder, nn.Linear(64, 99))

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.layers(tokens).flatten(0, 1), tokens.flatten())


TRAINING = Entry(lambda: (Loss(), (torch.arange(34).reshape(2, 17),)), training=True)


def stages() -> dict[str, Any]:
    """Texts of all stages, nothing built."""
    return {
        "program": program_text(parse(EXAMPLE, resolve=resolve)),
        "kernels": source(softmax(64, 768, "r0")) + source(softmax(64, 768, "x0")),
        "host": str(fixed_example()),
        "training": [g.as_json() for g in record(TRAINING)],
    }


def test_sources_do_not_depend_on_the_process_and_its_hash_seed() -> None:
    """Here the seed is a random one, if none was chosen, and much was compiled before."""
    seed = "7919" if os.environ.get("PYTHONHASHSEED") != "7919" else "15838"
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), *sys.path])
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    there, here = json.loads(done.stdout), json.loads(json.dumps(stages()))
    for stage, text in here.items():
        assert there[stage] == text, stage
    assert "loops1" in here["program"] and "segment_0(" in here["host"]
    assert "kernel_part" in here["kernels"] and len(here["training"]) == 2
    assert sum(len(g["kernels"]) for g in here["training"]) > 8


if __name__ == "__main__":
    print(json.dumps(stages()))
