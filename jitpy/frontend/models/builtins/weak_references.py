"""Weak references: those found outside are read where the program calls them, others are made when the graph has run.

A weak reference tells when an object dies, which tracing, where every Value lives on, does not see. So it answers only
while the object is held by what the program can still reach. Where that cannot be known, or the graph breaks later on
(what was made before a break is held as long as the code that goes on runs), an object of the program's own is made in
plain Python, as is all that follows.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...breaks import GraphBreak, RestartAnalysis
from ...codegen.frame_code import Emitter, builds, param_names
from ...guards.source import LocalSource, slot
from ...interpreter.callees import Args, Kwargs, builtin, calls_of
from ...values import NONE, Interpreter, ObjectValue, Value, WeakReferenceValue


class _Referent(property):
    """Reads what a weak reference refers to: the last step of a path."""


REFERENT = _Referent(lambda reference: reference())


@builtin(weakref.ref)
def _make(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        raise GraphBreak("unsupported_call", "weakref.ref()")
    target = args[0]
    if kwargs or len(args) != 1:
        raise _refusal(target, "a weak reference with a callback")
    is_known = type(target) is ObjectValue and (target.source is not None or target.born > 0) or \
        target.tensor is not None and (target.source is not None or
                                             target.traced in interp.builder.parameters.data)
    if not is_known or target.cls.__weakrefoffset__ == 0:
        raise GraphBreak("unsupported_call", f"a weak reference to {target.describe()}")
    made = interp.weak_references.get(id(target))
    if made is None:
        made = interp.weak_references[id(target)] = WeakReferenceValue(target, born=interp.step)
    return made


@builtin(weakref.ref.__new__)
def _new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise _refusal(args[1] if len(args) > 1 else NONE, "a weak reference of a class of its own")


@builtin(weakref.proxy)
def _proxy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise _refusal(args[0] if args else NONE, "weakref.proxy()")


def _refusal(target: Value, what: str) -> BaseException:
    if type(target) is ObjectValue and target.source is None and target.born > 0:
        return RestartAnalysis(target.born, GraphBreak("finalizer", f"{target.cls.__qualname__}: {what}", tail=True))
    return GraphBreak("unsupported_call", what)


@calls_of(weakref.ref)
def _call(interp: Interpreter, fn: WeakReferenceValue, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs:
        raise GraphBreak("unsupported_call", "a weak reference with arguments")
    target = fn.target
    if target is None:
        assert fn.source is not None
        target = interp.context.wrap(fn.real(), slot(fn.source, REFERENT))
    if target is NONE or getattr(target, "value", target) is None or _is_alive(interp, target):
        return target  # what is dead stays dead
    raise _refusal(target, "a weak reference to what may be gone by now")


def _is_alive(interp: Interpreter, target: Value) -> bool:
    """Whether something that the program can reach holds an object; or, of one that lived when the call began, whether
    nothing has been let go since."""
    held = _held(interp)
    if id(target) in held:
        return True
    if target.source is None or any(value.source is not None for value in interp.context.dirty):
        return False
    root = interp.frames[0]
    return all(isinstance(getattr(root.locals.get(name), "source", None), LocalSource) or name in root.code.co_cellvars
               for name in param_names(root.code))


def _held(interp: Interpreter) -> set[int]:
    """The ids of all Values that are held by frames, or by what came from outside and was changed."""
    found: set[int] = set()
    waiting: list[Any] = [interp.handled, *(value for value in interp.context.dirty if value.source is not None)]
    for frame in interp.frames:
        waiting += frame.children()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Value) and id(value) not in found:
            found.add(id(value))
            waiting += value.children()
    return found


@builds(WeakReferenceValue)
def _build(emitter: Emitter, value: WeakReferenceValue) -> None:
    target = value.target
    assert target is not None
    if emitter.is_break and target.source is None:
        if target.tensor is not None:  # from then on the parameter is one from outside
            raise RestartAnalysis(value.born,
                                  GraphBreak("unsupported_call", "a weak reference to a parameter", split=True))
        raise _refusal(target, "a weak reference at a graph break")
    emitter.call(weakref.ref, lambda: emitter.load(target))
    emitter.remember(value)
