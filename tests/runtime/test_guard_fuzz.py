"""Random guard sets on random values: the native evaluator, the Python one and `explain` must agree."""

from __future__ import annotations

import collections
from typing import Any

import hypothesis
import hypothesis.strategies as st
import sympy
import torch

from jitpy.frontend.guards import source as src
from jitpy.frontend.guards.guard_set import GuardSet, TensorGuard
from jitpy.ir.divisions import FloorDiv, Modulo
from jitpy.runtime.guards import build_guards
from jitpy.runtime.native_build import load_native
from jitpy.runtime.size_relations import Relation


class Box:
    """An instance with attributes."""


class SlotBox:
    __slots__ = ("a", "b")


NAMES = ("a", "b", "c")
TENSORS = [
    torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(4), torch.zeros(4, dtype=torch.int64), torch.zeros(3, 2).t(),
    torch.zeros(4, requires_grad=True), torch.nn.Parameter(torch.zeros(4)), torch.zeros(()), torch.zeros(0, 3),
    torch.zeros(8)[2:6], torch.zeros(2, 2),
]  # fmt: skip
ATOMS = [
    None, True, False, 0, 1, 2, 3, -1, 10**20, 0.0, -0.0, float("nan"), 1.0, 1j, "a", "b", b"a", ..., (), (1, 2),
    (1, 2.0), (True, 2), frozenset([1]), frozenset([True, 2]), torch.float32, torch.device("cpu"), torch.Size([2, 3]),
    slice(1, 2), int, Box, len,
]  # fmt: skip


def build(kind: str, parts: list[Any]) -> Any:
    named = dict(zip(NAMES, parts, strict=False))
    if kind == "dict":
        return named
    if kind == "ordered":
        return collections.OrderedDict(named)
    if kind in ("box", "slots"):
        box = Box() if kind == "box" else SlotBox()
        for name, value in list(named.items())[: 3 if kind == "box" else 2]:
            setattr(box, name, value)
        return box
    return {"list": list, "tuple": tuple, "deque": collections.deque}[kind](parts)


KINDS = st.sampled_from(["dict", "ordered", "box", "slots", "list", "tuple", "deque"])
VALUES = st.recursive(
    st.one_of(st.sampled_from(ATOMS), st.sampled_from(TENSORS)),
    lambda inner: st.builds(build, KINDS, st.lists(inner, max_size=3)),
    max_leaves=6,
)

STEPS = st.one_of(
    st.tuples(st.just("attr"), st.sampled_from([*NAMES, "shape", "__class__"])),
    st.tuples(st.just("dict"), st.none()),
    st.tuples(st.just("item"), st.sampled_from([*NAMES, 0, 1, None])),
    st.tuples(st.just("index"), st.integers(-2, 2)),
    st.tuples(st.just("type"), st.none()),
    st.tuples(st.just("slot"), st.sampled_from([SlotBox.__dict__["a"], SlotBox.__dict__["b"]])),
    st.tuples(st.just("cell"), st.none()),
)
SYMBOLS = sympy.symbols("s0 s1", integer=True, positive=True)


@st.composite
def sources(draw: st.DrawFn) -> src.Source:
    root = draw(
        st.sampled_from(
            [
                src.LocalSource(0, "x"),
                src.LocalSource(1, "y"),
                src.ClosureSource(0, "f"),
                src.ClosureCellSource(1, "g"),
                src.GlobalsSource(),
                src.constant({"a": 1}, "table"),
            ]
        )
    )
    for kind, arg in draw(st.lists(STEPS, max_size=2)):
        root = src.StepSource(root, kind, arg)
    return root


def follow(source: src.Source, params: Any, globals_: Any, closure: Any) -> Any:
    """The value at a source, or None: to make guards that hold."""
    kind, arg = source.step
    try:
        if source.base is None:
            return {
                "local": lambda: params[arg], "closure": lambda: closure[arg].cell_contents,
                "closure_cell": lambda: closure[arg], "globals": lambda: globals_, "const": lambda: arg,
            }[kind]()  # fmt: skip
        base = follow(source.base, params, globals_, closure)
        return {
            "attr": lambda: getattr(base, arg), "dict": lambda: base.__dict__, "item": lambda: dict(base)[arg],
            "index": lambda: list.__getitem__(list(base), arg), "type": lambda: type(base),
            "slot": lambda: arg.__get__(base), "cell": lambda: base.cell_contents,
        }[kind]()  # fmt: skip
    except Exception:
        return None


def tensor_guard(draw: st.DrawFn, t: torch.Tensor) -> TensorGuard:
    sizes = draw(st.sampled_from(["static", "symbols", "expressions"]))
    shape: tuple[Any, ...] = tuple(t.shape)
    stride: tuple[Any, ...] = t.stride()
    if sizes != "static" and shape:
        entry: Any = draw(st.sampled_from(SYMBOLS))
        entry = entry if sizes == "symbols" else entry + 1
        shape = (entry, *shape[1:])
        if draw(st.booleans()):
            stride = (draw(st.sampled_from(SYMBOLS)), *stride[1:])
    low, high = draw(st.tuples(st.integers(0, 3), st.none() | st.integers(3, 6)))
    ranges = tuple((s, low, high) for s in SYMBOLS if draw(st.booleans()))
    return TensorGuard(
        type(t), t.dtype, t.device, t.requires_grad, shape, stride, torch._C._dispatch_keys(t).raw_repr(), ranges
    )


def argument(draw: st.DrawFn, kind: str, value: Any) -> Any:
    """An argument with which the guard often holds for `value`."""
    if kind == "type":
        return type(value)
    if kind in ("id", "eq"):
        return value
    if kind == "len":
        return len(value) if isinstance(value, (list, tuple, dict, collections.deque)) else draw(st.integers(0, 3))
    if kind == "keys":
        return tuple(value) if isinstance(value, dict) else NAMES[:2]
    if kind in ("haskey", "nokey"):
        return draw(st.sampled_from(NAMES))
    if kind == "same":
        return draw(sources())
    if kind == "overlap":
        return (draw(sources()),)
    if kind == "int":
        return draw(st.sampled_from(SYMBOLS))
    return draw(st.sampled_from([bool, callable, len])) if kind == "python" else None


@st.composite
def cases(draw: st.DrawFn) -> tuple[GuardSet, Any, Any, Any]:
    pool = [draw(VALUES) for _ in range(3)]
    params = (
        draw(st.sampled_from(pool)),
        draw(st.sampled_from(pool)),
        draw(st.integers(0, 6)),
        draw(st.integers(0, 6)),
    )
    closure = tuple(type((lambda: pool).__closure__[0])(v) for v in (pool[2], pool[0]))  # type: ignore[index]
    globals_ = {"a": pool[1], "b": 2}
    guards = GuardSet()
    for i, symbol in enumerate(SYMBOLS):  # expressions need their symbols bound
        if draw(st.booleans()):
            guards.add(src.LocalSource(2 + i, "nm"[i]), "int", symbol)
    for _ in range(draw(st.integers(1, 6))):
        source = draw(sources())
        value = follow(source, params, globals_, closure) if draw(st.integers(0, 9)) else draw(VALUES)
        kind = draw(
            st.sampled_from("type id eq len keys haskey nokey tensor same distinct overlap int python empty".split())
        )
        if kind == "tensor":
            value = value if isinstance(value, torch.Tensor) else draw(st.sampled_from(TENSORS))
            guards.add(source, kind, tensor_guard(draw, value))
            continue
        try:
            guards.add(source, kind, argument(draw, kind, value))
        except RuntimeError:
            continue  # the set keys constants by ==, which tensors inside them do not have
    if draw(st.integers(0, 3)):  # mostly sets of which each guard holds
        holds = [g.kind == "tensor" or build_guards([g], native=False).check(params, globals_, closure) for g in guards]
        guards = GuardSet([guard for guard, hold in zip(guards, holds, strict=True) if hold])
    return guards, params, globals_, closure


@hypothesis.given(cases())
@hypothesis.settings(max_examples=1000, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_evaluators_agree(case: tuple[GuardSet, Any, Any, Any]) -> None:
    guards, params, globals_, closure = case
    try:
        native, python = build_guards(guards, native=True), build_guards(guards, native=False)
    except ValueError as error:
        assert "which no guard binds" in str(error)
        return
    for C in (closure, None):
        for P in (params, (params[1], params[0], *params[2:]), params[:2]):
            answer = native.check(P, globals_, C)
            assert python.check(P, globals_, C) is answer, python.source_text
            failing = python.explain(P, globals_, C)
            assert (failing == []) is answer, (python.source_text, failing)
    one_by_one = [GuardSet([guard]) for guard in guards if guard.kind not in ("distinct", "tensor")]
    if native.check(params, globals_, closure) and len(one_by_one) == len(guards):
        assert all(build_guards(single, native=True).check(params, globals_, closure) for single in one_by_one)


def combine(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def divide(a: Any, b: Any) -> Any:
        return a / b if b != 0 else a

    return st.one_of(
        st.builds(lambda a, b: a + b, children, children),
        st.builds(lambda a, b: a * b, children, children),
        st.builds(divide, children, children),
        st.builds(lambda a, b: FloorDiv(a, b) if b != 0 and a.is_integer and b.is_integer else a, children, children),
        st.builds(lambda a, b: Modulo(a, b) if b != 0 and a.is_integer and b.is_integer else a, children, children),
        st.builds(lambda a, b: sympy.Max(a, b), children, children),
        st.builds(lambda a, b: sympy.Min(a, b), children, children),
        st.builds(lambda a, n: a**n, children, st.integers(2, 4)),
        st.builds(sympy.floor, children),
        st.builds(sympy.ceiling, children),
        st.builds(sympy.Abs, children),
    )


EXPRESSIONS = st.recursive(
    st.one_of(
        st.sampled_from(SYMBOLS), st.integers(-7, 7).map(sympy.Integer), st.sampled_from([sympy.Rational(1, 3)])
    ),
    combine,
    max_leaves=5,
)
COMPARISONS = [sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge]
NUMBERS = st.one_of(st.integers(1, 40), st.integers(1, 2**62))


@hypothesis.given(EXPRESSIONS, EXPRESSIONS, st.sampled_from(COMPARISONS), st.booleans(), st.lists(NUMBERS, min_size=2))
@hypothesis.settings(max_examples=1000, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_relations_agree(a: Any, b: Any, compare: Any, both: bool, numbers: list[int]) -> None:
    try:
        expr = compare(a, b)
        expr = sympy.And(expr, sympy.Or(SYMBOLS[0] > 3, SYMBOLS[1] < 9)) if both else expr
    except (TypeError, ValueError):
        return  # sympy cannot compare with what division by zero gives
    relation = Relation(expr)
    slots = {symbol: i for i, symbol in enumerate(SYMBOLS)}
    program = relation.program(slots)
    called: list[Any] = []

    def ask(*values: int) -> bool:
        called.append(values)
        return relation(*values)

    if not relation.symbols or program is None:
        return
    bind = tuple(("local", i, 0, i + 1, -1, (("int", (i, True, 0, 2**63 - 1)),)) for i in range(2))
    final = ("relation", (), tuple(slots[s] for s in relation.symbols), ask, program)
    guard = load_native("runtime").Guard(bind, (final,), (), (0, 0), (), 2)
    values = dict(zip(SYMBOLS, numbers[:2], strict=True))
    try:
        expected = relation(*(values[s] for s in relation.symbols))
    except (ZeroDivisionError, OverflowError):
        assert not guard.check(tuple(numbers[:2]), {}), (relation, values, called)
        return
    assert guard.check(tuple(numbers[:2]), {}) is expected, (relation, values, called)
    try:
        exact = expr.subs(values)
    except (TypeError, ValueError):
        return  # sympy folds in another order, and divides by zero on the way
    assert exact not in (sympy.true, sympy.false) or bool(exact) is expected, (relation, values)
