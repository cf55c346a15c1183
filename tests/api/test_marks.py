"""What programs tell the tracer, states during compilation, and errors of users."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from jitpy.engine import all_engines
from jitpy.runtime import dispatch


@pytest.fixture(autouse=True)
def _fresh() -> None:
    jitpy.reset()


def variants() -> int:
    return sum(len(engine.variants) for engine in all_engines())


# -- marks --------------------------------------------------------------------------------------------------


def test_graph_break_in_plain_python_does_nothing() -> None:
    assert jitpy.graph_break("x") is None and jitpy.graph_break() is None


def test_graph_break_messages() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        jitpy.graph_break(msg="named")
        x = x + 1
        jitpy.graph_break()
        return x + 1

    report = jitpy.explain(fn, backend="eager")(torch.ones(1))
    assert [record.detail for record in report.break_reasons] == ["named", ""]
    assert report.result.item() == 4 and report.graph_count == 3


def test_allowed_function_is_one_node() -> None:
    @jitpy.allow_in_graph
    def polynomial(x: torch.Tensor, k: float) -> torch.Tensor:
        return x * x + k

    report = jitpy.explain(lambda x: polynomial(x + 1, 2.0) * 2, backend="eager", fullgraph=True)(torch.ones(2))
    assert report.result.tolist() == [12, 12] and report.graph_count == 1
    with pytest.raises(TypeError, match="callable"):
        jitpy.allow_in_graph(3)  # type: ignore[type-var]


def test_marks_of_sizes_are_checked() -> None:
    x = torch.ones(3, 4)
    with pytest.raises(TypeError, match="tensor"):
        jitpy.mark_dynamic([1, 2], 0)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="2"):
        jitpy.mark_dynamic(x, 2)
    with pytest.raises(ValueError, match="min=5"):
        jitpy.mark_dynamic(x, 1, min=5)
    with pytest.raises(TypeError, match="int"):
        jitpy.mark_static(x, "first")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bounds"):
        jitpy.mark_dynamic(x, 0, max="many")  # type: ignore[arg-type]


def test_bounds_of_marked_sizes_are_guards() -> None:
    fn = jitpy.jit(lambda x: x * 2, backend="eager")
    x = torch.ones(4, 5)
    jitpy.mark_dynamic(x, (0, -1), min=2, max=8)
    fn(x)
    for shape in ((5, 6), (8, 2), (3, 8)):
        fn(torch.ones(shape))
    assert variants() == 1
    assert fn(torch.ones(9, 5)).shape == (9, 5)
    assert variants() == 2


def test_is_compiling_is_true_in_traced_code_only() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + (1 if jitpy.is_compiling() else 0) + (2 if torch.compiler.is_compiling() else 0)

    assert fn(torch.zeros(1)).item() == 0
    assert jitpy.jit(fn, backend="eager", fullgraph=True)(torch.zeros(1)).item() == 3


def test_registered_pass_runs_until_it_is_taken_out() -> None:
    seen: list[str] = []
    with jitpy.register_pass(lambda graph: seen.append(graph.name)):
        jitpy.jit(lambda x: x + 1, backend="eager")(torch.ones(1))
    jitpy.jit(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert len(seen) == 1
    with pytest.raises(TypeError, match="register_pass"):
        jitpy.register_pass(3)


# -- options ------------------------------------------------------------------------------------------------


def test_options_of_one_function() -> None:
    def fn(x: torch.Tensor, k: str) -> torch.Tensor:
        return x * len(k)

    fast = jitpy.jit(fn, backend="eager", options={"recompile_limit": 2})
    with pytest.warns(UserWarning, match="2 times"):
        for n in range(4):
            assert fast(torch.ones(1), "a" * n).item() == n
    with pytest.raises(ValueError, match="recompile_limit"):
        jitpy.jit(fn, options={"limit": 2})
    with pytest.raises(TypeError, match="int"):
        jitpy.jit(fn, options={"recompile_limit": "two"})
    with pytest.raises(TypeError, match="dict"):
        jitpy.jit(fn, options=[1])  # type: ignore[call-overload]


@pytest.mark.parametrize(("keyword", "value", "error", "match"), [
    ("backend", "nothing", ValueError, "codegen.*eager"),
    ("backend", 3, TypeError, "codegen"),
    ("mode", "fastest", ValueError, "max-autotune"),
    ("mode", 3, TypeError, "reduce-overhead"),
    ("fullgraph", 1, TypeError, "True or False"),
    ("dynamic", "auto", TypeError, "True, False or None"),
])
def test_wrong_options(keyword: str, value: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        jitpy.jit(lambda x: x, **{keyword: value})
    with pytest.raises(error, match=match):
        jitpy.jit(**{keyword: value})


def test_modes() -> None:
    x = torch.randn(3)
    for mode in ("default", "reduce-overhead", "max-autotune"):
        assert torch.equal(jitpy.jit(lambda t: t + 1, mode=mode, backend="eager")(x), x + 1)


def test_unknown_log() -> None:
    with pytest.raises(ValueError, match="graph_breaks"):
        jitpy.logs.enable("everything")


# -- states during compilation ------------------------------------------------------------------------------


def failing_backend(error: BaseException) -> Callable[..., Any]:
    state = {"left": 1}

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        assert dispatch.is_compiling()
        if state["left"]:
            state["left"] -= 1
            raise error
        return module.forward

    return backend


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_interrupted_compilation_leaves_nothing_behind(error: BaseException) -> None:
    def fn(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        log.append(1)
        return torch.nn.functional.relu(x + 1)

    fast = jitpy.jit(fn, backend=failing_backend(error))
    log: list[int] = []
    modes = torch.is_grad_enabled(), torch.get_default_dtype(), torch._C._len_torch_dispatch_stack()
    with pytest.raises(type(error)):
        fast(torch.ones(2), log)
    assert log == [] and not dispatch.is_compiling() and not torch.compiler.is_compiling()
    assert modes == (torch.is_grad_enabled(), torch.get_default_dtype(), torch._C._len_torch_dispatch_stack())
    assert fast(torch.ones(2), log).tolist() == [2, 2] and log == [1]
    assert variants() == 1


def test_internal_error_warns_and_runs_eager() -> None:
    def failing(graph: Any) -> None:
        raise RuntimeError("inside")

    fast = jitpy.jit(lambda x: x + 1, backend="eager")
    strict = jitpy.jit(lambda x: x + 1, backend="eager")
    with jitpy.register_pass(failing):
        with jitpy.config.patch(raise_errors=False), pytest.warns(UserWarning, match="inside.*JITPY_RAISE"):
            assert fast(torch.ones(1)).item() == 2
        with pytest.raises(RuntimeError, match="inside"):
            strict(torch.ones(1))
    assert fast(torch.ones(1)).item() == 2 and variants() == 0


def test_backend_may_call_jitted_functions() -> None:
    helper = jitpy.jit(lambda x: x + 1, backend="eager")

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        assert helper(torch.ones(1)).item() == 2
        return module.forward

    fast = jitpy.jit(lambda x: x * 3, backend=backend)
    assert fast(torch.ones(1)).item() == 3
    assert variants() == 1


def test_threads_compile_one_variant() -> None:
    fast = jitpy.jit(lambda x: (x + 1).sin(), backend="eager")
    x = torch.randn(5)
    barrier = threading.Barrier(4)
    results: list[torch.Tensor] = []

    def work() -> None:
        barrier.wait()
        results.append(fast(x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(r, (x + 1).sin()) for r in results)
    assert variants() == 1


# -- errors of users ----------------------------------------------------------------------------------------


def test_full_graph_error_carries_the_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    fast = jitpy.jit(fn, fullgraph=True, backend="eager")
    for _ in range(2):
        with pytest.raises(jitpy.FullGraphError) as caught:
            fast(torch.ones(2))
        assert caught.value.record.reason.id == "data_dependent_branch"
        assert caught.value.record.source_line == "if x.sum() > 0:"
        assert "hint" in str(caught.value)
    assert issubclass(jitpy.FullGraphError, jitpy.GraphBreakError)


def test_traceback_shows_the_users_line() -> None:
    def inner(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        log.append(x.shape[0])
        raise ValueError("deep")

    def outer(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        y = x + 1
        return inner(y, log)

    log: list[int] = []
    with pytest.raises(ValueError, match="deep") as caught:
        jitpy.jit(outer, backend="eager")(torch.ones(3), log)
    assert log == [3]
    lines = [entry.line for entry in traceback.extract_tb(caught.value.__traceback__) if entry.filename == __file__]
    assert 'raise ValueError("deep")' in lines and "return inner(y, log)" in lines


def test_shape_errors_are_torchs_own() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    args = torch.ones(2, 3), torch.ones(2, 3)
    with pytest.raises(RuntimeError) as plain:
        fn(*args)
    with pytest.raises(RuntimeError) as fast:
        jitpy.jit(fn, backend="eager")(*args)
    assert str(fast.value) == str(plain.value)


def test_a_marked_size_that_is_pinned_is_an_error() -> None:
    def pinned(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 8 else x

    def free(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 4 else x

    x = torch.randn(8, 3)
    jitpy.mark_dynamic(x, 0)
    with pytest.raises(ValueError, match=r"axis 0 of x is marked dynamic, but pinned works for 8 only: Eq\(s0, 8\)"):
        jitpy.jit(pinned)(x)
    jitted = jitpy.jit(free)
    for n in (8, 6, 5):
        sample = x if n == 8 else torch.randn(n, 3)
        torch.testing.assert_close(jitted(sample), sample * 2)
    other = torch.randn(6, 3)
    jitpy.mark_dynamic(other, 0)
    torch.testing.assert_close(jitpy.jit(pinned)(other), other)  # another answer pins nothing


def test_sizes_outside_of_marked_bounds_compile_anew() -> None:
    jitted = jitpy.jit(lambda x: x.sum(0) * x.shape[0])
    x = torch.randn(8, 3)
    jitpy.mark_dynamic(x, 0, min=4, max=16)
    for n in (8, 4, 16, 3, 17, 1, 0):
        sample = x if n == 8 else torch.randn(n, 3)
        torch.testing.assert_close(jitted(sample), sample.sum(0) * n)
