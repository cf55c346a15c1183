"""Living beside torch.compile: a function that it compiles may call a jitted one, or be one."""

from __future__ import annotations

import sys
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


def hide_all(namespace: dict[str, Any]) -> None:
    """`hide` the functions of a module, with the methods and the functions inside: native code calls into them."""
    module = namespace["__name__"]
    for value in list(namespace.values()):
        if getattr(value, "__module__", None) != module:
            continue
        for found in vars(value).values() if isinstance(value, type) else (value,):
            code = getattr(getattr(found, "__func__", getattr(found, "fget", found)), "__code__", None)
            if isinstance(code, types.CodeType):
                _hide_with_inner(code)


def _hide_with_inner(code: types.CodeType) -> None:
    hide(code)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            _hide_with_inner(const)


def keep_out(function: Any) -> Any:
    """A Python function of jitpy's that programs call: torch.compile breaks its graph there. Returns it."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "it belongs to jitpy"
    hide(function.__code__)
    return function


def show_original(jitted: Any, original: Any) -> None:
    """Of two compilers around a function the outer one counts: so `torch.compile` and `torch.compiler.disable` of a
    jitted function take the original, as they do with functions that torch.compile has compiled."""
    jitted._torchdynamo_orig_callable = original
    jitted._torchdynamo_wrapper_id = id(jitted)


def stance() -> str:
    """What `torch.compiler.set_stance` was last told."""
    chosen = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
    return "default" if chosen is None else chosen.stance


def forces_eager() -> bool:
    """Whether the stance is to run everything as plain Python. Native dispatchers read it themselves."""
    return stance() == "force_eager"


def _skip_strategy() -> Any:
    theirs = torch._C._dynamo.eval_frame
    if not hasattr(theirs, "set_code_exec_strategy"):
        return None
    return theirs._FrameExecStrategy(theirs._FrameAction.SKIP, theirs._FrameAction.SKIP)


_SKIP = _skip_strategy()
