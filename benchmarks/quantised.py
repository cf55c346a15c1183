"""Quantised models on the CPU, warm: eager, torch.compile and jitpy, interleaved, beside the float32 model in jitpy.

    python -m benchmarks.quantised [--only NAME ...] [--models NAME ...] [--compile] [--json FILE]

A row has the milliseconds of a call, how many times as fast as eager with the recipe jitpy is, and how many times as
fast as the float32 model in jitpy.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first
from torch import nn  # noqa: E402

import jitpy  # noqa: E402
from tests.quantised.test_inference import EXPORTED, RECIPES  # noqa: E402

Made = tuple[nn.Module, torch.Tensor]


def mlp() -> Made:
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)), torch.randn(64, 512)


def llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=1024, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
                         num_attention_heads=8, num_key_value_heads=4, use_cache=False)
    return LlamaForCausalLM(config), torch.randint(0, 1024, (1, 64))


def encoder() -> Made:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=1024, hidden_size=512, intermediate_size=2048, num_hidden_layers=4,
                        num_attention_heads=8)
    return BertModel(config), torch.randint(0, 1024, (2, 64))


class Block(nn.Module):
    """ResNet's block of two convolutions."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity() if before == after else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet() -> Made:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                               nn.MaxPool2d(3, 2, 1)]
    before = 64
    for after in (64, 128, 256, 512):
        layers += [Block(before, after, 1 if after == 64 else 2), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(512, 1000)), \
        torch.randn(1, 3, 224, 224)


MODELS: dict[str, Callable[[], Made]] = {"mlp": mlp, "llama": llama, "encoder": encoder, "resnet18": resnet}


def made(name: str) -> Made:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    return model.eval(), x


def measure(name: str, recipe: Callable[..., nn.Module], with_compile: bool, budget: float) -> dict[str, float]:
    """Seconds of a warm call per rival, and of the first two calls of those that compile."""
    jitpy.reset()
    model, x = made(name)
    quantised = recipe(model, x)
    rivals: dict[str, Any] = {"eager": quantised, "float32": jitpy.jit(made(name)[0]), "jitpy": jitpy.jit(quantised)}
    if with_compile:
        torch.compiler.reset()
        rivals["compile"] = torch.compile(quantised)
    figures: dict[str, float] = {}
    taken: dict[str, list[float]] = {rival: [] for rival in rivals}
    with torch.no_grad():
        for rival, fn in rivals.items():
            figures[f"first {rival}"] = sum(timing.seconds_of(functools.partial(fn, x)) for _ in range(2))
        spent = 0.0
        while len(taken["eager"]) < 5 or spent < budget and len(taken["eager"]) < 2000:
            for rival, fn in rivals.items():
                taken[rival].append(timing.seconds_of(functools.partial(fn, x)))
                spent += taken[rival][-1]
    return figures | {rival: statistics.median(times) for rival, times in taken.items()}


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--only", nargs="+", default=[], metavar="RECIPE")
    options.add_argument("--models", nargs="+", default=[*MODELS], choices=MODELS, metavar="NAME")
    options.add_argument("--compile", action="store_true", help="time torch.compile too")
    options.add_argument("--budget", type=float, default=4.0, help="seconds of timed calls a row")
    chosen = options.parse_args()
    timing.build_native()
    rows, figures = [], {}
    for name in chosen.models:
        for title, recipe in (RECIPES | EXPORTED).items():
            exported = title in EXPORTED
            if chosen.only and title not in chosen.only or exported and name in ("llama", "encoder") or \
                    name == "resnet18" and not exported:
                continue
            one = figures[f"{name}, {title}"] = measure(name, recipe, chosen.compile, chosen.budget)
            cells = [f"{one[key] * 1e3:.2f}" if key in one else "-" for key in ("eager", "compile", "jitpy", "float32")]
            rows.append([name, title, *cells, f"{one['eager'] / one['jitpy']:.2f}",
                         f"{one['float32'] / one['jitpy']:.2f}", f"{one['first jitpy']:.1f}"])
            print(" ".join(rows[-1]), flush=True)
    headings = ["model", "recipe", "eager ms", "compile ms", "jitpy ms", "float32 ms", "eager/jitpy", "float32/jitpy",
                "first s"]
    print("\n" + timing.table(headings, rows))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
