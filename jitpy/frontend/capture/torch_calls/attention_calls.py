"""Calls of scaled_dot_product_attention, as they are recorded.

torch's choice of a kernel is one for the real device, so on a GPU the call stays whole; and a mask in memory keeps it
from the fastest kernels, or, where the mask is laid out oddly, from all of them: then the scores are written out in
float32.

Where the program itself has changed which kernels are allowed (`torch.nn.attention.sdpa_kernel`), the call is recorded
if torch chooses the same kernel as without that, or the plain formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitpy.ir import interrupts
from jitpy.ir.ops.oracle import fake_tensor
from jitpy.ir.passes.masks import hides_nothing, is_causal

from ..torch_state import KERNELS, AttentionSwitches, TorchState, attention_switches, set_attention_switches
from ..traced import GraphBuilder, TracedTensor, Uncapturable

ATTENTION = torch.nn.functional.scaled_dot_product_attention

_Call = tuple[tuple[Any, ...], dict[str, Any]]


_ARGUMENTS = torch.ops.aten.scaled_dot_product_attention.default._schema.arguments
_DEFAULTS = {argument.name: argument.default_value for argument in _ARGUMENTS if argument.has_default_value()}


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names."""
    return {**dict(zip((argument.name for argument in _ARGUMENTS), args, strict=False)), **kwargs}


def is_on_gpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all tensors of a call are on a GPU."""
    tensors = [value for value in (*args, *kwargs.values()) if type(value) is TracedTensor]
    return bool(tensors) and all(value.spec.device.type == "cuda" for value in tensors)


def prepared(builder: GraphBuilder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """The arguments as autocast makes them, without a mask that says nothing or that is the causal one."""
    autocast = builder.state.autocast["cuda"]
    if autocast.enabled:
        args = tuple(cast(builder, value, autocast.dtype) for value in args)
        kwargs = {name: cast(builder, value, autocast.dtype) for name, value in kwargs.items()}
    given = _named(args, kwargs)
    query, key, mask = given.get("query"), given.get("key"), given.get("attn_mask")
    if type(mask) is not TracedTensor or type(query) is not TracedTensor or type(key) is not TracedTensor:
        return args, kwargs
    if given.get("is_causal", False) is not False or query.ndim < 2 or key.ndim < 2:
        return args, kwargs
    scores = (*query.shape[:-1], key.shape[-2])
    if mask.ndim > query.ndim or any(
            m != 1 and m != n for m, n in zip(reversed(mask.shape), reversed(scores), strict=False)):
        return args, kwargs
    node = builder.node(mask)
    if hides_nothing(node):
        given["attn_mask"] = None
    elif is_causal(node, *scores[-2:]):
        given["attn_mask"], given["is_causal"] = None, True
    elif mask.ndim and mask.spec.stride[-1] != 1:
        given["attn_mask"] = builder.call(torch.Tensor.contiguous, (mask,), {}, builder.loc)
    rest = {name: given.pop(name) for name in ("scale", "enable_gqa") if name in given}
    return (query, key, given.pop("value")), {**{n: v for n, v in given.items() if n not in ("query", "key")}, **rest}


_MATH = torch.ops.aten._scaled_dot_product_attention_math.default
_PLAIN = 0  # what `torch._fused_sdp_choice` answers for that


def is_chosen(state: TorchState) -> bool:
    """Whether the program has a say in which kernel attention is: it changed what is allowed, or rules the plain
    formula out, so that there may be no kernel."""
    return state.attention != state.initial["attention"] or not state.attention[KERNELS.index("math")]


def with_other_kernels(builder: GraphBuilder, args: tuple[Any, ...], kwargs: dict[str, Any],
                       record: Callable[..., Any]) -> Any:
    """A call where other kernels are allowed than those with which the compiled graph runs, or where there may be none.
    """
    state, refusal = builder.state, Uncapturable("unsupported_op", "attention where the program chooses its kernel")
    given = {**_DEFAULTS, **_named(args, kwargs)}
    tensors = [given.get(name) for name in ("query", "key", "value", "attn_mask")]
    masks = tensors[3:] if tensors[3] is not None else []
    known = all(type(t) is TracedTensor and t.spec.is_static for t in (*tensors[:3], *masks))
    present, initial = state.attention, state.initial["attention"]
    if not known or not isinstance(given["dropout_p"], float) or state.autocast_enabled:
        if present == initial:
            return record(builder, ATTENTION, args, kwargs)
        raise refusal
    choice = _choice(present, given)
    if choice < 0:
        raise refusal  # plain Python raises torch's error
    if choice == _choice(initial, given):
        state.set("attention", initial)
        try:
            return record(builder, ATTENTION, args, kwargs)
        finally:
            state.set("attention", present)
    plain = choice == _PLAIN and tensors[0].spec.device.type == "cpu"
    if not plain or any(mask.spec.dtype is torch.bool for mask in masks):
        raise refusal
    return builder.call(_MATH, (*tensors, given["dropout_p"], given["is_causal"]),
                         {name: given[name] for name in ("scale", "enable_gqa")}, builder.loc)[0]


def _choice(switches: AttentionSwitches, given: dict[str, Any]) -> int:
    """The kernel that torch takes where these are allowed."""
    operands = [given[name] for name in ("query", "key", "value", "attn_mask")]
    before = attention_switches()
    with interrupts.held(), torch._C.DisableTorchFunction():
        set_attention_switches(switches)
        try:
            return torch._fused_sdp_choice(
                *[one and fake_tensor(one.spec, one.spec.device) for one in operands],
                given["dropout_p"], given["is_causal"], scale=given["scale"], enable_gqa=given["enable_gqa"])
        finally:
            set_attention_switches(before)


def cast(builder: GraphBuilder, value: Any, dtype: torch.dtype) -> Any:
    """Autocast's conversion of an argument of an op that runs in the lower precision."""
    if type(value) is not TracedTensor or not value.spec.dtype.is_floating_point:
        return value
    if value.spec.dtype in (dtype, torch.float64):
        return value
    return builder.call(torch.Tensor.to, (value, dtype), {}, builder.loc)
