"""Attributes of kinds, and of opaque objects of a Python type, that are not looked up as `object` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .base import Interpreter, Value, unsupported


def _unknown(interp: Interpreter, value: Value, name: str) -> Any:
    return NotImplemented


def _keep(interp: Interpreter, value: Value, name: str, new: Value) -> Any:
    raise unsupported(value, f".{name} = ...")


def _keep_all(interp: Interpreter, value: Value, name: str) -> Any:
    raise unsupported(value, f"del .{name}")


class Rule(NamedTuple):
    """`get(interp, value, name)`, `set(interp, value, name, new)` and `delete(interp, value, name)`. NotImplemented
    where the data model is to answer."""

    get: Callable[[Interpreter, Any, str], Any] = _unknown
    set: Callable[[Interpreter, Any, str, Value], Any] = _keep
    delete: Callable[[Interpreter, Any, str], Any] = _keep_all


#: a kind of Values, or the Python type of opaque objects -> the rule
RULES: dict[type, Rule] = {object: Rule()}


def rule_of(cls: type) -> Rule:
    """The rule of a type, or of the nearest of its bases that has one."""
    return RULES.get(cls) or next(RULES[base] for base in cls.__mro__ if base in RULES)


def attributes_of(*types: type, **handlers: Callable[..., Any]) -> None:
    """Register the rule of kinds or of Python types."""
    for one in types:
        RULES[one] = Rule(**handlers)
