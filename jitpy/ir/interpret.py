"""The reference interpreter: runs a graph node by node with eager kernels. Every backend is tested against it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .algebra import sympy
from .graph import IN_INFERENCE_MODE, Graph, Node
from .sizes import SizeCheckFailed, evaluate
from .trees import tree_map


def interpret(graph: Graph, inputs: Sequence[Any], grad: bool = True) -> tuple[Any, ...]:
    """Run `graph` on tensors and numbers in the order of `graph.inputs`; returns the tuple of outputs.

    Honours each node's `grad_enabled`, where `grad` allows for it, and carries out `graph.mutations` on the inputs at
    the end. SizeCheckFailed where sizes that depend on data are not what the graph was made for.
    """
    if len(inputs) != len(graph.inputs):
        raise TypeError(f"{graph.name} takes {len(graph.inputs)} inputs, not {len(inputs)}")
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
    symbols = bind_symbols(graph, inputs)
    unbacked: dict[Node, list[tuple[sympy.Symbol, int | None]]] = {}
    for symbol, (node, dim) in graph.unbacked_bindings().items():
        unbacked.setdefault(node, []).append((symbol, dim))

    with as_recorded():
        for node in graph.nodes:
            torch.set_grad_enabled(grad and node.grad_enabled)
            args, kwargs = resolve(node.args, values, symbols), resolve(node.kwargs, values, symbols)
            function = in_inference_mode(node.op.target) if IN_INFERENCE_MODE in node.meta else node.op.target
            value = values[node] = function(*args, **kwargs)
            for symbol, dim in unbacked.get(node, ()):
                symbols[symbol] = int(value) if dim is None else value.size(dim)
        _check(graph, symbols)
        _copy_back(graph, values)
    return tuple(values[node] for node in graph.outputs)


def own_memory(results: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results, each in memory that nothing else uses."""
    seen = {t.untyped_storage()._cdata for t in others if isinstance(t, torch.Tensor)}
    found = []
    for tensor in results:
        if tensor.untyped_storage()._cdata in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage()._cdata)
        found.append(tensor)
    return tuple(found)


def in_inference_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs in inference mode: a view that it makes says so for good."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._InferenceMode(True):
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def as_recorded() -> Iterator[None]:
    """The state in which a graph's ops run: autocast off, since its casts are nodes already.

    Restores the grad mode, also after an error.
    """
    before = torch.is_grad_enabled()
    with contextlib.ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        try:
            yield
        finally:
            torch.set_grad_enabled(before)


def bind_symbols(graph: Graph, inputs: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """The value of each symbol of the graph's inputs in this call."""
    values: dict[sympy.Symbol, int] = {}
    for symbol, (position, kind, dim) in graph.symbol_bindings().items():
        value = inputs[position]
        if kind == "size":
            value = value.size(dim)
        elif kind == "stride":
            value = value.stride(dim)
        elif kind == "offset":
            value = value.storage_offset()
        values[symbol] = int(value)
    return values


def resolve(value: Any, values: dict[Node, Any], symbols: dict[sympy.Symbol, int]) -> Any:
    """A nested argument with nodes and sizes replaced by what they are in this call."""

    def resolved(leaf: Any) -> Any:
        if isinstance(leaf, Node):
            return values[leaf]
        return evaluate(leaf, symbols) if isinstance(leaf, sympy.Basic) else leaf

    return tree_map(resolved, value)


def _check(graph: Graph, symbols: dict[sympy.Symbol, int]) -> None:
    for relation, why in graph.sizes.run_time_checks():
        if not relation.free_symbols <= symbols.keys():
            continue  # of a size that the graph around this one tells, and checks
        if not evaluate(relation, symbols):
            raise SizeCheckFailed(f"{relation} does not hold ({why})")
    for symbol, value in symbols.items():
        info = graph.sizes.symbols[symbol]
        if info.unbacked and not (info.low <= value and (info.high is None or value <= info.high)):
            raise SizeCheckFailed(f"{symbol} is {value}")


def _copy_back(graph: Graph, values: dict[Node, Any]) -> None:
    """All values are read before any input is written: two inputs may swap."""
    targets = [values[graph.inputs[m.input]] for m in graph.mutations]
    written = {t.untyped_storage()._cdata for t in targets}
    sources = []
    for mutation, target in zip(graph.mutations, targets, strict=True):
        value = values[mutation.value]
        torch.set_grad_enabled(mutation.runs_with_grad)
        if value is not target and value.untyped_storage()._cdata in written:
            value = value.clone()
        sources.append(value)
    for mutation, target, source in zip(graph.mutations, targets, sources, strict=True):
        torch.set_grad_enabled(mutation.runs_with_grad)
        (target.data if mutation.unseen else target).copy_(source)
