"""View ops as steps of an alias chain: replaying one on a new base, and writing a value back through one.

Each view op that reaches the graph builder has one function here that says what the base becomes when its view becomes
`value`. A view op without one can be read, but writing through it breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitpy.ir import Node, TensorSpec
from jitpy.ir.ops.strided import strided_places

from .autograd_facts import requires_grad
from .composites import reshape_node
from .traced import GraphBuilder, Parts, Uncapturable, ViewStep

_aten = torch.ops.aten

#: (graph builder, base node before the write, value of the view after it, the view step) -> base node after it
Inverse = Callable[["GraphBuilder", Node, Node, ViewStep], Node]


def write_back(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    """The base after its view `step` received `value`."""
    inverse = _INVERSES.get(step.op.target)
    if inverse is None:
        raise Uncapturable("unsupported_op", f"a write through a view made by {step.op.name}")
    return inverse(builder, base, value, step)


def argument(step: ViewStep, name: str, default: Any = None) -> Any:
    """The argument `name` of the step's op (the base is not among `step.args`)."""
    for index, schema_argument in enumerate(step.op.target._schema.arguments):
        if schema_argument.name == name:
            if index - 1 < len(step.args):
                return step.args[index - 1]
            if name in step.kwargs:
                return step.kwargs[name]
            return schema_argument.default_value if schema_argument.has_default_value() else default
    return default


def _identity(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    """Of `detach` as well: the graph builder has checked that nobody reads the base under grad mode afterwards."""
    return value


def _viewed(overload: Any, *names: str) -> Inverse:
    """The inverse that is a view of the value, by these arguments of the step."""
    return lambda builder, base, value, step: builder.emit_view(
        overload, value, tuple(argument(step, name) for name in names))


def _reshaped(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    return reshape_node(builder, value, base.tensor.shape)


def _dim(step: ViewStep, name: str = "dim") -> int:
    return argument(step, name, 0)


def _select(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    return scatter_along(builder, _aten.select_scatter.default, base, value, _dim(step), argument(step, "index"))


def _slice(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    where = argument(step, "start"), argument(step, "end"), argument(step, "step", 1)
    return scatter_along(builder, _aten.slice_scatter.default, base, value, _dim(step), *where)


def scatter_along(builder: GraphBuilder, scatter: Any, base: Node, value: Node, dim: int, *where: Any) -> Node:
    """A scatter along one dimension. torch has no gradient of these two for complex numbers, where eager's write has
    one: pairs of real numbers are written then."""
    if not base.tensor.dtype.is_complex or not (requires_grad(base.spec) or requires_grad(value.spec)):
        return builder.emit_scatter(scatter, base, value, (dim, *where))
    plain = builder.emit(_aten.resolve_conj.default, (value,))
    real = [builder.emit_view(_aten.view_as_real.default, n, ()) for n in (base, plain)]
    result = builder.emit_scatter(scatter, *real, (dim % base.tensor.ndim, *where))
    return builder.emit_view(_aten.view_as_complex.default, result, ())


def _diagonal(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    where = argument(step, "offset", 0), argument(step, "dim1", 0), argument(step, "dim2", 1)
    return builder.emit_scatter(_aten.diagonal_scatter.default, base, value, where)


def _as_strided(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    where = argument(step, "size"), argument(step, "stride"), argument(step, "storage_offset")
    if not (base.tensor.requires_grad or value.tensor.requires_grad) and base.tensor.is_contiguous():
        return builder.emit_scatter(_aten.as_strided_scatter.default, base, value, where)
    # torch's gradient of as_strided_scatter is wrong where the view shows only a part of the base
    places = strided_places(base.tensor, *where)
    if places is None:
        raise Uncapturable("unsupported_op", "a write through as_strided() to places that are not known")
    rows = builder.emit(_aten.reshape.default, (base, [-1]), {})
    values = builder.emit(_aten.reshape.default, (value, [-1]), {})
    written = builder.emit(_aten.index_put.default, (rows, [builder.constant(places)], values), {})
    return builder.emit(_aten.reshape.default, (written, base.tensor.shape), {})


def _permute(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    dims = argument(step, "dims")
    rank = len(dims)
    inverse = [0] * rank
    for position, dim in enumerate(dims):
        inverse[dim % rank] = position
    return builder.emit_view(_aten.permute.default, value, (inverse,))


def _expand(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    if not builder.sizes.equal(base.tensor.numel, step.spec.numel, "a write through expand()"):
        raise Uncapturable("unsupported_op", "a write through a view made by expand()")
    return _reshaped(builder, base, value, step)


def _bitcast(builder: GraphBuilder, base: Node, value: Node, step: ViewStep) -> Node:
    if requires_grad(base.spec) and not (value.tensor.dtype.is_floating_point or value.tensor.dtype.is_complex):
        raise Uncapturable("unsupported_op", "a write to the bits of a tensor with a history, unseen by autograd")
    return builder.emit_view(_aten.view.dtype, value, (base.tensor.dtype,))


_INVERSES: dict[Any, Inverse] = {
    _aten.alias.default: _identity,
    _aten.view_as.default: _identity,
    _aten.detach.default: _identity,
    _aten.view.default: _reshaped,
    _aten._reshape_alias.default: _reshaped,
    _aten.unsqueeze.default: _reshaped,
    _aten.squeeze.default: _reshaped,
    _aten.squeeze.dim: _reshaped,
    _aten.squeeze.dims: _reshaped,
    _aten.expand.default: _expand,
    _aten.select.int: _select,
    _aten.slice.Tensor: _slice,
    _aten.diagonal.default: _diagonal,
    _aten.as_strided.default: _as_strided,
    _aten.transpose.int: _viewed(_aten.transpose.int, "dim0", "dim1"),
    _aten.t.default: _viewed(_aten.t.default),
    _aten.permute.default: _permute,
    _aten.view.dtype: _bitcast,
    _aten._conj.default: lambda builder, base, value, step: builder.emit(_aten.conj_physical.default, (value,)),
    _aten._neg_view.default: lambda builder, base, value, step: builder.emit(_aten.neg.default, (value,)),
    _aten.view_as_real.default: _viewed(_aten.view_as_complex.default),
    _aten.view_as_complex.default: _viewed(_aten.view_as_real.default),
}


def split_steps(
    builder: GraphBuilder,
    overload: Any,
    base: TensorSpec,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    specs: tuple[TensorSpec, ...],
    inference: bool,
) -> list[ViewStep]:
    """The parts of a multi-output view op, each as one single-output step on the base. `inference`: see ViewStep."""
    named = dict(zip((a.name for a in overload._schema.arguments[1:]), args, strict=False)) | kwargs
    dim = named.get("dim", 0)
    dim = dim + base.ndim if dim < 0 else dim
    grad = builder.state.grad_enabled
    steps: list[ViewStep] = []

    def parts(index: int) -> Parts:
        return Parts(builder.op(overload), args, kwargs, specs, index)

    if overload is _aten.unbind.int:
        op = builder.op(_aten.select.int)
        return [ViewStep(op, (dim, i), {}, spec, grad, True, parts(i), inference=inference)
                for i, spec in enumerate(specs)]
    op = builder.op(_aten.slice.Tensor)
    start: Any = 0
    for i, spec in enumerate(specs):
        stop = start + spec.shape[dim]
        steps.append(ViewStep(op, (dim, start, stop, 1), {}, spec, grad, True, parts(i), inference=inference))
        start = stop
    return steps
