"""Calls of scaled_dot_product_attention on a GPU, as they are recorded.

torch's choice of a kernel is one for the real device, so the call stays whole; and a mask in memory keeps it from the
fastest kernels, or, where the mask is laid out oddly, from all of them: then the scores are written out in float32.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from jitpy.ir.passes.masks import hides_nothing, is_causal

from ..traced import TracedTensor

if TYPE_CHECKING:
    from ..recording.recorder import Recorder

ATTENTION = torch.nn.functional.scaled_dot_product_attention

_Call = tuple[tuple[Any, ...], dict[str, Any]]


def _signature(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0, is_causal: Any = False,
               scale: Any = None, enable_gqa: Any = False) -> None:
    """The parameters of the function, which is a builtin."""


_SIGNATURE = inspect.signature(_signature)


def is_on_gpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all tensors of a call are on a GPU."""
    tensors = [value for value in (*args, *kwargs.values()) if type(value) is TracedTensor]
    return bool(tensors) and all(value.spec.device.type == "cuda" for value in tensors)


def prepared(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """The arguments as autocast makes them, without a mask that says nothing or that is the causal one."""
    autocast = recorder.state.autocast["cuda"]
    if autocast.enabled:
        args = tuple(_cast(recorder, value, autocast.dtype) for value in args)
        kwargs = {name: _cast(recorder, value, autocast.dtype) for name, value in kwargs.items()}
    try:
        given = _SIGNATURE.bind(*args, **kwargs).arguments
    except TypeError:
        return args, kwargs
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    if type(mask) is not TracedTensor or type(query) is not TracedTensor or type(key) is not TracedTensor:
        return args, kwargs
    if given.get("is_causal", False) is not False or query.ndim < 2 or key.ndim < 2:
        return args, kwargs
    scores = (*query.shape[:-1], key.shape[-2])
    if mask.ndim > query.ndim or any(
            m != 1 and m != n for m, n in zip(reversed(mask.shape), reversed(scores), strict=False)):
        return args, kwargs
    node = recorder.node(mask)
    if hides_nothing(node):
        given["attn_mask"] = None
    elif is_causal(node, *scores[-2:]):
        given["attn_mask"], given["is_causal"] = None, True
    elif mask.ndim and mask.spec.stride[-1] != 1:
        given["attn_mask"] = recorder.call(torch.Tensor.contiguous, (mask,), {}, recorder.loc)
    rest = {name: given.pop(name) for name in ("scale", "enable_gqa") if name in given}
    return (query, key, given.pop("value")), {**{n: v for n, v in given.items() if n not in ("query", "key")}, **rest}


def _cast(recorder: Recorder, value: Any, dtype: torch.dtype) -> Any:
    """What autocast does with an argument of an op that runs in the lower precision."""
    if type(value) is not TracedTensor or not value.spec.dtype.is_floating_point:
        return value
    if value.spec.dtype in (dtype, torch.float64):
        return value
    return recorder.call(torch.Tensor.to, (value, dtype), {}, recorder.loc)
