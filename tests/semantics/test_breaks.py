"""Graph breaks in every place. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import torch

from tests.semantics.harness import case, make_test


def graph_break(message: str = "") -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    from jitpy import graph_break  # type: ignore[no-redef]


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one() -> tuple[Any, ...]:
    return (vec(),)


@case(one, lambda: (vec(6),), breaks=("user",))
def straight_line(x):
    y = x + 1
    graph_break()
    return y * 2


@case(one, breaks=("user", "user"))
def twice(x):
    x = x + 1
    graph_break("first")
    x = x * 2
    graph_break("second")
    return x - 1


@case(one, breaks=("user",))
def first_thing(x):
    graph_break()
    return x + 1


@case(one, breaks=("user",))
def last_thing(x):
    y = x + 1
    graph_break()
    return y


@case(one, breaks=("user", "user", "user"))
def in_for(x):
    for i in range(3):
        x = x + i
        graph_break()
        x = x * 2
    return x


@case(one)
def in_for_over_list_with_else(x):
    seen = []
    for item in [1, 2, 3]:
        graph_break()
        seen.append(item)
        if item == 3:
            continue
        x = x * item
    else:
        x = x + 100
    return x, seen


@case(one)
def in_for_with_break(x):
    for i in range(10):
        if i == 3:
            break
        graph_break()
        x = x + i
    return x, i


@case(one)
def in_nested_for(x):
    for i in range(2):
        for j in range(2):
            x = x + i * j
            graph_break()
        x = x * 2
    return x


@case(one)
def in_for_over_zip_and_enumerate(x):
    for i, (a, b) in enumerate(zip([1, 2], (3, 4), strict=True)):
        graph_break()
        x = x * a + b - i
    return x


@case(lambda: ({"a": vec(), "b": vec()},))
def in_for_over_dict(d):
    total = 0
    for key, value in d.items():
        graph_break()
        total = total + value * len(key)
    return total


@case(one, breaks=("user", "user"))
def in_while(x):
    n = 0
    while n < 2:
        n += 1
        x = x + n
        graph_break()
        x = x * 2
    return x


@case(one)
def in_while_true(x):
    n = 0
    while True:
        n += 1
        graph_break()
        if n > 2:
            break
        x = x + n
    return x, n


@case(one, breaks=("user",))
def in_try(x):
    try:
        x = x + 1
        graph_break()
        x = x * 2
    except ValueError:
        x = x * 100
    return x - 1


@case(one)
def in_try_then_raise(x):
    log = []
    try:
        log.append("body")
        graph_break()
        x = x * 2
        raise ValueError("after the break")
    except ValueError as e:
        log.append(str(e))
    finally:
        log.append("finally")
    return x, log


@case(one)
def in_except(x):
    try:
        raise KeyError("k")
    except KeyError as e:
        x = x + 1
        graph_break()
        return x * 2, e.args


@case(one)
def in_finally(x):
    log = []
    try:
        log.append(1)
    finally:
        graph_break()
        log.append(2)
    return x + 1, log


@case(one)
def in_finally_with_exception(x):
    try:
        raise ValueError("v")
    finally:
        graph_break()


@case(one)
def in_nested_try(x):
    log = []
    try:
        try:
            graph_break()
            x = x + 1
            raise KeyError("inner")
        finally:
            log.append("inner finally")
            graph_break()
    except KeyError:
        log.append("outer")
    return x * 2, log


@contextlib.contextmanager
def logged(log):
    log.append("enter")
    try:
        yield 3
    finally:
        log.append("exit")


class Manager:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(kind.__name__ if kind else "exit")
        return self.swallow


@case(lambda: (vec(), []))
def in_with(x, log):
    with Manager(log):
        x = x + 1
        graph_break()
        x = x * 2
    return x


@case(lambda: (vec(), []))
def in_with_then_raise(x, log):
    with Manager(log, swallow=True):
        x = x + 1
        graph_break()
        raise ValueError("swallowed")
    return x


@case(lambda: (vec(), []))
def in_with_then_raise_outside(x, log):
    with Manager(log):
        graph_break()
        raise ValueError("passed on")


@case(lambda: (vec(), []))
def in_with_generator_manager(x, log):
    with logged(log) as n:
        x = x + n
        graph_break()
        x = x * 2
    return x


@case(lambda: (vec(), []))
def in_two_withs(x, log):
    with Manager(log) as a, Manager(log):
        x = x + 1
        graph_break()
        a.log.append("inside")
    return x


@case(lambda: (torch.randn(4, requires_grad=True),), breaks=("user",))
def in_no_grad(x):
    with torch.no_grad():
        y = x * 2
        graph_break()
        z = x * 3
    return y, z, x * 4, torch.is_grad_enabled()


@case(lambda: (torch.randn(4, requires_grad=True),))
def in_no_grad_then_raise(x):
    try:
        with torch.no_grad():
            graph_break()
            raise ValueError("inside")
    except ValueError:
        return torch.is_grad_enabled(), x * 2


@case(one)
def in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.mm(x.view(2, 2), x.view(2, 2))
        graph_break()
        z = torch.mm(x.view(2, 2), x.view(2, 2))
    return y, z, torch.mm(x.view(2, 2), x.view(2, 2))


@case(lambda: (vec(), []))
def in_with_in_for_in_try(x, log):
    try:
        for i in range(2):
            with Manager(log):
                x = x + i
                graph_break()
                if i == 1:
                    raise ValueError(i)
    except ValueError as e:
        return x, e.args
    return x


def one_down(x):
    y = x + 1
    graph_break()
    return y * 2


def two_down(x):
    return one_down(x) + one_down(x * 3)


@case(one, breaks=("user",))
def in_callee(x):
    return one_down(x) - 1


@case(one, breaks=("user", "user"))
def in_callee_two_levels_down(x):
    a = x * 2
    b = two_down(a)
    return a + b


@case(one)
def in_callee_within_expression(x):
    return [x, one_down(x), {"k": one_down(x)}], (x + 1) * one_down(x) + len([one_down(x)])


@case(one)
def in_callee_inside_loop_and_with(x):
    log = []
    for _ in range(2):
        with Manager(log):
            x = one_down(x)
    return x, log


def failing_down(x):
    graph_break()
    raise KeyError("from below")


@case(one)
def exception_from_callee_after_break(x):
    try:
        return failing_down(x)
    except KeyError as e:
        return x, e.args


@case(one)
def exception_from_callee_not_caught(x):
    y = x + 1
    return failing_down(y)


@case(one)
def in_comprehension(x):
    return [one_down(x + i) for i in range(2)]


@case(one)
def in_lambda_and_closure(x):
    k = 3

    def inner(t):
        nonlocal k
        k += 1
        graph_break()
        return t * k

    f = lambda t: inner(t) + k
    return f(x), k


@case(one, factory=True)
def nonlocal_state_across_break():
    total = 0

    def fn(x):
        nonlocal total
        total += 1
        graph_break()
        total += 10
        return x * total

    return fn, fn.__closure__


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.a = torch.nn.Linear(4, 4)
        self.b = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = self.a(x)
        graph_break()
        return self.b(y) + self.calls


@case(one, factory=True, breaks=("user",))
def in_module():
    model = Model()
    return model, model


@case(one, factory=True)
def in_method_of_instance():
    model = Model()

    def fn(x):
        return model(x) * 2 + model(x)

    return fn, model


@case(lambda: (vec(), []))
def effects_before_and_after(x, log):
    log.append(x + 1)
    x.add_(1)
    graph_break()
    log.append(x + 2)
    x.mul_(2)
    return log[0]


@case(one)
def views_across_break(x):
    y = x * 2
    v = y[:2]
    graph_break()
    v.add_(1)
    return y, v


@case(one)
def aliases_across_break(x):
    a = [x]
    b = a
    d = {"a": a, "self": None}
    d["self"] = d
    graph_break()
    b.append(1)
    return a, d["a"] is b, d["self"] is d


@case(one)
def objects_across_break(x):
    class Local:
        def __init__(self, t):
            self.t = t

        def get(self):
            return self.t + 1

    obj = Local(x)
    method = obj.get
    graph_break()
    obj.t = obj.t * 2
    return method(), obj.get()


@case(one)
def many_kinds_of_locals(x):
    t = (1, x, [2])
    r = range(3)
    s = {1, 2}
    f = one_down
    z = zip([1, 2], [3, 4], strict=True)
    it = iter([5, 6, 7])
    first = next(it)
    sl = slice(0, 2)
    e = ValueError("kept")
    graph_break()
    return t, list(r), s, f(x), list(z), list(it), first, x[sl], str(e)


@case(one)
def half_used_iterator(x):
    it = enumerate("abc")
    next(it)
    graph_break()
    return list(it), x + 1


@case(one)
def live_generator(x):
    def gen():
        for i in range(3):
            yield x + i

    g = gen()
    a = next(g)
    graph_break()
    return a, next(g), list(g)


@case(one)
def inside_generator(x):
    def gen():
        yield x + 1
        graph_break()
        yield x + 2

    return [v * 2 for v in gen()]


@case(one, lambda: (-torch.ones(4),), lambda: (torch.ones(4),), breaks=None)
def data_dependent_if(x):
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y - 3


@case(lambda: (torch.ones(4),), breaks=("data_dependent_branch",))
def data_dependent_once(x):
    if x.sum() > 0:
        x = x * 2
    return x + 1


@case(lambda: (torch.ones(4),), lambda: (-torch.ones(4),))
def data_dependent_while(x):
    n = 0
    while x.sum() < 20 and n < 6:
        x = x.abs() * 2
        n += 1
    return x, n


@case(lambda: (torch.ones(4),), lambda: (-torch.ones(4),))
def data_dependent_expressions(x):
    a = 1 if x[0] > 0 else 2
    b = bool(x[0] > 0) and "yes"
    c = not (x > 0).all()
    assert x.shape[0] == 4
    return a, b, c, x * a


@case(lambda: (torch.ones(4),), lambda: (-torch.ones(4),))
def data_dependent_in_callee(x):
    def choose(t):
        if t.max() > 0:
            return t + 1
        return t - 1

    return choose(x) * 2, choose(-x)


@case(lambda: (torch.ones(4),), lambda: (torch.ones(4) * 2,))
def data_dependent_assert(x):
    assert (x < 2).all(), "too large"
    return x * 2


@case(one, breaks=("unsupported_call",))
def unsupported_c_function(x):
    y = x + 1
    t = time.strftime("%Y")
    return y * 2, len(t) > 0


@case(one, breaks=())
def print_does_not_break(x):
    y = x + 1
    print("shape", y.shape[0], "done")
    return y * 2


@case(one)
def print_tensor(x):
    y = x * 0 + 1
    print(y.sum())
    print(f"value {y[0].item()}")
    return y


@case(one)
def break_inside_sort_key(x):
    def key(n):
        graph_break()
        return -n

    return sorted([1, 3, 2], key=key), x + 1


@case(one, factory=True)
def global_state_changes_between():
    table = {"k": 1}

    def fn(x):
        a = x * table["k"]
        table["k"] += 1
        graph_break()
        b = x * table["k"]
        table["k"] += 1
        return a, b

    return fn, table


@case(one)
def break_with_stack_contents(x):
    return x + 1, (x * 2, one_down(x), x.sum()), "end"


@case(one)
def break_in_call_arguments(x):
    def three(a, b, *, c):
        return a + b * c

    return three(x, one_down(x), c=one_down(x).sum())


@case(one)
def break_in_subscript_and_attribute(x):
    d = {}
    d[len(d)] = one_down(x)
    items = [1, 2]
    items[one_down(x).dim()] = 5
    return d, items


@case(one)
def break_in_f_string_and_comparison(x):
    return f"<{one_down(x).shape[0]}>", one_down(x).shape[0] == 4, not one_down(x).dim()


@case(one)
def break_in_augmented_assignment(x):
    d = {"k": x}
    d["k"] += one_down(x)
    return d


@case(one)
def break_in_default_and_decorator(x):
    def fn(t=one_down(x)):
        return t * 2

    return fn()


@case(one)
def break_inside_class_body_function(x):
    class Local:
        value = 3

        def run(self, t):
            graph_break()
            return t * self.value

    return Local().run(x)


@case(one)
def break_in_property_and_operator(x):
    class Local:
        @property
        def prop(self):
            graph_break()
            return x + 1

        def __add__(self, other):
            graph_break()
            return other * 2

        def __getitem__(self, i):
            return one_down(x) * i

    obj = Local()
    return obj.prop, obj + x, obj[3]


@case(one)
def break_with_shape_change(x):
    y = x[: x.shape[0] // 2]
    graph_break()
    return y * 2, y.shape


@case(lambda: (vec(3),), lambda: (vec(4),), lambda: (vec(5),), lambda: (vec(6),))
def break_with_dynamic_sizes(x):
    n = x.shape[0]
    y = x * n
    graph_break()
    return y.view(1, n) + n


@case(lambda: (torch.randn(4, requires_grad=True),))
def gradients_across_break(x):
    y = x * x
    graph_break()
    z = y.sin()
    graph_break()
    return z * y


@case(lambda: (vec(), 5), lambda: (vec(), 2))
def recursion_with_break(x, n):
    def down(t, k):
        if k == 0:
            graph_break()
            return t
        return down(t, k - 1) + k

    return down(x, n)


@case(one)
def warnings_module(x):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("quiet", stacklevel=1)
    return x + 1


@case(one)
def import_inside(x):
    import math
    from collections import OrderedDict

    return x * math.pi, OrderedDict(a=1)["a"]


@case(one)
def exec_and_eval(x):
    namespace = {"y": 2}
    exec("y = y + 1", namespace)
    return x * namespace["y"], eval("1 + 1")


@case(one)
def os_environment(x):
    return x + 1, os.environ.get("JITPY_SURELY_NOT_SET", "none"), os.path.join("a", "b")


test_cases = make_test(__name__)
