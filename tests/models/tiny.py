"""Small random models of the kinds people run, with makers of their inputs. Nothing is downloaded.

`MODELS` is a table: the class, its config with the sizes that make it small, how to make inputs for (batch, length).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

import torch

Inputs = Callable[[int, int], dict[str, Any]]


def _version() -> tuple[int, ...]:
    try:
        return tuple(map(int, importlib.metadata.version("transformers").split(".")[:2]))
    except importlib.metadata.PackageNotFoundError:
        return ()


#: whether Funnel counts its positions with tensors: seen in 5.17; 5.24 does it in Python
FLOAT_POSITIONS = _version() < (5, 24)


@dataclasses.dataclass(frozen=True)
class Nested:
    """A config inside of a config."""

    config: str
    sizes: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A model class of transformers with the config that makes it small."""

    model: str
    config: str
    sizes: Mapping[str, Any]
    #: (batch, length) -> keyword arguments of the forward
    inputs: Inputs
    #: does `length` change anything?
    has_length: bool = True
    #: why the model is not one graph ("" where it is)
    broken: str = ""
    #: why each length is a variant of its own ("" where one serves all lengths)
    unrolled: str = ""

    def make(self) -> torch.nn.Module:
        """The model with random weights (always the same ones), in eval mode.

        AttributeError where the installed transformers does not have the classes."""
        torch.manual_seed(0)
        return _found(self.model)(_made(self.config, self.sizes)).eval()


def _found(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


def _made(config: str, sizes: Mapping[str, Any]) -> Any:
    return _found(config)(
        **{
            key: _made(value.config, value.sizes) if isinstance(value, Nested) else value
            for key, value in sizes.items()
        }
    )


def outputs(result: Any) -> list[torch.Tensor]:
    """Every tensor in a model's output, in order; caches are left out."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in outputs(item)]
    return []


# -- inputs ---------------------------------------------------------------------------------------------------


def tokens(batch: int, length: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 90, (batch, length))}


def masked_tokens(batch: int, length: int) -> dict[str, Any]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return {**tokens(batch, length), "attention_mask": mask}


def left_padded_tokens(batch: int, length: int) -> dict[str, Any]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, :2] = 0
    return {**tokens(batch, length), "attention_mask": mask}


def labelled_tokens(batch: int, length: int) -> dict[str, Any]:
    made = masked_tokens(batch, length)
    return {**made, "labels": made["input_ids"]}


def labelled_texts(batch: int, length: int) -> dict[str, Any]:
    return {**masked_tokens(batch, length), "labels": torch.randint(0, 3, (batch,))}


def boxed_tokens(batch: int, length: int) -> dict[str, Any]:
    corner = torch.randint(0, 400, (batch, length, 2))
    return {**masked_tokens(batch, length), "bbox": torch.cat([corner, corner + 50], dim=-1)}


def pairs(batch: int, length: int) -> dict[str, Any]:
    return {**tokens(batch, length), "decoder_input_ids": torch.randint(3, 90, (batch, length - 1))}


def labelled_pairs(batch: int, length: int) -> dict[str, Any]:
    return {**masked_tokens(batch, length), "labels": torch.randint(3, 90, (batch, length - 1))}


def images(batch: int, length: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def sized_images(batch: int, length: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 32, 8 * length)}


def labelled_images(batch: int, length: int) -> dict[str, Any]:
    return {**images(batch, length), "labels": torch.randint(0, 3, (batch,))}


def captioned_images(batch: int, length: int) -> dict[str, Any]:
    return {**images(batch, length), **masked_tokens(batch, length)}


def images_in_tokens(batch: int, length: int) -> dict[str, Any]:
    """Sixteen places of each text stand for the patches of an image."""
    text = torch.cat([torch.full((batch, 16), 98), torch.randint(3, 90, (batch, length))], dim=1)
    return {**images(batch, length), "input_ids": text, "attention_mask": torch.ones_like(text)}


def spectra(batch: int, length: int) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 16, 32), "decoder_input_ids": torch.randint(3, 90, (batch, length))}


def frames(batch: int, length: int) -> dict[str, Any]:
    features = torch.randn(batch, 8 * length, 16)
    return {"input_features": features, "decoder_input_ids": torch.randint(3, 90, (batch, length))}


def waves(batch: int, length: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 100 * length)}


# -- sizes ----------------------------------------------------------------------------------------------------

ENCODER = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
DECODER = {**ENCODER, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {
    "vocab_size": 99,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PAIR = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
T5_SIZES = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
SPEECH_PAIR = {
    **{key: value for key, value in PAIR.items() if key != "max_position_embeddings"},
    "max_target_positions": 64,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
WAVE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}
LATENT = {
    **DECODER,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_shared_experts": 1,
}

MODELS: dict[str, Tiny] = {
    # encoders
    "bert": Tiny("BertModel", "BertConfig", ENCODER, masked_tokens),
    "bert classifier": Tiny(
        "BertForSequenceClassification", "BertConfig", {**ENCODER, "num_labels": 3}, labelled_texts
    ),
    "roberta": Tiny("RobertaForMaskedLM", "RobertaConfig", {**ENCODER, "pad_token_id": 1}, labelled_tokens),
    "xlm-roberta": Tiny(
        "XLMRobertaForTokenClassification", "XLMRobertaConfig", {**ENCODER, "pad_token_id": 1}, masked_tokens
    ),
    "albert": Tiny("AlbertModel", "AlbertConfig", {**ENCODER, "embedding_size": 16}, masked_tokens),
    "electra": Tiny("ElectraForPreTraining", "ElectraConfig", {**ENCODER, "embedding_size": 16}, masked_tokens),
    "deberta-v2": Tiny(
        "DebertaV2Model",
        "DebertaV2Config",
        {
            **ENCODER,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        masked_tokens,
    ),
    "mpnet": Tiny("MPNetModel", "MPNetConfig", ENCODER, masked_tokens),
    "distilbert": Tiny(
        "DistilBertForQuestionAnswering",
        "DistilBertConfig",
        {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
        masked_tokens,
    ),
    "modernbert": Tiny(
        "ModernBertModel",
        "ModernBertConfig",
        {
            **ENCODER,
            "local_attention": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
        masked_tokens,
    ),
    "longformer": Tiny(
        "LongformerModel",
        "LongformerConfig",
        {**ENCODER, "attention_window": 4, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        masked_tokens,
        broken="branches on the values of the mask",
    ),
    "layoutlm": Tiny("LayoutLMModel", "LayoutLMConfig", {**ENCODER, "max_2d_position_embeddings": 512}, boxed_tokens),
    "funnel": Tiny(
        "FunnelModel",
        "FunnelConfig",
        {
            "vocab_size": 99,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
        },
        masked_tokens,
        broken="how many positions there are is computed from floats in tensors" if FLOAT_POSITIONS else "",
        unrolled="" if FLOAT_POSITIONS else "pooling by Python slices",
    ),
    "xlnet": Tiny(
        "XLNetModel",
        "XLNetConfig",
        {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
        masked_tokens,
    ),
    # decoders
    "gpt2": Tiny("GPT2LMHeadModel", "GPT2Config", GPT, tokens),
    "gpt-neo": Tiny(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        labelled_tokens,
    ),
    "gpt-neox": Tiny(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", {**ENCODER, "bos_token_id": 1, "eos_token_id": 2}, masked_tokens
    ),
    "gptj": Tiny("GPTJForCausalLM", "GPTJConfig", {**GPT, "rotary_dim": 4}, masked_tokens),
    "opt": Tiny(
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        masked_tokens,
    ),
    "bloom": Tiny(
        "BloomForCausalLM",
        "BloomConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        masked_tokens,
    ),
    "falcon": Tiny(
        "FalconForCausalLM",
        "FalconConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        masked_tokens,
    ),
    "llama": Tiny("LlamaForCausalLM", "LlamaConfig", DECODER, labelled_tokens),
    "mistral": Tiny("MistralForCausalLM", "MistralConfig", {**DECODER, "sliding_window": 8}, masked_tokens),
    "qwen2": Tiny("Qwen2ForCausalLM", "Qwen2Config", DECODER, left_padded_tokens),
    "qwen3": Tiny("Qwen3ForCausalLM", "Qwen3Config", {**DECODER, "head_dim": 8}, masked_tokens),
    "gemma": Tiny("GemmaForCausalLM", "GemmaConfig", {**DECODER, "head_dim": 8}, masked_tokens),
    "gemma2": Tiny("Gemma2ForCausalLM", "Gemma2Config", {**DECODER, "head_dim": 8, "sliding_window": 8}, masked_tokens),
    "phi": Tiny("PhiForCausalLM", "PhiConfig", DECODER, masked_tokens),
    "phi3": Tiny("Phi3ForCausalLM", "Phi3Config", DECODER, masked_tokens),
    "stablelm": Tiny("StableLmForCausalLM", "StableLmConfig", DECODER, masked_tokens),
    "olmo": Tiny("OlmoForCausalLM", "OlmoConfig", DECODER, masked_tokens),
    # mixtures of experts
    "mixtral": Tiny(
        "MixtralForCausalLM",
        "MixtralConfig",
        {**DECODER, "num_local_experts": 4},
        masked_tokens,
    ),
    "qwen2-moe": Tiny(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {
            **DECODER,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 32,
        },
        masked_tokens,
    ),
    "granite-moe": Tiny(
        "GraniteMoeForCausalLM",
        "GraniteMoeConfig",
        {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
        masked_tokens,
    ),
    "deepseek-v3": Tiny(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", LATENT, masked_tokens
    ),
    # state spaces and recurrences
    "mamba": Tiny(
        "MambaForCausalLM",
        "MambaConfig",
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
    "mamba2": Tiny(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "state_size": 8,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        masked_tokens,
    ),
    "recurrent-gemma": Tiny(
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {**DECODER, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8},
        masked_tokens,
        unrolled="a recursion over time in Python",
    ),
    "rwkv": Tiny(
        "RwkvForCausalLM",
        "RwkvConfig",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
            "intermediate_size": 64,
            "context_length": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        tokens,
        unrolled="a Python loop over time",
    ),
    "jamba": Tiny(
        "JambaForCausalLM",
        "JambaConfig",
        {
            **DECODER,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "num_experts": 4,
            "expert_layer_offset": 1,
            "use_mamba_kernels": False,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
        },
        masked_tokens,
        unrolled="a recursion over time in Python",
    ),
    # encoder-decoders
    "bart": Tiny("BartForConditionalGeneration", "BartConfig", PAIR, labelled_pairs),
    "mbart": Tiny("MBartForConditionalGeneration", "MBartConfig", PAIR, labelled_pairs),
    "pegasus": Tiny("PegasusModel", "PegasusConfig", PAIR, pairs),
    "marian": Tiny("MarianMTModel", "MarianConfig", PAIR, pairs),
    "led": Tiny(
        "LEDModel",
        "LEDConfig",
        {
            **{key: value for key, value in PAIR.items() if key != "max_position_embeddings"},
            "attention_window": 4,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
        pairs,
        broken="branches on the values of the mask",
    ),
    "t5": Tiny("T5ForConditionalGeneration", "T5Config", T5_SIZES, pairs),
    "mt5": Tiny("MT5ForConditionalGeneration", "MT5Config", T5_SIZES, labelled_pairs),
    # vision
    "vit": Tiny("ViTModel", "ViTConfig", VISION, images, has_length=False),
    "deit": Tiny(
        "DeiTForImageClassification", "DeiTConfig", {**VISION, "num_labels": 3}, labelled_images, has_length=False
    ),
    "beit": Tiny("BeitModel", "BeitConfig", {**VISION, "use_relative_position_bias": True}, images, has_length=False),
    "dinov2": Tiny("Dinov2Model", "Dinov2Config", VISION, images, has_length=False),
    "swin": Tiny(
        "SwinModel",
        "SwinConfig",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        images,
        has_length=False,
    ),
    "convnext": Tiny(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 3},
        sized_images,
    ),
    "resnet": Tiny(
        "ResNetModel",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        sized_images,
    ),
    "segformer": Tiny(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "num_attention_heads": [1, 2],
            "decoder_hidden_size": 16,
            "num_labels": 3,
            "mlp_ratios": [2, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
        },
        sized_images,
    ),
    "detr": Tiny(
        "DetrModel",
        "DetrConfig",
        {
            **{key: value for key, value in PAIR.items() if key not in ("vocab_size", "max_position_embeddings")},
            "num_queries": 4,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": Nested(
                "ResNetConfig",
                {
                    "embedding_size": 8,
                    "hidden_sizes": [8, 16],
                    "depths": [1, 1],
                    "layer_type": "basic",
                    "out_features": ["stage2"],
                },
            ),
        },
        images,
        has_length=False,
    ),
    # speech
    "whisper": Tiny(
        "WhisperModel",
        "WhisperConfig",
        {
            **SPEECH_PAIR,
            "num_mel_bins": 16,
            "max_source_positions": 16,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        spectra,
    ),
    "speech-to-text": Tiny(
        "Speech2TextModel",
        "Speech2TextConfig",
        {
            **SPEECH_PAIR,
            "input_feat_per_channel": 16,
            "input_channels": 1,
            "conv_channels": 32,
            "max_source_positions": 128,
        },
        frames,
    ),
    "wav2vec2": Tiny("Wav2Vec2ForCTC", "Wav2Vec2Config", WAVE, waves),
    "hubert": Tiny("HubertModel", "HubertConfig", WAVE, waves),
    "sew": Tiny("SEWModel", "SEWConfig", {**WAVE, "squeeze_factor": 2}, waves),
    # images with text
    "clip": Tiny(
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {**ENCODER, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
            "vision_config": VISION,
            "projection_dim": 16,
        },
        captioned_images,
    ),
    "siglip": Tiny("SiglipModel", "SiglipConfig", {"text_config": ENCODER, "vision_config": VISION}, captioned_images),
    "blip": Tiny(
        "BlipForConditionalGeneration",
        "BlipConfig",
        {
            "text_config": {
                **ENCODER,
                "encoder_hidden_size": 32,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
                "sep_token_id": 2,
            },
            "vision_config": VISION,
            "projection_dim": 16,
        },
        captioned_images,
    ),
    "llava": Tiny(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": Nested("LlamaConfig", DECODER),
            "vision_config": Nested("CLIPVisionConfig", VISION),
            "image_token_index": 98,
        },
        images_in_tokens,
        unrolled="a Python loop over images",
    ),
}
