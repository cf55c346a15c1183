"""Small models to train, each with its batches and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Task:
    """`make()` gives the model, `batch(number)` the data of one step, `loss(model, *batch)` a scalar."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[..., torch.Tensor]


class Residual(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, two stages, a classifier."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.MaxPool2d(2))
        self.stages = nn.Sequential(Residual(width, width, 1), Residual(width, 2 * width, 2))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"vocab_size": 101, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4,
                             "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def _resnet() -> nn.Module:
    # From these weights no activation comes near a tie. From others (seed 0) 50 steps of eager may end 1e-3 apart
    # where weights differ by 1e-7, because a ReLU or a maximum goes the other way; from these they stay within 2e-6.
    torch.manual_seed(1)
    return ResNet()


def _random(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def _tokens(number: int) -> Batch:
    return (torch.randint(0, 101, (4, 32), generator=_random(number % 4)),)


def _images(number: int) -> Batch:
    random = _random(number % 4)
    return torch.randn(4, 3, 12, 12, generator=random), torch.randint(0, 10, (4,), generator=random)


TASKS = {
    "gpt2": Task(_gpt2, _tokens, lambda model, ids: model(input_ids=ids, labels=ids).loss),
    "resnet": Task(_resnet, _images, lambda model, x, y: F.cross_entropy(model(x), y)),
}
