"""What guards cost at each call of a model that does not change, and how that grows with the model.

    python -m benchmarks.guard_cost [--layers 2 6 12 24 48] [--base]

Runs on whatever interpreter it is started with. The model is transformers' BERT where that is installed, else the same
shape written with torch.nn. `--base` adds BERT-base: 12 layers, hidden size 768. Times are the least of many rounds,
in microseconds a call: `guards` for checking all of them as a call does, `walk` for what a full walk takes.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from typing import Any

import torch
from torch import nn

import jitpy
from jitpy.runtime.native_build import load_native


class Layer(nn.Module):
    """One layer of an encoder, in as many modules as BERT's."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.attention_output = nn.Sequential(nn.Linear(hidden, hidden), nn.Dropout(0.1))
        self.attention_norm = nn.LayerNorm(hidden)
        self.feed_forward = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden),
                                          nn.Dropout(0.1))
        self.norm = nn.LayerNorm(hidden)
        self.wrapped = nn.ModuleList([nn.Identity(), nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for project in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.attention_output(attended))
        for module in self.wrapped:
            x = module(x)
        return self.norm(x + self.feed_forward(x))


class Encoder(nn.Module):
    """Embeddings and layers, where transformers is not installed."""

    def __init__(self, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(100, hidden), nn.Embedding(64, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(input_ids) + self.positions.weight[: input_ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x


def make_model(layers: int, hidden: int) -> nn.Module:
    heads = max(1, hidden // 64)
    try:
        from transformers import BertConfig, BertModel
    except ImportError:
        return Encoder(layers, hidden, heads).eval()
    config = BertConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, vocab_size=100,
                        intermediate_size=4 * hidden)
    return BertModel(config).eval()


def microseconds(call: Any) -> float:
    number = max(1, int(0.002 / max(timeit.timeit(call, number=20) / 20, 1e-9)))
    return min(timeit.repeat(call, number=number, repeat=300)) / number * 1e6


def measure(layers: int, hidden: int) -> None:
    model = make_model(layers, hidden)
    tokens = torch.randint(0, 100, (1, 8))
    seen: list[tuple[Any, ...]] = []
    fn = jitpy.jit(lambda model, tokens: model(input_ids=tokens), backend="eager")
    with torch.no_grad():
        for _ in range(4):
            fn(model, tokens)
        (entry,) = fn.entries
        guards = entry.guard
        seen = [(model, tokens), fn.globals, fn.__closure__]
        check = guards.check
        cost = microseconds(lambda: check(*seen)) - microseconds(lambda: len(seen))
        noted = guards.native_guard.noted()
        program = guards.tree.native_program()
        walk = microseconds(lambda: load_native("runtime").Guard(*program).check(*seen)) - microseconds(
            lambda: load_native("runtime").Guard(*program))
    facts = repr(guards).removeprefix("<guards: ").removesuffix(">")
    modules = len(list(model.modules()))
    print(f"{layers:6} {hidden:6} {modules:8} {facts:28} {cost:8.2f} {walk:8.1f}   {noted}", flush=True)


def main() -> None:
    load_native("runtime")  # built before anything is jitted
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, nargs="*", default=[2, 6, 12, 24, 48])
    parser.add_argument("--base", action="store_true", help="also BERT-base: 12 layers of 768")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {type(make_model(1, 64)).__name__}; microseconds a call")
    print(f"{'layers':>6} {'hidden':>6} {'modules':>8} {'facts':28} {'guards':>8} {'walk':>8}   compared")
    for layers in options.layers:
        measure(layers, 64)
    if options.base:
        measure(12, 768)


if __name__ == "__main__":
    main()
