"""Triton kernels that a program launches, run by Triton's interpreter. PYTEST_DONT_REWRITE: cases run as they are
written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants
from tests.semantics.harness import case, make_test

triton = pytest.importorskip("triton")
tl = triton.language

SCALE = [2.0]


def _unregistered(*makers: Any, **options: Any) -> Any:
    return lambda fn: fn


#: for programs that eager refuses too on torch 2.11 with Triton 3.6, such as `wrap_triton` of interpreted kernels
recent_case = case if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13) else _unregistered


def interpreted(function: Any) -> Any:
    """The kernel for the interpreter, however Triton was imported."""
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = True
        return triton.jit(function)


@interpreted
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask), mask=mask)


@interpreted
def store_at(pointer, value, mask):
    tl.store(pointer, value, mask=mask)


@interpreted
def split(x_ptr, low_ptr, high_ptr, n, factor, BLOCK: tl.constexpr = 16):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    store_at(low_ptr + at, x * factor, at < n)
    store_at(high_ptr + at, x + factor, at < n)


@interpreted
def double(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@interpreted
def rows(x_ptr, out_ptr, stride, width, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * stride + at, mask=at < width, other=0.0)
    tl.store(out_ptr + row * width + at, x + row, mask=at < width)


@interpreted
def maybe(x_ptr, y_ptr, out_ptr, n, HAS_Y: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    if HAS_Y:
        x += tl.load(y_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x, mask=at < n)


heuristic = triton.heuristics({"HAS_Y": lambda args: args["y_ptr"] is not None,
                               "BLOCK": lambda args: 16 if args["n"] > 8 else 8})(maybe)


@torch.library.triton_op("jitpytriton::added", mutates_args=())
def added(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    out = torch.empty_like(x)
    n = out.numel()

    def grid(meta):
        return (triton.cdiv(n, meta["BLOCK"]),)

    torch.library.wrap_triton(add)[grid](x * scale, y, out, n, BLOCK=16)
    return out


@torch.library.triton_op("jitpytriton::doubled", mutates_args={"x"})
def doubled(x: torch.Tensor) -> None:
    torch.library.wrap_triton(double)[(triton.cdiv(x.numel(), 16),)](x, x.numel(), 16)


@torch.library.triton_op("jitpytriton::with_gradient", mutates_args=())
def with_gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add)[(2,)](x, y, out, x.numel(), BLOCK=16)
    return out


with_gradient.register_autograd(lambda ctx, grad: (with_gradient(grad, grad), grad))


def vec(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.randn(*sizes, **options)


def two(n: int):
    return lambda: (vec(n), vec(n))


@case(two(20), two(33), two(40), fullgraph=True)
def grid_of_numbers(x, y):
    x = x * 2
    out = torch.empty_like(x)
    n = out.numel()
    add[(triton.cdiv(n, 16),)](x, y, out, n, BLOCK=16)
    return out.sin()


@case(two(20), two(33), fullgraph=True)
def grid_of_a_function(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x + 1, y * 2, out, n, BLOCK=16)
    return out + 1


@recent_case(two(20), fullgraph=True)
def grid_that_reads_arguments(x, y):
    def grid(meta):
        return triton.cdiv(meta["n"], meta["BLOCK"]), 1, 1

    out = torch.zeros_like(x)
    add[grid](x, y, out, x.shape[0], 8)
    return out


@case(two(20), fullgraph=True)
def keywords_and_defaults(x, y):
    low, high = torch.empty_like(x), torch.zeros_like(x)
    split[(2,)](x_ptr=x, low_ptr=low, high_ptr=high, n=20, factor=0.5, num_warps=4)
    return low - high


@case(two(20), two(24), fullgraph=True)
def several_launches(x, y):
    out = torch.empty_like(x)
    for _ in range(3):
        add[(2,)](x, y, out, x.numel(), BLOCK=16)
        y = out * 0.5
    return out, y


@case(two(20), fullgraph=True)
def old_values_are_kept(x, y):
    z = x + y
    before = z * 1.0
    view = z[3:7]
    double[(2,)](z, 20, BLOCK=16)
    return before, view, view + 1, z


@case(two(20), two(40), fullgraph=True)
def writes_to_argument(x, y):
    double[(triton.cdiv(x.numel(), 16),)](x, x.numel(), BLOCK=16)
    return x + y


@case(two(20), fullgraph=True)
def writes_to_argument_again(x, y):
    double[(2,)](x, 20, BLOCK=16)
    z = x + y
    double[(2,)](x, 20, BLOCK=16)
    x.add_(1)
    return z


@case(lambda: (vec(4, 20),), lambda: (vec(5, 20),), fullgraph=True)
def parts_of_memory(x):
    out = torch.empty(x.shape[0], 8)
    rows[(x.shape[0],)](x[:, 4:12], out, x.stride(0), 8, BLOCK=16)
    return out.t() + 1


@case(lambda: (vec(6, 4),), fullgraph=True)
def writes_to_a_view(x):
    out = torch.zeros(3, 6, 4)
    rows[(6,)](x, out[1], 4, 4, BLOCK=4)
    return out


@case(lambda: (vec(3, 40),), lambda: (vec(3, 50),), fullgraph=True)
def writes_to_a_part_of_an_argument(x):
    double[(2,)](x[1, 5:25], 20, BLOCK=16)
    double[(2,)](x[2], 20, BLOCK=16)
    return x.sum(1)


@case(lambda: (vec(3, 40),), fullgraph=True)
def writes_to_parts_that_lie_apart(x):
    add[(2,)](x[0], x[1], x[2], 20, BLOCK=16)
    return x + 1


@case(two(20), lambda: (vec(20), None), lambda: (vec(6), vec(6)), fullgraph=True)
def with_heuristics(x, y):
    out = torch.empty_like(x)
    heuristic[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
    return out * 2


@case(two(20), lambda: (vec(20), None), fullgraph=True)
def an_argument_that_is_none(x, y):
    out = torch.empty_like(x)
    maybe[(2,)](x, y, out, 20, HAS_Y=y is not None, BLOCK=16)
    return out


@case(lambda: (vec(20, requires_grad=True), vec(20)))
def results_have_no_history(x, y):
    out = torch.empty_like(x)
    add[(2,)](x, y, out, 20, BLOCK=16)
    return out.requires_grad, out + y, (x * out).sum()


@case(lambda: (vec(20, requires_grad=True), vec(20)))
def parameter_is_written(x, y):
    with torch.no_grad():
        double[(2,)](x, 20, BLOCK=16)
    return (x * y).sum()


@case(lambda: (vec(20, requires_grad=True), vec(20)))
def what_autograd_keeps_is_written(x, y):
    z = y + 1
    loss = (x * z).sum()
    double[(2,)](z, 20, BLOCK=16)
    return loss, z


@case(lambda: (vec(20, requires_grad=True), vec(20)))
def what_has_a_history_is_written(x, y):
    z = x + y
    double[(2,)](z, 20, BLOCK=16)
    return z * 2


@recent_case(two(20), two(33), fullgraph=True)
def triton_operators(x, y):
    z = added(x, y) + added(x, y=y + 1, scale=2.0)
    doubled(z)
    return z.sin(), torch.ops.jitpytriton.added(z, x)


@recent_case(two(20), fullgraph=True)
def triton_operator_that_writes_to_argument(x, y):
    doubled(x)
    return x + y


@recent_case(lambda: (vec(20, requires_grad=True), vec(20, requires_grad=True)), two(20))
def triton_operator_with_a_gradient(x, y):
    return with_gradient(x * 2, y).sin()


@case(lambda: (vec(20, requires_grad=True), vec(20)))
def triton_operator_without_a_gradient(x, y):
    z = added(x, y)
    return z.requires_grad, z.detach()


@case(two(20))
def memory_that_is_given_twice(x, y):
    z = x + y
    add[(1,)](z[:10], z[10:], z[:10], 10, BLOCK=16)
    return z


@case(two(20), fullgraph=True)
def one_tensor_twice(x, y):
    z = x + 1
    add[(2,)](z, z, z, 20, BLOCK=16)
    return z + y


@case(two(20))
def in_a_handler(x, y):
    out = torch.zeros_like(x)
    try:
        add[(2,)](x, y, out, 20, BLOCK=16)
    except Exception as error:
        return str(error)
    return out


@case(two(20), two(20), factory=True, fullgraph=True)
def numbers_that_change():
    calls = [0]

    def fn(x, y):
        calls[0] += 1
        low, high = torch.empty_like(x), torch.empty_like(x)
        split[(2,)](x, low, high, 20, calls[0] * 0.5)
        return low + high

    return fn, calls


test_all = make_test(__name__)


def test_sizes_do_not_recompile() -> None:
    """The first other size makes it symbolic, and later ones are served by the same code."""
    jitpy.reset()
    jitted = jitpy.jit(grid_of_a_function, fullgraph=True)
    for n in (20, 33, 48, 51, 64, 16):
        x, y = vec(n), vec(n)
        torch.testing.assert_close(jitted(x, y), grid_of_a_function(x, y))
    assert variants() == 2


def test_the_kernel_writes_to_the_memory_itself() -> None:
    from jitpy.runtime.gpu import launches

    copies: list[Any] = []
    for fn in (writes_to_argument_again, grid_of_a_function, one_into_the_next):
        x, y = vec(20), vec(20)
        expected = fn(x.clone(), y.clone())
        jitted = jitpy.jit(fn, fullgraph=True)
        plain = launches.copied
        launches.copied = lambda tensor: copies.append(tensor) or plain(tensor)
        try:
            torch.testing.assert_close(jitted(x, y), expected)
        finally:
            launches.copied = plain
        assert not copies


def one_into_the_next(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first, second = torch.empty_like(x), torch.empty_like(x)
    add[(2,)](x, y, first, 20, BLOCK=16)
    add[(2,)](first, y, second, 20, BLOCK=16)
    return second + first


def test_tuners_choose_when_the_graph_runs() -> None:
    timed: list[Any] = []

    def measure(run: Any, **_: Any) -> list[float]:
        timed.append(run())
        return [float(len(timed))] * 3

    configs = [triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16}, num_warps=8)]
    tuned = triton.autotune(configs=configs, key=["n"], do_bench=measure)(add)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x * 2
        out = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        return out + 1

    jitted = jitpy.jit(fn, fullgraph=True)
    for count, n in ((2, 20), (4, 33), (6, 40), (6, 20), (6, 40)):
        x, y = vec(n), vec(n)
        torch.testing.assert_close(jitted(x, y), x * 2 + y + 1)
        assert len(timed) == count


def test_tuners_over_heuristics() -> None:
    configs = [triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)]
    tuned = triton.autotune(configs=configs, key=["n"], do_bench=lambda run, **_: [run() or 1.0] * 3)(heuristic)

    def fn(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        out = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        return out + 1

    jitted = jitpy.jit(fn, fullgraph=True)
    for x, y in ((vec(20), vec(20)), (vec(6), None), (vec(7), vec(7))):
        before = x.clone()
        torch.testing.assert_close(jitted(x, y), before + (0 if y is None else y) + 1)
        assert torch.equal(x, before)


@interpreted
def cells(x_ptr, out_ptr, stride_0, stride_1, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_0 + at * stride_1, mask=at < width, other=0.0)
    tl.store(out_ptr + row * width + at, x, mask=at < width)


def by_strides(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(*x.shape)
    cells[(x.shape[0],)](x, out, x.stride(0), x.stride(1), x.shape[1], BLOCK=16)
    return out


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("make", [
    lambda a: a.t() * 2, lambda a: (a + 1).t(), lambda a: a.t().contiguous(), lambda a: a[:1].expand(7, 7) * 1,
    lambda a: a[:1].expand(7, 7), lambda a: torch.where(a.t() > 0, a.t(), a), lambda a: (a.t() @ a)[:, ::2],
    lambda a: torch.zeros_like(a.t()) + a.t(), lambda a: a[:, 1:6] + 1,
])
def test_memory_has_the_strides_that_the_program_sees(make: Any, dynamic: bool | None) -> None:
    a = vec(7, 7)
    torch.testing.assert_close(jitpy.jit(lambda a: by_strides(make(a)), fullgraph=True, dynamic=dynamic)(a), make(a))


def test_a_kernel_is_replaced() -> None:
    holder = {"kernel": add}

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        holder["kernel"][(2,)](x, y, out, 20, BLOCK=16)
        return out

    @interpreted
    def subtract(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) - tl.load(y_ptr + at, mask=at < n), mask=at < n)

    jitted = jitpy.jit(fn)
    x, y = vec(20), vec(20)
    torch.testing.assert_close(jitted(x, y), x + y)
    holder["kernel"] = subtract
    torch.testing.assert_close(jitted(x, y), x - y)
