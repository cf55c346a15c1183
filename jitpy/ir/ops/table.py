"""The registry behind the op table: `define` one op in one place, `get` it by name or overload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..op import NotCovered, Op
from .failing import facts_of

if TYPE_CHECKING:
    from ..graph import Node


class Invalid(NotCovered):
    """Raised by a rule for arguments that eager may well reject: the kernel itself is asked, if that is cheap."""


#: The fields that the definition of an op gives, by full name: fields of `Op`.
_ENTRIES: dict[str, dict[str, Any]] = {}

#: Further fields of ops: by full name, or by the name without overload for all overloads.
_DECLARED: dict[str, dict[str, Any]] = {}

#: Finished ops, by name and by overload.
_OPS: dict[Any, Op] = {}


def define(*names: str, **facts: Any) -> None:
    """Define one op, or several that share every fact: fields of `Op`. Ops that torch does not have need `target`."""
    for name in names:
        if name in _ENTRIES:
            raise ValueError(f"{name} is defined twice")
        _ENTRIES[name] = facts


def declare(*names: str, **facts: Any) -> None:
    """Facts that ATen ops share beside their definitions, or that need none. `index_put` means all its overloads,
    `div.Tensor_mode` one."""
    for name in names:
        _DECLARED.setdefault(f"aten.{name}", {}).update(facts)


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
        target = None if entry is None else entry.get("target")
        target = _overload(name) if target is None else target
    elif isinstance(op, torch._ops.OpOverload):
        name = str(op)
        entry = _ENTRIES.get(name)
        target = op
    else:
        raise TypeError(f"an op is a name or a torch overload, not {type(op).__name__}")
    found = _OPS.get(name)
    if found is None:
        found = _build(name, target, entry or {})
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


def _build(name: str, target: Any, entry: dict[str, Any]) -> Op:
    namespace, _, rest = name.partition(".")
    base = rest.partition(".")[0]
    facts: dict[str, Any] = {}
    if namespace == "aten":
        facts = {**facts_of(base), **_DECLARED.get(f"aten.{base}", {}), **_DECLARED.get(name, {})}
    facts |= {**entry, "target": target}
    if isinstance(target, torch._ops.OpOverload):
        schema = target._schema
        facts["is_view"] = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if facts["is_view"] and "kind" not in facts:
            facts["kind"] = "view"
        facts.setdefault("is_random", torch.Tag.nondeterministic_seeded in target.tags)
        facts["is_pure"] = facts.get("is_pure", True) and not schema.is_mutable
    facts["is_view"] = facts.get("is_view", False) or facts.get("kind") == "view"
    return Op(name, **facts)


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


def fill_value(node: Node) -> Any:
    """The argument or number that every element of a node's result is; None where the op's definition says of none."""
    if node.op.fill is None:
        return None
    args, kwargs = normalize(node.op, node.args, node.kwargs)
    return node.op.fill(*args, **kwargs)


__all__ = ["Invalid", "NotCovered", "declare", "define", "defined_names", "fill_value", "get", "normalize"]
