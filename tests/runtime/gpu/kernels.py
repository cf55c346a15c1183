"""Kernels for the tests of launches: hand-written, as a backend prints them."""

from __future__ import annotations

import torch

from jitpy.runtime.gpu.kernel import GpuKernel
from jitpy.runtime.plan import AllocStep, LaunchStep, Plan, SizeRef, SlotRef, SymbolBinding, Workspace

HEADER = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n\n"

SINE = GpuKernel(
    source=HEADER + '''@triton.jit
def sine(x, y, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + index, index < n)
    tl.store(y + index, tl.sin(value + 1.0) * 2.0, index < n)
''',
    name="sine", signature=(("x", "*fp32"), ("y", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr")),
    constexprs=(("BLOCK", 128),), divisible=frozenset({"x", "y"}))

#: y = x * scale + bias, first into scratch memory
AXPB = GpuKernel(
    source=HEADER + '''@triton.jit
def axpb(x, scratch, y, n, scale, bias, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(scratch + index, tl.load(x + index, index < n) * scale, index < n)
    tl.debug_barrier()
    tl.store(y + index, tl.load(scratch + index, index < n) + bias, index < n)
''',
    name="axpb", signature=(("x", "*fp32"), ("scratch", "*fp32"), ("y", "*fp32"), ("n", "i64"), ("scale", "i32"),
                            ("bias", "fp32"), ("BLOCK", "constexpr")), constexprs=(("BLOCK", 64),))

#: sums of the rows of a matrix with up to BLOCK columns
ROW_SUM = GpuKernel(
    source=HEADER + '''@triton.jit
def row_sum(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + index, index < columns, 0).to(tl.float32)
    tl.store(y + row, tl.sum(values, 0).to(y.dtype.element_ty))
''',
    name="row_sum", signature=(("x", "*bf16"), ("y", "*bf16"), ("columns", "i32"), ("BLOCK", "constexpr")),
    constexprs=(("BLOCK", 4096),), divisible=frozenset({"x"}), num_warps=8)

INCREMENT = GpuKernel(
    source=HEADER + '''@triton.jit
def increment(x, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + index, tl.load(x + index, index < n) + 1.0, index < n)
''',
    name="increment", signature=(("x", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr")), constexprs=(("BLOCK", 128),),
    divisible=frozenset({"x"}))


def sine_plan(device: torch.device, elements: int = 16) -> Plan:
    """(x + 1).sin() * 2 over a vector of fixed length."""
    steps = [AllocStep(1, (elements,), (1,), torch.float32, device),
             LaunchStep(SINE, (-(-elements // 128),), (SlotRef(0), SlotRef(1), elements), "sine")]
    return Plan(1, 2, (1,), steps, device=device)


def axpb_plan(device: torch.device) -> Plan:
    """x * scale + 0.5 over a vector of any length: inputs x and the int scale."""
    n, blocks, size_bytes = SizeRef(0), SizeRef(1), SizeRef(2)
    steps = [AllocStep(2, (n,), (1,), torch.float32, device),
             LaunchStep(AXPB, (blocks,), (SlotRef(0), Workspace(0), SlotRef(2), n, SlotRef(1), 0.5), "axpb")]
    return Plan(2, 3, (2,), steps, symbols=(SymbolBinding(0, 0),), n_sizes=3,
                size_function_py=lambda s: [s[0], -(-s[0] // 64), 4 * s[0]], workspace=size_bytes, device=device)


def increment_plan(device: torch.device, elements: int) -> Plan:
    """x += 1, on the input itself; the output is a view-free copy of nothing: the input."""
    steps = [LaunchStep(INCREMENT, (-(-elements // 128),), (SlotRef(0), elements), "increment", writes=(0,))]
    return Plan(1, 1, (0,), steps, device=device)
