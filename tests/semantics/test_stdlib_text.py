"""Text, numbers, random numbers, time, printing, logging, warnings, json, re. PYTEST_DONT_REWRITE."""

# ruff: noqa: F507, F524
from __future__ import annotations

import base64
import cmath
import decimal
import fractions
import hashlib
import io
import json
import logging
import math
import numbers
import pickle
import random
import re
import statistics
import string
import struct
import textwrap
import time
import warnings

import torch

from jitpy import graph_break
from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + (sizes or (4,))[0])


def one():
    return (vec(),)


# -- formatting ---------------------------------------------------------------------------------------------


@case(one, fullgraph=True)
def fstrings(x):
    n, f, s = 7, 2.5, "abc"
    return (
        f"{n:05d}|{f:.3f}|{s:>6}|{s!r}|{n:#x}|{f:e}|{n:,}|{True}|{None}",
        f"{n=} {s = !r}",
        f"{f:{n}.{2}f}",
        f"{[1, 'a']} {(1,)} {{'k': {n}}}",
        f"{x.shape} {x.dtype} {x.shape[0]:>3}",
        f"{x.shape[0] * 2}",
        x + 1,
    )


@case(one)
def fstring_of_objects(x):
    class V:
        def __format__(self, spec):
            return f"<{spec}>"

        def __repr__(self):
            return "V()"

    return f"{V():abc}", f"{V()!r} {[V()]}", f"{V!r}".endswith("V'>"), f"{ {1} } { {1: V()} }", x + 1


@case(one)
def fstring_of_traced_scalars(x):
    total = x.sum().item()
    return f"{total:.2f} {total}", "%.1f" % total, "{:.3f}".format(total), x + 1


@case(one)
def fstring_of_tensors(x):
    y = x * 2
    return f"{y}", str(y), repr(y), f"{y.sum():.2f}", f"{y.sum()}", "%s" % y, [y], y + 1


@case(one)
def scalar_in_a_dict_key_and_name(x):
    n = int(x.sum())
    return {f"k{n}": x}, "a" * n, x


@case(one, fullgraph=True)
def percent_and_format(x):
    a = "%d %5.2f %s %r %x %%" % (3, 2.0, "s", [1], 255)
    b = "%(a)s-%(b)03d" % {"a": 1, "b": 2}
    c = "{} {0!r} {k:>4} {l[0]} {s.real}".replace("{} {0!r}", "{0} {0!r}").format("a", k=1, l=[5], s=3)
    return a, b, c, "{:{w}}|".format("x", w=4), "{:,}".format(10**6), "{}".format((1, 2)), "%s" % ((1, 2),), x + 1


@case(one)
def format_errors(x):
    out = []
    for f in (
        lambda: "%d" % "a",
        lambda: "{1}".format(),
        lambda: f"{3:q}",
        lambda: "%s %s" % 1,
        lambda: "{k}".format(),
    ):
        try:
            f()
        except (TypeError, IndexError, ValueError, KeyError) as error:
            out.append((type(error).__name__, str(error)))
    return out, x


@case(one, fullgraph=True)
def string_methods(x):
    s = "  Hello, World  "
    t = s.strip()
    return (
        t.lower(),
        t.upper(),
        t.split(", "),
        t.replace("l", "L", 1),
        t.find("W"),
        t.index("o", 5),
        t.count("l"),
        t.startswith(("He", "x")),
        t.endswith("d"),
        t.partition(", "),
        t.rsplit("o", 1),
        t.title(),
        t.swapcase(),
        t.center(20, "*"),
        t.ljust(15) + "|",
        t.zfill(15),
        "-".join(["a", "b"]),
        "a,b,,c".split(","),
        t.isalpha(),
        "12".isdigit(),
        "ab".isidentifier(),
        t.encode(),
        t.casefold(),
        "a\tb".expandtabs(4),
        t.removeprefix("Hello"),
        "x\ny".splitlines(),
        t[::-1],
        t * 2,
        "lo" in t,
        ord("a"),
        chr(98),
        "abc".translate({97: "z"}),
        str.maketrans("a", "b"),
        "é".encode("utf-8"),
        t.removesuffix("ld"),
        "%",
        x + 1,
    )


@case(one, fullgraph=True)
def bytes_methods(x):
    b = b"abc"
    return (
        b.decode(),
        b.hex(),
        b + b"d",
        b[0],
        b[1:],
        list(b),
        b.upper(),
        b.find(b"c"),
        bytes([1, 2]),
        b"%d" % 3,
        bytes.fromhex("ff"),
        b.startswith(b"a"),
        len(b),
        b"a" in b,
        b.replace(b"a", b"x"),
        x + 1,
    )


@case(one)
def bytearrays(x):
    b = bytearray(b"abc")
    b.append(100)
    b[0] = 120
    return b, bytes(b), len(b), memoryview(b)[0], x + 1


@case(one)
def string_building(x):
    out = io.StringIO()
    out.write("a")
    print("b", file=out)
    return (
        out.getvalue(),
        string.ascii_lowercase[:3],
        textwrap.dedent("  a\n  b"),
        string.Template("$a").substitute(a=1),
        x,
    )


# -- numbers ------------------------------------------------------------------------------------------------


@case(one, fullgraph=True)
def math_functions(x):
    return (
        math.comb(5, 2),
        math.perm(4),
        math.factorial(6),
        math.isqrt(17),
        math.hypot(3, 4),
        math.atan2(1, 2),
        math.copysign(1, -2),
        math.fmod(7, 3),
        math.frexp(8.0),
        math.ldexp(0.5, 3),
        math.modf(2.5),
        math.fsum([0.1] * 10),
        math.dist([0, 0], [3, 4]),
        math.gcd(12, 18, 8),
        math.lcm(4, 6),
        math.log(8, 2),
        math.log1p(0.5),
        math.expm1(0.1),
        math.erf(0.3),
        math.gamma(5),
        math.degrees(math.pi),
        math.radians(180),
        math.isfinite(1.0),
        math.nextafter(1.0, 2.0),
        math.ulp(1.0),
        math.remainder(7, 4),
        math.trunc(-2.7),
        math.floor(-2.5),
        math.ceil(2.1),
        math.prod([1, 2, 3], start=2),
        math.tau,
        math.sinh(1),
        math.cbrt(27.0),
        math.exp2(3),
        x + 1,
    )


@case(one)
def math_errors(x):
    out = []
    for f in (
        lambda: math.sqrt(-1),
        lambda: math.log(0),
        lambda: math.factorial(-1),
        lambda: math.exp(1e9),
        lambda: 1 / 0,
        lambda: 1 % 0,
        lambda: 0.0**-1,
        lambda: int("x"),
        lambda: math.floor(math.nan),
        lambda: math.sqrt("a"),
        lambda: [1] * "a",
        lambda: 2 << -1,
        lambda: int(math.inf),
    ):
        try:
            f()
        except (ValueError, OverflowError, ZeroDivisionError, TypeError) as error:
            out.append((type(error).__name__, str(error)))
    return out, x


@case(one, fullgraph=True)
def big_and_odd_numbers(x):
    return (
        2**100,
        -7 // 2,
        -7 % 3,
        7.5 // 2,
        -0.0,
        round(0.5),
        round(-1.5),
        round(2.675, 2),
        divmod(-7, 2),
        pow(3, -1, 7),
        1e308 * 10,
        (1 << 70).bit_length(),
        (5).to_bytes(2, "big"),
        int.from_bytes(b"\x01\x02", "little"),
        (0.1).hex(),
        (2.5).as_integer_ratio(),
        float("inf"),
        int("ff", 16),
        0.1 + 0.2,
        complex(1, -2).conjugate(),
        abs(3 + 4j),
        (3).real,
        True + True,
        ~5,
        5 & -2,
        (0.5).is_integer(),
        (6).bit_count(),
        10**20 % 7,
        int(-3.9),
        float("-0"),
        hash(1.0) == hash(1),
        x + 1,
    )


@case(one)
def other_number_types(x):
    return (
        fractions.Fraction(1, 3) + 1,
        decimal.Decimal("0.1") * 3,
        statistics.mean([1, 2, 3]),
        cmath.sqrt(-1),
        isinstance(1, numbers.Integral),
        isinstance(1.5, numbers.Real),
        isinstance(x.shape[0], numbers.Number),
        x + 1,
    )


@case(one)
def math_on_traced_scalars(x):
    s = x.sum().item()
    return (
        math.sqrt(s),
        math.floor(s),
        round(s, 1),
        math.isnan(s),
        max(s, 1.0),
        abs(-s),
        int(s),
        s // 3,
        divmod(s, 3),
        x + 1,
    )


# -- random numbers, time -----------------------------------------------------------------------------------


@case(one)
def random_numbers(x):
    random.seed(5)
    a = (
        random.random(),
        random.randint(1, 10),
        random.choice([1, 2, 3]),
        random.uniform(0, 1),
        random.sample(range(9), 3),
    )
    items = [1, 2, 3, 4]
    random.shuffle(items)
    return a, items, random.gauss(0, 1), x * random.random()


@case(one, factory=True)
def random_state_advances():
    random.seed(11)

    def fn(x):
        return x * random.random(), random.randrange(100)

    return fn


@case(one, factory=True)
def random_generator_object():
    rng = random.Random(3)

    def fn(x):
        return x * rng.random() + rng.randint(0, 5), rng.choice("abc")

    return fn


@case(one)
def random_choice_branches(x):
    random.seed(len(x))
    return [x + 1 if random.random() < 0.5 else x - 1 for _ in range(4)]


@case(one)
def clocks(x):
    before = time.perf_counter()
    y = x + 1
    after = time.time()
    time.sleep(0)
    return after > 0, time.perf_counter() >= before, y


# -- the outside --------------------------------------------------------------------------------------------


@case(one, fullgraph=True)
def prints(x):
    print("n", x.shape[0], [1, 2], sep="-")
    y = x + 1
    print(f"{y.shape}", end="")
    print()
    items = [1]
    print(items)
    items.append(2)
    print(items, {"a": 1}, None, 2.5)
    return y


@case(one)
def prints_of_tensors(x):
    y = x + 1
    print(y)
    y.add_(1)
    print("after", y, y.sum().item())
    return y


@case(one)
def prints_before_raise(x):
    print("before")
    y = x + 1
    print("sum", y.sum())
    raise RuntimeError("stop")


class Shown:
    def __str__(self):
        return "shown!"


@case(one)
def prints_of_objects(x):
    print(Shown(), [Shown].__len__(), x.shape)
    return x + 1


class ListHandler(logging.Handler):
    def __init__(self, out):
        super().__init__()
        self.out = out

    def emit(self, record):
        self.out.append((record.levelname, record.getMessage()))


@case(one, factory=True)
def logging_calls():
    out = []
    logger = logging.Logger("jitpy-test", logging.INFO)
    logger.addHandler(ListHandler(out))

    def fn(x):
        logger.info("n=%d", x.shape[0])
        logger.debug("hidden %s", x)
        y = x + 1
        if logger.isEnabledFor(logging.WARNING):
            logger.warning("warned")
        return y

    return fn, out


@case(one)
def warnings_recorded(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("one", stacklevel=1)
        y = x + 1
        warnings.warn("two", DeprecationWarning, stacklevel=1)
    return [(str(w.message), w.category.__name__) for w in seen], y


@case(one)
def warnings_as_errors(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("now", UserWarning, stacklevel=1)
        except UserWarning as error:
            return str(error), x + 1


# -- data formats -------------------------------------------------------------------------------------------


@case(one)
def json_data(x):
    text = json.dumps({"a": [1, 2.5, None, True], "b": {"c": "d"}}, sort_keys=True)
    back = json.loads(text)
    back["a"].append(x)
    return text, back, json.dumps([1], indent=1)


@case(one)
def regular_expressions(x):
    m = re.match(r"(\w+)\.(\d+)", "layer.12")
    pattern = re.compile("a(b)?")
    return (
        m.group(1),
        int(m.group(2)),
        m.groups(),
        m.span(),
        re.sub(r"\d", "#", "a1b2"),
        re.findall(r"\d", "a1b2"),
        re.split(",", "a,b"),
        pattern.search("xab").group(),
        pattern.match("q"),
        bool(re.fullmatch("a+", "aaa")),
        re.escape("a.b"),
        x + 1,
    )


PATTERN = re.compile(r"block(\d+)")


@case(one)
def compiled_pattern_of_a_module(x):
    found = PATTERN.match("block7")
    return x * int(found.group(1)), PATTERN.sub("b", "block1 block2"), PATTERN.pattern


@case(one)
def binary_formats(x):
    data = pickle.dumps({"a": 1})
    return pickle.loads(data), struct.pack("<i", 5), hashlib.md5(b"a").hexdigest(), base64.b64encode(b"ab"), x + 1


@case(lambda: (vec(), "alpha", 1), lambda: (vec(), "beta", 2.5), fullgraph=True)
def pickled_arguments(x, name, n):
    def by_name(**named):
        return pickle.dumps(named), pickle.dumps(list(named.values()), protocol=2)

    return by_name(name=name, n=n), by_name(), pickle.dumps({}), pickle.dumps(None), pickle.dumps((n, b"a")), x + 1


@case(lambda: (vec(), "alpha"), breaks=("unsupported_call",))
def pickled_texts_that_may_be_one(x, name):
    return pickle.dumps([name, name]), x + 1


class Text(str):
    pass


class Table(dict):
    pass


@case(lambda: (vec(), Text("a")), lambda: (vec(), "a"), lambda: (vec(), Table(a=1)), lambda: (vec(), {"a": 1}))
def pickled_kinds(x, value):
    return pickle.dumps(value), pickle.dumps([value]), pickle.dumps({"k": value}), pickle.dumps(x.shape), x + 1


@case(lambda: (vec(), "alpha"))
def pickled_by_name(x, name):
    return pickle.dumps(obj=[name, name]), pickle.dumps(obj=(name, 1), protocol=2), x + 1


@case(lambda: (vec(), [1]), breaks=("unsupported_call",) * 2)
def pickled_lists_that_are_one(x, items):
    return pickle.dumps([items, items]), pickle.dumps({"a": items, "b": [*items]}), x + 1


@case(one)
def pickled_tensors(x):
    return pickle.loads(pickle.dumps(x + 1)), x


@case(one)
def break_between_text(x):
    name = f"run{x.shape[0]}"
    parts = [name, "b"]
    graph_break()
    return "/".join(parts), x + len(name)


_GREETING = string.Template("$who: ${n} of $$5, $missing")


@case(lambda: (vec(), 2), lambda: (vec(), 3), lambda: (vec(5), 3))
def templates(x, n):
    class Percent(string.Template):
        delimiter = "%"

    try:
        _GREETING.substitute(who="a", n=n)
    except KeyError as error:
        missing = error.args
    try:
        string.Template("$a $ b").substitute(a=1)
    except ValueError as error:
        wrong = str(error)
    filled = _GREETING.safe_substitute({"who": "b"}, n=n), Percent("%a %{b}").substitute(a=n, b="c")
    return x * n, missing, wrong, filled


@case(lambda: (vec(),), fullgraph=True)
def template_in_a_graph(x):
    return x + 1, string.Template("$a-${b}").substitute({"a": 1}, b=len(x)), _GREETING.substitute(who=1, n=2, missing=3)


@case(lambda: (vec(), "a1b22"), lambda: (vec(), "x"), lambda: (vec(), ""), factory=True)
def substitution_that_calls_back():
    seen = []

    def fn(x, text):
        def double(match):
            seen.append(match.group())
            return str(int(match[0]) * 2)

        pattern = re.compile(r"[0-9]+")
        results = [pattern.sub(double, text), pattern.subn(double, text, 1)]
        results.append(pattern.sub(repl=double, string=text, count=2))
        results += [re.compile("b*").sub(lambda m: "-", text), re.compile("").sub(lambda m: None, text)]
        results.append([m.span() for m in pattern.finditer(text)])
        results.append([m.start() for m in pattern.finditer(text, 2, endpos=4)])
        try:
            pattern.sub(lambda m: 1, text + "7")
        except TypeError as error:
            results.append(str(error))
        return x + len(seen), results

    return fn, seen


test_cases = make_test(__name__)
