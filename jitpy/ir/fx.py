"""A graph as a `torch.fx.GraphModule`, for backends that take one and for torch's own tools."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from .algebra import sympy
from .alias import any_needs_grad, copies_before_write, views_behind_writes
from .graph import CONSTANT, GETITEM, IN_INFERENCE_MODE, OWN_VERSIONS, Graph, Node
from .interpret import in_inference_mode
from .op import Op
from .spec import ScalarSpec, TensorSpec
from .trees import tree_map


def to_fx(graph: Graph, example: Sequence[Any] | None = None, *,
          grad_enabled: bool | None = None, symbolic: bool = False) -> torch.fx.GraphModule:
    """`graph` as a GraphModule that takes the inputs in order and returns the tuple of outputs.

    Nodes become `call_function` of their op's target, constants become buffers, sizes become `aten.sym_size` and
    arithmetic, mutations become `aten.copy_` at the end. `example` inputs, one for each input, are kept as
    `meta["val"]` of the placeholders.

    Where the user ran ops under another grad mode than `grad_enabled` (default: the present one), which is taken to
    be that of the call, the module switches it and switches it back. It does not where nothing requires grad.

    `symbolic`: as torch.compile hands graphs over. The sizes of `size_inputs` are inputs in front of the others, and
    floats are 0-dim float64 tensors.
    """
    count = len(graph.inputs) + (len(size_inputs(graph)) if symbolic else 0)
    if example is not None and len(example) != count:
        raise ValueError(f"{graph.name} takes {count} inputs, {len(example)} examples were given")
    ambient = torch.is_grad_enabled() if grad_enabled is None else grad_enabled
    return _Converter(graph, ambient, symbolic).convert(example)


def size_inputs(graph: Graph) -> list[sympy.Symbol]:
    """The symbols of sizes, strides and offsets, in a fixed order."""
    bindings = graph.symbol_bindings()
    return [symbol for symbol in sorted(bindings, key=str) if bindings[symbol][1] != "value"]


class _Converter:
    def __init__(self, graph: Graph, ambient: bool, symbolic: bool) -> None:
        self.graph = graph
        self.symbolic = symbolic
        self.root = torch.nn.Module()
        self.out = torch.fx.Graph()
        self.nodes: dict[Node, torch.fx.Node] = {}
        self.sizes: dict[sympy.Basic, Any] = {}
        self.attributes: dict[int, str] = {}
        self.grad = self.ambient = ambient
        self.follows_grad = any_needs_grad(graph.all_nodes())

    def convert(self, example: Sequence[Any] | None) -> torch.fx.GraphModule:
        graph = self.graph
        examples = iter(example) if example is not None else None
        for symbol in size_inputs(graph) if self.symbolic else ():
            self.sizes[symbol] = self.placeholder(str(symbol), examples)
        for node in graph.inputs:
            self.nodes[node] = self.placeholder(node.name, examples)
        read = graph.users().keys() | set(graph.outputs)
        for node in graph.inputs if self.symbolic else ():
            if isinstance(node.spec, ScalarSpec) and node.spec.kind is float and node in read:
                self.nodes[node] = self.out.call_function(torch.ops.aten.item.default, (self.nodes[node],))
        behind = views_behind_writes(graph) if self.follows_grad else set()
        for node in graph.nodes:
            if node not in behind:
                self.nodes[node] = self.node(node)
        self.mutations()
        for node in graph.nodes:
            if node in behind:
                self.nodes[node] = self.node(node)
        self.set_grad(self.ambient)
        self.out.output(tuple(self.nodes[n] for n in graph.outputs))
        self.out.lint()
        module = torch.fx.GraphModule(self.root, self.out, class_name=graph.name)
        return module

    def placeholder(self, name: str, examples: Iterator[Any] | None) -> torch.fx.Node:
        made = self.out.placeholder("self_" if name == "self" else name)
        made.target = made.name  # the parameter's name: one that no other name in the code can be
        if examples is not None:
            made.meta["val"] = made.meta["example_value"] = next(examples)
        return made

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
            function = named(node.op)
            if OWN_VERSIONS in node.meta:
                function = _data_of
            elif IN_INFERENCE_MODE in node.meta:
                function = in_inference_mode(function)
            made = self.out.call_function(function, args, kwargs, name=node.name)
        if node.loc is not None:
            made.stack_trace = f'File "{node.loc.filename}", line {node.loc.line}, in {node.loc.function}'
        return made

    def argument(self, value: Any) -> Any:
        return tree_map(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.nodes[value]
        if isinstance(value, sympy.Basic):
            return self.size(value)
        return value if value is None or value is Ellipsis or type(value) in _PRINTED else self.attribute(value)

    def attribute(self, value: Any) -> torch.fx.Node:
        """An object that code cannot spell out (a random generator), kept by the module."""
        name = self.attributes.get(id(value))
        if name is None:
            name = self.attributes[id(value)] = f"_object_{len(self.attributes)}"
            setattr(self.root, name, value)
        return self.out.get_attr(name)

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
            target = self.nodes[self.graph.inputs[mutation.input]]
            if mutation.unseen:
                target = self.out.call_function(_data_of, (target,))
            self.set_grad(mutation.runs_with_grad)
            self.out.call_function(torch.ops.aten.copy_.default, (target, source))


#: what printed code spells out
_PRINTED = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)

#: a tensor of the same memory with versions of its own, as torch.compile hands it over
_data_of = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]

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


def named(op: Op) -> Callable[..., Any]:
    """The op's target, or a function around it where printed code could not find it by name (a lambda, an object)."""
    target = op.target
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    if isinstance(target, torch._ops.OpOverload) or getattr(module, getattr(target, "__name__", ""), None) is target:
        return target

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    call.__name__ = call.__qualname__ = re.sub(r"\W", "_", op.name)
    return call


def hint_of(graph: Graph, node: Node) -> Any:
    """The value of a number among the inputs in the call that was traced, or one like it."""
    spec = node.spec
    assert isinstance(spec, ScalarSpec)
    return node.meta.get("value", spec.kind(1)) if spec.expr is None else graph.sizes.hint(spec.expr)


def example_inputs(graph: Graph, make: Callable[[TensorSpec], torch.Tensor]) -> list[Any]:
    """An example for each input: `make` of its spec with sizes at their hints, or the hint of a number."""
    sizes = graph.sizes
    examples: list[Any] = []
    for node in graph.inputs:
        spec = node.spec
        if isinstance(spec, ScalarSpec):
            examples.append(hint_of(graph, node))
        else:
            static = node.tensor.with_(shape=sizes.hints(node.tensor.shape), stride=sizes.hints(node.tensor.stride),
                                       offset=sizes.hint(node.tensor.offset))
            examples.append(make(static))
    return examples
