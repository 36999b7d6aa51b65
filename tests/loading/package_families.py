"""Small models of many families, with open batch and length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

SIZES = {
    **{"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 64, "max_position_embeddings": 64},
}
LAYERS = {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False}
DECODER = {"use_cache": False}
GROUPED = {**DECODER, "num_key_value_heads": 2}
DISTIL = {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
OPT = {**SIZES, **DECODER, "ffn_dim": 64, "word_embed_proj_dim": 32}


class First(nn.Module):
    """Of what a model gives, the first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask)[0]


def _of(config: str, model: str, **sizes: Any) -> Callable[[], nn.Module]:
    made: Any = getattr(hf, config)
    return lambda: First(getattr(hf, model)(made(**sizes)))


FAMILIES = {
    "roberta": _of("RobertaConfig", "RobertaModel", **SIZES),
    "distilbert": _of("DistilBertConfig", "DistilBertModel", **DISTIL),
    "albert": _of("AlbertConfig", "AlbertModel", **SIZES, embedding_size=16),
    "electra": _of("ElectraConfig", "ElectraModel", **SIZES, embedding_size=16),
    "deberta": _of("DebertaV2Config", "DebertaV2Model", **SIZES),
    "t5": _of("T5Config", "T5EncoderModel", **T5),
    "llama": _of("LlamaConfig", "LlamaForCausalLM", **SIZES, **GROUPED),
    "mistral": _of("MistralConfig", "MistralForCausalLM", **SIZES, **GROUPED),
    "qwen2": _of("Qwen2Config", "Qwen2ForCausalLM", **SIZES, **GROUPED),
    "gemma": _of("GemmaConfig", "GemmaForCausalLM", **SIZES, **GROUPED, head_dim=8),
    "phi": _of("PhiConfig", "PhiForCausalLM", **SIZES, **DECODER),
    "neox": _of("GPTNeoXConfig", "GPTNeoXForCausalLM", **SIZES, **DECODER),
    "opt": _of("OPTConfig", "OPTForCausalLM", **OPT),
    "bloom": _of("BloomConfig", "BloomForCausalLM", **LAYERS),
}
