"""Controls of torch's own compiler that a program has set, and their meaning for a trace.

`torch.compiler` leaves its marks on functions, in closures that it puts around them, and in tables of
`torch._dynamo`. They are read here where a call meets them; a process that has not loaded `torch._dynamo` has none.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...breaks import GraphBreak
from ...interpreter.callees import FUNCTION, METHOD, OBJECT, family
from ...interpreter.wrapped_functions import closed_over
from ...values import (
    FunctionValue,
    NotConstant,
    TraceContext,
    Value,
)

if TYPE_CHECKING:
    from ...values import Interpreter

_WRAPPERS = "torch._dynamo.eval_frame"
_HELPERS = "torch._dynamo.external_utils"
_COUNTERS = "torch._dynamo.mutation_guard"
_COMPILERS = frozenset((_WRAPPERS, _HELPERS, _COUNTERS))
#: modules whose functions programs compile since torch has no other kernels for them
_COMPILED_TO_BE_FAST = frozenset(("torch.nn.attention.flex_attention",))
#: functions of the compiler that are plain Python: `error_on_graph_break` sets a global variable
_ENTERED = {
    _HELPERS: ("is_compiling", "wrap_dunder_call_ctx_manager.<locals>.inner"),
    "torch._dynamo.decorators": ("error_on_graph_break", "ErrorOnGraphBreakDecoratorContextManager.__init__",
                                 "ErrorOnGraphBreakDecoratorContextManager.__enter__",
                                 "ErrorOnGraphBreakDecoratorContextManager.__exit__"),
    "torch._dynamo.utils": ("_get_error_on_graph_break", "_set_error_on_graph_break"),
}


def is_loaded() -> bool:
    """Whether the process may have any such marks: all of the compiler is loaded, not half of it in another thread."""
    return hasattr(sys.modules.get(_WRAPPERS), "_stance")


#: blocks that set options of the compiler's, which nothing in a trace reads
_OPTIONS = ("DynamoConfigPatchProxy.__enter__", "DynamoConfigPatchProxy.__exit__")


def _of_compiler(function: types.FunctionType) -> Any:
    module = function.__globals__.get("__name__")
    is_option = module == "torch._dynamo.decorators" and function.__code__.co_qualname in _OPTIONS
    return True if is_option or module in _COMPILERS else None


@family("wrapped for the compiler", _of_compiler, FUNCTION, is_exact=False)
def _call_wrapped(interp: Interpreter, fn: FunctionValue, obj: Any, found: Any, args: list[Value],
                  kwargs: dict[str, Value]) -> Any:
    if obj.__code__.co_qualname in _OPTIONS:
        return interp.context.const_object(None)
    variable = wrapped_for_compiler(obj)
    return NotImplemented if variable is None else interp.call(closed_over(interp, fn, variable), args, kwargs)


def wrapped_for_compiler(function: types.FunctionType) -> str | None:
    """The free variable with the function that one of the closures wraps which torch's own compiler puts around parts
    of torch when a process uses it first: around what it is to be kept out of (parts of the optimizers), and around
    what it counts (modules that are made). They say nothing about other tracers. GraphBreak for the closures that it
    puts around functions of the program, unless these are torch's flex attention.

    The closure's attributes alone do not tell: `functools.wraps` copies them to what a program wraps around it."""
    module, variables = function.__globals__.get("__name__"), function.__code__.co_freevars
    if module == _COUNTERS:
        return next((name for name in ("init", "setstate") if name in variables), None)
    if module == _WRAPPERS and "fn" in variables:
        if _wrapped(function).__module__ in _COMPILED_TO_BE_FAST:
            return "fn"
        if "_torchdynamo_inline" in function.__dict__:
            raise GraphBreak("compiled_by_torch", function.__qualname__)
        if _is_torchs(_wrapped(function)):
            return "fn"
        if "_torchdynamo_disable" in function.__dict__:
            raise GraphBreak("disabled", _with_reason(function))
    if _is_nonrecursive(function.__code__, function.__globals__):
        raise GraphBreak("disabled", _with_reason(function))
    return None


def is_entered(function: types.FunctionType) -> bool:
    """Whether a function of the compiler's modules is traced."""
    return function.__code__.co_qualname in _ENTERED.get(function.__globals__.get("__name__", ""), ())


def runs_by_itself(code: types.CodeType, globals: dict[str, Any]) -> bool:
    """Whether frames of this code are the compiler's, which decides about all that they call."""
    return globals.get("__name__") == _WRAPPERS and "fn" in code.co_freevars


def disabled_alone(code: types.CodeType, globals: dict[str, Any], closure: Any) -> types.CodeType | None:
    """The code whose frames `torch.compiler.disable(recursive=False)` keeps plain, where `code` is its wrapper's."""
    if not _is_nonrecursive(code, globals):
        return None
    return getattr(closure[code.co_freevars.index("fn")].cell_contents, "__code__", None)


def _is_nonrecursive(code: types.CodeType, globals: dict[str, Any]) -> bool:
    return globals.get("__name__") == _HELPERS and \
        code.co_qualname == "get_nonrecursive_disable_wrapper.<locals>.nonrecursive_disable_wrapper"


def _with_reason(function: types.FunctionType) -> str:
    reason = function.__dict__.get("_torchdynamo_disable_msg")
    return function.__qualname__ if reason is None else f"{function.__qualname__}: {reason}"


def _wrapped(function: types.FunctionType) -> Any:
    assert function.__closure__ is not None
    return function.__closure__[function.__code__.co_freevars.index("fn")].cell_contents


def _is_torchs(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"


# -- tables and marks ---------------------------------------------------------------------------------------


def substitute(function: Any) -> Callable[..., Any] | None:
    """The function that a program had `torch.compiler.substitute_in_graph` trace instead. Torch's own are not asked:
    polyfills of jitpy's say what C functions do."""
    functions = sys.modules.get("torch._dynamo.variables.functions") if is_loaded() else None
    if functions is None:
        return None
    handler = functions.PolyfilledFunctionVariable._get_polyfill_handlers().get(function)
    body = None if handler is None else handler.__torch_dynamo_polyfill__
    return None if body is function or _is_torchs(body) else body


@family("substituted", substitute, FUNCTION, METHOD, OBJECT)
def _call_substitute(interp: Interpreter, fn: Value, obj: Any, found: Any, args: list[Value],
                     kwargs: dict[str, Value]) -> Any:
    return interp.call(interp.context.const_object(found), args, kwargs)


def _allowed(function: Any) -> bool | None:
    """Whether `torch.compiler.allow_in_graph` was told of a function of the program's."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    known = rules is not None and id(function) in rules._allowed_callable_ids and not _is_torchs(function)
    return True if known else None


@family("allowed in graphs", _allowed, FUNCTION, METHOD, OBJECT)
def _record(interp: Interpreter, fn: Value, obj: Any, found: Any, args: list[Value], kwargs: dict[str, Value]) -> Any:
    return interp.record(obj, args, kwargs)


def _constant(function: types.FunctionType) -> Any:
    return True if function.__dict__.get("_dynamo_marked_constant") is True else None


@family("constant result", _constant, FUNCTION)
def _constant_result(interp: Interpreter, fn: Value, real: Any, found: Any, args: list[Value],
                     kwargs: dict[str, Value]) -> Any:
    """The result of a function that `torch.compiler.assume_constant_result` marked, which is called now, once for all.
    NotImplemented for arguments that only exist when the graph runs."""
    from ...interpreter.constant_folding import lift

    def known(value: Value) -> Any:
        found = None if interp.context.has_changed(value) else interp.context.pin_instance(value)
        return value.folded(interp) if found is None else found

    try:
        given, named = [known(arg) for arg in args], {name: known(arg) for name, arg in kwargs.items()}
    except NotConstant:
        return NotImplemented
    if fn.source is not None:
        interp.context.guard(fn.source, "function", (real.__code__, ..., ..., True))
    try:
        result = real(*given, **named)
    except Exception as error:
        raise interp.raise_real(error) from None
    return lift(interp, result)


def breaks_are_errors(context: TraceContext | None = None) -> bool:
    """Whether the program stands in a region of `torch._dynamo.error_on_graph_break(True)`: that of a trace, or the one
    that is entered now."""
    utils = sys.modules.get("torch._dynamo.utils")
    name = "_error_on_graph_break"
    if utils is None or not hasattr(utils, name):
        return False
    if context is None:
        return getattr(utils, name) is True
    found = context.dict_get(context.globals_of(vars(utils)), name)
    return found is not None and found.literal is True
