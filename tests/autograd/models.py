"""Small models in train mode, each with a loss as a function of the model; and what a test reads off a step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Loss = Callable[[nn.Module], torch.Tensor]

_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def _transformers(model: str, config: str, inputs: dict[str, Any], **sizes: Any) -> tuple[nn.Module, Loss]:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))

    def loss(model: nn.Module) -> torch.Tensor:
        dtype = next(model.parameters()).dtype
        given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        return model(**given).loss

    return made, loss


def _tokens(labels: bool = True) -> dict[str, Any]:
    ids = torch.randint(3, 90, (2, 11))
    return {"input_ids": ids, "labels": ids} if labels else {"input_ids": ids}


def bert() -> tuple[nn.Module, Loss]:
    return _transformers("BertForSequenceClassification", "BertConfig",
                         {**_tokens(False), "labels": torch.tensor([0, 1])}, **_TEXT, vocab_size=100,
                         problem_type="single_label_classification")


def gpt2() -> tuple[nn.Module, Loss]:
    return _transformers("GPT2LMHeadModel", "GPT2Config", _tokens(), n_embd=32, n_layer=2, n_head=4, n_positions=32,
                         vocab_size=100, bos_token_id=0, eos_token_id=1)


def llama() -> tuple[nn.Module, Loss]:
    return _transformers("LlamaForCausalLM", "LlamaConfig", _tokens(), **_TEXT, num_key_value_heads=2, vocab_size=100)


def t5() -> tuple[nn.Module, Loss]:
    return _transformers("T5ForConditionalGeneration", "T5Config", _tokens(), d_model=32, num_layers=2, num_heads=4,
                         d_kv=8, d_ff=64, vocab_size=100, decoder_start_token_id=0)


def vit() -> tuple[nn.Module, Loss]:
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    return _transformers("ViTForImageClassification", "ViTConfig", inputs, **_TEXT, image_size=16, patch_size=8,
                         num_labels=3)


def whisper() -> tuple[nn.Module, Loss]:
    inputs = {"input_features": torch.randn(2, 16, 32), "labels": torch.randint(3, 90, (2, 7))}
    return _transformers("WhisperForConditionalGeneration", "WhisperConfig", inputs, d_model=32, encoder_layers=1,
                         decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                         decoder_ffn_dim=64, vocab_size=100, max_source_positions=16, max_target_positions=16,
                         num_mel_bins=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)


class Block(nn.Module):
    """Two convolutions with batch norm, and what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(x + self.second_norm(self.second(y)), inplace=True)


def resnet() -> tuple[nn.Module, Loss]:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                          nn.MaxPool2d(3, 2, 1), Block(8), Block(8), nn.Dropout(0.1), nn.AdaptiveAvgPool2d(1),
                          nn.Flatten(), nn.Linear(8, 4))
    x, y = torch.randn(4, 3, 12, 12), torch.arange(4)
    return model, lambda m: F.cross_entropy(m(x.to(next(m.parameters()).dtype)), y)


MODELS = {made.__name__: made for made in (bert, gpt2, llama, t5, vit, whisper, resnet)}


class Step:
    """What one step of training leaves: loss, gradients by name, buffers, the next random number."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], torch.Tensor], seed: int = 1) -> None:
        model.zero_grad()
        torch.manual_seed(seed)
        value = loss(model)
        value.backward()
        self.loss = value.detach()
        self.grads = {k: p.grad for k, p in model.named_parameters()}
        self.buffers = {k: b.clone() for k, b in model.named_buffers()}
        self.random = torch.rand(())


def twin(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    made = copy.deepcopy(model)
    return made if dtype is None else made.to(dtype)


def no_further_off(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, what: str,
                   other: torch.Tensor | None = None) -> None:
    """Whether a result in float32 is as near to that in float64 as eager's is: twice as far, or some units of the last
    place of the largest element, is noise. `other` is eager's with images in channels-last: the library's convolutions
    round differently there, and which of the two is the nearer one depends on the processor."""
    exact = exact.to(torch.float64)
    eager = other if other is not None and (other - exact).abs().max() > (eager - exact).abs().max() else eager
    limit = 2 * (eager - exact).abs().max().item() + 32 * torch.finfo(eager.dtype).eps * exact.abs().max().item() + 1e-9
    error = (found - exact).abs().max().item()
    assert error <= limit, f"{what}: off by {error:.3g}, where eager is off by {(eager - exact).abs().max().item():.3g}"
