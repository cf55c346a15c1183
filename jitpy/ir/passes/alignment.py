"""Matrix products of sizes that tensor cores cannot read in whole pieces, with padded operands (GPUs only).

The fast kernels of cuBLAS move 16 bytes at a time. They need rows (or columns, whichever lie side by side in memory)
of a multiple of 8 elements of 16 bits in each operand and in the result; where one has an odd number of them, the
kernel that is left runs at a seventh of the speed (measured on sm_90 in bfloat16: 95 TFLOP/s in place of 710; with an
even number 240). A vocabulary of 50257 words is such a size.

Only sizes along which memory is contiguous matter (but sizes they are: memory with room between rows changes nothing,
also measured). The operands get zeros there, and the result is cut back:

    mm(x[m, k], t(w[n, k]))  ->  clone(slice(mm(x, t(pad(w))), 1, 0, n))

Padding is part of the kernel that makes an operand (a conversion of a parameter, say), and the copy is part of those
that read the result: it is made only where the program or a library call wants the result itself, with eager's strides.
Sums have the same terms, and zeros; their order is the library's in either case, so this is no part of the exact
rewrites of `rules.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..builder import Builder
from ..graph import GETITEM, Graph, Node
from ..op import NotCovered, OpRules
from ..spec import Dim, TensorSpec, prod

#: Bytes that fast kernels move at a time.
PIECE = 16
#: Floating point operations a microsecond, by the bytes of which all rows are a multiple.
_RATES = {16: 600e6, 8: 400e6, 4: 240e6, 2: 95e6}
#: The same where the left operand's rows, and the right one's columns, lie side by side: 16 times 768 by 196 by 384.
_LEFT_TURNED = 70e6
#: Bytes a microsecond of a copy, and microseconds of one more kernel.
_BANDWIDTH, _KERNEL = 2.5e6, 4.0

_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(slots=True)
class _Operand:
    """A factor as it lies in memory: `turned` where its rows, and not its columns, are side by side."""

    node: Node
    turned: bool
    #: the sizes of its last two axes, as the product sees them
    rows: Dim
    columns: Dim
    stride: Dim

    @property
    def inner(self) -> Dim:
        """How many elements are side by side."""
        return self.rows if self.turned else self.columns


@dataclass(slots=True)
class _Product:
    """`bias + left @ right`; the sizes are those of `left[..., m, k] @ right[..., k, n]`."""

    op: str
    left: _Operand
    right: _Operand
    bias: Node | None
    batch: Dim
    options: dict[str, Any]


#: How many elements the sizes m, k and n get.
_Padding = tuple[int, int, int]


def align_products(graph: Graph) -> list[str]:
    """Pad the operands of products that are much faster then. Returns what was done."""
    if not any(node.op.kind == "matmul" for node in graph.nodes):
        return []
    return _Aligner(graph).run()


class _Aligner:
    """The pass over one graph. `padded` are the padded operands made so far, for the products that share them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.hint = graph.sizes.hint
        self.users = graph.users()
        self.results = {*graph.outputs, *(mutation.value for mutation in graph.mutations)}
        self.padded: dict[tuple[Node, int, int], Node] = {}
        self.nodes: list[Node] = []

    def run(self) -> list[str]:
        done: list[str] = []
        mapping: dict[Node, Node] = {}
        for node in self.graph.nodes:
            if mapping:
                node.replace_inputs(lambda n: mapping.get(n, n))
            made = self._aligned(node) if node.op.kind == "matmul" else None
            if made is None:
                self.nodes.append(node)
            else:
                mapping[node] = made
                done.append(f"{node.name} has aligned operands")
        if done:
            self.graph.nodes[:] = self.nodes
            self.graph.replace_results(mapping)
        return done

    def _aligned(self, node: Node) -> Node | None:
        """The replacement of a product, with its nodes added; None where it is best as it is."""
        made: list[Node] = []
        builder = Builder(self.graph, into=made, loc=node.loc, grad_enabled=node.grad_enabled)
        try:
            product = _product(builder, node)
            if product is None:
                return None
            known = dict(self.padded)
            result = self._relaid(builder, product)
            if result is None:
                padding = self._padding(product, node)
                if padding is None or product.bias is not None and product.op == "aten.bmm.default":
                    return None
                result = self._build(builder, product, padding, node)
        except NotCovered:
            return None
        if result.spec != node.spec:
            self.padded = known
            return None
        self.nodes += made
        return result

    def _relaid(self, b: Builder, product: _Product) -> Node | None:
        """The product with the rows of its right operand side by side, where columns of both lie so and have no whole
        pieces; None where that would not pay."""
        left, right, spread = product.left, product.right, product.right.node
        size = spread.tensor.dtype.itemsize
        few = spread.args[0] if spread.op.name == "aten.expand.default" else spread
        if not left.turned or not right.turned or product.op != "aten.bmm.default" or not _missing(left.columns, size) \
                or _missing(left.rows, size) or _missing(right.columns, size):
            return None
        work = 2.0 * self.hint(prod((product.batch, left.rows, left.columns, right.columns)))
        if work / _LEFT_TURNED - work / _RATES[PIECE] < self._copy(few.tensor):
            return None
        rows = b.call("aten.clone.default", few, memory_format=torch.contiguous_format)
        made = b.call(product.op, left.node, b.call("aten.expand.default", rows, list(spread.tensor.shape)))
        return made if product.bias is None else b.call("aten.add.Tensor", made, product.bias)

    def _padding(self, product: _Product, node: Node) -> _Padding | None:
        """The padding of each size; None where it would not pay."""
        left, right = product.left, product.right
        size = node.tensor.dtype.itemsize
        m, k, n = left.rows, left.columns, right.columns
        more_m = _missing(m, size) if left.turned else 0
        more_k = 0 if left.turned and not right.turned else _missing(k, size)
        more_n = _missing(n, size)
        if not any((more_m, more_k, more_n)):
            return None
        before = min(self._alignment(one.inner, one.stride, size) for one in (left, right))
        before = min(before, self._alignment(n, 0, size))
        after = PIECE
        copied = 0.0
        for one, extra in ((left, (more_m, more_k)), (right, (more_k, more_n))):
            if any(extra):
                if not (one.node.tensor.swapped() if one.turned else one.node.tensor).is_contiguous():
                    return None
                copied += self._copy(one.node.tensor) / (2 if _is_computed(one.node) else 1)
            else:
                after = min(after, self._alignment(one.inner, one.stride, size))
        if (more_m or more_n) and self._is_wanted(node):
            copied += self._copy(node.tensor)
        sizes = [self.hint(one) for one in (product.batch, m, k, n)]
        work = 2.0 * prod(tuple(sizes))
        saved = work / _RATES[before] - work / _RATES[after]
        return (more_m, more_k, more_n) if saved > copied + _KERNEL else None

    def _copy(self, spec: TensorSpec) -> float:
        """Microseconds of a copy."""
        return 2 * self.hint(spec.numel) * spec.dtype.itemsize / _BANDWIDTH + _KERNEL

    def _alignment(self, inner: Dim, stride: Dim, size: int) -> int:
        """The bytes, a power of two, of which rows are a multiple: their length, and the way to the next."""
        found = PIECE
        while found > size and (self.hint(inner) * size % found or self.hint(stride) * size % found):
            found //= 2
        return found

    def _is_wanted(self, node: Node) -> bool:
        """Whether the program or a library call takes a result as it is, or as a view of it."""
        stack = [node]
        while stack:
            one = stack.pop()
            if one in self.results:
                return True
            for user in self.users.get(one, ()):
                if user.op.kind == "view" or user.op is GETITEM:
                    stack.append(user)
                elif user.op.kind in ("matmul", "other"):
                    return True
        return False

    def _build(self, b: Builder, product: _Product, padding: _Padding, node: Node) -> Node:
        m, k, n = padding
        left = self._padded(b, product.left, m, k)
        right = self._padded(b, product.right, k, n)
        bias = product.bias
        if bias is not None and n:
            bias = b.call("aten.constant_pad_nd.default", bias, [0, n], 0)
        factors = (left, right) if bias is None else (bias, left, right)
        result = b.call(product.op, *factors, **product.options)
        axis = result.tensor.ndim - 1
        if n:
            result = b.call("aten.slice.Tensor", result, axis, 0, product.right.columns)
        if m:
            result = b.call("aten.slice.Tensor", result, axis - 1, 0, product.left.rows)
        if m or n:
            result = b.call("aten.clone.default", result, memory_format=torch.contiguous_format)
        if result.tensor.shape != node.tensor.shape:
            result = b.call("aten.view.default", result, list(node.tensor.shape))
        return result

    def _padded(self, b: Builder, operand: _Operand, rows: int, columns: int) -> Node:
        """The operand with more rows and columns of zeros, lying in memory as before."""
        if not rows and not columns:
            return operand.node
        node = operand.node
        if operand.turned:
            rows, columns = columns, rows
            turned = node.op.name == "aten.t.default" or node.op.name == "aten.transpose.int" and node.tensor.ndim == 2
            node = node.args[0] if turned else b.call("aten.transpose.int", node, -2, -1)
        key = node, rows, columns
        found = self.padded.get(key)
        if found is None:
            found = self.padded[key] = b.call("aten.constant_pad_nd.default", node, [0, columns, 0, rows], 0)
        return b.call("aten.transpose.int", found, -2, -1) if operand.turned else found


def _missing(size: Dim, itemsize: int) -> int:
    """How many elements are missing to the next multiple; of sizes known at run time only none are added."""
    return -size % (PIECE // itemsize) if type(size) is int else 0


def _is_computed(node: Node) -> bool:
    """Whether a kernel makes a tensor, and can pad it."""
    while node.op.kind == "view" or node.op is GETITEM:
        node = node.args[0]
    return node.op.kind in ("pointwise", "reduction") or node.op.decompose is not None and node.op.kind != "matmul"


def _operand(node: Node) -> _Operand | None:
    spec = node.tensor
    rows, columns = spec.shape[-2:]
    if spec.stride[-1] == 1:
        return _Operand(node, False, rows, columns, spec.stride[-2])
    return _Operand(node, True, rows, columns, spec.stride[-1]) if spec.stride[-2] == 1 else None


def _product(b: Builder, node: Node) -> _Product | None:
    """A node as a product of matrices, or of as many on each side; None for others."""
    spec = node.spec
    if not isinstance(spec, TensorSpec) or spec.dtype not in _DTYPES:
        return None
    form = FORMS.get(node.op.name)
    found = None if form is None else form(b, node)
    if found is None:
        return None
    op, left, right, bias, options = found
    if any(n.tensor.dtype is not spec.dtype or n.tensor.requires_grad for n in (left, right)):
        return None
    if bias is not None and (bias.tensor.dtype is not spec.dtype or bias.tensor.shape != right.tensor.shape[-1:]):
        return None
    first, second = _operand(left), _operand(right)
    if first is None or second is None or any(
            type(n) is int and n < 2 for one in (first, second) for n in (one.rows, one.columns)):
        return None  # vectors have kernels of their own
    return _Product(op, first, second, bias, prod(left.tensor.shape[:-2]), options)


_Form = tuple[str, Node, Node, Node | None, dict[str, Any]]
#: `(b, node) -> _Form | None`, by op.
FORMS = OpRules()


@FORMS.of("mm", "bmm")
def _plain(b: Builder, node: Node) -> _Form:
    return node.op.name, node.args[0], node.args[1], None, {}


@FORMS.of("addmm")
def _added(b: Builder, node: Node) -> _Form | None:
    return node.op.name, node.args[1], node.args[2], node.args[0], dict(node.kwargs)


@FORMS.of("linear")
def _linear(b: Builder, node: Node) -> _Form | None:
    """On rows, as eager's composite op does it."""
    x, weight, bias = (*node.args, node.kwargs.get("bias"), None)[:3]
    rows = rows_of(b, x)
    if x.tensor.ndim < 2 or weight.tensor.ndim != 2:
        return None
    turned = b.call("aten.t.default", weight)
    if rows is None:
        spread = b.call("aten.expand.default", turned, [*x.tensor.shape[:-2], *turned.tensor.shape])
        return ("aten.bmm.default", x, spread, bias, {}) if x.tensor.ndim == 3 else None
    return ("aten.mm.default" if bias is None else "aten.addmm.default"), rows, turned, bias, {}


@FORMS.of("matmul")
def _matmul(b: Builder, node: Node) -> _Form | None:
    """Of two matrices, or of rows with a matrix."""
    rows = rows_of(b, node.args[0])
    return None if rows is None or node.args[1].tensor.ndim != 2 else ("aten.mm.default", rows, node.args[1], None, {})


def rows_of(b: Builder, x: Node) -> Node | None:
    """A tensor as a matrix of its rows; None for vectors, and for rows that do not lie side by side."""
    shape = x.tensor.shape
    if len(shape) == 2:
        return x
    return b.call("aten.view.default", x, [prod(shape[:-1]), shape[-1]]) if shape[1:] and x.tensor.is_contiguous() \
        else None


__all__ = ["FORMS", "align_products", "rows_of"]
