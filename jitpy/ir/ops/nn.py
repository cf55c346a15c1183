"""Normalisation, attention, dropout, losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..op import NotCovered
from ..sizes import SizeEnv, floordiv, mod
from ..spec import Dim, TensorSpec, contiguous_spec, contiguous_stride, prod
from .derived import derive
from .indexing import one_device, row_major_only
from .layout import (
    broadcast_shapes,
    channels_last_stride,
    dense_stride,
    is_channels_last_strides,
    is_contiguous,
    is_one,
    is_static,
    less,
    normalize_dim,
    preserved_stride,
)
from .oracle import CPU, at_hints, fake_tensor
from .promotion import compute_dtype, is_float, result_type
from .reductions import cast, mean_of, variance_of
from .table import Invalid, declare, define, get

# -- Normalisation ------------------------------------------------------------------------------------------------


def _trailing(env: SizeEnv, x: TensorSpec, shape: Sequence[Any], *parameters: TensorSpec | None) -> int:
    """The number of leading axes that stay; NotCovered where the normalized shape is not x's tail."""
    lead = len(x.shape) - len(shape)
    if not shape or lead < 0 or not is_float(x.dtype):
        raise Invalid("normalized shape")
    if not all(map(env.equal, x.shape[lead:], shape)):
        raise Invalid("normalized shape")
    for parameter in parameters:
        if parameter is not None:
            if len(parameter.shape) != len(shape) or not all(map(env.equal, parameter.shape, shape)):
                raise Invalid("parameter shape")
            if parameter.device != x.device:
                raise NotCovered("tensors on several devices")
    return lead


def _parameter_dtypes(x: TensorSpec, *parameters: TensorSpec | None) -> bool:
    """Whether float32 parameters meet a 16-bit input (allowed); NotCovered for any other mixture."""
    mixed = [p.dtype for p in parameters if p is not None and p.dtype is not x.dtype]
    if not mixed:
        return False
    if (
        x.dtype.itemsize == 2
        and x.device.type == "cpu"
        and len(mixed) == sum(p is not None for p in parameters)
        and all(d is torch.float32 for d in mixed)
    ):
        return True
    raise NotCovered("parameters of another dtype")


def _layer_norm(env: SizeEnv, x: TensorSpec, shape: Sequence[Any], weight: TensorSpec | None = None,
                bias: TensorSpec | None = None, *rest: Any) -> TensorSpec:
    _trailing(env, x, shape, weight, bias)
    _parameter_dtypes(x, weight, bias)
    return TensorSpec(x.dtype, x.shape, contiguous_stride(x.shape), x.device)


def _native_layer_norm(
    env: SizeEnv, x: TensorSpec, shape: Sequence[Any], weight: TensorSpec | None, bias: TensorSpec | None, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    lead = _trailing(env, x, shape, weight, bias)
    mixed = _parameter_dtypes(x, weight, bias)
    dtype = torch.float32 if mixed or x.device.type != "cpu" else x.dtype
    statistics = contiguous_spec(
        compute_dtype(dtype) if x.device.type != "cpu" else dtype, (*x.shape[:lead], *(1 for _ in shape)), x.device
    )
    return TensorSpec(x.dtype, x.shape, contiguous_stride(x.shape), x.device), statistics, statistics


def affine(b: Any, value: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        value = b.call("aten.mul.Tensor", value, cast(b, weight, value.spec.dtype))
    if bias is not None:
        value = b.call("aten.add.Tensor", value, cast(b, bias, value.spec.dtype))
    return value


def scale_of(b: Any, variance: Any, eps: float) -> Any:
    return b.call("aten.rsqrt.default", b.call("aten.add.Tensor", variance, eps))


def normalized(b: Any, x: Any, axes: list[int], eps: float) -> tuple[Any, Any, Any]:
    """(x - mean) / sqrt(variance + eps) over `axes`, the mean, and the reciprocal deviation; x in its compute dtype."""
    if any(x.spec.shape[a] == 0 for a in axes):
        raise NotCovered("nothing to normalise")
    variance, mean = variance_of(b, x, axes, 0, True)
    scale = scale_of(b, variance, eps)
    return b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", x, mean), scale), mean, scale


def _last(x: Any, shape: Sequence[Any]) -> list[int]:
    """The axes of a normalized shape."""
    return list(range(x.spec.ndim - len(shape), x.spec.ndim))


def _layer_norm_parts(b: Any, x: Any, shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """The result; mean and reciprocal deviation in the compute dtype."""
    value, mean, scale = normalized(b, cast(b, x, compute_dtype(x.spec.dtype)), _last(x, shape), eps)
    return cast(b, affine(b, value, weight, bias), x.spec.dtype), mean, scale


def _native_layer_norm_parts(
    b: Any, x: Any, shape: Sequence[Any], weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any]:
    dtype = _native_layer_norm(b.env, x.spec, shape, weight and weight.spec, bias and bias.spec, eps)[1].dtype
    value, mean, scale = _layer_norm_parts(b, x, shape, weight, bias, eps)
    return value, cast(b, mean, dtype), cast(b, scale, dtype)


define("aten.layer_norm.default", infer=_layer_norm,
       decompose=lambda b, x, shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True: _layer_norm_parts(
           b, x, shape, weight, bias, eps)[0])
define(
    "aten.native_layer_norm.default",
    infer=_native_layer_norm,
    decompose=_native_layer_norm_parts,
    differentiable=(True, False, False),
)


def _rms_norm(
    env: SizeEnv, x: TensorSpec, shape: Sequence[Any], weight: TensorSpec | None = None, eps: float | None = None
) -> TensorSpec:
    _trailing(env, x, shape, weight)
    if not is_contiguous(x.shape, x.stride) or weight is not None and weight.dtype is not x.dtype:
        raise NotCovered("rms_norm")
    return TensorSpec(x.dtype, x.shape, contiguous_stride(x.shape), x.device)


def _rms_norm_parts(
    b: Any, x: Any, shape: Sequence[Any], weight: Any = None, eps: float | None = None
) -> tuple[Any, Any]:
    """The result, and the reciprocal root of the mean square."""
    dtype, compute, axes = x.spec.dtype, compute_dtype(x.spec.dtype), _last(x, shape)
    if eps is None:
        eps = torch.finfo(compute).eps
    if any(x.spec.shape[a] == 0 for a in axes):
        raise NotCovered("nothing to normalise")
    x = cast(b, x, compute)
    scale = scale_of(b, mean_of(b, b.call("aten.mul.Tensor", x, x), axes, True), eps)
    return cast(b, affine(b, b.call("aten.mul.Tensor", x, scale), weight, None), dtype), scale


define("aten.rms_norm.default", infer=_rms_norm, decompose=lambda *args: _rms_norm_parts(*args)[0])
define("aten._fused_rms_norm.default", decompose=_rms_norm_parts)


def _group_norm(env: SizeEnv, x: TensorSpec, groups: int, weight: TensorSpec | None = None,
                bias: TensorSpec | None = None, *rest: Any) -> TensorSpec:
    if len(x.shape) < 2 or not is_float(x.dtype):
        raise NotCovered("group_norm")
    # The CPU's kernel keeps channels last, which the meta kernel does not know; other devices' do not.
    last, channels = is_channels_last_strides(env, x.shape, x.stride), x.shape[1]
    keeps_last = last and x.device.type == "cpu"
    if not (last or is_contiguous(x.shape, x.stride)) or not (keeps_last or type(channels) is int):
        raise NotCovered("group_norm")
    if type(groups) is not int or groups < 1 or not env.equal(mod(channels, groups), 0, "groups of channels"):
        raise Invalid("groups")
    for parameter in (weight, bias):
        if parameter is not None and (
                len(parameter.shape) != 1 or not env.equal(parameter.shape[0], channels, "channels of a parameter")):
            raise Invalid("parameter shape")
    _parameter_dtypes(x, weight, bias)
    strides = channels_last_stride if keeps_last else contiguous_stride
    return TensorSpec(x.dtype, x.shape, strides(x.shape), x.device)


def per_channel(b: Any, parameter: Any, ndim: int) -> Any:
    """A parameter of size C, shaped to broadcast along axis 1."""
    if parameter is None or ndim == 2:
        return parameter
    return b.call("aten.reshape.default", parameter, [-1] + [1] * (ndim - 2))


def group_norm_parts(
    b: Any, x: Any, weight: Any, bias: Any, n: Any, channels: Any, rest: Any, groups: int, eps: float
) -> tuple[Any, Any, Any]:
    """The result; mean and reciprocal deviation in the compute dtype."""
    shape, dtype = x.spec.shape, x.spec.dtype
    row_major_only(b.env, (x.spec,))
    grouped = [n, groups, floordiv(channels, groups) * rest]
    value, mean, scale = normalized(
        b, b.call("aten.reshape.default", cast(b, x, compute_dtype(dtype)), grouped), [2], eps)
    value = b.call("aten.reshape.default", value, list(shape))
    value = affine(b, value, per_channel(b, weight, len(shape)), per_channel(b, bias, len(shape)))
    return cast(b, value, dtype), mean, scale


def _group_norm_parts(
    b: Any, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    n, channels, *rest = x.spec.shape
    return group_norm_parts(b, x, weight, bias, n, channels, prod(tuple(rest)), groups, eps)[0]


define("aten.group_norm.default", infer=_group_norm, decompose=_group_norm_parts)


def _batch_norm(env: SizeEnv, x: TensorSpec, weight: TensorSpec | None, bias: TensorSpec | None,
                running_mean: TensorSpec | None, running_var: TensorSpec | None, training: bool,
                *rest: Any) -> TensorSpec:
    row_major_only(env, (x,))
    if training or running_mean is None or running_var is None:
        raise NotCovered("batch_norm while training")
    if (
        len(x.shape) < 2
        or x.device.type != "cpu" and not is_contiguous(x.shape, x.stride)  # the CPU's result is row-major all the same
        or not is_float(x.dtype)
        or any(s == 0 for s in x.shape)
    ):
        raise NotCovered("batch_norm")
    given = [parameter for parameter in (weight, bias, running_mean, running_var) if parameter is not None]
    if not all(of_channels(env, parameter, x.shape[1]) for parameter in given):
        raise NotCovered("parameter")
    kinds = {parameter.dtype for parameter in given}
    if kinds != {x.dtype} and not (kinds == {torch.float32} and compute_dtype(x.dtype) is torch.float32):
        raise NotCovered("parameter")
    return TensorSpec(x.dtype, x.shape, contiguous_stride(x.shape), x.device)


def normal_by(b: Any, x: Any, mean: Any, scale: Any, weight: Any, bias: Any, dtype: torch.dtype) -> Any:
    """The result for a mean and a scale of each channel."""
    ndim = x.spec.ndim
    value = b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", x, mean), scale)
    return cast(b, affine(b, value, per_channel(b, weight, ndim), per_channel(b, bias, ndim)), dtype)


def of_channels(env: SizeEnv, parameter: TensorSpec, channels: Dim) -> bool:
    """Whether a parameter has an element for each channel, as it must lest eager raise."""
    return len(parameter.shape) == 1 and env.equal(parameter.shape[0], channels, "channels")


def batch_norm_parts(
    b: Any,
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Any:
    if training or running_mean is None or running_var is None:
        raise NotCovered("batch_norm while training")
    dtype, ndim = x.spec.dtype, x.spec.ndim
    x, mean, var = (cast(b, v, compute_dtype(dtype)) for v in (x, running_mean, running_var))
    scale = per_channel(b, scale_of(b, var, eps), ndim)
    return normal_by(b, x, per_channel(b, mean, ndim), scale, weight, bias, dtype)


define("aten.batch_norm.default", infer=_batch_norm, decompose=batch_norm_parts)


# -- Dropout ------------------------------------------------------------------------------------------------------


def _drops(x: TensorSpec, p: float, train: bool) -> bool:
    """Whether `dropout` does anything (else it returns its input)."""
    if type(train) is not bool or not isinstance(p, (int, float)):
        raise NotCovered("dropout")
    return train and p != 0 and not any(s == 0 for s in x.shape)


def _dropout(env: SizeEnv, x: TensorSpec, p: float, train: bool) -> TensorSpec:
    if not 0 <= p <= 1:
        raise Invalid("probability")
    if not _drops(x, p, train):
        return x
    if not is_contiguous(x.shape, x.stride) or not is_float(x.dtype):
        raise NotCovered("dropout")
    return TensorSpec(x.dtype, x.shape, contiguous_stride(x.shape), x.device)


define(
    "aten.dropout.default", infer=_dropout, aliasing=lambda env, x, p, train: "copy" if _drops(x, p, train) else "self"
)


# -- Attention ----------------------------------------------------------------------------------------------------


def _attention(
    env: SizeEnv,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    mask: TensorSpec | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorSpec:
    """Eager's fused CPU kernel returns its result in the query's layout; its plain one is row-major. The layouts of
    kernels on GPUs are told by their meta kernels."""
    ndim = len(q.shape)
    if len(k.shape) != ndim or len(v.shape) != ndim or ndim < 2 or not is_float(q.dtype):
        raise NotCovered("attention")
    if not q.dtype is k.dtype is v.dtype or q.device.type not in ("cpu", "cuda") or one_device((q, k, v)) != q.device:
        raise NotCovered("attention")
    if not env.equal(q.shape[-1], k.shape[-1], "attention") or not env.equal(k.shape[-2], v.shape[-2], "attention"):
        raise Invalid("attention sizes")
    batch = q.shape[:-2]
    if enable_gqa:
        if ndim < 3 or type(q.shape[-3]) is not int or type(k.shape[-3]) is not int or q.shape[-3] % k.shape[-3]:
            raise NotCovered("attention heads")
        pairs = [*zip(k.shape[:-2], v.shape[:-2], strict=True), *zip(q.shape[:-3], k.shape[:-3], strict=True)]
        if not all(env.equal(a, c, "attention") for a, c in pairs):
            raise Invalid("attention batches")
    else:
        batch = broadcast_shapes(env, (batch, k.shape[:-2], v.shape[:-2]))
        if q.device.type != "cpu" and not all(_fills(env, t, batch) for t in (q, k, v)):
            raise NotCovered("broadcast attention")
    if mask is not None:
        last = (*batch, q.shape[-2], k.shape[-2])[ndim - len(mask.shape) :]
        if len(mask.shape) > ndim or not all(
            a == 1 or env.equal(a, c, "attention mask") for a, c in zip(mask.shape, last, strict=True)
        ):
            raise NotCovered("attention mask")
        if mask.dtype is not torch.bool and mask.dtype is not q.dtype or is_causal:
            raise NotCovered("attention mask")
    shape = (*batch, q.shape[-2], v.shape[-1])
    if q.device.type == "cuda":
        stride = _gpu_attention_stride(env, (q, k, v), shape, mask, float(dropout_p), is_causal, enable_gqa)
        return TensorSpec(q.dtype, shape, stride, q.device)
    if _is_fused(env, q, k, v, mask, dropout_p, is_causal, enable_gqa):
        return TensorSpec(q.dtype, q.shape, preserved_stride(env, q.shape, q.stride), q.device)
    return TensorSpec(q.dtype, shape, contiguous_stride(shape), q.device)


def _fills(env: SizeEnv, x: TensorSpec, batch: tuple[Dim, ...]) -> bool:
    """Whether a tensor has the batch of the result, and is not broadcast to it."""
    return not any(is_one(env, own) and not is_one(env, whole)
                   for own, whole in zip(x.shape[:-2], batch, strict=True))


def _gpu_attention_stride(
    env: SizeEnv,
    operands: tuple[TensorSpec, TensorSpec, TensorSpec],
    shape: tuple[Dim, ...],
    mask: TensorSpec | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> tuple[Dim, ...]:
    """The layout of the result of eager's kernel, which does not depend on a mask."""
    width = operands[0].shape[-1]
    if len(shape) == 4 and isinstance(width, int) and width % 8 and is_half(operands[0].dtype):
        # the kernel works on padded operands, positions outside of heads, and its result is cut
        padded = -(-width // 8) * 8
        batch, heads, queries = shape[:-1]
        return (queries * heads * padded, padded, heads * padded, 1)
    if len(shape) != 4 or not isinstance(width, int):
        return contiguous_stride(shape)
    kernel = gpu_attention(env, operands, mask, dropout_p, is_causal, enable_gqa)
    if kernel is None:
        return contiguous_stride(shape)
    name, arguments = kernel
    usual = [at_hints(env, one) for one in operands]
    made = derive(get(name), env, (*usual, *arguments), {}, False).spec
    assert isinstance(made, tuple) and isinstance(made[0], TensorSpec)
    stride = made[0].stride
    if all(one.is_static for one in operands):
        return stride
    return dense_stride(shape, sorted(range(len(shape)), key=lambda axis: (stride[axis], -axis)))  # in the same order


def is_half(dtype: torch.dtype) -> bool:
    return dtype in (torch.float16, torch.bfloat16)


#: The answers of `torch._fused_sdp_choice`.
_MATH, _FLASH, _EFFICIENT, _CUDNN = 0, 1, 2, 3


def gpu_attention(
    env: SizeEnv,
    operands: tuple[TensorSpec, TensorSpec, TensorSpec],
    mask: TensorSpec | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> tuple[str, tuple[Any, ...]] | None:
    """The operator that attention on a GPU is for these arguments, and its arguments behind query, key and value with
    None in place of a mask; None for the plain formula. NotCovered where torch changes the operands first.

    torch is asked, with tensors of one row of the batch; without a GPU the answer is the usual one."""
    width = operands[0].shape[-1]
    if len(operands[0].shape) != 4 or not isinstance(width, int) or width % 8:
        raise NotCovered("attention of an odd width on a GPU")
    _fix_choice(env, operands, is_causal)
    needed = any(spec.requires_grad for spec in operands)
    if torch.cuda.is_available():

        def sample(spec: TensorSpec) -> torch.Tensor:
            spec = at_hints(env, spec)
            shape = (1, *spec.shape[1:]) if spec.ndim == 4 else spec.shape
            return fake_tensor(spec.with_(shape=shape), spec.device)

        given: Any = (*map(sample, operands), mask and sample(mask), dropout_p, is_causal)
        with torch._C.DisableTorchFunction():
            choice = torch._fused_sdp_choice(*given, enable_gqa=enable_gqa)
            if choice == _CUDNN and needed:
                choice = _beside_cudnn(torch.backends.cuda.SDPAParams(*given, enable_gqa))  # type: ignore[call-arg]
    else:
        choice = _FLASH if is_half(operands[0].dtype) and mask is None else _EFFICIENT
    if choice == _FLASH:
        return "aten._scaled_dot_product_flash_attention.default", (dropout_p, is_causal, False)
    if choice == _EFFICIENT:
        return "aten._scaled_dot_product_efficient_attention.default", (None, needed, dropout_p, is_causal)
    if choice == _CUDNN:
        return "aten._scaled_dot_product_cudnn_attention.default", (None, needed, dropout_p, is_causal, False)
    return None


def _beside_cudnn(given: torch.backends.cuda.SDPAParams) -> int:
    """The kernel for attention with gradients in place of cuDNN's. The backward kernel of that is built for the strides
    of the result's gradient, but torch finds it again by those of query, key and value alone: whatever ran first in
    the process, eager or not, decides how later gradients are read. Ours need not be laid out as those."""
    if torch.backends.cuda.can_use_flash_attention(given):
        return _FLASH
    return _EFFICIENT if torch.backends.cuda.can_use_efficient_attention(given) else _MATH


def _fix_choice(env: SizeEnv, operands: tuple[TensorSpec, ...], is_causal: bool) -> None:
    """Guard what torch's choice depends on besides widths: whether anything is empty, and squares of causal scores."""
    for size in (size for spec in operands for size in spec.shape if not isinstance(size, int)):
        if less(env, size, 1):
            raise NotCovered("attention without elements")
    if is_causal:
        env.equal(operands[0].shape[-2], operands[1].shape[-2], "causal attention")


def _is_fused(
    env: SizeEnv,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    mask: TensorSpec | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Asks torch which kernel it would pick, with tensors of the hinted sizes that are never written to."""
    if len(q.shape) != 4:
        return False

    for spec in (q, k, v):
        if not is_static(spec.shape):
            for size in spec.shape:
                if less(env, size, 1):
                    raise NotCovered("attention without elements")
    with torch._C.DisableTorchFunction():
        given: Any = [spec and fake_tensor(at_hints(env, spec), CPU) for spec in (q, k, v, mask)]
        choice = torch._fused_sdp_choice(*given, float(dropout_p), is_causal, enable_gqa=enable_gqa)  # type: ignore[call-arg,misc]
    if choice not in (0, 1):
        raise NotCovered("attention kernel")
    return choice == 1


def attention_kernel(
    env: SizeEnv,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
    """The operator that eager's attention of these nodes ends up in, and its arguments, without masks that eager turns
    into another tensor first. None for the plain formula, or where torch changes the operands."""
    operands = q.tensor, k.tensor, v.tensor
    spec = mask.tensor if mask is not None else None
    own = mask if spec is not None and spec.dtype is not torch.bool else None
    options: dict[str, Any] = {"scale": scale}
    try:
        if q.tensor.device.type == "cpu":
            if not _is_fused(env, *operands, spec, dropout_p, is_causal, enable_gqa):
                return None
            name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
            return name, (q, k, v, dropout_p, is_causal), {**options, "attn_mask": own}
        found = gpu_attention(env, operands, spec, float(dropout_p), is_causal, enable_gqa)
    except NotCovered:
        return None
    if found is None:
        return None
    name, arguments = found
    return name, (q, k, v, *(own if argument is None else argument for argument in arguments)), options


def _attention_parts(
    b: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Matmul, softmax, matmul. For dropout, causal masks and grouped heads there is no decomposition."""
    dtype, width = q.spec.dtype, q.spec.shape[-1]
    if dropout_p or is_causal or enable_gqa or mask is not None and mask.spec.dtype is torch.bool or \
            scale is None and type(width) is not int:
        raise NotCovered("attention")
    factor = scale if scale is not None else 1 / math.sqrt(width)
    if dtype in (torch.float16, torch.bfloat16):  # in 32 bits, as torch's formula: large scores need them
        q, k, v = (cast(b, x, torch.float32) for x in (q, k, v))
    scores = b.call("aten.matmul.default", q, b.call("aten.transpose.int", k, -2, -1))
    scores = b.call("aten.mul.Tensor", scores, factor)
    if mask is not None:
        scores = b.call("aten.add.Tensor", scores, mask)
    return cast(b, b.call("aten.matmul.default", b.call("aten.softmax.int", scores, -1), v), dtype)


define("aten.scaled_dot_product_attention.default", infer=_attention, decompose=_attention_parts)


# -- Losses -------------------------------------------------------------------------------------------------------


def _apply_reduction(b: Any, value: Any, reduction: int) -> Any:
    if reduction == 0:
        return value
    if reduction == 1:
        return mean_of(b, value, list(range(value.spec.ndim)), False)
    return b.call("aten.sum.default", value)


def _loss(value_of: Callable[..., Any]) -> Callable[..., Any]:
    """An elementwise loss: `value_of(b, difference, *parameters)`, reduced."""

    def decompose(b: Any, x: Any, target: Any, reduction: int = 1, *rest: Any) -> Any:
        dtype = result_type((x.spec, target.spec))
        if not is_float(dtype):
            raise NotCovered("a loss of integers")
        x, target = (cast(b, v, compute_dtype(dtype)) for v in (x, target))
        value = value_of(b, b.call("aten.sub.Tensor", x, target), *rest)
        return cast(b, _apply_reduction(b, value, reduction), dtype)

    return decompose


def _absolute(b: Any, difference: Any) -> Any:
    return b.call("aten.abs.default", difference)


def _smooth_l1(b: Any, difference: Any, beta: float = 1.0) -> Any:
    distance = _absolute(b, difference)
    if beta == 0:
        return distance
    square = b.call("aten.mul.Tensor", distance, distance)
    near = b.call("aten.div.Tensor", b.call("aten.mul.Tensor", square, 0.5), beta)
    far = b.call("aten.sub.Tensor", distance, 0.5 * beta)
    return b.call("aten.where.self", b.call("aten.lt.Scalar", distance, beta), near, far)


define("aten.mse_loss.default",
       decompose=_loss(lambda b, difference: b.call("aten.mul.Tensor", difference, difference)))
define("aten.l1_loss.default", decompose=_loss(_absolute))
define("aten.smooth_l1_loss.default", decompose=_loss(_smooth_l1))


def _class_loss(
    env: SizeEnv, x: TensorSpec, target: TensorSpec, weight: TensorSpec | None = None, reduction: int = 1, *rest: Any
) -> TensorSpec:
    if target.dtype is not torch.int64 or not is_float(x.dtype) or len(x.shape) not in (1, 2):
        raise Invalid("class indices only")
    if len(target.shape) != len(x.shape) - 1 or target.shape and not env.equal(target.shape[0], x.shape[0], "loss"):
        raise Invalid("target shape")
    if weight is not None and (weight.shape != (x.shape[-1],) or weight.dtype is not x.dtype):
        raise NotCovered("class weights")
    if reduction not in (0, 1, 2):
        raise NotCovered("reduction")
    return contiguous_spec(x.dtype, () if reduction else target.shape, one_device((x, target)))


def nll_of(
    b: Any, logs: Any, target: Any, weight: Any, reduction: int, ignore_index: int, axis: int
) -> tuple[Any, Any]:
    """Negative log likelihood of log probabilities that are in their compute dtype, with the classes along `axis`; and
    the sum of the weights that count (None where nothing is reduced)."""
    counted = b.call("aten.ne.Scalar", target, ignore_index)
    safe = b.call("aten.where.ScalarOther", counted, target, 0)
    picked = b.call("aten.gather.default", logs, axis, b.call("aten.unsqueeze.default", safe, axis))
    value = b.call("aten.neg.default", b.call("aten.squeeze.dim", picked, axis))
    counts = b.call("aten.to.dtype", counted, logs.spec.dtype)
    if weight is not None:
        weights = b.call("aten.index.Tensor", cast(b, weight, logs.spec.dtype), [safe])
        value = b.call("aten.mul.Tensor", value, weights)
        counts = b.call("aten.mul.Tensor", counts, weights)
    value = b.call("aten.where.ScalarOther", counted, value, 0.0)
    if reduction == 0:
        return value, None
    total, count = b.call("aten.sum.default", value), b.call("aten.sum.default", counts)
    return (total if reduction == 2 else b.call("aten.div.Tensor", total, count)), count


def _nll_parts(b: Any, x: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100) -> Any:
    _class_loss(b.env, x.spec, target.spec, weight and weight.spec, reduction)
    logs = cast(b, x, compute_dtype(x.spec.dtype))
    return cast(b, nll_of(b, logs, target, weight, reduction, ignore_index, logs.spec.ndim - 1)[0], x.spec.dtype)


def _cross_entropy_parts(
    b: Any,
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    if label_smoothing:
        raise NotCovered("label smoothing")
    _class_loss(b.env, x.spec, target.spec, weight and weight.spec, reduction)
    logs = b.call("aten.log_softmax.int", cast(b, x, compute_dtype(x.spec.dtype)), -1)
    return cast(b, nll_of(b, logs, target, weight, reduction, ignore_index, logs.spec.ndim - 1)[0], x.spec.dtype)


define("aten.cross_entropy_loss.default", infer=_class_loss, decompose=_cross_entropy_parts)
define("aten.nll_loss_nd.default", "aten.nll_loss.default", infer=_class_loss, decompose=_nll_parts)


def _ctc(env: SizeEnv, x: TensorSpec, targets: TensorSpec, lengths: Any, target_lengths: Any, blank: int = 0,
         reduction: int = 1, zero_infinity: bool = False) -> TensorSpec:
    if len(x.shape) != 3 or not is_float(x.dtype) or is_float(targets.dtype):
        raise NotCovered("ctc_loss")
    return contiguous_spec(x.dtype, () if reduction else (x.shape[1],), x.device)


define("aten.ctc_loss.IntList", "aten.ctc_loss.Tensor", infer=_ctc)


# -- Gated units --------------------------------------------------------------------------------------------------


def _glu_parts(b: Any, x: Any, dim: int = -1) -> Any:
    axis = normalize_dim(dim, x.spec.ndim)
    half = floordiv(x.spec.shape[axis], 2)
    dtype = x.spec.dtype
    first = b.call("aten.slice.Tensor", x, axis, 0, half)
    second = b.call("aten.slice.Tensor", x, axis, half, 2 * half)
    gate = b.call("aten.sigmoid.default", cast(b, second, compute_dtype(dtype)))
    return cast(b, b.call("aten.mul.Tensor", cast(b, first, compute_dtype(dtype)), gate), dtype)


define("aten.glu.default", decompose=_glu_parts)

declare("softmax.int", "_softmax.default", softmax="softmax")
declare("log_softmax.int", "_log_softmax.default", softmax="log_softmax")
