"""Families of diffusers, small and with random weights: one line a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from zoo_families import Inputs, Shape, quieten

Batch = Callable[[int], Inputs]


@dataclass(frozen=True)
class Diffusion:
    """One family: diffusers' name of its class, a small config, and a batch of so many rows."""

    model: str
    sizes: Mapping[str, Any]
    batch: Batch
    cost: float = 3.0
    kind: str = "diffusers"

    def make(self, dropout: bool = False) -> nn.Module:
        """The model in training mode; without dropout, nothing in it is drawn at random."""
        import diffusers

        model: nn.Module = getattr(diffusers, self.model)(**self.sizes)
        for m in model.modules():
            if isinstance(m, nn.modules.dropout._DropoutNd):
                m.p = 0.1
        if not dropout:
            quieten(model)
        with torch.no_grad():
            for p in model.parameters():
                if not p.any() and p.dim() > 1:  # behind it all gradients would be none
                    p.normal_(std=0.05)
        return model.train()

    def inputs(self, model: nn.Module, shape: Shape) -> Inputs:
        """A batch for ``model``."""
        return self.batch(shape.rows)


def noise(rows: int, *shape: int) -> torch.Tensor:
    return torch.randn(rows, *shape)


def times(rows: int) -> torch.Tensor:
    return torch.randint(0, 1000, (rows,))


def video(rows: int) -> Inputs:
    return {
        "sample": noise(rows, 2, 8, 8, 8),
        "timestep": times(rows),
        "encoder_hidden_states": noise(rows, 1, 32),
        "added_time_ids": noise(rows, 3),
    }


BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
CODER = {
    **BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 4,
}  # fmt: skip
CROSS = {
    **BLOCKS, "sample_size": 16, "cross_attention_dim": 32, "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
}  # fmt: skip


def conditioned(rows: int) -> Inputs:
    return {
        "sample": noise(rows, 4, 16, 16),
        "timestep": times(rows),
        "encoder_hidden_states": noise(rows, 7, 32),
    }


FAMILIES: dict[str, Diffusion] = {
    "diff_kl": Diffusion("AutoencoderKL", CODER, lambda n: {"sample": noise(n, 3, 32, 32)}),
    "diff_tiny": Diffusion(
        "AutoencoderTiny",
        {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16),
         "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)},
        lambda n: {"sample": noise(n, 3, 32, 32)}, cost=1.5,
    ),
    "diff_vq": Diffusion(
        "VQModel", {**CODER, "num_vq_embeddings": 32}, lambda n: {"sample": noise(n, 3, 32, 32)}
    ),
    "diff_unet": Diffusion(
        "UNet2DModel",
        {**BLOCKS, "sample_size": 16, "attention_head_dim": 8,
         "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
         "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        lambda n: {"sample": noise(n, 3, 16, 16), "timestep": times(n)},
    ),
    "diff_unet_1d": Diffusion(
        "UNet1DModel",
        {"block_out_channels": (32, 32, 64), "sample_size": 64, "extra_in_channels": 64},
        lambda n: {"sample": noise(n, 2, 64), "timestep": times(n)}, cost=2,
    ),
    "diff_unet_text": Diffusion(
        "UNet2DConditionModel",
        {**CROSS, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}, conditioned, cost=4,
    ),
    "diff_controlnet": Diffusion(
        "ControlNetModel",
        {**{k: v for k, v in CROSS.items() if k != "sample_size"},
         "conditioning_embedding_out_channels": (8, 16)},
        lambda n: {**conditioned(n), "controlnet_cond": noise(n, 3, 32, 32)}, cost=4,
    ),
    "diff_unet_video": Diffusion(
        "UNetSpatioTemporalConditionModel",
        {"block_out_channels": (32, 64), "layers_per_block": 1, "sample_size": 16,
         "cross_attention_dim": 32, "num_attention_heads": (2, 4),
         "projection_class_embeddings_input_dim": 24, "addition_time_embed_dim": 8,
         "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
         "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal")},
        video, cost=6,
    ),
    "diff_dit": Diffusion(
        "DiTTransformer2DModel",
        {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "num_layers": 2,
         "sample_size": 8, "norm_num_groups": 4, "num_embeds_ada_norm": 10},
        lambda n: {"hidden_states": noise(n, 4, 8, 8), "timestep": times(n) % 10,
                   "class_labels": torch.arange(n)}, cost=2,
    ),
    "diff_pixart": Diffusion(
        "PixArtTransformer2DModel",
        {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 8,
         "num_layers": 2, "cross_attention_dim": 32, "sample_size": 8, "caption_channels": 24,
         "use_additional_conditions": False},
        lambda n: {"hidden_states": noise(n, 4, 8, 8), "timestep": times(n),
                   "encoder_hidden_states": noise(n, 7, 24),
                   "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}, cost=2,
    ),
    "diff_sd3": Diffusion(
        "SD3Transformer2DModel",
        {"sample_size": 16, "patch_size": 2, "in_channels": 4, "num_layers": 2,
         "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
         "caption_projection_dim": 32, "pooled_projection_dim": 24, "out_channels": 4,
         "pos_embed_max_size": 16},
        lambda n: {"hidden_states": noise(n, 4, 16, 16), "timestep": times(n),
                   "encoder_hidden_states": noise(n, 7, 32),
                   "pooled_projections": noise(n, 24)}, cost=2,
    ),
    "diff_flux": Diffusion(
        "FluxTransformer2DModel",
        {"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
         "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 24,
         "axes_dims_rope": (4, 4, 8)},
        lambda n: {"hidden_states": noise(n, 16, 16), "timestep": torch.rand(n),
                   "encoder_hidden_states": noise(n, 7, 32), "pooled_projections": noise(n, 24),
                   "img_ids": torch.arange(48).view(16, 3) % 5 * 1.0,
                   "txt_ids": torch.zeros(7, 3)}, cost=2,
    ),
    "diff_sana": Diffusion(
        "SanaTransformer2DModel",
        {"in_channels": 4, "out_channels": 4, "num_layers": 2, "num_attention_heads": 2,
         "attention_head_dim": 16, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16,
         "cross_attention_dim": 32, "caption_channels": 24, "sample_size": 8, "patch_size": 1},
        lambda n: {"hidden_states": noise(n, 4, 8, 8), "timestep": times(n),
                   "encoder_hidden_states": noise(n, 7, 24)}, cost=2,
    ),
}  # fmt: skip
