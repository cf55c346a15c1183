"""Which ATen overload a torch function calls for given kinds of arguments, and how the arguments map to its schema.

Torch itself says so. The function is called with marked arguments in an inference mode that stops at the first ATen
call: each tensor is a fake of its own, and each number differs from all others. So the arguments of the ATen call
show where each of them came from. The answer depends on kinds of arguments only, and is asked for once per combination.
"""

from __future__ import annotations

import operator
import types
from dataclasses import dataclass
from typing import Any

import torch

from jitpy.ir.interrupts import CaptureMode
from jitpy.ir.ops.fake_tensors import FakeTensor
from jitpy.ir.ops.schemas import SchemaFacts, schema_facts
from jitpy.ir.trees import tree_leaves

from ...ir.algebra import sympy
from .traced import TracedScalar, TracedTensor

OpOverload = torch._ops.OpOverload
_aten = torch.ops.aten

#: ATen's names for operator methods that have others
_DUNDERS = {
    "__radd__": "add", "__rmul__": "mul", "__truediv__": "div", "__mod__": "remainder", "__pos__": "positive",
    "__invert__": "bitwise_not", "__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_",
    "__idiv__": "div_", "__imod__": "remainder_",
    **{f"__{name}__": name for name in (
        "add", "sub", "mul", "div", "matmul", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge")},
}

#: torch's operator methods in Python that call one function
PYTHON_OPERATORS = {
    torch.Tensor.__rsub__: "rsub", torch.Tensor.__pow__: "pow", torch.Tensor.__rpow__: "pow",
    torch.Tensor.__floordiv__: "floor_divide", torch.Tensor.__rfloordiv__: "floor_divide",
    torch.Tensor.__rmod__: "remainder", torch.Tensor.__rmatmul__: "matmul",
}

#: ATen's names for functions of `operator`
_OPERATORS = {
    operator.truediv: "div", operator.floordiv: "floor_divide", operator.mod: "remainder",
    operator.invert: "bitwise_not", operator.iadd: "add_", operator.isub: "sub_", operator.imul: "mul_",
    operator.itruediv: "div_", operator.and_: "__and__", operator.or_: "__or__", operator.xor: "__xor__",
}

#: kinds of arguments whose values an answer depends on
_FIXED = frozenset({bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})

#: values that torch's bindings pass for options of factories that the caller left out
_FACTORY_DEFAULTS: dict[str, Any] = {"device": torch.device("cpu"), "pin_memory": False, "layout": torch.strided}


@dataclass(slots=True)
class Plan:
    """How a torch function with arguments of these kinds calls one overload.

    slots     for each positional argument of the overload: an index into the call's positional arguments, a keyword, a
              path to an item of one of them (a tuple), a list of slots, or a `Fixed` value
    keywords  the overload's keyword-only arguments, as (name, slot)
    composite the overload is made of other overloads
    struct    the named tuple that the function returns, if it does
    lists     the type in which the function returns several tensors
    """

    facts: SchemaFacts
    slots: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    composite: bool
    struct: type | None
    lists: type

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The overload's arguments for a call."""
        found = tuple([args[s] if type(s) is int else _filled(s, args, kwargs) for s in self.slots])
        return found, {name: _filled(s, args, kwargs) for name, s in self.keywords}


@dataclass(frozen=True, slots=True)
class Fixed:
    """A default of the schema, or a value that all calls of these kinds have."""

    value: Any


def _filled(slot: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kind = type(slot)
    if kind is Fixed:
        return slot.value
    if kind is list:
        return [_filled(item, args, kwargs) for item in slot]
    place, *path = slot if kind is tuple else (slot,)
    value = args[place] if type(place) is int else kwargs[place]
    for index in path:
        value = value[index]
    return value


def signature(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The key of the choice of an overload, as a hashable; TypeError for an unhashable function."""
    if kwargs:
        return fn, tuple([_kind(a) for a in args]), tuple([(k, _kind(v)) for k, v in kwargs.items()])
    return fn, tuple([_kind(a) for a in args])


def _kind(value: Any) -> Any:
    kind = type(value)
    if kind is TracedTensor:
        return kind if value.ndim else (value.dtype, value.spec.requires_grad)
    if kind is int or kind is float:
        return kind
    if kind is tuple or kind is list:
        return kind, *[_kind(v) for v in value]
    if kind is TracedScalar:
        return kind, value.kind
    if kind in _FIXED:
        return value
    return sympy.Expr if isinstance(value, sympy.Basic) else kind


def name_of(fn: Any) -> str | None:
    """ATen's name for what a builtin of torch is the binding of."""
    if isinstance(fn, (OpOverload, torch._ops.OpOverloadPacket)):
        namespace, _, rest = str(fn).partition(".")
        return rest.partition(".")[0] if namespace == "aten" else None
    if isinstance(fn, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        return _OPERATORS.get(fn) or _DUNDERS.get(fn.__name__, fn.__name__)
    return PYTHON_OPERATORS.get(fn)


@dataclass(frozen=True, slots=True)
class Reads:
    """Torch reads the numbers in tensors of one element: the places of these."""

    places: tuple[Any, ...]


class _Unmarkable(Exception):
    """An argument whose place cannot be told."""


class _Marks:
    """A call's arguments with marks in place of tensors and numbers, and the place of each mark."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.places: dict[Any, Any] = {}
        self.leaves: list[Any] = []
        self.fixed: list[Any] = []
        self.readable: dict[Any, Any] = {}
        self.read: dict[Any, None] = {}
        self.args = [self._marked(value, (place,)) for place, value in enumerate(args)]
        self.kwargs = {name: self._marked(value, (name,)) for name, value in kwargs.items()}

    def _marked(self, value: Any, path: tuple[Any, ...]) -> Any:
        kind = type(value)
        if kind is tuple or kind is list:
            mark = kind([self._marked(item, (*path, index)) for index, item in enumerate(value)])
        elif kind in _FIXED:
            self.fixed.append(value)
            return value
        else:
            mark = self._mark(value)
            self.leaves.append(_key(mark))
            if kind is TracedTensor and not value.ndim:
                self.readable[_key(mark)] = path
        self.places[_key(mark)] = path if len(path) > 1 else path[0]
        return mark

    def _mark(self, value: Any) -> Any:
        kind: Any = value.kind if type(value) is TracedScalar else type(value)
        if kind is TracedTensor:
            meta = torch.empty((2,) * value.ndim, dtype=value.dtype, device="meta")
            return FakeTensor(meta, value.spec.device, not value.ndim and value.spec.requires_grad)
        if kind is bool:
            return True  # the only one: see `are_all_in`
        number = 1009 + len(self.leaves)  # no default, and no number of anything
        if kind is int or isinstance(value, sympy.Basic):
            return number
        if kind is not float and kind is not complex:
            raise _Unmarkable
        return kind(number + 0.5)

    def slot(self, value: Any) -> Any:
        """The slot of an argument that torch passed."""
        place = self.places.get(_key(value))
        if place is not None:
            return place
        if isinstance(value, (tuple, list)):
            return [self.slot(item) for item in value]
        if isinstance(value, torch.Tensor):
            raise _Unmarkable
        return Fixed(value)

    def are_all_in(self, overload: OpOverload, passed: list[Any]) -> bool:
        """Whether torch passed on whatever it was given, and no truth value stands for two."""
        keys = set(map(_key, passed))
        if _key(True) in self.leaves and len([value for value in (*passed, *self.fixed) if value is True]) > 1:
            return False
        defaults = {_key(argument.default_value) for argument in overload._schema.arguments}
        keys.update(_key(str(value)) for value in passed if type(value) is torch.device)
        return keys.issuperset(self.leaves) and all(
            not value or _key(value) in keys or _key(value) in defaults for value in self.fixed)


def _key(value: Any) -> Any:
    """Equal for a mark and what torch makes of it: a list of a tuple, a float of an int."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_key, value))
    return (type(value), id(value) if isinstance(value, torch.Tensor) else value) \
        if isinstance(value, (torch.Tensor, bool)) else value


class _FirstCall(Exception):
    """Carries the first ATen call out of the probe."""

    def __init__(self, overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(str(overload))
        self.call = overload, args, kwargs


class _Probe(CaptureMode):
    def __init__(self, marks: _Marks) -> None:
        super().__init__()
        self.marks = marks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].device
        if [str(result.type) for result in func._schema.returns] == ["number"] and _key(args[0]) in self.marks.readable:
            self.marks.read[self.marks.readable[_key(args[0])]] = None
            return torch.ones((), dtype=args[0].dtype).item()
        raise _FirstCall(func, args, kwargs or {})


def make_plan(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | Reads | None:
    """The plan for calls like this one, None where torch calls no overload of that name with these arguments."""
    name = name_of(fn)
    try:
        marks = _Marks(args, kwargs)
        if name is None and not marks.readable:
            return None
        # In inference mode composite ops arrive whole.
        with torch.inference_mode(), _Probe(marks):
            fn(*marks.args, **marks.kwargs)
    except _FirstCall as first:
        overload, real_args, real_kwargs = first.call
    except Exception:
        return None  # the derived path finds out what the error is
    else:
        return None
    if marks.read:
        return Reads(tuple(marks.read))
    facts = schema_facts(overload)
    if facts.base_name != name or not marks.are_all_in(overload, list(tree_leaves((real_args, real_kwargs)))):
        return None
    try:
        slots = tuple(map(marks.slot, real_args))
        keywords = [(name, marks.slot(value)) for name, value in real_kwargs.items()]
    except _Unmarkable:
        return None
    filled_in = {name for name, slot in keywords if type(slot) is Fixed and kwargs.get(name) is None}
    if any(real_kwargs[name] != _FACTORY_DEFAULTS.get(name) for name in filled_in):
        return None
    direct = isinstance(fn, (OpOverload, torch._ops.OpOverloadPacket))
    returns = overload._schema.returns
    plan = Plan(
        facts,
        slots,
        tuple((name, slot) for name, slot in keywords if name not in filled_in),
        torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd"),
        None if direct or len(returns) < 2 else getattr(torch.return_types, facts.base_name, None),
        list if direct and len(returns) == 1 else tuple,
    )
    bound, named = plan.arguments(args, kwargs)
    types_of = {argument.name: str(argument.real_type) for argument in overload._schema.arguments}
    passed = {**dict(zip(facts.names, bound, strict=False)), **named}
    return plan if all(_takes(types_of[name], value) for name, value in passed.items()) else None


def _takes(kind: str, value: Any) -> bool:
    """Whether the numbers in an argument may be known at run time only: where kernels compute with them."""
    leaves = list(tree_leaves(value))
    if any(type(leaf) is TracedScalar for leaf in leaves):
        return kind in ("number", "Optional[number]", "Tensor")
    return "float" not in kind or not any(isinstance(leaf, sympy.Basic) for leaf in leaves)
