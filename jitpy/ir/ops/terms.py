"""Which operands the result of an op is linear in; see `ir/linear.py`.

Positions that no term names are places, masks and sizes, on which nothing linear may depend.
"""

from __future__ import annotations

from .table import declare

# one factor
declare("neg", "sum", "mean", "clone", "contiguous", "_to_copy", "to", "sum_to_size", "reshape", "flip", "roll",
        "cumsum", "gather", "index_select", "index", "repeat", "tril", "triu", "div.Tensor", "div.Scalar", "diag",
        "diag_embed", "take", "take_along_dim", "repeat_interleave", "rot90", "im2col", "col2im", "embedding", "trace",
        "fliplr", "flipud", "tile", "alias", "positive", "detach", terms=((0,),))
# products
declare("mul", "multiply", "mm", "bmm", "matmul", "mv", "outer", "ger", "dot", "inner", "vdot", "tensordot", "kron",
        "cross", "linalg_cross", terms=((0, 1),))
# sums
declare("add", "sub", "subtract", "rsub", "lerp.Scalar", "lerp.Tensor", terms=((0,), (1,)))
declare("cat", "stack", "concat", terms=((0,),), joins=True)
declare("linear", terms=((0, 1), (2,)))
declare("addcmul", "addmm", "addmv", "addbmm", "baddbmm", "addr", terms=((0,), (1, 2)))
declare("addcdiv", terms=((0,), (1,)))
declare("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
        terms=((0, 1), (2,)))
# choices and parts, of which each element comes from one of the terms
declare("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", terms=((1,), (2,)))
declare("masked_fill", "constant_pad_nd", "index_put", "masked_scatter", terms=((0,), (2,)))
declare("pad", "scatter.src", "scatter.value", "scatter_add", "index_add", "index_copy", "index_fill",
        terms=((0,), (3,)))
declare("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter", terms=((0,), (1,)))
