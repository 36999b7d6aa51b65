# %% [markdown]
# # Serve a BERT
# A small one with random weights. Requests have any length: one compilation serves them all.

# %%
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

import litz

torch.manual_seed(0)
small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = BertConfig(vocab_size=1000, intermediate_size=128, **small)
model = BertModel(config, add_pooling_layer=False).eval()
compiled = torch.compile(model, backend="litz", dynamic=True)

# %%
with torch.inference_mode():
    for length in (7, 19, 64):
        ids = torch.randint(1000, (2, length))
        found, expected = compiled(ids).last_hidden_state, model(ids).last_hidden_state
        assert torch.allclose(found, expected, atol=1e-5)

# %% [markdown]
# What was made of it: `print(litz.explain(model, ids))`, and where its time goes:
# `print(litz.profile(model, ids))`. For machines without a compiler, write a package.


# %%
class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = model

    def forward(self, ids):
        return self.bert(ids).last_hidden_state


with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    path = Path(folder) / "bert.litz"
    litz.package(Encoder(), path, (ids,))
    served = litz.load(path)
    assert torch.allclose(served(ids), expected, atol=1e-5)
    print(f"a package of {path.stat().st_size >> 10} KiB")
