"""Models of the size that a user trains on one GPU: random weights from packages' configs.

A builder takes ``quick`` (tiny sizes, for a try without a GPU) and returns a model and its batch,
keyword arguments, on the device that is current.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
Builder = Callable[[bool], tuple[nn.Module, Batch]]


def ids(rows: int, length: int, most: int) -> Tensor:
    return torch.randint(most, (rows, length))


def text(model: nn.Module, rows: int, length: int) -> tuple[nn.Module, Batch]:
    """A model of texts, which predicts its input."""
    config: Any = model.config
    tokens = ids(rows, length, config.vocab_size)
    return model, {"input_ids": tokens, "labels": tokens}


def encoder(quick: bool) -> tuple[nn.Module, Batch]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=1 if quick else 12,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return text(BertForMaskedLM(config), *((2, 16) if quick else (16, 512)))


def llama(quick: bool) -> tuple[nn.Module, Batch]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=1 if quick else 12,
        num_attention_heads=16,
        num_key_value_heads=4,
        use_cache=False,
    )
    return text(LlamaForCausalLM(config), *((2, 16) if quick else (4, 1024)))


def mixtral(quick: bool) -> tuple[nn.Module, Batch]:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=1 if quick else 6,
        num_attention_heads=16,
        num_key_value_heads=4,
        num_local_experts=8,
        use_cache=False,
    )
    return text(MixtralForCausalLM(config), *((2, 16) if quick else (4, 1024)))


def qwen3_moe(quick: bool) -> tuple[nn.Module, Batch]:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2048,
        moe_intermediate_size=512,
        num_hidden_layers=1 if quick else 6,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=32,
        num_experts_per_tok=4,
        use_cache=False,
    )
    return text(Qwen3MoeForCausalLM(config), *((2, 16) if quick else (4, 1024)))


def vit(quick: bool) -> tuple[nn.Module, Batch]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_hidden_layers=1 if quick else 12, num_labels=1000)
    rows = 1 if quick else 64
    batch = {"pixel_values": torch.randn(rows, 3, 224, 224), "labels": ids(rows, 1, 1000)[:, 0]}
    return ViTForImageClassification(config), batch


def images(name: str, channels_last: bool, quick: bool) -> tuple[nn.Module, Batch]:
    """A model of timm's."""
    import timm

    model: Any = timm.create_model(name, drop_path_rate=0.0)
    x = torch.randn(1 if quick else 64, 3, 224, 224)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    return model, {"x": x}


def unet(quick: bool) -> tuple[nn.Module, Batch]:
    from diffusers import UNet2DConditionModel

    down = ("CrossAttnDownBlock2D",) * 2 + ("DownBlock2D",)
    model = UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(32, 64, 64) if quick else (192, 384, 768),
        layers_per_block=1 if quick else 2,
        down_block_types=down,
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 2,
        cross_attention_dim=768,
        attention_head_dim=8,
    )
    rows, side = (1, 16) if quick else (8, 64)
    return model, {
        "sample": torch.randn(rows, 4, side, side),
        "timestep": ids(rows, 1, 1000)[:, 0],
        "encoder_hidden_states": torch.randn(rows, 77, 768),
    }


def dit(quick: bool) -> tuple[nn.Module, Batch]:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=12,
        attention_head_dim=64,
        num_layers=1 if quick else 12,
        sample_size=32,
    )
    for module in model.modules():
        if hasattr(module, "dropout_prob"):  # of classes, at random
            module.dropout_prob = 0.0
    rows = 1 if quick else 32
    return model, {
        "hidden_states": torch.randn(rows, 4, 32, 32),
        "timestep": ids(rows, 1, 1000)[:, 0],
        "class_labels": ids(rows, 1, 1000)[:, 0],
    }


def whisper(quick: bool) -> tuple[nn.Module, Batch]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers = 1 if quick else 12
    config = WhisperConfig(
        d_model=768,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    rows = 1 if quick else 8
    batch = {"input_features": torch.randn(rows, 80, 3000), "labels": ids(rows, 128, 50000)}
    return WhisperForConditionalGeneration(config), batch


def t5(quick: bool) -> tuple[nn.Module, Batch]:
    from transformers import T5Config, T5ForConditionalGeneration

    layers = 1 if quick else 12
    config = T5Config(
        d_model=768,
        d_ff=3072,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=12,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    rows = 1 if quick else 8
    batch = {"input_ids": ids(rows, 512, 32000), "labels": ids(rows, 128, 32000)}
    return T5ForConditionalGeneration(config), batch


def mamba2(quick: bool) -> tuple[nn.Module, Batch]:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=32000,
        hidden_size=768,
        num_hidden_layers=1 if quick else 12,
        num_heads=24,
        head_dim=64,
        n_groups=1,
        chunk_size=64,
        use_cache=False,
    )
    return text(Mamba2ForCausalLM(config), *((1, 64) if quick else (2, 1024)))


MODELS: dict[str, Builder] = {
    "encoder": encoder,
    "llama": llama,
    "vit": vit,
    "unet": unet,
    "mixtral": mixtral,
    "swin": lambda quick: images("swin_tiny_patch4_window7_224", False, quick),
    "convnext": lambda quick: images("convnext_tiny", True, quick),
    "whisper": whisper,
    "efficientnet": lambda quick: images("efficientnet_b0", True, quick),
    "dit": dit,
    "t5": t5,
    "qwen3_moe": qwen3_moe,
    "mamba2": mamba2,
}
