"""`torch.inference_mode()` as the traced program enters and leaves it: see `capture/inference_blocks.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...breaks import GraphBreak
from ...interpreter.attributes import load_attr_default
from ...interpreter.callees import builtin
from ...interpreter.calls import inline_library
from ...polyfills.inference import begin, end
from ...values import ObjectValue, TupleValue, Value, const
from .torch_functions import PARTS_OF_INFERENCE_MODE

if TYPE_CHECKING:
    from ...values import Interpreter


@builtin(torch.inference_mode.__enter__)
def _enter(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    mode = load_attr_default(interp, args[0], "mode")
    if type(mode.literal) is not bool:
        raise GraphBreak("skipped", "inference mode that is no bool")
    if interp.builder.state.inference_mode and not mode.value:
        raise GraphBreak("skipped", "inference mode ends inside of it")
    return inline_library(interp, torch.inference_mode.__enter__, args, kwargs)


@builtin(torch.inference_mode.__exit__)
def _exit(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Any:
    if not isinstance(load_attr_default(interp, args[0], "_inference_mode_context"), ObjectValue):
        raise GraphBreak("skipped", "inference mode ends that began before")
    return inline_library(interp, torch.inference_mode.__exit__, args, kwargs)


@builtin(begin)
def _begin(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (mode,) = args
    if type(mode.literal) is not bool:
        raise GraphBreak("skipped", "inference mode that is no bool")
    with interp.recording("inference mode"):
        before = interp.builder.inference.begin(_begun_at(interp), mode.value)
    return TupleValue([const(flag) for flag in before])


@builtin(end)
def _end(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    before = args[0]
    grad, inference = before.constant(interp)
    interp.builder.inference.end(grad, inference)
    return const(None)


def _begun_at(interp: Interpreter) -> int:
    """The step of the program's own that enters the block."""
    step = interp.step
    for frame in reversed(interp.frames):
        if not any(frame.code is part for part in PARTS_OF_INFERENCE_MODE):
            break
        step = frame.entered
    return step
