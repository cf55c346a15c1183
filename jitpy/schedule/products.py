"""Matrix products as loop nests: which ones generated kernels compute, and what each way costs.

A product is a sum along its inner axis, so it is lowered to a reduction (`Product`) whose epilogue and prologue fuse as
those of any other reduction do. A target with no template for it, or a library call that is as fast, leaves it to the
library: `Choice` weighs the two. Products are lowered and fused first where a template may win; once the kernels are
known, those that do not pay are refused, and the graph is scheduled once more without them.

The costs are microseconds of device time in bfloat16, fitted to some 150 products measured on an H100 with a cold
cache, a third of them with something to fuse. They are conservative: a template must be 5% faster.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..ir.graph import Graph, Node
from ..ir.op import NotCovered
from ..ir.ops.layout import channels_last_stride
from ..ir.ops.matmul import INT8_PRODUCT
from ..ir.spec import Dim, TensorSpec, prod
from .expr import FLOAT, FLOAT8, Expr
from .index import Index, of, same
from .lower import Lowering, lowering
from .values import Computed, IndexTuple, Product, Trace, Value, base_of

if TYPE_CHECKING:
    from .loops import Kernel

#: Floating point operations and bytes of memory a microsecond, and microseconds until the first result, of the library.
_RATE, _BANDWIDTH, _START = 680e6, 2.4e6, 6.0
#: Microseconds of one more kernel, and bytes a microsecond of what it reads or writes.
_KERNEL, _COPY = 2.5, 3.0e6
#: Microseconds that a second product in the same kernel begins earlier.
_SHARED = 4.0
#: A template takes the library's place where it needs at most this part of the time.
_CLEARLY = 0.95
#: Floating point operations from which the library's kernels are better whatever is fused.
_LARGE = 1 << 33
#: Inner sizes below which a product is left to the library: no whole piece of a tensor core's operand.
_LEAST = 16
#: Rows up to which a product is bound by memory.
_FEW_ROWS = 64
#: Rows up to which there are plans of their own where their number changes.
FEW_ROWS = (16, _FEW_ROWS)
#: Dtypes of operands that are multiplied as they are, and how many times the library's rate with 16 bits it has there.
_RATES = {torch.bfloat16: 1, torch.float16: 1, torch.int8: 2, **dict.fromkeys(FLOAT8, 2)}

# Products of float32 that are to be exact, by tensor cores in bfloat16: each operand is the sum of three such numbers,
# and six of the nine products of these count. The library does not use these units. On an H100 the distance from
# float64 of 4096^3 is 1.7e-7 (the library's 8.4e-7), of 1024 by 8192 by 8192 2.3e-7 (1.2e-6), for numbers from 0 to 1.
#: Floating point operations a microsecond of the library, and microseconds until it is as fast.
_EXACT_RATE, _EXACT_START = 51.5e6, 18.0
#: Rows and columns of a program's tile, and microseconds for each element of the inner axis: for each program that a
#: multiprocessor has, and once.
SPLIT_TILES = ((128, 128, 0.0459, 0.005), (64, 128, 0.0242, 0.014), (64, 64, 0.0138, 0.0126))
#: Floating point operations from which products are split. Smaller ones were not measured.
_LEAST_EXACT = 1 << 31
#: Multiprocessors of the GPU that these numbers are for.
_PROCESSORS = 132
#: Sizes from which products are split.
_LEAST_SIDE, _LEAST_INNER = 64, 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """`left[batch, rows, inner] @ right[batch, inner, columns]`. `inward`: the right operand (the
    left one, if the right one has one column) has its inner axis side by side in memory. `aligned`: rows or columns of
    both begin at multiples of 16 bytes. `packed`: the right operand has several numbers a word."""

    batch: int
    rows: int
    columns: int
    inner: int
    dtype: torch.dtype
    inward: bool
    aligned: bool = True
    packed: bool = False

    @property
    def is_row(self) -> bool:
        """Whether a result has one row or column only, so that there is nothing for tensor cores to do."""
        return self.rows == 1 or self.columns == 1

    @property
    def is_narrow(self) -> bool:
        """Whether rows (or columns) are so few that reading the other operand takes all the time."""
        return self.is_row or self.rows <= _FEW_ROWS and self.batch == 1 and self.dtype is not torch.float32

    @property
    def sums(self) -> torch.dtype:
        return torch.int32 if self.dtype is torch.int8 else torch.float32

    @property
    def result_bytes(self) -> int:
        return self.batch * self.rows * self.columns * max(2, self.dtype.itemsize)

    @property
    def operations(self) -> int:
        return 2 * self.batch * self.rows * self.columns * self.inner

    @property
    def is_split(self) -> bool:
        """Whether operands are split into numbers of 16 bits. Many short products are not worth it."""
        return self.dtype is torch.float32 and min(self.rows, self.columns) >= _LEAST_SIDE \
            and self.inner >= (_LEAST_INNER if self.batch == 1 else 2 * _LEAST_SIDE)

    def _moved(self) -> float:
        """Microseconds until all has been read and written."""
        operands = self.batch * self.inner * (self.rows + self.columns) * self.dtype.itemsize
        return (operands + self.result_bytes) / _BANDWIDTH

    def library(self) -> float:
        """Microseconds of the library's kernel."""
        if self.is_split:
            return max(self.operations / _EXACT_RATE + _EXACT_START, self._moved() + _START)
        return max(self.operations / (_RATE * _RATES.get(self.dtype, 1)), self._moved()) + _START

    def template(self) -> float:
        """Microseconds of the template's kernel."""
        if self.is_split:
            return max(min(self.split_time(*tile) for tile in SPLIT_TILES), self._moved()) + _START
        return self.library() * self._ratio()

    def split_time(self, rows: int, columns: int, step: float, once: float) -> float:
        """Microseconds in which programs with tiles of this size compute."""
        programs = self.batch * -(-self.rows // rows) * -(-self.columns // columns)
        return (-(-programs // _PROCESSORS) * step + once) * self.inner

    def _ratio(self) -> float:
        if self.packed:
            return 0.9  # torch's kernel reads the right operand for every 16 rows
        if self.is_row:
            return 0.85 if self.inward else 1.25
        if self.operations >= _LARGE:
            return 2.0  # what is computed behind the sums is not hidden behind those of other programs
        if self.batch > 1:
            return 0.88 if self.inner <= 128 else 1.08
        if self.rows <= 16:
            return 0.93 if self.inward else 1.03
        if self.rows <= _FEW_ROWS:
            return 1.0 if self.inward else 1.1
        if self.rows <= 512 and self.columns <= 1024 and self.inner <= 1024:
            return 0.93
        return 1.17 if self.rows <= 256 or self.inner <= 1024 else 1.35


@dataclass(slots=True)
class Choice:
    """Which products of one graph become kernels. `always`: all that a template can compute; `measures`: those of
    which `objection_to` says so."""

    graph: Graph
    always: bool = False
    measures: bool = False
    #: why products are left to the library
    refused: dict[Node, str] = field(default_factory=dict)
    #: numbers of rows that change, and of which the plan depends
    changing: dict[Dim, None] = field(default_factory=dict)
    _users: dict[Node, list[Node]] = field(default_factory=dict)

    def few(self, rows: Dim) -> int:
        """The rows of a product, or as many as it has at most where their number changes. Raises NotCovered where these
        are no longer few."""
        if type(rows) is int:
            return rows
        self.changing[rows] = None
        found = [most for most in FEW_ROWS if self.graph.sizes.hint(rows) <= most]
        if not found:
            raise NotCovered("a product of many rows whose number changes")
        return found[0]

    def require(self, node: Node, sizes: Sizes) -> None:
        """Raises NotCovered for a product that is the library's."""
        if node in self.refused:
            raise NotCovered(self.refused[node])
        if sizes.dtype not in _RATES:
            if sizes.dtype is not torch.float32 or not _is_exact():
                raise NotCovered("a product of this dtype")
            pays = sizes.aligned and sizes.operations >= _LEAST_EXACT if sizes.is_split else \
                sizes.batch > 1 and sizes.inner <= 64 and not sizes.inward and not sizes.is_row
            if not self.always and not pays:
                raise NotCovered("the library's product in float32 is faster")
        if not sizes.is_row and sizes.inner < _LEAST:
            raise NotCovered("a product with a short inner axis")
        if self.always or self.measures:
            return
        saved = self._most_saved(node, sizes)
        if sizes.template() > _CLEARLY * (sizes.library() + saved):
            raise NotCovered("the library's product is as fast")

    def objection_to(self, kernel: Kernel) -> str:
        """Why the library is to compute what a kernel does, by measuring; '' where the kernel is better."""
        raise NotImplementedError

    def _most_saved(self, node: Node, sizes: Sizes) -> float:
        """Microseconds that the kernels around a product take, at most."""
        if not self._users:
            self._users = self.graph.users()
        saved = 0.0
        if any(reader.op.scalar is not None for reader in self._readers(node)):
            saved += _KERNEL + 2 * sizes.result_bytes / _COPY
        for source in node.input_nodes():
            if source.op.scalar is not None and isinstance(source.spec, TensorSpec):
                saved += _KERNEL + 2 * self.graph.sizes.hint(source.spec.nbytes) / _COPY
        return saved

    def _readers(self, node: Node) -> list[Node]:
        """Who reads the result, through views."""
        found: list[Node] = []
        stack = [node]
        while stack:
            for user in self._users.get(stack.pop(), ()):
                (stack if user.op.is_view else found).append(user)
        return found

    def refuse(self, kernels: Sequence[Kernel], required: Container[Value]) -> bool:
        """Look at the kernels that came of products; True where some do not pay, which are refused from now on.
        `required` are values that others than kernels read."""
        before = len(self.refused)
        read = {value for kernel in kernels for value in kernel.reads if value not in required}
        for kernel in kernels:
            products = [one.value for one in kernel.reductions if isinstance(one.value, Product)]
            reason = self._objection(kernel, products, read) if products else ""
            if reason:
                self.refused.update((product.origin, reason) for product in products if product.origin is not None)
        return len(self.refused) > before

    def _objection(self, kernel: Kernel, products: list[Product], read: set[Value]) -> str:
        """Why the library is to compute a kernel's products; '' where the kernel is better."""
        if any(isinstance(value, Product) and value.sizes.dtype in _RATES and value.dtype is FLOAT
               for value in kernel.writes):
            return "its sums would be written down in 32 bits"
        if kernel.style == "product" and axes_of(kernel) is None:
            return "its operands do not lie along its axes"
        if any(operand.op != "load" for one, product in zip(kernel.reductions, products, strict=True)
               for operand in one.expr.args if product.sizes.dtype in FLOAT8 and not product.sizes.is_row):
            return "floats of 8 bits are read from memory"
        if self.always:
            return ""
        if self.measures:
            return self.objection_to(kernel)
        library = sum(product.sizes.library() for product in products)
        template = sum(product.sizes.template() for product in products) - _SHARED * (len(products) - 1)
        if template > _CLEARLY * (library + self._saved(kernel, products, read)):
            return "the library's product is as fast"
        return ""

    def _saved(self, kernel: Kernel, products: list[Product], read: set[Value]) -> float:
        """Microseconds that kernels before and behind the library's products would take. Results that only kernels
        read (`read`) would be made by these."""
        saved = 0.0
        own = {product.origin for product in products}
        if any(node not in own and node.op.scalar is not None for node in kernel.nodes) \
                and not read.issuperset(kernel.writes):
            saved += _KERNEL + sum(2 * product.sizes.result_bytes for product in products) / _COPY
        for operand in {operand for one in kernel.reductions for operand in one.expr.args}:
            if operand.op != "load":
                elements = kernel.hint(prod(tuple(axis.size for axis in operand.axes)))
                saved += _KERNEL + 4 * elements / _COPY
        return saved


def _is_exact() -> bool:
    """Whether products in float32 are to be exact."""
    try:
        return not torch._C._get_cublas_allow_tf32()
    except RuntimeError:  # set in parts
        return False


@dataclass(frozen=True, slots=True)
class ProductAxes:
    """The axes of a kernel of style `product`, by the operands that have them."""

    batch: list[Any]
    rows: list[Any]
    columns: list[Any]
    inner: list[Any]


def axes_of(kernel: Kernel) -> ProductAxes | None:
    """None where an axis belongs to neither operand, or an operand lacks an axis of its own."""
    found: ProductAxes | None = None
    inner = kernel.reduced
    for one in kernel.reductions:
        left, right = (operand.axes for operand in one.expr.args)
        kinds: dict[tuple[bool, bool], list[Any]] = {(True, True): [], (True, False): [], (False, True): []}
        for axis in kernel.parallel:
            kind = axis in left, axis in right
            if kind not in kinds:
                return None
            kinds[kind].append(axis)
        if not kinds[True, False] or not kinds[False, True] or not left.issuperset(inner) \
                or not right.issuperset(inner):
            return None
        axes = ProductAxes(kinds[True, True], kinds[True, False], kinds[False, True], inner)
        if found is not None and found != axes:
            return None
        found = axes
    return found


def _multiply(low: Lowering, node: Node, left: Value, right: Value, inward: bool, bias: Value | None = None,
              result: tuple[Dim, ...] | None = None, turned: bool = False, factors: Sequence[Value] = ()) -> Value:
    """`bias + left @ right * factors` of three axes each, rounded once, in the shape `result`. `turned`: the left
    operand, which is the same for all of the batch, is the right one of a product of the other's columns."""
    assert low.products is not None
    shape: tuple[Dim, ...] = (*left.shape[:2], right.shape[2], left.shape[2])
    if same(shape[3], 1) and right.dtype is left.dtype and left.dtype in (FLOAT, torch.bfloat16, torch.float16):
        return _outer(low, node, left, right, bias, result or shape[:3], factors)
    numbers = [size for size in (*shape[:1], *shape[2:]) if type(size) is int]
    if len(numbers) < 3 or type(shape[1]) is not int and (turned or shape[0] != 1):
        raise NotCovered("a product whose sizes change")
    own = left.dtype is node.tensor.dtype or left.dtype is torch.int8 or bool(factors)
    if right.dtype is not left.dtype or not own:
        raise NotCovered("a product of several dtypes")
    batch, columns, inner = numbers
    rows = low.products.few(shape[1])
    aligned = all(_is_aligned(one.tensor) for one in node.input_nodes())
    sizes = Sizes(1, batch * columns, rows, inner, left.dtype, inward, aligned) if turned else \
        Sizes(batch, rows, columns, inner, left.dtype, inward, aligned)
    low.products.require(low._node or node, sizes)

    def body(trace: Trace, index: IndexTuple) -> Expr:
        z, m, n, k = index
        kind = sizes.dtype if sizes.dtype is torch.int8 and not sizes.is_row else sizes.sums
        operands = tuple(trace.e.cast(trace.read(*one), kind) for one in ((left, (z, m, k)), (right, (z, k, n))))
        return trace.e.mul(*operands) if sizes.is_row else trace.e.make("product", operands, sizes.sums)

    return _concluded(low, node, low.tag(Product(sizes, shape, body), "sums"), bias, result or shape[:3], factors)


def _outer(low: Lowering, node: Node, left: Value, right: Value, bias: Value | None, result: tuple[Dim, ...],
           factors: Sequence[Value]) -> Value:
    """A product whose inner axis has one element: a multiplication, added to zero as sums are."""
    def body(trace: Trace, index: IndexTuple) -> Expr:
        z, m, n = index
        places = (left, (z, m, Index())), (right, (z, Index(), n))
        operands = (trace.e.cast(trace.read(*one), FLOAT) for one in places)
        return trace.e.add(trace.e.mul(*operands), trace.e.const(0.0, FLOAT))

    sums = low.pointwise((*left.shape[:2], right.shape[2]), FLOAT, body)
    return _concluded(low, node, sums, bias, result, factors)


def _concluded(low: Lowering, node: Node, sums: Value, bias: Value | None, result: tuple[Dim, ...],
               factors: Sequence[Value]) -> Value:
    """Sums with what is computed behind them, rounded."""
    shown = low.reshape(sums, result)
    added = None if bias is None else low.expand(bias, shown.shape)
    scales = [low.expand(one, shown.shape) for one in factors]

    def rounded(trace: Trace, index: IndexTuple) -> Expr:
        total = trace.read(shown, index)
        for one in scales:
            total = trace.e.mul(total, trace.read(one, index))
        return total if added is None else trace.e.add(total, trace.read(added, index))

    return low.pointwise(shown.shape, node.tensor.dtype, rounded)


def _batched(low: Lowering, value: Value) -> Value:
    return low.unsqueeze(value, 0)


def _without_batch(low: Lowering, value: Value) -> Value:
    return low.view(value, value.shape[1:], lambda index: (Index(), *index))


def _is_inward(left: TensorSpec, right: TensorSpec) -> bool:
    step = left.stride[-1] if same(right.shape[-1], 1) else right.stride[-2]
    return same(step, 1)


def _is_aligned(spec: TensorSpec) -> bool:
    """Whether rows begin at multiples of 16 bytes."""
    unit = 16 // spec.dtype.itemsize
    steps = [step for size, step in zip(spec.shape, spec.stride, strict=True) if not same(size, 1)]
    return all(type(step) is int and (step in (0, 1) or step % unit == 0) for step in (*steps, spec.offset))


def _refuse_factors(alpha: Any, beta: Any) -> None:
    if any(isinstance(one, Value) or one != 1 for one in (alpha, beta)):
        raise NotCovered("a product with factors")


def _product(*names: str) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Register the lowering of a product, for targets that have templates."""
    def register(fn: Callable[..., Value]) -> Callable[..., Value]:
        def lowered(low: Lowering, *args: Any, **kwargs: Any) -> Value:
            if low.products is None:
                raise NotCovered("torch's kernel is used for this op")
            if low._node is not None and low._node is not args[0] and low._node.op.kind != "matmul":
                raise NotCovered("the library has a kernel for the whole op")  # attention, say
            return fn(low, *args, **kwargs)

        return lowering(*names)(lowered)

    return register


@_product("mm", INT8_PRODUCT)
def _mm(low: Lowering, node: Node, left: Value, right: Value) -> Value:
    inward = _is_inward(node.args[0].tensor, node.args[1].tensor)
    return _without_batch(low, _multiply(low, node, _batched(low, left), _batched(low, right), inward))


@_product("_scaled_mm")
def _scaled_mm(low: Lowering, node: Node, left: Value, right: Value, left_scale: Value, right_scale: Value,
               bias: Value | None = None, scale: Value | None = None, dtype: Any = None, fast: bool = False) -> Value:
    """A product of floats of 8 bits, with a factor for each of them, or one for each row and column."""
    (rows, _), columns = left.shape, right.shape[1]
    for one, shape in ((left_scale, (rows, 1)), (right_scale, (1, columns))):
        if one.dtype is not FLOAT or one.shape not in ((), (1,), (1, 1), shape):
            raise NotCovered("factors of blocks")
    if scale is not None or node.tensor.dtype not in (FLOAT, torch.bfloat16, torch.float16):
        raise NotCovered("a product whose result is scaled again")
    if not fast and min(low.hint(rows), low.hint(columns)) >= _LEAST_SIDE:
        raise NotCovered("tensor cores sum floats of 8 bits in fewer than 32 bits")
    inward = _is_inward(node.args[0].tensor, node.args[1].tensor)
    return _without_batch(low, _multiply(low, node, _batched(low, left), _batched(low, right), inward, bias,
                                         factors=(left_scale, right_scale)))


@_product("_weight_int4pack_mm")
def _packed(low: Lowering, node: Node, x: Value, words: Value, group: int, scales: Value) -> Value:
    """A product with weights of four bits. A word has eight of a column: pairs of neighbours, eight apart. Eight
    columns by as many numbers as `inner` words hold are a tile; a factor and a term belong to `group` of a column."""
    assert low.products is not None
    tiles, outer, _, inner = words.shape
    (rows, depth), columns = x.shape, scales.shape[1]
    if not all(type(size) is int for size in (depth, tiles, outer, inner)) or outer == 1 \
            or isinstance(base_of(scales), Computed):  # from words of operands that may lie anywhere
        raise NotCovered("a product whose sizes change, with one tile of words, or with factors that are computed")
    few = low.products.few(rows)
    if few == 1:
        raise NotCovered("torch's kernel takes less time for one row")
    sizes = Sizes(1, few, columns, depth, torch.bfloat16, True, packed=True)  # type: ignore[arg-type]
    low.products.require(node, sizes)

    def body(trace: Trace, index: IndexTuple) -> Expr:
        e = trace.e
        row, tile, column, block, word, eighth, pair, odd = index
        at = block * (32 * inner) + word * 32
        word_at = (tile, block, column * 4 + pair, word)
        bits = e.cast(e.index(eighth * 4 + odd * 16), torch.int32)
        number = e.make("shift_right", (trace.read(words, word_at), bits), torch.int32)
        # as the last bits of a float: conversions are slow
        number = e.bitwise_or(e.bitwise_and(number, 15), 0x4B000000)
        number = e.sub(e.make("float_of_bits", (number,), FLOAT), 2.0 ** 23 + 8)
        factor, term = (trace.read(scales, (at // group, tile * 8 + column, of(k))) for k in range(2))
        weight = e.round_to(e.add(e.mul(number, factor), term), torch.bfloat16)
        return e.make("product", (trace.read(x, (row, at + eighth * 8 + pair * 2 + odd)), weight), FLOAT)

    shape: tuple[Dim, ...] = (rows, tiles, 8, outer, inner, 4, 4, 2)
    sums = low.tag(Product(sizes, shape, body, range(3, 8)), "sums")
    return low.convert(low.reshape(sums, (rows, columns)), torch.bfloat16)


@_product("addmm")
def _addmm(low: Lowering, node: Node, bias: Value, left: Value, right: Value, *, beta: Any = 1,
           alpha: Any = 1) -> Value:
    _refuse_factors(alpha, beta)
    inward = _is_inward(node.args[1].tensor, node.args[2].tensor)
    return _without_batch(low, _multiply(low, node, _batched(low, left), _batched(low, right), inward, bias))


@_product("bmm")
def _bmm(low: Lowering, node: Node, left: Value, right: Value) -> Value:
    return _multiply(low, node, left, right, _is_inward(node.args[0].tensor, node.args[1].tensor))


@_product("baddbmm")
def _baddbmm(low: Lowering, node: Node, bias: Value, left: Value, right: Value, *, beta: Any = 1,
             alpha: Any = 1) -> Value:
    _refuse_factors(alpha, beta)
    return _multiply(low, node, left, right, _is_inward(node.args[1].tensor, node.args[2].tensor), bias)


@_product("linear")
def _linear(low: Lowering, node: Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if len(x.shape) < 2:
        raise NotCovered("a product with a vector")
    rows = low.reshape(x, (1, prod(x.shape[:-1]), x.shape[-1]))
    columns, inner = weight.shape
    right = low.view(weight, (1, inner, columns), lambda index: (index[2], index[1]))
    inward = same((node.args[0] if same(columns, 1) else node.args[1]).tensor.stride[-1], 1)
    return low.reshape(_multiply(low, node, rows, right, inward, bias), node.tensor.shape)


@_product("convolution")
def _convolution(low: Lowering, node: Node, x: Value, weight: Value, bias: Value | None, stride: Sequence[Dim],
                 padding: Sequence[Dim], dilation: Sequence[Dim], transposed: bool, output_padding: Sequence[Dim],
                 groups: int) -> Value:
    """A convolution of points of channels-last images: a product of the weights and the pixels of each image. Only
    where it is measured: what lies between such convolutions is in the cache as a rule, and costs less than memory."""
    assert low.products is not None
    if not low.products.always and not low.products.measures:
        raise NotCovered("the library's convolution is as fast")
    spec = node.tensor
    if transposed or groups != 1 or len(x.shape) != 4 or any(one != 1 for one in (*weight.shape[2:], *stride)) \
            or any(one != 0 for one in padding) or spec.stride != channels_last_stride(spec.shape):
        raise NotCovered("torch's kernel is used for this convolution")
    images, inner, height, width = x.shape
    columns = weight.shape[0]
    left = low.view(weight, (images, columns, inner), lambda index: (index[1], index[2], Index(), Index()))
    right = low.reshape(x, (images, inner, height * width))
    added = None if bias is None else low.view(bias, (columns, 1, 1), lambda index: index[:1])
    return _multiply(low, node, left, right, True, added, spec.shape, turned=True)


__all__ = ["Choice", "ProductAxes", "Sizes", "axes_of"]
