"""Small random models of the kinds people run, with makers of their inputs. Nothing is downloaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A model class with the config that makes it small."""

    build: Callable[[], torch.nn.Module]
    #: (batch, length) -> keyword arguments of the forward
    inputs: Callable[[int, int], dict[str, Any]]
    #: does `length` change anything?
    has_length: bool = True

    def make(self) -> torch.nn.Module:
        """The model with random weights (always the same ones), in eval mode."""
        torch.manual_seed(0)
        return self.build().eval()


def tokens(batch: int, length: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 90, (batch, length))}


def masked_tokens(batch: int, length: int) -> dict[str, Any]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return {**tokens(batch, length), "attention_mask": mask}


def pairs(batch: int, length: int) -> dict[str, Any]:
    return {**tokens(batch, length), "decoder_input_ids": torch.randint(3, 90, (batch, length - 1))}


def images(batch: int, length: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def sounds(batch: int, length: int) -> dict[str, Any]:
    features = torch.randn(batch, 16, 32)
    return {"input_features": features, "decoder_input_ids": torch.randint(3, 90, (batch, length))}


def _bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                intermediate_size=64, max_position_embeddings=64))


def _distilbert() -> torch.nn.Module:
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64,
                                            max_position_embeddings=64))


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4, use_cache=False))


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                        use_cache=False))


def _mistral() -> torch.nn.Module:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                            sliding_window=8, use_cache=False))


def _t5() -> torch.nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                               decoder_start_token_id=0, use_cache=False))


def _vit() -> torch.nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                              image_size=32, patch_size=8))


def _whisper() -> torch.nn.Module:
    from transformers import WhisperConfig, WhisperModel

    return WhisperModel(WhisperConfig(vocab_size=99, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2,
                                      encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                                      decoder_ffn_dim=64, max_source_positions=16, max_target_positions=32,
                                      pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
                                      suppress_tokens=None, begin_suppress_tokens=None, use_cache=False))


MODELS: dict[str, Tiny] = {
    "bert": Tiny(_bert, masked_tokens),
    "gpt2": Tiny(_gpt2, tokens),
    "llama": Tiny(_llama, masked_tokens),
    "t5": Tiny(_t5, pairs),
    "vit": Tiny(_vit, images, has_length=False),
    "distilbert": Tiny(_distilbert, masked_tokens),
    "mistral": Tiny(_mistral, masked_tokens),
    "whisper": Tiny(_whisper, sounds),
}


def outputs(result: Any) -> list[torch.Tensor]:
    """Every tensor in a model's output, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in outputs(item)]
    return []
