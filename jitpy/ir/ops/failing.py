"""Which ATen ops raise for some values of their arguments, and which wait for the GPU; see `ir/failures.py`."""

from __future__ import annotations

from typing import Any

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
_OTHERS = {"equal": "comparison", "pow": "power", **dict.fromkeys(_DIVIDE, "division")}

#: how the names of operators begin that look at what they computed, for errors or for sizes
_WAITING = ("linalg_", "_linalg_", "inverse", "cholesky", "svd", "qr", "geqrf", "histc", "ctc_loss", "_ctc_loss")


def facts_of(name: str) -> dict[str, Any]:
    """The facts of an ATen op that its name without namespace and overload says."""
    bare = name.lstrip("_").removesuffix("_forward")
    by_values = (bare in _LOOK_AT_VALUES or bare.startswith(_FAMILIES)) and bare not in _SAFE
    return {"failure": _OTHERS.get(name, "values" if by_values else None), "waits": name.startswith(_WAITING)}
