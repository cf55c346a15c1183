"""Effects on the outside: what is printed and logged (warnings: `warned.py`).

Compiled code makes these calls behind the graph, in the program's order. Those that look at their callers are told what
these were."""

from __future__ import annotations

import io
import logging
import sys
import types
import weakref
from operator import methodcaller
from typing import Any

import torch

from ...breaks import GraphBreak, RestartAnalysis
from ...bytecode.resume_codes import origin_code
from ...guards.guard_set import Answers
from ...guards.source import attr, constant, item
from ...interpreter.callees import Args, Kwargs, builtin, looks_at_callers
from ...interpreter.frame import Frame
from ...interpreter.library_code import stands_for_c
from ...values import CONST_TYPES, NONE, Interpreter, TupleValue, Value, const
from ...values.tree import tree_map


def host_call(function: Any) -> Any:
    """A call whose result does not matter and whose effect is on the outside: carried out after the graph, in order."""

    def handler(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        frozen = [freeze(interp, a) for a in args]
        note(interp, function, frozen, {k: freeze(interp, v) for k, v in kwargs.items()})
        return NONE

    return handler


def freeze(interp: Interpreter, value: Value) -> Value:
    """The value as it is now, so that a later change does not show in a deferred call."""
    return tree_map(interp, lambda leaf: _freeze_leaf(interp, leaf), value)


def _freeze_leaf(interp: Interpreter, value: Value) -> Value:
    if value.tensor is not None:
        return interp.record(torch.Tensor.clone, [interp.record(torch.Tensor.detach, [value], {})], {}) \
            if not value.traced.spec.requires_grad else _refuse(value)
    if value.is_atomic or isinstance(getattr(value, "obj", None), types.ModuleType):
        return value
    return _refuse(value)


def _refuse(value: Value) -> Any:
    raise GraphBreak("unsupported_call", f"an effect on the outside that shows {value.describe()}")


_print = host_call(print)


@builtin(print)
def builtin_print(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if "file" not in kwargs and any(key == "stdout" for key, _ in interp.context.module_dict(sys).log):
        raise GraphBreak("unsupported_call", "print() while sys.stdout is another one")
    if not kwargs.keys() <= {"sep", "end", "file", "flush"} or \
            any(kwargs[name].cls not in (str, type(None)) for name in ("sep", "end") if name in kwargs) or \
            "file" in kwargs and not hasattr(kwargs["file"].cls, "write") and kwargs["file"].cls is not type(None):
        raise GraphBreak("unsupported_call", "print() with arguments that it refuses")  # here, not behind the graph
    if "file" not in kwargs or kwargs["file"].cls is type(None):
        goes_through(interp, [(sys, "stdout")],
                     GraphBreak("unsupported_call", "print() before sys.stdout becomes another"))
        _keep_unseen(interp)
    return _print(interp, args, kwargs)


def _writes_in_c(module: Any) -> bool:
    """Guard predicate: no code of the program's sees what is printed."""
    stream = module.stdout
    return stream is None or isinstance(stream, (io.TextIOWrapper, io.StringIO)) and \
        not isinstance(type(stream).write, types.FunctionType)


class _SameStdout:
    """Guard predicate: what is printed goes to that object."""

    def __init__(self, stream: Any) -> None:
        self.stream = weakref.ref(stream)

    def __call__(self, module: Any) -> bool:
        return module.stdout is self.stream()


def _keep_unseen(interp: Interpreter) -> None:
    """Printed text is written behind the graph: where that runs code in Python, the program must not look at the
    stream or at what it holds."""
    stream, source = sys.stdout, constant(sys, "sys")
    if _writes_in_c(sys):
        interp.context.guard(source, "python", _writes_in_c)
        return
    refused = GraphBreak("unsupported_call", "print() to an object of the program's")
    attributes = getattr(stream, "__dict__", {})
    held = [stream, attributes, *(v for v in attributes.values() if type(v) not in CONST_TYPES)]
    if type(stream).__weakrefoffset__ == 0 or any(interp.context.value_of(one) is not None for one in held):
        raise refused
    interp.context.guard(source, "python", _SameStdout(stream))
    for one in held:
        interp.context.hidden.setdefault(id(one), RestartAnalysis(interp.step_to_break(), refused))


# -- what calls behind the graph meet -------------------------------------------------------------------------


def goes_through(interp: Interpreter, places: list[tuple[Any, str | None]], refused: GraphBreak) -> None:
    """A call that is made behind the graph finds there what the program has left: it has to be what is there now. A
    place is an attribute of an object, or (None) all of an object or container."""
    restart = RestartAnalysis(interp.step_to_break(), refused)
    interp.said_through += [(holder, name, restart) for holder, name in places]


def lost_way(interp: Interpreter) -> RestartAnalysis | None:
    """The way out where the program has changed an object that a call behind the graph goes through."""
    if not interp.said_through:
        return None
    changed = {id(held): value for value in interp.context.dirty
               for held in (getattr(value, "real", None), getattr(value, "real_dict", None)) if held is not None}
    for holder, name, restart in interp.said_through:
        for held in (holder, getattr(holder, "__dict__", None)):
            value = changed.get(id(held))
            if value is not None and (name is None or is_another(interp, value, holder, name)):
                return restart
    return None


def is_another(interp: Interpreter, attributes: Any, holder: Any, name: str) -> bool:
    """Whether the program leaves another object under a name."""
    left = [value for key, value in attributes.log if key == name]
    return bool(left) and left[-1] is not interp.context.value_of(getattr(holder, name, None))


# -- callers --------------------------------------------------------------------------------------------------


def caller(interp: Interpreter, level: int, hidden: str = "") -> Frame | int:
    """The frame `level` levels above a C function that is called now, 1 being its caller; those of the file `hidden` do
    not count. Where it is above all that is traced, how far it is above the root."""
    frames = [frame for frame in interp.frames if not stands_for_c(frame.code) and frame.code.co_filename != hidden]
    return frames[-level] if level <= len(frames) else level - len(frames)


def is_changed(interp: Interpreter, module: types.ModuleType, *names: str) -> bool:
    """Whether the traced program has changed a module's attributes (any of them, or those named)."""
    return any(not names or key in names for key, _ in interp.context.module_dict(module).log)


def note(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs | None = None) -> None:
    """Have `function(*args, **kwargs)` called behind the graph."""
    interp.host_calls.append((function, args, kwargs or {}))
    interp.context.writes += 1
    interp.context.note_change()


# -- logging --------------------------------------------------------------------------------------------------


def _is_from_outside(logger: Any) -> bool:
    """Whether it is an object from outside whose attributes the program has not written."""
    return logger.is_instance and logger.real is not None and logger.source is not None and \
        logger.attrs is not None and not logger.attrs.log


def _is_enabled(interp: Interpreter, logger: Any, level: int) -> bool | None:
    """Whether a logger takes messages of a level; guarded. None where that is not known."""
    if not _is_from_outside(logger):
        return None
    answer = bool(logger.real.isEnabledFor(level))
    interp.context.guard(logger.source, "python", Answers(methodcaller("isEnabledFor", level), answer))
    return answer


_HANDLERS = {logging.StreamHandler, logging.FileHandler, logging.NullHandler, type(logging.lastResort)}
_LOGGERS = {logging.Logger, logging.RootLogger}


def _writes_only(logger: Any) -> bool:
    """Guard predicate: what a logger takes is written to files; no code of the program's sees it."""
    if type(logger) not in _LOGGERS or logging.getLogRecordFactory() is not logging.LogRecord:
        return False
    level: Any = logger
    while level is not None:
        if level.filters and level is logger or not all(map(_is_plain, level.handlers)):
            return False
        level = level.parent if level.propagate else None
    return True


def _is_plain(handler: Any) -> bool:
    formatter = handler.formatter
    return type(handler) in _HANDLERS and not handler.filters and type(formatter) in (type(None), logging.Formatter) \
        and isinstance(getattr(handler, "stream", None), (type(None), io.TextIOWrapper, io.StringIO))


def _way_of(logger: Any) -> list[tuple[Any, str | None]]:
    """The objects that decide where a logger's messages go."""
    way: list[tuple[Any, str | None]] = [(sys, "stderr")]
    level: Any = logger
    while level is not None:
        way += [(part, None) for part in (level, level.handlers, level.filters)]
        for handler in level.handlers:
            way += [(part, None) for part in (handler, handler.filters, handler.formatter) if part is not None]
        level = level.parent if level.propagate else None
    return way


def _log(interp: Interpreter, name: str, logger: Any, level: int, args: Args, kwargs: Kwargs) -> Value:
    """`logger.log(level, *args, **kwargs)`."""
    enabled = _is_enabled(interp, logger, level)
    if enabled is False:
        return NONE
    refused = GraphBreak("skipped", f"logging.Logger.{name}")
    above = kwargs.get("stacklevel", const(1))
    if not enabled or not args or type(above.literal) is not int or \
            kwargs.keys() - {"stacklevel"} or not _writes_only(logger.real) or is_changed(interp, sys, "stderr"):  # type: ignore
        raise refused
    place = caller(interp, max(above.value, 1), logging._srcfile)
    if not isinstance(place, Frame):
        raise refused
    interp.context.guard(logger.source, "python", _writes_only)
    later = GraphBreak("skipped", f"logging.Logger.{name}, whose way is changed later")
    goes_through(interp, _way_of(logger.real), later)
    where = [const(place.code.co_filename), const(place.line()), const(origin_code(place.code).co_name)]
    note(interp, _log_at, [logger, const(level), *where, freeze(interp, args[0]), freeze(interp, TupleValue(args[1:]))])
    return NONE


def _log_at(logger: logging.Logger, level: int, filename: str, line: int, function: str, message: Any,
            args: tuple[Any, ...]) -> None:
    """The call of `logger.log` for a caller there."""
    logger.handle(logger.makeRecord(logger.name, level, filename, line, message, args, None, function))


def _log_method(name: str, level: int) -> None:
    @builtin(getattr(logging.Logger, name))
    @looks_at_callers(getattr(logging.Logger, name))
    def log(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not args:
            raise GraphBreak("skipped", f"logging.Logger.{name}")
        return _log(interp, name, args[0], level, args[1:], kwargs)

    @builtin(getattr(logging, name))
    @looks_at_callers(getattr(logging, name))
    def log_to_root(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not _has_handlers(logging.root):  # it would make one
            raise GraphBreak("skipped", f"logging.{name}")
        source = constant(logging.root, "logging.root")
        interp.context.guard(source, "python", _has_handlers)
        return _log(interp, name, interp.context.wrap(logging.root, source), level, args, kwargs)


def _has_handlers(logger: Any) -> bool:
    return bool(logger.handlers)


for _name in ("debug", "info", "warning", "error", "critical"):
    _log_method(_name, getattr(logging, _name.upper()))


@builtin(logging.Logger.log)
@looks_at_callers(logging.Logger.log)
def log(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    if len(args) < 2 or type(args[1].literal) is not int:
        raise GraphBreak("skipped", "logging.Logger.log")
    return _log(interp, "log", args[0], args[1].value, args[2:], kwargs)


@builtin(logging.Logger.isEnabledFor)
def is_enabled_for(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    level = args[1] if len(args) > 1 else kwargs.get("level", NONE)
    if type(level.literal) is int:
        enabled = _is_enabled(interp, args[0], level.value)
        if enabled is not None:
            return const(enabled)
    raise GraphBreak("skipped", "logging.Logger.isEnabledFor")


@builtin(logging.Logger.getEffectiveLevel)
def get_effective_level(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    logger: Any = args[0] if args else NONE
    if not _is_from_outside(logger) or type(logger.real) not in _LOGGERS:
        raise GraphBreak("skipped", "logging.Logger.getEffectiveLevel")
    level = logger.real.getEffectiveLevel()
    interp.context.guard(logger.source, "python", Answers(methodcaller("getEffectiveLevel"), level))
    return const(level)


@builtin(logging.getLogger)
def get_logger(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    """A logger that is there already."""
    name = args[0] if args else kwargs.get("name", NONE)
    if name.is_constant and not name.value:
        return interp.context.wrap(logging.root, constant(logging.root, "logging.root"))
    known = logging.Logger.manager.loggerDict
    if not name.is_constant or not isinstance(known.get(name.value), logging.Logger):
        raise GraphBreak("skipped", "logging.getLogger of a logger that is not there yet")
    table = attr(constant(logging.Logger.manager, "logging.Logger.manager"), "loggerDict")
    return interp.context.wrap(known[name.value], item(table, name.value))
