"""Kernels and small builders of plans for the tests of this folder."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from jitpy.runtime.plan import AllocStep, CallStep, KernelStep, Plan, SizeRef, SymbolBinding, Workspace

CPU = torch.device("cpu")
F32 = torch.float32

KERNELS = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <unistd.h>

extern "C" {
// (x + 1).sin() * 2 over 16 floats
void sine16(void* const* p, const int64_t*) {
  const float* x = (const float*)p[0];
  float* y = (float*)p[1];
  for (int i = 0; i < 16; i++) y[i] = std::sin(x[i] + 1) * 2;
}
// y = 2x over sizes[0] floats
void twice(void* const* p, const int64_t* sizes) {
  const float* x = (const float*)p[0];
  float* y = (float*)p[1];
  for (int64_t i = 0; i < sizes[0]; i++) y[i] = 2 * x[i];
}
// sizes: rows, columns, rows * columns, bytes of a row; the workspace holds one row
void center_rows(void* const* p, const int64_t* sizes) {
  const float* x = (const float*)p[0];
  float* scratch = (float*)p[1];
  float* y = (float*)p[2];
  for (int64_t r = 0; r < sizes[0]; r++) {
    std::memcpy(scratch, x + r * sizes[1], sizes[3]);
    double sum = 0;
    for (int64_t c = 0; c < sizes[1]; c++) sum += scratch[c];
    for (int64_t c = 0; c < sizes[1]; c++) y[r * sizes[1] + c] = scratch[c] - (float)(sum / sizes[1]);
  }
}
void center_sizes(const int64_t* s, int64_t* t) { t[0] = s[0]; t[1] = s[1]; t[2] = s[0] * s[1]; t[3] = s[1] * 4; }
// y = x * int + double over 4 floats
void scale(void* const* p, const int64_t*) {
  const float* x = (const float*)p[0];
  for (int i = 0; i < 4; i++) ((float*)p[3])[i] = x[i] * *(const int64_t*)p[1] + (float)*(const double*)p[2];
}
void increment16(void* const* p, const int64_t*) { for (int i = 0; i < 16; i++) ((float*)p[0])[i] += 1; }
// y[0] = address of the workspace and of workspace + 64
void addresses(void* const* p, const int64_t*) {
  ((int64_t*)p[2])[0] = (int64_t)p[0];
  ((int64_t*)p[2])[1] = (int64_t)p[1];
}
void doze(void* const* p, const int64_t*) { usleep(20000); }
}
"""


def address(library: ctypes.CDLL, name: str) -> int:
    value = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert value is not None
    return value


def alloc(slot: int, *shape: Any, stride: tuple[Any, ...] | None = None, dtype: torch.dtype = F32) -> AllocStep:
    if stride is None:
        stride = tuple(torch.empty(shape, device="meta").stride())
    return AllocStep(slot, shape, stride, dtype, CPU)


def call(function: Callable[..., Any], *args: Any, to: Any = 1, grad: bool | None = None, **kwargs: Any) -> CallStep:
    slots = to if isinstance(to, tuple) else (to,)
    return CallStep(function, args, kwargs, slots, multiple=isinstance(to, tuple), grad=grad)


def calls(function: Callable[..., Any], *args: Any, n_inputs: int = 1, autograd: bool = False, **kwargs: Any) -> Plan:
    """A plan of one call whose result is the output."""
    step = call(function, *args, to=n_inputs, **kwargs)
    return Plan(n_inputs, n_inputs + 1, (n_inputs,), [step], autograd=autograd)


def sine_plan(kernel: Callable[..., KernelStep]) -> Plan:
    return Plan(1, 2, (1,), [alloc(1, 16), kernel("sine16", 0, 1)])


def symbolic_plan(kernel, library) -> Plan:
    rows, columns = SizeRef(0), SizeRef(1)
    return Plan(
        1, 2, (1,),
        [alloc(1, rows, columns, stride=(columns, 1)), kernel("center_rows", 0, Workspace(0), 1)],
        symbols=(SymbolBinding(0, 0), SymbolBinding(0, 1)),
        n_sizes=4,
        size_function=address(library, "center_sizes"),
        size_function_py=lambda s: [s[0], s[1], s[0] * s[1], s[1] * 4],
        workspace=SizeRef(3),
    )
