"""Values: what the graph's tensors are to the scheduler, each as a function from an index to a scalar expression.

A `View` only renames indices and never costs anything inside a kernel. A `Pointwise` or `Reduction` may be inlined into
whoever reads it, or be written to memory by a kernel. `Stored` values are in memory from the start: inputs, constants
and results of eager calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ir.graph import Node
from ..ir.spec import Dim, TensorSpec, contiguous_stride, prod
from .expr import INT, Expr, ScalarBuilder, compute_dtype
from .index import Axis, Index, flatten, of

IndexTuple = tuple[Index, ...]
Body = Callable[["Trace", IndexTuple], Expr]


class Value:
    """A tensor. `stride` is that of its memory, once it has some; `nodes` are the graph nodes it stands for, `spec`
    what the first of them says of it, `origin` the one whose lowering made it."""

    __slots__ = ("shape", "dtype", "numel", "stride", "name", "nodes", "spec", "position", "origin")

    def __init__(self, shape: tuple[Dim, ...], dtype: torch.dtype, name: str = "") -> None:
        self.shape = shape
        self.dtype = dtype
        self.numel = prod(shape)
        self.stride: tuple[Dim, ...] = contiguous_stride(shape)
        self.name = name
        self.nodes: list[Node] = []
        self.spec: TensorSpec | None = None
        self.position = 0
        self.origin: Node | None = None

    def describe(self) -> str:
        if self.name or not (self.nodes or self.origin):
            return self.name or type(self).__name__.lower()
        return (self.nodes[0] if self.nodes else self.origin).name  # type: ignore[union-attr]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()} {list(self.shape)}>"


class Stored(Value):
    """An input, a constant, or part of an eager call's result. `node` is who makes it."""

    __slots__ = ("node", "part")

    def __init__(self, spec: TensorSpec, node: Node, part: int | None = None) -> None:
        super().__init__(spec.shape, spec.dtype, node.name if part is None else f"{node.name}_{part}")
        self.stride = spec.stride
        self.node = node
        self.part = part
        self.nodes.append(node)


class HostScalar(Value):
    """A Python number known when the graph runs: `node` makes it. A weak operand in type promotion. Complex ones are
    for calls only."""

    __slots__ = ("node", "kind")

    def __init__(self, node: Node, kind: type) -> None:
        super().__init__((), {int: INT, bool: INT, float: torch.float64, complex: torch.complex128}[kind], node.name)
        self.node = node
        self.kind = kind
        self.nodes.append(node)


class View(Value):
    """Another value under another index: `remap` takes an index of this one to an index of `base`."""

    __slots__ = ("base", "remap")

    def __init__(
        self, base: Value, shape: tuple[Dim, ...], remap: Callable[[IndexTuple], IndexTuple], name: str = ""
    ) -> None:
        super().__init__(shape, base.dtype, name)
        self.base = base
        self.remap = remap
        self.stride = ()


class Computed(Value):
    """A value that kernels make."""

    __slots__ = ()


class Pointwise(Computed):
    """Each element computed on its own by `body(trace, index)`."""

    __slots__ = ("body",)

    def __init__(self, shape: tuple[Dim, ...], dtype: torch.dtype, body: Body, name: str = "") -> None:
        super().__init__(shape, dtype, name)
        self.body = body


class Reduction(Computed):
    """`combine` over the axes `dims` of an index space `source_shape`; the result keeps the other axes, in order.

    kind: 'sum', 'prod', 'max', 'min', 'any', 'all', or 'argmax', 'argmin' (result: int64 position over the reduced
    axes).
    """

    __slots__ = ("kind", "source_shape", "dims", "body")

    def __init__(
        self,
        kind: str,
        source_shape: tuple[Dim, ...],
        dims: frozenset[int],
        dtype: torch.dtype,
        body: Body,
        name: str = "",
    ) -> None:
        super().__init__(tuple(s for k, s in enumerate(source_shape) if k not in dims), dtype, name)
        self.kind = kind
        self.source_shape = source_shape
        self.dims = dims
        self.body = body


class Product(Reduction):
    """The sums of a matrix product: parallel over batch, rows and columns, reduced along the inner axis, which may be
    several (`dims`). `sizes` is a `products.Sizes`."""

    __slots__ = ("sizes",)

    def __init__(self, sizes: Any, source_shape: tuple[Dim, ...], body: Body, dims: Sequence[int] = (3,)) -> None:
        super().__init__("sum", source_shape, frozenset(dims), sizes.sums, body)
        self.sizes = sizes


class Scan(Computed):
    """A running combination along axis `dim`: cumulative sums (kind 'sum') and products ('prod')."""

    __slots__ = ("kind", "dim", "body")

    def __init__(
        self, kind: str, shape: tuple[Dim, ...], dim: int, dtype: torch.dtype, body: Body, name: str = ""
    ) -> None:
        super().__init__(shape, dtype, name)
        self.kind = kind
        self.dim = dim
        self.body = body


class Scatter(Computed):
    """Zeros to which, for each point of `source_shape` in row-major order, `body` is added at the index `target`; or
    `start` instead of zeros, which lies in memory as the result does. Where it does not `add`, it writes `body` there:
    no two points share a place."""

    __slots__ = ("source_shape", "target", "body", "start", "adds")

    def __init__(
        self,
        shape: tuple[Dim, ...],
        dtype: torch.dtype,
        source_shape: tuple[Dim, ...],
        target: Callable[[Trace, IndexTuple], IndexTuple],
        body: Body,
        name: str = "",
        start: Value | None = None,
        adds: bool = True,
    ) -> None:
        super().__init__(shape, dtype, name)
        self.source_shape = source_shape
        self.target = target
        self.body = body
        self.start = start
        self.adds = adds


class Part(Computed):
    """One of the results of a kernel that fuses with nothing. `whole` builds that kernel, which makes all its results
    and reads `operands` in memory; `body` reads these as well."""

    __slots__ = ("whole", "body")

    def __init__(self, whole: Any, shape: tuple[Dim, ...], dtype: torch.dtype, operands: list[Value],
                 name: str = "") -> None:
        super().__init__(shape, dtype, name)
        self.whole = whole

        def body(trace: Trace, index: IndexTuple) -> Expr:
            for value in operands:
                trace.read(value, (Index(),) * len(value.shape))
            return trace.e.const(0, INT)

        self.body = body


class Trace:
    """Evaluates bodies into expressions. Subclasses say, in `resolve`, what reading a computed value means."""

    def __init__(self, builder: ScalarBuilder | None = None) -> None:
        self.e = builder or ScalarBuilder()
        self.mask: Expr | None = None
        self._memo: dict[Any, Expr] = {}

    def read(self, value: Value, index: IndexTuple) -> Expr:
        """The element of `value` at `index`."""
        while isinstance(value, View):
            index = value.remap(index)
            value = value.base
        assert len(index) == len(value.shape), f"{value} read at {index}"
        key = (value, index, self.mask)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self.resolve(value, index)
        return found

    def resolve(self, value: Value, index: IndexTuple) -> Expr:
        raise NotImplementedError

    def load(self, value: Value, index: IndexTuple) -> Expr:
        """A read from memory; under a mask the element is only touched where the mask holds."""
        return self.e.load(value, flatten(index, value.stride), compute_dtype(value.dtype), self.mask)

    def masked(self, condition: Expr, inside: Callable[[], Expr]) -> Expr:
        """`inside()`, whose loads are only done where `condition` holds; elsewhere its value is arbitrary."""
        if condition.op == "const" and condition.attr:
            return inside()
        before = self.mask
        self.mask = condition if before is None else self.e.logical_and(before, condition)
        try:
            return inside()
        finally:
            self.mask = before


class Probe(Trace):
    """The reads of a value, as indices over axes of its own: the input of every fusion decision."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        shape = value.source_shape if isinstance(value, (Reduction, Scatter)) else value.shape
        dims = value.dims if isinstance(value, Reduction) else frozenset()
        self.axes = tuple(Axis(size, k in dims) for k, size in enumerate(shape))
        self.index = tuple(Index() if type(axis.size) is int and axis.size == 1 else of(axis) for axis in self.axes)
        self.shape = shape
        self.reads: list[tuple[Value, IndexTuple]] = []
        self._seen: set[tuple[Value, IndexTuple]] = set()
        assert isinstance(value, (Pointwise, Reduction, Scan, Scatter, Part))
        if isinstance(value, Scatter):
            value.target(self, self.index)
            if value.start is not None:
                self.reads.append((value.start, (Index(),) * len(value.start.shape)))
        self.result = value.body(self, self.index)
        self.cost = self.result.cost

    def resolve(self, value: Value, index: IndexTuple) -> Expr:
        if (value, index) not in self._seen:
            self._seen.add((value, index))
            self.reads.append((value, index))
        return self.e.load(value, flatten(index, contiguous_stride(value.shape)), compute_dtype(value.dtype), self.mask)


def base_of(value: Value) -> Value:
    """The end of a chain of views."""
    while isinstance(value, View):
        value = value.base
    return value


def strided(value: Value) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Dim] | None:
    """`(shape, stride, offset)` over the memory of the base of views, None where no strides describe it."""
    axes = [Axis(size) for size in value.shape]
    index: IndexTuple = tuple(of(a) if not (type(a.size) is int and a.size == 1) else Index() for a in axes)
    current = value
    while isinstance(current, View):
        index = current.remap(index)
        current = current.base
    position = flatten(index, current.stride)
    steps = []
    known = set(axes)
    if any(not isinstance(atom, Axis) or atom not in known for atom, _ in position.terms):
        return None
    for k, axis in enumerate(axes):
        step = position.coefficient(axis)
        assert step is not None
        if type(axis.size) is int and axis.size == 1 and value.spec is not None:
            step = value.spec.stride[k]  # any will do: eager's
        steps.append(step)
    return value.shape, tuple(steps), position.const
