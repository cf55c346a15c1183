"""In-place and out= overloads: the functional op that computes the same value.

Ops that a program registers have none as a rule. Theirs is made: it copies what is written to and calls the op on the
copies (`COPYING`), or, where a backend knows that nobody needs the old values, on the memory itself (`InPlace`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..op import NotCovered, Op
from .table import get

#: In-place overloads whose functional form has another name.
_RENAMED = {
    "aten.normal_.default": "aten.normal_functional.default",
    "aten.bernoulli_.float": "aten.bernoulli.p",
}

#: These change what memory a tensor has.
_NO_FORM = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_", "aten::swap_"})


def functional_of(overload: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The functional counterpart of a mutating overload. Raises NotCovered where there is none (`set_`, `resize_`).

    Its last results, or the only one, are the new values of the written arguments, in order. A new value is converted
    to the written argument's dtype (`check_write` says whether eager allows that), and broadcast to nothing: its shape
    must be the written argument's, except for out= arguments, which are resized. Those it does not take.
    """
    schema = overload._schema
    if schema.name in _NO_FORM:
        raise NotCovered(f"{overload} exchanges the tensor's memory")
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    if not written:
        raise NotCovered(f"{overload} writes no argument")
    namespace, name = schema.name.split("::")
    renamed = _RENAMED.get(str(overload))
    candidates: list[Any] = []
    if renamed is not None:
        candidates = [get(renamed).target]
    elif namespace in _TORCHS_OWN:  # a program's names say nothing
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
                if 1 < len(other.returns) < len(written):
                    raise NotCovered(f"{schema.name}: outputs do not match what is written")
                return candidate
    if namespace in _TORCHS_OWN:
        raise NotCovered(f"{overload} has no functional form")
    if any(str(schema.arguments[i].type) != "Tensor" for i in written):
        raise NotCovered(f"{overload} writes to as many tensors as it is given")  # see `copying_of`
    return _copying(overload, written, (None,) * len(written))


_TORCHS_OWN = frozenset({"aten", "prim", "prims", "quantized", "inductor", "_c10d_functional", "c10d"})

#: The namespace of functional forms that were made.
COPYING = "jitpy_copying"

_LIBRARY: list[torch.library.Library] = []
_TAKEN: set[str] = set()
#: Ops that were made, by overload and by how many tensors are written in place of each written argument.
_MADE: dict[Any, torch._ops.OpOverload] = {}

#: Where an argument is: its position or keyword, then its position in a list.
Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Making:
    """A plan's facts for those that make steps.

    hint    a size's usual value
    writes  the slots of inputs that are written
    view    makes a step that views a tensor in a slot (by sizes, strides and offset), and refers to its result
    """

    hint: Callable[[Any], int]
    device: torch.device
    writes: tuple[int, ...]
    view: Callable[[Any, Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class InPlace:
    """The facet `in_place` of an op that writes to copies of some arguments: how to write to the arguments themselves.

    call    takes the op's arguments, writes to those at `paths`, and returns the op's results but the new values
    paths   the written arguments; the op's last results are their new values, in this order
    step    makes steps of a plan that do the same, the last of which launches it, or none: called with the node's
            arguments, with the same as the plan has them, and with a `Making`
    """

    call: Callable[..., Any]
    paths: tuple[Path, ...]
    step: Callable[..., Any] | None = None


def copying_of(overload: torch._ops.OpOverload, given: Callable[[str], Any]) -> torch._ops.OpOverload:
    """The form that writes to copies, of an op of the program's and for arguments like these: `given(name)` is one of
    them, a list of tensors, a tensor or None. Raises NotCovered for torch's own ops."""
    schema = overload._schema
    if schema.name.split("::")[0] in _TORCHS_OWN:
        raise NotCovered(f"{overload} has no functional form")
    written = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    values = [given(schema.arguments[i].name) for i in written]
    counts = tuple(len(v) if isinstance(v, (list, tuple)) else -1 if v is None else None for v in values)
    return _copying(overload, written, counts)


def _copying(
    overload: torch._ops.OpOverload, written: tuple[int, ...], counts: tuple[int | None, ...]
) -> torch._ops.OpOverload:
    """An op that makes the results of `overload` that are no arguments, and new values of what it writes to. `counts`:
    for each written argument None (a tensor), -1 (nothing), or the length of a list."""
    found = _MADE.get((overload, counts))
    if found is not None:
        return found
    schema = overload._schema
    arguments = [schema.arguments[i] for i in written]
    if any(r.alias_info is not None and (not r.alias_info.is_write or str(r.type) != "Tensor") for r in schema.returns):
        raise NotCovered(f"{overload} returns a view")
    fresh = [r.alias_info is None for r in schema.returns]
    paths: list[Path] = []
    for place, argument, count in zip(written, arguments, counts, strict=True):
        key = argument.name if argument.kwarg_only else place
        paths += [(key,)] if count is None else [(key, item) for item in range(count)]
    names = {argument.name: place for place, argument in zip(written, arguments, strict=True)}

    def results(result: Any) -> tuple[Any, ...]:
        values = result if isinstance(result, tuple) else (result,)
        return tuple(r for r, is_fresh in zip(values, fresh, strict=False) if is_fresh)

    def call(*args: Any, **kwargs: Any) -> Any:
        # (torch hands over arguments that equal their defaults under their names)
        given: dict[Any, Any] = {**dict(enumerate(args)), **{names.get(k, k): v for k, v in kwargs.items()}}
        copies = []
        for key, *item in paths:
            key = names.get(key, key)
            value = given[key][item[0]] if item else given[key]
            copies.append(copied(value))
            if item:
                given[key] = list(given[key])
                given[key][item[0]] = copies[-1]
            else:
                given[key] = copies[-1]
        made: tuple[Any, ...] = ()
        if any(fresh) or not any(copy.is_meta for copy in copies):
            named = {schema.arguments[k].name if type(k) is int else k: v for k, v in given.items()}
            made = results(overload(**named))
        made = *made, *copies
        return made[0] if len(made) == 1 else made or None

    def in_place(*args: Any, **kwargs: Any) -> Any:
        made = results(overload(*args, **kwargs))
        return made[0] if len(made) == 1 else made or None

    name = "_".join((*schema.name.split("::"), schema.overload_name or "default",
                     *("n" if count == -1 else str(count) for count in counts if count is not None)))
    if name in _TAKEN:  # of an operator that was defined anew
        name = f"{name}_{len(_TAKEN)}"
    _TAKEN.add(name)
    returns = [str(r.type) for r, is_fresh in zip(schema.returns, fresh, strict=True) if is_fresh]
    returns += ["Tensor"] * len(paths)
    if not _LIBRARY:
        _LIBRARY.append(torch.library.Library(COPYING, "FRAGMENT"))
    taken, _, _ = str(schema).removeprefix(schema.name).rpartition(" -> ")
    taken = re.sub(r"Tensor\([^()]*!\)", "Tensor", taken[taken.index("("):])
    _LIBRARY[0].define(f"{name}{taken} -> ({', '.join(returns)})", tags=tuple(overload.tags))
    _LIBRARY[0].impl(name, call, "CompositeExplicitAutograd")
    made = getattr(getattr(torch.ops, COPYING), name).default
    if paths:
        get(made).in_place = InPlace(in_place, tuple(paths))
    _MADE[overload, counts] = made
    return made


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    copy = tensor.new_empty_strided(tensor.size(), tensor.stride())
    return copy if tensor.is_meta else copy.copy_(tensor)


def in_place_of(op: Op) -> InPlace | None:
    """How an op that writes to copies writes to its arguments themselves, if it is one."""
    return op.in_place


def _same_arguments(wanted: list[torch.Argument], offered: list[torch.Argument], written: tuple[int, ...]) -> bool:
    """Equal types, and equal names but for the written arguments (`self` is `input` here and there)."""
    return len(wanted) == len(offered) and all(
        str(a.type) == str(b.type) and (a.name == b.name or i in written)
        for i, (a, b) in enumerate(zip(wanted, offered, strict=True))
    )


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
