"""The calls that eager's backward passes make, recorded from torch's own operator samples."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

#: Samples looked at per operator, and elements of the largest tensor.
SAMPLES, LARGEST = 30, 20_000


@dataclass(frozen=True)
class Call:
    """One call: the op, its arguments (tensors detached and copied), and where it came from."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    origin: str


class TracedGraphBuilder(TorchDispatchMode):
    """Notes the calls of ops by name."""

    def __init__(self, wanted: frozenset[str], origin: str) -> None:
        super().__init__()
        self.wanted, self.origin = wanted, origin
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) in self.wanted:
            self.calls.append(Call(func, tree_map(_copy, args), tree_map(_copy, kwargs or {}), self.origin))
        return func(*args, **(kwargs or {}))


def _copy(value: Any) -> Any:
    """A tensor of its own with the same strides."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if any(n > 1 and s == 0 for n, s in zip(value.shape, value.stride(), strict=True)):
        return value.clone().as_strided(value.shape, value.stride()) if value.numel() else value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


@functools.cache
def recorded(operators: tuple[str, ...], wanted: frozenset[str], dtype: torch.dtype) -> tuple[Call, ...]:
    """The calls of `wanted` ops that the forward and backward passes of the samples of `operators` make."""
    found: list[Call] = []
    for info in op_db:
        if info.name not in operators or dtype not in info.supported_backward_dtypes("cpu"):
            continue
        for number, sample in enumerate(_samples(info, dtype)):
            builder = TracedGraphBuilder(wanted, f"{info.name} sample {number}")
            inputs = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if _needs_grad(t)]
            with builder:
                torch.manual_seed(0)
                results = [t for t in tree_leaves(info.op(sample.input, *sample.args, **sample.kwargs)) if _has_grad(t)]
                if results:
                    seeds = [torch.randn(r.shape, dtype=r.dtype) for r in results]
                    torch.autograd.grad(results, inputs, seeds, allow_unused=True)
            found += builder.calls
    return tuple(found)


def _samples(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    torch.manual_seed(0)
    for number, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=True)):
        tensors = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)]
        if number >= SAMPLES:
            return
        if all(t.numel() <= LARGEST for t in tensors):
            yield sample


def _needs_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _has_grad(value: Any) -> bool:
    return _needs_grad(value) and value.grad_fn is not None
