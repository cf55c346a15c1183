"""Strings that are not known while tracing: texts from outside that change from call to call, and texts made of numbers
that the graph computes or that are symbolic.

A text made of numbers, or of a tensor, is a call that compiled code makes behind the graph, where somebody still needs
it. Code that only puts texts together goes on; code that looks at one breaks the graph there (`TraceContext.pin`), or
fixes the sizes it is made of. """

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...breaks import GraphBreak
from ...interpreter.constant_folding import fold_constants
from ...interpreter.operator_methods import own_methods
from ...values import ConstValue, TextValue, Value

if TYPE_CHECKING:
    from ...values import Interpreter

#: For each kind of number values that texts are made of while tracing: where one fails, the program's call may fail.
_SAMPLES: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (3, -3, 0, 1 << 62),
    float: (1.5, -0.0, float("inf"), float("nan")),
    complex: (1.5 + 0.5j, complex("nan")),
}
_ROUNDS = 4


def is_made_of_numbers(value: Value) -> bool:
    """Whether the string of a value (itself, or how it prints) is not known while tracing but can be made later."""
    return value.is_computed or value.is_text and value.source is None


def text(interp: Interpreter, function: Callable[..., str], *args: Value) -> Value:
    """`function(*args)`, of which some are made of numbers: a string, whatever the numbers are. Where that is not sure
    the numbers are fixed, or the graph breaks."""
    numbers = [is_made_of_numbers(arg) for arg in args]
    if any(numbers) and all(number or arg.is_constant for number, arg in zip(numbers, args, strict=True)):
        try:
            made = [function(*(_sample(arg, turn) for arg in args)) for turn in range(_ROUNDS)]
        except Exception:
            made = []
        if made and all(type(sample) is str for sample in made):
            return TextValue(made[0], None, function, args)
    known = [arg.part_of_text(interp.context) for arg in args]
    try:
        return ConstValue(function(*known))
    except Exception as error:
        raise interp.raise_real(error) from None


def _sample(value: Any, turn: int) -> Any:
    if value.is_constant:
        return value.value
    if value.tensor is not None:
        return torch.zeros(())
    if value.is_text:
        return value.function(*(_sample(arg, turn) for arg in value.args))
    samples = _SAMPLES[value.cls]
    return samples[turn % len(samples)]


# -- functions that make texts --------------------------------------------------------------------------------


def joined(*parts: str) -> str:
    """The text that an f-string makes of its parts."""
    return "".join(parts)


def separated(separator: str, *parts: str) -> str:
    """`separator.join(parts)`."""
    return separator.join(parts)


def percent(template: str, *items: Any) -> str:
    """`template % items`."""
    return template % items


def format_percent(interp: Interpreter, template: str | bytes, argument: Any) -> Value:
    """`"..." % argument` where all parts are constants, numbers, or tensors of one element printed as numbers."""
    items = argument.forced(interp) if argument.base is tuple else [argument]
    items = _as_numbers(interp, template, items)
    if any(map(is_made_of_numbers, items)):
        return text(interp, percent, ConstValue(template), *items)
    plain = [v.constant(interp) for v in items]
    alone = argument.base is not tuple and argument.tensor is None
    return fold_constants(interp, operator.mod, template, plain[0] if alone else tuple(plain))


#: a conversion of `%`: its key, what may take arguments of its own, its kind
_CONVERSION = re.compile(r"%(\([^)]*\))?([-#0 +]*(?:\*|\d*)(?:\.(?:\*|\d*))?)[hlL]?(.)", re.DOTALL)
#: what conversions of these kinds ask a tensor for
_ASKS = {**dict.fromkeys("eEfFgG", torch._C.TensorBase.__float__), **dict.fromkeys("diu", torch._C.TensorBase.__int__)}


def _as_numbers(interp: Interpreter, template: str | bytes, items: list[Value]) -> list[Value]:
    """The items with numbers in place of the tensors that are printed as such."""
    if not any(item.tensor is not None for item in items):
        return items
    found = [one for one in _CONVERSION.findall(template) if one[2] != "%"] if isinstance(template, str) else []
    if len(found) != len(items) or any(key or "*" in width for key, width, _ in found):
        raise GraphBreak("unsupported_op", "a tensor in a text")
    numbers = []
    for item, (_, _, kind) in zip(items, found, strict=True):
        if item.tensor is not None:
            ask = _ASKS.get(kind)
            if ask is None or item.traced.dtype.is_complex or any(size != 1 for size in item.traced.spec.shape):
                raise GraphBreak("unsupported_op", f"%{kind} of a tensor")
            own_methods(interp, item, ask.__name__)
            item = interp.record(ask, [item], {})
        numbers.append(item)
    return numbers


def formatted(names: tuple[str, ...]) -> Callable[..., str]:
    """`template.format(*args, **kwargs)` with the values of the keywords as the last arguments."""

    def call(template: str, *values: Any) -> str:
        count = len(values) - len(names)
        return template.format(*values[:count], **dict(zip(names, values[count:], strict=True)))

    return call
