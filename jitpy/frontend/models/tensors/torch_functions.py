"""Functions of torch written in Python that are not traced as they stand.

Some run as plain Python, as a whole: what they do lies outside any graph (the autograd engine, hooks, modes of C++).
Others are traced in the place of functions that only serve profilers or torch.compile. Of closures around a function,
those that keep torch.compile out are looked through, and the one around an optimizer's step is traced in another form.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.modules.module as _module
import torch.utils.hooks
from torch._vmap_internals import _vmap
from torch.autograd.profiler import record_function
from torch.masked import _ops as masked
from torch.optim.optimizer import _use_grad_for_differentiable

from ...breaks import GraphBreak
from ...interpreter.callees import FUNCTION, code_model, family, traced_as
from ...interpreter.wrapped_functions import closed_over
from ...polyfills import give_up, hooks, inference
from ...values import FunctionValue, Interpreter, Value
from .compiler_controls import is_entered

#: Code that the program does not know of: what it calls are the two methods.
PARTS_OF_INFERENCE_MODE = frozenset(function.__code__ for function in (
    torch.inference_mode.__enter__, torch.inference_mode.__exit__, inference.block, inference.Block.__enter__,
    inference.Block.__exit__))

#: code objects (by identity) that are run as plain Python, with the reason
_SKIPPED: dict[int, str] = {}


def _skip(reason: str, *functions: Any) -> None:
    for function in functions:
        function = getattr(function, "__wrapped__", function)
        _SKIPPED[id(function.__code__)] = reason


def _reason(function: types.FunctionType) -> str | None:
    return _SKIPPED.get(id(function.__code__))


@family("skipped", _reason, FUNCTION, is_exact=False)
def _leave_to_python(interp: Interpreter, fn: FunctionValue, obj: Any, found: str, args: list[Value],
                     kwargs: dict[str, Value]) -> Any:
    raise GraphBreak("skipped", f"{fn.qualname}: {found}")


_skip("the autograd engine runs outside graphs", torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_skip(
    "it registers a hook for the backward pass", torch.Tensor.register_post_accumulate_grad_hook,
    torch.autograd.graph.register_multi_grad_hook,
)
_CAPTURED_HOOKS = (torch.nn.Module.register_forward_hook, torch.nn.Module.register_forward_pre_hook,
                   _module.register_module_forward_hook, _module.register_module_forward_pre_hook)
_skip(
    "it registers a hook of modules",
    *(function for name, function in vars(torch.nn.Module).items()
      if name.startswith("register_") and name.endswith("_hook") and function not in _CAPTURED_HOOKS),
    *(function for name, function in vars(_module).items()
      if name.startswith("register_module_") and name.endswith("_hook") and function not in _CAPTURED_HOOKS),
)
_skip(
    "it changes what autograd does in the whole process", torch.autograd.graph.saved_tensors_hooks.__enter__,
    torch.autograd.graph.saved_tensors_hooks.__exit__, torch.autograd.detect_anomaly.__init__,
    torch.autograd.detect_anomaly.__enter__, torch.autograd.detect_anomaly.__exit__,
)
_SKIPPED[id(_vmap(len).__code__)] = "it maps what the autograd engine does over a batch"
_skip("it formats tensors", torch.set_printoptions, torch._tensor_str._str)
_skip("it exchanges what two objects are", torch.utils.swap_tensors)
_skip("it makes a function that torch.compile compiles", torch.compile)


# Ranges of the profiler do not exist inside graphs. An object made here says to the real `__exit__` that nothing was
# begun, for a block that ends in plain Python.


def _range_init(self: Any, name: str, args: str | None = None) -> None:
    self.name = name
    self.args = args
    self.run_callbacks_on_exit = False
    self.record = None
    self._cupti_monitor_external_id = None


def _range_enter(self: Any) -> Any:
    if self.run_callbacks_on_exit:  # made outside
        self.record = torch.ops.profiler._record_function_enter_new(self.name, self.args)
    return self


def _range_exit(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> None:
    if self.run_callbacks_on_exit:
        torch.ops.profiler._record_function_exit._RecordFunction(self.record)


def _check_with(error_type: Any, cond: Any, message: Any) -> None:
    """`torch._check` and its like, without torch.compile's machinery for sizes."""
    if type(cond) is not bool or not cond and message is None:
        _failed_check(error_type, cond)
    elif not cond:
        raise error_type(str(message()))


def _failed_check(error_type: Any, cond: Any) -> None:
    torch._check_with(error_type, cond, None)  # type: ignore[arg-type]


_skip("a check failed", _failed_check)


def _masked_input(op: Any, input: Any, mask: Any, *args: Any) -> Any:
    """The input of a masked operation, without the class for masked tensors that torch makes at each call."""
    if masked.is_masked_tensor(input) or not callable(op):
        return give_up("a masked tensor")
    if mask is None:
        return input
    return masked._where(masked._input_mask(input, mask=mask), input,
                         masked._reduction_identity(op.__name__, input, *args))


traced_as(torch._check_with, _check_with)
traced_as(masked._combine_input_and_mask, _masked_input)
traced_as(torch.utils.hooks.RemovableHandle.__init__, hooks.initialize)
traced_as(record_function.__init__, _range_init)
traced_as(record_function.__enter__, _range_enter)
traced_as(record_function.__exit__, _range_exit)


def _step(func: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """An optimizer's step, without the breaks and the import of the compiler that its wrapper asks for."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(self.defaults["differentiable"])
        return func(self, *args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def _wrapper(made: types.FunctionType, variable: str, body: Callable[..., Any] | None) -> None:
    """Have closures of this code traced as the function that their free variable holds, or as `body` with that function
    as its first argument."""

    def call_wrapped(interp: Interpreter, fn: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
        inner = closed_over(interp, fn, variable)
        if body is None:
            return interp.call(inner, args, kwargs)
        return interp.call(interp.context.const_object(body), [inner, *args], kwargs)

    if variable in made.__code__.co_freevars:
        code_model(made)(call_wrapped)


_wrapper(torch._disable_dynamo(_step), "fn", None)  # type: ignore[arg-type]
_wrapper(_use_grad_for_differentiable(_step), "func", _step)  # type: ignore[arg-type]


#: Functions of these modules, and of what is inside them, run as they are: they do what no graph holds, or draw numbers
#: that are others at each call.
_SKIPPED_MODULES = frozenset((
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch.jit", "torch._subclasses",
    "torch.distributed", "torch.multiprocessing", "torch.utils.data", "torch.utils.cpp_extension", "threading",
    "asyncio", "concurrent", "multiprocessing", "subprocess", "logging", "unittest", "pdb", "bdb", "linecache",
    "tokenize", "importlib", "ctypes", "numpy", "jitpy.api", "jitpy.runtime", "jitpy.ir", "jitpy.backends",
    "jitpy.schedule", "jitpy.explain", "torch.export", "torch._export", "warnings", "random", "secrets",
))


#: ... but for these: calls of `torch.fx.GraphModule` go through functions of their own, its code takes trees apart
_ENTERED_MODULES = frozenset(("torch.fx.graph_module", "torch.fx._pytree"))


@functools.lru_cache(None)
def is_skipped(module: str) -> bool:
    """Whether the functions of a module are not traced."""
    if module in _ENTERED_MODULES:
        return False
    parts = module.split(".")
    return any(".".join(parts[:count]) in _SKIPPED_MODULES for count in range(1, len(parts) + 1))


def _skipped_module(function: types.FunctionType) -> str | None:
    module = function.__module__
    return module if module and is_skipped(module) and not is_entered(function) else None


@family("skipped module", _skipped_module, FUNCTION, is_exact=False)
def _leave_module_to_python(interp: Interpreter, fn: FunctionValue, obj: Any, found: str, args: list[Value],
                            kwargs: dict[str, Value]) -> Any:
    raise GraphBreak("skipped", f"{found}.{fn.qualname}")
