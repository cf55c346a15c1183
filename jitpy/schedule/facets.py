"""From the op table to values: what an op's facets say of it, in the scheduler's terms.

An op is lowered by the first facet it has: `scalar` (elementwise), `index` (renamed indices), `reduction`, `scan`,
`fill` and `element` (made from nothing), `decompose` (simpler ops, each lowered in turn). Ops that read at computed
places are in `lowerings.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..ir.algebra import sympy
from ..ir.builder import Builder
from ..ir.graph import Node, map_nodes
from ..ir.op import NotCovered, Rule
from ..ir.ops import aliasing
from ..ir.ops.layout import is_dense
from ..ir.ops.pointwise import common_dtypes
from ..ir.ops.promotion import SMALL_FLOATS
from ..ir.ops.table import normalize
from ..ir.spec import TensorSpec, prod
from .expr import ScalarBuilder, compute_dtype
from .index import of, unflatten
from .values import HostScalar, IndexTuple, Pointwise, Trace, Value

if TYPE_CHECKING:
    from .lower import Lowered, Lowering

#: Rows whose largest number each reader computes from those of the rows, and how long these are.
_FEW_ROWS, _LONG_ROW = 32, 512


def from_table(low: Lowering, node: Node) -> Lowered:
    """The node's value by its op's facets. Raises NotCovered where there is none that applies."""
    op = node.op
    args, kwargs = normalize(op, node.args, node.kwargs)
    if op.scalar is not None:
        return _scalar(low, node, args, kwargs)
    for name, lowering in _LOWERINGS:
        rule = getattr(op, name)
        if rule is not None:
            return lowering(low, node, rule, args, kwargs)
    if op.decompose is not None:
        return _decompose(low, node, args, kwargs)
    raise NotCovered("torch's kernel is used for this op")


def _specs(value: Any) -> Any:
    return map_nodes(value, lambda n: n.spec)


def _scalar(low: Lowering, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    op = node.op
    assert op.scalar is not None
    count = op.operands
    common = common_dtypes(op, _specs(args), _specs(kwargs))
    dtypes = [compute_dtype(d) for d in common]
    values = map_nodes(args, low.values.__getitem__)
    operands, rest = (*values[:count], *[None] * (count - len(values))), values[count:]
    if op.small_exponent and common[0] in SMALL_FLOATS:
        rest = tuple(torch.tensor(v, dtype=common[0]).item() if isinstance(v, (int, float)) else v for v in rest)
    options = map_nodes(kwargs, low.values.__getitem__)
    at_run_time = (HostScalar, sympy.Expr)
    factors = {k: v for k, v in options.items() if k in _FACTORS and isinstance(v, at_run_time)}
    if any(isinstance(v, at_run_time) and k not in factors for k, v in (*enumerate(rest), *options.items())):
        raise NotCovered("a parameter known only at run time")
    if op.aliasing is not None:
        kind = aliasing(op, low.env, node.args, node.kwargs)
        if kind == "self":
            return operands[0]
        if node.tensor.dtype is not operands[0].dtype:
            return low.convert(operands[0], node.tensor.dtype)
    given = [(v, d) for v, d in zip(operands, dtypes, strict=True) if v is not None]
    small = [_rounded(node, k, d, operands) for k, d in enumerate(common) if operands[k] is not None]
    small += [None] * len(factors)
    given += [(v, dtypes[0]) for v in factors.values()]

    def body(e: ScalarBuilder, *exprs: Any) -> Any:
        found = iter(exprs)
        arguments = [None if v is None else next(found) for v in operands]
        named = {**options, **{k: next(found) for k in factors}}
        return op.scalar(e, *arguments, *rest, **named)  # type: ignore[misc]

    e = ScalarBuilder()
    body(
        e,
        *(
            e.load(k, of(0), d)
            if isinstance(v, Value)
            else e.const(v, d)
            if not isinstance(v, sympy.Expr)
            else e.size(v, d)
            for k, (v, d) in enumerate(given)
        ),
    )  # raises NotCovered now rather than later
    return low.apply(
        body, [v for v, _ in given], node.tensor.shape, node.tensor.dtype, [d for _, d in given], small=small)


def _rounded(node: Node, place: int, dtype: torch.dtype, operands: tuple[Any, ...]) -> torch.dtype | None:
    """The 16-bit dtype that an operand is rounded to before the op, if any: eager's conversion to the common dtype.
    Values of 16 bits that were computed in 32 keep these, but where the result shows more than 16 bits, or a small
    difference would become a large one."""
    operand = operands[place]
    if isinstance(operand, Value) and operand.dtype in SMALL_FLOATS and operand.dtype is not dtype:
        return operand.dtype if node.tensor.dtype is not operand.dtype else None
    if dtype not in SMALL_FLOATS:
        return None
    if isinstance(operand, Value) and not isinstance(operand, HostScalar):
        if operand.dtype is dtype:
            return dtype if _jumps(node, operands) else None
        if operand.shape:
            return dtype
        number = operand.spec is None or operand.spec.device.type == "cpu"
    else:
        number = True
    # eager's kernels for GPUs take numbers in 32 bits, and so do some for CPUs where they are the last operand
    exact = node.tensor.device.type != "cpu" or node.op.exact_number == place
    return None if number and exact else dtype


def _jumps(node: Node, operands: tuple[Any, ...]) -> bool:
    """Whether results may differ much where operands differ in their last bits. Zeros and signs survive rounding."""
    if node.tensor.dtype.is_floating_point:
        return node.op.has_steps
    return not any(isinstance(one, (int, float)) and one == 0 for one in operands)


#: Parameters that an op multiplies with, so that they need not be known before the graph runs.
_FACTORS = frozenset({"alpha", "value"})


def _index(low: Lowering, node: Node, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered:
    x = low.values[args[0]]
    spec, rest = args[0].spec, _specs(args[1:])
    copied = not node.op.is_view or aliasing(node.op, low.env, node.args, node.kwargs) == "copy"

    def part(shape: tuple[Any, ...], **output: int) -> Value:
        def remap(index: IndexTuple) -> IndexTuple:
            return tuple(of(i) for i in rule(index, spec, *rest, **kwargs, **output))

        if not spec.shape and not shape:
            return x if not copied else low.copy(x)
        if len(remap(tuple(of(0) for _ in shape))) != len(spec.shape):  # raises NotCovered now rather than later
            raise NotCovered("a view of a 0-dim tensor")
        value = low.view(x, shape, remap)
        return low.copy(value) if copied else value

    if isinstance(node.spec, tuple):
        return tuple(part(s.shape, output=k) for k, s in enumerate(node.spec) if isinstance(s, TensorSpec))
    if node.tensor.dtype is not x.dtype:
        raise NotCovered("a view as another dtype")
    if node.op.is_reshape:
        value = low.reshape(x, node.tensor.shape)
        if value is x and node.tensor.stride != spec.stride:
            value = low.view(x, node.tensor.shape, lambda index: index)  # eager's strides of axes of size 1 are new
        return low.copy(value) if copied else value
    return part(node.tensor.shape)


def _reduction(low: Lowering, node: Node, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    loop = rule(*_specs(args), **kwargs)
    x = low.values[args[0]]
    dims = tuple(range(len(x.shape))) if loop.flat else loop.dims
    compute_dtype(loop.dtype)
    if loop.combine.startswith("arg"):
        return low.reduce(loop.combine, x, dims, keepdim=loop.keepdim)
    dtype = node.tensor.dtype
    if dtype in SMALL_FLOATS or dtype.is_floating_point and x.dtype in SMALL_FLOATS:
        x = low.convert(x, dtype)
    if compute_dtype(dtype) is not compute_dtype(loop.dtype):
        return low.convert(low.reduce(loop.combine, x, dims, loop.dtype, loop.keepdim), dtype)
    rows = x.shape[:-1]
    if loop.combine in ("max", "min") and low.scatters == "unordered" and prod(node.tensor.shape) == 1 \
            and all(type(size) is int for size in x.shape) and 1 < prod(rows) <= _FEW_ROWS and x.shape[-1] >= _LONG_ROW:
        return _of_rows(low, low.reduce(loop.combine, x, (len(rows),), dtype), loop.combine, node.tensor.shape)
    return low.reduce(loop.combine, x, dims, dtype, loop.keepdim)


def _of_rows(low: Lowering, rows: Value, combine: str, shape: tuple[Any, ...]) -> Value:
    """The largest or smallest of a few rows' results. Each reader computes it, so that rows have programs of their own
    and the whole needs no kernel."""
    def body(trace: Trace, index: IndexTuple) -> Any:
        found = [trace.read(rows, unflatten(of(row), rows.shape)) for row in range(prod(rows.shape))]  # type: ignore[arg-type]
        while len(found) > 1:
            pairs = zip(found[::2], found[1::2], strict=False)
            found = [*(trace.e.make(f"{combine}imum", pair, pair[0].dtype) for pair in pairs), *found[len(found) & ~1:]]
        return found[0]

    return low.pointwise(shape, rows.dtype, body)


def _scan(low: Lowering, node: Node, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    loop = rule(*_specs(args), **kwargs)
    dtype = node.tensor.dtype
    in_float32 = low.scatters == "unordered" and dtype in (torch.float16, torch.bfloat16)
    if not node.tensor.shape or dtype.itemsize < 4 and not in_float32:
        raise NotCovered("a scan of this operand")
    return low.scan(loop.combine, low.values[args[0]], loop.dims[0], dtype)


def _fill(low: Lowering, node: Node, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    value = map_nodes(rule(*args, **kwargs), low.values.__getitem__)
    if isinstance(value, complex):
        raise NotCovered("fill value")
    if isinstance(value, Value) and not isinstance(value, HostScalar):
        return low.copy(low.expand(low.convert(value, node.tensor.dtype), node.tensor.shape))
    if not node.tensor.dtype.is_floating_point and isinstance(value, float) and not value.is_integer():
        raise NotCovered("fill value")
    return low.fill(node.tensor.shape, node.tensor.dtype, value)


def _element(low: Lowering, node: Node, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    shape, dtype = node.tensor.shape, node.tensor.dtype
    if dtype.itemsize == 2 and dtype.is_floating_point:
        raise NotCovered("positions do not fit 16-bit floats")

    def body(trace: Trace, index: IndexTuple) -> Any:
        e = trace.e
        values = map_nodes(args, lambda n: trace.read(low.values[n], index if low.values[n].shape else ()))
        return rule(e, [e.index(i) for i in index], *values, **kwargs)

    class Dry(Trace):
        def resolve(self, value: Value, index: IndexTuple) -> Any:
            return self.e.load(value, of(0), compute_dtype(value.dtype))

    body(Dry(), tuple(of(0) for _ in shape))  # raises NotCovered now rather than later
    return low.pointwise(shape, dtype, body)


def _decompose(low: Lowering, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered:
    """Simpler nodes, all of which must have values of their own: no eager call is made of a part."""
    assert node.op.decompose is not None
    made: list[Node] = []
    builder = Builder(low.graph, into=made, loc=node.loc, grad_enabled=False)
    result = node.op.decompose(builder, *args, **kwargs)
    for part in made:
        if isinstance(part.spec, TensorSpec) and 0 in part.spec.shape:
            low.values[part] = None  # empty results, which nobody reads: else the node is left to eager
            continue
        value = low.values[part] = low.native(part)
        if isinstance(value, Pointwise) and not value.nodes:
            spec = part.tensor
            if is_dense(low.env, spec.shape, spec.stride):
                value.stride = spec.stride  # in memory it lies as its operands do
    _check_dtypes(node, node.spec, result)
    return map_nodes(result, low.values.__getitem__)


def _check_dtypes(node: Node, spec: Any, made: Any) -> None:
    """Readers of the node's value read memory of its spec's dtype."""
    if isinstance(spec, tuple):
        for part, value in zip(spec, made, strict=True):
            _check_dtypes(node, part, value)
    elif isinstance(spec, TensorSpec) and isinstance(made, Node) and made.tensor.dtype is not spec.dtype:
        raise AssertionError(f"{node.op.name} is {made.tensor.dtype}, and not {spec.dtype} as its rule says")


_LOWERINGS = (("index", _index), ("reduction", _reduction), ("scan", _scan), ("fill", _fill), ("element", _element))
