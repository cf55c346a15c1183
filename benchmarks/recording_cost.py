"""What recording one torch call costs: the ops of BERT-base, fed to the recorder without a bytecode executor.

    python benchmarks/recording_cost.py [--dynamic] [--layers N]

Prints microseconds per call for the first capture in the process (nothing is known yet) and for later captures.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch

from jitpy.frontend.capture.graph_builder import TracedGraphBuilder
from jitpy.frontend.guards.guard_set import GuardSet
from jitpy.frontend.guards.source import LocalSource
from jitpy.ir import SizeEnv

T = torch.Tensor


class Bert:
    """BERT-base as a sequence of the torch calls that its forward pass makes."""

    def __init__(self, layers: int) -> None:
        self.weights: list[torch.Tensor] = []
        self.embeddings = [self.new(30522, 768), self.new(512, 768), self.new(2, 768), self.new(768), self.new(768)]
        self.layers = [
            [self.new(768, 768), self.new(768)] * 4
            + [
                self.new(768),
                self.new(768),
                self.new(3072, 768),
                self.new(3072),
                self.new(768, 3072),
                self.new(768),
                self.new(768),
                self.new(768),
            ]
            for _ in range(layers)
        ]

    def new(self, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, requires_grad=True)
        self.weights.append(tensor)
        return tensor


class Counter:
    """Calls the recorder and counts."""

    def __init__(self, dynamic: bool) -> None:
        self.builder = TracedGraphBuilder(SizeEnv(), GuardSet())
        self.calls = 0
        self.inputs = 0
        self.dynamic = dynamic

    def call(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.builder.call(fn, args, kwargs)

    def input(self, tensor: torch.Tensor, dims: tuple[Any, ...] | None = None) -> Any:
        self.inputs += 1
        return self.builder.tensor_input(
            tensor, LocalSource(self.inputs, f"arg{self.inputs}"), dims if self.dynamic else None
        )


def record(model: Bert, counter: Counter, ids: torch.Tensor, weights: list[Any]) -> Any:
    """One forward pass in evaluation mode, op by op."""
    call = counter.call
    traced = {id(t): p for t, p in zip(model.weights, weights, strict=True)}
    tokens = counter.input(ids, ("dynamic", "dynamic"))
    batch, length = tokens.shape
    words, places, kinds, scale, shift = (traced[id(t)] for t in model.embeddings)
    x = call(torch.embedding, words, tokens)
    positions = call(T.expand, call(torch.arange, length), batch, length)
    x = call(T.__add__, x, call(torch.embedding, kinds, call(torch.zeros_like, tokens)))
    x = call(T.__iadd__, x, call(torch.embedding, places, positions))
    x = call(torch.layer_norm, x, (768,), scale, shift, 1e-12)
    x = call(torch.dropout, x, 0.1, False)
    for layer in model.layers:
        q, qb, k, kb, v, vb, o, ob, n1, n1b, up, upb, down, downb, n2, n2b = (traced[id(t)] for t in layer)

        def heads(y: Any) -> Any:
            return call(T.transpose, call(T.view, y, batch, length, 12, 64), 1, 2)

        query, key, value = (heads(call(torch._C._nn.linear, x, w, b)) for w, b in ((q, qb), (k, kb), (v, vb)))
        scores = call(T.__truediv__, call(torch.matmul, query, call(T.transpose, key, -1, -2)), math.sqrt(64))
        weights_ = call(torch.dropout, call(T.softmax, scores, -1), 0.1, False)
        mixed = call(T.permute, call(torch.matmul, weights_, value), 0, 2, 1, 3)
        mixed = call(T.view, call(T.contiguous, mixed), (batch, length, 768))
        mixed = call(torch.dropout, call(torch._C._nn.linear, mixed, o, ob), 0.1, False)
        x = call(torch.layer_norm, call(T.__add__, mixed, x), (768,), n1, n1b, 1e-12)
        inner = call(torch._C._nn.gelu, call(torch._C._nn.linear, x, up, upb))
        outer = call(torch.dropout, call(torch._C._nn.linear, inner, down, downb), 0.1, False)
        x = call(torch.layer_norm, call(T.__add__, outer, x), (768,), n2, n2b, 1e-12)
    return x


def measure(model: Bert, ids: torch.Tensor, dynamic: bool) -> tuple[float, float, int]:
    """Microseconds per call and per weight, and the number of calls, of one capture."""
    counter = Counter(dynamic)
    start = time.perf_counter()
    weights = [counter.input(w) for w in model.weights]
    middle = time.perf_counter()
    result = record(model, counter, ids, weights)
    counter.builder.finish([result])
    end = time.perf_counter()
    return (end - middle) / counter.calls * 1e6, (middle - start) / len(weights) * 1e6, counter.calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dynamic", action="store_true", help="symbolic batch size and length")
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    model, ids = Bert(options.layers), torch.zeros(2, 128, dtype=torch.int64)
    results = [measure(model, ids, options.dynamic) for _ in range(8)]
    calls = results[0][2]
    print(f"{calls} calls, {'symbolic' if options.dynamic else 'static'} sizes")
    print(f"first capture    {results[0][0]:7.1f} us a call, {results[0][1]:5.1f} us a weight")
    later = [min(r[part] for r in results[1:]) for part in (0, 1)]
    print(f"later captures   {later[0]:7.1f} us a call, {later[1]:5.1f} us a weight")


if __name__ == "__main__":
    main()
