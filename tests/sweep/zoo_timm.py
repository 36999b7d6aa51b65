"""Families of timm, small and with random weights: one line a family."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from zoo_families import Inputs, Shape, quieten

CLASSES = 10


@dataclass(frozen=True)
class Picture:
    """One family: timm's name of its smallest model, and what makes that smaller still."""

    model: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    side: int = 64
    """Height and width of the pictures, in pixels."""
    told: bool = False
    """Whether the model has to be told that size."""
    cost: float = 1.5
    kind: str = "timm"

    def make(self, dropout: bool = False) -> nn.Module:
        """The model in training mode; without dropout, nothing in it is drawn at random."""
        import timm

        sizes = {"num_classes": CLASSES, **self.sizes}
        if self.told:
            sizes["img_size"] = self.side
        sizes = {k: class_of(v.name) if isinstance(v, Part) else v for k, v in sizes.items()}
        if "." in self.model:  # the functions of some models take no other sizes
            build = class_of(self.model)
        else:
            build = functools.partial(timm.create_model, self.model)
        model: nn.Module
        try:
            model = build(**sizes, drop_rate=0.1) if dropout else build(**sizes)
        except TypeError:  # it has no such rate
            model = build(**sizes)
        wake(model)
        if not dropout:
            quieten(model)
        return model.train()

    def inputs(self, model: nn.Module, shape: Shape) -> Inputs:
        """Pictures of normal numbers."""
        return {"x": torch.randn(shape.rows, 3, self.side, self.side)}


def class_of(name: str) -> Any:
    """A class by its module in ``timm.models``."""
    module, _, last = name.partition(".")
    return getattr(importlib.import_module(f"timm.models.{module}"), last)


def wake(model: nn.Module) -> None:
    """Draw the weights that begin at nothing: behind them all gradients would be none."""
    for p in model.parameters():
        if p.numel() and p.abs().max() < 1e-2:
            with torch.no_grad():
                p.normal_(std=0.05) if p.dim() > 1 else p.uniform_(0.2, 0.6)


def vit(model: str, **sizes: Any) -> Picture:
    """Tokens of one width throughout."""
    return Picture(model, {"depth": 2, "embed_dim": 64, "num_heads": 4, **sizes}, told=True, cost=1)


@dataclass(frozen=True)
class Part:
    """A class of timm that a model is made of, by name: timm may not be installed."""

    name: str


BLOCKS = {"num_blocks": 2, "embed_dim": 64}
SMALL = {"depths": (1, 1, 1, 1)}
DIMS = (16, 32, 48, 64)

FAMILIES: dict[str, Picture] = {
    # convolutions
    "timm_convmixer": Picture("convmixer.ConvMixer", {"depth": 2, "dim": 64}),
    "timm_convnext": Picture("convnext_atto", {**SMALL, "dims": DIMS}),
    "timm_cspdarknet": Picture("cspdarknet53", cost=3),
    "timm_densenet": Picture(
        "densenet121", {"block_config": (2, 2, 2, 2), "growth_rate": 8}
    ),
    "timm_dla": Picture("dla46_c", cost=2),
    "timm_dpn": Picture("dpn48b", {"k_sec": (1, 1, 1, 1)}),
    "timm_efficientnet": Picture("efficientnet_lite0", cost=3),
    "timm_ese_vovnet": Picture("ese_vovnet19b_slim_dw", cost=2),
    "timm_fastvit": Picture("fastvit_t8", {"layers": (1, 1, 1, 1)}, cost=2),
    "timm_focalnet": Picture("focalnet.FocalNet", {**SMALL, "embed_dim": 16}),
    "timm_ghostnet": Picture("ghostnet_050", cost=3),
    "timm_hrnet": Picture("hrnet_w18_small", cost=4),
    "timm_inception_next": Picture("inception_next_atto", {**SMALL, "dims": DIMS}),
    "timm_inception_v3": Picture("inception_v3", side=96, cost=3),
    "timm_lcnet": Picture("lcnet_035"),
    "timm_mambaout": Picture("mambaout_femto", {**SMALL, "dims": DIMS}),
    "timm_mobilenetv3": Picture("mobilenetv3_small_050", cost=2),
    "timm_mobilenetv4": Picture("mobilenetv4_conv_small_035", cost=2),
    "timm_mobileone": Picture("mobileone_s0", cost=4),
    "timm_nf_resnet": Picture("nf_ecaresnet26", cost=2),
    "timm_nfnet": Picture("dm_nfnet_f0", {"depths": (1, 1, 1, 1)}, cost=2),
    "timm_poolformer": Picture(
        "metaformer.MetaFormer", {**SMALL, "dims": DIMS, "use_mlp_head": False}
    ),
    "timm_rdnet": Picture("rdnet_tiny", cost=3),
    "timm_regnet": Picture("regnety_002", cost=2),
    "timm_repvgg": Picture("repvgg_a0", cost=3),
    "timm_repvit": Picture("repvit_m0_9", cost=4),
    "timm_res2net": Picture("res2net50_14w_8s", {"layers": (1, 1, 1, 1)}, cost=2),
    "timm_resnest": Picture("resnest14d", cost=2),
    "timm_resnet": Picture("resnet18", {"layers": (1, 1, 1, 1)}),
    "timm_resnetv2": Picture("resnetv2_50", {"layers": (1, 1, 1, 1)}),
    "timm_rexnet": Picture("rexnet_100", cost=3),
    "timm_skresnet": Picture("skresnet18", {"layers": (1, 1, 1, 1)}),
    "timm_starnet": Picture("starnet_s050", cost=1.5),
    "timm_vgg": Picture("vgg11_bn", cost=2),
    "timm_xception": Picture("xception41", cost=3),
    # tokens
    "timm_beit": vit("beit_base_patch16_224"),
    "timm_cait": vit("cait_xxs24_224", depth_token_only=1),
    "timm_convit": vit("convit_tiny", local_up_to_layer=1),
    "timm_crossvit": Picture(
        "crossvit_9_dagger_240", {"depth": ((1, 1, 0), (1, 1, 0)), "embed_dim": (32, 64),
                                  "num_heads": (2, 4)}, side=240, cost=2,
    ),
    "timm_deit": vit("deit_tiny_distilled_patch16_224"),
    "timm_eva": vit("eva02_tiny_patch14_224", patch_size=16),
    "timm_gmlp": Picture("mlp_mixer.MlpMixer", {
        **BLOCKS, "block_layer": Part("mlp_mixer.SpatialGatingBlock"),
        "mlp_layer": Part("mlp_mixer.GatedMlp"), "mlp_ratio": 6.0}, told=True, cost=1),
    "timm_mixer": Picture("mlp_mixer.MlpMixer", BLOCKS, told=True, cost=1),
    "timm_resmlp": Picture("mlp_mixer.MlpMixer", {
        **BLOCKS, "block_layer": Part("mlp_mixer.ResBlock"), "norm_layer": Part("mlp_mixer.Affine"),
        "mlp_ratio": 4,
    }, told=True, cost=1),
    "timm_sequencer": Picture(
        "sequencer2d_s", {"layers": (1, 1, 1, 1), "embed_dims": (16, 16, 16, 16),
                          "hidden_sizes": (8, 8, 8, 8)}, told=True,
    ),
    "timm_tnt": Picture(
        "tnt_s_patch16_224", {"depth": 2, "embed_dim": 96, "inner_dim": 24}, told=True
    ),
    "timm_vit": vit("vit_tiny_patch16_224"),
    "timm_volo": Picture(
        "volo.VOLO", {"layers": (1, 1, 1, 1), "embed_dims": (24, 48, 48, 48),
                      "num_heads": (2, 4, 4, 4)}, told=True, cost=2,
    ),
    "timm_xcit": vit("xcit_nano_12_p16_224", cls_attn_layers=1),
    # both
    "timm_coat": Picture("coat_lite_tiny", {"serial_depths": (1, 1, 1, 1)}, told=True, cost=2),
    "timm_coatnet": Picture(
        "coatnet_0_rw_224", {"depths": (1, 1, 1, 1), "embed_dim": (16, 32, 32, 32)}, told=True,
    ),
    "timm_davit": Picture("davit_tiny", {
        **SMALL, "embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4)}),
    "timm_edgenext": Picture("edgenext_xx_small", {"depths": (1, 1, 2, 1)}),
    "timm_efficientformer": Picture("efficientformerv2_s0", told=True, cost=4),
    "timm_efficientvit": Picture("efficientvit_b0", cost=2),
    "timm_gcvit": Picture("gcvit.GlobalContextVit", {
        **SMALL, "num_heads": (2, 4, 4, 4), "embed_dim": 16, "window_ratio": None,
        "window_size": (4, 4, 4, 2)}, told=True, cost=2),
    "timm_hiera": Picture("hiera_tiny_224", {"stages": (1, 1, 1, 1), "embed_dim": 32}, told=True),
    "timm_levit": Picture("levit_128s", {"depth": (1, 1, 1)}, told=True),
    "timm_maxvit": Picture(
        "maxvit_pico_rw_256", {"depths": (1, 1, 1, 1), "embed_dim": (32, 32, 32, 32)}, told=True,
        side=64, cost=2,
    ),
    "timm_mvitv2": Picture("mvitv2_tiny", told=True, cost=4),
    "timm_nest": Picture("nest.Nest", {
        "depths": (1, 1, 1), "embed_dims": (32, 32, 64), "num_heads": (2, 2, 4)}, told=True),
    "timm_nextvit": Picture("nextvit_small", {"depths": (1, 1, 5, 1)}, cost=3),
    "timm_pit": Picture("pit_ti_224", {"depth": (1, 1, 1)}, told=True),
    "timm_pvt": Picture("pvt_v2_b0", {"depths": (1, 1, 1, 1)}),
    "timm_swiftformer": Picture("swiftformer_xs", {"layers": (1, 1, 1, 1)}, cost=2),
    "timm_swin": Picture("swin_tiny_patch4_window7_224", {
        "depths": (2, 1), "embed_dim": 16, "num_heads": (2, 4), "window_size": 4}, told=True),
    "timm_tiny_vit": Picture("tiny_vit_5m_224", {
        **SMALL, "embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4)}, cost=2),
    "timm_twins": Picture("twins_svt_small", {
        **SMALL, "embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4)}, told=True),
    "timm_visformer": Picture("visformer_tiny", {"depth": (1, 1, 1)}, told=True),
}  # fmt: skip
