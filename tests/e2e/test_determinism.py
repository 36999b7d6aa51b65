"""The same graph gives the same bytes in every process, and so does each of its stages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CODE = """
import hashlib, json, sys, torch
from torch import nn
sys.path[:0] = sys.argv[1:]
from cpp_plans import source
from test_cpp_tree import softmax
from test_host_memory import fixed_example
from test_ir_text import EXAMPLE, parse, program_text, resolve
from litz.backend import compile_with
from litz.options import make_options
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 96, activation="gelu", batch_first=True)
model = nn.Sequential(nn.Embedding(99, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 99))
tokens = torch.arange(34).reshape(2, 17)
def loss(tokens):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
texts = []
def backend(gm, inputs):
    def observe(kind, graph, stages):
        texts.append(stages.source.source)
        texts.extend(k.source for k in stages.kernels)
    return compile_with(gm, inputs, make_options({}), observe)
torch.compile(loss, backend=backend)(tokens).backward()
print(json.dumps({
    "program": program_text(parse(EXAMPLE, resolve=resolve)),
    "kernels": source(softmax(64, 768, "r0")) + source(softmax(64, 768, "x0")),
    "host": str(fixed_example()),
    "training": [len(texts), hashlib.sha256("\\n".join(texts).encode()).hexdigest()],
}))
"""


def test_sources_do_not_depend_on_the_hash_seed() -> None:
    """Three processes for all stages: each takes seconds."""
    folders = [str(Path(__file__).parents[1] / x) for x in ("cpp", "host", "ir")]
    seen = []
    for seed in ("0", "7919", "15838"):  # one after the other: the first builds for all
        done = subprocess.run(
            [sys.executable, "-c", CODE, *folders],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seen.append(json.loads(done.stdout))
    said = seen[0]
    for other in seen[1:]:
        for stage, text in said.items():
            assert other[stage] == text, stage
    assert "loops1" in said["program"] and "segment_0(" in said["host"]
    assert "kernel_part" in said["kernels"] and said["training"][0] > 10
