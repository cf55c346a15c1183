"""Facts that ops of several families share; `ir/op.py` says what each means."""

from __future__ import annotations

from .table import declare

declare("add", "mul", commutes=True)
# beside those that return integers or truth values
declare("ceil.default", "floor.default", "round.default", "trunc.default", "fix.default", "frac.default",
        "sign.default", "sgn.default", "floor_divide.default", "floor_divide.Scalar", "fmod.Tensor", "fmod.Scalar",
        "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "div.Tensor_mode", "div.Scalar_mode",
        "divide.Tensor_mode", "divide.Scalar_mode", has_steps=True)
declare("_to_copy", "abs", "add", "alias", "bitwise_and", "bitwise_not", "bitwise_or", "ceil", "clamp", "clamp_max",
        "clamp_min", "clone", "contiguous", "div", "eq", "floor", "ge", "gt", "le", "leaky_relu", "logical_and",
        "logical_not", "logical_or", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg", "reciprocal",
        "relu", "rsub", "sign", "sqrt", "square", "sub", "threshold", "to", "where", cheap_on=("cpu", "cuda"))
declare("exp", cheap_on=("cuda",))  # the units of GPUs for such functions wait for memory as a rule
declare("gcd", "gcd_", "lcm", "lcm_", only_integers=True)
declare("copy", from_cpu="any")
declare("index.Tensor", "_unsafe_index.Tensor", "index_put.default", "_unsafe_index_put.default", "fill.Tensor",
        from_cpu="places")
declare("item.default", "_to_copy.default", "detach.default", "all.default", "any.default", "logical_not.default",
        "remainder.Scalar", "view.default", "select.int", "squeeze.default", "eq.Scalar", "ne.Scalar", "lt.Scalar",
        "le.Scalar", "gt.Scalar", "ge.Scalar", "sum.default", "slice.Tensor", is_question=True)
declare("add", "sub", "rsub", "neg", "clone", "_to_copy", "sum", "mean", "cat", "stack", "fill", "zero",
        keeps_input=False, keeps_result=False)
declare("mul", "div", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "embedding", "layer_norm",
        "native_layer_norm", "gelu", "silu", "conv1d", "conv2d", "conv3d", "convolution", "index",
        "where", "masked_fill", "select_scatter", "slice_scatter", "index_put", keeps_result=False)
declare("normal_functional.default", "bernoulli.p", "bernoulli.Tensor", has_derivative=False)
declare("linear.default", "matmul.default", "layer_norm.default", "softmax.int", "log_softmax.int",
        "scaled_dot_product_attention.default", "conv1d.default", "conv2d.default", "conv3d.default",
        "embedding.default", "cross_entropy_loss.default", "rms_norm.default", "group_norm.default", "outer.default",
        "cov.default", "corrcoef.default", "istft.default", "ctc_loss.IntList", "ctc_loss.Tensor", "where.ScalarOther",
        "where.ScalarSelf", "where.Scalar", is_new=True)
declare("instance_norm", "_batch_norm_impl_index", hides_writes=True)
declare("dequantize.self", "dequantize.tensors", may_return_argument=True)
declare("arange", "range", numbers_are_sizes=True)
declare("native_batch_norm.default", "cudnn_batch_norm.default", "miopen_batch_norm.default", writes_statistics=True)
