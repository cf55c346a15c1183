"""A Llama of eight layers on a GPU with each recipe of torchao: eager, torch.compile and jitpy, interleaved.

    python -m benchmarks.gpu.quantised [--only RECIPE ...] [--layers N] [--hidden N] [--mode MODE] [--no-compile]

A row has tokens a second at a batch of 1 and of 16, each compiled for itself, one token a sequence behind a context of
128, and the ratio to the bfloat16 model in jitpy. `error` is the distance from eager with the recipe, relative to its
size. `train` rows are steps of float8 training: milliseconds, the last loss of 50, and the largest distance between
the losses of jitpy and eager.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import jitpy

Tensor = torch.Tensor
CONTEXT, VOCABULARY, HEADS = 128, 4096, 16
RATE = 0.1


class Layer(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor, past: Tensor | None) -> Tensor:
        batch, length, hidden = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(batch, length, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        if past is not None:
            k, v = torch.cat((past, k), 2), torch.cat((past, v), 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, hidden))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.layers = nn.ModuleList(Layer(hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)

    def forward(self, ids: Tensor, past: Tensor | None = None) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, past)
        return self.norm(x)


def _torchao(make: Callable[[Any], Any]) -> Callable[[nn.Module], nn.Module]:
    def apply(model: nn.Module) -> nn.Module:
        from torchao import quantization

        quantization.quantize_(model, make(quantization))
        return model

    return apply


RECIPES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "bfloat16": lambda model: model,
    "int8 weights": _torchao(lambda q: q.Int8WeightOnlyConfig()),
    "int8 dynamic": _torchao(lambda q: q.Int8DynamicActivationInt8WeightConfig()),
    "int4 weights": _torchao(lambda q: q.Int4WeightOnlyConfig(
        group_size=128, int4_packing_format="tile_packed_to_4d", int4_choose_qparams_algorithm="tinygemm")),
    "float8 weights": _torchao(lambda q: q.Float8WeightOnlyConfig()),
    "float8 dynamic": _torchao(lambda q: q.Float8DynamicActivationFloat8WeightConfig()),
    "float8 row-wise": _torchao(lambda q: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerRow())),
}


def seconds(fn: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    fn()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def medians(rivals: dict[str, Callable[[], Any]], rounds: int = 21) -> dict[str, float]:
    for fn in rivals.values():
        for _ in range(3):
            fn()
    taken = {name: [] for name in rivals}  # type: dict[str, list[float]]
    for _ in range(rounds):
        for name, fn in rivals.items():
            taken[name].append(seconds(fn))
    return {name: statistics.median(times) for name, times in taken.items()}


def infer(recipe: str, hidden: int, layers: int, with_compile: bool, mode: str) -> dict[str, float]:
    torch.manual_seed(0)
    model = RECIPES[recipe](Llama(hidden, layers).to("cuda", torch.bfloat16).eval())
    figures: dict[str, float] = {}
    for batch in (1, 16):
        ids = torch.randint(0, VOCABULARY, (batch, 1), device="cuda")
        past = torch.randn(batch, HEADS, CONTEXT, hidden // HEADS, device="cuda", dtype=torch.bfloat16)
        torch.compiler.reset()
        jitted = jitpy.jit(model, mode=mode)
        rivals: dict[str, Any] = {"eager": model, "jitpy": jitted}
        if with_compile:
            rivals["compile"] = torch.compile(model, mode=mode)
        with torch.no_grad():
            want, got = model(ids, past).float(), jitted(ids, past).float()
            times = medians({name: functools.partial(fn, ids, past) for name, fn in rivals.items()})
            figures["breaks"] = jitpy.explain(model)(ids, past).graph_break_count
        figures["error"] = max(figures.get("error", 0.0), ((got - want).norm() / want.norm()).item())
        figures |= {f"{name} {batch}": batch / taken for name, taken in times.items()}
    return figures


def step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """Learn which token comes next."""
    optimizer.zero_grad()
    logits = F.linear(model(ids[:, :-1]), model.embedding.weight)
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


def training_model(hidden: int, layers: int, device: str = "cuda") -> Llama:
    """Tokens are as small as its words' scores are to be."""
    torch.manual_seed(0)
    model = Llama(hidden, layers).to(device, torch.bfloat16)
    with torch.no_grad():
        model.embedding.weight.mul_(0.02)
    return model


def training_tokens(device: str = "cuda") -> Tensor:
    return torch.randint(0, VOCABULARY, (4, 513), device=device)


def train(hidden: int, layers: int, with_compile: bool) -> dict[str, float]:
    from torchao.float8 import convert_to_float8_training

    plain, ids = training_model(hidden, layers), training_tokens()
    figures: dict[str, float] = {}
    rivals: dict[str, Any] = {}
    curves: dict[str, list[float]] = {}
    for name, convert, wrap in (("bfloat16", False, True), ("eager", True, False), ("jitpy", True, True),
                                ("compile", True, False))[:4 if with_compile else 3]:
        model: Any = copy.deepcopy(plain)
        model = convert_to_float8_training(model) if convert else model
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        runs = torch.compile(model) if name == "compile" else model
        rivals[name] = functools.partial(jitpy.jit(step) if wrap else step, runs, optimizer, ids)
        curves[name] = [rivals[name]().item() for _ in range(50)]
        figures[f"loss {name}"] = curves[name][-1]
    figures["error"] = max(abs(one - other) for one, other in zip(curves["jitpy"], curves["eager"], strict=True))
    return figures | {name: taken * 1e3 for name, taken in medians(rivals, 11).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[*RECIPES, "train"])
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--mode", default="default")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    found: dict[str, Any] = {}
    for name in chosen.only:
        try:
            found[name] = train(chosen.hidden, chosen.layers, not chosen.no_compile) if name == "train" else \
                infer(name, chosen.hidden, chosen.layers, not chosen.no_compile, chosen.mode)
            print(name, {key: round(value, 4) for key, value in found[name].items()}, flush=True)
        except Exception as error:  # a recipe whose kernel is not there
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
