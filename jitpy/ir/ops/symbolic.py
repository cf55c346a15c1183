"""The derived shape rule for symbolic sizes: torch's own shape code, run on sizes that are our expressions.

torch lets any object with the right methods stand behind a `SymInt`. `SizeNode` is one that holds a sympy expression
over a `SizeEnv`: arithmetic builds expressions, and whatever torch's code asks ("is this size 1?") is answered by
`SizeEnv.decide`, which records what it took for granted. Nothing needs translating afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..algebra import sympy
from ..interrupts import CaptureMode
from ..op import NotCovered, Op
from ..sizes import SizeEnv, SizeUnknown, floordiv, mod, simplify
from ..spec import Dim, TensorSpec
from ..trees import tree_leaves, tree_map
from . import derived, layout
from .oracle import dim_of


def _always(answer: Any) -> Callable[..., Any]:
    return lambda self: answer


def _relation(name: str) -> Callable[..., SizeNode]:
    """A truth value by sympy's class of that name."""
    return lambda *nodes: nodes[0]._new(getattr(sympy, name)(*(node.expr for node in nodes)), bool)


def _function(name: str, kind: type | None = None) -> Callable[..., SizeNode]:
    """A number by sympy's function of that name."""
    return lambda self: self._new(getattr(sympy, name)(self.expr), kind or self.kind)


def _arithmetic(operation: Callable[[Any, Any], Any], kind: type | None = None) -> Callable[..., SizeNode]:
    return lambda self, other: self._number(other, operation, kind)


class SizeNode:
    """The node behind a SymInt, SymFloat or SymBool: an expression, and the environment that answers for it."""

    __slots__ = ("env", "expr", "kind")

    def __init__(self, env: SizeEnv, expr: Any, kind: type = int) -> None:
        self.env = env
        self.expr = _exact(expr) if isinstance(expr, float) else sympy.sympify(expr)
        self.kind = kind

    def _new(self, expr: Any, kind: type = int) -> SizeNode:
        return SizeNode(self.env, expr, kind)

    # Kinds

    def is_int(self) -> bool:
        return self.kind is int

    def is_float(self) -> bool:
        return self.kind is float

    def is_bool(self) -> bool:
        return self.kind is bool

    is_symbolic = _always(True)
    is_nested_int = is_constant = _always(False)
    nested_int = constant_int = constant_bool = _always(None)

    def maybe_as_int(self) -> int | None:
        return int(self.expr) if self.kind is int and self.expr.is_Integer else None

    def has_hint(self) -> bool:
        return not self.env.is_unbacked(self.expr)

    @property
    def hint(self) -> Any:
        if self.kind is bool:
            return self.guard_bool("", 0)
        return self.env.hint(self.expr) if self.kind is int else float(self._value())

    _hint = hint

    @property
    def _expr(self) -> Any:
        return self.expr

    def require_hint(self, fallback: Any = None) -> Any:
        return self.hint

    def _value(self) -> Any:
        return self.expr.subs({s: info.hint for s, info in self.env.symbols.items()})

    def clone(self) -> SizeNode:
        return self

    def str(self) -> str:
        return str(self.expr)

    def _graph_repr(self) -> Any:
        return str(self.expr)

    __repr__ = __str__ = lambda self: str(self.expr)  # type: ignore[attr-defined]

    wrap_int = _new

    def wrap_float(self, value: float) -> SizeNode:
        return self._new(value, float)

    def wrap_bool(self, value: bool) -> SizeNode:
        return self._new(sympy.true if value else sympy.false, bool)

    # Questions

    def guard_bool(self, file: Any, line: Any) -> bool:
        if isinstance(self.expr, sympy.core.relational.Relational) and self.env.is_unbacked(self.expr):
            with self.env.generic():
                usual = self.env.known(self.expr)
            if usual is not None:  # whether there is nothing, or only one: as code that is written for symbols asks it
                return self._usually(usual)
        return self._decide(self.expr)

    def _decide(self, expr: Any) -> bool:
        if expr in (sympy.true, sympy.false):
            return expr == sympy.true
        if isinstance(expr, sympy.And):
            return all(self._decide(a) for a in expr.args)
        if isinstance(expr, sympy.Or):
            return any(self._decide(a) for a in expr.args)
        if isinstance(expr, sympy.Not):
            return not self._decide(expr.args[0])
        return layout.decide(self.env, expr, self.env.rule)

    bool_ = lambda self: self._decide(self.expr)  # noqa: E731

    def expect_true(self, file: Any, line: Any) -> bool:
        return self.env.require(self.expr, self.env.rule)

    def guard_or_false(self, file: Any, line: Any) -> bool:
        return self._usually(False)

    guard_size_oblivious = guard_or_false

    def guard_or_true(self, file: Any, line: Any) -> bool:
        return self._usually(True)

    def _usually(self, fallback: bool) -> bool:
        """The answer; of sizes that depend on data, the one for sizes of at least 2, else `fallback`, to be checked
        when the graph runs."""
        if not self.env.is_unbacked(self.expr):
            return self._decide(self.expr)
        answer = self.env.known(self.expr)
        if answer is None:
            with self.env.generic():
                answer = self.env.known(self.expr)
            answer = fallback if answer is None else answer
            if self.env.is_generic:
                return answer  # a fake tensor is being made
            self.env.require(self.expr if answer else sympy.Not(self.expr), self.env.rule)
        return answer

    def expect_size(self, file: Any, line: Any) -> bool:
        return self.env.require(sympy.Ge(self.expr, 0), "a size")

    def statically_known_true(self, file: Any, line: Any) -> bool:
        return self.env.known(self.expr) is True

    def guard_int(self, file: Any, line: Any) -> int:
        return self.env.specialize(simplify(self.expr), self.env.rule)

    def int_(self) -> int:
        return self.guard_int("", 0)

    def guard_float(self, file: Any, line: Any) -> float:
        for symbol in self.expr.free_symbols:
            self.env.specialize(symbol, self.env.rule)
        return float(self._value())

    # Arithmetic

    def sym_sum(self, terms: list[SizeNode]) -> SizeNode:
        return self._new(sum(term.expr for term in terms))

    add, sub, mul, pow = map(_arithmetic, (operator.add, operator.sub, operator.mul, operator.pow))
    pow_by_natural = float_pow = pow
    truediv = int_truediv = float_truediv = _arithmetic(operator.truediv, float)

    def _number(self, other: SizeNode, operation: Callable[[Any, Any], Any], kind: type | None = None) -> SizeNode:
        """The result of arithmetic. Where floats get rounded, it is a number, computed as floats are."""
        kind = kind or (float if float in (self.kind, other.kind) else int)
        if self.expr.has(sympy.Float) or other.expr.has(sympy.Float):
            return self._new(operation(self.guard_float("", 0), other.guard_float("", 0)), kind)
        return self._new(operation(self.expr, other.expr), kind)

    def floordiv(self, other: SizeNode) -> SizeNode:
        if float in (self.kind, other.kind):
            return self.truediv(other).floor().sym_float()
        return self._new(floordiv(simplify(self.expr), simplify(other.expr)))

    int_floordiv = floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        if layout.theorem(self.env, sympy.Lt(self.expr, other.expr)) and self.env.bounds(self.expr)[0] >= 0:
            return self
        return self._new(mod(simplify(self.expr), simplify(other.expr)))

    def neg(self) -> SizeNode:
        return self._new(-self.expr, self.kind)

    def pos(self) -> SizeNode:
        return self

    def trunc(self) -> SizeNode:
        return self.ceil() if self._new(sympy.Lt(self.expr, 0), bool).guard_bool("", 0) else self.floor()

    def sym_int(self) -> SizeNode:
        return self if self.kind is int else self.trunc()

    def sym_float(self) -> SizeNode:
        return self._new(self.expr, float)

    def is_integer(self) -> SizeNode:
        return self.wrap_bool(bool(self.expr.is_integer))

    abs, sym_sqrt = _function("Abs"), _function("sqrt", float)
    floor, ceil = _function("floor", int), _function("ceiling", int)

    def sym_max(self, other: SizeNode) -> SizeNode:
        return self if self.ge(other).guard_bool("", 0) else other

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self if self.le(other).guard_bool("", 0) else other

    # Relations

    eq, ne, lt, le, gt, ge, sym_and, sym_or, sym_not = map(
        _relation, ("Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not"))
    and_, or_ = sym_and, sym_or

    def sym_ite(self, then: SizeNode, otherwise: SizeNode) -> SizeNode:
        return then if self.guard_bool("", 0) else otherwise

    # Layout questions

    def is_contiguous(self, sizes: Any, strides: Any) -> SizeNode:
        return self.wrap_bool(layout.is_contiguous(*_exprs(sizes, strides)))

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> SizeNode:
        return self.wrap_bool(layout.is_dense(self.env, *_exprs(sizes, strides)))

    is_non_overlapping_and_dense_indicator = is_non_overlapping_and_dense

    def _is_channels_last(self, ndim: int, sizes: Any, strides: Any) -> SizeNode:
        shape, stride = _exprs(sizes, strides)
        return self.wrap_bool(len(shape) == ndim and layout.is_channels_last(shape, stride))

    def _has_channels_last_strides(self, ndim: int, sizes: Any, strides: Any) -> SizeNode:
        shape, stride = _exprs(sizes, strides)
        return self.wrap_bool(len(shape) == ndim and layout.is_channels_last_strides(self.env, shape, stride))

    is_channels_last_contiguous_2d = functools.partialmethod(_is_channels_last, 4)
    is_channels_last_contiguous_3d = functools.partialmethod(_is_channels_last, 5)
    is_channels_last_strides_2d = functools.partialmethod(_has_channels_last_strides, 4)
    is_channels_last_strides_3d = functools.partialmethod(_has_channels_last_strides, 5)


def _exact(value: float) -> sympy.Expr:
    """A float of few binary places as a fraction: what is computed of it and sizes is on the same side of each whole
    number as floats would be. 0.3 is not: 3 / 0.3 is 10 when rounded, and more than 10 when not."""
    above, below = value.as_integer_ratio() if math.isfinite(value) else (0, math.inf)
    return sympy.Rational(above, below) if below <= 1024 and abs(above) < 2**40 else sympy.Float(value)


def _exprs(sizes: Any, strides: Any) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    return tuple(map(dim_of, sizes)), tuple(map(dim_of, strides))


def number(env: SizeEnv, value: Dim | sympy.Basic) -> Any:
    """A size or another number as torch takes it."""
    if isinstance(value, int):
        return value
    if not value.is_integer:
        return torch.SymFloat(SizeNode(env, value, float))
    value = simplify(value)
    return value if isinstance(value, int) else torch.SymInt(SizeNode(env, value))


def fake_tensor(env: SizeEnv, spec: TensorSpec) -> torch.Tensor:
    """A tensor on no device with the layout of `spec`."""
    shape, stride = [number(env, s) for s in spec.shape], [number(env, s) for s in spec.stride]
    with env.generic():
        tensor = torch.empty_strided(shape, stride, dtype=spec.dtype, device="meta")
        if not (type(spec.offset) is int and spec.offset == 0):
            tensor = tensor.as_strided(shape, stride, number(env, spec.offset))
    tensor.fake_device = spec.device  # type: ignore[attr-defined]
    return tensor.requires_grad_() if spec.requires_grad else tensor


@contextlib.contextmanager
def shapes(env: SizeEnv | None, who: str) -> Iterator[None]:
    """Where ops are called on fake tensors over `env`; `who` asks what is asked of sizes. None: sizes are plain."""
    if env is None:
        yield
        return
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  (gives SymInt its operators; slow to import)

    with _SymbolicShapes(), env.asked_by(who):  # type: ignore[no-untyped-call]
        yield


def derive_symbolic(
    op: Op, env: SizeEnv, args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool, suspicious: bool = False
) -> derived.Derived:
    """As `derived.derive`, for arguments that mention symbols. Relations that were asked for are recorded in `env`."""
    derived.refuse_data_dependent(op)
    device = derived.common_device(op, args, kwargs)
    unbacked = env.unbacked_in_all((args, kwargs))

    def symbols(value: Any) -> Any:
        return tree_map(lambda leaf: number(env, leaf) if isinstance(leaf, sympy.Basic) else leaf, value)

    if derived.is_misreported(op, device, args):
        return _at_hints(op, env, args, kwargs, grad_enabled)
    if suspicious and unbacked:
        raise SizeUnknown(f"{op.name}: whether this raises depends on data")
    doubtful = derived.is_doubtful(op, device, args) and not unbacked
    if suspicious or doubtful:
        fixed, _ = _fixed_result(op, env, args, kwargs, grad_enabled)  # raises eager's error, if that is what it is
    try:
        with shapes(env, op.name):
            result, inputs = derived.call(
                op,
                tuple(map(symbols, args)),
                {k: symbols(v) for k, v in kwargs.items()},
                grad_enabled,
                functools.partial(fake_tensor, env),
            )
    except (NotCovered, SizeUnknown):
        raise
    except Exception as error:
        if unbacked:
            raise SizeUnknown(f"{op.name}: {type(error).__name__}: {error}") from error
        # Eager's own complaint, or shape code that does not take symbols: the static rule tells which.
        return _at_hints(op, env, args, kwargs, grad_enabled)
    found = derived.as_laid_out(op, env, args, derived.describe(result, inputs, device), device)
    if doubtful and _of_hints(env, found.spec) != _of_hints(env, fixed.spec):
        return _at_hints(op, env, args, kwargs, grad_enabled)
    return found


def _of_hints(env: SizeEnv, spec: Any) -> Any:
    """The relevant part of a spec, for the sizes of this call."""
    if isinstance(spec, tuple):
        return tuple(_of_hints(env, part) for part in spec)
    if not isinstance(spec, TensorSpec):
        return None
    steps = zip(map(env.hint, spec.shape), map(env.hint, spec.stride), strict=True)
    return spec.dtype, tuple((size, stride if size > 1 else 0) for size, stride in steps)


def _at_hints(
    op: Op, env: SizeEnv, args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool
) -> derived.Derived:
    """The result for the sizes of this call, which are pinned to their values if it is a good one."""
    result, used = _fixed_result(op, env, args, kwargs, grad_enabled)
    for symbol in sorted(used, key=str):
        env.specialize(symbol, f"{op.name} takes known sizes only")
    return result


def _fixed_result(
    op: Op, env: SizeEnv, args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool
) -> tuple[derived.Derived, set[Any]]:
    """The static rule's answer for the hinted sizes, and the symbols that it used."""
    used: set[Any] = set()

    def fixed(value: Any) -> Any:
        if isinstance(value, sympy.Basic):
            used.update(value.free_symbols)
            return env.hint(value)
        if type(value) is TensorSpec:
            shape, stride = tuple(map(fixed, value.shape)), tuple(map(fixed, value.stride))
            return value.with_(shape=shape, stride=stride, offset=fixed(value.offset))
        return value

    args, kwargs = tree_map(fixed, (args, kwargs))
    return derived.derive(op, env, args, kwargs, grad_enabled, suspicious=True), used


class _SymbolicShapes(CaptureMode):
    """Runs each op by Python shape code, as torch's C++ shape code takes only plain sizes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if environment((args, kwargs)) is None or func in _takes_symbols():
            return func(*args, **kwargs)
        rule = None if func.name() in ("aten::size", "aten::stride") else _python_rule(func)
        if rule is not None:
            with self:
                return rule(*args, **kwargs)
        with self:
            result = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result


def _python_rule(func: Any) -> Callable[..., Any] | None:
    """torch's shape function or decomposition for an op, in Python."""
    from torch._decomp import decomposition_table, meta_table

    rule = meta_table.get(func) or decomposition_table.get(func)
    if rule is None and func.namespace == "prims":
        rule = func.prim_meta_impl
    return rule


def _takes_symbols() -> frozenset[Any]:
    aten = torch.ops.aten
    return frozenset(
        (
            aten.empty.memory_format,
            aten.empty_strided.default,
            aten.as_strided.default,
            aten.as_strided_scatter.default,
            aten.zeros.default,
            aten.detach.default,
            aten.alias.default,
            aten.view_as_real.default,
            aten.view_as_complex.default,
        )
    )


def environment(tree: Any) -> SizeEnv | None:
    """The size environment of the symbols among an op's arguments, None if all sizes are plain."""
    for leaf in tree_leaves(tree):
        for size in (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,):
            if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return size.node.env
    return None
