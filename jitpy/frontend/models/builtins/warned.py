"""Warnings, and the filters that say what becomes of them.

Compiled code warns behind the graph, in the program's order. `catch_warnings` and what changes filters is traced as the
Python that it is; from then on the trace knows the filters. A warning that is an error is raised, one that is ignored
is not made. Any other warning under filters that the program set breaks the graph, as does `record=True`.
"""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

from ...breaks import GraphBreak, RestartAnalysis
from ...guards.source import constant
from ...interpreter.callees import Args, Kwargs, builtin, keep_callers, looks_at_callers
from ...interpreter.calls import inline_library
from ...interpreter.frame import Frame
from ...values import NONE, UNKNOWN, Interpreter, NotConstant, Value, const
from .host_effects import caller, freeze, goes_through, is_another, is_changed, note


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
    others = [value for value in given.values() if value.literal is not None]
    if message is None or category is None or others or type(level.literal) is not int or \
            is_changed(interp, sys, "stderr"):
        raise GraphBreak("unsupported_call", "warnings.warn")
    return warn_at(interp, message, category, caller(interp, max(level.value, 1)))


@looks_at_callers()
def warn_at(interp: Interpreter, message: Any, category: type[Warning], place: Frame | int) -> Value:
    """A warning about the line where a frame is; a number says how far that frame is above the root."""
    if not _is_as_before(interp):
        action = _action(interp, message, category, place)
        if action == "error":
            raise interp.raise_value(message) if message.is_exception else \
                interp.throw(category, _text(interp, message))
        if action == "ignore":
            return NONE
        raise GraphBreak("unsupported_call", "warnings.warn under filters or functions that the program set")
    known = type(message.literal) is str
    no_error = _NoError(category, message.value if known else None)  # type: ignore[attr-defined]
    if not no_error(warnings):
        raise GraphBreak("unsupported_call", "warnings.warn, where a warning is an error or the program shows it")
    interp.context.guard(constant(warnings, "warnings"), "python", no_error)
    show = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    if isinstance(show, types.BuiltinMethodType):
        # it is appended behind the graph: no place for it where the program looks at the list after all
        refused = GraphBreak("unsupported_call", "warnings.warn, where the program reads what was recorded")
        if interp.context.value_of(show.__self__) is not None:
            raise refused
        interp.context.hidden.setdefault(id(show.__self__), RestartAnalysis(interp.step_to_break(), refused))
    note(interp, _warn_at if isinstance(place, Frame) else _warn_above, _arguments(interp, message, category, place))
    return NONE


def _arguments(interp: Interpreter, message: Value, category: type[Warning], place: Frame | int) -> Args:
    shown = message if message.is_exception else freeze(interp, message)
    later = GraphBreak("unsupported_call", "warnings.warn, where what shows it is changed later")
    keep_callers(interp, later)
    goes_through(interp, [(sys, "stderr"), (warnings, "showwarning"), (warnings, "formatwarning")], later)
    where = [const(place.code.co_filename), const(place.line()), place.globals] if isinstance(place, Frame) \
        else [const(place)]
    return [shown, interp.context.const_object(category), *where]


def _category(interp: Interpreter, message: Any, category: Any) -> type[Warning] | None:
    """The class of a warning; None for what `warn` refuses or what may print as the program says."""
    if message is not None and message.is_exception and issubclass(message.cls, Warning):
        plain = interp.context.class_lookup(message.cls, "__str__") is BaseException.__str__
        return message.cls if plain and all(arg.is_constant for arg in message.args) else None
    if message is None or not (message.is_constant or message.is_text) or not issubclass(message.cls, str):
        return None
    if category.literal is None:
        return UserWarning
    cls = interp.context.pin(category) if category.opaque is not UNKNOWN else None
    if not isinstance(cls, type) or not issubclass(cls, Warning):
        return None
    hooks = [interp.context.class_lookup(cls, name) for name in ("__new__", "__init__", "__str__")]
    return None if any(isinstance(hook, (types.FunctionType, staticmethod)) for hook in hooks) else cls


# -- under filters that the trace knows -----------------------------------------------------------------------


def _is_as_before(interp: Interpreter) -> bool:
    """Whether the program has left filters, and what shows warnings, as they were."""
    attributes: Any = interp.context.module_dict(warnings)
    filters = interp.context.value_of(warnings.filters)
    return not (filters is not None and interp.context.has_changed(filters)) and \
        not any(is_another(interp, attributes, warnings, name) for name, _ in attributes.log)


def _attribute(interp: Interpreter, name: str) -> Value:
    return interp.finish_sync(interp.getattr(interp.context.const_object(warnings), name))


def _text(interp: Interpreter, message: Any) -> str:
    return str(Warning(*(arg.value for arg in message.args))) if message.is_exception else message.folded(interp)


def _action(interp: Interpreter, message: Value, category: type[Warning], place: Frame | int) -> str | None:
    """The filters' action for a warning; None where that is not known."""
    module = interp.context.dict_get(place.globals, "__name__") if isinstance(place, Frame) else None
    text = _text(interp, message)
    try:
        filters = _attribute(interp, "filters").folded(interp)
        name = module.folded(interp) if module is not None else "<string>"
    except NotConstant:
        return None
    for action, shown, kind, where, line in filters:
        if not _matches(shown, text) or not issubclass(category, kind):
            continue
        if not isinstance(place, Frame) and (where is not None or line):
            return None
        if _matches(where, name) and (not line or line == place.line()):  # type: ignore[union-attr]
            return action
    return None


def _matches(pattern: Any, text: str) -> bool:
    return pattern is None or (pattern == text if type(pattern) is str else pattern.match(text) is not None)


def _changes_filters(function: Any) -> None:
    @builtin(function)
    def change(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        """The Python function itself."""
        if any(made in (_warn_at, _warn_above) for made, _, _ in interp.host_calls):
            raise GraphBreak("unsupported_call", "filters of warnings are changed behind a warning")
        if function is warnings.catch_warnings.__enter__ and interp.truth(interp.getattr(args[0], "_record")):
            raise GraphBreak("unsupported_call", "warnings.catch_warnings(record=True)")
        return inline_library(interp, function, args, kwargs)


for _function in (warnings.catch_warnings.__enter__, warnings.catch_warnings.__exit__, warnings.resetwarnings,
                  warnings._add_filter, warnings.catch_warnings.__init__,  # type: ignore[attr-defined]
                  warnings.simplefilter, warnings.filterwarnings):
    _changes_filters(_function)


@builtin(warnings._filters_mutated)  # type: ignore[attr-defined]
def filters_mutated(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    note(interp, warnings._filters_mutated, [])  # type: ignore[attr-defined]
    return NONE


# -- at run time ----------------------------------------------------------------------------------------------


def _warn_at(message: Any, category: type[Warning], filename: str, line: int, space: dict[str, Any]) -> None:
    """The call of `warnings.warn` for a caller there, with these globals."""
    registry = space.setdefault("__warningregistry__", {})
    module = space.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, line, module, registry)


def _warn_above(message: Any, category: type[Warning], above: int) -> None:
    warnings.warn(message, category, above + 3)  # above the generated code, whose helper calls this function
