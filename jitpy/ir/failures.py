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

#: ops of ours that cannot raise for what they are recorded with
_NEVER_FAIL = frozenset({"ir.seed", "ir.rng_state", "py.drawn", "ir.recurrent_layer", "ir.recurrent_layer_backward"})

#: ATen ops that look at values: indices within bounds, as many elements as places, matrices that can be factored,
#: probabilities between 0 and 1
_LOOK_AT_VALUES = frozenset({
    "bernoulli", "binary_cross_entropy", "bincount", "binomial", "cross_entropy_loss", "embedding", "embedding_bag",
    "embedding_bag_forward_only", "embedding_renorm", "gather", "geqrf", "histc", "histogram", "index",
    "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "index_select", "inverse",
    "masked_scatter", "matrix_power",
    "max_unpool2d", "max_unpool3d", "multi_margin_loss", "multilabel_margin_loss", "multinomial", "normal", "one_hot",
    "ormqr", "pack_padded_sequence", "pinverse", "poisson", "put", "qr", "quantile", "nanquantile",
    "repeat_interleave", "scatter", "scatter_add", "scatter_reduce", "searchsorted", "segment_reduce", "svd", "take",
    "take_along_dim", "triangular_solve",
})
#: how the names of families of such ops begin
_FAMILIES = ("linalg_", "cholesky", "nll_loss", "lu_", "ctc_loss", "assert_", "functional_assert", "unsafe_index",
             "unsafe_masked")
#: members of these families that any values will do for
_SAFE = frozenset({"linalg_cross", "linalg_diagonal", "linalg_matmul", "linalg_multi_dot", "linalg_powsum",
                   "linalg_vander", "linalg_vecdot", "linalg_vector_norm", "nll_loss_backward", "nll_loss2d_backward"})

#: ATen ops that raise where integers are divided by zero
_DIVIDE = frozenset({"__rdiv__", "div", "divide", "floor_divide", "fmod", "remainder"})


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
    return op.target in _SAFE_ON_HOST


def looks_at_values(target: torch._ops.OpOverload) -> bool:
    """Whether an ATen op may refuse values that it is given."""
    bare = target.overloadpacket.__name__.lstrip("_").removesuffix("_forward")
    return (bare in _LOOK_AT_VALUES or bare.startswith(_FAMILIES)) and bare not in _SAFE


def may_fail(node: Node) -> bool:
    """Whether the values of a node's arguments may make it raise."""
    op, target = node.op, node.op.target
    if isinstance(target, torch._ops.OpOverload):
        if is_programs_own(op):
            return True
        name = op.name.split(".")[1]
        if name in _DIVIDE:
            return _may_divide_by_zero(node)
        if name == "equal":
            return _may_be_compared_with_itself(node)
        if name == "pow":
            return _may_be_negative_power(node)
        if looks_at_values(target) or _may_refuse_sizes(node):
            return True
        return op.is_random and _has_late_number(node)  # the bounds and parameters of distributions
    if op.name == "ir.triton_kernel":  # GPUs tell later; Triton's interpreter at once
        return any(spec.device.type == "cpu" for spec in node.spec)  # type: ignore[union-attr]
    if op.kind == "host":
        return not cannot_raise(op) and op.name not in _NEVER_FAIL
    return op.name not in _NEVER_FAIL and op.kind not in ("input", "constant", "getitem")


def has_effect(node: Node) -> bool:
    """Whether a node must run although nothing reads it: it changes something, advances a generator, or may raise."""
    return node.op.is_random or not node.op.is_pure or may_fail(node)


def graph_may_fail(graph: Graph) -> bool:
    """Whether any node may."""
    return any(map(may_fail, graph.nodes))
