"""Attention with computed scores (`ir/flex_attention.py`) as a kernel of its own.

The graphs of scores and masks are lowered as all graphs are, and traced to scalar expressions over four axes: batch,
head, query and key. A backend prints these into its loops over blocks of queries and keys. Operands lie in memory; the
results are `Part`s of one `Attention`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..ir.flex_attention import BACKWARD, NAME, FlexAttention, FlexAttentionBackward
from ..ir.graph import CONSTANT, Graph, Node
from ..ir.op import NotCovered
from ..ir.spec import Dim, prod
from .expr import DOUBLE, FLOAT, INT, Expr, ScalarBuilder, compute_dtype, index_expressions, walk
from .index import Axis, Index, of, same
from .lower import Lowering, lowering
from .values import IndexTuple, Part, Pointwise, Stored, Trace, Value, View, base_of, strided

#: Queries or keys that a kernel has at least at a time.
_TILE = 16
#: Queries so few that programs share their keys, and rows that a program then has: of all heads that share keys.
_FEW, _MOST_ROWS = 16, 128
#: A place along an axis of any size, at most.
_MOST = (1 << 31) - 2
#: Programs that keep a GPU busy, keys that are worth one, and parts of a row of keys at most.
_PROGRAMS, _LEAST_KEYS, _MOST_PARTS = 264, 128, 64
#: Keys of which there may be so many at least, where their number changes.
_GROWN = 2048
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor in memory: `stride` and `offset` are over that of `value`."""

    value: Value
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    offset: Dim

    def step(self, axis: int) -> Dim:
        """The stride, 0 for an axis of one element, which all share."""
        return 0 if same(self.shape[axis], 1) else self.stride[axis]


@dataclass(frozen=True, slots=True)
class BlockLists:
    """For each row of blocks (of queries or of keys) how many blocks along the other side count, and which."""

    count: Operand
    indices: Operand


@dataclass(frozen=True, slots=True)
class Added:
    """An addition to the gradient of a capture for each query and key: `value` at `index` of a result's memory."""

    result: str
    value: Expr
    index: Index

    def roots(self) -> list[Expr]:
        return [self.value, *index_expressions(self.index)]


@dataclass(eq=False, slots=True)
class Gradients:
    """The part of a backward pass: `given` stands for the gradient of the changed score, `score` is that of the score
    itself."""

    output: Operand
    lse: Operand
    delta: Operand
    given: Expr
    score: Expr
    added: list[Added]


@dataclass(eq=False, slots=True)
class Attention:
    """One pass: what its kernel reads, computes and makes. `given` stands for the score in front of its change.

    masked, full    the lists of blocks that need the mask, and of those that do not: by rows of queries in a forward
                    pass; `turned_` by rows of keys. Without the first the mask is asked everywhere.
    results         by name: out, lse, top; query, key, value; and a number for each capture's gradient
    parts           how many programs share the keys of a query; `part_` results are what these find
    """

    target: FlexAttention
    axes: list[Axis]
    query: Operand
    key: Operand
    value: Operand
    masked: BlockLists | None
    full: BlockLists | None
    given: Expr
    score: Expr
    mask: Expr | None
    turned_masked: BlockLists | None = None
    turned_full: BlockLists | None = None
    gradients: Gradients | None = None
    results: dict[str, Part] = field(default_factory=dict)
    operands: list[Value] = field(default_factory=list)
    parts: int = 1

    @property
    def changes_score(self) -> bool:
        return self.score is not self.given

    @property
    def group(self) -> int:
        """How many heads of queries share one of keys."""
        heads, shared = self.query.shape[1], self.key.shape[1]
        assert type(heads) is int and type(shared) is int
        return heads // shared

    def roots(self) -> list[Expr]:
        """All expressions of the kernel."""
        found = [self.score, *([self.mask] if self.mask is not None else [])]
        if self.gradients is not None:
            found.append(self.gradients.score)
            for added in self.gradients.added:
                found += added.roots()
        return found

    def writes(self, members: Sequence[Value]) -> list[Value]:
        """The results that somebody reads."""
        return [part for name, part in self.results.items() if part in members or name.startswith("part_")]

    def list_operands(self) -> None:
        """Fill `operands`."""
        own: list[Operand] = [self.query, self.key, self.value]
        for lists in (self.masked, self.full, self.turned_masked, self.turned_full):
            own += [] if lists is None else [lists.count, lists.indices]
        if self.gradients is not None:
            own += [self.gradients.output, self.gradients.lse, self.gradients.delta]
        loaded = [expr.attr[0] for expr in walk(self.roots()) if expr.op == "load"]
        self.operands = list(dict.fromkeys([*(one.value for one in own), *loaded]))

    def part(self, name: str, shape: Sequence[Dim], dtype: torch.dtype) -> Part:
        """A result. All operands must be known."""
        made = self.results[name] = Part(self, tuple(shape), dtype, self.operands)
        return made


class BoundedBuilder(ScalarBuilder):
    """Leaves out checks and wraps of indices that are certainly in range, and makes floats of integers before their
    difference is taken: of queries and of keys, not of each pair. `place(axis)` is an index along an axis, as int32."""

    def place(self, axis: Axis) -> Expr:
        found = self.make("place", (), torch.int32, axis)
        found.axes = frozenset((axis,))
        return found

    def given(self, name: str, axes: Iterable[Axis]) -> Expr:
        """A float that the kernel has before it computes expressions."""
        found = self.make("given", (), FLOAT, name)
        found.axes = frozenset(axes)
        return found

    def make(self, op: str, args: tuple[Expr, ...], dtype: torch.dtype, attr: Any = None) -> Expr:
        if op == "lt" and args[1].op == "const" and args[1].attr == 0 and (low := _bounds(args[0])[0]) is not None:
            if low >= 0:
                return self.const(False, torch.bool)
        if op == "check" and _is_inside(args[0], args[1]):
            return args[0]
        if op == "cast" and _is_widened(args[0]):
            return self.cast(args[0].args[0], dtype)
        if op == "cast" and dtype is FLOAT and args[0].op in ("add", "sub") and _bounds(args[0]) != (None, None) and \
                all(map(_is_exact, args[0].args)):
            return super().make(args[0].op, tuple(self.cast(arg, FLOAT) for arg in args[0].args), FLOAT)
        if op in _NARROWED and any(map(_is_widened, args)):
            made = self._narrowed(op, args, dtype)
            if made is not None:
                return made
        return super().make(op, args, dtype, attr)

    def _narrowed(self, op: str, args: tuple[Expr, ...], dtype: torch.dtype) -> Expr | None:
        """An operation on 64 bits as one on 32, where all numbers certainly fit."""
        small = [arg if arg.dtype is torch.bool else arg.args[0] if _is_widened(arg) else
                 self.const(arg.attr, torch.int32) if arg.op == "const" and -1 << 31 <= arg.attr < 1 << 31 else None
                 for arg in args]
        if None in small:
            return None
        kind = dtype if dtype is torch.bool else torch.int32
        made = super().make(op, tuple(one for one in small if one is not None), kind)
        if kind is torch.bool or op == "where":
            return self.cast(made, dtype)
        return self.cast(made, dtype) if None not in _bounds(made) else None


#: operations that have the same results on 32 bits as on 64, if these hold them
_NARROWED = frozenset({"add", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "where", "lt", "le", "gt", "ge",
                       "eq", "ne"})


def _is_widened(expr: Expr) -> bool:
    """Whether it is a number of 32 bits as one of 64."""
    return expr.op == "cast" and expr.dtype is INT and expr.args[0].dtype is torch.int32


def _is_exact(integer: Expr) -> bool:
    """Whether float32 holds it and its double."""
    low, high = _bounds(integer)
    return low is not None and high is not None and -1 << 23 <= low and high <= 1 << 23


def _is_inside(index: Expr, size: Expr) -> bool:
    place = index.args[0] if index.op == "cast" else index
    if place.op == "place" and size.op == "size":
        return same(place.attr.size, size.attr)
    low, high = _bounds(index)
    return low is not None and high is not None and low >= 0 and size.op == "const" and high < size.attr


def _bounds(expr: Expr) -> tuple[int | None, int | None]:
    """Between which numbers an integer lies; None where that is not known."""
    if expr.dtype.is_floating_point or expr.dtype is torch.bool:
        return None, None
    if expr.op == "const":
        return expr.attr, expr.attr
    if expr.op == "place":
        size = expr.attr.size
        return 0, size - 1 if type(size) is int else _MOST
    parts = [_bounds(arg) for arg in expr.args]
    if expr.op == "cast":
        return _fitting(parts[0], expr.dtype)
    if expr.op not in ("add", "sub", "minimum", "maximum", "mul", "floordiv", "mod"):
        return None, None
    (a, b), (c, d) = parts
    if expr.op == "minimum":
        lows = None if a is None or c is None else min(a, c)
        return lows, min((x for x in (b, d) if x is not None), default=None)
    if expr.op == "maximum":
        highs = None if b is None or d is None else max(b, d)
        return max((x for x in (a, c) if x is not None), default=None), highs
    if a is None or b is None or c is None or d is None:
        return None, None
    if expr.op == "add":
        return _fitting((a + c, b + d), expr.dtype)
    if expr.op == "sub":
        return _fitting((a - d, b - c), expr.dtype)
    if expr.op == "mul":
        ends = [x * y for x in (a, b) for y in (c, d)]
        return _fitting((min(ends), max(ends)), expr.dtype)
    if c <= 0:
        return None, None
    if expr.op == "mod":
        return 0, d - 1
    return min(a // c, a // d), max(b // c, b // d)


def _fitting(bounds: tuple[int | None, int | None], dtype: torch.dtype) -> tuple[int | None, int | None]:
    """The bounds, unless some number between them wraps."""
    info, (low, high) = torch.iinfo(dtype), bounds
    if low is None or low < info.min or high is not None and high > info.max:
        return None, None
    return low, high


class _ElementTrace(Trace):
    """Evaluates a graph of one element. `known` are its inputs: expressions, or values of the graph around it."""

    def __init__(self, builder: ScalarBuilder, known: dict[Value, Any]) -> None:
        super().__init__(builder)
        self.known = known

    def resolve(self, value: Value, index: IndexTuple) -> Expr:
        found = self.known.get(value)
        if isinstance(found, Expr):
            return found
        if isinstance(found, Value):
            while isinstance(found, View):
                index, found = found.remap(index), found.base
            return self.load(found, index)
        if isinstance(value, Pointwise):
            return value.body(self, index)
        if isinstance(value, Stored) and value.node.op is CONSTANT and not value.shape:
            return self.e.const(value.node.args[0].item(), compute_dtype(value.dtype))
        raise NotCovered(f"{value.describe()} in a function of scores")


def _elements(low: Lowering, graph: Graph, inputs: Sequence[Any], builder: ScalarBuilder) -> list[Expr]:
    """The results of a graph of one element as expressions."""
    inner = Lowering(graph, low.scatters)
    inner.run()
    for node in inner.calls:
        raise NotCovered(f"{node.op} in a function of scores: {inner.reasons.get(node, '')}")
    known = {inner.values[node]: given for node, given in zip(graph.inputs, inputs, strict=True)}
    trace = _ElementTrace(builder, known)
    return [trace.read(inner.values[node], ()) for node in graph.outputs]


def _operand(low: Lowering, value: Value) -> Operand:
    """The value as it lies in memory; a copy where no strides describe that."""
    layout = strided(value)
    if layout is None:
        value = low.copy(value)
        layout = value.shape, value.stride, 0
    return Operand(base_of(value), *layout)


def _lists(low: Lowering, count: Value | None, indices: Value | None) -> BlockLists | None:
    return None if count is None or indices is None else BlockLists(_operand(low, count), _operand(low, indices))


def _attention(low: Lowering, target: FlexAttention, query: Value, key: Value, value: Value, blocks: Sequence[Any],
               captures: Sequence[Value]) -> tuple[Attention, BoundedBuilder]:
    """Code that both passes share."""
    if query.dtype not in _DTYPES or key.dtype is not query.dtype or value.dtype is not query.dtype:
        raise NotCovered("attention in this dtype")
    if any(type(size) is not int for size in (query.shape[1], query.shape[3], *key.shape[1::2], value.shape[3])):
        raise NotCovered("heads whose number or size changes")
    if any(size % _TILE for size in target.block):
        raise NotCovered("blocks of a mask that no tile divides")
    if not same(key.shape[0], query.shape[0]):
        raise NotCovered("keys that all of a batch share")
    builder = BoundedBuilder()
    axes = [Axis(query.shape[0]), Axis(query.shape[1]), Axis(query.shape[2]), Axis(key.shape[2], reduced=True)]
    places = [builder.cast(builder.place(axis), INT) for axis in axes]
    given = score = builder.given("score", axes)
    mask = None
    if target.score is not None:
        (score,) = _elements(low, target.score, (given, *places, *captures[:target.score_captures]), builder)
        score = builder.cast(score, FLOAT)
    if target.mask is not None:
        (mask,) = _elements(low, target.mask, (*places, *captures[target.score_captures:]), builder)
        mask = builder.cast(mask, torch.bool)
        if mask.op == "const" and mask.attr:
            mask = None
    q, k, v = (_operand(low, one) for one in (query, key, value))
    return Attention(target, axes, q, k, v, _lists(low, *blocks[:2]), _lists(low, *blocks[2:4]), given, score, mask), \
        builder


@lowering(NAME)
def _forward(low: Lowering, node: Node, query: Value, key: Value, value: Value, blocks: Sequence[Any],
             captures: Sequence[Value]) -> tuple[Value, ...]:
    target = node.op.target
    assert isinstance(target, FlexAttention)
    found, _ = _attention(low, target, query, key, value, blocks, captures)
    found.list_operands()
    rows = query.shape[:3]
    found.parts = _parts(low, found)
    if found.parts > 1:
        for name, last in (("part_out", value.shape[3:]), ("part_total", ()), ("part_top", ())):
            low.tag(found.part(name, (found.parts, *rows, *last), FLOAT), name)
    return tuple(low.tag(found.part(name, shape, dtype), name) for name, shape, dtype in (
        ("out", (*rows, value.shape[3]), query.dtype), ("lse", rows, FLOAT), ("top", rows, FLOAT)))


def _parts(low: Lowering, attention: Attention) -> int:
    """How many programs share the keys of few queries, such as those of one token: a power of two."""
    batch, heads, queries, _ = attention.query.shape
    shared, lists = attention.key.shape[1], attention.masked
    if low.scatters == "ordered" or type(queries) is not int or queries > _FEW or not same(queries, low.hint(queries)):
        return 1
    if attention.group * queries > _MOST_ROWS or attention.group > 1 and lists is not None and \
            not same(lists.count.shape[1], 1):
        return 1
    keys = attention.key.shape[2]
    if type(keys) is not int:
        keys = max(low.hint(keys), _GROWN)  # it may be longer in later calls
    wanted = _PROGRAMS // max(1, low.hint(batch) * int(shared))
    most = min(wanted, keys // _LEAST_KEYS, _MOST_PARTS)
    return 1 << most.bit_length() - 1 if most > 1 else 1


@lowering(BACKWARD)
def _backward(low: Lowering, node: Node, grad_out: Value, grad_lse: Value | None, out: Value, lse: Value, query: Value,
              key: Value, value: Value, blocks: Sequence[Any], captures: Sequence[Value]) -> tuple[Value, ...]:
    target = node.op.target
    assert isinstance(target, FlexAttentionBackward)
    if low.scatters == "ordered" and any(type(captures[number].numel) is not int for number, _ in target.reads):
        raise NotCovered("gradients of captures whose sizes change, on the CPU")
    if grad_out.dtype is not query.dtype:
        raise NotCovered("a gradient of another dtype")
    if target.reads and torch.are_deterministic_algorithms_enabled():
        raise NotCovered("results must repeat")
    found, builder = _attention(low, target.forward, query, key, value, blocks, captures)
    if low.scatters != "ordered":
        found.turned_masked, found.turned_full = _lists(low, *blocks[4:6]), _lists(low, *blocks[6:])
        if (found.masked is None) != (found.turned_masked is None) or \
                (found.full is None) != (found.turned_full is None):
            raise NotCovered("a block mask without the lists of queries")
    product = low.apply(lambda e, a, b: e.mul(a, b), [grad_out, out], out.shape, FLOAT, FLOAT)
    delta = low.reduce("sum", product, [3])
    if grad_lse is not None:
        delta = low.apply(lambda e, a, b: e.sub(a, b), [delta, grad_lse], delta.shape, FLOAT, FLOAT)
    given = score = builder.given("grad", found.axes)
    rest: list[Expr] = []
    if target.score_gradient is not None:
        places = [builder.cast(builder.place(axis), INT) for axis in found.axes]
        inputs = (found.given, *places, given, *captures[:target.forward.score_captures])
        score, *rest = _elements(low, target.score_gradient, inputs, builder)
        score = builder.cast(score, FLOAT)
    results, added = iter(rest), []
    for number, count in target.reads:
        if captures[number].dtype not in _DTYPES:
            raise NotCovered("a gradient of this dtype")
        one = builder.cast(next(results), FLOAT)
        added.append(Added(str(number), one, _flat(builder, [next(results) for _ in range(count)], captures[number])))
    outputs, statistics, deltas = (_operand(low, one) for one in (grad_out, lse, delta))
    found.gradients = Gradients(outputs, statistics, deltas, given, score, added)
    found.list_operands()
    made = [low.tag(found.part(name, one.shape, one.dtype), name)
            for name, one in (("query", query), ("key", key), ("value", value))]
    for number in sorted({number for number, _ in target.reads}):
        # one thread adds one after the other, atomic additions are spread over programs
        sums = DOUBLE if low.scatters == "ordered" else FLOAT
        part = found.part(str(number), captures[number].shape, sums)
        made.append(low.convert(low.tag(part, f"capture_{number}"), captures[number].dtype))
    return tuple(made)


def _flat(builder: BoundedBuilder, places: Sequence[Expr], capture: Value) -> Index:
    """The position of an element in row-major memory: indices count from the end where they are negative."""
    index = Index()
    for k, place in enumerate(places):
        at = builder.cast(place, INT)
        at = builder.where(builder.lt(at, 0), builder.add(at, builder.size(capture.shape[k])), at)
        index = index + of(at) * prod(capture.shape[k + 1:])
    return index


__all__ = ["Added", "Attention", "BlockLists", "Gradients", "Operand"]
