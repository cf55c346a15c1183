"""The parts that Triton's interpreter lacks: CUDA's math library, numbers of given types, reductions of whole slices.

The interpreter runs a kernel on numpy arrays, for tests and for debugging. Outside its `TRITON_INTERPRET` mode kernels
may be interpreted as long as they use the builtins of `triton.language` and helpers of their own module.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Functions of the math library that torch has under another name.
_NAMES = {"fabs": "abs", "rint": "round", "fast_dividef": "div", "fast_expf": "exp", "fast_sinf": "sin",
          "fast_cosf": "cos"}


class MathLibrary:
    """Stands for `triton.language.extra.libdevice`: each function as torch computes it on the CPU."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = _math_function(name)
        setattr(self, name, function)
        return function


def _math_function(name: str) -> Callable[..., Any]:
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    compute = getattr(torch, _NAMES.get(name, name), None) or getattr(torch.special, name)

    def call(*args: Any) -> Any:
        first = next(a for a in args if isinstance(a, tl.tensor))
        arrays = [a.handle.data if isinstance(a, tl.tensor) else np.asarray(a, first.handle.data.dtype) for a in args]
        result = compute(*(torch.from_numpy(a) for a in np.broadcast_arrays(*arrays))).numpy()
        dtype = first.type.scalar
        # a plain number is an array of one element in the interpreter
        is_block = any(isinstance(a, tl.tensor) and a.type.is_block() for a in args)
        return tl.tensor(TensorHandle(result, dtype), tl.block_type(dtype, list(result.shape)) if is_block else dtype)

    return call


def number(value: int | float | bool, kind: str) -> Any:
    """A number of a given Triton type, as a kernel's argument."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    dtype = tl.dtype({"i": "int"}.get(kind[0], "fp") + kind.lstrip("ifp"))
    return tl.tensor(TensorHandle(np.array([value], dtype=_get_np_dtype(dtype)), dtype), dtype)


class _Handed(Exception):
    """Ends a program's turn."""


_IN_TURNS = """
def in_turns({parameters}):
    _begin()
    try:
        _whole({parameters})
    except _Handed:
        pass
"""


def run_in_turns(function: Any, grid: tuple[int, ...], arguments: dict[str, Any], times: int) -> None:
    """A kernel whose programs hand results to each other, so many times. The interpreter runs one program after the
    other: all of them from the beginning until they first do so, then until the second time, ..., at last to the end.
    So what a program reads is there; in front of the last handing over it writes nothing but what it hands over."""
    from triton.runtime.interpreter import GridExecutor

    namespace, names = function.fn.__globals__, list(arguments)
    last, handed = 0, 0

    def begin() -> None:
        nonlocal handed
        handed = 0

    def hand_over() -> None:
        nonlocal handed
        handed += 1
        if handed == last:
            raise _Handed

    namespace.update(hand_over=hand_over, _begin=begin, _whole=function.rewrite(), _Handed=_Handed)
    exec(_IN_TURNS.format(parameters=", ".join(names)), namespace)
    for turn in [*range(1, times + 1), 0]:
        last = turn
        GridExecutor(namespace["in_turns"], names, grid, [])(**arguments)


@functools.cache
def install() -> None:
    """Let reductions and scans with combinations of one's own run on whole slices, not element by element; let
    assertions in kernels count; let conversions round; let matrix products take bfloat16."""
    import numpy as np
    import triton.language as tl
    import triton.runtime.interpreter as triton_interpreter
    from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle, interpreter_builder

    # assertions count, but integers may wrap
    options = dataclasses.replace(interpreter_builder.options, debug=True, sanitize_overflow=False)
    interpreter_builder.options = options

    def combined(ops: Any, left: Sequence[Any], right: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        found = ops.combine_fn.fn(*(ops.to_tensor(a, i.dtype) for a, i in zip(left, inputs, strict=True)),
                                  *(ops.to_tensor(b, i.dtype) for b, i in zip(right, inputs, strict=True)))
        found = found if isinstance(found, (tuple, tl.tuple)) else (found,)
        return [f.handle.data.reshape(a.shape) for f, a in zip(found, left, strict=True)]

    def reduce(ops: Any, inputs: Sequence[Any]) -> list[Any]:
        inputs, axis = ops.unravel(inputs, ops.axis)
        data = [np.moveaxis(i.handle.data, axis, 0) for i in inputs]
        scalars = data[0].ndim == 1
        data = [d[:, None] for d in data] if scalars else data
        while len(data[0]) > 1:
            half = len(data[0]) // 2
            rest = [d[2 * half:] for d in data]
            data = combined(ops, [d[:half] for d in data], [d[half:2 * half] for d in data], inputs)
            data = [np.concatenate([d, r]) for d, r in zip(data, rest, strict=True)]
        results = []
        for d, i in zip(data, inputs, strict=True):
            value = d[0]
            if ops.keep_dims:
                value = value.reshape([1]) if scalars else np.expand_dims(value, axis)
            elif scalars:
                value = value.item()
            results.append(ops.to_tensor(value, i.dtype))
        return results

    def scan(ops: Any, inputs: Sequence[Any]) -> list[Any]:
        data = [np.moveaxis(i.handle.data, ops.axis, 0) for i in inputs]
        flat = data[0].ndim == 1
        data = [d[:, None] for d in data] if flat else data
        step = 1
        while step < len(data[0]):
            found = combined(ops, [np.roll(d, step, 0) for d in data], data, inputs)
            data = [np.concatenate([d[:step], f[step:]]) for d, f in zip(data, found, strict=True)]
            step *= 2
        data = [d[:, 0] if flat else d for d in data]
        return [ops.to_tensor(np.ascontiguousarray(np.moveaxis(d, 0, ops.axis)), i.dtype)
                for d, i in zip(data, inputs, strict=True)]

    convert = triton_interpreter._convert_float

    def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        """To bfloat16 by rounding to nearest, which the interpreter has not; as 16-bit integers. Floats of 8 bits as
        the GPU's instructions convert them: nothing overflows."""
        small = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
        if source in small and target == tl.float32:
            return torch.from_numpy(np.array(data)).view(small[source]).float().numpy()
        if source == tl.float32 and target in small:
            largest = torch.finfo(small[target]).max
            found = torch.from_numpy(np.array(data)).clamp(-largest, largest).to(small[target])
            return found.view(torch.uint8).numpy()
        if source == tl.float32 and target == tl.bfloat16:
            return torch.from_numpy(np.array(data)).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return convert(data, source, target, rounding)

    splat = type(interpreter_builder).create_splat

    def create_splat(builder: Any, kind: Any, value: Any) -> Any:
        """A comparison of numbers is a truth value, whatever was compared."""
        if value.data.dtype == np.bool_:
            return TensorHandle(np.full(kind.shape, value.data.reshape(-1)[0]), tl.int1)
        return splat(builder, kind, value)

    atomic = type(interpreter_builder).create_atomic_rmw

    def create_atomic_rmw(builder: Any, kind: Any, pointer: Any, value: Any, mask: Any, *rest: Any) -> Any:
        """Additions of bfloat16, which the interpreter has as 16-bit integers."""
        if value.dtype.scalar != tl.bfloat16:
            return atomic(builder, kind, pointer, value, mask, *rest)
        numbers = torch.from_numpy(value.data.reshape(-1).view(np.int16).copy()).view(torch.bfloat16)
        found = np.zeros(numbers.numel(), np.uint16)
        for k in np.flatnonzero(mask.data):
            cell = ctypes.c_int16.from_address(int(pointer.data.flat[k]))
            place = torch.frombuffer(cell, dtype=torch.bfloat16)
            found[k] = cell.value & 0xFFFF
            place += numbers[k]
        return TensorHandle(found.reshape(value.data.shape), tl.bfloat16)

    dot = type(interpreter_builder).create_dot

    def create_dot(builder: Any, left: Any, right: Any, *rest: Any) -> Any:
        """Products of bfloat16, which the interpreter has as 16-bit integers."""
        if left.dtype.scalar == tl.bfloat16:
            left, right = (TensorHandle(convert(one.data, tl.bfloat16, tl.float32, None).view(np.float32), tl.float32)
                           for one in (left, right))
        return dot(builder, left, right, *rest)

    type(interpreter_builder).create_dot = create_dot
    type(interpreter_builder).create_atomic_rmw = create_atomic_rmw
    patch = triton_interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        """Triton 3.6 makes an index of an array with one element, which numpy has ceased to convert."""
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    triton_interpreter._patch_lang_tensor = patch_lang_tensor
    type(interpreter_builder).create_splat = create_splat
    triton_interpreter._convert_float = convert_float
    ReduceOps.generic_reduce = reduce
    ScanOps.generic_scan = scan
