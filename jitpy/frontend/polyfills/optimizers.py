"""Functions in C that optimizers call."""

from __future__ import annotations

import torch

from .registry import give_up, substitute


@substitute(torch._C._group_tensors_by_device_and_dtype)
def group_tensors(lists, with_indices=False, /):
    """Lists of equal length (or empty ones), taken apart by the device and dtype of the first list's tensors."""
    if not lists or not lists[0]:
        give_up("grouping no tensors")
    count = len(lists[0])
    if not all([len(one) == count or not len(one) for one in lists]):
        give_up("grouping lists of several lengths")
    groups = {}
    for k in range(count):
        first = lists[0][k]
        if first is None:
            give_up("grouping tensors of which one is missing")
        key = first.device, first.dtype
        if key not in groups:
            groups[key] = [[] for _ in lists], []
        columns, indices = groups[key]
        for column, one in zip(columns, lists, strict=True):
            tensor = one[k] if len(one) else None
            if not _goes_with(tensor, first):
                give_up("grouping tensors of several dtypes")
            if len(one):
                column.append(tensor)
        if with_indices:
            indices.append(k)
    return groups


def _goes_with(tensor, first):
    """Numbers of steps are float32 or float64, and may stay on the CPU."""
    if tensor is None:
        return True
    counts = tensor.dtype is torch.float32 or tensor.dtype is torch.float64
    if tensor.device == first.device:
        return tensor.dtype is first.dtype or counts
    return tensor.device.type == "cpu" and counts
