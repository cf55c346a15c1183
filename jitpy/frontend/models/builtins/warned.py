"""Warnings, and the filters that say what becomes of them.

Compiled code warns behind the graph, in the program's order. `catch_warnings` and what changes filters is traced as the
Python that it is; from then on the trace knows the filters. A warning that is an error is raised, one that is ignored
is not made, one that `catch_warnings(record=True)` takes is appended to its list, all while tracing; others are made
behind the graph, under the filters of their place.
"""

from __future__ import annotations

import contextlib
import re
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

from ...breaks import GraphBreak, RestartAnalysis
from ...guards.source import constant
from ...interpreter.callees import builtin, keep_callers, looks_at_callers
from ...interpreter.calls import inline_library
from ...interpreter.frame import Frame
from ...values import (
    NONE,
    BuiltinMethodValue,
    ConstValue,
    ExceptionValue,
    FunctionValue,
    Interpreter,
    ListValue,
    PyValue,
    TextValue,
    TupleValue,
    Value,
    const,
)
from .host_effects import caller, freeze, goes_through, is_changed, note

Args = list[Value]
Kwargs = dict[str, Value]
Filter = tuple[str, Any, type[Warning], Any, int]


class _NoError:
    """Guard predicate: warnings of a category go where warnings go; they are no errors, and no code of the program's
    sees them."""

    def __init__(self, category: type[Warning], text: str | None) -> None:
        self.category = category
        self.text = text  # None where it is not known
        self.known: list[Any] | None = None

    def __call__(self, module: Any) -> bool:
        if module.showwarning is not module._showwarning_orig or module.defaultaction == "error" or \
                not _shows_quietly(module._showwarnmsg_impl):
            return False
        if module.filters != self.known:
            if any(action == "error" and issubclass(self.category, kind) and (
                    self.text is None or _matches(shown, self.text)) for action, shown, kind, *_ in module.filters):
                return False
            self.known = list(module.filters)
        return True


def _shows_quietly(show: Any) -> bool:
    """Whether a function that shows warnings is the module's own, or a list's `append`."""
    if isinstance(show, types.FunctionType):
        return show.__globals__ is vars(warnings)
    return isinstance(show, types.BuiltinMethodType) and type(show.__self__) is list and show.__name__ == "append"


@builtin(warnings.warn)
@looks_at_callers(warnings.warn)
def warn(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    given = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    message, level = given.pop("message", None), given.pop("stacklevel", const(1))
    category = _category(interp, message, given.pop("category", NONE))
    others = [value for value in given.values() if not isinstance(value, ConstValue) or value.value is not None]
    if message is None or category is None or others or not isinstance(level, ConstValue) or \
            type(level.value) is not int or is_changed(interp, sys, "stderr"):
        raise GraphBreak("unsupported_call", "warnings.warn")
    return warn_at(interp, message, category, caller(interp, max(level.value, 1)))


@looks_at_callers()
def warn_at(interp: Interpreter, message: Value, category: type[Warning], place: Frame | int) -> Value:
    """A warning about the line where a frame is; a number says how far that frame is above the root."""
    if is_changed(interp, warnings) or _is_recorded_by_program(interp):
        return _warn_now(interp, message, category, place)
    known = isinstance(message, ConstValue) and type(message.value) is str
    no_error = _NoError(category, message.value if known else None)  # type: ignore[attr-defined]
    if not no_error(warnings):
        raise GraphBreak("unsupported_call", "warnings.warn, where a warning is an error or the program shows it")
    interp.context.guard(constant(warnings, "warnings"), "python", no_error)
    show = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    if isinstance(show, types.BuiltinMethodType):
        _hide(interp, show.__self__)
    note(interp, _warn_at if isinstance(place, Frame) else _warn_above, _arguments(interp, message, category, place))
    return NONE


def _hide(interp: Interpreter, recorded: list[Any]) -> None:
    """Warnings are appended behind the graph: no place for them where the program looks at the list after all."""
    refused = GraphBreak("unsupported_call", "warnings.warn, where the program reads what was recorded")
    interp.context.hidden.setdefault(id(recorded), RestartAnalysis(interp.step_to_break(), refused))


def _arguments(interp: Interpreter, message: Value, category: type[Warning], place: Frame | int) -> Args:
    shown = message if isinstance(message, ExceptionValue) else freeze(interp, message)
    later = GraphBreak("unsupported_call", "warnings.warn, where what shows it is changed later")
    keep_callers(interp, later)
    goes_through(interp, [(sys, "stderr"), (warnings, "showwarning"), (warnings, "formatwarning")], later)
    where = [const(place.code.co_filename), const(place.line()), place.globals] if isinstance(place, Frame) \
        else [const(place)]
    return [shown, interp.context.const_object(category), *where]


def _category(interp: Interpreter, message: Value | None, category: Value) -> type[Warning] | None:
    """The class of a warning; None for what `warn` refuses or what may print as the program says."""
    if isinstance(message, ExceptionValue) and issubclass(message.cls, Warning):
        plain = interp.context.class_lookup(message.cls, "__str__") is BaseException.__str__
        return message.cls if plain and all(isinstance(arg, ConstValue) for arg in message.args) else None
    if not isinstance(message, (ConstValue, TextValue)) or not issubclass(message.cls, str):
        return None
    if isinstance(category, ConstValue) and category.value is None:
        return UserWarning
    cls = interp.context.pin(category) if isinstance(category, PyValue) else None
    if not isinstance(cls, type) or not issubclass(cls, Warning):
        return None
    hooks = [interp.context.class_lookup(cls, name) for name in ("__new__", "__init__", "__str__")]
    return None if any(isinstance(hook, (types.FunctionType, staticmethod)) for hook in hooks) else cls


# -- under filters that the trace knows -----------------------------------------------------------------------


def _is_recorded_by_program(interp: Interpreter) -> bool:
    """Whether warnings go to a list that the traced program has."""
    show = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    known = interp.context.value_of(show.__self__) if isinstance(show, types.BuiltinMethodType) else None
    return known is not None and known is not interp.warned.outside


def _attribute(interp: Interpreter, name: str) -> Value:
    return interp.finish_sync(interp.getattr(interp.context.const_object(warnings), name))


def _warn_now(interp: Interpreter, message: Value, category: type[Warning], place: Frame | int) -> Value:
    refused = GraphBreak("unsupported_call", "warnings.warn under filters or functions that the program set")
    show = _attribute(interp, "_showwarnmsg_impl")
    handlers = [_attribute(interp, name) for name in ("showwarning", "_showwarnmsg")]
    if any(not isinstance(handler, FunctionValue) or handler.globals is not vars(warnings)
           for handler in (*handlers, *([] if isinstance(show, BuiltinMethodValue) else [show]))):
        raise refused
    text = str(Warning(*(arg.value for arg in message.args))) if isinstance(message, ExceptionValue) \
        else _real(interp, message)
    action = _action(interp, text, category, place)
    if action is None:
        raise refused
    if action == "error":
        raise interp.raise_value(message) if isinstance(message, ExceptionValue) else interp.throw(category, text)
    if isinstance(show, BuiltinMethodValue) and show.self is interp.warned.outside:
        _hide(interp, show.self.real)  # type: ignore[attr-defined]
    elif isinstance(show, BuiltinMethodValue) and action != "ignore":
        if not isinstance(show.self, ListValue) or show.descriptor is not list.append or not isinstance(place, Frame):
            raise refused
        if _is_due(interp, action, text, category, place, refused):
            shown = message if isinstance(message, ExceptionValue) else interp.make_exception(category, text)
            details = [shown, interp.context.const_object(category), const(place.code.co_filename), const(place.line())]
            made = interp.call_sync(interp.context.const_object(warnings.WarningMessage), details)
            interp.finish_sync(interp.call(show, [made], {}))
        show = interp.context.const_object(_shown_before)
    note(interp, _warn_at_under if isinstance(place, Frame) else _warn_above_under,
         [_filters(interp), show, *_arguments(interp, message, category, place)])
    return NONE


def _filters(interp: Interpreter) -> TupleValue:
    filters = _attribute(interp, "filters")
    if not isinstance(filters, ListValue):
        raise GraphBreak("unsupported_call", "warnings.warn under filters that are no list")
    return TupleValue([interp.context.force(item) for item in filters.items])


def _action(interp: Interpreter, text: str, category: type[Warning], place: Frame | int) -> str | None:
    """The filters' action for a warning; None where that is not known."""
    module = interp.context.dict_get(place.globals, "__name__") if isinstance(place, Frame) else None
    name = _real(interp, module) if module is not None else "<string>"
    for item in _filters(interp).items:
        action, shown, kind, where, line = (_real(interp, part) for part in _parts(interp, item))
        if not _matches(shown, text) or not issubclass(category, kind):
            continue
        if not isinstance(place, Frame) and (where is not None or line):
            return None
        if _matches(where, name) and (not line or line == place.line()):  # type: ignore[union-attr]
            return action
    return _real(interp, _attribute(interp, "defaultaction"))


def _parts(interp: Interpreter, value: Value) -> Args:
    if not isinstance(value, TupleValue) or len(value.items) != 5:
        raise GraphBreak("unsupported_call", "warnings.warn under filters of a form that is not known")
    return [interp.context.force(part) for part in value.items]


def _real(interp: Interpreter, value: Value) -> Any:
    real = value.value if isinstance(value, ConstValue) else \
        interp.context.pin(value) if isinstance(value, (PyValue, TextValue)) else value
    if not isinstance(real, (str, int, type, re.Pattern, type(None))):
        raise GraphBreak("unsupported_call", "warnings.warn under filters of a form that is not known")
    return real


def _matches(pattern: Any, text: str) -> bool:
    return pattern is None or (pattern == text if type(pattern) is str else pattern.match(text) is not None)


def _is_due(interp: Interpreter, action: str, text: str, category: type[Warning], place: Frame,
            refused: GraphBreak) -> bool:
    """Whether a warning is shown that may have been shown before: registries forget when filters change."""
    if action == "always":
        return True
    if interp.warned.seen is None or action not in ("default", "module", "once"):
        raise refused
    registry = interp.warned.seen.setdefault(id(place.globals), set())
    keys = {(text, category, place.line())} | ({(text, category)} if action != "default" else set())
    known = bool(keys & registry)
    registry |= keys
    return not known


# -- changes of filters ---------------------------------------------------------------------------------------


def _meet_outside(interp: Interpreter) -> None:
    """The list outside of the program that warnings go to, where there is one."""
    show = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    if _shows_quietly(show) and isinstance(show, types.BuiltinMethodType) and not _is_recorded_by_program(interp):
        hidden = interp.context.hidden.pop(id(show.__self__), None)
        value = _attribute(interp, "_showwarnmsg_impl")
        assert isinstance(value, BuiltinMethodValue)
        interp.warned.outside = value.self
        if hidden is not None:
            interp.context.hidden[id(show.__self__)] = hidden


def _changes_filters(function: Any) -> None:
    @builtin(function)
    def change(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        """The Python function itself; warnings that are made behind the graph keep the filters of now."""
        if not is_changed(interp, warnings):
            _meet_outside(interp)
        if any(made in (_warn_at, _warn_above) for made, _, _ in interp.host_calls):
            state = [_filters(interp), _attribute(interp, "_showwarnmsg_impl")]
            under = {_warn_at: _warn_at_under, _warn_above: _warn_above_under}
            interp.host_calls[:] = [(under[made], [*state, *args], kwargs) if made in under else (made, args, kwargs)
                                for made, args, kwargs in interp.host_calls]
        return inline_library(interp, function, args, kwargs)


def _enters(function: Any) -> None:
    @builtin(function)
    def enter(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        return inline_library(interp, function, args, kwargs)


for _function in (warnings.catch_warnings.__enter__, warnings.catch_warnings.__exit__, warnings.resetwarnings,
                  warnings._add_filter):  # type: ignore[attr-defined]
    _changes_filters(_function)
for _function in (warnings.catch_warnings.__init__, warnings.simplefilter, warnings.filterwarnings,
                  warnings.WarningMessage.__init__, warnings.WarningMessage.__str__):
    _enters(_function)


@builtin(warnings._filters_mutated)  # type: ignore[attr-defined]
def filters_mutated(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    note(interp, warnings._filters_mutated, [])  # type: ignore[attr-defined]
    interp.warned.seen = {}
    return NONE


# -- at run time ----------------------------------------------------------------------------------------------


def _shown_before(shown: warnings.WarningMessage) -> None:
    """Shows what was appended to a list while tracing: registries remember it all the same."""


def _warn_at(message: Any, category: type[Warning], filename: str, line: int, space: dict[str, Any]) -> None:
    """The call of `warnings.warn` for a caller there, with these globals."""
    registry = space.setdefault("__warningregistry__", {})
    module = space.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, line, module, registry)


def _warn_above(message: Any, category: type[Warning], above: int) -> None:
    warnings.warn(message, category, above + 3)  # above the generated code, whose helper calls this function


@contextlib.contextmanager
def _state(filters: tuple[Filter, ...], show: Any) -> Iterator[None]:
    module: Any = warnings
    before = module.filters, module._showwarnmsg_impl
    module.filters, module._showwarnmsg_impl = list(filters), show
    try:
        yield
    finally:
        module.filters, module._showwarnmsg_impl = before


def _warn_at_under(filters: tuple[Filter, ...], show: Any, *details: Any) -> None:
    with _state(filters, show):
        _warn_at(*details)


def _warn_above_under(filters: tuple[Filter, ...], show: Any, *details: Any) -> None:
    with _state(filters, show):
        _warn_above(*details[:-1], details[-1] + 1)
