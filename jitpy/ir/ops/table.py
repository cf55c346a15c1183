"""The registry behind the op table: `define` one op in one place, `get` it by name or overload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..op import NotCovered, Op


class Invalid(NotCovered):
    """What a rule raises for arguments that eager may well reject: the kernel itself is asked, if that is cheap."""


#: What a hand-written entry says before its torch overload is looked up.
_ENTRIES: dict[str, _Entry] = {}

#: Finished ops, by name and by overload.
_OPS: dict[Any, Op] = {}


@dataclass(slots=True)
class _Entry:
    kind: str = "other"
    infer: Callable[..., Any] | None = None
    scalar: Callable[..., Any] | None = None
    decompose: Callable[..., Any] | None = None
    target: Callable[..., Any] | None = None
    is_random: bool | None = None
    is_pure: bool = True
    facets: dict[str, Any] = field(default_factory=dict)


def define(
    *names: str,
    kind: str = "other",
    infer: Callable[..., Any] | None = None,
    scalar: Callable[..., Any] | None = None,
    decompose: Callable[..., Any] | None = None,
    target: Callable[..., Any] | None = None,
    is_random: bool | None = None,
    is_pure: bool = True,
    **facets: Any,
) -> None:
    """Define one op, or several that share every facet. `target` is needed for ops that torch does not have.

    Facets read by the table itself:
      differentiable  False where eager's result never requires grad (comparisons, argmax, detach, ...)
      aliasing        `(env, *args, **kwargs) -> 'view' | 'copy' | 'self'`, for ops whose schema does not tell
      is_recordable   the target does more where autograd records it: it is called with grad mode off where none does
      operands        how many leading arguments `scalar` takes as expressions (pointwise ops)
      compute         `(*args, **kwargs) -> dtypes` that those operands are converted to (pointwise ops)
    """
    for name in names:
        if name in _ENTRIES:
            raise ValueError(f"{name} is defined twice")
        _ENTRIES[name] = _Entry(kind, infer, scalar, decompose, target, is_random, is_pure, dict(facets))


def defined_names() -> list[str]:
    """The names with a hand-written entry."""
    return sorted(_ENTRIES)


def get(op: str | torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> Op:
    """The one `Op` of a name such as `aten.add.Tensor`, or of a torch overload. Cached.

    A name without an overload part, and an overload packet, mean the `default` overload. Raises
    `KeyError` for a name that neither the table nor torch knows.
    """
    found = _OPS.get(op)
    if found is None:
        found = _make(op)
        _OPS[op] = found
    return found


def forget(overload: torch._ops.OpOverload) -> None:
    """Drop the entry that was made for an operator, which the program may have defined anew."""
    if str(overload) not in _ENTRIES:
        _OPS.pop(str(overload), None)
        _OPS.pop(overload, None)


def _make(op: Any) -> Op:
    if isinstance(op, torch._ops.OpOverloadPacket):
        op = op.default
    if isinstance(op, str):
        name = op if op in _ENTRIES or op.count(".") != 1 else f"{op}.default"
        entry = _ENTRIES.get(name)
        target = entry.target if entry is not None and entry.target is not None else _overload(name)
    elif isinstance(op, torch._ops.OpOverload):
        name = str(op)
        entry = _ENTRIES.get(name)
        target = op
    else:
        raise TypeError(f"an op is a name or a torch overload, not {type(op).__name__}")
    found = _OPS.get(name)
    if found is None:
        found = _build(name, target, entry or _Entry())
        _OPS[name] = found
        if isinstance(target, torch._ops.OpOverload):
            _OPS[target] = found
    return found


def _overload(name: str) -> torch._ops.OpOverload:
    parts = name.split(".")
    if len(parts) != 3:
        raise KeyError(f"no op {name!r}: expected namespace.name.overload")
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    overload = getattr(packet, parts[2], None) if packet is not None else None
    if not isinstance(overload, torch._ops.OpOverload):
        raise KeyError(f"no op {name!r} in the table or in torch")
    return overload


def _build(name: str, target: Any, entry: _Entry) -> Op:
    is_view = is_random = False
    is_pure = entry.is_pure
    if isinstance(target, torch._ops.OpOverload):
        schema = target._schema
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        is_random = torch.Tag.nondeterministic_seeded in target.tags
        is_pure = is_pure and not schema.is_mutable
    if entry.is_random is not None:
        is_random = entry.is_random
    kind = entry.kind if entry.kind != "other" or not is_view else "view"
    return Op(
        name,
        target,
        kind,
        entry.infer,
        entry.scalar,
        entry.decompose,
        is_view or kind == "view",
        is_random,
        is_pure,
        dict(entry.facets),
    )


def normalize(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as the table's rules, `scalar` and `decompose` take them: positional wherever the schema allows it.

    Keyword-only arguments stay keywords. Unknown keywords are left for the op to complain of.
    """
    if not kwargs or not isinstance(op.target, torch._ops.OpOverload):
        return tuple(args), kwargs
    rest = dict(kwargs)
    values = list(args)
    gaps: list[Any] = []
    for argument in op.target._schema.arguments[len(values) :]:
        if argument.kwarg_only:
            break
        if argument.name in rest:
            values += gaps
            gaps = []
            values.append(rest.pop(argument.name))
        elif argument.has_default_value():
            gaps.append(argument.default_value)
        else:
            break
    return tuple(values), rest


__all__ = ["Invalid", "NotCovered", "define", "defined_names", "get", "normalize"]
