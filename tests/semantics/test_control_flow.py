"""Loops, branches, match, exceptions and with. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one() -> tuple[Any, ...]:
    return (vec(),)


@case(one, lambda: (vec(7),), fullgraph=True)
def for_over_range(x):
    for i in range(1, 10, 3):
        x = x + i
    return x


@case(one, fullgraph=True)
def for_with_break_and_else(x):
    for i in range(5):
        if i == 2:
            continue
        if i == 4:
            break
        x = x + i
    else:
        x = x * 100
    for _ in range(2):
        x = x + 1
    else:
        x = x * 2
    return x, i


@case(one, fullgraph=True)
def while_loop(x):
    n = 0
    while n < 10:
        n += 3
        if n == 6:
            continue
        x = x * n
    else:
        x = x + 1
    while True:
        n -= 1
        if n < 5:
            break
    return x, n


@case(one, fullgraph=True)
def nested_loops(x):
    total = x
    for i in range(3):
        for j in range(i):
            if j == 1:
                break
            total = total + x * i
        else:
            total = total - 1
    return total


@case(lambda: (vec(3, 2),), lambda: (vec(4, 2),))
def for_over_tensor(x):
    total = torch.zeros(2)
    for row in x:
        total = total + row
    return total


@case(lambda: ([vec(), vec()],), lambda: ([vec(), vec(), vec()],), lambda: ([],))
def for_over_list(xs):
    total = 0
    for i, x in enumerate(xs, 1):
        total = total + x * i
    return total


@case(lambda: ({"a": vec(), "b": vec()},), lambda: ({"b": vec(), "c": vec()},))
def for_over_dict(d):
    names = []
    total = 0
    for key, value in d.items():
        names.append(key)
        total = total + value
    for key in d:
        names.append(key * 2)
    return total, names, [v.shape for v in d.values()]


@case(lambda: ([vec(), vec()], [1, 2, 3]), fullgraph=True)
def zip_and_reversed(xs, ns):
    out = []
    for (i, x), n in zip(enumerate(xs), reversed(ns), strict=False):
        out.append(x * n + i)
    return out


@case(lambda: (vec(), [1, 2, 3]))
def list_grows_while_iterated(x, items):
    for n in items:
        if len(items) < 6:
            items.append(n * 2)
        x = x + n
    return x


@case(lambda: (vec(), {"a": 1}))
def dict_changes_while_iterated(x, d):
    for key in d:
        d[key + "x"] = 2
    return x


@case(lambda: (vec(), "add"), lambda: (vec(), "mul"), lambda: (vec(), "other"))
def match_literal(x, op):
    match op:
        case "add":
            return x + 1
        case "mul" | "times":
            return x * 2
        case _:
            return x, op


@case(
    lambda: (vec(), (1, 2)),
    lambda: (vec(), [3, 4, 5]),
    lambda: (vec(), {"k": 7, "z": 1}),
    lambda: (vec(), 5),
    lambda: (vec(), (1,)),
)
def match_structure(x, shape):
    match shape:
        case (a, b):
            return x * a + b
        case [first, *rest] if rest:
            return x * first, rest
        case {"k": value, **others}:
            return x + value, others
        case int(n):
            return x - n
        case [n]:
            return n


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x = x
        self.y = y


@case(lambda: (vec(), 1), lambda: (vec(), 0), fullgraph=True)
def match_class(t, n):
    match Point(t, n):
        case Point(x, 0):
            return x, "origin"
        case Point(x=x, y=y) if y > 0:
            return x * y
    return None


@case(lambda: (vec(), 0), lambda: (vec(), 1))
def try_except(x, n):
    try:
        y = 1 // n
    except ZeroDivisionError as error:
        y = str(error)
    else:
        x = x + 1
    finally:
        x = x * 2
    return x, y


@case(one)
def caught_custom_exception(x):
    class Stop(Exception):
        def __init__(self, value):
            super().__init__("stopped", value)
            self.value = value

    def inner(t):
        raise Stop(t + 1)

    try:
        inner(x)
    except (KeyError, Stop) as stop:
        return stop.value * 2, stop.args[0]
    return x


@case(one, fullgraph=True)
def try_finally_return(x):
    log = []

    def inner():
        try:
            return x + 1
        finally:
            log.append("finally")

    def override():
        try:
            return 1
        finally:
            log.append("override")

    return inner(), override(), log


@case(one, fullgraph=True)
def finally_in_loop(x):
    log = []
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            x = x + i
        finally:
            log.append(i)
    return x, log


@case(one)
def uncaught_exception(x):
    y = x + 1
    if y.shape[0] == 4:
        raise ValueError("four", 4)
    return y


@case(one)
def raised_in_callee(x):
    def inner(t):
        def innermost(u):
            raise KeyError("deep")

        return innermost(t * 2)

    return inner(x)


@case(lambda: (vec(), []))
def effects_before_an_exception(x, items):
    items.append(x + 1)
    items.append(2)
    raise RuntimeError("after two")


@case(one)
def chained_exceptions(x):
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("outer") from error


@case(one)
def context_of_exceptions(x):
    try:
        [][3]
    except IndexError:
        int("not a number")


@case(one)
def suppressed_context(x):
    try:
        raise TypeError("first")
    except TypeError:
        raise ValueError("second") from None


@case(one, fullgraph=True)
def reraise(x):
    log = []
    try:
        try:
            raise ValueError("v")
        except ValueError:
            log.append(1)
            raise
    except ValueError as error:
        log.append(str(error))
    return x * len(log), log


@case(one, fullgraph=True)
def exception_variable_is_unbound(x):
    try:
        raise ValueError("v")
    except ValueError as e:
        kept = e.args
    try:
        e  # noqa: F821 - the error is the point
    except UnboundLocalError:
        return x, kept


@case(one, fullgraph=True)
def exception_attributes(x):
    try:
        raise ValueError(1, "two", x)
    except ValueError as e:
        return len(e.args), e.args[1], e.args[2] + 1, isinstance(e, Exception), type(e).__name__


@case(one)
def torch_error(x):
    return x + torch.randn(3)


@case(one)
def torch_error_caught(x):
    try:
        return x @ torch.randn(3)
    except RuntimeError:
        return x * 2


@case(one)
def attribute_error(x):
    return x.no_such_attribute


@case(one, fullgraph=True)
def getattr_default(x):
    return getattr(x, "no_such_attribute", 7), hasattr(x, "shape"), hasattr(x, "nope"), x * 2


@case(lambda: (vec(), [1]))
def index_error(x, items):
    items.append(x)
    return items[5]


@case(lambda: (vec(), {"a": 1}))
def key_error(x, d):
    d["b"] = x
    return d["c"]


class Manager:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(("exit", kind and kind.__name__, value and str(value), tb is None))
        return self.swallow


@case(lambda: (vec(), []), fullgraph=True)
def with_statement(x, log):
    with Manager(log) as m, Manager(log):
        m.log.append("body")
        y = x + 1
    return y


@case(lambda: (vec(), []), fullgraph=True)
def with_swallows(x, log):
    with Manager(log, swallow=True):
        x = x + 1
        raise ValueError("inside")
    return x


@case(lambda: (vec(), []))
def with_passes_on(x, log):
    with Manager(log):
        raise ValueError("inside")


@case(lambda: (vec(), []), fullgraph=True)
def with_return_inside(x, log):
    for i in range(3):
        with Manager(log):
            if i == 1:
                return x * i
    return x


@case(lambda: (vec(), []), fullgraph=True)
def with_break_and_continue(x, log):
    for i in range(4):
        with Manager(log):
            if i == 0:
                continue
            if i == 2:
                break
            x = x + i
    return x


@contextlib.contextmanager
def logged(log, name):
    log.append(f"+{name}")
    try:
        yield name
    finally:
        log.append(f"-{name}")


@case(lambda: (vec(), []), fullgraph=True)
def generator_manager(x, log):
    with logged(log, "a") as name:
        x = x + len(name)
        with logged(log, "b"):
            x = x * 2
    return x


@case(lambda: (vec(), []))
def generator_manager_with_exception(x, log):
    try:
        with logged(log, "a"):
            raise KeyError("k")
    except KeyError as e:
        log.append(e.args[0])
    return x


@case(lambda: (vec(), []), fullgraph=True)
def suppress_and_nullcontext(x, log):
    with contextlib.suppress(KeyError):
        log.append({}["a"])
    with contextlib.nullcontext(5) as five:
        x = x * five
    return x


@case(lambda: (vec(), []))
def exit_stack(x, log):
    with contextlib.ExitStack() as stack:
        for name in "ab":
            stack.enter_context(logged(log, name))
        stack.callback(log.append, "callback")
        x = x + 1
    return x


@case(lambda: (vec(), 3), lambda: (vec(), 0), lambda: (vec(), -3))
def branches_on_numbers(x, n):
    if n > 2:
        return x + n
    elif n == 0:
        return x
    return -x if n > -5 else None


@case(one, lambda: (vec(2, 2),), lambda: (vec(2, 2, 2),))
def branches_on_shape(x):
    if x.dim() > 2:
        return x.flatten()
    if x.shape[-1] > 3 and x.numel() % 2 == 0:
        return x.view(2, -1)
    return x


@case(one, fullgraph=True)
def truth_of_containers(x):
    flags = [bool(v) for v in ([], [0], {}, {"a": 1}, (), "", "a", 0, 1.5, None, set())]
    return x if [] else x + 1, flags, not {}, any([0, 1]), all([])


@case(one, fullgraph=True)
def comparisons_chain(x):
    n = x.shape[0]
    return 1 < n <= 4 != 5, n in (3, 4), n not in [4], x is x, x is not None, "a" < "b" < "c"


@case(one, fullgraph=True)
def short_circuit(x):
    log = []

    def note(value):
        log.append(value)
        return value

    result = (note(0) or note(2)) and note("") or note(x.shape[0])
    return result, log, x + 1


@case(lambda: (vec(), [3, 1, 2]), fullgraph=True)
def loop_with_index_arithmetic(x, items):
    i = 0
    while i < len(items) and items[i] != 2:
        i += 1
    items[i] = 10
    return x[: i + 1] * items[i]


@case(one, fullgraph=True)
def exception_group_free_nesting(x):
    def risky(n):
        if n % 2:
            raise ValueError(n)
        return n

    good, bad = [], []
    for i in range(4):
        try:
            good.append(risky(i))
        except ValueError as e:
            bad.append(e.args[0])
    return x * sum(good), good, bad


@case(one)
def stop_iteration_escapes(x):
    it = iter([x])
    a = next(it)
    return a, next(it)


test_cases = make_test(__name__)
