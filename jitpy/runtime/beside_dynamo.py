"""Living beside torch.compile: a function that it compiles may call a jitted one, or be one."""

from __future__ import annotations

import types
from typing import Any

import torch


def hide(code: types.CodeType) -> types.CodeType:
    """Keep torch.compile off frames of `code` and off all that they call; returns `code`.

    For what jitpy writes, which has constants that Dynamo does not know, and for the compiler itself, which it would
    compile. Where this torch cannot be told, nothing happens.
    """
    if _SKIP is not None:
        torch._C._dynamo.eval_frame.set_code_exec_strategy(code, _SKIP)
    return code


def _skip_strategy() -> Any:
    theirs = torch._C._dynamo.eval_frame
    if not hasattr(theirs, "set_code_exec_strategy"):
        return None
    return theirs._FrameExecStrategy(theirs._FrameAction.SKIP, theirs._FrameAction.SKIP)


_SKIP = _skip_strategy()
