"""A graph as a `torch.fx.GraphModule`, for backends that take one and for torch's own tools."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from .algebra import sympy
from .alias import any_needs_grad, copies_before_write
from .graph import CONSTANT, GETITEM, IN_INFERENCE_MODE, Graph, Node
from .interpret import in_inference_mode
from .spec import ScalarSpec, TensorSpec


def to_fx(graph: Graph, example: Sequence[Any] | None = None, *,
          grad_enabled: bool | None = None) -> torch.fx.GraphModule:
    """`graph` as a GraphModule that takes the inputs in order and returns the tuple of outputs.

    Nodes become `call_function` of their op's target, constants become buffers, sizes become `aten.sym_size` and
    arithmetic, mutations become `aten.copy_` at the end. `example` inputs, one for each input, are kept as
    `meta["val"]` of the placeholders.

    Where the user ran ops under another grad mode than `grad_enabled` (default: the present one), which is taken to
    be that of the call, the module switches it and switches it back. It does not where nothing requires grad.
    """
    if example is not None and len(example) != len(graph.inputs):
        raise ValueError(f"{graph.name} takes {len(graph.inputs)} inputs, {len(example)} examples were given")
    ambient = torch.is_grad_enabled() if grad_enabled is None else grad_enabled
    return _Converter(graph, ambient).convert(example)


class _Converter:
    def __init__(self, graph: Graph, ambient: bool) -> None:
        self.graph = graph
        self.root = torch.nn.Module()
        self.out = torch.fx.Graph()
        self.nodes: dict[Node, torch.fx.Node] = {}
        self.sizes: dict[sympy.Basic, Any] = {}
        self.grad = self.ambient = ambient
        self.follows_grad = any_needs_grad(graph.all_nodes())

    def convert(self, example: Sequence[Any] | None) -> torch.fx.GraphModule:
        graph = self.graph
        for i, node in enumerate(graph.inputs):
            placeholder = self.out.placeholder(node.name)
            if example is not None:
                placeholder.meta["val"] = example[i]
            self.nodes[node] = placeholder
        for node in graph.nodes:
            self.nodes[node] = self.node(node)
        self.mutations()
        self.set_grad(self.ambient)
        self.out.output(tuple(self.nodes[n] for n in graph.outputs))
        self.out.lint()
        module = torch.fx.GraphModule(self.root, self.out, class_name=graph.name)
        return module

    def node(self, node: Node) -> torch.fx.Node:
        if node.op is CONSTANT:
            name = f"_{node.name}"
            self.root.register_buffer(name, node.args[0])
            return self.out.get_attr(name)
        if node.op is GETITEM:
            made = self.out.call_function(operator.getitem, (self.nodes[node.args[0]], node.args[1]), name=node.name)
        else:
            args = tuple(self.argument(arg) for arg in node.args)
            kwargs = {key: self.argument(arg) for key, arg in node.kwargs.items()}
            self.set_grad(node.grad_enabled)
            function = in_inference_mode(node.op.target) if IN_INFERENCE_MODE in node.meta else node.op.target
            made = self.out.call_function(function, args, kwargs, name=node.name)
        if node.loc is not None:
            made.stack_trace = f'File "{node.loc.filename}", line {node.loc.line}, in {node.loc.function}'
        return made

    def argument(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.nodes[value]
        if isinstance(value, sympy.Basic):
            return self.size(value)
        if isinstance(value, tuple):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if isinstance(value, dict):
            return {k: self.argument(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(v) for v in (value.start, value.stop, value.step)))
        return value

    def size(self, expr: Any) -> Any:
        """The fx node (or int) that computes a size."""
        if expr.is_Integer:
            return int(expr)
        found = self.sizes.get(expr)
        if found is None:
            found = self.sizes[expr] = self.symbol(expr) if expr.is_Symbol else self.arithmetic(expr)
        return found

    def symbol(self, symbol: sympy.Symbol) -> torch.fx.Node:
        binding = self.graph.symbol_bindings().get(symbol)
        if binding is None:
            raise ValueError(f"no input of {self.graph.name} carries the size {symbol}")
        position, kind, dim = binding
        source = self.nodes[self.graph.inputs[position]]
        if kind == "value":
            return source
        if kind == "offset":
            return self.out.call_function(torch.ops.aten.sym_storage_offset.default, (source,))
        target = torch.ops.aten.sym_size.int if kind == "size" else torch.ops.aten.sym_stride.int
        return self.out.call_function(target, (source, dim))

    def arithmetic(self, expr: sympy.Basic) -> torch.fx.Node:
        function = _SIZE_FUNCTIONS.get(type(expr).__name__)
        if function is None:
            raise ValueError(f"no fx form of the size {expr}")
        first, *rest = (self.size(arg) for arg in expr.args)
        for other in rest:
            first = self.out.call_function(function, (first, other))
        return first

    def set_grad(self, enabled: bool) -> None:
        if self.follows_grad and enabled != self.grad:
            self.out.call_function(torch._C._set_grad_enabled, (enabled,))
            self.grad = enabled

    def mutations(self) -> None:
        """All values are read before anything is written; a value that may share memory with a written input is
        copied first."""
        first = copies_before_write(self.graph)
        sources = []
        for mutation in self.graph.mutations:
            source = self.nodes[mutation.value]
            if mutation.value in first:
                self.set_grad(mutation.runs_with_grad)
                source = self.out.call_function(torch.ops.aten.clone.default, (source,))
            sources.append(source)
        for mutation, source in zip(self.graph.mutations, sources, strict=True):
            self.set_grad(mutation.runs_with_grad)
            target = self.nodes[self.graph.inputs[mutation.input]]
            self.out.call_function(torch.ops.aten.copy_.default, (target, source))


#: by the name of an expression's class
_SIZE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Pow": operator.pow,
    "FloorDiv": operator.floordiv,
    "Modulo": operator.mod,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
}


def example_inputs(graph: Graph, make: Callable[[TensorSpec], torch.Tensor]) -> list[Any]:
    """An example for each input: `make` of its spec with sizes at their hints, or the hint of a number."""
    sizes = graph.sizes
    examples: list[Any] = []
    for node in graph.inputs:
        spec = node.spec
        if isinstance(spec, ScalarSpec):
            examples.append(sizes.hint(spec.expr) if spec.expr is not None else spec.kind(1))
        else:
            static = node.tensor.with_(shape=sizes.hints(node.tensor.shape), stride=sizes.hints(node.tensor.stride),
                                       offset=sizes.hint(node.tensor.offset))
            examples.append(make(static))
    return examples
