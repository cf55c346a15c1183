"""Context variables: what one says is a place with guards; what the program sets it to is set behind the graph, unless
the program takes it back before."""

from __future__ import annotations

import contextvars
from typing import Any

from ...breaks import GraphBreak
from ...codegen.frame_code import Emitter, builds
from ...guards.source import slot
from ...interpreter.callees import builtin
from ...values import NONE, Interpreter, PyValue, Value

Args = list[Value]
Kwargs = dict[str, Value]


class _Unset:
    """The marker of a context variable without a value."""


_UNSET = _Unset()


class _Current:
    """Reads a context variable, with its own default or without."""

    def __init__(self, with_default: bool) -> None:
        self.with_default = with_default
        self.__name__ = "get()" if with_default else "<value here>"

    def __get__(self, variable: Any, owner: type | None = None) -> Any:
        if not self.with_default:
            return variable.get(_UNSET)
        try:
            return variable.get()
        except LookupError:
            return _UNSET


_CURRENT, _CURRENT_OR_DEFAULT = _Current(False), _Current(True)


class TokenValue(Value):
    """The result of `variable.set(value)`. `before`: the token of the set in front of it; `spent`: the program
    has taken it back."""

    __slots__ = ("before", "spent", "value", "variable")
    cls = contextvars.Token

    def __init__(self, variable: PyValue, value: Value, before: TokenValue | None) -> None:
        self.source = None
        self.variable = variable
        self.value = value
        self.before = before
        self.spent = False


def _last_set(interp: Interpreter, variable: PyValue) -> TokenValue | None:
    return next((token for token in reversed(interp.tokens) if token.variable is variable), None)


def _variable(args: Args) -> PyValue:
    variable = args[0]
    if not isinstance(variable, PyValue) or type(variable.obj) is not contextvars.ContextVar or variable.source is None:
        raise GraphBreak("unsupported_call", "a context variable that is made here")
    return variable


@builtin(contextvars.ContextVar.get)
def _get(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    variable = _variable(args)
    token = _last_set(interp, variable)
    if token is not None:
        return token.value
    assert variable.source is not None
    reader = _CURRENT_OR_DEFAULT if len(args) < 2 else _CURRENT
    now, place = reader.__get__(variable.obj), slot(variable.source, reader)
    if now is not _UNSET:
        return interp.context.wrap(now, place)
    if len(args) < 2:
        raise GraphBreak("unsupported_call", "ContextVar.get() of a variable that is not set")
    interp.context.guard(place, "id", _UNSET)
    return args[1]


@builtin(contextvars.ContextVar.set)
def _set(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    variable = _variable(args)
    token = TokenValue(variable, args[1], _last_set(interp, variable))
    interp.tokens.append(token)
    interp.context.writes += 1
    interp.context.touches += 1
    return token


@builtin(contextvars.ContextVar.reset)
def _reset(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    variable, token = _variable(args), args[1]
    if not isinstance(token, TokenValue) or _last_set(interp, variable) is not token:
        raise GraphBreak("unsupported_call", "ContextVar.reset() of what was set elsewhere")
    interp.tokens.remove(token)
    token.spent = True
    interp.context.writes += 1
    return NONE


@builds(TokenValue)
def _build_token(emitter: Emitter, token: TokenValue) -> None:
    """Set the variable, behind what was set before."""
    if token.before is not None and not token.before.spent and not emitter.has_built(token.before):
        emitter.load(token.before)
        emitter.emit("POP_TOP")
    emitter.call(_spent if token.spent else contextvars.ContextVar.set, lambda: emitter.load(token.variable),
                 lambda: emitter.load(token.value))
    emitter.remember(token)


def _spent(variable: contextvars.ContextVar[Any], value: Any) -> contextvars.Token[Any]:
    """A token that was used."""
    token = variable.set(value)
    variable.reset(token)
    return token
