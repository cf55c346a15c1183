"""`flex_attention`: torch's function is traced up to the operator, which becomes one node (`ir.flex_attention`).

torch's Python checks the arguments, so its errors are eager's. Where the operator cannot be captured, the call of the
function as a whole is plain Python: the operator itself, called without torch's compiler, has no right gradients.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex
from torch._higher_order_ops.flex_attention import flex_attention as operator

from ....ir import Node, ScalarSpec, TensorSpec
from ....ir.builder import Builder
from ....ir.flex_attention import FlexAttention, layout_of, results_of, score_dtype
from ....ir.graph import Graph
from ...breaks import GraphBreak, RestartAnalysis
from ...capture.torch_calls.attention_calls import cast
from ...capture.traced import TracedScalar, TracedTensor
from ...interpreter.callees import builtin, traced_as
from ...polyfills.attention import at_all
from ...values import Interpreter, TupleValue, Value
from .element_graphs import Element, spread, trace_element
from .transforms import constant

#: of the numbers that say which element, as functions see them
_INDEX = torch.int32
_LN2 = math.log(2)
#: how many tensors of a BlockMask follow the two lengths in `BlockMask.as_tuple()`
_BLOCKS = 8
#: options that say which results are asked for
_RESULTS = ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX")


def _no_warning(warning_id: str, message: str, category: Any = UserWarning) -> None:
    """As under torch.compile."""


traced_as(flex._warn_once, _no_warning)
traced_as(torch.fx.traceback.annotate, lambda annotation: contextlib.nullcontext())


@builtin(operator)
def _flex_attention(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    try:
        if len(args) > len(names) or given.keys() != set(names):
            raise _refusal("the operator with arguments of its own")
        with interp.recording("flex_attention"):
            return _record(interp, **given)
    except GraphBreak as cause:
        raise _whole_call(interp, cause) from None


def _whole_call(interp: Interpreter, cause: GraphBreak) -> GraphBreak | RestartAnalysis:
    """Break at the call of torch's function. What was asked of the functions is guarded: others may be captured."""
    position = next((i for i, frame in enumerate(interp.frames) if frame.code is flex.flex_attention.__code__), None)
    if position is None or interp.sync_depth:
        return cause
    cause.keep(interp.context.guards)
    if position:
        return RestartAnalysis(interp.frames[position].entered, cause)
    cause.tail = True
    behind = next(i for i, ins in enumerate(interp.frames[0].instructions) if ins.name == "RESUME") + 1
    return RestartAnalysis(behind + 1, cause)


def _record(interp: Interpreter, query: Value, key: Value, value: Value, score_mod: Value, block_mask: Value,
            scale: Value, kernel_options: Value) -> Value:
    builder, sizes = interp.builder, interp.builder.sizes
    options = constant(interp, kernel_options)
    if options.get("BACKEND") == "FLASH":
        raise _refusal("kernels of another library")
    mask = list(interp.iterate(block_mask))
    q, k, v = nodes = _operands(interp, (query, key, value))
    if len({node.tensor.dtype for node in nodes}) > 1 and any(node.tensor.requires_grad for node in nodes):
        raise _refusal("gradients of tensors of different dtypes")
    block = tuple(sizes.specialize(size.payload(interp), "the size of blocks") for size in mask[-3:-1])
    blocks = tuple(_block_tensor(interp, part, q) for part in mask[2:2 + _BLOCKS])

    grad, dtype = builder.state.grad_enabled, score_dtype(q.tensor.dtype)
    index = TensorSpec(_INDEX, (), (), q.tensor.device)
    element = TensorSpec(dtype, (), (), q.tensor.device, grad and any(n.tensor.requires_grad for n in nodes))
    score = _traced(interp, score_mod, "score_mod", [element, *[index] * 4], q, dtype)
    seen = _traced(interp, mask[-1], "mask_mod", [index] * 4, q, torch.bool)
    factor = _factor(interp, scale)
    if isinstance(factor, Node):
        score, factor = _with_factor(score, factor, [element, *[index] * 4], sizes), 1.0
    captures = [element.captures if element else [] for element in (score, seen)]
    requires = grad and any(isinstance(n.spec, TensorSpec) and n.spec.requires_grad for n in (*nodes, *captures[0]))
    if requires and blocks[4] is None:
        raise _refusal("gradients with a BlockMask without q_indices")
    filled = [one and _filled(one) for one in blocks[:4]]
    if min(block) == flex._LARGE_SPARSE_BLOCK_SIZE and filled == [1, 0, None, None]:
        blocks = (None,) * _BLOCKS  # one block for all
    if grad and any(isinstance(n.spec, TensorSpec) and n.spec.requires_grad for n in captures[1]):
        raise _refusal("a mask_mod that reads a tensor that requires grad")

    layout = layout_of(sizes, q.tensor.stride, (*q.tensor.shape[:3], v.tensor.shape[3]))
    target = FlexAttention(score.graph if score else None, seen.graph if seen else None, len(captures[0]), factor,
                           block, layout, {name: v for name, v in options.items() if name not in _RESULTS})
    specs = tuple(spec.with_(requires_grad=requires and position < 2)
                  for position, spec in enumerate(results_of(q.tensor, v.tensor, layout)))
    if requires and builder.first_grad_node is None:
        builder.first_grad_node = len(builder.graph.nodes)
    node = builder.graph.add(target.op(specs), (q, k, v, blocks, tuple(captures[0] + captures[1])), {}, specs,
                             builder.loc, grad_enabled=grad)
    out, *statistics = builder.results(node, specs)
    # the operator's are to base 2, and in the dtype of the scores
    statistics = [builder.call(torch.Tensor.div, (one, _LN2), {}, builder.loc) for one in statistics]
    if score is not None and score.dtype.is_floating_point:
        statistics = [builder.call(torch.Tensor.to, (one, score.dtype), {}, builder.loc) for one in statistics]
    return TupleValue([interp.context.tensor_value(one) for one in (out, *statistics)])


def _filled(node: Node) -> Any:
    """The number in all elements, if that is known."""
    return node.op.fill(*node.args, **node.kwargs) if node.op.fill is not None else None


def _operands(interp: Interpreter, values: tuple[Value, ...]) -> list[Node]:
    """Query, key and value as autocast makes them, for each item of the batch. The numbers of heads and of features are
    known."""
    builder, found = interp.builder, []
    for value in values:
        tensor = value.payload(interp)
        if type(tensor) is not TracedTensor or tensor.ndim != 4:
            raise _refusal("an operand that is no tensor of four axes")
        state = builder.state.autocast.get(tensor.spec.device.type)
        if state is not None and state.enabled:
            tensor = cast(builder, tensor, state.dtype)
        for axis in (1, 3):
            builder.sizes.specialize(tensor.shape[axis], "heads and features of flex_attention")
        if found and not builder.sizes.equal(tensor.shape[0], found[0].tensor.shape[0], "a batch of flex_attention"):
            shape = (found[0].tensor.shape[0], -1, -1, -1)
            tensor = builder.call(torch.Tensor.expand, (tensor, shape), {}, builder.loc)
        found.append(builder.node(tensor))
    return found


def _block_tensor(interp: Interpreter, value: Value, query: Node) -> Node | None:
    """A tensor of the block mask, for which it is enough to hold for one item of the batch, or one head."""
    tensor = value.payload(interp)
    if tensor is None:
        return None
    if type(tensor) is not TracedTensor or tensor.ndim < 3:
        raise _refusal("a BlockMask without batch and heads")
    sizes = interp.builder.sizes
    for own, size in zip(tensor.shape, query.tensor.shape[:2], strict=False):
        if not sizes.equal(own, 1, "a block mask") and not sizes.equal(own, size, "a block mask"):
            raise _refusal("a BlockMask of another batch or number of heads")
    return interp.builder.node(tensor)


def _traced(interp: Interpreter, mod: Value, what: str, specs: list[TensorSpec], source: Node,
            result: torch.dtype) -> Element | None:
    """The graph of a function. None for one that returns the score itself, or that allows everything."""
    element = trace_element(interp, mod, what, specs, source, result)
    (output,) = element.graph.outputs
    is_nothing = output is element.graph.inputs[0] or result is torch.bool and _filled(output) is True
    return None if is_nothing else element


def _factor(interp: Interpreter, scale: Value) -> float | Node:
    """The scale, which may be a number that changes from call to call."""
    found = scale.payload(interp)
    if type(found) is TracedScalar:
        return found.node
    return found if type(found) is float else float(interp.builder.sizes.specialize(found, "scale of flex_attention"))


def _with_factor(score: Element | None, factor: Node, specs: list[TensorSpec], sizes: Any) -> Element:
    """A graph that multiplies the score first."""
    graph = score.graph if score is not None else Graph("body", sizes=sizes)
    if score is None:
        graph.outputs = [graph.add_input(spec) for spec in specs][:1]
    made: list[Node] = []
    given = graph.inputs[0]
    product = Builder(graph, into=made, loc=factor.loc, grad_enabled=given.tensor.requires_grad).call(
        "aten.mul.Tensor", given, graph.add_input(ScalarSpec(float), "scale"), spec=given.spec)
    graph.replace({given: product})
    graph.nodes[:0] = made
    return Element(graph, [*(score.captures if score is not None else ()), factor],
                   score.dtype if score is not None else given.tensor.dtype)


def _refusal(detail: str) -> GraphBreak:
    return GraphBreak("flex_attention", detail)


# -- masks ------------------------------------------------------------------------------------------------------------


@builtin(at_all)
def _at_all(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The mask of all elements, for `create_mask`."""
    mod, score, numbers = args
    builder = interp.builder
    tensors = [value.payload(interp) for value in (score, *interp.iterate(numbers))]
    tensors = tensors if tensors[0] is not None else tensors[1:]
    axes = [builder.node(tensor) for tensor in tensors]
    given = axes[-4:]
    shape = tuple(node.tensor.shape[0] for node in given)
    specs = [TensorSpec(node.tensor.dtype, (), (), node.tensor.device) for node in axes]
    is_score = len(axes) > 4
    with interp.recording("create_mask"):
        element = trace_element(interp, mod, "score_mod" if is_score else "mask_mod", specs, given[0],
                                torch.float32 if is_score else torch.bool)
        for axis, tensor in enumerate(tensors[-4:], len(axes) - 4):
            along = [-1 if a == axis - len(axes) else 1 for a in range(-4, 0)]
            axes[axis] = builder.node(builder.call(torch.Tensor.view, (tensor, along), {}, builder.loc))
        found = builder.fresh(spread(builder, element, axes))
        return interp.context.tensor_value(builder.call(torch.Tensor.expand, (found, shape), {}, builder.loc))
