"""Which nodes may raise when they run, although their arguments were right when the graph was recorded.

Python raises in the middle of a program: what came before has happened, and handlers around it run. A graph does
everything at once, so that a frame whose graph raised runs again as plain Python; that works where nothing was changed
before the node that raised. So such nodes stay in the graph although nothing may read them, and a kernel that checks
values looks at all of them.
"""

from __future__ import annotations

import operator

import torch

from .algebra import sympy
from .graph import Graph, Node
from .op import Op
from .sizes import depends_on_data
from .spec import ScalarSpec, TensorSpec

#: arithmetic on numbers that cannot raise
_SAFE_ON_HOST = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, abs, bool, operator.not_,
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_,
    operator.xor, operator.invert, min, max,
})


def _may_divide_by_zero(node: Node) -> bool:
    """Integers divided by anything but a constant that is not zero."""
    if isinstance(node.spec, TensorSpec) and node.spec.dtype.is_floating_point:
        return False
    divisor = node.args[1] if len(node.args) > 1 else None
    return type(divisor) not in (int, bool, float) or divisor == 0


def _may_be_negative_power(node: Node) -> bool:
    """An integer to a power that is a number not known yet."""
    exponent = node.args[1] if len(node.args) > 1 else None
    if isinstance(node.spec, TensorSpec) and node.spec.dtype.is_floating_point:
        return False
    return isinstance(exponent, sympy.Basic) or isinstance(exponent, Node) and isinstance(exponent.spec, ScalarSpec)


def _has_late_number(node: Node) -> bool:
    """Whether a number among the arguments is only known when the graph runs."""
    return any(isinstance(n.spec, ScalarSpec) for n in node.input_nodes()) or any(
        isinstance(value, sympy.Basic) for value in (*node.args, *node.kwargs.values()))


def _may_be_compared_with_itself(node: Node) -> bool:
    """Floats of 8 bits: torch refuses to compare a tensor of these with itself, which passes may make of two."""
    return any(isinstance(n.spec, TensorSpec) and n.spec.dtype.itemsize == 1 and n.spec.dtype.is_floating_point
               for n in node.input_nodes())


def _may_refuse_sizes(node: Node) -> bool:
    """Whether an op's kernel may refuse its sizes: meta kernels, which stand for missing rules, do not ask all that
    kernels do of sizes that are 0, or not known yet."""
    return node.op.infer is None and any(
        size == 0 or depends_on_data(size) for n in node.input_nodes() if isinstance(n.spec, TensorSpec)
        for size in n.spec.shape)


def is_programs_own(op: Op) -> bool:
    """Whether an op was registered by the program: its kernel may raise anything, and be more than a function."""
    return isinstance(op.target, torch._ops.OpOverload) and op.target.namespace != "aten"


def is_effect(op: Op) -> bool:
    """Whether an op that the program registered returns nothing: it is called for what it does besides."""
    return is_programs_own(op) and not op.target._schema.returns  # type: ignore[attr-defined]


def cannot_raise(op: Op) -> bool:
    """Whether arithmetic on numbers raises for none of them."""
    return op.failure == "never" or op.target in _SAFE_ON_HOST


def may_fail(node: Node) -> bool:
    """Whether the values of a node's arguments may make it raise."""
    op = node.op
    if isinstance(op.target, torch._ops.OpOverload):
        if is_programs_own(op):
            return True
        if op.failure == "division":
            return _may_divide_by_zero(node)
        if op.failure == "comparison":
            return _may_be_compared_with_itself(node)
        if op.failure == "power":
            return _may_be_negative_power(node)
        if op.failure == "values" or _may_refuse_sizes(node):
            return True
        return op.is_random and _has_late_number(node)  # the bounds and parameters of distributions
    if op.name == "ir.triton_kernel":  # GPUs tell later; Triton's interpreter at once
        return any(spec.device.type == "cpu" for spec in node.spec)  # type: ignore[union-attr]
    if op.kind == "host":
        return not cannot_raise(op)
    return op.failure != "never" and op.kind not in ("input", "constant", "getitem")


def has_effect(node: Node) -> bool:
    """Whether a node must run although nothing reads it: it changes something, advances a generator, or may raise."""
    return node.op.is_random or not node.op.is_pure or may_fail(node)


def graph_may_fail(graph: Graph) -> bool:
    """Whether any node may."""
    return any(map(may_fail, graph.nodes))
