"""Grad mode, inference mode, autocast, default dtype and device, process-wide switches. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from tests.semantics.harness import case, make_test

SWITCH: Any = None


def graph_break() -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


def plain_linear(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The model called below autocast's own cache of weights, not in a graph."""
    return model(x)


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    import jitpy

    graph_break = jitpy.graph_break  # type: ignore[assignment]
    plain_linear = jitpy.disable(plain_linear)


def vec() -> torch.Tensor:
    return torch.randn(4)


def grad() -> torch.Tensor:
    return torch.randn(4, requires_grad=True)


def one():
    return (vec(),)


def leaf():
    return (grad(),)


# -- grad mode


@case(leaf, fullgraph=True)
def no_grad_block(x):
    with torch.no_grad():
        y = x * 2
    return y, x * 3, torch.is_grad_enabled()


@case(leaf, fullgraph=True)
def enable_inside_no_grad(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
        w = x * 4
    return y, z, w


@case(leaf, fullgraph=True)
def set_grad_as_context(x):
    with torch.set_grad_enabled(False):
        y = x * 2
    with torch.set_grad_enabled(True):
        z = x * 2
    return y, z


@case(leaf, one)
def set_grad_called(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y, x * 3


@case(leaf)
def grad_left_off(x):
    torch.set_grad_enabled(False)
    return x * 2


@case(leaf)
def grad_left_off_by_entering(x):
    torch.no_grad().__enter__()
    return x * 2


@torch.no_grad()
def _halved(x):
    return x / 2


@torch.enable_grad()
def _doubled(x):
    return x * 2, torch.is_grad_enabled()


@torch.set_grad_enabled(False)
def _tripled(x):
    return x * 3


torch.set_grad_enabled(True)  # the decorator above sets the mode at once as well


@case(leaf, fullgraph=True)
def decorated_functions(x):
    with torch.no_grad():
        pair = _doubled(x)
    return _halved(x), pair, _tripled(x), x * 1


@case(leaf, factory=True)
def decorated_root():
    @torch.no_grad()
    def fn(x):
        return x * 2, torch.is_grad_enabled()

    return fn


@case(leaf)
def decorator_made_inside(x):
    @torch.no_grad()
    def inner(y):
        return y * 2

    return inner(x), x * 2


@case(leaf)
def exception_through_no_grad(x):
    try:
        with torch.no_grad():
            y = x * 2
            raise ValueError("inside")
    except ValueError:
        z = x * 3
    return y, z, torch.is_grad_enabled()


@case(leaf)
def exception_out_of_no_grad(x):
    with torch.no_grad():
        y = x * 2
        raise ValueError(f"{y.requires_grad}")


@case(leaf)
def break_inside_no_grad(x):
    with torch.no_grad():
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        z = x * 3
    return y, z, x * 4


@case(leaf)
def grad_mode_in_loop(x):
    out = []
    for i in range(4):
        with torch.set_grad_enabled(i % 2 == 0):
            out.append(x * i)
    return out


@case(leaf)
def generator_under_no_grad(x):
    @torch.no_grad()
    def items():
        for i in range(3):
            yield x * i

    return [*items()], x * 2


@case(leaf, one)
def inference_block(x):
    with torch.inference_mode():
        y = x * 2
    return y.is_inference(), y.requires_grad, x * 3


@case(leaf, one)
def inference_result(x):
    with torch.inference_mode():
        y = x * 2
    return y


@case(one, factory=True)
def inference_decorated():
    @torch.inference_mode()
    def fn(x):
        return x * 2, torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    return fn


@case(one)
def inference_off_inside_on(x):
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = x * 3
    return y.is_inference(), z.is_inference(), z


@case(leaf)
def inference_tensor_used_in_graph(x):
    with torch.inference_mode():
        y = torch.ones(4)
    return x * y


@case(leaf)
def inference_view_changed(x):
    with torch.inference_mode():
        y = torch.ones(4)
        y.add_(1)
    y.mul_(2)
    return x + 1


@case(leaf, fullgraph=True)
def grad_mode_object_reused(x):
    mode = torch.no_grad()
    with mode:
        y = x * 2
    z = x * 2
    with mode:
        w = x * 2
    return y, z, w


@case(leaf)
def grad_mode_kept_and_returned(x):
    mode = torch.set_grad_enabled(False)
    y = x * 2
    mode.__exit__(None, None, None)
    return y, mode.prev, x * 2


# -- autocast


def matrices():
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)


@case(matrices, fullgraph=True, tolerance=1e-2)
def autocast_block(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        c = a @ b
        d = c.exp() + torch.softmax(c, -1)
    return c, d, a @ b


@case(matrices, tolerance=1e-2)
def autocast_nested(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        c = a @ b
        with torch.autocast("cpu", enabled=False):
            d = a @ b
        with torch.autocast("cpu", dtype=torch.float16):
            e = (a + 1) @ b  # eager keeps the other cast of `a` itself
        f = a @ b
    return c, d, e, f


@case(matrices, fullgraph=True)
def autocast_disabled(a, b):
    with torch.autocast("cpu", enabled=False):
        return a @ b, torch.is_autocast_enabled("cpu")


@torch.autocast("cpu", dtype=torch.bfloat16)
def _product(a, b):
    return a @ b, torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")


@case(matrices, tolerance=1e-2)
def autocast_decorated(a, b):
    return _product(a, b), a @ b


@case(matrices, tolerance=1e-2)
def autocast_decorator_inside(a, b):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def inner():
        return a @ b

    return inner(), a @ b


@case(matrices)
def autocast_for_cuda(a, b):
    with torch.autocast("cuda", enabled=False):
        return a @ b, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")


@case(matrices, tolerance=1e-2)
def autocast_amp_spelling(a, b):
    with torch.amp.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        return a @ b, torch.is_autocast_cache_enabled()


@case(matrices, tolerance=1e-2)
def autocast_exception(a, b):
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            raise KeyError("x")
    except KeyError:
        pass
    return a @ b, torch.is_autocast_enabled("cpu")


@case(matrices, tolerance=1e-2)
def autocast_break_inside(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        c = a @ b
        if c.sum() > 0:
            c = c * 2
        d = c @ b
    return c, d, a @ b


@case(matrices, tolerance=1e-2)
def autocast_left_on(a, b):
    torch.set_autocast_enabled("cpu", True)
    return a @ b


@case(lambda: (torch.randn(3, 8),), factory=True, tolerance=1e-2)
def autocast_module():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x)

    return fn, net


@case(lambda: (torch.randn(3, 8),), factory=True, tolerance=1e-2)
def autocast_around():
    torch.manual_seed(0)
    net = nn.Linear(8, 8)

    def fn(x):
        return net(x), torch.is_autocast_enabled("cpu")

    def outside(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = fn(x)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            second = fn(x)
        return first, second, fn(x)

    return outside, net


# -- default dtype and device


@case(one, fullgraph=True)
def default_dtype_read(x):
    return torch.zeros(3), torch.get_default_dtype(), torch.tensor(1.5)


@case(one)
def default_dtype_set(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(4) + torch.tensor(1.0)
    torch.set_default_dtype(torch.float32)
    return y, torch.ones(4) + x


@case(one)
def default_dtype_left(x):
    torch.set_default_dtype(torch.float64)
    return x + torch.ones(4)


@case(one, factory=True)
def default_dtype_changes_between_calls():
    count = [0]

    def fn(x):
        return torch.ones(4), torch.arange(3) / 2, x.int() / 2

    def outside(x):
        count[0] += 1
        torch.set_default_dtype(torch.float64 if count[0] % 2 else torch.float32)
        return fn(x)

    return outside, count


@case(one)
def device_as_context(x):
    with torch.device("meta"):
        y = torch.ones(4)
    return y.device.type, x + torch.ones(4)


@case(one)
def cpu_device_as_context(x):
    with torch.device("cpu"):
        y = torch.ones(4)
    return y + x, torch.get_default_device()


@case(one)
def default_device_set(x):
    torch.set_default_device("meta")
    y = torch.ones(4)
    torch.set_default_device("cpu")
    return y.device.type, torch.ones(4) + x


# -- process-wide switches


@case(one)
def deterministic_read_and_set(x):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    inside = torch.are_deterministic_algorithms_enabled()
    y = x * 2
    torch.use_deterministic_algorithms(before)
    return inside, y


@case(one)
def deterministic_left_on(x):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return x * 2, torch.is_deterministic_algorithms_warn_only_enabled()


@case(one)
def threads_set(x):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    y = x * 2
    inside = torch.get_num_threads()
    torch.set_num_threads(before)
    return y, inside


@case(one)
def threads_left(x):
    torch.set_num_threads(1)
    return x * 2


@case(one, factory=True)
def threads_read_between_calls():
    state = [1]

    def fn(x):
        return x * torch.get_num_threads()

    def outside(x):
        torch.set_num_threads(state[0])
        state[0] = 3 - state[0]
        return fn(x)

    return outside, state


@case(one)
def matmul_precision(x):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    inside = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    return inside, x * 2


@case(one)
def backend_flags_read(x):
    return x * 2 if torch.backends.cudnn.enabled else x, torch.backends.cudnn.benchmark


@case(one)
def backend_flag_set(x):
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    inside = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before
    return x * 2, inside


@case(one, factory=True)
def module_with_a_setter():
    import types

    class Setting:
        def __get__(self, owner, cls=None):
            return 1

        def __set__(self, owner, value):
            seen.append(value)

    class Settings(types.ModuleType):
        level = Setting()

    seen = []
    settings = Settings("settings")

    def fn(x):
        settings.level = 3
        settings.other = 4
        return x * settings.other

    return fn, seen


@case(lambda: (torch.randn(1, 1, 4, 4),))
def attention_kernels_chosen(x):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = nn.functional.scaled_dot_product_attention(x, x, x)
    return y, torch.backends.cuda.flash_sdp_enabled()


@case(leaf)
def anomaly_mode(x):
    with torch.autograd.detect_anomaly(check_nan=False):
        y = x * 2
        inside = torch.is_anomaly_enabled()
    return y, inside, torch.is_anomaly_enabled()


@case(leaf)
def profiler_ranges(x):
    with torch.profiler.record_function("part"):
        y = x * 2
    with torch.autograd.profiler.record_function("other"):
        return y + 1


@case(leaf)
def profiler_range_left_by_an_error(x):
    with torch.profiler.record_function("part"):
        y = x * 2
        if y.sum() > 1000:
            return y
        raise ValueError("inside")


@case(leaf)
def print_options(x):
    torch.set_printoptions(precision=2)
    text = str(torch.tensor([1.23456]))
    torch.set_printoptions(profile="default")
    return text, x * 2


@case(factory=True, rounds=3)
def autocast_after_a_step():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fn():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 4)).float().pow(2).sum()
        loss.backward()
        optimizer.step()
        with torch.autocast("cpu", dtype=torch.float16):
            return loss.detach(), model(torch.ones(2, 4))

    return fn, model


@case(factory=True, rounds=3)
def autocast_forgets_weights():
    model = nn.Linear(4, 4)
    x = torch.ones(2, 4)

    def plainly():
        graph_break()
        return plain_linear(model, x)

    def fn():
        results = []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results.append(plainly())
            with torch.no_grad():
                model.weight.mul_(2)
            results.append(plainly())
            with torch.autocast("cpu", dtype=torch.float16):
                results.append(plainly())
            results.append(plainly())
            torch.clear_autocast_cache()
            results.append(plainly())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results.append(plainly())
        return results

    return fn, model


test_cases = make_test(__name__)
