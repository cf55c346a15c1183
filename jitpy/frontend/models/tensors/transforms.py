"""torch.func: vmap, grad, jvp, jacobians. The function is traced once; torch's own transform runs on what was recorded.

The function becomes a graph (see `higher_order`), traced on placeholders for what the transform would pass to it. Then
the real transform is called on fake tensors, with that graph as its function: batching rules, levels and derivatives
are torch's, and what comes out is the list of ATen calls that eager would make. Whatever raises in there, and any
function with a side effect, breaks the graph: eager runs the call, and says what is wrong.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....ir import CONSTANT, GETITEM, Graph, Node, TensorSpec
from ....ir.algebra import sympy
from ....ir.failures import is_programs_own
from ....ir.ops.quiet import without_compiler_import
from ....ir.ops.registered import has_python_rules
from ....ir.ops.symbolic import number
from ....ir.trees import tree_map
from ...breaks import GraphBreak
from ...capture import derived_calls
from ...capture.traced import Storage, TracedTensor, Uncapturable
from ...codegen.frame_code import Emitter, builds
from ...interpreter.callees import builtin, code_model
from ...interpreter.calls import recording_whole
from ...values import (
    FunctionValue,
    Interpreter,
    TensorValue,
    TupleValue,
    Value,
)
from ...values.tree import tree_pack, tree_unpack
from .higher_order import Body, trace_body

_aten = torch.ops.aten

#: Transform -> the names of its parameters after the function, with their defaults.
_OPTIONS: dict[Any, dict[str, Any]] = {
    torch.func.vmap: {"in_dims": 0, "out_dims": 0, "randomness": "error", "chunk_size": None},
    torch.func.grad: {"argnums": 0, "has_aux": False},
    torch.func.grad_and_value: {"argnums": 0, "has_aux": False},
    torch.func.jacrev: {"argnums": 0, "has_aux": False, "chunk_size": None},
    torch.func.jacfwd: {"argnums": 0, "has_aux": False, "randomness": "error"},
}
#: Transforms that run the function with autograd on, on arguments that require grad.
_REVERSE = (torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.vjp)


# -- making a transform -------------------------------------------------------------------------------------


class TransformValue(Value):
    """The result of `torch.func.vmap(func)` and its like: `transform(func, **options)`."""

    __slots__ = ("func", "options", "transform")
    cls = types.FunctionType

    def __init__(self, transform: Any, func: Value, options: dict[str, Any]) -> None:
        self.source = None
        self.transform = transform
        self.func = func
        self.options = options

    parts = ("func",)

    def describe(self) -> str:
        return f"torch.func.{self.transform.__name__}({self.func.describe()})"

    def call(self, interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        return apply(interp, self, args, kwargs)


def _maker(transform: Any) -> Callable[..., Value]:
    names = list(_OPTIONS[transform])

    def make(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = {**dict(zip(["func", *names], args, strict=False)), **kwargs}
        if "func" not in given or not set(given) <= {"func", *names} or len(args) > 1 + len(names):
            raise refusal("unusual arguments")
        fn = given.pop("func")
        options = {name: constant(interp, value) for name, value in given.items()}
        _check_chunks(options)
        return TransformValue(transform, fn, options)

    return make


def _check_chunks(options: dict[str, Any]) -> None:
    size, randomness = options.get("chunk_size"), options.get("randomness", "error")
    if randomness not in ("error", "same", "different"):
        raise refusal("an unknown kind of randomness")
    if size is not None and (type(size) is not int or size <= 0):
        raise refusal("a chunk size that is no positive number")
    if size is not None and randomness == "same":
        raise refusal("chunks with the same random numbers: it sets the generator's state back")


@builtin(torch.func.hessian)
def _hessian(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    inner = _maker(torch.func.jacrev)(interp, args, kwargs)
    return TransformValue(torch.func.jacfwd, inner, dict(inner.options))  # type: ignore[attr-defined]


for _transform in _OPTIONS:
    builtin(_transform)(_maker(_transform))


@builds(TransformValue)
def _build(emitter: Emitter, value: TransformValue) -> None:
    """The real transformed function, where one leaves the traced code."""
    options = value.options
    emitter.call(_transformed, lambda: emitter.const(value.transform), value.func,
                 lambda: emitter.const(options))


def _transformed(transform: Any, fn: Any, options: dict[str, Any]) -> Any:
    return transform(fn, **options)


def _made_outside(transform: Any) -> Callable[..., Any]:
    """The handler of functions that `transform` made before: what it was told is in their closure."""

    def handle(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
        cells = dict(zip(fn.code.co_freevars, fn.closure or (), strict=True))
        contents = {name: interp.context.cell_content(cell) for name, cell in cells.items()}
        options = {name: constant(interp, contents[name]) for name in _OPTIONS[transform]}  # type: ignore[arg-type]
        _check_chunks(options)
        func = contents["func"]
        return apply(interp, TransformValue(transform, func, options), args, kwargs)

    return handle


for _transform in _OPTIONS:
    code_model(_transform(lambda tensor: tensor))(_made_outside(_transform))


# -- calling one --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Opaque:
    """Stands for an argument that is no tensor in the tree that the transform sees."""

    value: Value


@dataclass(eq=False)
class Run:
    """The real call, as a function of tensors: those in `tree` (numbered there), then those that `body` captures.

    It belongs to one call, so it has no hash: nothing is remembered under it.
    """

    call: Callable[[Callable[..., Any], Any], Any]
    tree: Any
    body: Body
    builder: Any
    name: str
    structure: Any = field(default=None)

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, *tensors: torch.Tensor) -> list[Any]:
        count = len(tensors) - len(self.body.captures)
        given, captures = tensors[:count], tensors[count:]
        symbolic = any(type(size) is torch.SymInt for tensor in tensors for size in tensor.shape)

        def function(*args: Any, **kwargs: Any) -> Any:
            leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            results = _run_graph(self.body.graph, [*leaves, *captures], self.builder.sizes, symbolic)
            return pytree.tree_map(results.__getitem__, self.body.structure)

        function.__name__ = self.name
        tree = pytree.tree_map(lambda leaf: given[leaf.index] if isinstance(leaf, Slot) else leaf, self.tree)
        leaves, self.structure = pytree.tree_flatten(self.call(function, tree))
        return leaves

    def record(self, interp: Interpreter, tensors: list[TracedTensor]) -> Value:
        """The result of the call for these tensors."""
        captures = [value_of(self.builder, node) for node in self.body.captures]
        try:
            results = derived_calls.run(self.builder, self, (*tensors, *captures), {})
        except (RecursionError, AttributeError) as error:
            raise Uncapturable("transform", f"{type(error).__name__}: {error}") from None
        return _value(interp, pytree.tree_unflatten([_Result(result) for result in results], self.structure))


def value_of(builder: Any, node: Node) -> TracedTensor:
    """A tensor with the value of a node, in memory that nobody writes to."""
    return TracedTensor(builder, Storage(node), (), node, node.tensor)


@dataclass(eq=False)
class Slot:
    """A tensor in a tree of arguments, by number."""

    index: int


def apply(interp: Interpreter, fn: TransformValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a transformed function."""
    tensors: list[TensorValue] = []
    tree = tree_of(interp, TupleValue(list(args)), tensors), {k: tree_of(interp, v, tensors) for k, v in kwargs.items()}
    options = fn.options
    if fn.transform is torch.func.vmap:
        axes = _axes(options.get("in_dims", 0), tree[0], len(tensors))
    else:
        axes = [None] * len(tensors)
    differentiated = _differentiated(fn, tree[0]) if fn.transform in _REVERSE else set()

    def call(function: Callable[..., Any], given: Any) -> Any:
        return fn.transform(function, **options)(*given[0], **given[1])

    return _record(interp, fn, call, tree, tensors, axes, differentiated)


@builtin(torch.func.jvp)
def _jvp(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = {**dict(zip(("func", "primals", "tangents"), args, strict=False)), **kwargs}
    if len(args) > 3 or not {"func", "primals", "tangents"} <= set(given) <= {"func", "primals", "tangents", "has_aux"}:
        raise refusal("unusual arguments")
    options = {"has_aux": constant(interp, given["has_aux"])} if "has_aux" in given else {}
    tensors: list[TensorValue] = []
    primals = tree_of(interp, given["primals"], tensors)
    count = len(tensors)
    tree = (primals, {}, tree_of(interp, given["tangents"], tensors))
    if type(primals) is not tuple:
        raise refusal("primals that are no tuple")

    def call(function: Callable[..., Any], filled: Any) -> Any:
        return torch.func.jvp(function, filled[0], filled[2], **options)

    fn = TransformValue(torch.func.jvp, given["func"], options)
    return _record(interp, fn, call, tree, tensors, [None] * count, set())


def _record(interp: Interpreter, fn: TransformValue, call: Callable[..., Any], tree: Any, tensors: list[TensorValue],
            axes: list[int | None], differentiated: set[int]) -> Value:
    """Trace the function on placeholders for the first tensors (one for each of `axes`), and record the real call."""
    name = fn.transform.__name__
    with recording_whole(interp, f"torch.func.{name}"):
        body = trace(interp, fn, tree, tensors, axes, differentiated)
        run = Run(call, tree, body, interp.builder, getattr(fn.func, "name", name))
        return run.record(interp, [tensor.traced for tensor in tensors])


def trace(interp: Interpreter, fn: TransformValue, tree: Any, tensors: list[TensorValue], axes: list[int | None],
          differentiated: set[int]) -> Body:
    """The function as a graph: see `_record`."""
    builder = interp.builder
    if builder.state.inference_mode and fn.transform is not torch.func.vmap:
        raise refusal("derivatives in inference mode, which are no inference tensors")
    placeholders = [_placeholder(builder, builder.node(tensor.traced), axis, index in differentiated)
                 for index, (tensor, axis) in enumerate(zip(tensors, axes, strict=False))]
    arguments = [_substitute(interp, part, placeholders) for part in tree[0]]
    keywords = {k: _substitute(interp, part, placeholders) for k, part in tree[1].items()}
    batched, builder.state.batched = builder.state.batched, fn.transform is torch.func.vmap
    builder.state.transforms += 1
    try:
        with builder.state.grad_mode(fn.transform in _REVERSE or builder.state.grad_enabled):
            body = trace_body(interp, fn.func, arguments, keywords, placeholders)
    finally:
        builder.state.transforms -= 1
        builder.state.batched = batched
    _check_writes(interp, body, [node for node, axis in zip(body.parameters, axes, strict=True) if axis is not None])
    if any(is_programs_own(node.op) and has_python_rules(node.op.target) for node in body.graph.nodes):
        raise refusal("an operator whose gradient or batching rule may be Python of the program's")
    _prepare(fn.transform)
    if not all(isinstance(node.spec, TensorSpec) for node in body.captures):
        raise refusal("a number from outside that the graph computes or takes as an input")
    return body


def _placeholder(builder: Any, node: Node, axis: int | None, requires_grad: bool) -> Node:
    """A new tensor like one that the transform passes to the function: without the axis mapped over."""
    spec = node.tensor
    if axis is not None:
        if not -spec.ndim <= axis < spec.ndim:
            raise refusal("an axis that a tensor lacks")
        kept = [i for i in range(spec.ndim) if i != axis % spec.ndim]
        spec = spec.with_(shape=tuple(spec.shape[i] for i in kept), stride=tuple(spec.stride[i] for i in kept))
    if requires_grad:
        if not (spec.dtype.is_floating_point or spec.dtype.is_complex):
            raise refusal("a derivative with respect to integers")
        spec = spec.with_(requires_grad=True)
    return builder.graph.add(builder.op(_aten.clone.default), (node,), {}, spec.with_(offset=0), builder.loc)


def _check_writes(interp: Interpreter, body: Body, batched: list[Node]) -> None:
    """vmap refuses to write a value for each example into memory that all of them share."""
    mapped = set(batched)
    for node in body.recorded:
        if not mapped.isdisjoint(node.input_nodes()):
            mapped.add(node)
    for value in list(interp.context.tensors.values()):
        storage = value.traced.storage
        if storage.written and storage.values[0] not in mapped and not mapped.isdisjoint(storage.values):
            raise refusal("a write of one value for each example to a tensor that has only one")


def _prepare(transform: Any) -> None:
    """Let torch load what it loads at a transform's first use, outside of any mode of ours."""
    if transform in _prepared:
        return
    one = torch.zeros(1)
    with without_compiler_import(), torch.random.fork_rng(devices=[]):
        torch.vmap(lambda t: t + 1)(one)
        if transform in (torch.func.jvp, torch.func.jacfwd, torch.func.linearize):
            torch.func.jvp(torch.sin, (one,), (one,))
    _prepared.add(transform)


_prepared: set[Any] = set()


# -- running the recorded function --------------------------------------------------------------------------


def _run_graph(graph: Graph, inputs: list[Any], env: Any, symbolic: bool) -> list[Any]:
    """The graph on whatever tensors the transform passes; sizes symbolic, or those of this call."""
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))

    def resolve(value: Any) -> Any:
        if isinstance(value, Node):
            return values[value]
        if isinstance(value, sympy.Basic):
            return number(env, value) if symbolic else env.specialize(value, "a torch.func transform")
        return value

    before = torch.is_grad_enabled()
    try:
        for node in graph.nodes:
            if node.op is CONSTANT:
                values[node] = node.args[0]
                continue
            if torch.is_grad_enabled() != node.grad_enabled:
                torch._C._set_grad_enabled(node.grad_enabled)
            target = operator.getitem if node.op is GETITEM else node.op.target
            args, kwargs = tree_map(resolve, (node.args, node.kwargs))
            values[node] = target(*args, **kwargs)
    finally:
        torch._C._set_grad_enabled(before)
    return [values[node] for node in graph.outputs]


# -- trees of arguments and results -------------------------------------------------------------------------


def tree_of(interp: Interpreter, value: Value, tensors: list[TensorValue]) -> Any:
    """The argument as the transform sees it: containers, with slots for tensors."""

    def leaf(value: Value) -> Slot | _Opaque:
        if value.tensor is None:
            return _Opaque(value)
        tensors.append(value)
        return Slot(len(tensors) - 1)

    return tree_unpack(interp, leaf, value)


def _substitute(interp: Interpreter, tree: Any, nodes: list[Node]) -> Value:
    """The arguments of the function: new containers, with the placeholders in place of the tensors."""
    return tree_pack(interp, lambda leaf: leaf.value if isinstance(leaf, _Opaque) else
                     interp.context.tensor_value(interp.builder.fresh(nodes[leaf.index])), tree)


@dataclass(eq=False)
class _Result:
    """A leaf of the result."""

    payload: Any


def _value(interp: Interpreter, tree: Any) -> Value:
    def leaf(part: Any) -> Value:
        if not isinstance(part, _Result):
            raise Uncapturable("transform", f"a result of type {type(part).__name__}")
        return interp.from_payload(part.payload)

    return tree_pack(interp, leaf, tree)


def _axes(in_dims: Any, tree: Any, count: int) -> list[int | None]:
    """The axis mapped over for each tensor of vmap's positional arguments; keyword arguments are not mapped over."""
    leaves, spec = pytree.tree_flatten(tree)
    flat = pytree._broadcast_to_and_flatten(in_dims, spec) if isinstance(in_dims, (int, tuple)) else None
    if flat is None:
        raise refusal("in_dims that do not fit the arguments")
    axes: list[int | None] = [None] * count
    for leaf, axis in zip(leaves, flat, strict=True):
        if type(axis) is not int and axis is not None or axis is not None and not isinstance(leaf, Slot):
            raise refusal("in_dims that do not fit the arguments")
        if isinstance(leaf, Slot):
            axes[leaf.index] = axis
    return axes


def _differentiated(fn: TransformValue, tree: tuple[Any, ...]) -> set[int]:
    """The tensors that a reverse-mode transform takes derivatives with respect to."""
    argnums = fn.options.get("argnums", 0)
    numbers = (argnums,) if type(argnums) is int else argnums
    if type(numbers) is not tuple or not all(type(n) is int and -len(tree) <= n < len(tree) for n in numbers):
        raise refusal("argnums that do not fit the arguments")
    leaves = [leaf for number in numbers for leaf in pytree.tree_leaves(tree[number])]
    if not all(isinstance(leaf, Slot) for leaf in leaves):
        raise refusal("a derivative with respect to what is no tensor")
    return {leaf.index for leaf in leaves}


def constant(interp: Interpreter, value: Value) -> Any:
    """An option as Python data."""

    def leaf(value: Value) -> Any:
        if not value.is_constant:
            raise refusal("an option that is no constant")
        return value.literal

    return tree_unpack(interp, leaf, value)


def refusal(detail: str) -> GraphBreak:
    return GraphBreak("transform", detail)


__all__ = ["Run", "Slot", "apply", "constant", "refusal", "trace", "tree_of", "value_of"]


@builtin(*(getattr(torch._C._VariableFunctions, name) for name in ("_make_dual", "_unpack_dual")))
def _forward_mode(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Graphs carry no tangents."""
    raise GraphBreak("unsupported_tensor", "a tensor with a forward-mode tangent")
