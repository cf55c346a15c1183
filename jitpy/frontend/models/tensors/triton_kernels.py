"""Triton kernels that the program launches: `kernel[grid](x, y, n, BLOCK=64)` is one node of the graph.

Functions that compute grids and heuristics are traced like others; tuners choose when the graph runs, so that their
grids are computed for each of their configurations. This module is imported once the program has imported Triton.
"""

from __future__ import annotations

import collections
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, KernelInterface

from ....runtime.gpu.launches import Launch, Place, SameKernel, op_of
from ....runtime.gpu.stores import without_interpreter
from ...breaks import GraphBreak
from ...capture.graph_effects import may_handle
from ...capture.kernel_launches import record_launch
from ...guards.source import constant
from ...interpreter.callees import builtin
from ...interpreter.calls import _in_try, as_int
from ...values import (
    ConstValue,
    Interpreter,
    Value,
)
from ...values.tree import dict_of

_CONTAINERS = (tuple, list, dict, collections.OrderedDict)
_KERNELS = (JITFunction, InterpretedFunction, Autotuner, Heuristics)
_RUNS = (JITFunction.run, InterpretedFunction.run, Autotuner.run, Heuristics.run)


#: the code of what `kernel[grid]` is
_LAUNCHER = getattr(KernelInterface.__getitem__(None, None), "__code__", None)


@builtin(*_RUNS)
def _launch(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`kernel.run(*args, grid=..., warmup=..., **kwargs)`, which `kernel[grid](...)` comes to."""
    kernel = _kernel_of(interp, args[0])
    args, kwargs = args[1:], dict(kwargs)
    grid, warmup = kwargs.pop("grid", None), kwargs.pop("warmup", None)
    if grid is None or warmup is None or warmup.literal is not False:
        raise GraphBreak("unsupported_call", "a Triton kernel that is only compiled")
    while isinstance(kernel, Heuristics):
        _apply(interp, kernel, list(kernel.arg_names), args, kwargs)
        kernel = kernel.fn
    configs: list[Any] | None = None
    inner = kernel
    if isinstance(kernel, Autotuner):
        configs, inner = list(kernel.configs), kernel.fn
        if any(config.pre_hook is not None for config in configs):
            raise GraphBreak("unsupported_call", "a Triton kernel whose configurations call functions first")
    names = list(kernel.arg_names)
    if len(args) > len(names):
        raise GraphBreak("unsupported_call", "a Triton kernel with too many arguments")
    values = dict(zip(names, args, strict=False))
    options: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in values:
            raise GraphBreak("unsupported_call", f"a Triton kernel that is given {name} twice")
        if name in names:
            values[name] = value
        elif value.is_constant:
            options[name] = value.value
        else:
            raise GraphBreak("unsupported_call", f"a Triton kernel with {name}={value.describe()}")
    function = _innermost(kernel)
    if function.pre_run_hooks:
        raise GraphBreak("unsupported_call", "a Triton kernel with hooks")
    compiled = without_interpreter(function)
    if compiled is function and _is_result_read(interp):
        raise GraphBreak("unsupported_call", "a Triton kernel whose machine code the program looks at")
    if compiled is function:
        same = SameKernel(function)
        if not same(function):
            raise GraphBreak("unsupported_call", "a Triton kernel whose globals have changed since it was compiled")
        interp.builder.guards.add(constant(function, function.__name__), "python", same,
                                  "the source of a Triton kernel")
    constexprs = {compiled.arg_names[number] for number in compiled.constexprs}
    places, tensors, numbers = _places(interp, values, constexprs)
    chosen = [_chosen(interp, inner, values, config) for config in configs or [None]]
    grids = tuple(_grid(interp, grid, compiled, {**values, **one}) for one in chosen)
    if _in_try(interp) and not may_handle(interp.builder, True):
        raise GraphBreak("unsupported_call", "a Triton kernel whose exceptions are caught here")
    launch = Launch(kernel, compiled.__name__, tuple(names[: len(args)]), places, options,
                    None if configs is None else tuple(_constants(interp, one) for one in chosen),
                    tuple(tensor.dtype for tensor in tensors))

    def make(nodes: list[Any]) -> Any:
        written = launch.written(nodes)
        return op_of(launch, written), written

    interp.builder.loc = interp.loc()
    with interp.recording(f"the Triton kernel {launch.name}"):
        record_launch(interp.builder, launch.name, make, grids, tensors, numbers)
    return ConstValue(None)


@builtin(torch.library.wrap_triton)
def _wrap_triton(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The kernel itself: who traces `kernel[grid](...)` needs no wrapper."""
    if len(args) != 1 or kwargs or not issubclass(args[0].cls, _KERNELS):
        raise GraphBreak("unsupported_call", "torch.library.wrap_triton of what is no kernel")
    return args[0]


def _kernel_of(interp: Interpreter, value: Value) -> Any:
    """The kernel, from now on guarded by identity."""
    kernel = interp.context.pin_instance(value)
    if kernel is None:
        raise GraphBreak("unsupported_call", "a Triton kernel that is made anew")
    return kernel


def _innermost(kernel: Any) -> Any:
    while not isinstance(kernel, (JITFunction, InterpretedFunction)):
        kernel = kernel.fn
    return kernel


def _is_result_read(interp: Interpreter) -> bool:
    """Whether the program does anything with what a launch returns."""
    frame = next((frame for frame in reversed(interp.frames) if frame.code is not _LAUNCHER), None)
    return frame is None or frame.instructions[frame.ip].name != "POP_TOP"


def _apply(interp: Interpreter, heuristics: Any, names: list[str], args: list[Value], kwargs: dict[str, Value]) -> None:
    """Results of heuristics become arguments."""
    for name, function in heuristics.values.items():
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        kwargs[name] = interp.call_sync(interp.context.const_object(function), [dict_of(interp, given)])


def _places(interp: Interpreter, values: dict[str, Value], constexprs: set[str]) -> Any:
    """Where each argument goes, the tensors (each once) and the numbers."""
    places: dict[str, Place] = {}
    tensors: list[Any] = []
    numbers: list[Any] = []
    for name, value in values.items():
        if value.tensor is not None:
            if value.cls not in (torch.Tensor, torch.nn.Parameter):
                raise GraphBreak("unsupported_value", f"a {value.cls.__name__} as an argument of a Triton kernel")
            if value.traced not in tensors:
                tensors.append(value.traced)
            places[name] = Place("tensor", tensors.index(value.traced))
        elif name in constexprs and value.is_computed:
            places[name] = Place("constant", as_int(interp, value, f"{name}, a constexpr of a Triton kernel"))
        elif name not in constexprs and (value.is_computed or type(value.literal) in (int, float)):
            places[name] = Place("number", len(numbers))
            numbers.append(value.payload(interp))
        elif value.base in _CONTAINERS:
            raise GraphBreak("unsupported_value", "a container as an argument of a Triton kernel")
        elif name in constexprs and (known := interp.context.pin_instance(value)) is not None:
            places[name] = Place("constant", known)  # another kernel, a type of Triton's
        else:
            places[name] = Place("constant", value.payload(interp))
    return places, tensors, numbers


def _chosen(interp: Interpreter, inner: Any, values: dict[str, Value], config: Any) -> dict[str, Value]:
    """The parameters that a configuration sets, and the heuristics below its tuner."""
    chosen: dict[str, Value] = {} if config is None else {
        name: interp.context.const_object(value) for name, value in config.kwargs.items()}
    while isinstance(inner, Heuristics):
        _apply(interp, inner, list(values), list(values.values()), chosen)
        inner = inner.fn
    return chosen


def _constants(interp: Interpreter, chosen: dict[str, Value]) -> dict[str, Any]:
    return {name: as_int(interp, value, f"{name}, of a Triton kernel") if value.is_computed else value.payload(interp)
            for name, value in chosen.items()}


def _grid(interp: Interpreter, grid: Value, function: Any, meta: dict[str, Value]) -> Any:
    """The grid for parameters, as numbers and sizes."""
    sizes = grid.listed(interp)
    if sizes is None:
        for parameter in function.params:
            if parameter.name not in meta and parameter.has_default:
                meta[parameter.name] = interp.context.const_object(parameter.default)
        known = dict_of(interp, {name: meta[name] for name in function.arg_names if name in meta})
        sizes = interp.call_sync(grid, [known]).listed(interp)
    if sizes is None or not 1 <= len(sizes) <= 3:
        raise GraphBreak("unsupported_call", "the grid of a Triton kernel that is no tuple of one to three numbers")
    return tuple(size.payload(interp) for size in sizes)
