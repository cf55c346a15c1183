"""What plans are made of: kernels, buffers, what is written in place, aliasing, threads, and failing compilers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy import config
from jitpy.backends import target
from jitpy.backends.codegen import compile_graph
from jitpy.backends.cpp import plan_graph
from jitpy.backends.cpp.target import CppTarget
from jitpy.backends.planner import Planner
from jitpy.runtime.executable import make_executable
from jitpy.runtime.plan import AllocStep, CallStep, CopyStep, KernelStep
from tests.graph_tools import trace

Tensor = torch.Tensor


def steps_of(fn: Callable[..., Any], *inputs: Tensor) -> list[Any]:
    return plan_graph(trace(fn, inputs)).steps


def count(steps: list[Any], kind: type) -> int:
    return sum(isinstance(step, kind) for step in steps)


def norm_chain(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
    h = x + r
    return F.gelu(h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6) * w)


ONE_KERNEL: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "pointwise": (lambda x: ((x + 1) * 2).sin(), [(8, 40)]),
    "broadcast": (lambda x, b: torch.relu(x + b) * b, [(8, 40), (40,)]),
    "softmax": (lambda x: x.softmax(-1), [(8, 40)]),
    "softmax of columns": (lambda x: x.softmax(0), [(8, 40)]),
    "log_softmax": (lambda x: x.log_softmax(1), [(8, 40)]),
    "layer norm": (lambda x, w: F.layer_norm(x, (40,), w, w), [(8, 40), (40,)]),
    "norm with prologue and epilogue": (norm_chain, [(8, 40), (8, 40), (40,)]),
    "rows": (lambda x: (x * 2 + 1).sum(1), [(8, 40)]),
    "columns": (lambda x: (x * 2 + 1).sum(0), [(8, 40)]),
    "two results": (lambda x: (x.sin(), x.cos() + 1), [(8, 40)]),
    "reductions side by side": (lambda x: (x.sum(1), x.amax(1), x.mean(1) + x[:, 0]), [(8, 40)]),
    "transposed": (lambda x, y: x.t() + y, [(40, 8), (8, 40)]),
    "rotated halves": (lambda x: torch.cat([-x[:, 20:], x[:, :20]], 1) * 2 + x, [(8, 40)]),
    "split heads": (lambda x: (x.view(8, 4, 10).transpose(0, 1) * 2).reshape(4, 80), [(8, 40)]),
    "causal mask": (lambda x: x.masked_fill(torch.ones(8, 8).triu(1) > 0, -1e9).softmax(-1), [(8, 8)]),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    fn, shapes = ONE_KERNEL[name]
    inputs = [torch.randn(s) for s in shapes]
    plan = plan_graph(trace(fn, inputs))
    assert count(plan.steps, KernelStep) == 1 and count(plan.steps, CallStep) == 0
    results, wanted = make_executable(plan)(*inputs), fn(*inputs)
    for a, b in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_without_fusion_each_op_is_a_kernel() -> None:
    x = torch.randn(8, 40)
    with config.patch(fusion=False):
        plan = plan_graph(trace(lambda x: ((x + 1) * 2).sin(), [x]))
    assert count(plan.steps, KernelStep) == 3
    torch.testing.assert_close(make_executable(plan)(x)[0], ((x + 1) * 2).sin())


def test_same_text_for_the_same_graph() -> None:
    def text() -> str:
        x, w = torch.randn(8, 40), torch.randn(40)
        return Planner(trace(norm_chain, [x, x.clone(), w]), CppTarget()).text()

    assert text() == text()
    assert "// " in text() and "rsqrt" in text()


def test_equal_kernels_are_compiled_once() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = F.gelu(x @ w) + 1
        return x

    text = Planner(trace(fn, [x, w]), CppTarget()).text()
    assert text.count('extern "C" void kernel') == 1


def test_epilogue_writes_over_the_matmul() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    steps = steps_of(lambda x, w: torch.relu(x @ w), x, w)
    assert count(steps, AllocStep) == 0 and count(steps, KernelStep) == 1


def test_a_result_that_is_also_an_output_is_not_overwritten() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 16)

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x @ w
        return h, torch.relu(h)

    found = make_executable(plan_graph(trace(fn, [x, w])))(x, w)
    for a, b in zip(found, fn(x, w), strict=True):
        torch.testing.assert_close(a, b)


def test_inputs_are_never_scratch() -> None:
    x = torch.randn(8, 40)
    before = x.clone()
    make_executable(plan_graph(trace(lambda x: (x * 2).softmax(-1).t().contiguous() + 1, [x])))(x)
    assert torch.equal(x, before)


def adam_(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt() + 1e-8, value=-1e-3)


def test_updates_in_place_are_one_kernel_without_copies() -> None:
    state = [torch.rand(50, 60) for _ in range(4)]
    expected = [t.clone() for t in state]
    adam_(*expected)
    compiled = jitpy.jit(adam_, fullgraph=True)
    with torch.no_grad():
        compiled(*state)
        report = jitpy.explain(adam_)(*[t.clone() for t in state])
    for a, b in zip(state, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert len(report.kernels) == 1
    assert count(report.frames[0].graph and _plan_of(adam_, state).steps, CopyStep) == 0


def _plan_of(fn: Callable[..., Any], inputs: list[Tensor]) -> Any:
    """The plan that the backend makes when the frontend captures `fn`."""
    plans = []

    def keep(graph: Any, options: Any) -> Any:
        plans.append(plan_graph(graph))
        return make_executable(plans[-1])

    jitpy.register_backend("keep_plans", keep, takes_graph=True)
    with torch.no_grad():
        jitpy.jit(fn, backend="keep_plans", fullgraph=True)(*[t.clone() for t in inputs])
    return plans[-1]


def test_swapped_inputs() -> None:
    def swap(x: Tensor, y: Tensor) -> None:
        t = x.clone()
        x.copy_(y)
        y.copy_(t * 2)

    x, y = torch.randn(5), torch.randn(5)
    a, b = x.clone(), y.clone()
    with torch.no_grad():
        jitpy.jit(swap, fullgraph=True)(x, y)
    torch.testing.assert_close(x, b)
    torch.testing.assert_close(y, a * 2)


def test_input_is_read_again_after_it_is_written() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = x.t() @ y
        x.add_(1)
        return z + x.sum()

    x, y = torch.randn(6, 6), torch.randn(6, 6)
    a = x.clone()
    expected = fn(a, y)
    with torch.no_grad():
        found = jitpy.jit(fn, fullgraph=True)(x, y)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(x, a)


def test_outputs_share_memory_as_in_eager() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, y.t(), y[0], x[1:], x

    x = torch.randn(4, 6)
    y, transposed, row, tail, same = make_executable(plan_graph(trace(fn, [x])))(x)
    assert y.untyped_storage().data_ptr() == transposed.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
    assert tail.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and same is x
    assert transposed.stride() == (1, 6) and tail.storage_offset() == 6
    torch.testing.assert_close(transposed, (x * 2).t())


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = torch.rand(3000, 257)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(), x.sum(0), x.sum(1), x.softmax(-1), x.var(), x.mean(0) + 1, x.t() * x.sum(1)

    compiled = make_executable(plan_graph(trace(fn, [x])))
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    for a, b in zip(results[0], fn(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["expanded", "strided", "transposed", "channels last"])
def test_inputs_of_any_layout(layout: str) -> None:
    x = {
        "expanded": lambda: torch.randn(5, 1, 7).expand(5, 6, 7),
        "strided": lambda: torch.randn(10, 12, 14)[::2, ::2, ::2],
        "transposed": lambda: torch.randn(7, 6, 5).transpose(0, 2),
        "channels last": lambda: torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last),
    }[layout]()

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2 + 1, x.softmax(-1), x.sum(0), x.sum(-1), x.amax((0, 1)), x.reshape(-1) + 1

    for a, b in zip(make_executable(plan_graph(trace(fn, [x])))(x), fn(x), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def test_zero_elements_and_scalars() -> None:
    empty, scalar = torch.randn(0, 4), torch.tensor(3.0)

    def fn(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x.sum(), x.sum(1), s * 2, s.sum(), s + x.sum(0)

    for a, b in zip(
        make_executable(plan_graph(trace(fn, [empty, scalar])))(empty, scalar), fn(empty, scalar), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("command", ["/nonexistent/compiler", "false"])
def test_without_a_compiler_graphs_run_eagerly(command: str, tmp_path: Any) -> None:
    x = torch.randn(3, 5)
    graph = trace(lambda x: (x * 1.2345).sin() + 0.1, [x])
    target._warned.clear()
    with config.patch(cxx=command, cache_dir=str(tmp_path)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = compile_graph(graph, {})
        compile_graph(graph, {})
    assert len(caught) == 1 and "eager" in str(caught[0].message)
    torch.testing.assert_close(compiled(x)[0], (x * 1.2345).sin() + 0.1)


def test_scratch_memory_is_shared_by_what_does_not_overlap() -> None:
    x = torch.randn(64, 64)

    def fn(x: Tensor) -> Tensor:
        for _ in range(6):  # each softmax over other axes is a kernel of its own
            x = x.softmax(0).softmax(1)
        return x

    plan = plan_graph(trace(fn, [x]))
    assert count(plan.steps, KernelStep) == 12
    assert isinstance(plan.workspace, int) and plan.workspace <= 2 * x.numel() * 4
    torch.testing.assert_close(make_executable(plan)(x)[0], fn(x))


def written_through_a_view(a: Tensor, b: Tensor) -> Tensor:
    a.view(-1).copy_(b.sin())
    return b + 1


def written_and_read(a: Tensor, b: Tensor) -> Tensor:
    t = b.sin()
    a.view(-1).copy_(t)
    return torch.outer(t, t)


def two_written(a: Tensor, b: Tensor) -> None:
    t = b.view(8, 8).sin()
    a.copy_(t)
    b.view(8, 8).copy_(a.t())


@pytest.mark.parametrize("fn", [written_through_a_view, written_and_read, two_written], ids=lambda fn: fn.__name__)
def test_an_input_gets_a_value_of_another_shape(fn: Callable[..., Any]) -> None:
    results = []
    for program in (fn, jitpy.jit(fn)):
        torch.manual_seed(2)
        a, b = torch.randn(8, 8), torch.randn(64)
        results.append([program(a, b), a, b, a._version, b._version])
    torch.testing.assert_close(results[1], results[0])


def test_a_value_of_another_shape_is_written_at_once() -> None:
    steps = _plan_of(written_through_a_view, [torch.randn(8, 8), torch.randn(64)]).steps
    assert count(steps, AllocStep) == 1 and not count(steps, CopyStep) and not count(steps, CallStep)
