"""`torch.autograd.Function.apply` of tensors that require grad.

The polyfill of `apply` has traced `forward`. Here `backward` is traced, on placeholders for the gradients and for
what was saved, as a graph of its own, and a node (`ir.autograd_function`) joins the two. Reads of Python objects
in `backward` happen while tracing, and are guarded. A `backward` with a side effect, or that does not fit its
`forward`, breaks the graph: eager runs it, or says what is wrong with it, when its time comes. """

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules._functions import BackwardHookFunction

from jitpy.ir import Node, NotCovered, ScalarSpec, SizeUnknown, TensorSpec
from jitpy.ir.alias import alias_kind
from jitpy.ir.autograd_function import CustomGradient
from jitpy.ir.spec import contiguous_stride

from ...breaks import GraphBreak, RestartAnalysis
from ...capture.traced import TracedTensor, Uncapturable, ViewStep
from ...interpreter.callees import builtin, code_model
from ...interpreter.calls import inline
from ...interpreter.frame import TracedException
from ...interpreter.library_code import is_polyfill
from ...interpreter.wrapped_functions import closed_over
from ...polyfills import POLYFILLS, autograd
from ...values import FunctionValue, Interpreter, TensorValue, TupleValue, Value, const
from .higher_order import Body, trace_body

_aten = torch.ops.aten


@dataclass(slots=True)
class _Traced:
    """A `backward` that is being traced, and whether it is marked with `once_differentiable`."""

    once: bool = False


#: Files with blocks of grad mode and autocast, which ask what to put back.
_BLOCKS = (torch.autograd.grad_mode.__file__, torch.amp.autocast_mode.__file__)


def _ask(question: Any) -> Any:
    """The model of a question about a mode that backward passes are under as they are called."""

    def handler(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
        code = interp.frames[-1].code
        if not is_polyfill(code) and code.co_filename not in _BLOCKS:
            interp.builder.state.mode_questions += 1
        return interp.record(question, args, kwargs)

    return handler


for _question in (torch.is_grad_enabled, torch.is_autocast_enabled, torch.is_autocast_cpu_enabled,
                  torch.get_autocast_dtype, torch.get_autocast_cpu_dtype):
    builtin(_question)(_ask(_question))


@builtin(torch.autograd.Function.apply.__func__)
def _apply(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    if interp.sync_depth > interp.ordinary_depth:
        # transforms have rules of their own for it
        raise GraphBreak("unsupported_call", "torch.autograd.Function.apply in a function that is called back")
    if args[0].opaque is BackwardHookFunction:
        _break_at_module_call(interp)
    return interp.call(interp.context.const_object(POLYFILLS[torch.autograd.Function.apply.__func__]), args, kwargs)


def _break_at_module_call(interp: Interpreter) -> None:
    """A module whose backward pass has hooks, which sit on nodes made around its call: the call as a whole is plain
    Python, and what it calls is compiled by itself. Broken in its middle, it would be compiled in many small pieces,
    and anew for each module."""
    frames = interp.frames
    position = max((i for i, frame in enumerate(frames) if id(frame.code) in _MODULE_CALLS), default=0)
    while position and (id(frames[position - 1].code) in _MODULE_CALLS or is_polyfill(frames[position - 1].code)):
        position -= 1
    if interp.sync_depth:
        raise GraphBreak("autograd", _HOOKS)
    if not position:
        raise GraphBreak("autograd", _HOOKS, tail=True)
    raise RestartAnalysis(frames[position].entered, GraphBreak("autograd", _HOOKS))


_HOOKS = "hooks on the backward pass of a module"
_MODULE_CALLS = {id(torch.nn.Module._wrapped_call_impl.__code__), id(torch.nn.Module._call_impl.__code__)}


@builtin(autograd.with_gradients)
def _with_gradients(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, ctx, given, made, saved, plain, materialize = args
    name = cls.obj.__name__ if hasattr(cls, "obj") else "Function"
    with interp.recording(f"{name}.apply"):
        results = _Results(interp, _items(interp, given), made, _items(interp, plain))
        if not results.differentiable:
            return made
        if len(results.differentiable) > 1 and not materialize.value:
            raise _refusal("set_materialize_grads(False) with several results")
        kept = _items(interp, saved)
        if not all(v.tensor is not None or v.literal is None for v in kept):
            raise _refusal("save_for_backward of what is no tensor: eager raises")
        return _record(interp, cls, name, ctx, results, kept, bool(materialize.value))


class _Results:
    """The results of `forward`.

    values          its parts
    differentiable  the positions of those that get a history
    is_view         whether the one that gets it shares memory with a tensor that is seen elsewhere
    """

    def __init__(self, interp: Interpreter, arguments: list[Value], made: Value, plain: list[Value]) -> None:
        self.interp = interp
        self.arguments = arguments
        self.is_tuple = made.base is tuple
        if self.is_tuple and made.cls is not tuple:
            raise _refusal(f"a {made.cls.__name__} of results")
        self.values = _items(interp, made) if self.is_tuple else [made]
        self.differentiable = [k for k, v in enumerate(self.values) if v.tensor is not None
                               and (v.traced.dtype.is_floating_point or v.traced.dtype.is_complex)
                               and not any(v is other for other in plain)]
        views = [self._is_view(k, v) for k, v in enumerate(self.values) if v.tensor is not None]
        self.is_view = any(views)
        if self.is_view and len(views) > 1:
            raise _refusal("several results, one of which shares memory with another tensor")
        traced = [id(v.traced) for v in self.values if v.tensor is not None]
        if len(set(traced)) < len(traced):
            raise _refusal("the same tensor as two results")

    def _is_view(self, position: int, value: TensorValue) -> bool:
        builder, tensor = self.interp.builder, value.traced
        has_history = position in self.differentiable
        if tensor.dtype.is_complex:
            raise _refusal("complex numbers")
        if any(value is argument for argument in self.arguments):
            if not tensor.spec.requires_grad or not has_history:
                raise _refusal("an argument without a history as a result")
            return True
        if tensor.spec.requires_grad:
            raise _refusal("a result that requires grad by itself")
        if tensor.storage.input is None and not tensor.chain:
            kind = alias_kind(builder.graph, builder.node(tensor, is_result=True))
            if kind == "copy" or not has_history:
                return False
        elif not has_history:
            return False
        if tensor.storage.input is not None and not tensor.chain:
            raise _refusal("a tensor from outside as a result")
        return True

    @property
    def traced(self) -> list[TracedTensor]:
        """Those that get a history."""
        return [self.values[k].traced for k in self.differentiable]  # type: ignore[attr-defined]


def _record(interp: Interpreter, cls: Value, name: str, ctx: Value, results: _Results, kept: list[Value],
            materialize: bool) -> Value:
    builder = interp.builder
    tensors = [v.traced for v in kept if v.tensor is not None]
    kept_results = [next((k for k, result in enumerate(results.traced) if result is t), None) for t in tensors]
    tracing = _Traced()
    body, leaves = _trace(interp, cls, ctx, results, kept, kept_results, materialize, tracing)
    inputs = [v.traced for v in results.arguments if v.tensor is not None and v.traced.spec.requires_grad]
    places = _places(interp, results.arguments, leaves, body)
    values = [builder.node(result, is_result=True) for result in results.traced]
    kept_nodes = [values[k] if k is not None else builder.node(t, is_result=True)
                  for k, t in zip(kept_results, tensors, strict=True)]
    custom = CustomGradient(name, body.graph, tuple(places), (*kept_results, *(None for _ in body.captures)),
                            materialize, tracing.once, len(values) > 1, results.is_view)
    specs = tuple(node.tensor.with_(requires_grad=True) for node in values)
    op = custom.op(specs if custom.multiple else specs[0])
    rest = (tuple(builder.node(t) for t in inputs), (*kept_nodes, *body.captures))
    if builder.first_grad_node is None:
        builder.first_grad_node = len(builder.graph.nodes)
    node = builder.graph.add(op, (tuple(values), *rest), {}, specs if custom.multiple else specs[0], builder.loc,
                              name.lower())
    made = list(results.values)
    if results.is_view:
        (position,) = results.differentiable
        made[position] = _view(interp, results, made[position], rest, op, node)
    else:
        for index, tensor in enumerate(results.traced):
            _connect(interp, tensor, builder.part(node, index) if custom.multiple else node)
    return TupleValue(made) if results.is_tuple else made[0]


def _view(interp: Interpreter, results: _Results, value: Value, rest: tuple[Any, ...], op: Any, node: Node) -> Value:
    """A result that looks at memory that others see."""
    builder, tensor = interp.builder, value.traced
    step = ViewStep(op, rest, {}, node.tensor, True, True)
    alias = builder.alias(tensor, step, node)
    if any(value is argument for argument in results.arguments):
        return interp.context.tensor_value(alias)
    builder.save(tensor)
    tensor.restore(alias.state())
    return value


def _connect(interp: Interpreter, tensor: TracedTensor, node: Node) -> None:
    """A tensor that `forward` made gets a history: the same object, as in eager."""
    builder, storage = interp.builder, tensor.storage
    builder.save(storage)
    builder.save(tensor)
    storage.base, storage.values = node, (*storage.values, node)
    storage.generation += 1
    tensor.node, tensor.generation, tensor.anchored, tensor._spec = node, storage.generation, True, node.tensor


# -- tracing backward -------------------------------------------------------------------------------------------------


def _trace(interp: Interpreter, cls: Value, ctx: Value, results: _Results, kept: list[Value],
           kept_results: list[int | None],
           materialize: bool, tracing: _Traced) -> tuple[Body, list[Any]]:
    """`backward` as a graph, and for each gradient that it returned the number of the graph's output, or None."""
    builder = interp.builder
    placeholders: list[Node] = []

    def placeholder(node: Node, spec: TensorSpec) -> Value:
        placeholders.append(builder.graph.add(builder.op(_aten.clone.default), (node,), {}, spec, builder.loc))
        tensor = builder.fresh(placeholders[-1])
        builder.speculation.placeholders.add(tensor)
        return interp.context.tensor_value(tensor)

    grads = [_gradient(interp, value, k in results.differentiable, materialize, placeholder)
             for k, value in enumerate(results.values)]
    places = iter(kept_results)
    saved: list[Value] = []
    for value in kept:
        if value.tensor is not None:
            spec, is_result = value.traced.spec, next(places) is not None
            spec = spec.with_(requires_grad=spec.requires_grad or is_result, offset=0)
            value = placeholder(builder.node(value.traced, is_result=True), spec)
        saved.append(value)
    given = [v.traced.storage for v in (*grads, *saved) if v.tensor is not None]
    named, asked = builder.sizes.unbacked_count, builder.state.mode_questions
    with _as_backward(interp, tracing):
        interp.call_sync(interp.context.const_object(autograd.unpack), [ctx, TupleValue(saved)])
        body = trace_body(interp, interp.context.const_object(autograd.backward), [cls, ctx, TupleValue(grads)], {},
                          placeholders,
                          may_skip=True)
    if any(storage.generation for storage in given):
        raise _refusal("a backward that writes to what it is given")
    if builder.sizes.unbacked_count != named:
        raise _refusal("a backward with sizes that depend on data")  # what is assumed of them is checked in the forward
    if builder.state.mode_questions != asked:
        raise _refusal("a backward that asks for grad mode or autocast: these are the pass'")
    for node in body.graph.nodes:
        if node.op.is_random or isinstance(node.spec, ScalarSpec):
            raise _refusal(f"{node.op} in backward")
    leaves = body.structure if type(body.structure) is tuple else [body.structure]
    if not all(leaf is None or type(leaf) is int for leaf in leaves):
        raise _refusal("a backward that returns other things than gradients")
    return body, list(leaves)


def _gradient(interp: Interpreter, value: Value, differentiable: bool, materialize: bool, placeholder: Any) -> Value:
    """The gradient that `backward` gets for one result."""
    if value.tensor is None:
        return const(None)
    spec = value.traced.spec
    if differentiable:
        layout = spec if spec.is_static and spec.is_contiguous() else spec.with_(stride=contiguous_stride(spec.shape))
        node = interp.builder.node(value.traced, is_result=True)
        return placeholder(node, layout.with_(requires_grad=True, offset=0))
    if not materialize:
        return const(None)
    return TupleValue([TupleValue([interp.from_payload(size) for size in spec.shape]),
                       interp.context.const_object(spec.dtype),
                       interp.context.const_object(spec.device)])


@contextmanager
def _as_backward(interp: Interpreter, tracing: _Traced) -> Iterator[None]:
    """Trace as the engine would run it, with grad mode on so that the gradients have derivatives too. Errors in there
    are errors of the run of `backward`."""
    frames = len(interp.frames)
    outer = interp.custom_backward, interp.ordinary_depth, interp.handled
    interp.custom_backward, interp.ordinary_depth = tracing, interp.sync_depth + 1
    try:
        with interp.builder.state.grad_mode(True):
            yield
    except TracedException as error:
        del interp.frames[frames:]
        raise _refusal(f"backward raises {error.value.cls.__name__}") from None
    except (GraphBreak, SizeUnknown, Uncapturable, NotCovered) as error:
        del interp.frames[frames:]
        raise _refusal(f"backward: {error}") from None
    finally:
        interp.custom_backward, interp.ordinary_depth, interp.handled = outer


def _places(interp: Interpreter, arguments: Sequence[Value], leaves: list[Any], body: Body) -> Iterator[int | None]:
    """For each argument that requires grad the output of `backward` that is its gradient. Refuses where eager raises.
    """
    while len(leaves) > len(arguments) and leaves[-1] is None:
        leaves.pop()
    if len(leaves) != len(arguments):
        raise _refusal(f"backward returns {len(leaves)} gradients for {len(arguments)} arguments")
    found: list[int | None] = []
    for argument, leaf in zip(arguments, leaves, strict=True):
        if argument.tensor is None:
            if leaf is not None:
                raise _refusal("a gradient for an argument that is no tensor")
            continue
        want = argument.traced.spec
        if not want.requires_grad:
            continue
        if leaf is not None:
            have = body.specs[leaf]
            if have.device != want.device or have.dtype.is_complex or not _expands(interp, want, have):
                raise _refusal(f"a gradient of shape {have.shape} for an argument of shape {want.shape}")
        found.append(leaf)
    return iter(found)


def _expands(interp: Interpreter, small: TensorSpec, large: TensorSpec) -> bool:
    """Whether a tensor may be expanded to the shape of another: the gradient is summed then."""
    equal, lead = interp.builder.sizes.equal, large.ndim - small.ndim
    if lead < 0:
        return False
    return all(equal(a, b, "the shape of a gradient") or equal(a, 1, "the shape of a gradient")
               for a, b in zip(small.shape, large.shape[lead:], strict=True))


@code_model(once_differentiable(lambda ctx: None))
def _once(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """A function marked with `once_differentiable`."""
    if interp.custom_backward is None:
        return inline(interp, fn, args, kwargs)
    interp.custom_backward.once = True
    inner = closed_over(interp, fn, "fn")
    return interp.call(interp.context.const_object(autograd.without_grad), [inner, *args], kwargs)


def _items(interp: Interpreter, value: Value) -> list[Value]:
    if value.literal is None:
        return []
    if value.base is not tuple:
        raise _refusal(f"a {value.cls.__name__} where a tuple is due")
    return value.listed(interp)


def _refusal(detail: str) -> GraphBreak:
    return GraphBreak("autograd", f"an autograd function: {detail}")
