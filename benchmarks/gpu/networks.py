"""The models of the GPU benchmarks, with random weights: name -> `Network`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"


@dataclass(frozen=True)
class Network:
    """`make()` gives the module and the keyword arguments of a call; `loss` turns its result into a number."""

    make: Callable[[], tuple[nn.Module, dict[str, Any]]]
    loss: Callable[[Any, dict[str, Any]], torch.Tensor] | None = None


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape, device=DEVICE)


def bert() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForMaskedLM(config)
    return model, {"input_ids": tokens(config.vocab_size, 16, 512), "labels": tokens(config.vocab_size, 16, 512)}


def padded_bert() -> tuple[nn.Module, dict[str, Any]]:
    """As users train it: with dropout, and sentences of different lengths (what is left of a row is padding)."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig()
    ids = tokens(config.vocab_size, 16, 512)
    lengths = torch.randint(128, 513, (16, 1), device=DEVICE)
    kept = torch.arange(512, device=DEVICE) < lengths
    return BertForMaskedLM(config), {"input_ids": ids, "attention_mask": kept.long(), "labels": ids.where(kept, -100)}


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    ids = tokens(config.vocab_size, 8, 512)
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def llama() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, num_attention_heads=16,
                         num_key_value_heads=4, vocab_size=32000, use_cache=False)
    ids = tokens(config.vocab_size, 4, 1024)
    return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def t5() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(dropout_rate=0.0, use_cache=False, decoder_start_token_id=0, pad_token_id=0)
    ids = tokens(config.vocab_size, 16, 256)
    return T5ForConditionalGeneration(config), {"input_ids": ids, "labels": tokens(config.vocab_size, 16, 128)}


def vit() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_labels=1000)
    return ViTForImageClassification(config), {"pixel_values": torch.randn(32, 3, 224, 224, device=DEVICE),
                                               "labels": tokens(1000, 32)}


class Bottleneck(nn.Module):
    """ResNet's block: 1x1, 3x3, 1x1 convolutions with batch norms, and a shortcut."""

    def __init__(self, inner: int, before: int, stride: int):
        super().__init__()
        after = inner * 4
        self.conv1, self.bn1 = nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Identity() if stride == 1 and before == after else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet-50 for images of 224 x 224."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                                  nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        before = 64
        for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(inner, before, stride if number == 0 else 1))
                before = inner * 4
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(before, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def resnet() -> tuple[nn.Module, dict[str, Any]]:
    return ResNet50(), {"x": torch.randn(64, 3, 224, 224, device=DEVICE)}


class Block(nn.Module):
    """A Transformer block with attention written out."""

    def __init__(self, width: int = 1024, heads: int = 16):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def block() -> tuple[nn.Module, dict[str, Any]]:
    return Block(), {"x": torch.randn(8, 1024, 1024, device=DEVICE)}


def own_loss(result: Any, inputs: dict[str, Any]) -> torch.Tensor:
    return result.loss


def mean_square(result: Any, inputs: dict[str, Any]) -> torch.Tensor:
    return result.float().square().mean()


#: Networks for images, of timm; measured with 16 images.
CONVNETS = ("mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny", "mixer_b16_224", "resnet50", "regnety_016",
            "swin_tiny_patch4_window7_224")


def of_timm(name: str) -> Network:
    def make() -> tuple[nn.Module, dict[str, Any]]:
        import timm

        model = timm.create_model(name)
        nn.init.normal_(model.get_classifier().weight, std=0.02)  # some begin with zeros
        return model, {"x": torch.randn(16, 3, 224, 224, device=DEVICE)}

    return Network(make, mean_square)


NETWORKS: dict[str, Network] = {
    "bert": Network(bert, own_loss),
    "bert-padded": Network(padded_bert, own_loss),
    "gpt2": Network(gpt2, own_loss),
    "llama": Network(llama, own_loss),
    "t5": Network(t5, own_loss),
    "vit": Network(vit, own_loss),
    "resnet50": Network(resnet, mean_square),
    "block": Network(block, mean_square),
}
TIMM = {f"timm/{name}": of_timm(name) for name in CONVNETS}

#: those that are trained as well, where nothing else is asked for
TRAINED = ("bert", "gpt2", "llama", "resnet50", "block")
