"""The public surface: what can be jitted, what a jitted thing looks like, and what bad input gets."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants


def double(x: torch.Tensor, k: int = 2) -> torch.Tensor:
    """Doc of double."""
    return x * k + 1


class Layer(torch.nn.Module):
    """A module with state of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.steps += 1
        return self.linear(x) + self.calls

    def helper(self) -> str:
        return "helped"


class Callable_:
    def __init__(self, k: float) -> None:
        self.k = k

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k


# What can be jitted.


def test_decorator_without_arguments() -> None:
    @jitpy.jit
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch.testing.assert_close(fn(torch.ones(3)), torch.full((3,), 2.0))


def test_decorator_with_arguments() -> None:
    @jitpy.jit(fullgraph=True, backend="eager")
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch.testing.assert_close(fn(torch.ones(3)), torch.full((3,), 2.0))


def test_lambda_and_callable_object() -> None:
    x = torch.randn(3)
    torch.testing.assert_close(jitpy.jit(lambda t: t * 2)(x), x * 2)
    torch.testing.assert_close(jitpy.jit(Callable_(3.0))(x), x * 3)


def test_function_keeps_its_looks() -> None:
    fn = jitpy.jit(double)
    assert fn.__name__ == "double" and fn.__doc__ == "Doc of double." and fn.__module__ == __name__
    assert fn.__qualname__ == "double" and fn.__wrapped__ is double
    assert inspect.signature(fn) == inspect.signature(double)
    x = torch.randn(3)
    torch.testing.assert_close(fn(x, k=5), double(x, k=5))
    torch.testing.assert_close(fn(k=3, x=x), double(x, 3))


def test_methods() -> None:
    class Thing:
        def __init__(self, k: float) -> None:
            self.k = k

        @jitpy.jit
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.k

        @classmethod
        @jitpy.jit
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x * len(cls.__name__)

        @staticmethod
        @jitpy.jit
        def static(x: torch.Tensor) -> torch.Tensor:
            return x - 1

    x = torch.randn(3)
    a, b = Thing(2.0), Thing(3.0)
    for _ in range(2):
        torch.testing.assert_close(a.method(x), x * 2)
        torch.testing.assert_close(b.method(x), x * 3)
        torch.testing.assert_close(Thing.method(b, x), x * 3)
        torch.testing.assert_close(a.of_class(x), x * 5)
        torch.testing.assert_close(Thing.of_class(x), x * 5)
        torch.testing.assert_close(a.static(x), x - 1)
    torch.testing.assert_close(jitpy.jit(a.method)(x), x * 2)
    assert a.method.__name__ == "method"


def test_jit_of_jit() -> None:
    x = torch.randn(3)
    torch.testing.assert_close(jitpy.jit(jitpy.jit(double))(x), double(x))

    inner = jitpy.jit(double)
    torch.testing.assert_close(jitpy.jit(lambda t: inner(t) * 2, fullgraph=True)(x), double(x) * 2)


# Modules.


def test_module_is_the_original_in_all_but_speed() -> None:
    torch.manual_seed(0)
    layer = Layer()
    fast = jitpy.jit(layer)
    assert isinstance(fast, Layer) and isinstance(fast, torch.nn.Module)
    assert list(fast.state_dict()) == list(layer.state_dict()) == ["steps", "linear.weight", "linear.bias"]
    assert fast.helper() == "helped"
    x = torch.randn(2, 4)
    torch.testing.assert_close(fast(x), layer.linear(x) + 1)
    torch.testing.assert_close(layer(x), layer.linear(x) + 2)
    assert fast.calls == layer.calls == 2 and fast.steps.item() == layer.steps.item() == 2
    assert [id(p) for p in fast.parameters()] == [id(p) for p in layer.parameters()]


def test_module_shares_state_both_ways() -> None:
    layer = Layer()
    fast = jitpy.jit(layer)
    x = torch.randn(2, 4)
    fast(x)
    fast.extra = 5
    layer.other = 6
    assert layer.extra == 5 and fast.other == 6
    fast.eval()
    assert not layer.training and not layer.linear.training
    with torch.no_grad():
        layer.linear.weight.zero_()
        layer.linear.bias.fill_(7)
    torch.testing.assert_close(fast(x), torch.full((2, 4), 7.0 + layer.calls))
    layer.linear = torch.nn.Linear(4, 3)
    assert fast(x).shape == (2, 3)
    fast.load_state_dict({key: torch.ones_like(value) for key, value in layer.state_dict().items()})
    assert layer.linear.weight.sum() == 12
    fast.double()
    assert layer.linear.weight.dtype is torch.float64


def test_module_can_be_copied_and_pickled() -> None:
    fast = jitpy.jit(Layer())
    x = torch.randn(2, 4)
    expected = fast(x) + 1
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert isinstance(other, Layer) and other.calls == 1
        assert other.linear.weight is not fast.linear.weight
        torch.testing.assert_close(other(x), expected)
    assert fast.calls == 1


def test_module_hooks_run() -> None:
    layer = Layer()
    fast = jitpy.jit(layer)
    seen: list[str] = []
    layer.register_forward_pre_hook(lambda module, args: seen.append("pre"))
    fast.register_forward_hook(lambda module, args, result: seen.append("post"))
    fast(torch.randn(2, 4))
    assert seen == ["pre", "post"]


def test_module_trains() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 1)
    twin = copy.deepcopy(layer)
    fast = jitpy.jit(layer)
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    for model, parameters in ((fast, layer.parameters()), (twin, twin.parameters())):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
    torch.testing.assert_close(layer.weight, twin.weight)
    torch.testing.assert_close(layer.bias, twin.bias)


# Options.


def test_disable() -> None:
    fn = jitpy.jit(double, disable=True)
    assert fn(torch.ones(1)).item() == 3
    report = jitpy.explain(jitpy.disable(double))(torch.ones(1))
    assert report.op_count == 0

    @jitpy.disable
    def opaque(x: torch.Tensor) -> torch.Tensor:
        assert not jitpy.is_compiling()
        return x + 1

    report = jitpy.explain(lambda x: opaque(x * 2) * 3)(torch.ones(2))
    assert report.graph_break_count == 1 and report.break_reasons[0].reason.id == "disabled"


def test_fullgraph_raises_with_the_break() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        jitpy.graph_break("here it ends")
        return x * 2

    with pytest.raises(RuntimeError) as caught:
        jitpy.jit(broken, fullgraph=True)(torch.ones(2))
    text = str(caught.value)
    assert "here it ends" in text and "test_api.py" in text and "graph_break(" in text


def test_backends() -> None:
    assert {"codegen", "eager", "inductor"} <= set(jitpy.list_backends())
    seen: list[Any] = []

    def counting(module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        seen.append((module, list(example_inputs)))
        return module.forward

    x = torch.randn(3)
    fn = jitpy.jit(double, backend=counting)
    for _ in range(2):
        torch.testing.assert_close(fn(x), double(x))
    assert len(seen) == 1 and isinstance(seen[0][0], torch.fx.GraphModule)
    jitpy.register_backend("test_counting", counting)
    assert "test_counting" in jitpy.list_backends()
    torch.testing.assert_close(jitpy.jit(double, backend="test_counting")(x), double(x))
    assert len(seen) == 2


def test_is_compiling() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        flags = (jitpy.is_compiling(), torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling())
        return x + 1 if all(flags) else x - 1

    assert not jitpy.is_compiling()
    assert jitpy.jit(fn)(torch.zeros(1)).item() == 1 and fn(torch.zeros(1)).item() == -1
    assert not torch.compiler.is_compiling()


def test_allow_in_graph() -> None:
    calls: list[int] = []

    @jitpy.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin()

    fn = jitpy.jit(lambda x: opaque(x + 1) * 2, fullgraph=True)
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(fn(x), (x + 1).sin() * 2)


def test_sizes_become_symbolic_on_the_second_one() -> None:
    jitpy.reset()
    fn = jitpy.jit(double)
    for size in (3, 4, 5, 6, 17, 3):
        torch.testing.assert_close(fn(torch.ones(size)), double(torch.ones(size)))
    assert variants() == 2


@pytest.mark.parametrize(("dynamic", "expected"), [(None, 2), (True, 1), (False, 3)])
def test_dynamic(dynamic: bool | None, expected: int) -> None:
    jitpy.reset()
    fn = jitpy.jit(double, dynamic=dynamic)
    for size in (3, 4, 5, 4):
        torch.testing.assert_close(fn(torch.ones(size)), double(torch.ones(size)))
    assert variants() == expected


def test_mark_dynamic_and_static() -> None:
    marks = ((lambda x: jitpy.mark_dynamic(x, 0, min=2, max=100), 1), (lambda x: jitpy.mark_static(x, 0), 3))
    for mark, expected in marks:
        jitpy.reset()
        fn = jitpy.jit(double)
        for size in (3, 4, 5):
            x = torch.ones(size)
            mark(x)
            fn(x)
        assert variants() == expected


def test_recompile_limit_warns_and_stays_right() -> None:
    def fn(x: torch.Tensor, k: str) -> torch.Tensor:
        return x * len(k)

    jitpy.reset()
    fast = jitpy.jit(fn)
    x = torch.ones(2)
    with jitpy.config.patch(recompile_limit=3):
        with pytest.warns(UserWarning, match="(?s)3 times.*k"):
            for number in range(6):
                torch.testing.assert_close(fast(x, "a" * number), x * number)
    assert variants() == 3


@pytest.mark.parametrize("native", [True, False])
def test_what_fits_is_run_behind_the_recompile_limit(native: bool) -> None:
    def fn(x: torch.Tensor, k: str) -> torch.Tensor:
        seen.append(jitpy.is_compiling())
        return x * len(k)

    def runs_plainly(text: str) -> bool:
        seen.clear()
        torch.testing.assert_close(fast(x, text), x * len(text))
        return seen == [False]

    jitpy.reset()
    seen: list[bool] = []
    x = torch.ones(2)
    with jitpy.config.patch(recompile_limit=3, native=native):
        fast = jitpy.jit(fn)
        for text in ("a", "ab", "abc"):
            assert not runs_plainly(text)
        with pytest.warns(UserWarning, match="calls that no variant fits run eagerly"):
            assert runs_plainly("abcd")
        for _ in range(200):  # most calls fit
            assert runs_plainly("abcd") and not runs_plainly("ab")
        for _ in range(200):  # none does
            assert runs_plainly("abcd")
        assert runs_plainly("ab")
        jitpy.reset()
        assert not runs_plainly("abcd")


def test_reset_forgets() -> None:
    jitpy.reset()
    fn = jitpy.jit(double)
    fn(torch.ones(2))
    assert variants() == 1
    jitpy.reset()
    assert variants() == 0
    fn(torch.ones(2))
    assert variants() == 1


# Bad input.


@pytest.mark.parametrize("thing", [3, None, "text", torch.ones(2)])
def test_not_callable(thing: Any) -> None:
    if thing is None:
        return
    with pytest.raises(TypeError, match="callable"):
        jitpy.jit(thing)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match="codegen"):
        jitpy.jit(double, backend="no_such_backend")
    with pytest.raises(ValueError, match="default"):
        jitpy.jit(double, mode="no_such_mode")
    with pytest.raises((ValueError, TypeError), match="no_such_option"):
        jitpy.jit(double, options={"no_such_option": 1})
    with pytest.raises(AttributeError, match="recompile_limit"):
        jitpy.config.no_such_flag = 1
    with pytest.raises(AttributeError, match="recompile_limit"):
        jitpy.config.patch(no_such_flag=1)
    with pytest.raises(TypeError, match="int"):
        jitpy.config.recompile_limit = "many"
    with pytest.raises(TypeError):
        jitpy.jit(double, dynamic="often")
    with pytest.raises(TypeError):
        jitpy.jit(double, no_such_keyword=1)  # type: ignore[call-overload]


def test_unknown_log_name_in_the_environment() -> None:
    program = "import jitpy"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          env={**os.environ, "JITPY_LOGS": "no_such_log"})
    assert done.returncode != 0 and "no_such_log" in done.stderr and "graph_breaks" in done.stderr


def test_wrong_arguments_raise_as_plain_python_does() -> None:
    fn = jitpy.jit(double)
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((torch.ones(1),), {"q": 1})):
        with pytest.raises(TypeError) as plain:
            double(*args, **kwargs)
        with pytest.raises(TypeError) as fast:
            fn(*args, **kwargs)
        assert str(fast.value) == str(plain.value)


def test_user_exception_passes_with_its_lines() -> None:
    def failing(x: torch.Tensor, log: list[int]) -> torch.Tensor:
        log.append(1)
        y = x + 1
        raise KeyError("mine")
        return y

    log: list[int] = []
    with pytest.raises(KeyError, match="mine") as caught:
        jitpy.jit(failing)(torch.ones(1), log)
    assert log == [1]
    lines = [str(entry.statement) for entry in caught.traceback if entry.name == "failing"]
    assert 'raise KeyError("mine")' in lines[-1]


def test_failing_compiler_warns_and_runs_eager(tmp_path: Any) -> None:
    bad = tmp_path / "cxx"
    version = 'if [ "$1" = --version ]; then echo "bad compiler 1.0"; exit 0; fi'
    bad.write_text(f"#!/bin/sh\n{version}\necho 'it broke' >&2\nexit 3\n")
    bad.chmod(0o755)
    x = torch.randn(100)
    with jitpy.config.patch(cxx=str(bad), raise_errors=False):
        with pytest.warns(RuntimeWarning, match="(?s)cxx.*it broke"):
            torch.testing.assert_close(jitpy.jit(lambda t: (t * 3.25).sin() + 7)(x), (x * 3.25).sin() + 7)


def test_nothing_of_torchs_compiler_is_imported() -> None:
    program = (
        "import sys, torch\nbefore = set(sys.modules)\nimport jitpy\n"
        "jitpy.jit(lambda x: (x + 1).sin())(torch.ones(3))\n"
        "print([m for m in sys.modules if m not in before and"
        " m.startswith(('torch._dynamo', 'torch._inductor', 'torch._functorch'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
