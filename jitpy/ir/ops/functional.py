"""In-place and out= overloads: the functional op that computes the same value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..op import NotCovered, Op
from .table import get


@dataclass(frozen=True, slots=True)
class Functional:
    """How to compute what a mutating overload writes.

    op         the functional op
    mutated    positions of the written arguments in the mutating overload's schema
    results    for each of them, which output of `op` is its new value; None where `op` has that one output
    keeps      whether `op` takes the written arguments as well (in-place), or not (out=)
    inplace_view  the overload changes the written argument's sizes and strides, not its data (`t_`, `squeeze_`, ...)

    The new value is converted to the written argument's dtype (`check_write` says whether eager allows that), and
    broadcast to nothing: its shape must be the written argument's, except for out= arguments, which are resized.
    """

    op: Op
    mutated: tuple[int, ...]
    results: tuple[int | None, ...]
    keeps: bool
    inplace_view: bool = False


_FOUND: dict[torch._ops.OpOverload, Functional] = {}

#: In-place overloads whose functional form has another name.
_RENAMED = {
    "aten.normal_.default": "aten.normal_functional.default",
    "aten.bernoulli_.float": "aten.bernoulli.p",
}

#: These change what memory a tensor has.
_NO_FORM = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_", "aten::swap_"})


def functional_of(overload: torch._ops.OpOverload | str) -> Functional:
    """The functional counterpart of a mutating overload. Raises NotCovered where there is none (`set_`, `resize_`)."""
    if isinstance(overload, str):
        overload = get(overload).target
    found = _FOUND.get(overload)
    if found is None:
        found = _FOUND[overload] = _find(overload)
    return found


def _find(overload: torch._ops.OpOverload) -> Functional:
    schema = overload._schema
    if schema.name in _NO_FORM:
        raise NotCovered(f"{overload} exchanges the tensor's memory")
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    if not written:
        raise NotCovered(f"{overload} writes no argument")
    namespace, name = schema.name.split("::")
    renamed = _RENAMED.get(str(overload))
    if renamed is not None:
        candidates = [get(renamed).target]
    else:
        candidates = []
        bare = name.removesuffix("_") if not name.startswith("__i") else f"__{name[3:]}"
        for candidate_name in dict.fromkeys((name, bare, f"{name}_functional", f"{bare}_functional", f"{name}_copy")):
            packet = getattr(getattr(torch.ops, namespace), candidate_name, None)
            if packet is not None:
                candidates += [getattr(packet, o) for o in packet.overloads()]
    # The overload of the same name is the best match where several take the same arguments.
    candidates.sort(key=lambda c: c._schema.overload_name != schema.overload_name)
    for candidate in candidates:
        other = candidate._schema
        if other.is_mutable:
            continue
        # An out= argument's old value is no operand; that of an in-place argument may be (`mul_`) or not (`fill_`).
        for keeps in (False,) if schema.arguments[written[0]].is_out else (True, False):
            wanted = [a for i, a in enumerate(schema.arguments) if keeps or i not in written]
            if _same_arguments(wanted, other.arguments, written if keeps else ()):
                return Functional(
                    get(candidate),
                    written,
                    _results(schema, other, written),
                    keeps,
                    torch.Tag.inplace_view in overload.tags,
                )
    raise NotCovered(f"{overload} has no functional form")


def _same_arguments(wanted: list[torch.Argument], offered: list[torch.Argument], written: tuple[int, ...]) -> bool:
    """Equal types, and equal names but for the written arguments (`self` is `input` here and there)."""
    return len(wanted) == len(offered) and all(
        str(a.type) == str(b.type) and (a.name == b.name or i in written)
        for i, (a, b) in enumerate(zip(wanted, offered, strict=True))
    )


def _results(
    schema: torch.FunctionSchema, other: torch.FunctionSchema, written: tuple[int, ...]
) -> tuple[int | None, ...]:
    """Which output holds the new value: functional forms return their own outputs first, then the written arguments."""
    count = len(other.returns)
    if count == 1:
        return (None,) * len(written)
    if count < len(written):
        raise NotCovered(f"{schema.name}: outputs do not match what is written")
    return tuple(range(count - len(written), count))


def check_write(target: torch.dtype, value: torch.dtype) -> None:
    """Raise eager's error where an in-place result may not be converted to the written argument's dtype."""
    if not torch.can_cast(value, target):
        names = [_NAMES.get(d, str(d).removeprefix("torch.").capitalize()) for d in (value, target)]
        raise RuntimeError(f"result type {names[0]} can't be cast to the desired output type {names[1]}")


_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.complex32: "ComplexHalf",
}
