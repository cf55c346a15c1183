"""Graph nodes to values: the table of lowerings, and the vocabulary in which they are written.

A lowering is `fn(low, node, *args, **kwargs) -> Value | tuple of Values`, registered for op names with `@lowering`. Its
arguments are the node's, with every node replaced by what it was lowered to. It raises `NotCovered` to leave the node
to the eager kernel. Other ops are lowered by what the op table says of them (`facets.py`), or are eager calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitpy import config

from ..ir.algebra import sympy
from ..ir.graph import CONSTANT, GETITEM, Graph, Node, map_nodes
from ..ir.op import NotCovered, OpRules
from ..ir.ops.layout import is_dense
from ..ir.ops.promotion import SMALL_FLOATS
from ..ir.sizes import SizeEnv
from ..ir.spec import Dim, ScalarSpec, TensorSpec, contiguous_stride, prod
from ..ir.trees import tree_leaves
from .equal_sizes import write_equal_sizes_alike
from .expr import COMPUTE_DTYPES, FLOAT8, Expr, compute_dtype
from .facets import from_table
from .index import ZERO, Index, exact_quotient, flatten, same, unflatten
from .kernels_of_torch import refuses
from .values import HostScalar, IndexTuple, Pointwise, Reduction, Scan, Scatter, Stored, Trace, Value, View

if TYPE_CHECKING:
    from .products import Choice

Lowered = Any  # Value, tuple of Values, or a Python constant
Operand = Any  # Value or Python number

LOWERINGS = OpRules()
lowering = LOWERINGS.of

#: floats whose values are rounded where fewer bits are asked for
_ROUNDED = SMALL_FLOATS | FLOAT8

class Lowering:
    """Lowers one graph. `values` maps each node to its value (or tuple of values); `calls` lists the nodes left to
    eager."""

    def __init__(self, graph: Graph, scatters: str = "ordered", device: torch.device | None = None,
                 products: Choice | None = None, float8: bool = False) -> None:
        self.graph = graph
        #: whether kernels convert floats of 8 bits
        self.float8 = float8
        #: which matrix products become kernels; None: none do
        self.products = products
        #: where kernels run; None where all tensors of the graph are there
        self.device = device
        #: how kernels add to computed places; see `Limits`
        self.scatters = scatters
        self.env: SizeEnv = graph.sizes
        self.values: dict[Node, Lowered] = {}
        self.calls: list[Node] = []
        #: why nodes are eager calls, by node
        self.reasons: dict[Node, str] = {}
        #: numbers in tensors on the CPU: kernels know them, calls take the tensors
        self.host_constants: dict[Node, Stored] = {}
        #: by node with several results: the numbers of those that are read
        self._parts: dict[Node, set[int]] = {}
        for node in graph.nodes:
            if node.op is GETITEM:
                self._parts.setdefault(node.args[0], set()).add(node.args[1])
        self._tells_sizes = {node for node, _ in graph.unbacked_bindings().values()}
        self._position = 0
        self._node: Node | None = None

    def run(self) -> None:
        """Lower every node of the graph."""
        for node in self.graph.inputs:
            if isinstance(node.spec, ScalarSpec):
                self.values[node] = HostScalar(node, node.spec.kind)
            else:
                self.values[node] = Stored(node.tensor, node)
            self._place(self.values[node])
        for node in self.graph.nodes:
            self.values[node] = self._lower(node)

    def _lower(self, node: Node) -> Lowered:
        self._node = node
        if node.op is GETITEM:
            return self.values[node.args[0]][node.args[1]]
        self._position += 1
        if node.op is CONSTANT:
            return self._constant(node)
        try:
            result = self.native(node)
        except NotCovered as reason:
            self.reasons[node] = str(reason) or "no lowering"
            return self._call(node)
        parts = ((result, node.spec),) if not isinstance(result, tuple) else zip(result, node.spec, strict=True)  # type: ignore[arg-type]
        for value, spec in parts:
            if isinstance(value, Value):
                self._place(value, node, spec)
        return result

    def _constant(self, node: Node) -> Value:
        stored = Stored(node.tensor, node)
        self._place(stored)
        if not self._is_elsewhere(node.spec) or node.tensor.shape or not _is_native_spec(node.spec):
            return stored
        self.host_constants[node] = stored
        return self.tag(self.fill((), node.tensor.dtype, node.args[0].item()))

    def in_memory(self, node: Node) -> Lowered:
        """The argument of a call for a node."""
        return self.host_constants.get(node) or self.values[node]

    def is_on_host(self, node: Node) -> bool:
        """Whether operands or results of a node are on the CPU, in a graph for a GPU."""
        return self._is_elsewhere(node.spec) or any(self._is_elsewhere(source.spec) for source in node.input_nodes())

    def _is_elsewhere(self, spec: Any) -> bool:
        return self.device is not None and any(
            isinstance(part, TensorSpec) and part.device != self.device for part in tree_leaves(spec))

    def native(self, node: Node) -> Lowered:
        """The node's value or values. Raises NotCovered where only eager's kernel will do."""
        if node.op is GETITEM:
            return self.values[node.args[0]][node.args[1]]
        if self._is_elsewhere(node.spec) or any(
                self._is_elsewhere(source.spec) and source not in self.host_constants for source in node.input_nodes()):
            raise NotCovered("tensors on the CPU")
        if node in self._tells_sizes:
            raise NotCovered("its size depends on data")
        if not _is_native_spec(self._read_parts(node)):
            raise NotCovered("results of this dtype, or without elements, stay with eager")
        for source in node.input_nodes():
            if not _is_native_spec(source.spec):
                raise NotCovered("operands of this dtype, or without elements, stay with eager")
        if not (self.float8 and (node.op.is_view or node.op.is_copy or node.op.takes_float8)) and any(
                isinstance(part, TensorSpec) and part.dtype in FLOAT8
                for one in (node, *node.input_nodes()) for part in tree_leaves(one.spec)):
            raise NotCovered("floats of 8 bits are only converted and moved by kernels, of some devices")
        if refuses(node):
            raise NotCovered("eager refuses operands of this dtype")
        fn = LOWERINGS.get(node.op.name)
        if fn is not None:
            result = fn(
                self,
                node,
                *map_nodes(node.args, self.values.__getitem__),
                **map_nodes(node.kwargs, self.values.__getitem__),
            )
        else:
            result = from_table(self, node)
        self._check(node, result)
        return result

    def _read_parts(self, node: Node) -> Any:
        """The specs of a node's results, but for parts that nobody reads."""
        if not isinstance(node.spec, tuple) or node not in self._parts:
            return node.spec
        return tuple(spec for k, spec in enumerate(node.spec) if k in self._parts[node])

    def _check(self, node: Node, result: Lowered) -> None:
        """A lowering must agree with the spec: dtype, and shape by what the capture knows of sizes."""
        specs: Any = node.spec if isinstance(node.spec, tuple) else (node.spec,)
        values = result if isinstance(node.spec, tuple) else (result,)
        for spec, value in zip(specs, values, strict=True):
            if spec is None or value is None:
                continue
            if len(spec.shape) != len(value.shape) or not all(map(self._known_same, spec.shape, value.shape)):
                self._disagrees(f"{node.op} makes {list(value.shape)}, its spec says {list(spec.shape)}")
            if spec.dtype is not value.dtype:
                self._disagrees(f"{node.op} makes {value.dtype}, its spec says {spec.dtype}")

    def _known_same(self, a: Dim, b: Dim) -> bool:
        if same(a, b):
            return True
        a, b = self.env.canonical(a), self.env.canonical(b)
        return same(a, b) or bool(self.env.known(sympy.Eq(a, b)))

    @staticmethod
    def _disagrees(message: str) -> None:
        if config.raise_errors:
            raise AssertionError(message)
        raise NotCovered(message)

    def _call(self, node: Node) -> Lowered:
        self.calls.append(node)
        if isinstance(node.spec, tuple):
            return tuple(self._stored_part(spec, node, k) for k, spec in enumerate(node.spec))
        return self._stored_part(node.spec, node, None)

    def _stored_part(self, spec: Any, node: Node, part: int | None) -> Lowered:
        if isinstance(spec, TensorSpec):
            return self._place(Stored(spec, node, part))
        if isinstance(spec, ScalarSpec):
            return self._place(HostScalar(node, spec.kind))
        if isinstance(spec, tuple):
            raise NotCovered("nested results")
        return None

    def _place(self, value: Any, node: Node | None = None, spec: Any = None) -> Any:
        """Give a value its name and, where it is (part of) what a node returns, the strides of its `spec`."""
        if isinstance(value, Value):
            if node is not None and node not in value.nodes:
                value.nodes.append(node)
                if value.spec is None and isinstance(spec, TensorSpec):
                    value.spec = spec
                if not value.name:
                    value.name = node.name
                if (
                    isinstance(spec, TensorSpec)
                    and len(value.nodes) == 1
                    and not isinstance(value, (View, Stored))
                    and is_dense(self.env, spec.shape, spec.stride)
                ):
                    value.stride = spec.stride
            if not value.position:
                self._position += 1
                value.position = self._position
        return value

    def tag(self, value: Value, name: str = "") -> Value:
        """Position a value made inside a lowering."""
        self._position += 1
        value.position = self._position
        value.origin = self._node
        if self._node is not None and name:
            value.name = value.name or f"{self._node.name}_{name}"
        return value

    # vocabulary: shapes

    def hint(self, size: Dim) -> int:
        return self.env.hint(size)

    def view(self, base: Value, shape: Sequence[Dim], remap: Callable[[IndexTuple], IndexTuple]) -> Value:
        """`base` seen as a tensor of another shape, index by index."""
        return self.tag(View(base, tuple(shape), remap))

    def expand(self, value: Value, shape: Sequence[Dim]) -> Value:
        """Broadcast to `shape`; axes are matched from the right."""
        shape = tuple(shape)
        if len(shape) == len(value.shape) and all(map(same, shape, value.shape)):
            return value
        lead = len(shape) - len(value.shape)
        single = [self._is_one(own, target) for own, target in zip(value.shape, shape[lead:], strict=True)]
        return self.view(
            value, shape, lambda index: tuple(ZERO if one else index[lead + k] for k, one in enumerate(single))
        )

    def _is_one(self, size: Dim, target: Dim) -> bool:
        """Whether an axis is broadcast: for symbolic sizes the capture settled that."""
        if type(size) is int:
            return size == 1
        if same(size, target) or self.hint(size) != 1:
            return False
        return self.hint(target) != 1 or self.env.known(sympy.Eq(size, 1)) is True

    def reshape(self, value: Value, shape: Sequence[Dim]) -> Value:
        """The same elements in row-major order under another shape."""
        shape, old = tuple(shape), value.shape
        if len(shape) == len(old) and all(map(same, shape, old)):
            return value
        blocks = _matching_blocks(shape, old)

        def remap(index: IndexTuple) -> IndexTuple:
            result: list[Index] = []
            for new_axes, old_axes in blocks:
                new_shape = tuple(shape[k] for k in new_axes)
                old_shape = tuple(old[k] for k in old_axes)
                if len(new_shape) == len(old_shape) == 1:
                    result.append(index[new_axes[0]])
                else:
                    flat = flatten(tuple(index[k] for k in new_axes), contiguous_stride(new_shape))
                    result.extend(unflatten(flat, old_shape))
            return tuple(result)

        return self.view(value, shape, remap)

    def unsqueeze(self, value: Value, dim: int) -> Value:
        """An axis of size 1 at `dim` (counted in the result)."""
        shape = (*value.shape[:dim], 1, *value.shape[dim:])
        return self.view(value, shape, lambda index: index[:dim] + index[dim + 1 :])

    # vocabulary: computation

    def pointwise(
        self, shape: Sequence[Dim], dtype: torch.dtype, body: Callable[[Trace, IndexTuple], Expr], name: str = ""
    ) -> Value:
        """A value computed index by index; `body` returns any dtype, which is converted to the compute dtype."""
        kind = compute_dtype(dtype)

        def converted(trace: Trace, index: IndexTuple) -> Expr:
            result = trace.e.cast(body(trace, index), kind)
            # eager overflows to infinity after each op: float16 alone has so little range that it matters
            return trace.e.round_to(result, dtype) if dtype is torch.float16 else result

        return self.tag(Pointwise(tuple(shape), dtype, converted), name)

    def apply(
        self,
        fn: Callable[..., Expr],
        operands: Sequence[Operand],
        shape: Sequence[Dim],
        dtype: torch.dtype,
        compute: torch.dtype | Sequence[torch.dtype],
        name: str = "",
        small: Sequence[torch.dtype | None] | None = None,
    ) -> Value:
        """`fn(e, *operands)` element by element: operands broadcast to `shape` and are converted to `compute`.

        `compute` is one dtype for all operands or one for each. Operands are values or Python numbers. `small` says
        which of them are rounded to a 16-bit dtype first, their own or the common one.
        """
        shape = tuple(shape)
        each: Any = compute if isinstance(compute, (tuple, list)) else [compute] * len(operands)
        dtypes = [compute_dtype(d) for d in each]
        values = [
            self.expand(x, shape) if isinstance(x, Value) and not isinstance(x, HostScalar) else x for x in operands
        ]

        def body(trace: Trace, index: IndexTuple) -> Expr:
            e = trace.e
            exprs = []
            for value, kind, fitting in zip(values, dtypes, small or [None] * len(values), strict=True):
                if isinstance(value, Value):
                    operand = trace.read(value, () if isinstance(value, HostScalar) else index)
                    if value.dtype is fitting:
                        operand = e.round_to(operand, fitting)
                        fitting = None
                    operand = e.cast(operand, kind)
                elif isinstance(value, sympy.Expr):
                    operand = e.size(value, kind)
                else:
                    operand = e.const(value, kind)
                exprs.append(operand if fitting is None else e.round_to(operand, fitting))
            return fn(e, *exprs)

        return self.pointwise(shape, dtype, body, name)

    def fill(self, shape: Sequence[Dim], dtype: torch.dtype, value: Any) -> Value:
        """A constant tensor; `value` is a Python number or a size."""
        kind = compute_dtype(dtype)
        if isinstance(value, Value):
            return self.pointwise(shape, dtype, lambda trace, index: trace.read(value, ()))
        return self.pointwise(
            shape,
            dtype,
            lambda trace, index: (
                trace.e.size(value, kind) if isinstance(value, sympy.Expr) else trace.e.const(value, kind)
            ),
        )

    def convert(self, value: Value, dtype: torch.dtype) -> Value:
        """The value in another dtype, rounded to its own first where it is a 16-bit float computed in 32 bits. Whoever
        asks for fewer bits gets them, though what is computed from them goes on in 32."""
        if value.dtype is dtype:
            return value
        small = value.dtype if value.dtype in _ROUNDED else None

        def body(trace: Trace, index: IndexTuple) -> Expr:
            e = trace.e
            x = trace.read(value, index)
            if small is not None:
                x = e.round_to(x, small)
            return e.round_to(e.cast(x, torch.float32), dtype) if dtype in _ROUNDED else x

        return self.pointwise(value.shape, dtype, body)

    def reduce(
        self,
        kind: str,
        value: Value,
        dims: Sequence[int],
        dtype: torch.dtype | None = None,
        keepdim: bool = False,
    ) -> Value:
        """Combine over `dims`. Operands are converted to `dtype` (default: own)."""
        dtype = dtype or value.dtype
        shape = value.shape
        gone = frozenset(dims)
        argument = kind in ("argmax", "argmin")
        kind_dtype = compute_dtype(value.dtype if argument else dtype)

        small = value.dtype if argument and value.dtype in SMALL_FLOATS else None

        def body(trace: Trace, index: IndexTuple) -> Expr:
            x = trace.e.cast(trace.read(value, index), kind_dtype)
            return x if small is None else trace.e.round_to(x, small)  # which of them are equal

        result: Value = self.tag(Reduction(kind, shape, gone, torch.int64 if argument else dtype, body), kind)
        if keepdim:
            for dim in sorted(gone):
                result = self.unsqueeze(result, dim)
        return result

    def scan(self, kind: str, value: Value, dim: int, dtype: torch.dtype) -> Value:
        """A running combination along `dim`."""
        if type(value.shape[dim]) is int and value.shape[dim] == 1:
            return self.copy(self.convert(value, dtype))
        kind_dtype = compute_dtype(dtype)
        return self.tag(
            Scan(kind, value.shape, dim, dtype, lambda trace, index: trace.e.cast(trace.read(value, index), kind_dtype))
        )

    def scatter(
        self,
        shape: Sequence[Dim],
        source: Value,
        source_shape: Sequence[Dim],
        target: Callable[[Trace, IndexTuple], IndexTuple],
        body: Callable[[Trace, IndexTuple], Expr] | None = None,
        start: Value | None = None,
        in_float32: float = 0,
        adds: bool = True,
    ) -> Value:
        """Zeros of `source`'s dtype (or `start`), to which the elements of `source` (or what `body` makes of them) are
        added, each at the index `target`. With `in_float32` sums of numbers of 16 bits are in float32, which pays
        where the result has at most that many times as many elements as the source. Raises NotCovered where the
        device has no such kernels."""
        body = body or (lambda trace, index: trace.read(source, index))
        dtype = source.dtype
        if self.scatters == "unordered" and adds:
            if torch.are_deterministic_algorithms_enabled():
                raise NotCovered("results must repeat")
            if dtype.itemsize < 4 and in_float32:
                if self.env.hint(prod(shape)) > in_float32 * self.env.hint(prod(source_shape)):
                    raise NotCovered("eager's kernel moves fewer bytes")
                sums = self.tag(Scatter(tuple(shape), torch.float32, tuple(source_shape), target, body))
                return self.pointwise(shape, dtype, lambda trace, index: trace.read(sums, index))
        return self.tag(Scatter(tuple(shape), dtype, tuple(source_shape), target, body, start=start, adds=adds))

    def copy(self, value: Value) -> Value:
        """A fresh tensor with the same elements."""
        return self.pointwise(value.shape, value.dtype, lambda trace, index: trace.read(value, index))


def _is_native_spec(spec: Any) -> bool:
    if isinstance(spec, tuple):
        return all(map(_is_native_spec, spec))
    if isinstance(spec, TensorSpec):
        return spec.dtype in COMPUTE_DTYPES and not any(type(s) is int and s == 0 for s in spec.shape)
    if isinstance(spec, ScalarSpec):
        return spec.kind is not complex
    return True


def _matching_blocks(new: tuple[Dim, ...], old: tuple[Dim, ...]) -> list[tuple[list[int], list[int]]]:
    """Groups of axes of two shapes with equal products, so that a reshape stays local to each group."""
    blocks: list[tuple[list[int], list[int]]] = []
    i, j = len(new) - 1, len(old) - 1
    while i >= 0 or j >= 0:
        new_axes, old_axes = [], []
        left: Dim = 1
        right: Dim = 1
        if i >= 0:
            new_axes.append(i)
            left = new[i]
            i -= 1
        if j >= 0:
            old_axes.append(j)
            right = old[j]
            j -= 1
        while not same(left, right):
            # grow the side that divides the other; where that is unclear, both to the end
            if i >= 0 and (j < 0 or exact_quotient(right, left) is not None):
                left = left * new[i]
                new_axes.append(i)
                i -= 1
            elif j >= 0 and (i < 0 or exact_quotient(left, right) is not None):
                right = right * old[j]
                old_axes.append(j)
                j -= 1
            elif i >= 0:
                left = left * new[i]
                new_axes.append(i)
                i -= 1
                if j >= 0:
                    right = right * old[j]
                    old_axes.append(j)
                    j -= 1
            else:
                break
        if i < 0 or j < 0:  # only axes of size 1 can be left over
            while i >= 0 and new[i] == 1 or i >= 0 and j < 0:
                new_axes.append(i)
                i -= 1
            while j >= 0 and old[j] == 1 or j >= 0 and i < 0:
                old_axes.append(j)
                j -= 1
        blocks.append((new_axes[::-1], old_axes[::-1]))
    return blocks[::-1]


def lower(graph: Graph, scatters: str = "ordered", device: torch.device | None = None,
          products: Choice | None = None, float8: bool = False) -> Lowering:
    """Lower a graph; see `Lowering`."""
    from . import flex, lowerings, placements, windows  # noqa: F401  (they register the table)
    from . import products as _products  # noqa: F401

    write_equal_sizes_alike(graph)
    result = Lowering(graph, scatters, device, products, float8)
    result.run()
    return result


__all__ = ["Lowering", "NotCovered", "lower", "lowering"]
