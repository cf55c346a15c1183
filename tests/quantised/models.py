"""Small models of which quantised ones are made."""

from __future__ import annotations

import torch
from torch import nn


def mlp(width: int = 64) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)).eval(), \
        torch.randn(4, width)


def convolution() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(1), nn.Linear(8 * 8 * 8, 10)).eval(), \
        torch.randn(2, 3, 8, 8)


def llama() -> tuple[nn.Module, torch.Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, use_cache=False)
    return LlamaForCausalLM(config).eval(), torch.randint(0, 128, (2, 16))


def bert() -> tuple[nn.Module, torch.Tensor]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                        num_attention_heads=4, max_position_embeddings=128)
    return BertModel(config).eval(), torch.randint(0, 128, (2, 16))


def first(result):
    return result if isinstance(result, torch.Tensor) else result[0]
