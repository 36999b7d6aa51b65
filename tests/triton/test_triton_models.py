"""Small models, forward and backward, as interpreted Triton kernels against eager."""

from __future__ import annotations

import pytest
import torch
import transformers as tf

pytest.importorskip("triton.language")
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


def model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "bert":
        return tf.BertModel(tf.BertConfig(vocab_size=50, max_position_embeddings=32, **SMALL))
    config = tf.LlamaConfig(vocab_size=50, num_key_value_heads=1, use_cache=False, **SMALL)
    return tf.LlamaForCausalLM(config)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_model(name: str) -> None:
    m = model(name).eval()
    tokens = torch.randint(0, 50, (2, 8))

    def fn(tokens: torch.Tensor) -> torch.Tensor:
        return m(tokens, return_dict=False)[0]

    def step(f) -> tuple[torch.Tensor, list[torch.Tensor]]:
        m.zero_grad()
        out = f(tokens)
        weights = torch.linspace(-1, 1, out.numel()).view_as(out)
        (out * weights).sum().backward()
        return out.detach(), [p.grad.clone() for p in m.parameters() if p.grad is not None]

    torch._dynamo.reset()
    ours = step(torch.compile(fn, backend="litz", options={"target": "triton"}))
    eager = step(fn)
    torch.testing.assert_close(ours[0], eager[0], rtol=1e-5, atol=1e-6)
    for a, b in zip(ours[1], eager[1], strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm() + 1e-5
