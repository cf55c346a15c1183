"""More small models: architectures of the last years, and more kinds of vision and speech."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.tiny import (
    DECODER,
    ENCODER,
    VISION,
    WAVE,
    Nested,
    Tiny,
    captioned_images,
    images,
    masked_tokens,
    pairs,
    sized_images,
    tokens,
    waves,
)

HEADS = {**DECODER, "head_dim": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}


def noisy_images(batch: int, length: int) -> dict[str, Any]:
    return {**images(batch, length), "noise": torch.rand(batch, 16)}


def patches(batch: int, length: int) -> dict[str, Any]:
    """Sixteen patches of each image, which is four patches wide and high."""
    return {
        "pixel_values": torch.randn(batch, 16, 192),
        "pixel_attention_mask": torch.ones(batch, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4]] * batch),
    }


def transcribed_waves(batch: int, length: int) -> dict[str, Any]:
    sound = torch.randn(batch, 1000 + 100 * length)
    return {"input_values": sound, "decoder_input_ids": torch.randint(3, 90, (batch, 4))}


RECENT: dict[str, Tiny] = {
    # decoders
    "gemma3": Tiny(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**HEADS, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        masked_tokens,
    ),
    "olmo2": Tiny("Olmo2ForCausalLM", "Olmo2Config", DECODER, masked_tokens),
    "smollm3": Tiny("SmolLM3ForCausalLM", "SmolLM3Config", DECODER, masked_tokens),
    "granite": Tiny("GraniteForCausalLM", "GraniteConfig", DECODER, masked_tokens),
    "cohere2": Tiny("Cohere2ForCausalLM", "Cohere2Config", {**DECODER, "sliding_window": 8}, masked_tokens),
    "glm4": Tiny("Glm4ForCausalLM", "Glm4Config", HEADS, masked_tokens),
    "starcoder2": Tiny("Starcoder2ForCausalLM", "Starcoder2Config", DECODER, masked_tokens),
    "nemotron": Tiny("NemotronForCausalLM", "NemotronConfig", HEADS, masked_tokens),
    "ernie4.5": Tiny("Ernie4_5ForCausalLM", "Ernie4_5Config", DECODER, masked_tokens),
    # mixtures of experts
    "gpt-oss": Tiny(
        "GptOssForCausalLM",
        "GptOssConfig",
        {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
        masked_tokens,
    ),
    "qwen3-moe": Tiny(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**HEADS, **EXPERTS, "moe_intermediate_size": 16}, masked_tokens
    ),
    "olmoe": Tiny("OlmoeForCausalLM", "OlmoeConfig", {**DECODER, **EXPERTS}, masked_tokens),
    # state spaces, linear attention and convolutions
    "qwen3-next": Tiny(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **HEADS,
            **EXPERTS,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
        masked_tokens,
    ),
    "falcon-mamba": Tiny(
        "FalconMambaForCausalLM",
        "FalconMambaConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "state_size": 4,
            "num_hidden_layers": 2,
            "time_step_rank": 4,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        tokens,
        unrolled="a recursion over time in Python",
    ),
    "bamba": Tiny(
        "BambaForCausalLM",
        "BambaConfig",
        {
            **DECODER,
            "attn_layer_indices": [1],
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 8,
        },
        masked_tokens,
    ),
    "lfm2": Tiny(
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {
            **DECODER,
            "layer_types": ["conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
            "conv_L_cache": 3,
        },
        masked_tokens,
    ),
    # encoders
    "xlm-roberta-xl": Tiny("XLMRobertaXLModel", "XLMRobertaXLConfig", {**ENCODER, "pad_token_id": 1}, masked_tokens),
    "mobilebert": Tiny(
        "MobileBertModel",
        "MobileBertConfig",
        {**ENCODER, "embedding_size": 16, "true_hidden_size": 32, "intra_bottleneck_size": 32},
        masked_tokens,
    ),
    "squeezebert": Tiny("SqueezeBertModel", "SqueezeBertConfig", {**ENCODER, "embedding_size": 32}, masked_tokens),
    "roformer": Tiny("RoFormerModel", "RoFormerConfig", ENCODER, masked_tokens),
    "mpnet": Tiny("MPNetModel", "MPNetConfig", {**ENCODER, "pad_token_id": 1}, masked_tokens),
    # encoder-decoders
    "t5gemma": Tiny(
        "T5GemmaForConditionalGeneration",
        "T5GemmaConfig",
        {
            "encoder": Nested("T5GemmaModuleConfig", {**HEADS, "sliding_window": 8}),
            "decoder": Nested("T5GemmaModuleConfig", {**HEADS, "sliding_window": 8}),
            "vocab_size": 99,
        },
        pairs,
    ),
    # vision
    "sam": Tiny(
        "SamVisionModel",
        "SamVisionConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
            "output_channels": 16,
            "global_attn_indexes": [1],
            "window_size": 2,
            "num_pos_feats": 8,
            "mlp_dim": 64,
        },
        images,
        has_length=False,
    ),
    "dinov3": Tiny(
        "DINOv3ViTModel", "DINOv3ViTConfig", {**VISION, "num_register_tokens": 2}, images, has_length=False
    ),
    "siglip2": Tiny(
        "Siglip2VisionModel",
        "Siglip2VisionConfig",
        {**VISION, "num_patches": 16},
        patches,
        has_length=False,
        unrolled="resizes the position embeddings image by image",
    ),
    "mobilevit": Tiny(
        "MobileViTModel",
        "MobileViTConfig",
        {
            "image_size": 32,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32],
            "num_attention_heads": 4,
        },
        images,
        has_length=False,
    ),
    "convnextv2": Tiny(
        "ConvNextV2ForImageClassification",
        "ConvNextV2Config",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 3},
        sized_images,
    ),
    "pvt-v2": Tiny(
        "PvtV2ForImageClassification",
        "PvtV2Config",
        {
            "image_size": 32,
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "num_labels": 3,
        },
        images,
        has_length=False,
    ),
    "vit-mae": Tiny("ViTMAEModel", "ViTMAEConfig", VISION, noisy_images, has_length=False),
    "depth-anything": Tiny(
        "DepthAnythingForDepthEstimation",
        "DepthAnythingConfig",
        {
            "backbone_config": Nested(
                "Dinov2Config", {**VISION, "out_features": ["stage1", "stage2"], "reshape_hidden_states": False}
            ),
            "reassemble_hidden_size": 32,
            "patch_size": 8,
            "neck_hidden_sizes": [16, 16],
            "reassemble_factors": [1, 0.5],
            "fusion_hidden_size": 16,
        },
        images,
        has_length=False,
    ),
    # speech
    "moonshine": Tiny(
        "MoonshineModel",
        "MoonshineConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 64,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        transcribed_waves,
    ),
    "wavlm": Tiny("WavLMModel", "WavLMConfig", WAVE, waves),
    # images with text
    "chinese-clip": Tiny(
        "ChineseCLIPModel",
        "ChineseCLIPConfig",
        {"text_config": ENCODER, "vision_config": VISION, "projection_dim": 16},
        captioned_images,
    ),
}
