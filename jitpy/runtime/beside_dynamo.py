"""Living beside torch.compile: a function that it compiles may call a jitted one, or be one."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
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
    """The last argument of `torch.compiler.set_stance`."""
    chosen = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
    return "default" if chosen is None else chosen.stance


def forces_eager() -> bool:
    """Whether the stance is to run everything as plain Python. Native dispatchers read it themselves."""
    return stance() == "force_eager"


#: what `torch.compiler` was told of functions of the program's when somebody looked last, by the ids of these
_marks: frozenset[Any] = frozenset()
#: the functions that it allowed in graphs then, and how many substitutes it had
_tables: Any = None
#: called where something was added: what was compiled before may have entered a function that was marked since
_forget: Callable[[], None] | None = None


def on_new_marks(forget: Callable[[], None]) -> None:
    """Have `forget` called when a program has marked a function for `torch.compiler` (or jitpy) after the last look."""
    global _forget
    _forget = forget


def new_mark() -> None:
    """The program has marked a function."""
    if _forget is not None:
        _forget()


def look_at_marks() -> tuple[dict[Any, Any], set[int]] | None:
    """The tables in which torch.compiler notes substitutes and functions that are allowed in graphs; None while they
    do not exist."""
    global _marks, _tables
    rules = sys.modules.get("torch._dynamo.trace_rules")
    functions = sys.modules.get("torch._dynamo.variables.functions")
    if not hasattr(rules, "_allowed_callable_ids") or not hasattr(functions, "PolyfilledFunctionVariable"):
        return None
    substitutes = functions.PolyfilledFunctionVariable._get_polyfill_handlers()  # type: ignore[union-attr]
    allowed = rules._allowed_callable_ids()  # type: ignore[union-attr]
    if (len(substitutes), allowed) != _tables:
        _tables = len(substitutes), frozenset(allowed)
        marks = frozenset(allowed).union((id(function), id(body)) for function, body in list(substitutes.items())
                                         if not str(body.__torch_dynamo_polyfill__.__module__).startswith("torch."))
        is_new, _marks = not marks <= _marks, marks
        if is_new:
            new_mark()
    return substitutes, allowed


def _skip_strategy() -> Any:
    theirs = torch._C._dynamo.eval_frame
    if not hasattr(theirs, "set_code_exec_strategy"):
        return None
    return theirs._FrameExecStrategy(theirs._FrameAction.SKIP, theirs._FrameAction.SKIP)


_SKIP = _skip_strategy()
