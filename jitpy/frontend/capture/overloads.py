"""Which ATen overload a torch function calls for given kinds of arguments, and how the arguments map to its schema.

The answer depends on the kinds of the arguments only, so it is found once per combination: a binder picks the overload
by matching schemas, and torch itself confirms the choice by running the function on fake tensors up to its first ATen
call.
Where the two disagree the function is left to the derived path.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from jitpy.ir import SizeEnv
from jitpy.ir.interrupts import CaptureMode
from jitpy.ir.ops.oracle import SAMPLES
from jitpy.ir.trees import tree_map

from ...ir.algebra import sympy
from .fake_tensors import FakeTensor, make_fake
from .schemas import SchemaFacts, schema_facts
from .traced import TracedScalar, TracedTensor

OpOverload = torch._ops.OpOverload
_aten = torch.ops.aten

#: Overloads of torchscript's and of named tensors.
_NEVER_CALLED = ("_out", "dimname", "DimnameList", "hacked_twin")

#: Operators whose Tensor arguments also take Python numbers.
_NUMBERS_AS_TENSORS = frozenset(
    name + suffix
    for name in ("add", "div", "divide", "mul", "multiply", "sub", "subtract", "true_divide", "floor_divide", "fmod")
    for suffix in ("", "_")
)

#: ATen's names for operator methods that have others
_DUNDERS = {
    "__radd__": "add", "__rmul__": "mul", "__truediv__": "div", "__mod__": "remainder", "__pos__": "positive",
    "__invert__": "bitwise_not", "__iadd__": "add_", "__isub__": "sub_", "__imul__": "mul_", "__itruediv__": "div_",
    "__idiv__": "div_", "__imod__": "remainder_",
    **{f"__{name}__": name for name in (
        "add", "sub", "mul", "div", "matmul", "neg", "abs", "eq", "ne", "lt", "le", "gt", "ge")},
}

#: ATen's names for functions of `operator`
_OPERATORS = {
    operator.truediv: "div", operator.floordiv: "floor_divide", operator.mod: "remainder",
    operator.invert: "bitwise_not", operator.iadd: "add_", operator.isub: "sub_", operator.imul: "mul_",
    operator.itruediv: "div_", operator.and_: "__and__", operator.or_: "__or__", operator.xor: "__xor__",
}


@dataclass(slots=True)
class Plan:
    """How a torch function with arguments of these kinds calls one overload.

    slots     for each positional argument of the overload: an index into the call's positional arguments, a keyword, a
              `Packed` (the positional arguments from an index on, as one list), or a `Default`
    keywords  the overload's keyword-only arguments, as (name, slot)
    singles   positions at which a number stands for a list of one
    composite the overload is made of other overloads
    struct    the named tuple that the function returns, if it does
    lists     the type in which the function returns several tensors
    """

    facts: SchemaFacts
    slots: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    singles: frozenset[int]
    composite: bool
    struct: type | None
    lists: type

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The overload's arguments for a call."""
        found = [args[s] if type(s) is int else kwargs[s] if type(s) is str else s.of(args) for s in self.slots]
        for position in self.singles:
            found[position] = [found[position]]
        if self.keywords:
            return tuple(found), {
                name: args[s] if type(s) is int else kwargs[s] if type(s) is str else s.of(args)
                for name, s in self.keywords
            }
        return tuple(found), {}


@dataclass(frozen=True, slots=True)
class Packed:
    """The positional arguments from `start` on."""

    start: int

    def of(self, args: tuple[Any, ...]) -> Any:
        return list(args[self.start :])


@dataclass(frozen=True, slots=True)
class Default:
    """A default of the schema."""

    value: Any

    def of(self, args: tuple[Any, ...]) -> Any:
        return self.value


def signature(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The key of the choice of an overload, as a hashable; TypeError for an unhashable function."""
    if kwargs:
        return fn, tuple([_kind(a) for a in args]), tuple([(k, _kind(v)) for k, v in kwargs.items()])
    return fn, tuple([_kind(a) for a in args])


def _kind(value: Any) -> Any:
    kind = type(value)
    if kind is TracedTensor or kind is int or kind is float or kind is bool:
        return kind
    if kind is tuple or kind is list:
        return kind, *[_kind(v) for v in value]
    if kind is TracedScalar:
        return kind, value.kind
    if isinstance(value, sympy.Basic):
        return sympy.Expr
    return None if value is None else kind


def packet_of(fn: Any) -> torch._ops.OpOverloadPacket | OpOverload | None:
    """The ATen packet that a builtin of torch is the binding of."""
    if isinstance(fn, (OpOverload, torch._ops.OpOverloadPacket)):
        return fn if str(fn).startswith("aten.") else None
    if not isinstance(fn, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        return None
    name = _OPERATORS.get(fn) or _DUNDERS.get(fn.__name__, fn.__name__)
    return getattr(_aten, name, None)


def make_plan(env: SizeEnv, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan | None:
    """The plan for calls like this one, None where there is none that torch confirms."""
    packet = packet_of(fn)
    if packet is None:
        return None
    if isinstance(packet, OpOverload):
        candidates = [packet]
    else:
        candidates = [getattr(packet, name) for name in packet.overloads()]
        candidates = [
            c
            for c in candidates
            if not c._schema.overload_name.endswith(_NEVER_CALLED) and torch._C._dispatch_has_kernel(c.name())
        ]
    direct = isinstance(fn, (OpOverload, torch._ops.OpOverloadPacket))
    plans = [p for p in (_bind(c, args, kwargs, direct) for c in candidates) if p is not None]
    if not plans:
        return None
    probe = ask_torch(env, fn, args, kwargs)
    if probe is None:
        return None
    overload, real_args, real_kwargs = probe
    for plan in plans:
        if plan.facts.overload is overload and _agrees(plan, args, kwargs, real_args, real_kwargs):
            return plan
    return None


def _bind(overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], direct: bool) -> Plan | None:
    """Match a call against a schema as torch's argument parser does."""
    facts = schema_facts(overload)
    slots: list[Any] = []
    keywords: list[tuple[str, Any]] = []
    singles: set[int] = set()
    used = 0
    left = set(kwargs)
    for index, argument in enumerate(overload._schema.arguments):
        kind = str(argument.real_type)
        name = argument.name
        if not argument.kwarg_only and used < len(args):
            value = args[used]
            is_start = not direct and "List[int]" in kind and used + 1 < len(args) and index <= 1
            if is_start and all(map(_is_size, args[used:])):
                slots.append(Packed(used))
                used = len(args)
                continue
            slot: Any = used
            used += 1
        else:
            spelled = next((n for n in _spellings(name) if n in left), None)
            if spelled is not None:
                left.discard(spelled)
                value, slot = kwargs[spelled], spelled
            elif argument.has_default_value():
                value, slot = argument.default_value, Default(argument.default_value)
            elif argument.name in ("dtype", "layout", "device", "pin_memory") or kind.startswith("Optional"):
                value, slot = None, Default(None)
            else:
                return None
        if not isinstance(slot, Default):
            fits = _fits(kind, value, facts, argument, index)
            if not fits:
                return None
            if fits == "single":
                if argument.kwarg_only:
                    return None
                singles.add(len(slots))
        if argument.kwarg_only:
            if not isinstance(slot, Default):
                keywords.append((name, slot))
        else:
            slots.append(slot)
    if used < len(args) or left:
        return None
    while slots and isinstance(slots[-1], Default):
        slots.pop()
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd")
    returns = overload._schema.returns
    struct = None if direct or len(returns) < 2 else getattr(torch.return_types, facts.base_name, None)
    lists = list if direct and len(returns) == 1 else tuple
    return Plan(facts, tuple(slots), tuple(keywords), frozenset(singles), composite, struct, lists)


def _spellings(name: str) -> tuple[str, ...]:
    if name == "self":
        return "self", "input", "x"
    return {"dim": ("dim", "axis"), "keepdim": ("keepdim", "keepdims"), "other": ("other", "x2")}.get(name, (name,))


def _is_size(value: Any) -> bool:
    return type(value) is int or isinstance(value, sympy.Basic)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool, complex, TracedScalar) or isinstance(value, sympy.Basic)


def _is_float(value: Any) -> bool:
    return type(value) in (int, float)


#: type of the schema -> whether a payload can be passed for it; types of lists and of their items
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _is_size, "SymInt": _is_size, "float": _is_float, "number": _is_number,
    "bool": lambda value: type(value) is bool, "str": lambda value: isinstance(value, str),
    "ScalarType": lambda value: isinstance(value, torch.dtype), "Layout": lambda value: isinstance(value, torch.layout),
    "MemoryFormat": lambda value: isinstance(value, torch.memory_format),
    "Device": lambda value: isinstance(value, (torch.device, str)),
}
_ITEMS = {"List[int]": _is_size, "List[SymInt]": _is_size, "List[float]": _is_float}


def _fits(kind: str, value: Any, facts: SchemaFacts, argument: Any, index: int) -> Any:
    """Whether a payload can be passed for a schema type; 'single' for a number where a list of one is meant."""
    if kind.startswith("Optional["):
        return value is None or _fits(kind[len("Optional[") : -1], value, facts, argument, index)
    is_list = type(value) in (tuple, list)
    if kind == "Tensor":
        return type(value) is TracedTensor or \
            index > 0 and facts.base_name in _NUMBERS_AS_TENSORS and _is_number(value)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return is_list and bool(value) and all(
            type(v) is TracedTensor or v is None and "Optional" in kind for v in value)
    if kind not in _ITEMS:
        return kind in _FITS and _FITS[kind](value)
    if is_list:
        return all(map(_ITEMS[kind], value))
    return "single" if argument.N is not None and kind != "List[float]" and _is_size(value) else False


class _FirstCall(Exception):
    """Carries the first ATen call out of the probe."""

    def __init__(self, overload: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(str(overload))
        self.call = overload, args, kwargs


class _Probe(CaptureMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].device
        raise _FirstCall(func, args, kwargs or {})


def ask_torch(
    env: SizeEnv, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[OpOverload, Any, Any] | None:
    """The first ATen call of `fn`, composite ops included, with payloads in place of tensors. None if there is none."""
    fakes: dict[int, FakeTensor] = {}
    owners: dict[int, TracedTensor] = {}

    def convert(value: Any) -> Any:
        if type(value) is TracedTensor:
            if id(value) not in fakes:
                spec = value.builder.node(value, detached=True).tensor  # which op it is does not depend on history
                static = spec.with_(
                    shape=env.hints(spec.shape), stride=env.hints(spec.stride), offset=0, requires_grad=False
                )
                fakes[id(value)] = make_fake(static, True)
                owners[id(fakes[id(value)])] = value
            return fakes[id(value)]
        if type(value) is TracedScalar:
            return SAMPLES[value.kind]
        return env.hint(value) if isinstance(value, sympy.Basic) else value

    call_args, call_kwargs = tree_map(convert, (args, kwargs))
    try:
        # In inference mode composite ops arrive whole.
        with torch.inference_mode(), _Probe():
            fn(*call_args, **call_kwargs)
    except _FirstCall as first:
        overload, *given = first.call
        try:
            found = tree_map(lambda leaf: owners[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf, tuple(given))
            return overload, *found
        except KeyError:
            return None
    except Exception:
        return None  # the derived path finds out what the error is
    return None


def _agrees(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], real_args: Any, real_kwargs: Any) -> bool:
    """Whether the plan's arguments are those that torch passed."""
    own_args, own_kwargs = plan.arguments(args, kwargs)
    schema = plan.facts.overload._schema
    names = plan.facts.names

    def table(found_args: Any, found_kwargs: Any) -> dict[str, Any]:
        values = {a.name: a.default_value if a.has_default_value() else None for a in schema.arguments}
        return values | dict(zip(names, found_args, strict=False)) | found_kwargs

    own, real = table(own_args, own_kwargs), table(real_args, real_kwargs)
    return all(_same(own[n], real[n]) or own[n] is None and real[n] in _FACTORY_DEFAULTS.get(n, ()) for n in names)


#: The values that torch's bindings pass for options of factories that the caller left out.
_FACTORY_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "device": (torch.device("cpu"),),
    "pin_memory": (False,),
    "layout": (torch.strided,),
}


def _same(own: Any, real: Any) -> bool:
    if type(own) is TracedScalar:
        return bool(real == SAMPLES[own.kind])
    if type(own) is TracedTensor or type(real) is TracedTensor:
        return own is real
    if isinstance(own, sympy.Basic):
        return isinstance(real, int)
    if isinstance(own, (tuple, list)) and isinstance(real, (tuple, list)):
        return len(own) == len(real) and all(map(_same, own, real))
    if isinstance(own, str) and isinstance(real, torch.device):
        return torch.device(own) == real
    if isinstance(own, float) and own != own:
        return real != real
    return own == real
