"""What of torch's databases is not captured whole, each with its reason. The tests fail when one of these is captured
after all, or when anything else breaks.

A name is that of an operator or module, or `name/variant` for one of its variants alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Why:
    """id of the break's reason (or several, with spaces between), and the reason in words."""

    id: str
    text: str


def _because(id: str, text: str, names: str) -> dict[str, Why]:
    return dict.fromkeys(names.split(), Why(id, text))


#: Operators of which the first samples break.
OPERATORS: dict[str, Why] = {
    **_because(
        "dynamic_shape",
        "the size of the result depends on data",
        "nonzero/out masked_select/out linalg.lstsq linalg.lstsq.grad_oriented",
    ),
    **_because("dynamic_shape", "a tensor says where to cut", "narrow/function narrow/method"),
    **_because("unsupported_op", "tensors say where to cut", "tensor_split"),
    **_because(
        "unsupported_op", "the kernel resizes its argument, which torch's shape rule refuses", "addbmm/inplace"
    ),
    **_because(
        "unsupported_op",
        "variances are clamped under no_grad, and their gradients pass that by",
        "nn.functional.gaussian_nll_loss",
    ),
    **_because(
        "unsupported_call",
        "sparse tensors run in eager mode",
        "sparse.sampled_addmm sparse.mm.reduce to_sparse",
    ),
    **_because("unsupported_call", "the memory of a tensor is exchanged", "resize_ resize_as_/inplace"),
    **_because(
        "unsupported_op",
        "the memory of a tensor is exchanged",
        "resize_as_/function lu/out empty/out",
    ),
    **_because(
        "input_mutation",
        "a tensor from outside gets other sizes and strides, which a graph of values cannot write back",
        """as_strided/inplace as_strided.partial_views/inplace squeeze/inplace squeeze.multiple/inplace
        unsqueeze/inplace transpose/inplace t/inplace nn.functional.dropout3d/inplace svd/out""",
    ),
    **_because(
        "unsupported_op",
        "the tensor is a part of a larger memory, of which a graph input shows that part only",
        "as_strided.partial_views/function as_strided.partial_views/method as_strided.partial_views/gradients",
    ),
    **_because(
        "unsupported_op",
        "the noise is written to an argument, without a functional form",
        "nn.functional.rrelu",
    ),
    **_because(
        "unsupported_op",
        "this out= overload has no functional form, or no shape rule",
        """arange/out linspace/out linspace.tensor_overload/out logspace/out logspace.tensor_overload/out ones/out
        zeros/out full/out eye/out normal.number_mean/out geqrf/out histogram/out _native_batch_norm_legit/out""",
    ),
    **_because(
        "unsupported_op",
        "torch itself returns a new tensor and leaves out= alone",
        "linalg.matrix_rank/out linalg.matrix_rank.hermitian/out",
    ),
}

#: Operators of which only some samples break.
SOMETIMES: dict[str, Why] = {
    **_because("dynamic_shape", "a tensor says where to cut", "narrow/gradients tensor_split"),
    **_because(
        "unsupported_call",
        "a warning belongs to the line that called, and filters may turn it into an exception",
        """nn.functional.kl_div nn.functional.linear_cross_entropy.chunked
        nn.functional.linear_cross_entropy.chunked_none""",
    ),
    **_because(
        "autograd",
        "its registered backward writes to out=, which has no derivative: it cannot be traced for gradients with one",
        "nn.functional.linear_cross_entropy.chunked_none/gradients",
    ),
}

#: Modules.
MODULES: dict[str, Why] = {
    **_because("unsupported_op", "variances are clamped under no_grad, and their gradients pass that by",
               "nn.GaussianNLLLoss"),
    **_because(
        "unsupported_value",
        "the first call makes the parameters and changes the module's class",
        """nn.LazyConv1d nn.LazyConv2d nn.LazyConv3d nn.LazyConvTranspose1d nn.LazyConvTranspose2d
        nn.LazyConvTranspose3d""",
    ),
}

#: Modules of which only some samples break.
SOME_MODULES: dict[str, Why] = {
    **_because(
        "unsupported_op",
        "whether a mask is causal, computed from its values, is an argument of the operator",
        "nn.TransformerEncoder",
    ),
    **_because(
        "unsupported_op dynamic_shape",
        "the same; and whether a mask is left-aligned decides which way the encoder goes",
        "nn.Transformer",
    ),
    **_because(
        "unsupported_call",
        "a warning belongs to the line that called, and filters may turn it into an exception",
        "nn.LinearCrossEntropyLoss",
    ),
}
