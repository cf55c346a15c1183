"""The facts that autograd has about a tensor beyond its keys: as `autograd_passes` of
`native/runtime/tensor_facts.cpp`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

_creation_meta = torch._C._autograd._get_creation_meta  # type: ignore[attr-defined]
_DEFAULT = torch._C._autograd.CreationMeta.DEFAULT  # type: ignore[attr-defined]


def counts_versions(tensor: torch.Tensor) -> bool:
    """Whether writes to the tensor are counted: not to what was made in inference mode, whatever it was given since."""
    try:
        tensor._version  # noqa: B018
    except RuntimeError:
        return False
    return True


def is_usual(tensor: torch.Tensor) -> bool:
    """Whether a tensor is what its keys say, which eager may raise for otherwise: one made in inference mode that got
    the keys of another one (`.data = ...`), or a view that autograd restricts behind a write to what it shows."""
    if counts_versions(tensor) == tensor.is_inference():
        return False
    base = tensor._base
    if base is None or not tensor.requires_grad or _creation_meta(tensor) == _DEFAULT:
        return True
    try:
        tensor.grad_fn  # noqa: B018
    except RuntimeError:
        return False
    return True


def count_writes(number: int, *tensors: torch.Tensor) -> tuple[()]:
    """Move version counters as that many writes do."""
    for tensor in filter(counts_versions, tensors):
        for _ in range(number):
            torch.autograd.graph.increment_version(tensor)
    return ()


__all__ = ["count_writes", "counts_versions", "is_usual"]


class _Asked(threading.local):
    """Whether classes of tensors are asked for `__torch_function__` around the guards that a thread evaluates."""

    around = False


_asked = _Asked()


@contextlib.contextmanager
def plain_getters() -> Iterator[None]:
    """Evaluate guards, or compile, with torch-function overrides off: getters of tensors are torch's own, and modes see
    the program's own calls only. `asks_classes` answers as around the block."""
    before, _asked.around = _asked.around, asks_classes()
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        _asked.around = before


def as_around() -> contextlib.AbstractContextManager[Any]:
    """Leave `plain_getters` for a block: guards are evaluated as a call does."""
    return torch._C._EnableTorchFunction() if _asked.around else contextlib.nullcontext()


def asks_classes() -> bool:
    """Whether classes of tensors are asked for `__torch_function__`, but for guards that are evaluated."""
    return torch._C._is_torch_function_enabled() or _asked.around
