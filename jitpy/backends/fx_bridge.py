"""Backends as torch.compile takes them, `(torch.fx.GraphModule, example_inputs) -> callable`, as backends of jitpy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from jitpy import config

from ..ir import Graph, TensorSpec
from ..ir.fx import example_inputs, to_fx
from ..ir.interpret import as_recorded, bind_symbols
from ..ir.specialize import specialize
from . import eager


def adapt(fn: Callable[..., Callable[..., Any]]) -> Callable[[Graph, dict[str, Any]], Callable[..., tuple[Any, ...]]]:
    """The jitpy backend that hands graphs to `fn`.

    `fn` gets the graph as a GraphModule, and tensors of zeros like the graph's inputs as examples. It may specialise on
    their sizes: a graph with symbolic sizes is handed over anew for each combination of sizes that is called.
    Autograd is as the returned callable does it.
    """

    def compile_graph(graph: Graph, options: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
        if graph.sizes.has_unbacked:
            return eager.compile_graph(graph, options)  # its sizes, and the checks of them, need a plan
        if graph.symbol_bindings():
            return _PerSize(graph, lambda static: compile_static(static, fn))
        return compile_static(graph, fn)

    compile_graph.__name__ = getattr(fn, "__name__", type(fn).__name__)
    return compile_graph


def compile_static(graph: Graph, fn: Callable[..., Callable[..., Any]]) -> Callable[..., tuple[Any, ...]]:
    """Compile one graph without symbolic sizes by `fn`. TypeError where `fn` does not return a callable."""
    examples = zeros_inputs(graph)
    module = to_fx(graph, examples)
    with as_recorded():
        compiled = fn(module, examples)
    name = getattr(fn, "__name__", type(fn).__name__)
    if not callable(compiled):
        raise TypeError(f"the backend {name!r} returned {type(compiled).__name__}, not a callable")
    n_outputs = len(graph.outputs)

    def run(*inputs: Any) -> tuple[Any, ...]:
        with as_recorded():
            result = compiled(*inputs)
        if isinstance(result, (tuple, list)):
            result = tuple(result)
        elif n_outputs == 1:
            result = (result,)
        if not isinstance(result, tuple) or len(result) != n_outputs:
            got = f"{len(result)}" if isinstance(result, tuple) else type(result).__name__
            raise TypeError(f"what the backend {name!r} compiled returned {got} instead of a tuple of {n_outputs}")
        return result

    return run


def zeros_inputs(graph: Graph) -> list[Any]:
    """Tensors of zeros (and numbers) with the specs of the graph's inputs, sizes at their hints.

    Zeros are valid indices, and large ones take no memory until somebody writes to them.
    """

    def make(spec: TensorSpec) -> torch.Tensor:
        reach = sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True)) + 1
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            storage = torch.zeros(max(int(spec.offset + reach), 0), dtype=spec.dtype, device=spec.device)
            view = storage.as_strided(spec.shape, spec.stride, spec.offset)
            return view.detach().requires_grad_(spec.requires_grad)

    return example_inputs(graph, make)


class _PerSize:
    """One compiled callable for each combination of sizes; past the recompile limit new ones run op by op."""

    def __init__(self, graph: Graph, compile_one: Callable[[Graph], Callable[..., tuple[Any, ...]]]) -> None:
        self.graph = graph
        self.compile_one = compile_one
        self.symbols = sorted(graph.symbol_bindings(), key=str)
        self.compiled: dict[tuple[int, ...], Callable[..., tuple[Any, ...]]] = {}
        self.limit: int = config.recompile_limit
        self.eager: Callable[..., tuple[Any, ...]] | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = bind_symbols(self.graph, inputs)
        key = tuple(values[symbol] for symbol in self.symbols)
        found = self.compiled.get(key)
        if found is None:
            if len(self.compiled) >= self.limit:
                return self._run_eagerly(inputs)
            found = self.compiled[key] = self.compile_one(specialize(self.graph, values))
        return found(*inputs)

    def _run_eagerly(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.eager is None:
            names = ", ".join(map(str, self.symbols))
            warnings.warn(f"jitpy: {self.graph.name} was handed to its backend for {self.limit} combinations of the "
                          f"sizes {names} (jitpy.config.recompile_limit); further ones run with eager kernels",
                          stacklevel=3)
            self.eager = eager.compile_graph(self.graph, {})
        return self.eager(*inputs)
