"""Statements and numbers: match, walrus, del, calls, scopes, arithmetic. PYTEST_DONT_REWRITE: cases run as written."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

import torch

from tests.semantics.harness import case, make_test


def graph_break(message: str = "") -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    from jitpy import graph_break  # type: ignore[no-redef]


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


# -- match ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    a: Any
    b: Any


class Positional:
    __match_args__ = ("first", "second")

    def __init__(self, first, second):
        self.first, self.second = first, second


class Colour:
    RED = "red"
    BLUE = "blue"


def describe(value):
    match value:
        case None | True | False:
            return "singleton"
        case Colour.RED | Colour.BLUE as colour:
            return ("colour", colour)
        case -1 | 2.5 | "text" | b"bytes":
            return ("literal", value)
        case int(n) if n > 100:
            return ("big", n)
        case int() | float():
            return "number"
        case str() as s:
            return ("str", s)
        case []:
            return "empty"
        case [single]:
            return ("single", single)
        case [1, *_, last] if last == 9:
            return ("ends", last)
        case [first, [second, *rest]]:
            return ("nested", first, second, rest)
        case [first, *rest]:
            return ("rest", first, rest)
        case {"kind": "a", "value": v, **rest}:
            return ("mapping", v, rest)
        case {"kind": kind}:
            return ("kind", kind)
        case {}:
            return "some mapping"
        case Point(a=0, b=b):
            return ("origin", b)
        case Point(a, b):
            return ("point", a, b)
        case Positional(first, second=s):
            return ("positional", first, s)
        case _:
            return "other"


@case(one)
def match_everything(x):
    values = [None, True, "red", -1, 2.5, "text", b"bytes", 500, 3, 4.5, "s", [], [x], [1, 2, 9], [1, 2, 3],
              (1, [2, 3, 4]), {"kind": "a", "value": 1, "z": 2}, {"kind": "b"}, {"q": 1},
              Point(0, 5), Point(1, 2), Positional(1, 2),
              {1, 2}, object]
    return [describe(v) for v in values]


@case(one)
def match_on_tensors(x):
    match (x, x.shape):
        case (torch.Tensor() as t, [n]) if n == 4:
            return t * n
        case _:
            return x


@case(one)
def match_class_errors(x):
    out = []
    try:
        match Point(1, 2):
            case Point(_, _, c):
                out.append(c)
    except TypeError as error:
        out.append(str(error))
    match Point(1, 2):
        case Point(z=1):
            out.append("no")
        case Point(a=1):
            out.append("yes")
    match 5:
        case bool():
            out.append("bool")
        case int(5):
            out.append("five")
    return out, x


@case(one)
def match_no_case_and_break(x):
    y = x
    match x.shape[0]:
        case 5:
            y = x + 1
    match [1, {"k": (2, 3)}]:
        case [1, {"k": (a, b)}]:
            graph_break()
            y = y * a + b
    return y


# -- walrus, del, scopes ----------------------------------------------------------------------------------------


@case(one)
def walrus_everywhere(x):
    if (n := x.shape[0]) > 2 and (m := n * 2):
        x = x + m
    found = [y := i * 2 for i in range(3)]
    total = sum((last := v) for v in found)
    while (n := n - 1) > 0:
        x = x * n
    return x, n, y, last, total


@case(one)
def del_everything(x):
    a = [0, 1, 2, 3, 4]
    d = {"k": 1, "l": 2}
    p = Point(1, 2)
    cell = 1

    def read():
        return cell

    del a[0], a[1:3], d["k"], p.a
    local = 5
    del local
    (b, c) = (1, 2)
    del (b, c)
    out = [a, d, vars(p)]
    del cell
    try:
        read()
    except NameError as error:
        out.append(str(error))
    try:
        local  # noqa: F821
    except UnboundLocalError as error:
        out.append(str(error))
    cell = 3
    return out, read(), x


@case(one)
def del_then_break(x):
    y = x + 1
    z = y * 2
    del y
    graph_break()
    try:
        return y  # noqa: F821
    except UnboundLocalError:
        return z + 1


@case(one, globals={"COUNTER": lambda: 1, "GONE": lambda: 2})
def global_writes(x):
    global COUNTER, GONE
    COUNTER += 1
    COUNTER = COUNTER * 2
    del GONE
    try:
        GONE
    except NameError:
        x = x + COUNTER
    return x


COUNTER = 0
GONE = 0


@case(one)
def nonlocal_through_three_levels(x):
    n = 0

    def a():
        def b():
            def c():
                nonlocal n
                n += 1
                return n

            return c() + c()

        return b() + n

    return a(), n, x


@case(one)
def conditional_import(x):
    if x.shape[0] == 4:
        import math as m
        from collections import OrderedDict as Od
        from os import path
    else:
        m = None
    return m.floor(2.5), Od(a=1), path.join("a", "b"), x


@case(one)
def starred_everything(x):
    def take(a, /, b=2, *args, c, d=4, **kw):
        return a, b, args, c, d, sorted(kw.items())

    first, *middle, last = range(5)
    *start, end = "abc"
    [a, [b, *c]] = [1, [2, 3, 4]]
    rest = {"c": 5, "e": 6}
    return (take(1, c=3), take(*middle, **rest), take(*start, *[1], c=x, **{"z": 1}), [*start, *{"k": 1}],
            {**rest, "c": 9}, (*"ab", end), first, last, a, b, c)


@case(one)
def star_call_errors(x):
    def take(a, b=1, *, c=2):
        return a

    out = []
    for call in (lambda: take(), lambda: take(1, 2, 3), lambda: take(1, a=2), lambda: take(1, d=3),
                 lambda: take(**{1: 2}), lambda: take(*3), lambda: take(**3), lambda: take(c=1, **{"c": 2})):
        try:
            call()
        except TypeError as error:
            out.append(str(error))
    return out, x


@case(one)
def chained_comparisons(x):
    log = []

    def note(n):
        log.append(n)
        return n

    return 1 < note(2) < note(3), 1 < note(0) < note(9), 1 == 1.0 != 2, log, 1 in [1] == True, x  # noqa: E712


@case(one)
def augmented_assignments(x):
    a = b = [1]
    a += [2]
    t = (1,)
    t += (2,)
    d = {"k": [1]}
    d["k"] += [2]
    s = {1}
    s |= {2}
    n = 7
    n //= 2
    n **= 3
    n <<= 2
    n ^= 5
    y = x.clone()
    y += 1
    y[0] *= 2
    tup = ([1],)
    try:
        tup[0] += [5]
    except TypeError as error:
        text = str(error)
    return a is b, a, t, d, s, n, y, tup, text


@case(one)
def comprehension_scopes(x):
    i = "outer"
    squares = [i * i for i in range(3)]
    nested = [(i, j) for i in range(2) for j in range(i)]
    fns = [lambda: i for i in range(3)]
    table = {k: v for k, v in zip("ab", [x, x + 1], strict=True)}
    return i, squares, nested, [f() for f in fns], table, {c for c in "aab"} == {"a", "b"}


@case(one)
def unpacking_errors(x):
    out = []
    try:
        a, b = [1]
    except ValueError as error:
        out.append(str(error))
    try:
        a, b = [1, 2, 3]
    except ValueError as error:
        out.append(str(error))
    try:
        a, *b, _ = [1]
    except ValueError as error:
        out.append(str(error))
    try:
        a, b = 5
    except TypeError as error:
        out.append(str(error))
    return out, x


@case(one)
def loops_with_else(x):
    log = []
    for i in range(3):
        if i == 5:
            break
    else:
        log.append("for else")
    while i:
        i -= 1
        if i == 1:
            break
    else:
        log.append("while else")
    for _ in ():
        pass
    else:
        log.append("empty")
    return log, x


# -- numbers ----------------------------------------------------------------------------------------------------


@case(one)
def integer_corners(x):
    big = 2**100
    return (big + 1, -big // 7, big % -13, -7 // 2, -7 % 3, 7 % -3, divmod(-7, 2), divmod(7, -2), -1 >> 3, 1 << 70, ~5,
            pow(3, 200, 1000), pow(3, -1, 7), (-2) ** 3, 2**-2, 0**0, int("ff", 16), int(-3.9), big.bit_length(),
            (255).to_bytes(2, "big"), int.from_bytes(b"\x01\x00", "big"), round(-2.5), round(1234, -2), x * 3)


@case(one)
def float_corners(x):
    inf, nan = float("inf"), float("nan")
    return (inf - inf != inf - inf, -0.0, 0.0 == -0.0, 1e308 * 10, -7.5 // 2, -7.5 % 2, 7.5 % -2, divmod(-7.5, 2),
            round(2.5), round(3.5), round(0.5), round(2.675, 2), 0.1 + 0.2, nan != nan, nan in [nan], max(1, nan),
            min(nan, 1), inf > 10**400,
            float("1e-400"), (0.1).hex(), 1e16 + 1, int(1e20), 3.0.is_integer(), (2.5).as_integer_ratio(), x)


@case(one)
def number_errors(x):
    out = []
    for f in (lambda: 1 // 0, lambda: 1.0 / 0, lambda: 1 % 0, lambda: 0.0**-1, lambda: int("x"), lambda: 1 << -1,
              lambda: int(float("nan")), lambda: 10.0**400, lambda: pow(2, -1, 4), lambda: divmod(1, 0),
              lambda: "a" + 1, lambda: -"a", lambda: 1 < "a", lambda: [] < 3, lambda: len(5),
              lambda: [0][x.shape[0]], lambda: {}.x):
        try:
            out.append(f())
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return out, x


@case(one)
def bools_and_complex(x):
    return True + True, True & False, True ^ True, not 0, isinstance(True, int), (1 + 2j) * (3 - 1j), abs(3 + 4j), \
        (1 + 2j).conjugate(), 2 ** 0.5j == 2 ** 0.5j, complex("1+2j"), x * True


@case(lambda: (torch.randn(4), 3), lambda: (torch.randn(4), -7), lambda: (torch.randn(4), 12), rounds=1)
def arithmetic_on_a_changing_int(x, n):
    return (x + n // 2, n % 5, n * n - 1, -n, abs(n), n // -3, n % -4, divmod(n, 4), n > 0, n & 3, n << 2, n**2,
            n / 2, ~n)


@case(lambda: (torch.randn(4), 3.5), lambda: (torch.randn(4), -0.0), lambda: (torch.randn(4), float("inf")), rounds=1)
def arithmetic_on_a_changing_float(x, f):
    return x * f, f + 1, f > 0, f * 2, -f, f == f, abs(f), str(f)


# -- async ------------------------------------------------------------------------------------------------------


@case(one)
def async_code(x):
    async def work(t):
        await asyncio.sleep(0)
        return t + 1

    async def main():
        return await work(x) + await work(x * 2)

    return asyncio.run(main())


@case(one)
def async_generators_and_managers(x):
    log = []

    class Manager:
        async def __aenter__(self):
            log.append("enter")
            return x + 1

        async def __aexit__(self, *info):
            log.append("exit")

    async def numbers():
        for i in range(3):
            yield i

    async def main():
        total = x
        async with Manager() as y:
            async for n in numbers():
                total = total + y * n
        return total, [n async for n in numbers()]

    return asyncio.run(main()), log


# -- breaks ------------------------------------------------------------------------------------------------------


@case(one)
def break_in_chained_comparison(x):
    def value(n):
        graph_break()
        return n

    return 1 < value(2) < value(3), x + 1


@case(one)
def break_in_boolean_operators(x):
    def value(n):
        graph_break()
        return n

    return value(0) or value(2) and value(3), not value(0), value(1) if value(0) else value(7), x


@case(one)
def break_in_starred_and_displays(x):
    def value(n):
        graph_break()
        return n

    def take(*args, **kwargs):
        return args, kwargs

    return [value(1), *value([2])], {value("k"): value(x), **value({"z": 1})}, take(value(1), *value([2]), k=value(3))


@case(one)
def break_in_slices_and_deletes(x):
    def value(n):
        graph_break()
        return n

    a = list(range(6))
    a[value(1) : value(3)] = value([9])
    del a[value(0)]
    b = a[value(1) :]
    return a, b, x[value(1) : value(3)], f"{value(3)!r:>{value(5)}}"


@case(one)
def break_with_global_and_nonlocal(x):
    n = 1

    def inner():
        nonlocal n
        n += 1
        graph_break()
        n += 1
        return n

    return inner() + inner(), n, x


test_all = make_test(__name__)
