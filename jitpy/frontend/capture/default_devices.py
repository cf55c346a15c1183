"""Where factories make tensors that are told no device: `torch.set_default_device`, `with torch.device(...)`.

Torch keeps both as modes on the stack of torch-function modes. While a frame is traced these are out of force, and the
graph builder gives factories the device that they would be given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _device
from torch.utils._device import DeviceContext


@dataclass(frozen=True, slots=True)
class FunctionModes:
    """The modes on the stack. As a guard's predicate: the stack is the same."""

    default_device: torch.device | None
    #: devices of the open blocks of `with torch.device(...)`, the innermost last
    contexts: tuple[torch.device, ...]
    #: how many modes there are of other kinds
    others: int

    def __call__(self, module: Any) -> bool:
        return function_modes() == self


def function_modes() -> FunctionModes:
    """The modes on the stack now."""
    if not torch._C._len_torch_function_stack() and _device.CURRENT_DEVICE is None:
        return FunctionModes(None, (), 0)
    modes: list[Any] = list(_get_current_function_mode_stack())
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    first = 0
    if default is not None:
        if not modes or modes[0] is not default:
            return FunctionModes(None, (), len(modes) + 1)  # modes of the program's stand where torch's stood
        first = 1
    devices = tuple(mode.device for mode in modes[first:] if type(mode) is DeviceContext)
    return FunctionModes(default.device if first else None, devices, len(modes) - first - len(devices))


def with_default_device(fn: Any, kwargs: dict[str, Any], device: torch.device | None) -> dict[str, Any]:
    """Keyword arguments of a call of torch's as the mode of a default device passes them on."""
    if device is not None and kwargs.get("device") is None and fn in _device._device_constructors():
        return {**kwargs, "device": device}
    return kwargs
