"""Small models with random weights from transformers' configs: one line a family."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from zoo_families import Inputs, Shape

VOCAB = 99
SMALL: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
SEQ2SEQ = {
    "vocab_size": VOCAB, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96, "max_position_embeddings": 64, "pad_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 0,
}  # fmt: skip
VISION = {
    "image_size": 32, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 96,
}  # fmt: skip
SPEECH = {
    "vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "conv_dim": (32, 32, 32), "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 4, 4), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "apply_spec_augment": False,
}  # fmt: skip


# --- inputs ---


Batch = Callable[[Shape], Inputs]


def ids(s: Shape, length: int = 17, vocab: int = VOCAB) -> Tensor:
    return torch.randint(3, vocab, (s.rows, s.length or length))


def causal(s: Shape) -> Inputs:
    tokens = ids(s)
    return {"input_ids": tokens, "labels": tokens}


def padding(s: Shape, length: int) -> Tensor:
    """Which tokens count: all but the end of the last row."""
    mask = torch.ones(s.rows, length, dtype=torch.long)
    mask[-1, 2 * length // 3 :] = 0
    return mask


def masked(s: Shape) -> Inputs:
    """Masked language modelling with a padded row."""
    tokens, labels = ids(s), ids(s)
    return {"input_ids": tokens, "attention_mask": padding(s, tokens.shape[1]), "labels": labels}


def pairs(s: Shape) -> Inputs:
    return {"input_ids": ids(s, 13), "labels": ids(replace(s, length=max(0, s.length - 4)), 9)}


def classes(s: Shape) -> Tensor:
    return torch.arange(1, s.rows + 1) % 2


def picture_of(size: int) -> Batch:
    return lambda s: {"pixel_values": torch.randn(s.rows, 3, size, size), "labels": classes(s)}


PICTURE = picture_of(32)


def picture_only(s: Shape) -> Inputs:
    return {"pixel_values": torch.randn(s.rows, 3, 32, 32)}


def segmentation(s: Shape) -> Inputs:
    return {**picture_only(s), "labels": torch.randint(0, 2, (s.rows, 32, 32))}


def speech(s: Shape) -> Inputs:
    return {
        "input_values": torch.randn(s.rows, 1600),
        "labels": torch.randint(3, 32, (s.rows, 3)),
    }


def mel(s: Shape) -> Inputs:
    return {"input_features": torch.randn(s.rows, 16, 40), "labels": ids(s, 9)}


def boxes(s: Shape) -> Inputs:
    corner = torch.randint(0, 500, (s.rows, s.length or 17, 2))
    return {**masked(s), "bbox": torch.cat((corner, corner + 100), -1)}


def image_and_text(s: Shape) -> Inputs:
    return {**picture_only(s), "input_ids": ids(s), "return_loss": True}


def no_cache(make: Batch) -> Batch:
    return lambda s: {**make(s), "use_cache": False}


# --- families ---


@dataclass(frozen=True)
class Family:
    """One family: the classes' names in transformers, its small config, and its batches."""

    kind: str
    model: str
    config: str
    sizes: Mapping[str, Any]
    batch: Batch
    parts: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    cost: float = 1.0
    """About how long it takes, beside a family of two layers."""

    def make(self, dropout: bool = False) -> nn.Module:
        """The model in training mode, with small weights drawn at random."""
        parts = {k: getattr(transformers, c)(**s) for k, (c, s) in self.parts.items()}
        config = getattr(transformers, self.config)(**self.sizes, **parts)
        set_dropout(config, 0.1 if dropout else 0.0)
        model: nn.Module = getattr(transformers, self.model)(config)
        for m in model.modules():
            if isinstance(m, nn.modules.dropout._DropoutNd) and not dropout:
                m.p = 0.0
        return model.train()

    def inputs(self, model: nn.Module, shape: Shape) -> Inputs:
        """A batch for ``model``."""
        batch = self.batch(shape)
        tokens = batch.get("input_ids")
        if shape.padded and tokens is not None and "attention_mask" not in batch:
            if "attention_mask" in inspect.signature(model.forward).parameters:
                batch["attention_mask"] = padding(shape, tokens.shape[1])
        return batch


def set_dropout(config: Any, rate: float) -> None:
    """Set every dropout rate, in nested configs too; no layer is ever left out."""
    for key, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            set_dropout(value, rate)
        elif "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0 if "layerdrop" in key else rate)


def bert_like(name: str, batch: Batch = masked, **more: Any) -> Family:
    return Family("encoder", f"{name}ForMaskedLM", f"{name}Config", {**SMALL, **more}, batch)


def llama_like(name: str, kind: str = "decoder", **more: Any) -> Family:
    sizes = {**GROUPED, "head_dim": 16, "pad_token_id": 0, **more}
    return Family(kind, f"{name}ForCausalLM", f"{name}Config", sizes, no_cache(causal))


def decoder(name: str, **sizes: Any) -> Family:
    sizes = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, **sizes}
    model = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    return Family("decoder", model, f"{name}Config", sizes, no_cache(causal))


def seq2seq(name: str, model: str = "", **more: Any) -> Family:
    return Family(
        "encoder-decoder", model or f"{name}ForConditionalGeneration", f"{name}Config",
        {**SEQ2SEQ, **more}, no_cache(pairs),
    )  # fmt: skip


def t5_like(name: str, **more: Any) -> Family:
    sizes = {
        "vocab_size": VOCAB, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2,
        "num_heads": 4, "decoder_start_token_id": 0, **more,
    }  # fmt: skip
    model = f"{name}ForConditionalGeneration"
    return Family("encoder-decoder", model, f"{name}Config", sizes, no_cache(pairs))


def vision(name: str, batch: Batch = PICTURE, **sizes: Any) -> Family:
    return Family("vision", f"{name}ForImageClassification", f"{name}Config", sizes, batch)


def speech_ctc(name: str, **more: Any) -> Family:
    return Family("speech", f"{name}ForCTC", f"{name}Config", {**SPEECH, **more}, speech)


SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SSM = {
    "vocab_size": VOCAB, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2,
    "use_cache": False,
}  # fmt: skip
CLIP_TEXT = {**SMALL, "projection_dim": 32, "bos_token_id": 1, "eos_token_id": 2}
CLIP_VISION = {**VISION, "projection_dim": 32}

FAMILIES: dict[str, Family] = {
    # encoders
    "albert": bert_like("Albert", embedding_size=32),
    "bert": bert_like("Bert"),
    "convbert": bert_like("ConvBert", embedding_size=64, head_ratio=2, conv_kernel_size=3),
    "deberta": bert_like(
        "Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=32
    ),
    "deberta_v2": bert_like(
        "DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8,
        norm_rel_ebd="layer_norm", share_att_key=True,
    ),
    "distilbert": bert_like("DistilBert", dim=64, hidden_dim=96, n_layers=2, n_heads=4),
    "electra": bert_like("Electra", embedding_size=32),
    "esm": bert_like("Esm", pad_token_id=1, mask_token_id=2, position_embedding_type="rotary"),
    "fnet": Family("encoder", "FNetForMaskedLM", "FNetConfig", SMALL, causal),
    "funnel": Family(
        "encoder", "FunnelForMaskedLM", "FunnelConfig",
        {"vocab_size": VOCAB, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 64,
         "n_head": 4, "d_head": 16, "d_inner": 96},
        masked,
    ),
    "layoutlm": bert_like("LayoutLM", boxes),
    "longformer": bert_like("Longformer", causal, attention_window=8),
    "modernbert": bert_like("ModernBert", pad_token_id=0, local_attention=8),
    "mpnet": bert_like("MPNet"),
    "roberta": bert_like("Roberta", pad_token_id=1),
    "roformer": bert_like("RoFormer", embedding_size=64),
    "squeezebert": bert_like("SqueezeBert", embedding_size=64),
    "xlm": Family(
        "encoder", "XLMWithLMHeadModel", "XLMConfig",
        {"vocab_size": VOCAB, "emb_dim": 64, "n_layers": 2, "n_heads": 4, "n_langs": 1}, masked,
    ),
    "xlnet": Family(
        "encoder", "XLNetLMHeadModel", "XLNetConfig",
        {"vocab_size": VOCAB, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96}, causal,
    ),
    # decoders
    "bloom": decoder("Bloom", hidden_size=64, n_layer=2, n_head=4),
    "codegen": decoder("CodeGen", n_embd=64, n_layer=2, n_head=4, n_positions=64, rotary_dim=8),
    "cohere": llama_like("Cohere"),
    "falcon": decoder("Falcon", hidden_size=64, num_hidden_layers=2, num_attention_heads=4),
    "gemma": llama_like("Gemma"),
    "gemma2": llama_like("Gemma2", sliding_window=8, query_pre_attn_scalar=16),
    "gpt2": decoder("GPT2", n_embd=64, n_layer=2, n_head=4, n_positions=64),
    "gpt_bigcode": decoder("GPTBigCode", n_embd=64, n_layer=2, n_head=4, n_positions=64),
    "gpt_neo": decoder(
        "GPTNeo", hidden_size=64, num_layers=2, num_heads=4, window_size=8,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=64,
    ),
    "gpt_neox": decoder("GPTNeoX", **{k: v for k, v in SMALL.items() if k != "vocab_size"}),
    "gptj": decoder("GPTJ", n_embd=64, n_layer=2, n_head=4, n_positions=64, rotary_dim=8),
    "llama": llama_like("Llama"),
    "mistral": llama_like("Mistral", sliding_window=8),
    "mpt": decoder("Mpt", d_model=64, n_heads=4, n_layers=2, max_seq_len=64),
    "olmo2": llama_like("Olmo2"),
    "opt": decoder(
        "OPT", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=96,
        word_embed_proj_dim=64, max_position_embeddings=64,
    ),
    "phi": llama_like("Phi"),
    "phi3": llama_like("Phi3"),
    "qwen2": llama_like("Qwen2"),
    "qwen3": llama_like("Qwen3"),
    "stablelm": llama_like("StableLm"),
    # mixtures of experts
    "granitemoe": llama_like("GraniteMoe", "experts", num_local_experts=4, num_experts_per_tok=2),
    "mixtral": llama_like("Mixtral", "experts", num_local_experts=4, num_experts_per_tok=2),
    "olmoe": llama_like("Olmoe", "experts", num_experts=4, num_experts_per_tok=2),
    "qwen2_moe": llama_like(
        "Qwen2Moe", "experts", shared_expert_intermediate_size=48, **EXPERTS
    ),
    "qwen3_moe": llama_like("Qwen3Moe", "experts", **EXPERTS),
    "switch": Family(
        "experts", "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig",
        {"vocab_size": VOCAB, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2,
         "num_heads": 4, "num_decoder_layers": 2, "num_experts": 4, "expert_capacity": 8,
         "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
         "decoder_start_token_id": 0, "router_jitter_noise": 0.0},
        no_cache(pairs),
    ),
    # state spaces and recurrences
    "falcon_mamba": Family(
        "state space", "FalconMambaForCausalLM", "FalconMambaConfig", SSM, causal
    ),
    "mamba": Family("state space", "MambaForCausalLM", "MambaConfig", SSM, causal),
    "mamba2": Family(
        "state space", "Mamba2ForCausalLM", "Mamba2Config",
        {**SSM, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8}, causal,
    ),
    "recurrent_gemma": Family(
        "state space", "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig",
        {**GROUPED, "lru_width": 64, "attention_window_size": 8, "num_hidden_layers": 3,
         "pad_token_id": 0},
        no_cache(causal),
    ),
    "rwkv": Family(
        "state space", "RwkvForCausalLM", "RwkvConfig",
        {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "context_length": 32},
        no_cache(causal),
    ),
    # encoder-decoders
    "bart": seq2seq("Bart"),
    "blenderbot": seq2seq("Blenderbot"),
    "m2m_100": seq2seq("M2M100"),
    "marian": seq2seq("Marian", "MarianMTModel"),
    "mbart": seq2seq("MBart"),
    "pegasus": seq2seq("Pegasus"),
    "t5": t5_like("T5"),
    "umt5": t5_like("UMT5"),
    # vision
    "beit": vision("Beit", **VISION, num_labels=2),
    "convnext": vision("ConvNext", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    "convnextv2": vision("ConvNextV2", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    "data2vec": vision("Data2VecVision", **VISION),
    "deit": vision("DeiT", **VISION),
    "detr": Family(
        "vision", "DetrForObjectDetection", "DetrConfig",
        {**{k: v for k, v in SEQ2SEQ.items() if k != "vocab_size"}, "use_timm_backbone": False,
         "use_pretrained_backbone": False, "num_queries": 5, "num_labels": 3, "backbone": None},
        picture_only,
        {"backbone_config": ("ResNetConfig", {
            "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
            "layer_type": "basic", "out_features": ["stage2"]})},
    ),
    "dinov2": vision("Dinov2", **VISION, mlp_ratio=2),
    "dpt": Family(
        "vision", "DPTForSemanticSegmentation", "DPTConfig",
        {**VISION, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
         "neck_hidden_sizes": [16, 16, 16, 16], "fusion_hidden_size": 16, "num_labels": 2,
         "readout_type": "project"},
        segmentation,
    ),
    "focalnet": vision(
        "FocalNet", image_size=32, patch_size=4, embed_dim=16, depths=[1, 1],
        focal_levels=[2, 2], focal_windows=[3, 3], hidden_sizes=[16, 32],
    ),
    "mobilenet_v2": vision(
        # With relu6 a rounding error may flip the gradient of an element near the kink.
        "MobileNetV2", picture_of(96), image_size=96, depth_multiplier=0.25,
        hidden_act="silu",
    ),
    "mobilevit": vision(
        "MobileViT", picture_of(64), image_size=64, hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], num_attention_heads=2,
    ),
    "poolformer": vision(
        "PoolFormer", hidden_sizes=[16, 32], depths=[1, 1], num_encoder_blocks=2,
        patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1],
    ),
    "pvt": vision(
        "Pvt", image_size=32, num_encoder_blocks=2, depths=[1, 1], sequence_reduction_ratios=[2, 1],
        hidden_sizes=[16, 32], patch_sizes=[4, 2], strides=[4, 2], num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
    ),
    "regnet": vision(
        "RegNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8
    ),
    "resnet": vision(
        "ResNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic"
    ),
    "segformer": Family(
        "vision", "SegformerForSemanticSegmentation", "SegformerConfig",
        {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
         "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2],
         "mlp_ratios": [2, 2], "decoder_hidden_size": 32},
        segmentation,
    ),
    "swin": vision("Swin", **SWIN),
    "swinv2": vision("Swinv2", **SWIN),
    "vit": vision("ViT", **VISION),
    "vit_mae": Family(
        "vision", "ViTMAEForPreTraining", "ViTMAEConfig",
        {**VISION, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1,
         "decoder_num_attention_heads": 4, "decoder_intermediate_size": 48},
        lambda s: {**picture_only(s), "noise": torch.rand(s.rows, 16)},
    ),
    "yolos": Family(
        "vision", "YolosModel", "YolosConfig",
        {**VISION, "image_size": [32, 32], "num_detection_tokens": 5}, picture_only,
    ),
    # speech
    "hubert": speech_ctc("Hubert"),
    "sew": speech_ctc("SEW", squeeze_factor=1),
    "speech_to_text": Family(
        "speech", "Speech2TextForConditionalGeneration", "Speech2TextConfig",
        {**SEQ2SEQ, "input_feat_per_channel": 16, "conv_channels": 32, "max_source_positions": 40,
         "max_target_positions": 40},
        no_cache(lambda s: {"input_features": torch.randn(s.rows, 40, 16), "labels": ids(s, 9)}),
    ),
    "unispeech": speech_ctc("UniSpeech"),
    "wav2vec2": speech_ctc("Wav2Vec2"),
    "wavlm": speech_ctc("WavLM"),
    "whisper": Family(
        "speech", "WhisperForConditionalGeneration", "WhisperConfig",
        {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 40,
         "suppress_tokens": None, "begin_suppress_tokens": None},
        no_cache(mel),
    ),
    # images and text
    "clip": Family(
        "multimodal", "CLIPModel", "CLIPConfig", {"projection_dim": 32}, image_and_text,
        {"text_config": ("CLIPTextConfig", CLIP_TEXT),
         "vision_config": ("CLIPVisionConfig", CLIP_VISION)},
    ),
    "siglip": Family(
        "multimodal", "SiglipModel", "SiglipConfig", {}, image_and_text,
        {"text_config": ("SiglipTextConfig", {**SMALL, "projection_size": 64}),
         "vision_config": ("SiglipVisionConfig", VISION)},
    ),
    "vilt": Family(
        "multimodal", "ViltModel", "ViltConfig", {**SMALL, **VISION},
        lambda s: {**picture_only(s), "input_ids": ids(s)},
    ),
}  # fmt: skip
