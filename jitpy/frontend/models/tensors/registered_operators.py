"""Operators of the program's, whose gradient or body may be Python that torch's modes do not see.

A call that needs a gradient of `torch.library.register_autograd` is traced as torch makes it, an autograd function
around the operator: what `setup_context` and `backward` read of Python is guarded, what they change breaks the graph.
A composite operator is traced through its body in Python. Where that cannot be found or traced, the operator is a node
of its own, or breaks the graph if it needs a gradient.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch

from jitpy.ir import NotCovered
from jitpy.ir import ops as table
from jitpy.ir.ops.registered import (
    body_of,
    composite_body,
    definition_of,
    has_python_body,
    has_python_gradient,
    registration_of,
)

from ...breaks import GraphBreak, TraceAgain
from ...guards.source import constant
from ...polyfills import autograd
from ...values import ConstValue, Interpreter, Value
from ...values.tree import tree_iter

Operator = torch._ops.OpOverload | torch._ops.OpOverloadPacket


def call_operator(interp: Interpreter, fn: Operator, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """Call an operator that is not torch's own."""
    overloads = [fn] if isinstance(fn, torch._ops.OpOverload) else [getattr(fn, name) for name in fn.overloads()]
    for overload in overloads:
        registered = registration_of(overload)
        if registered:
            interp.builder.guards.add(constant(torch, "torch"), "python", registered,
                                      f"what is registered for {overload}")
        if _would_see_changes(interp, definition_of(overload)):
            raise GraphBreak("unsupported_call", f"{fn}, whose kernel reads what was changed before")
    body = body_of(overloads[0])
    if body is not None and not _needs_grad(interp, args, kwargs):
        return interp.call(interp.context.const_object(body), args, kwargs)
    may_enter = len(overloads) == 1 and overloads[0] not in interp.context.history.whole_operators
    composite = composite_body(overloads[0], _needs_grad(interp, args, kwargs)) if may_enter else None
    body = None if composite is None else composite.body()
    bound = None if body is None else _bound(interp, overloads[0]._schema, args, kwargs)
    if bound is not None:
        interp.builder.guards.add(constant(torch, "torch"), "python", composite, f"the body of {fn}")
        # torch leaves out what is as by default
        arguments = overloads[0]._schema.arguments
        named = {one.name: value for one, value in zip(arguments, bound, strict=True)
                 if one.kwarg_only and not _is_default(value, one)}
        given = [value for one, value in zip(arguments, bound, strict=True) if not one.kwarg_only]
        while given and _is_default(given[-1], arguments[len(given) - 1]):
            given.pop()
        try:
            with interp.calling_ordinarily():
                return interp.call_sync(interp.context.const_object(body), given, named)
        except GraphBreak:
            interp.context.history.whole_operators.add(overloads[0])
            raise TraceAgain from None
    has_body = any(map(has_python_body, overloads))
    if not has_body and not any(map(has_python_gradient, overloads)):
        return interp.record(fn, args, kwargs)
    needs_grad = _needs_grad(interp, args, kwargs)
    if not has_body and not needs_grad:
        return interp.record(fn, args, kwargs)
    definition, schema = definition_of(overloads[0]), overloads[0]._schema
    if len(overloads) > 1 or schema.is_mutable or any(a.kwarg_only for a in schema.arguments) or any(
        "List[" in str(value.type) for value in (*schema.arguments, *schema.returns)
    ):
        raise _refusal(fn)
    bound = _bound(interp, schema, args, kwargs)
    if bound is None:
        return interp.record(fn, args, kwargs)  # eager refuses
    if has_body:
        return _whole(interp, overloads[0], bound, needs_grad)
    if definition is None or interp.sync_depth > interp.ordinary_depth:
        raise _refusal(fn)
    count = len(bound)
    while count and _is_default(bound[count - 1], schema.arguments[count - 1]):
        count -= 1
    known = [interp.context.const_object(one) for one in (autograd.registered, overloads[0], definition, count)]
    return interp.call(known[0], [*known[1:], *bound], {})


def _is_default(value: Value, argument: Any) -> bool:
    return argument.has_default_value() and value.literal == argument.default_value


def _would_see_changes(interp: Interpreter, definition: Any) -> bool:
    """Whether the Python kernel of an operator names something that the program has changed so far, or prints behind
    what the program has printed: the program's changes are made behind the graph."""
    if definition is None:
        return False
    for kernel in {inspect.unwrap(fn) for fn in (definition._init_fn, *definition._backend_fns.values())}:
        if not isinstance(kernel, types.FunctionType):
            continue
        names = set(_names(kernel.__code__))
        if interp.host_calls and not names.isdisjoint(_SPEAK) or _is_written(interp, kernel.__globals__, names):
            return True
        space, cells = kernel.__globals__, inspect.getclosurevars(kernel).nonlocals
        if any(_is_changed(interp, one) for one in (*(space[n] for n in names if n in space), *cells.values())):
            return True
    return False


def _is_written(interp: Interpreter, space: dict[str, Any], names: set[str]) -> bool:
    """Whether the program has written to a global variable."""
    value = interp.context._by_id.get(id(space))
    return value is not None and any(
        (key.value if isinstance(key, ConstValue) else key) in names for key, _ in value.log)


def _is_changed(interp: Interpreter, one: Any) -> bool:
    value = interp.context._by_id.get(id(one))
    if value is None:
        return False
    if value.tensor is not None:
        return value.tensor.storage.generation > 0
    attrs = value.attrs if value.is_instance else None
    return interp.context.has_changed(value) or attrs is not None and interp.context.has_changed(attrs)


#: how kernels say something
_SPEAK = frozenset({"print", "warn", "write", "debug", "info", "warning", "error", "log"})


def _names(code: types.CodeType) -> Iterator[str]:
    """Globals and attributes that a function mentions, and functions inside it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _names(value)


def _refusal(fn: Operator) -> GraphBreak:
    return GraphBreak("autograd", f"{fn}, whose body or gradient is Python of the program's")


def _bound(interp: Interpreter, schema: Any, args: list[Value], kwargs: dict[str, Value]) -> list[Value] | None:
    """All arguments in order; None where the call does not fit."""
    given = dict(zip([a.name for a in schema.arguments], args, strict=False))
    if len(args) > len(schema.arguments) or any(name in given for name in kwargs):
        return None
    given.update(kwargs)
    bound = []
    for argument in schema.arguments:
        if argument.name in given:
            bound.append(given.pop(argument.name))
        elif argument.has_default_value():
            bound.append(interp.context.const_object(argument.default_value))
        else:
            return None
    return None if given else bound


def _whole(interp: Interpreter, overload: torch._ops.OpOverload, bound: list[Value], needs_grad: bool) -> Value:
    """A composite operator as a node of its own."""
    if needs_grad or [str(value.type) for value in overload._schema.returns] != ["Tensor"]:
        raise _refusal(overload)
    builder = interp.builder
    with interp.recording(str(overload)):
        args = tuple(value.payload(interp) for value in bound)
        try:
            if table.aliasing(table.get(overload), builder.sizes, builder.to_node(args), {}) != "copy":
                raise _refusal(overload)
            return interp.from_payload(builder.record(overload, args, {}))
        except NotCovered:
            raise _refusal(overload) from None


def _needs_grad(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> bool:
    return interp.builder.state.grad_enabled and any(
        leaf.tensor is not None and leaf.traced.spec.requires_grad
        for value in (*args, *kwargs.values()) for leaf in tree_iter(interp, value))
