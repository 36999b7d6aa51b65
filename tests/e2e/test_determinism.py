"""The same graph gives the same bytes in every process."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import hashlib, torch, transformers as tf
from litz.backend import compile_with
from litz.options import make_options
torch.manual_seed(0)
config = tf.BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                       intermediate_size=96)
model = tf.BertForMaskedLM(config).train()
tokens = torch.arange(34).reshape(2, 17)
texts = []
def backend(gm, inputs):
    def observe(kind, graph, stages):
        texts.append(stages.source.source)
        texts.extend(k.source for k in stages.kernels)
    return compile_with(gm, inputs, make_options({}), observe)
torch.compile(model, backend=backend)(input_ids=tokens, labels=tokens).loss.backward()
print(len(texts), hashlib.sha256("\\n".join(texts).encode()).hexdigest())
"""


def test_sources_do_not_depend_on_the_hash_seed() -> None:
    """Ten processes, two at a time."""
    seen = set()
    for first in range(0, 10, 2):
        running = [
            subprocess.Popen(
                [sys.executable, "-c", CODE],
                env={**os.environ, "PYTHONHASHSEED": str(seed * 7919)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for seed in (first, first + 1)
        ]
        for process in running:
            out, _ = process.communicate()
            assert process.returncode == 0
            seen.add(out.strip())
    assert len(seen) == 1, seen
    assert int(next(iter(seen)).split()[0]) > 10
