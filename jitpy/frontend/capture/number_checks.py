"""Arguments that torch's kernels refuse although shapes and promotion have nothing against them: numbers that do not
fit the dtypes that they meet, which a graph of ours would wrap around, and operands of a write.

Operations that raise are left to torch, in place, so that the program's own handlers see the error.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from jitpy.ir import Node, SizeEnv, TensorSpec
from jitpy.ir.failures import is_programs_own
from jitpy.ir.op import Op
from jitpy.ir.ops import table
from jitpy.ir.ops.oracle import error_of, in_small
from jitpy.ir.trees import tree_map

from ...ir.algebra import sympy
from . import known_numbers
from .traced import GraphBuilder, TracedScalar, TracedTensor, Uncapturable

#: floats that hold whatever number a program is likely to give them
_WIDE = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128})
#: errors about dtypes; about operands that are numbers; about numbers that say how something is computed
_REFUSED = re.compile("not support|not implemented for|not intended to support|not yet implemented|same dtype|"
                      "scalar type|dtype to be|mixed dtype|can't be cast|inputs to be")
_REFUSED_NUMBER = re.compile(f"{_REFUSED.pattern}|overflow|too big|too large|negative|out of range|out of bounds|"
                             "ZeroDivision|Boolean alpha")
_REFUSED_PARAMETER = re.compile(f"{_REFUSED_NUMBER.pattern}|must be|in range|between|[Ee]xpect|handles only")
_ANY_ERROR = re.compile("")
#: arguments that are one more operand, rather than what says how something is computed
_OPERANDS = frozenset({
    "self", "other", "alpha", "exponent", "value", "fill_value", "min", "max", "start", "end", "step", "weight",
    "scale",
})
_USUAL = frozenset({torch.float32, torch.float64})
#: arguments that name an axis, or a kind of norm
_NAMING = re.compile("dims?|dim[0-9]|axis|ord|p")
_LISTS = ("List[int]", "Optional[List[int]]")
#: arguments that are one size
_LENGTHS = ("n", "m", "steps")


def with_fixed_numbers(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], env: SizeEnv) -> Any:
    """The arguments with today's values for symbols that name something, an axis or a kind of norm: a graph is made
    for these."""
    if not env.symbols or not isinstance(overload, torch._ops.OpOverload):
        return args, kwargs
    if not any(isinstance(v, (sympy.Basic, list, tuple)) for v in (*args, *kwargs.values())):
        return args, kwargs

    def fixed(name: str, value: Any) -> Any:
        if not _NAMING.fullmatch(name):
            return value
        if isinstance(value, sympy.Basic):
            return env.specialize(value, f"{name} of {overload}")
        return type(value)(fixed(name, item) for item in value) if isinstance(value, (list, tuple)) else value

    arguments = overload._schema.arguments
    return (tuple(fixed(arguments[i].name, value) for i, value in enumerate(args)),
            {name: fixed(name, value) for name, value in kwargs.items()})


def check_call(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], env: SizeEnv) -> None:
    """Uncapturable where torch refuses a number among the arguments of an op for its value, or their dtypes."""
    if not isinstance(overload, torch._ops.OpOverload):
        return
    values = (*args, *kwargs.values())
    if any(isinstance(v, sympy.Basic) for v in values):
        _check_symbolic(overload, args, kwargs, env)
    dtypes = _dtypes(args, kwargs)
    if any(type(v) is float and not 0 <= v <= 1 for v in values) and _has_unusual_parameter(overload, args, kwargs):
        _check(overload, args, kwargs, _REFUSED_PARAMETER)
    if type(kwargs.get("alpha")) is bool:
        _check(overload, args, kwargs, _REFUSED_NUMBER)
    unusual = [v for v in _numbers(values) if type(v) is complex or not 0 <= v <= 127]
    if unusual and not (dtypes <= _WIDE and all(map(_fits, unusual))) and not (
            dtypes <= _ROOMY and all(type(v) is int and abs(v) < 1 << 31 for v in unusual)):
        _check(overload, args, kwargs, _REFUSED_NUMBER)
    if _has_unusual_dtypes(overload, args, kwargs, dtypes):
        error = _check(overload, args, kwargs, _REFUSED)
        if error is not None and table.get(overload).failure != "values" and not (
                len(dtypes) == 1 and dtypes <= _FLOATS):
            # Two elements an axis were too few, or too many.
            if sum(env.hint(spec.numel) for spec in _specs(values)) <= _FEW:
                _check(overload, args, kwargs, _ANY_ERROR, env)


def _has_unusual_parameter(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a float says how something is computed that may be refused: a limit that may not be negative, a share."""
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return False  # a trial would draw numbers
    given = {**dict(zip((argument.name for argument in overload._schema.arguments), args, strict=False)), **kwargs}
    return any(type(v) is float and not 0 <= v <= 1 and name not in _OPERANDS for name, v in given.items())


def _has_unusual_dtypes(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtypes: set[torch.dtype]) -> bool:
    """Whether a kernel of the CPU may refuse the dtypes of a functional op, which shape rules do not ask."""
    specs = _specs((*args, *kwargs.values()))
    device = specs[0].device if specs else kwargs.get("device")
    op = table.get(overload)
    if len(dtypes) <= 1 and dtypes <= _USUAL and not op.only_integers or overload.namespace != "aten" or \
            overload.is_view or device is not None and torch.device(device).type != "cpu":
        return False
    return not (dtypes <= _FLOATS and torch.Tag.nondeterministic_seeded in overload.tags)


def _check_symbolic(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], env: SizeEnv) -> None:
    """The same for numbers that change from call to call: they are to fit all dtypes that they meet."""
    arguments = overload._schema.arguments
    types = {a.name: str(a.type) for a in arguments}
    given = [(a, str(arguments[i].type)) for i, a in enumerate(args)] + [(a, types[n]) for n, a in kwargs.items()]
    numbers = [a for a, kind in given if isinstance(a, sympy.Basic) and kind in _NUMBERS]
    limits = [_limits(dtype) for dtype in _dtypes(args, kwargs) - _ROOMIEST] if numbers else []
    for number in numbers:
        if not limits and number.is_Symbol:
            continue  # guards have it fit 64 bits
        low, high = max((_INT64[0], *(a for a, _ in limits))), min((_INT64[1], *(b for _, b in limits)))
        fits = env.require(sympy.Ge(number, low), "a number's range") and \
            env.require(sympy.Le(number, high), "a number's range")
        if not fits:
            raise Uncapturable("unsupported_op", f"{overload} of a number that its tensors may not hold")


def check_traced_numbers(builder: GraphBuilder, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The same for numbers of the graph that kernels convert, where they meet dtypes of which a program's numbers may
    be out of range. The effect of changing floats on wide ones is not looked at: it would cost a guard for each."""
    values = (*args, *kwargs.values())
    if not any(type(v) is TracedScalar for v in values):
        return
    dtypes = {v.dtype for v in values if type(v) is TracedTensor} | {v for v in values if type(v) is torch.dtype}
    narrow = [dtype for dtype in dtypes - _WIDE if dtype is not torch.bool]
    arguments = overload._schema.arguments if narrow else ()
    for position, argument in enumerate(arguments):
        number = args[position] if position < len(args) else kwargs.get(argument.name)
        if type(number) is not TracedScalar or str(argument.type) not in _CONVERTED:
            continue
        came_from = _limits_of(number)
        for dtype in narrow:
            low, high = _limits(dtype)
            if number.kind is int and dtype is torch.int64:
                continue  # one that 64 bits do not hold is refused when the graph is called
            if came_from is not None and low <= came_from[0] and came_from[1] <= high:
                continue
            if not _refuses(overload, args, kwargs, number, number.kind(2 * high)):
                continue
            if not known_numbers.is_within(builder, number, low, high, dtype.is_floating_point):
                raise Uncapturable("unsupported_op", f"{overload} of a number that its tensors may not hold")


def _refuses(overload: Any, args: Any, kwargs: Any, number: TracedScalar, instead: float) -> bool:
    """Whether torch refuses a call with another number in place of this one."""
    args, kwargs = tree_map(lambda value: instead if value is number else value, (args, kwargs))
    return _error(overload, in_small(args), {name: in_small(value) for name, value in kwargs.items()}) is not None


def _limits_of(number: TracedScalar) -> tuple[int, int] | None:
    """Between what a number lies that an element of a tensor brings, or that is a truth value."""
    if number.kind is bool:
        return 0, 1
    source = number.node.args[0] if number.node.op.target is _ITEM else None
    if type(source) is not Node or type(source.spec) is not TensorSpec or source.spec.dtype.is_complex:
        return None
    return _limits(source.spec.dtype) if source.spec.dtype is not torch.bool else (0, 1)


def _dtypes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[torch.dtype]:
    values = (*args, *kwargs.values())
    return {spec.dtype for spec in _specs(values)} | {v for v in values if type(v) is torch.dtype}


def _specs(values: Iterable[Any]) -> list[TensorSpec]:
    return [v.spec for v in values if type(v) is Node and type(v.spec) is TensorSpec]


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    """The least and the largest int that a dtype holds."""
    if dtype is torch.bool:
        return _INT64
    info = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return int(info.min), int(info.max)


def check_written(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Uncapturable where torch refuses dtypes of the operands of an in-place op, complex values for real ones, or the
    bounds of random numbers."""
    values = (*args, *kwargs.values())
    specs = _specs(values)
    if not specs:
        return
    if not specs[0].dtype.is_complex and overload is not _COPY and any(spec.dtype.is_complex for spec in specs):
        raise Uncapturable("unsupported_op", f"{overload} of complex numbers to real ones")
    if torch.Tag.nondeterministic_seeded in overload.tags:
        unusual = not {spec.dtype for spec in specs} <= _ORDINARY
        is_named = "generator" in (a.name for a in overload._schema.arguments)
        if is_named and (unusual or any(True for _ in _numbers(values))):
            _check(overload, args, {**kwargs, "generator": _generator()}, _REFUSED_PARAMETER)
        return
    usual = len({spec.dtype for spec in specs}) == 1 and specs[0].dtype in _USUAL
    if usual and not table.get(overload).only_integers or specs[0].device.type != "cpu":
        return
    _check(overload, args, kwargs, _REFUSED)


def check_converted(overload: Any, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any],
                    dtypes: set[torch.dtype]) -> None:
    """Uncapturable unless an out= argument of another dtype receives the result as it is, converted: so it does from
    elementwise kernels, which compute in a dtype that only their operands decide."""
    if op.kind != "pointwise" or any(dtype.is_complex for dtype in dtypes):
        raise Uncapturable("unsupported_op", "out= of another dtype, which only some kernels convert to")
    _check(overload, args, kwargs, _ANY_ERROR)


#: elements that a call may have which is tried in its own sizes
_FEW = 1 << 20
_FLOATS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
#: what most kernels take: no complex numbers, floats of 8 bits or wide unsigned integers
_ORDINARY = _FLOATS | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_COPY = torch.ops.aten.copy_.default
_ITEM = torch.ops.aten.item.default


@functools.cache
def _generator() -> torch.Generator:
    """The generator that tried calls draw from."""
    return torch.Generator()


def _check(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refused: re.Pattern[str],
           env: SizeEnv | None = None) -> str | None:
    """Uncapturable where torch raises an error of this kind for tensors like the program's, small ones unless `env`
    tells their sizes; another error is returned."""
    arguments = overload._schema.arguments
    hint = None if env is None else env.hint
    lengths = {a.name for a in arguments
               if a.name in _LENGTHS or str(a.type) in _LISTS and not _NAMING.fullmatch(a.name)} if env is None else ()

    def small(name: str, value: Any) -> Any:
        if name in lengths:
            value = [2] * len(value) if isinstance(value, (tuple, list)) else 2 if type(value) is int else value
        return in_small(value, hint)

    given = tuple([small(a.name, value) for a, value in zip(arguments, args, strict=False)])
    error = _error(overload, given, {name: small(name, value) for name, value in kwargs.items()})
    if error is not None and refused.search(error):
        raise Uncapturable("unsupported_op", f"{overload} raises: {error}")
    return error


#: dtypes that hold all ints of 64 bits, rounded perhaps
_ROOMIEST = _WIDE | {torch.int64}
_INT64 = -(1 << 63), (1 << 63) - 1
#: an argument that is one number, or may be
_NUMBERS = ("number", "Optional[number]", "Tensor", "Optional[Tensor]")
#: those of them that a kernel converts to the tensors' dtype
_CONVERTED = _NUMBERS[:2]
_ROOMY = _WIDE | {torch.int32, torch.int64}


def _fits(value: complex) -> bool:
    if isinstance(value, complex):
        return False
    return abs(value) < 3e38 if type(value) is not int else -(1 << 63) <= value < 1 << 63


def _numbers(values: Iterable[Any]) -> Iterator[Any]:
    return (v for v in values if type(v) is int or type(v) is float or type(v) is complex)


def _error(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The first line of torch's error for these arguments."""
    if overload._schema.name == "aten::arange" and not _is_short(args):
        if not all(map(_fits, _numbers(args))):
            return "overflow"
        overload, args = torch.ops.aten.arange.default, (2,)
    error = error_of(overload, args, kwargs)
    return error and error.partition("\n")[0]


def _is_short(bounds: tuple[Any, ...]) -> bool:
    """Whether `arange` makes few numbers, so that it may be tried."""
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    try:
        return all(map(_fits, (start, end, step))) and 0 <= (end - start) / step < 1000
    except (TypeError, ZeroDivisionError, OverflowError):
        return False


def check_devices(node: Node) -> None:
    """Uncapturable where torch refuses tensors on several devices, for which shape rules do not ask."""
    op, by_place = node.op, node.op.from_cpu == "places"
    target: Any = op.target
    if not isinstance(target, torch._ops.OpOverload) or is_programs_own(op) or op.from_cpu == "any":
        return
    if by_place or op.is_elementwise or torch.Tag.pointwise in target.tags:
        specs = [one.spec for one in ((node.args[0], *node.args[2:]) if by_place else node.input_nodes())
                 if isinstance(one, Node) and isinstance(one.spec, TensorSpec)]
        devices = {spec.device for spec in specs if spec.shape or spec.device.type != "cpu"}
        if len(devices) == 1 and not (by_place and specs[0].device.type == "cpu"):
            return
    raise Uncapturable("unsupported_op", f"{target} of tensors on several devices")
