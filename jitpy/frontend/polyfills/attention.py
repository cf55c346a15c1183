"""Functions of torch's flex attention: masks without vmap and the mode that it needs, or without sorting one block."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch
from torch.nn.attention.flex_attention import (
    _LARGE_SPARSE_BLOCK_SIZE,
    BlockMask,
    _create_empty_block_mask,
    _get_mod_type,
    _ModificationType,
    create_mask,
    noop_mask,
)

from .registry import give_up, substitute


def at_all(mod: Any, score: Any, numbers: Any) -> Any:
    """`mod` of every element. The numbers of batch, head, query and key lie along the axes; `score` may be None."""
    raise RuntimeError("a model stands for this function")


@substitute(create_mask)
def _create_mask(mod_fn: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any = None) -> Any:  # noqa: N803
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    sizes = 1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN
    numbers = [torch.arange(0, size, device=device) for size in sizes]
    if _get_mod_type(mod_fn) is _ModificationType.SCORE_MOD:
        return torch.where(torch.isneginf(at_all(mod_fn, torch.zeros(sizes, device=device), numbers)), False, True)
    return at_all(mod_fn, None, numbers)


@substitute(_get_mod_type)
def _mod_type(fn: Any) -> _ModificationType:
    function, bound, names = fn, 0, ()
    if not hasattr(fn, "__code__"):
        if type(fn) is functools.partial:
            function, bound, names = fn.func, len(fn.args), tuple(fn.keywords)
            bound += type(function) is types.MethodType
        else:
            function, bound = type(fn).__call__, 1
        if not hasattr(function, "__code__") or function.__code__.co_flags & inspect.CO_VARARGS:
            return give_up("a mask function of an unusual kind")
    code = function.__code__
    required = code.co_argcount - len(function.__defaults__ or ())
    count = required - bound - len([name for name in names if name in code.co_varnames[:required]])
    if count != 5 and count != 4:
        raise AssertionError(f"Expected 4 or 5 positional args, got {count}")
    return _ModificationType.SCORE_MOD if count == 5 else _ModificationType.MASK_MOD


@substitute(_create_empty_block_mask)
def _one_block(query: Any, key: Any) -> Any:
    count = torch.ones([1, 1, 1], dtype=torch.int32, device=query.device)
    which = torch.zeros([1, 1, 1, 1], dtype=torch.int32, device=query.device)
    size = _LARGE_SPARSE_BLOCK_SIZE, _LARGE_SPARSE_BLOCK_SIZE
    return BlockMask((1, 1), count, which, None, None, count, which, None, None, size, mask_mod=noop_mask)


class _Marks:
    """`torch._dynamo` is loaded to mark sizes as static. The operator's model knows which ones are."""

    @staticmethod
    def mark_static(tensor: Any, axis: int) -> None:
        pass


def _compile(function: Any) -> Any:
    return function


#: what torch's own compiler is in the functions of torch's flex attention, by its name in `torch`
COMPILER: dict[str, Any] = {"_dynamo": _Marks, "compile": _compile}

__all__ = ["COMPILER", "at_all"]
