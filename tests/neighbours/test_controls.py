"""What `torch.compiler` and `torch._dynamo` let a program say, said inside and around jitted functions."""

from __future__ import annotations

import binascii
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from jitpy.engine import all_engines
from jitpy.frontend import hook


def variants(jitted: Any) -> int:
    return len(jitted.entries)


def reasons(report: Any) -> list[str]:
    return [record.reason.id for record in report.break_reasons]


# -- disable -----------------------------------------------------------------------------------------------


def outer(x: torch.Tensor, traced: list[bool]) -> torch.Tensor:
    traced.append(jitpy.is_compiling())
    return inner(x, traced) * 2


def inner(x: torch.Tensor, traced: list[bool]) -> torch.Tensor:
    traced.append(jitpy.is_compiling())
    return x.sin()


@pytest.mark.parametrize(("recursive", "expected"), [(True, [False, False]), (False, [False, True])])
def test_disabled_function_runs_as_plain_python(recursive: bool, expected: list[bool]) -> None:
    disabled = torch.compiler.disable(outer, recursive=recursive)
    for function in (lambda x, traced: disabled(x, traced) + 1, disabled):
        fast = jitpy.jit(function)
        for _ in range(3):
            traced: list[bool] = []
            x = torch.randn(3)
            result = fast(x, traced)
            assert traced == expected
            torch.testing.assert_close(result, x.sin() * 2 + (function is not disabled))


@pytest.mark.parametrize("recursive", [True, False])
def test_disable_holds_where_its_wrapper_ran_first_while_something_was_compiled(recursive: bool) -> None:
    disabled = torch.compiler.disable(inner, recursive=recursive)
    number = torch.compiler.assume_constant_result(lambda: torch.compiler.disable(lambda: 3, recursive=recursive)())

    def function(x: torch.Tensor, traced: list[bool]) -> torch.Tensor:
        jitpy.graph_break()
        return disabled(x * number(), traced) + 1

    hook.forget_code(disabled.__code__)
    traced: list[bool] = []
    torch.testing.assert_close(jitpy.jit(function)(torch.ones(3), traced), inner(torch.ones(3) * 3, []) + 1)
    assert traced == [False]


def test_disable_breaks_with_its_reason() -> None:
    @torch.compiler.disable(reason="too many branches")
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    report = jitpy.explain(lambda x: function(x + 1) * 2)(torch.ones(3))
    assert reasons(report) == ["disabled"] and "too many branches" in report.break_reasons[0].detail
    assert report.graph_count == 2
    with pytest.raises(jitpy.FullGraphError, match="too many branches"):
        jitpy.jit(lambda x: function(x), fullgraph=True)(torch.ones(3))


def test_disabled_methods_and_modules() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.traced: list[bool] = []
            self.layer = torch.compiler.disable(nn.Tanh())

        @torch.compiler.disable
        def helper(self, x: torch.Tensor) -> torch.Tensor:
            self.traced.append(jitpy.is_compiling())
            return x + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.helper(x) * 2)

    model = Model()
    fast = jitpy.jit(model)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(fast(x), ((x + 1) * 2).tanh())
    assert model.traced == [False] * 3


def test_disable_around_a_jitted_function_runs_the_original() -> None:
    traced: list[bool] = []
    model = jitpy.jit(nn.Sequential(nn.Tanh()))
    assert torch.compiler.disable(jitpy.jit(inner))(torch.zeros(2), traced).sum() == 0 and traced == [False]
    torch.compiler.disable(model)(torch.zeros(2))
    assert all(not engine.variants for engine in all_engines())


def test_jitted_function_below_a_disabled_one_is_compiled() -> None:
    """As torch.compile's is: it was asked for explicitly."""
    fast = jitpy.jit(inner)
    traced: list[bool] = []
    torch.compiler.disable(lambda x: fast(x, traced))(torch.ones(2))
    assert traced == [True]


def test_torchs_own_marks_do_not_break() -> None:
    """Torch disables parts of its optimizers for its own compiler."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    report = jitpy.explain(step)(torch.ones(2, 3))
    assert reasons(report) == []


# -- set_stance --------------------------------------------------------------------------------------------


def sized(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.size(0)


def check(fast: Callable[..., Any], *sizes: int) -> None:
    for size in sizes:
        x = torch.randn(size)
        torch.testing.assert_close(fast(x), sized(x))


@pytest.mark.parametrize("native", [True, False])
def test_force_eager(native: bool) -> None:
    with jitpy.config.patch(native=native):
        traced: list[bool] = []
        fast = jitpy.jit(inner)
        for stance, expected in (("force_eager", False), ("default", True), ("force_eager", False), ("default", True)):
            torch.compiler.set_stance(stance)
            fast(torch.ones(2), traced)
            assert traced.pop() is expected
        assert variants(fast) == 1


def test_force_eager_as_a_block_and_as_a_decorator() -> None:
    fast = jitpy.jit(sized)
    with torch.compiler.set_stance("force_eager"):
        check(fast, 3, 4)
    torch.compiler.set_stance("force_eager")(check)(fast, 3, 4)
    assert variants(fast) == 0
    check(fast, 3)
    assert variants(fast) == 1


def test_stance_inside_a_jitted_function() -> None:
    traced: list[bool] = []

    def below(x: torch.Tensor) -> torch.Tensor:
        traced.append(jitpy.is_compiling())
        return x.cos()

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        with torch.compiler.set_stance("force_eager"):
            x = below(x)
        return x * 2

    fast = jitpy.jit(function)
    for _ in range(3):
        torch.testing.assert_close(fast(torch.ones(2)), (torch.ones(2) + 1).cos() * 2)
    assert traced == [False] * 3


def test_eager_on_recompile() -> None:
    fast = jitpy.jit(sized)
    with torch.compiler.set_stance("eager_on_recompile"):
        check(fast, 3)
    assert variants(fast) == 0
    check(fast, 3)
    with torch.compiler.set_stance("eager_on_recompile"):
        check(fast, 3, 4, 5)
    assert variants(fast) == 1 and fast.entries[0].hits == 2


def test_fail_on_recompile() -> None:
    fast = jitpy.jit(sized)
    check(fast, 3)
    with torch.compiler.set_stance("fail_on_recompile"):
        check(fast, 3)
        with pytest.raises(RuntimeError, match="fail_on_recompile.*\n.*size 0: 3 -> 4"):
            check(fast, 4)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            check(jitpy.jit(sized), 4)
    check(fast, 4)


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_eager_then_compile(stance: str) -> None:
    """The first call runs as it is; the sizes that differ in the second one are symbolic in what it compiles."""
    traced: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        traced.append(jitpy.is_compiling())
        return sized(x)

    fast = jitpy.jit(function)
    with torch.compiler.set_stance(stance):
        check(fast, 3)
        assert traced == [False] and variants(fast) == 0
        check(fast, 4, 5, 6)
    assert traced == [False, True, True, True] and variants(fast) == 1


def test_skip_guard_eval_unsafe_keeps_guards() -> None:
    fast = jitpy.jit(sized)
    check(fast, 3)
    with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
        check(fast, 3, 4)


# -- error_on_graph_break ----------------------------------------------------------------------------------


def breaks(x: torch.Tensor) -> torch.Tensor:
    jitpy.graph_break()
    return x.cos()


def test_errors_on_breaks_in_a_region() -> None:
    def region(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.error_on_graph_break(True):
            return breaks(x.sin())

    decorated = torch._dynamo.error_on_graph_break(True)(breaks)
    for function in (region, decorated, lambda x: decorated(x) + 1):
        for _ in range(2):
            with pytest.raises(jitpy.FullGraphError, match="graph_break"):
                jitpy.jit(function)(torch.ones(3))
    with torch._dynamo.error_on_graph_break(True), pytest.raises(jitpy.FullGraphError):
        jitpy.jit(breaks)(torch.ones(3))


def test_regions_add_no_breaks_and_end() -> None:
    def region(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.error_on_graph_break(True):
            y = x.sin()
        return y.cos()

    assert reasons(jitpy.explain(region)(torch.ones(3))) == []
    report = jitpy.explain(lambda x: breaks(region(x)))(torch.ones(3))
    assert reasons(report) == ["user"]
    torch.testing.assert_close(report.result, torch.ones(3).sin().cos().cos())


def test_a_region_inside_may_break_again() -> None:
    def function(x: torch.Tensor, late: bool) -> torch.Tensor:
        with torch._dynamo.error_on_graph_break(True):
            with torch._dynamo.error_on_graph_break(False):
                x = breaks(x)
            return breaks(x) if late else x + 1

    fast = jitpy.jit(function)
    for _ in range(2):
        torch.testing.assert_close(fast(torch.ones(3), False), torch.ones(3).cos() + 1)
        with pytest.raises(jitpy.FullGraphError):
            fast(torch.ones(3), True)


# -- what becomes one node, a constant, or another function -----------------------------------------------


def test_allow_in_graph() -> None:
    @torch.compiler.allow_in_graph
    def function(x: torch.Tensor, k: float) -> torch.Tensor:
        jitpy.graph_break()
        return x * k

    report = jitpy.explain(lambda x: function(x.sin(), 2.0) + 1, fullgraph=True, backend="eager")(torch.ones(3))
    assert reasons(report) == []
    torch.testing.assert_close(report.result, torch.ones(3).sin() * 2 + 1)


def test_assume_constant_result() -> None:
    calls: list[int] = []

    class Model(nn.Module):
        factor = 3

        @torch.compiler.assume_constant_result
        def chosen(self) -> dict[str, int]:
            calls.append(0)
            jitpy.graph_break()
            return {"factor": self.factor}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.chosen()["factor"]

    @torch.compiler.assume_constant_result
    def table(n: int) -> torch.Tensor:
        calls.append(n)
        return torch.arange(n)

    fast, model = jitpy.jit(lambda x: x + table(3), fullgraph=True), jitpy.jit(Model(), fullgraph=True)
    for _ in range(3):
        assert fast(torch.ones(3)).tolist() == [1, 2, 3] and model(torch.ones(2)).tolist() == [3, 3]
    assert calls == [3, 0]


def test_results_that_depend_on_the_graph_are_no_constants() -> None:
    @torch.compiler.assume_constant_result
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    fast = jitpy.jit(lambda x: double(x + 1))
    for value in (1.0, 2.0):
        assert fast(torch.full((2,), value)).tolist() == [value * 2 + 2] * 2


def test_substitute_in_graph() -> None:
    def original(x: torch.Tensor) -> torch.Tensor:
        return breaks(x)

    @torch.compiler.substitute_in_graph(original)
    def traced(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    # for good in this process: a function of C that no other test calls
    @torch.compiler.substitute_in_graph(binascii.crc_hqx)
    def checksum(data: Any, crc: Any, /) -> int:
        return len(data) + 10  # another number, so that it shows

    fast = jitpy.jit(lambda x: original(x) * binascii.crc_hqx(b"ab", 0), fullgraph=True)
    torch.testing.assert_close(fast(torch.ones(3)), torch.ones(3).cos() * 12)


@pytest.mark.parametrize("native", [True, False])
def test_marks_that_come_after_a_compilation(native: bool) -> None:
    def substituted(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def allowed(x: torch.Tensor) -> torch.Tensor:
        jitpy.graph_break()
        return x + 1

    def allowed_by_jitpy(x: torch.Tensor) -> torch.Tensor:
        jitpy.graph_break()
        return x + 1

    def breaks_of_compiled_parts() -> int:
        assert whole(x).tolist() == [4.0] * 3
        return sum(variant.break_record is not None for variant in whole.on_miss.engine.variants)

    with jitpy.config.patch(native=native):
        fast = jitpy.jit(lambda x: substituted(x) * 2)
        whole = jitpy.jit(lambda x: allowed(x) + allowed_by_jitpy(x))
        x = torch.ones(3)
        assert fast(x).tolist() == [4.0] * 3
        torch.compiler.substitute_in_graph(substituted)(lambda x: x.cos())
        torch.testing.assert_close(fast(x), x.cos() * 2)
        assert breaks_of_compiled_parts() == 2
        torch.compiler.allow_in_graph(allowed)
        assert breaks_of_compiled_parts() == 1
        jitpy.allow_in_graph(allowed_by_jitpy)
        assert breaks_of_compiled_parts() == 0


@pytest.mark.parametrize("native", [True, False])
def test_an_allowed_function_goes_while_another_comes(native: bool) -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return x

    def allowed(x: torch.Tensor) -> torch.Tensor:
        jitpy.graph_break()
        return x + 1

    with jitpy.config.patch(native=native):
        fast = jitpy.jit(lambda x: allowed(x) * 2)
        torch.compiler.allow_in_graph(first)
        x = torch.ones(3)
        fast(x)
        assert any(variant.break_record for variant in fast.on_miss.engine.variants)
        torch._dynamo.disallow_in_graph(first)
        torch.compiler.allow_in_graph(allowed)
        assert fast(x).tolist() == [4.0] * 3
        assert not any(variant.break_record for variant in fast.on_miss.engine.variants)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("default", [1.0, torch.ones(3)])
def test_a_result_that_is_assumed_constant_late(native: bool, default: object) -> None:
    state = [1.0]

    def scale(factor: object = default) -> float:
        return state[0]

    with jitpy.config.patch(native=native):
        fast = jitpy.jit(lambda x: x * scale())
        x = torch.ones(3)
        for _ in range(3):
            assert fast(x).tolist() == [1.0] * 3
        scale.note = "other attributes say nothing"  # type: ignore[attr-defined]
        fast(x)
        assert len(fast.entries) == 1
        torch.compiler.assume_constant_result(scale)
        assert fast(x).tolist() == [1.0] * 3
        state[0] = 2.0
        assert fast(x).tolist() == [1.0] * 3
        del scale._dynamo_marked_constant  # type: ignore[attr-defined]
        assert fast(x).tolist() == [2.0] * 3


def test_marks_of_functions_that_die_forget_nothing() -> None:
    fast = jitpy.jit(lambda x: x + 1)
    fast(torch.ones(3))
    torch.compiler.allow_in_graph(lambda x: x)
    fast(torch.ones(3))
    entry = fast.entries[0]
    gc.collect()
    fast(torch.ones(3))
    assert fast.entries == [entry]


def test_nested_compile_region() -> None:
    region = torch.compiler.nested_compile_region(lambda x: x.sin() + 1)
    report = jitpy.explain(lambda x: region(region(x)) * 2)(torch.ones(3))
    assert reasons(report) == [] and report.graph_count == 1
    torch.testing.assert_close(report.result, ((torch.ones(3).sin() + 1).sin() + 1) * 2)


# -- marks on sizes ----------------------------------------------------------------------------------------


def test_mark_dynamic() -> None:
    fast = jitpy.jit(sized)
    x = torch.randn(5)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    fast(x)
    check(fast, 6, 7)
    assert variants(fast) == 1
    check(fast, 9)
    assert variants(fast) == 2

    def pinned(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(5)

    with pytest.raises(ValueError, match="axis 0"):
        jitpy.jit(pinned)(x)


def test_maybe_mark_dynamic() -> None:
    fast = jitpy.jit(sized)
    x = torch.randn(5)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    fast(x)
    check(fast, 6, 7)
    assert variants(fast) == 1
    assert jitpy.jit(lambda x: x + torch.ones(5))(x).shape == (5,)  # a size that is needed is no error


def test_mark_static() -> None:
    fast = jitpy.jit(sized, dynamic=True)
    for size in (5, 6, 7):
        x = torch.randn(size)
        torch._dynamo.mark_static(x)
        torch.testing.assert_close(fast(x), sized(x))
    assert variants(fast) == 3
