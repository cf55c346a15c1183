"""Numbers in tensors that tracing knows: they follow from constants, from sizes by integer arithmetic, or are
comparisons that come out the same whatever random number was drawn."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from jitpy.ir import CONSTANT, GETITEM, Dim, Node, SizeEnv, TensorSpec
from jitpy.ir.folding import known_value
from jitpy.ir.op import Draws, OpRules
from jitpy.ir.sizes import floordiv

from ...ir.algebra import sympy

#: How many operations between sizes and a number are followed.
_DEPTH = 8
_INTEGERS = (torch.int64,)


def known_number(sizes: SizeEnv, node: Node) -> int | float | bool | complex | sympy.Expr | None:
    """The number in a tensor of one element, where every call computes the same one, or one that sizes tell."""
    if not node.op.name.startswith(("aten.", "ir.constant")):
        return None
    expr = _batch_of_packed(node) or _size_of(sizes, node, _DEPTH)
    if type(expr) is int:
        return expr
    if expr is not None:
        return None if sizes.is_unbacked(expr) else expr
    value = known_value(node)
    return known_comparison(node) if value is None else value.item()


_COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    **{fn: fn for fn in (operator.lt, operator.le, operator.gt, operator.ge)},
    **{getattr(torch.ops.aten, fn.__name__).Scalar: fn for fn in (operator.lt, operator.le, operator.gt, operator.ge)},
}
_UNIFORM = Draws("uniform")
#: `(sizes, *operands) -> size`, by op.
_RULES = OpRules()
_RULES.of("scalar_tensor")(lambda sizes, a, *_: a)


def known_comparison(node: Node) -> bool | None:
    """The answer of a comparison of a uniform random number with a constant, where all of [0, 1] says the same.

    With a probability of 0.0, `if torch.rand([]) < p: skip the layer` is no branch on data.
    """
    compare = _COMPARISONS.get(node.op.target)
    if compare is None or len(node.args) != 2:
        return None
    ends = [_ends(arg) for arg in node.args]
    if None in ends or all(low == high for low, high in ends):
        return None
    (a, b), (c, d) = ends
    found = {compare(x, y) for x in (a, b) for y in (c, d)}
    return found.pop() if len(found) == 1 else None


def _ends(value: Any) -> tuple[float, float] | None:
    """The least and the greatest that a number can be."""
    if type(value) in (int, float):
        return value, value
    if isinstance(value, Node) and "bounds" in value.meta:
        return value.meta["bounds"]
    if isinstance(value, Node) and value.op.name == "aten.item.default":
        value = value.args[0]
    return (0.0, 1.0) if isinstance(value, Node) and value.op.draws == _UNIFORM else None


def _size_of(sizes: SizeEnv, node: Any, depth: int) -> Dim | None:
    """A 0-d int64 tensor as an expression over sizes; an int among a node's arguments as it is."""
    if type(node) is int or isinstance(node, sympy.Expr):
        return node
    if not depth or not isinstance(node, Node) or not isinstance(node.spec, TensorSpec):
        return None
    if node.op is CONSTANT or node.spec.dtype not in _INTEGERS or node.spec.shape:
        return None
    rule = _RULES.get(node.op.name)
    if rule is None:
        return None
    operands = [_size_of(sizes, arg, depth - 1) for arg in node.args[:2]]
    if None in operands or not any(isinstance(o, sympy.Expr) for o in operands):
        return None
    return rule(sizes, *operands, **{k: v for k, v in node.kwargs.items() if k in ("alpha", "rounding_mode")})


def packed_batch(batch_sizes: Node) -> Dim | None:
    """How many sequences a tensor of batch sizes begins with, where the graph has packed them."""
    if batch_sizes.op is not GETITEM or batch_sizes.args[1] != 1 or \
            batch_sizes.args[0].op.name != "aten._pack_padded_sequence.default":
        return None
    return batch_sizes.args[0].args[1].tensor.shape[0]


def _batch_of_packed(node: Node) -> Dim | None:
    """`batch_sizes[0]`."""
    is_first = node.op.name == "aten.select.int" and node.args[1:] == (0, 0)
    return packed_batch(node.args[0]) if is_first else None


def _linear(sign: int) -> Callable[..., Dim | None]:
    def rule(sizes: SizeEnv, a: Dim, b: Dim, alpha: Any = 1) -> Dim | None:
        return a + sign * alpha * b if type(alpha) is int else None

    return rule


_RULES.of("add.Tensor", "add.Scalar")(_linear(1))
_RULES.of("sub.Tensor", "sub.Scalar")(_linear(-1))


@_RULES.of("mul.Tensor", "mul.Scalar")
def _product(sizes: SizeEnv, a: Dim, b: Dim) -> Dim | None:
    return a * b if type(a) is int or type(b) is int else None


@_RULES.of("div.Tensor_mode", "div.Scalar_mode", "floor_divide", "floor_divide.Scalar")
def _quotient(sizes: SizeEnv, a: Dim, b: Dim, rounding_mode: str | None = "floor") -> Dim | None:
    """Rounding towards zero and down are the same for what is not negative."""
    if type(b) is not int or b <= 0 or rounding_mode is None:
        return None
    return floordiv(a, b) if rounding_mode == "floor" or sizes.known(sympy.Ge(a, 0)) else None
