"""Backends as torch.compile takes them, used as a stranger uses them: `jitpy.jit(fn, backend=callable)`."""

from __future__ import annotations

import concurrent.futures
import contextvars
import importlib.metadata
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import jitpy
from jitpy import config, logs
from jitpy.backends import registry
from jitpy.engine import all_engines
from jitpy.errors import BackendError
from jitpy.frontend import hook
from jitpy.runtime import guard_checks
from tests.counting import fallbacks


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="jitpy:")
        registered = dict(registry._registered)
        yield
    registry._registered.clear()
    registry._registered.update(registered)
    jitpy.reset()


class Counting:
    """A backend that runs the graph as it is, and counts how often it is called."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.__name__ = "counting"

    def __call__(self, module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        self.calls.append(examples)
        return module.forward


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y - 1


def same(found: Any, expected: Any) -> None:
    assert repr(found) == repr(expected)


# -- whose frames are below a graph

def test_a_break_behind_a_plain_backend() -> None:
    backend = Counting()
    fn = jitpy.jit(branching, backend=backend)
    for _ in range(3):
        for x in (torch.ones(3), -torch.ones(3) * 4):
            same(fn(x), branching(x))
    assert len(backend.calls) == 3


def test_a_backend_that_prints_and_calls_helpers(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []

    def helper(values: tuple[Any, ...], scale: torch.Tensor) -> tuple[Any, ...]:
        total = sum(float(v.sum()) for v in values) + float((scale * 2).sum())
        calls.append(f"{total:.1f}")
        return values

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        helper((torch.ones(2),), torch.ones(1))
        print("compiles")

        def run(*inputs: Any) -> Any:
            print("runs")
            return helper(module(*inputs), torch.ones(1))

        return run

    fn = jitpy.jit(branching, backend=backend)
    same(fn(torch.ones(3)), branching(torch.ones(3)))
    assert capsys.readouterr().out.split() == ["compiles", "runs", "compiles", "runs"] and len(calls) == 4
    same(fn(torch.ones(3)), branching(torch.ones(3)))
    assert capsys.readouterr().out.split() == ["runs", "runs"]


@pytest.mark.skipif(hook.provider_name() == "none", reason="no frame hook here")
def test_the_programs_frames_are_compiled_behind_a_backend() -> None:
    """The hook is off below a graph, and on again behind it."""
    backend = Counting()

    def callback(t: torch.Tensor) -> torch.Tensor:
        return t.sin() * 2 + 1

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        run = contextvars.Context().run
        return [run(callback, y), run(callback, y * 2)]

    fast = jitpy.jit(fn, backend=backend)
    for _ in range(2):
        same(fast(torch.ones(3)), fn(torch.ones(3)))
        assert not hook.is_active() and not hook.is_installed()
    names = [variant.name for engine in all_engines() for variant in engine.variants]
    assert sum(name.endswith("callback") for name in names) == 1 and len(backend.calls) <= 3


def test_a_backend_with_threads() -> None:
    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        pool = concurrent.futures.ThreadPoolExecutor(2)
        return lambda *inputs: pool.submit(module, *inputs).result()

    fn = jitpy.jit(branching, backend=backend)
    results: list[Any] = []

    def work() -> None:
        results.extend(fn(torch.full((3,), float(k))) for k in range(4))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 12
    same(sorted(t.tolist() for t in results), sorted([branching(torch.full((3,), float(k))).tolist()
                                                      for k in range(4)] * 3))


def test_a_backend_that_jits_its_own_helpers() -> None:
    inner = Counting()

    @jitpy.jit(backend=inner)
    def halves(x: torch.Tensor) -> torch.Tensor:
        y = x / 2
        return y + 1 if y.sum() > 0 else y

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: tuple(halves(out) for out in module(*inputs))

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print(end="") if x.sum() > 100 else None
        return y * 2

    found = jitpy.jit(fn, backend=backend)(torch.ones(3))
    assert len(inner.calls) >= 2 and found.shape == (3,)


@pytest.mark.slow
def test_a_backend_that_compiles_by_another_library() -> None:
    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        return torch.compile(module, backend="aot_eager")

    fn = jitpy.jit(branching, backend=backend, dynamic=False)
    for _ in range(2):
        same(fn(torch.ones(3)), branching(torch.ones(3)))
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    fn(x).sum().backward()
    branching(y).sum().backward()
    same(x.grad, y.grad)


def test_a_backward_pass_that_is_not_captured_calls_the_backends_code() -> None:
    """Nodes of a backend's own run in a pass that the program calls behind a break."""
    frames: list[str] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            frames.append("backward")
            return helper(grad)

    def helper(grad: torch.Tensor) -> torch.Tensor:
        return grad * 2

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        compiled.append(module)
        return lambda *inputs: tuple(Twice.apply(t) if t.requires_grad else t for t in module(*inputs))

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        if y.sum() > 0:
            with torch.autograd.set_detect_anomaly(False):
                y.sum().backward()
        return y

    compiled: list[Any] = []
    x = torch.ones(3, requires_grad=True)
    jitpy.jit(step, backend=backend)(x)
    assert x.grad is not None and frames and len(compiled) <= 3


# -- numbers

HOST: list[Callable[[Any], Any]] = [
    round, lambda v: round(v, 1), lambda v: round(v, -1), lambda v: v // 1, lambda v: v % 1, lambda v: divmod(v, .7),
    lambda v: v + 1, lambda v: 2 - v, lambda v: v * 3, lambda v: 1 / (v + 10), lambda v: v / 3, lambda v: -v,
    lambda v: +v, abs, lambda v: v ** 2, lambda v: 2 ** v, lambda v: math.fmod(v, 3), lambda v: v.is_integer(),
    lambda v: v.hex(), int, float, bool, str, repr, math.floor, math.ceil, math.trunc, math.sin, math.cos, math.exp,
    lambda v: math.sqrt(abs(v)), lambda v: math.log(abs(v) + 1), lambda v: math.copysign(1, v), math.isnan, math.isinf,
    lambda v: math.hypot(v, 2), lambda v: math.atan2(v, 2), lambda v: math.pow(v, 2), math.tanh, math.isfinite,
    lambda v: v > 1, lambda v: v <= 1.5, lambda v: v == 2, lambda v: v != 2, lambda v: not v, lambda v: max(v, 1),
    lambda v: min(v, 1.0), lambda v: v.as_integer_ratio(), lambda v: math.degrees(v), lambda v: math.ldexp(v, 2),
    lambda v: math.frexp(v), lambda v: math.modf(v), lambda v: f"{v:.2f}", lambda v: complex(v, 1),
    lambda v: int(v) & 3, lambda v: int(v) | 3, lambda v: int(v) ^ 5, lambda v: int(v) << 2, lambda v: int(v) >> 1,
    lambda v: ~int(v), lambda v: int(v) // 2, lambda v: int(v) % 3, lambda v: int(v) ** 2, lambda v: [0] * abs(int(v)),
    lambda v: int(v).bit_length(), lambda v: math.gcd(int(v), 6), lambda v: int(v) / 2,
    lambda v: torch.full((2,), v), lambda v: torch.ones(2) * v, lambda v: torch.ones(2, dtype=torch.int64) * v,
    lambda v: torch.ones(2, dtype=torch.float16) + v, lambda v: torch.arange(3) < v,
]


@pytest.mark.parametrize("dynamic", [None, False], ids=["symbolic", "static"])
@pytest.mark.parametrize("width", [7, 31])
def test_numbers_of_tensors_that_change(width: int, dynamic: bool | None) -> None:
    """All that Python does with a number, in one graph, in one behind a break, and of an argument."""
    for start in range(0, len(HOST), width):
        ops = HOST[start:start + width]

        def inside(x: torch.Tensor, ops: Any = ops) -> Any:
            v = x.sum().item()
            return [op(v) for op in ops]

        def behind(x: torch.Tensor, ops: Any = ops) -> Any:
            v = x.sum().item()
            w = int(x.argmax())
            before = [0] * w
            return [op(v) for op in ops], before, [op(float(w)) for op in ops]

        def argument(x: torch.Tensor, v: float, ops: Any = ops) -> Any:
            return [op(v) for op in ops], x * v

        with warnings.catch_warnings():
            if dynamic is False:
                warnings.filterwarnings("ignore", message=".*for 8 combinations")
                warnings.filterwarnings("ignore", message=".*was compiled 8 times")
            for fn in (inside, behind):
                jitted = jitpy.jit(fn, backend=Counting(), dynamic=dynamic)
                for k in range(5):
                    x = torch.roll(torch.arange(4.) / 4 - .25, k) * 1.3 + k - 1
                    same(jitted(x), fn(x))
            jitted = jitpy.jit(argument, backend=Counting(), dynamic=dynamic)
            for value in (1.5, 2.25, -0.0, 0.0, 3.7, 100.25, -2.5):
                same(jitted(torch.ones(2), value), argument(torch.ones(2), value))


def test_a_number_behind_a_break() -> None:
    def fn(x: torch.Tensor) -> Any:
        s = x.sum().item()
        n = int(x.argmax())
        return s * 2, [0] * n, round(s, 1)

    jitted = jitpy.jit(fn, backend=lambda module, examples: module.forward)
    for k in range(4):
        x = torch.roll(torch.arange(4.) / 4 - .25, k) + k
        same(jitted(x), fn(x))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("fn", [
    lambda x, a: x * a + a, lambda x, a: x.clamp(max=a), lambda x, a: (x * a).clamp(max=a),
    lambda x, a: torch.add(x, x * a, alpha=a), lambda x, a: torch.full((3,), a) + x.sum() * a,
    lambda x, a: (x * a).sum().item() + a, lambda x, a: torch.where(x > a, x * a, a), lambda x, a: x * a + round(a, 1),
    lambda x, a: x.add_(a).sum().item()])
def test_floats_that_change_are_no_constants_to_torchs_compiler(fn: Callable[..., Any], backend: str) -> None:
    """Torch's caches of compiled graphs know of no conditions on floats: such a float is no symbol that torch may
    turn into its present value."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        jitted = jitpy.jit(fn, backend=backend)
        for a in (1.5, 2.5, 3.5, -4.0):
            ours, theirs = torch.arange(3.0), torch.arange(3.0)
            torch.testing.assert_close(jitted(ours, a), fn(theirs, a))
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_large_and_special_numbers(dynamic: bool | None) -> None:
    def fn(x: torch.Tensor, n: int, v: float) -> Any:
        return x * v, n + 1, v + 1, [n]

    jitted = jitpy.jit(fn, backend=Counting(), dynamic=dynamic)
    for n, v in ((1, 1.5), (2**40, math.nan), (10**5000, math.inf), (10**5000 + 1, -0.0), (-(2**63), 0.0), (7, 2.5)):
        found, expected = jitted(torch.ones(2), n, v), fn(torch.ones(2), n, v)
        same(found[0], expected[0])
        same(found[2], expected[2])
        assert found[1] == expected[1] and found[3] == expected[3]


def test_random_generators() -> None:
    def fn(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(3, generator=generator) + torch.rand(3, generator=generator)

    generator = torch.Generator()
    jitted = jitpy.jit(fn, backend=Counting(), fullgraph=True)
    for seed in range(3):
        same(jitted(torch.ones(3), generator.manual_seed(seed)), fn(torch.ones(3), generator.manual_seed(seed)))


# -- training

@pytest.mark.parametrize("backend", [Counting, pytest.param("inductor", marks=pytest.mark.slow),
                                     pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_batch_norm_in_training(backend: Any) -> None:
    def train(prepare: Callable[[Any], Any]) -> tuple[float, torch.nn.Module]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
        optimizer = torch.optim.SGD(model.parameters(), .1)
        x = torch.randn(16, 4)
        run = prepare(model)
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(x).pow(2).sum() * .1
            loss.backward()
            optimizer.step()
        return loss.item(), model

    loss, model = train(lambda m: m)
    found, jitted = train(lambda m: jitpy.jit(m, backend=backend if isinstance(backend, str) else backend()))
    assert found == pytest.approx(loss, rel=1e-5)
    for a, b in zip(model.state_dict().values(), jitted.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


# -- symbolic sizes

def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).reshape(-1)[: x.shape[0]] + x.shape[0]


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_graph_with_symbolic_sizes_is_handed_over_once(dynamic: bool | None) -> None:
    backend = Counting()
    jitted = jitpy.jit(scaled, backend=backend, dynamic=dynamic)
    for n in (4, 5, 9, 17, 4, 33):
        same(jitted(torch.ones(n, 3)), scaled(torch.ones(n, 3)))
    assert len(backend.calls) == (1 if dynamic else 2)
    examples = backend.calls[-1]
    assert isinstance(examples[0], torch.SymInt) and isinstance(examples[-1].shape[0], torch.SymInt)
    assert type(examples[-1]).__name__ == "FakeTensor"


def test_marked_sizes_are_symbolic_from_the_start() -> None:
    backend = Counting()
    jitted = jitpy.jit(scaled, backend=backend)
    for n in (4, 5, 9):
        x = torch.ones(n, 3)
        jitpy.mark_dynamic(x, 0)
        same(jitted(x), scaled(x))
    assert len(backend.calls) == 1


def test_static_graphs() -> None:
    backend = Counting()
    jitted = jitpy.jit(scaled, backend=backend, dynamic=False)
    for n in (4, 5, 9, 5):
        same(jitted(torch.ones(n, 3)), scaled(torch.ones(n, 3)))
    assert [len(examples) for examples in backend.calls] == [1, 1, 1]
    assert all(type(examples[0]) is torch.Tensor for examples in backend.calls)


def test_a_backend_that_refuses_symbolic_graphs() -> None:
    shapes: list[tuple[int, ...]] = []

    def static_only(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        if not all(type(e) is torch.Tensor and all(type(n) is int for n in e.shape) for e in examples):
            raise NotImplementedError("constant sizes only")
        shapes.append(tuple(examples[0].shape))
        return module.forward

    jitted = jitpy.jit(scaled, backend=static_only, dynamic=True)
    with pytest.warns(UserWarning, match="'static_only' refuses graphs with symbolic sizes.*constant sizes only") as w:
        for n in (4, 5, 9, 5):
            same(jitted(torch.ones(n, 3)), scaled(torch.ones(n, 3)))
    assert len(w) == 1 and shapes == [(4, 3), (5, 3), (9, 3)]


def test_what_a_backend_asks_about_sizes_is_checked() -> None:
    answers: list[bool] = []

    def asking(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        small = bool(examples[0] <= 16)
        answers.append(small)

        def run(n: int, *inputs: Any) -> Any:
            assert (n <= 16) == small
            return module(n, *inputs)

        return run

    jitted = jitpy.jit(scaled, backend=asking, dynamic=True)
    for n in (4, 5, 17, 16, 40, 3):
        same(jitted(torch.ones(n, 3)), scaled(torch.ones(n, 3)))
    assert answers == [True, False]


def test_sizes_that_a_backend_pins() -> None:
    pinned: list[int] = []

    def pinning(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        n = int(examples[0])
        pinned.append(n)

        def run(*inputs: Any) -> Any:
            assert inputs[0] == n
            return module(*inputs)

        return run

    jitted = jitpy.jit(scaled, backend=pinning, dynamic=True)
    with pytest.warns(UserWarning, match="8 combinations of the sizes and numbers s0"):
        for n in (*range(3, 12), 4, 3):
            same(jitted(torch.ones(n, 3)), scaled(torch.ones(n, 3)))
    assert pinned == list(range(3, 11))


def test_views_and_ints_with_symbolic_sizes() -> None:
    def fn(x: torch.Tensor, k: int) -> torch.Tensor:
        return x.t()[1:, :].contiguous() + k

    backend = Counting()
    jitted = jitpy.jit(fn, backend=backend, dynamic=True)
    for n, k in ((4, 3), (5, 7), (9, -2), (6, 0)):
        base = torch.arange(float(n * n * 2)).reshape(n, 2 * n)
        same(jitted(base[1:, 1:n], k), fn(base[1:, 1:n], k))
    assert len(backend.calls) <= 4


@pytest.mark.parametrize("backend", ["eager", "codegen", Counting()], ids=["eager", "codegen", "fx"])
def test_group_norm_keeps_channels_last_whatever_the_sizes(backend: Any) -> None:
    def fn(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        y = torch.nn.functional.group_norm(x, 2, weight)
        return y, y.stride()

    jitted = jitpy.jit(fn, backend=backend, dynamic=True)
    for channels in (4, 6):
        x = torch.randn(2, channels, 3, 5).to(memory_format=torch.channels_last)
        found, expected = jitted(x, torch.ones(channels)), fn(x, torch.ones(channels))
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1] == found[0].stride()


def test_guards_about_numbers_that_have_no_text() -> None:
    assert guard_checks.short(10**5000).startswith("int object")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_torchs_compiler_gets_symbolic_graphs(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from jitpy.backends import fx_bridge

    count = []
    compile_one = fx_bridge._Backend.compile
    monkeypatch.setattr(fx_bridge._Backend, "compile",
                        lambda self, *args: count.append(1) or compile_one(self, *args))

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x @ w).sin() * x.shape[0], dim=-1).cumsum(0)

    jitted = jitpy.jit(fn, backend=backend, dynamic=True)
    for n in (4, 7, 12, 33):
        x, w = torch.randn(n, 5), torch.randn(5, 6, requires_grad=True)
        other = w.detach().clone().requires_grad_()
        found, expected = jitted(x, w), fn(x, other)
        torch.testing.assert_close(found, expected)
        found.pow(2).sum().backward()
        expected.pow(2).sum().backward()
        torch.testing.assert_close(w.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert len(count) == 1


# -- backends that fail

def raising(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
    raise ValueError("no such op")


def no_callable(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
    return 3


def too_many(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
    return lambda *inputs: (*module(*inputs), 1)


def none(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
    return lambda *inputs: None


BAD = [(raising, "the backend 'raising' raised ValueError: no such op"),
       (no_callable, "the backend 'no_callable' returned int, not a callable"),
       (too_many, "the backend 'too_many' compiled a graph of 2 results to a function that returns 3"),
       (none, "the backend 'none' compiled a graph of 2 results to a function that returns NoneType")]


@pytest.mark.parametrize(("backend", "text"), BAD)
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_bad_backends(backend: Any, text: str, dynamic: bool | None) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x.sin()

    jitted = jitpy.jit(fn, backend=backend, dynamic=dynamic)
    with pytest.warns(UserWarning, match=f"jitpy: {text}") as caught, fallbacks() as failed:
        for n in (3, 3, 3):
            same(jitted(torch.ones(n)), fn(torch.ones(n)))
    assert len(caught) == 1 and not failed
    strict = jitpy.jit(fn, backend=backend, fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        with pytest.raises(BackendError, match=text):
            strict(torch.ones(3))


def test_bad_backends_that_take_graphs() -> None:
    def refuses(graph: Any, options: dict[str, Any]) -> Any:
        raise ValueError("not this one")

    def returns_two(graph: Any, options: dict[str, Any]) -> Any:
        return lambda x: (x, x)

    jitpy.register_backend("refuses", refuses, takes_graph=True)
    jitpy.register_backend("returns two", returns_two, takes_graph=True)
    for name, text in (("refuses", "ValueError: not this one"), ("returns two", "that returns 2")):
        with pytest.warns(UserWarning, match=f"{name}.*{text}") as caught:
            same(jitpy.jit(lambda x: x + 1, backend=name)(torch.ones(2)), torch.ones(2) + 1)
        assert len(caught) == 1
        with pytest.raises(BackendError, match=text):
            jitpy.jit(lambda x: x + 1, backend=name, fullgraph=True)(torch.ones(2))


def test_a_backend_that_fails_says_so_once_for_all_graphs() -> None:
    jitted = jitpy.jit(branching, backend=raising)
    with pytest.warns(UserWarning, match="raised ValueError") as caught:
        same(jitted(torch.ones(3)), branching(torch.ones(3)))
        same(jitted(-torch.ones(3) * 3), branching(-torch.ones(3) * 3))
    assert len(caught) == 1


def test_a_backend_whose_results_are_wrong_says_so_once_for_all_graphs() -> None:
    jitted = jitpy.jit(branching, backend=lambda module, examples: lambda *inputs: ())
    with pytest.warns(UserWarning, match="that returns 0") as caught:
        same(jitted(torch.ones(3)), branching(torch.ones(3)))
        same(jitted(-torch.ones(3) * 3), branching(-torch.ones(3) * 3))
    assert len(caught) == 1


@pytest.mark.parametrize("value", [None, 7, "text"])
def test_one_result_that_is_no_tensor(value: Any) -> None:
    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return lambda *inputs: value

    text = f"a graph of 1 results to a function that returns {type(value).__name__}"
    with pytest.warns(UserWarning, match=text) as caught:
        same(jitpy.jit(lambda x: x + 1, backend=backend)(torch.ones(3)), torch.ones(3) + 1)
    assert len(caught) == 1
    with pytest.raises(BackendError, match=text):
        jitpy.jit(lambda x: x + 1, backend=backend, fullgraph=True)(torch.ones(3))


def test_wrong_results_of_a_graph_that_writes_are_an_error() -> None:
    """It cannot run a second time."""
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1)
        return x * 2, x.sin()

    with pytest.raises(BackendError, match="returns 3"):
        jitpy.jit(fn, backend=too_many)(torch.ones(3))


def test_wrong_results_beside_operations_that_may_fail() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[i], x.sin()

    x, i = torch.arange(3.), torch.tensor([2, 0])
    with pytest.warns(UserWarning, match="returns 3") as caught:
        same(jitpy.jit(fn, backend=too_many)(x, i), fn(x, i))
    assert len(caught) == 1
    strict = jitpy.jit(fn, backend=too_many, fullgraph=True)
    with pytest.raises(BackendError, match="returns 3"):
        strict(x, i)


# -- names

def test_names_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [importlib.metadata.EntryPoint("theirs", f"{__name__}:too_many", registry.ENTRY_POINTS),
              importlib.metadata.EntryPoint("broken", "no.such.module:backend", registry.ENTRY_POINTS),
              importlib.metadata.EntryPoint("jitpy", "jitpy.anything:backend", registry.ENTRY_POINTS)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(registry, "_installed", {})
    said: list[str] = []
    monkeypatch.setattr(logs, "_sink", said.append)
    monkeypatch.setattr(logs, "_enabled", {"backends"})
    names = jitpy.list_backends()
    assert {"eager", "aot_eager", "cudagraphs", "inductor", "codegen", "theirs"} <= set(names)
    assert "broken" not in names and "jitpy" not in names
    assert len(said) == 1 and "broken" in said[0] and "no.such.module" in said[0]
    with pytest.raises(BackendError, match="'theirs' compiled a graph of 1 results"):
        jitpy.jit(lambda x: x + 1, backend="theirs", fullgraph=True)(torch.ones(3))
    with pytest.raises(ValueError, match="unknown backend 'broken'.*theirs"):
        jitpy.jit(lambda x: x, backend="broken")


@pytest.mark.slow
def test_aot_eager() -> None:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    fn = jitpy.jit(branching, backend="aot_eager")
    (fn(x) ** 2).sum().backward()
    (branching(y) ** 2).sum().backward()
    same(x.grad, y.grad)
    assert config.recompile_limit == 8


def test_numbers_that_change_as_results_of_inductor() -> None:
    """Torch's own compilers take no float as a result."""

    def fn(x: torch.Tensor, v: float) -> Any:
        return v, x * v, v * 2, round(v, 1), int(v * 2), v > 1

    def beside_a_write(x: torch.Tensor, v: float) -> Any:
        x.add_(1)
        return v * 2, x * 3

    def numbers(v: float) -> Any:
        return v * 2, round(v)

    jitted, plain, writing = (jitpy.jit(one, backend="inductor") for one in (fn, numbers, beside_a_write))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "jitpy")
        for v in (0.5, 1.25, 2.75, 3.5):
            ours, theirs = torch.ones(3), torch.ones(3)
            got, expected = jitted(ours, v), fn(theirs, v)
            assert torch.equal(got[1], expected[1])
            assert (got[0], *got[2:]) == (expected[0], *expected[2:])
            number, product = writing(ours, v)
            assert number == v * 2 and ours.tolist() == [2.0] * 3 and product.tolist() == [6.0] * 3
            assert plain(v) == numbers(v)
