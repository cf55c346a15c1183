"""Loop nests: one kernel, ready for a backend to print.

A `Kernel` has loop axes, stores and reductions, all as expressions over the axes. Its `style` says how the loops run:

    map      no reductions: parallel axes, the vector axis innermost
    rows     reductions along the vector axis: for each point of the parallel axes, one inner loop per stage
    columns  reductions across the vector axis: blocks of neighbouring results are computed side by side
    whole    one stage that reduces everything: chunks are reduced on all threads, then combined
    scan     a running combination along one axis
    batch    kernels of style map that do the same to different tensors (`parts`), see `batches.py`
    beside   kernels that do different things (`parts`), as one launch of a GPU
    product  matrix products: sums over the inner axis of products of tiles, see `products.py`
    scatter  a store that adds, at computed places: the reduced axes are those along which places may repeat
    flex     attention with computed scores (`attention`), see `flex.py`

A kernel of style rows may also reduce the columns that its rows are made of (`Kernel.columns`): the gradients of a
layer norm's weight and bias beside that of its input, a bias' gradient behind a softmax.

Stages: an expression's stage is the number of reductions that must be complete before it. Loops of one stage are one
loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ..ir.graph import Node
from ..ir.sizes import SizeEnv
from ..ir.spec import Dim, contiguous_stride, prod
from .expr import Expr, ScalarBuilder, children, compute_dtype, index_expressions, index_of, walk
from .fuse import Group
from .index import Axis, Index, Quotient, flatten, of, same, unflatten
from .space import Extent, Misaligned, Signature, Space
from .values import Part, Pointwise, Product, Reduction, Scan, Scatter, Trace, Value

if TYPE_CHECKING:
    from .flex import Attention


@dataclass(eq=False, slots=True)
class Store:
    """`value[index] = expr`, where `index` is the position in the value's memory."""

    value: Value
    index: Index
    expr: Expr


@dataclass(eq=False, slots=True)
class Reduce:
    """Combine `expr` over the reduced axes. `position` is the element's number along them, for argmax and argmin."""

    value: Reduction | Scan
    kind: str
    expr: Expr
    dtype: torch.dtype
    result: Expr
    position: Index | None = None


@dataclass(eq=False, slots=True)
class Kernel:
    """One loop nest. `axes` are the parallel axes outside in, then the reduced ones; `vector` is one of them.

    `columns` are reductions along the parallel axes, with one result for each point of the reduced ones; their
    expressions belong to stages as those of `reductions` do. `column_stores` write what is made of these results, once
    all rows are done."""

    name: str
    style: str
    axes: list[Axis]
    vector: Axis | None
    stores: list[Store]
    reductions: list[Reduce]
    env: SizeEnv
    members: list[Value]
    stage: dict[Expr, int] = field(default_factory=dict)
    #: inputs that nothing in the graph writes to
    steady: frozenset[Value] = frozenset()
    #: memory operands in order of first use: reads, then writes
    reads: list[Value] = field(default_factory=list)
    writes: list[Value] = field(default_factory=list)
    #: the graph nodes it computes, in order
    nodes: list[Node] = field(default_factory=list)
    #: the kernels of a batch
    parts: list[Kernel] = field(default_factory=list)
    #: what a scatter's result starts from; None: zeros
    start: Value | None = None
    #: whether a scatter adds; else it writes
    adds: bool = True
    columns: list[Reduce] = field(default_factory=list)
    column_stores: list[Store] = field(default_factory=list)
    attention: Attention | None = None

    @property
    def parallel(self) -> list[Axis]:
        return [a for a in self.axes if not a.reduced]

    @property
    def reduced(self) -> list[Axis]:
        return [a for a in self.axes if a.reduced]

    def part_of(self, value: Value) -> Kernel:
        """The kernel that writes `value`: one of a batch, or the kernel itself."""
        return next((part for part in self.parts if value in part.writes), self)

    def hint(self, size: Dim) -> int:
        return self.env.hint(size)

    @property
    def points(self) -> Dim:
        """How many times the body of the innermost loop runs."""
        return prod(tuple(a.size for a in self.axes))

    @property
    def all_stores(self) -> list[Store]:
        return self.stores + self.column_stores

    @property
    def all_reductions(self) -> list[Reduce]:
        return self.reductions + self.columns

    def roots(self) -> list[Expr]:
        places = [e for s in self.all_stores for e in index_expressions(s.index)]
        own = self.attention.roots() if self.attention is not None else []
        return [r.expr for r in self.all_reductions] + [s.expr for s in self.all_stores] + places + own


class KernelTrace(Trace):
    """Evaluates a group's members at one point of its space."""

    def __init__(self, group: Group, members: set[Value], inlined: set[Value], space: Space) -> None:
        super().__init__(ScalarBuilder())
        self.group = group
        self.members = members
        self.inlined = inlined
        self.space = space
        self.reductions: dict[Value, Reduce] = {}
        self.visited: dict[Value, None] = {}

    def place(self, value: Value) -> tuple[Index, ...]:
        return place(self.space, value.shape, self.group.extent(value))

    def resolve(self, value: Value, index: tuple[Index, ...]) -> Expr:
        if isinstance(value, Pointwise) and (value in self.inlined or value in self.members):
            self.visited[value] = None
            return _named(value.body(self, index), value)
        if isinstance(value, Reduction) and value in self.members:
            return self.reduce(value)
        return _named(self.load(value, index), value)

    def reduce(self, value: Reduction) -> Expr:
        found = self.reductions.get(value)
        if found is None:
            self.visited[value] = None
            before, self.mask = self.mask, None
            index = place(self.space, value.source_shape, Extent.POINTS)
            expr = value.body(self, index)
            self.mask = before
            if not any(a.reduced for a in self.space.axes):  # one element each
                found = self.reductions[value] = Reduce(value, value.kind, expr, expr.dtype, self._of_one(value, expr))
                return found.result
            position = None
            if value.kind.startswith("arg"):
                dims = sorted(value.dims)
                strides = contiguous_stride(tuple(value.source_shape[d] for d in dims))
                position = flatten(tuple(index[d] for d in dims), strides)
            result = self.e.make("reduced", (), compute_dtype(value.dtype), value)
            result.axes = frozenset(a for a in self.space.axes if self.group.extent(value).has(a.reduced))
            _named(result, value)
            found = self.reductions[value] = Reduce(value, value.kind, expr, expr.dtype, result, position)
        return found.result

    def _of_one(self, value: Reduction, expr: Expr) -> Expr:
        if value.kind.startswith("arg"):
            return self.e.const(0, compute_dtype(value.dtype))
        return self.e.cast(expr, compute_dtype(value.dtype))


def _named(expr: Expr, value: Value) -> Expr:
    """An expression that is the value of a node of the graph, unless it is that of an earlier one too."""
    if not expr.name and isinstance(value, Reduction) and not value.nodes:
        expr.name = value.kind
    elif not expr.name and (value.nodes or expr.op == "load"):
        expr.name = value.describe()
    return expr


def nodes_of(values: Iterable[Value]) -> list[Node]:
    """The nodes that values come from, in the order of the program."""
    ordered = sorted(values, key=lambda v: v.position)
    return list(dict.fromkeys(v.origin for v in ordered if v.origin is not None))


def place(space: Space, shape: tuple[Dim, ...], extent: Extent) -> tuple[Index, ...]:
    """A tensor's index at a point of the space, by division where its axes do not line up."""
    try:
        return space.place(shape, extent)
    except Misaligned:
        position = Index()
        for axis in space.axes:
            if extent.has(axis.reduced):
                position = position * axis.size + of(axis)
        return unflatten(position, shape)


def build(group: Group, name: str, inlined: set[Value], stored: list[Value], env: SizeEnv) -> Kernel:
    """The loop nest of a group that writes `stored`, its members that are needed in memory."""
    if isinstance(group.members[0], Scan):
        return _build_scan(group, name, inlined, env)
    if isinstance(group.members[0], Scatter):
        return _build_scatter(group, name, inlined, env)
    if isinstance(group.members[0], Part):
        return _build_whole(group, name, env)
    sizes: Signature = group.space if group.space is not None else (((group.numel, False),) if group.numel != 1 else ())
    space = Space(sizes)
    for value in group.members:
        shapes = [(value.source_shape, Extent.POINTS)] if isinstance(value, Reduction) else []
        for shape, extent in (*shapes, (value.shape, group.extent(value))):
            before = list(space.sizes)
            try:
                space.refine(shape, extent)
            except Misaligned:
                space.sizes = before
    members = set(group.members)
    space.make_axes()
    for attempt in range(6):
        trace = KernelTrace(group, members, inlined, space)
        stores: list[Store] = []
        column_stores: list[Store] = []
        for value in stored:
            index = trace.place(value)
            expr = trace.reduce(value) if isinstance(value, Reduction) else trace.read(value, index)
            if expr.op == "round_to" and expr.attr is value.dtype:  # as memory does
                expr = expr.args[0]
            found = column_stores if value in group.columns else stores
            found.append(Store(value, flatten(index, value.stride), expr))
        reductions = [r for r in trace.reductions.values() if r.result.op == "reduced"]
        kernel = Kernel(
            name,
            "map",
            list(space.axes),
            None,
            stores,
            [r for r in reductions if r.value not in group.columns],
            env,
            group.members,
            nodes=nodes_of(trace.visited),
            columns=[r for r in reductions if r.value in group.columns],
            column_stores=column_stores,
        )
        if attempt == 5 or not _split_axes(kernel, space):
            break
        space.make_axes()
    _merge_axes(kernel, trace.e)
    _finish(kernel)
    return kernel


def _indices(kernel: Kernel) -> list[Index]:
    """Every index expression of the kernel."""
    found = [s.index for s in kernel.all_stores] + [r.position for r in kernel.reductions if r.position is not None]
    for expr in walk(kernel.roots()):
        index = index_of(expr)
        if index is not None:
            found.append(index)
    return found


def _split_axes(kernel: Kernel, space: Space) -> bool:
    """Split axes whose quotient or remainder by a constant occurs; True if the kernel must be traced again."""
    wanted: dict[Axis, Dim] = {}

    def visit(index: Index) -> None:
        for atom, _ in index.terms:
            if isinstance(atom, Quotient):
                inner = atom.index
                if (
                    inner.const == 0
                    and len(inner.terms) == 1
                    and isinstance(inner.terms[0][0], Axis)
                    and inner.terms[0][1] == 1
                ):
                    axis = inner.terms[0][0]
                    known = wanted.get(axis)
                    if known is None or type(known) is int and type(atom.divisor) is int and atom.divisor < known:
                        wanted[axis] = atom.divisor
                visit(inner)

    for index in _indices(kernel):
        visit(index)
    return any([axis in space.axes and space.split(axis, inner) for axis, inner in wanted.items()])


def _merge_axes(kernel: Kernel, builder: ScalarBuilder) -> None:
    """Order the axes by the strides of what is written, and merge neighbours that every index walks as one. Those along
    which positions are counted stay in row-major order: of equals the first is asked for. So do those in which several
    numbers are packed in a word: the last ones say which."""
    accesses = _accesses(kernel)
    order = {axis: k for k, axis in enumerate(kernel.axes)}
    in_order = _keeps_order(kernel)

    def key(axis: Axis) -> tuple[bool, float, int]:
        if axis.reduced and in_order:
            return True, 0, order[axis]
        coefficients = [index.coefficient(axis) for index, _ in accesses]
        strides = [abs(kernel.hint(c)) if c is not None else 0 for c in coefficients]
        own = [s for s in strides if s]
        first = [s for s in strides[: len(kernel.stores)] if s] or own
        return axis.reduced, -(first[0] if first else 0), order[axis]

    axes = sorted(kernel.axes, key=key)
    k = 0
    while k + 1 < len(axes):
        a, b = axes[k], axes[k + 1]
        if a.reduced == b.reduced and all(_mergeable(index, a, b) for index in _indices(kernel)):
            merged = Axis(a.size * b.size, a.reduced)
            # an index walks both axes with steps (c * b.size, c): as one axis it has step c
            _replace(kernel, builder, {a: Index(), b: of(merged)}, merged)
            axes[k : k + 2] = [merged]
            k = max(k - 1, 0)
        else:
            k += 1
    kernel.axes = axes


def _keeps_order(kernel: Kernel) -> bool:
    return any(r.position is not None or isinstance(r.value, Product) and r.value.sizes.packed
               for r in kernel.reductions)


def _mergeable(index: Index, a: Axis, b: Axis) -> bool:
    outer, inner = index.coefficient(a), index.coefficient(b)
    return outer is not None and inner is not None and same(outer, inner * b.size)


def _replace(kernel: Kernel, builder: ScalarBuilder, mapping: dict[Axis, Index], merged: Axis) -> None:
    memo: dict[Expr, Expr] = {}

    def rewrite(expr: Expr) -> Expr:
        found = memo.get(expr)
        if found is not None:
            return found
        if expr.op == "reduced":
            expr.axes = frozenset(merged if a in mapping else a for a in expr.axes)
            memo[expr] = expr
            return expr
        args = tuple(rewrite(a) for a in expr.args)
        attr = expr.attr
        if expr.op == "load":
            attr = (attr[0], attr[1].replace(mapping, rewrite))
        elif expr.op == "index":
            attr = attr.replace(mapping, rewrite)
        if args == expr.args and attr is expr.attr:
            result = expr
        else:
            result = builder.make(expr.op, args, expr.dtype, attr)
        result.axes = frozenset(merged if a in mapping else a for a in result.axes)
        result.name = result.name or expr.name
        memo[expr] = result
        return result

    for store in kernel.all_stores:
        store.index = store.index.replace(mapping, rewrite)
        store.expr = rewrite(store.expr)
    for reduction in kernel.all_reductions:
        reduction.expr = rewrite(reduction.expr)
        if reduction.position is not None:
            reduction.position = reduction.position.replace(mapping, rewrite)


def _accesses(kernel: Kernel) -> list[tuple[Index, Value]]:
    """Memory accesses: stores first, then loads."""
    found = [(s.index, s.value) for s in kernel.stores]
    for expr in walk(kernel.roots()):
        if expr.op == "load":
            found.append((expr.attr[1], expr.attr[0]))
    found.extend((s.index, s.value) for s in kernel.column_stores)
    return found


#: bytes of a cache line
_LINE = 64


def _finish(kernel: Kernel) -> None:
    """Choose the vector axis and the style, number the stages, list the operands."""
    accesses = _accesses(kernel)
    best: tuple[float, int] | None = None
    in_order = _keeps_order(kernel)
    for k, axis in enumerate(kernel.axes):
        if kernel.columns and not axis.reduced:
            continue
        if in_order and axis.reduced and axis is not kernel.axes[-1]:
            continue
        score = 0.0
        for index, value in accesses:
            coefficient = index.coefficient(axis)
            touched = prod(tuple(axis.size for axis in kernel.axes if axis in index.all_axes()))
            weight = value.dtype.itemsize * min(kernel.hint(value.numel), kernel.hint(touched), 1 << 20)
            if type(coefficient) is not int:
                score -= weight / 4
            elif abs(coefficient) == 1:
                score += weight
            else:  # neighbours that share a cache line are better than ones that do not
                score -= weight / 4 * min(1.0, abs(coefficient) * value.dtype.itemsize / _LINE)
        if kernel.hint(axis.size) < 4:
            score *= 0.1 if score > 0 else 1
        if best is None or (score, k) >= best:
            best = (score, k)
            kernel.vector = axis
    if kernel.vector is not None:
        # innermost of its kind
        axes = [a for a in kernel.axes if a is not kernel.vector]
        kernel.axes = (
            [a for a in axes if not a.reduced]
            + ([kernel.vector] if not kernel.vector.reduced else [])
            + [a for a in axes if a.reduced]
            + ([kernel.vector] if kernel.vector.reduced else [])
        )
    _number_stages(kernel)
    if not kernel.reductions or not kernel.reduced:
        kernel.style = "rows" if kernel.reductions else "map"
    elif any(r.expr.op == "product" for r in kernel.reductions):
        kernel.style = "product"
    else:
        assert kernel.vector is not None
        kernel.style = "rows" if kernel.vector.reduced else "columns"
    for expr in walk(kernel.roots()):
        if expr.op == "load" and expr.attr[0] not in kernel.reads:
            kernel.reads.append(expr.attr[0])
    kernel.writes = [s.value for s in kernel.all_stores]


def _number_stages(kernel: Kernel) -> None:
    stage = kernel.stage
    by_result = {r.result: r for r in kernel.all_reductions}

    def number(roots: list[Expr]) -> None:
        for expr in walk(roots):
            if expr in stage:
                continue
            if expr.op == "reduced":
                reduction = by_result[expr]
                number([reduction.expr])
                stage[expr] = stage[reduction.expr] + 1
            else:
                stage[expr] = max((stage[c] for c in children(expr)), default=0)

    number(kernel.roots())


def _build_scan(group: Group, name: str, inlined: set[Value], env: SizeEnv) -> Kernel:
    """A scan: parallel over all other axes, in order along its own, which counts as reduced."""
    value = group.members[0]
    assert isinstance(value, Scan)
    sizes: Signature = tuple((s, k == value.dim) for k, s in enumerate(value.shape))
    space = Space(sizes)
    space.make_axes()
    trace = KernelTrace(group, set(), inlined, space)
    index = tuple(of(a) if not (type(a.size) is int and a.size == 1) else Index() for a in space.axes)
    expr = value.body(trace, index)
    result = trace.e.make("reduced", (), compute_dtype(value.dtype), value)
    result.axes = frozenset(space.axes)
    reduction = Reduce(value, value.kind, expr, expr.dtype, result)
    kernel = Kernel(
        name,
        "scan",
        list(space.axes),
        None,
        [Store(value, flatten(index, value.stride), result)],
        [reduction],
        env,
        group.members,
        nodes=nodes_of({value: None, **trace.visited}),
    )
    axes = sorted(kernel.axes, key=lambda a: (a.reduced, -abs(env.hint(kernel.stores[0].index.coefficient(a) or 0))))
    kernel.axes = axes
    others = [a for a in axes if not a.reduced]
    kernel.vector = others[-1] if others and kernel.stores[0].index.coefficient(others[-1]) == 1 else None
    _finish_alone(kernel, value)
    return kernel


def _build_scatter(group: Group, name: str, inlined: set[Value], env: SizeEnv) -> Kernel:
    """A scatter: parallel over the axes that the place has as they are, in order along the others, which count as
    reduced."""
    value = group.members[0]
    assert isinstance(value, Scatter)
    space = Space(tuple((size, False) for size in value.source_shape))
    axes = space.make_axes()
    trace = KernelTrace(group, set(), inlined, space)
    index = tuple(of(a) if not (type(a.size) is int and a.size == 1) else Index() for a in axes)
    place = value.target(trace, index)
    step: dict[Axis, Dim] = {}
    for axis, own in zip(axes, index, strict=True):
        if own.terms and own in place:  # no two of its points share a place, whatever the other parts are
            step[axis] = value.stride[place.index(own)]
        axis.reduced = axis not in step
    expr = value.body(trace, index)
    store = Store(value, flatten(place, value.stride), expr)
    nodes = nodes_of({value: None, **trace.visited})
    kernel = Kernel(name, "scatter", [], None, [store], [], env, group.members, nodes=nodes, start=value.start,
                    adds=value.adds)
    parallel = sorted(step, key=lambda a: -env.hint(step[a]))
    kernel.axes = parallel + [a for a in axes if a not in parallel]
    kernel.vector = parallel[-1] if parallel and step[parallel[-1]] == 1 else None
    _finish_alone(kernel, value)
    return kernel


def _build_whole(group: Group, name: str, env: SizeEnv) -> Kernel:
    """A kernel that makes several results, as these say."""
    first = group.members[0]
    assert isinstance(first, Part)
    whole = first.whole
    kernel = Kernel(name, "flex", whole.axes, None, [], [], env, group.members, reads=list(whole.operands),
                    nodes=nodes_of(group.members), attention=whole)
    kernel.writes = whole.writes(group.members)
    _number_stages(kernel)
    return kernel


def _finish_alone(kernel: Kernel, value: Value) -> None:
    _number_stages(kernel)
    for found in walk(kernel.roots()):
        if found.op == "load" and found.attr[0] not in kernel.reads:
            kernel.reads.append(found.attr[0])
    if kernel.start is not None and kernel.start not in kernel.reads:
        kernel.reads.append(kernel.start)
    kernel.writes = [value]


__all__ = ["Kernel", "Reduce", "Store", "build"]
