"""Instances of classes derived from int, float, complex, str, bytes, tuple and frozenset, and members of enumerations
of numbers and texts: what works on the plain value works on the instance. PYTEST_DONT_REWRITE: cases run as written."""

from __future__ import annotations

import enum
import functools
import math
import operator

import torch

from tests.semantics.harness import case, make_test


class F(float):
    pass


class I(int):  # noqa: E742
    pass


class S(str):
    pass


class B(bytes):
    pass


class C(complex):
    pass


class T(tuple):
    pass


class FS(frozenset):
    pass


class Length(float):
    """Keeps a unit, and adds in its own way."""

    def __new__(cls, value, unit="m"):
        self = super().__new__(cls, value)
        self.unit = unit
        return self

    def __add__(self, other):
        return type(self)(float(self) + float(other), self.unit)

    def scaled(self, by):
        return type(self)(self * by, self.unit)


class Initialized(int):
    def __init__(self, value):
        self.twice = value * 2


class Quiet(str):
    """Equal whatever the case; another text than itself."""

    def __eq__(self, other):
        return isinstance(other, str) and str.lower(self) == other.lower()

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(str.lower(self))

    def __str__(self):
        return f"<{str.upper(self)}>"


class Reflected(float):
    def __radd__(self, other):
        return "reflected", float(other)

    def __gt__(self, other):
        return "greater"


class Refusing(int):
    def __add__(self, other):
        return NotImplemented

    def __index__(self):
        return 1  # C code asks the number itself

    def __bool__(self):
        return False

    def __len__(self):
        return 7


class Sized(str):
    def __len__(self):
        return 2

    def __iter__(self):
        yield from (1, 2)

    def __contains__(self, item):
        return item == "everything"

    def __getitem__(self, item):
        return item


class Unhashable(tuple):
    def __hash__(self):
        return 3

    def __eq__(self, other):
        return other == "any"


class Letter(str, enum.Enum):
    A = "a"
    B = "b"


class Code(enum.IntEnum):
    ONE = 1
    TWO = 2


class Word(enum.StrEnum):
    YES = "yes"
    NO = "no"


class Bits(enum.IntFlag):
    R = 1
    W = 2


def vec(*sizes):
    return torch.randn(*(sizes or (4,)))


TABLE = {"a": 1, "key": 2, 1: 3, Letter.B: 4}
ITEMS = [10, 20, 30, 40]


@case(lambda: (vec(), F(2.5)), lambda: (vec(), F(0.5)), lambda: (vec(), F(-1.5)), lambda: (vec(), 3.5), breaks=())
def arithmetic_of_floats(x, f):
    return x * f, f * x, x + f, f + 1, 1 - f, f // 1, divmod(f, 2), -f, +f, abs(f), f * f, type(f + f).__name__, f**2


@case(lambda: (vec(), I(3)), lambda: (vec(), I(2)), lambda: (vec(), I(1)), lambda: (vec(), 2), breaks=())
def arithmetic_of_ints(x, i):
    return x * i, i + 1, 7 % i, ~i, i << 1, i & 1, i * 1.5, type(i + 0).__name__, type(+i).__name__, i == 3, x[i], x + i


@case(lambda: (vec(), I(3)), lambda: (vec(), I(2)), lambda: (vec(), I(1)), breaks=())
def ints_as_indices(x, i):
    return ITEMS[i], ITEMS[:i], (1, 2, 3, 4)[i], "abcd"[i], list(range(i)), [0] * i, "a" * i, x.new_zeros(i), x[:i]


@case(lambda: (vec(), S("abc")), lambda: (vec(), S("bcd")), lambda: (vec(), "abc"), breaks=())
def texts(x, s):
    return (
        x * len(s),
        s[0],
        s[1:],
        s + "d",
        "d" + s,
        s * 2,
        s.upper(),
        s == "abc",
        "abc" == s,
        s < "b",
        "b" in s,
        s in "xabcx",
        list(s),
        s.split("b"),
        s.startswith("a"),
        s.replace("b", S("z")),
        not s,
        type(s[:]).__name__,
    )


@case(lambda: (vec(), S("abc"), F(2.5), I(7)), lambda: (vec(), S("x"), F(0.125), I(-1)), breaks=())
def formatted(x, s, f, i):
    return (
        x,
        f"{s}-{f:.2f}-{i:03d}-{i}-{s:>5}",
        "%s %d %.3f" % (s, i, f),
        f"{s} {f:e}",
        str(s),
        repr(s),
        str(f),
        repr(i),
        "-".join([s, "d"]),
        s.join("ab"),
        type(str(s)).__name__,
        type(f"{s}").__name__,
        hex(i),
        ascii(s),
    )


@case(lambda: (vec(), F(2.5), I(7)), lambda: (vec(), F(0.125), I(2)), breaks=())
def conversions(x, f, i):
    return (
        x,
        int(f),
        float(f),
        float(i),
        int(i),
        round(f, 1),
        round(f),
        math.sqrt(i),
        math.floor(f),
        bool(f),
        complex(f),
        type(float(f)).__name__,
        type(int(i)).__name__,
        operator.index(i),
        pow(i, 2, 5),
        f.is_integer(),
        f.real,
        i.imag,
    )


@case(lambda: (vec(), S("a"), I(1)), lambda: (vec(), S("key"), I(1)), breaks=())
def keys(x, s, i):
    made = {s: 1, i: x}
    return made, TABLE[s], TABLE.get(i), s in {"a", "b"}, len({s, str(s)}), hash(s) == hash(str(s)), s in TABLE, made[1]


@case(lambda: (vec(), B(b"xyz"), C(1 + 2j)), lambda: (vec(), B(b"ab"), C(2j)), breaks=())
def bytes_and_complex(x, b, c):
    return x, b[0], b[1:], b + b"a", b.decode(), len(b), list(b), b == b"xyz", c + 1, c.real, abs(c), c.conjugate(), -c


@case(lambda: (vec(), T((1, 2, 3))), lambda: (vec(), T((3, 2))), breaks=())
def tuples(x, t):
    return t * 2, hash(t) == hash(tuple(t)), repr(t), {t: x}, {t: 1}[tuple(t)], type(t * 1).__name__, 2 * t, t + (4,)


@case(lambda: (vec(), FS({1, 2})), lambda: (vec(), FS({3})), breaks=())
def frozensets(x, fs):
    return x, hash(fs) == hash(frozenset(fs)), {fs: 1}[frozenset(fs)], repr(FS([5])), repr(frozenset([5])), str({1}), fs


@case(lambda: (vec(),), breaks=())
def sets_made_here(x):
    return x, repr(frozenset()), repr(set()), repr({3, 1}), str(FS("a")), f"{ {x.dim()} }", hash(frozenset({1, 2}))


@case(lambda: (vec(), 1.5), lambda: (vec(), 2.5), lambda: (vec(), 3.5), breaks=())
def made_here(x, value):
    f = F(value)
    f.note = x
    other = F(value)
    return f, other, f is other, f == other, [S("q"), I("12", 3), F("3.5"), B(b"b"), F(), S(5), C(1, 2)], f.note is x


@case(lambda: (vec(), 1.5), lambda: (vec(), 2.5), lambda: (vec(), 2.5), breaks=())
def with_new_and_methods(x, value):
    a = Length(value, "km")
    b = a + 1
    return a, b, b.unit, a.scaled(2), x * a, Length(2.0), float(a) + 1, a * 2, sum([a, a], 0), Initialized(3).twice


@case(lambda: (vec(), Length(1.5, "km")), lambda: (vec(), Length(2.5)), lambda: (vec(), Length(2.5)), breaks=())
def attributes(x, length):
    was = length.unit
    length.unit = was + "!"
    length.seen = x
    return was, length, vars(length)["unit"], (length + 1).unit, hasattr(length, "missing"), isinstance(length, float)


@case(lambda: (vec(), Length(1.5, "km")), factory=False, breaks=())
def written_and_returned(x, length):
    del length.unit
    return hasattr(length, "unit"), length + 0 if hasattr(length, "unit") else length * 2


@case(lambda: (vec(), Quiet("Abc")), lambda: (vec(), Quiet("x")), breaks=())
def own_comparison(x, q):
    return (
        x,
        q == "ABC",
        "aBC" == q,
        q != "abc",
        hash(q) == hash("abc"),
        str(q),
        f"{q}",
        repr(q),
        q + "x",
        q.upper(),
        len(q),
        q < "b",
        S("abc") == q,
        q == S("abc"),
        q in ["abc", "ABC"],
        q.lower() == "abc",
        max(q, "b"),
    )


@case(lambda: (vec(), Quiet("Abc")))
def own_text_in_texts(x, q):
    return x, "%s" % q, "{}".format(q), "%s %s" % (q, 1), {q: 1}, {q: 1}.get("abc"), "-".join([q]), "{:>8}".format(q)


@case(lambda: (vec(), Reflected(2.0)), lambda: (vec(), Reflected(3.0)), breaks=())
def reflected(x, r):
    return (
        1.5 + r,
        1 + r,
        F(1.0) + r,
        I(1) + r,
        r + 1,
        r + r,
        1.0 < r,
        F(1.0) < r,
        r > 1,
        r < 1,
        I(1) < r,
        5 - r,
        Reflected(1.0) < r,
    )


@case(lambda: (vec(), Reflected(2.0)))
def reflected_with_tensors(x, r):
    return x + r, x < r, r > x, r * x


@case(lambda: (vec(), Refusing(2)), lambda: (vec(), Refusing(3)), breaks=())
def own_slots_of_ints(x, r):
    try:
        added = r + 1
    except TypeError as error:
        added = str(error)
    return added, 1 + r, ITEMS[r], ITEMS[:r], list(range(r)), bool(r), len(r), 1 if r else 2, r * 2, x[r], not r


@case(lambda: (vec(), Sized("abc")), lambda: (vec(), Sized("x")), breaks=())
def own_slots_of_texts(x, s):
    return (
        len(s),
        list(s),
        "everything" in s,
        "a" in s,
        s[5],
        s + "d",
        s.upper(),
        s == "abc",
        "a" in str(s),
        [*s],
        s * 2,
    )


@case(lambda: (vec(), Unhashable((1, 2))))
def own_slots_of_tuples(x, t):
    return t == "any", t == (1, 2), {t: 1}, hash(t), {t: 1}.get((1, 2)), t in [5], t in ["any"]


@case(lambda: (vec(), Letter.A), lambda: (vec(), Letter.B), breaks=())
def text_members(x, m):
    return (
        x,
        m == "a",
        m + "x",
        "x" + m,
        m.upper(),
        len(m),
        m[0],
        TABLE.get(m),
        {"a": 1}.get(m),
        list(m),
        "-".join([m, m]),
        m in ("a", "c"),
        m in "abc",
        m.value,
        m.name,
        m * 2,
        str.upper(m),
        m is Letter.A,
        m < "b",
        type(m[:]).__name__,
    )


@case(lambda: (vec(), Code.ONE), lambda: (vec(), Code.TWO), breaks=())
def number_members(x, m):
    return (
        ITEMS[m],
        ITEMS[m:],
        (5, 6, 7)[m],
        x[m],
        x * m,
        -m,
        hash(m) == hash(int(m)),
        m + 1,
        1 / m,
        m.bit_length(),
        ~m,
        abs(m),
        range(m),
        [0] * m,
        f"{m}",
        f"{m:03d}",
        "%d" % m,
        float(m),
        math.sqrt(m),
        max(m, 1),
        sorted([Code.TWO, m]),
        m == 1,
    )


@case(lambda: (vec(), Word.YES, Bits.R), lambda: (vec(), Word.NO, Bits.W | Bits.R), breaks=())
def other_members(x, w, b):
    return (
        x,
        str(w),
        f"{w}",
        w + "!",
        w.title(),
        w[0],
        len(w),
        {w: 1}["yes" if w == "yes" else "no"],
        b | Bits.W,
        b & 1,
        b + 1,
        b == 1,
        Bits.R in b,
        ITEMS[b],
        -b,
        bool(b & Bits.W),
    )


@case(lambda: (vec(),), breaks=())
def versions(x):
    v = torch.__version__
    return (
        x,
        v >= "2.0",
        v < (1, 5),
        v == "1.0",
        str(v),
        v[0],
        len(v) > 2,
        v.startswith("2"),
        v.split("+")[0].split(".")[0],
        tuple(int(p) for p in v.split(".")[:2]) >= (2, 0),
    )


@case(lambda: (vec(), I(3), F(1.5)), lambda: (vec(), I(2), F(2.5)), breaks=())
def methods_of_the_plain_types(x, i, f):
    return (
        x,
        f.__add__(1),
        i.__index__(),
        int.__add__(i, 1),
        float.__repr__(f),
        str.upper(S("a")),
        i.__rsub__(5),
        f.__lt__(2),
        f.__add__("a"),
        i.__add__(1.5),
        i.to_bytes(2, "big"),
        f.hex(),
        f.__bool__(),
        float.__eq__(f, i),
    )


@case(lambda: (vec(),), breaks=())
def methods_bound_to_containers(x):
    items, table = [1, 2, 3], {"a": 1}
    return (
        x,
        items.__len__(),
        list.__len__(items),
        list(map(items.__getitem__, [0, 1])),
        sorted([1, 0], key=items.__getitem__),
        table.__contains__("a"),
        max("ab", key=table.__contains__),
        (2.5).__lt__(3),
        "abc".__contains__("a"),
    )


@case(lambda: (vec(), S("ab")), lambda: (vec(), S("ba")), breaks=())
def iterated(x, s):
    found = []
    for at, letter in enumerate(s):
        found.append((at, letter, x * at))
    return found, dict(zip(s, (1, 2))), sorted(s), set(s) == {"a", "b"}, [*reversed(T((1, 2)))], all(s), min(s)


@case(lambda: (vec(), S("ab"), I(1)))
def across_a_break(x, s, i):
    import jitpy

    f = F(x.shape[0] / 2)
    f.note = [1]
    jitpy.graph_break()
    f.note.append(s)
    total = x * 0
    for letter in s:
        total = total + ord(letter) * i
        jitpy.graph_break()
    return f, f.note, s.upper(), ITEMS[i], total


@case(lambda: (vec(), [S("a"), F(1.5), I(2)]), lambda: (vec(), [S("b"), F(1.5), I(2)]), breaks=())
def held_by_containers(x, held):
    held.append(held[0])
    return held[0] is held[-1], held, {"k": held[1]}, [type(v).__name__ for v in held], sum(held[1:3]), held.index(2)


@case(
    lambda: (vec(), I(1)),
    lambda: (vec(), I(5)),
    lambda: (vec(), I(9)),
    lambda: (vec(), I(12)),
    lambda: (vec(), I(13)),
    breaks=(),
)
def numbers_that_change(x, i):
    return x * i + (1 if i > 4 else 2), i, i * 2


@case(
    lambda: (vec(), S("a")),
    lambda: (vec(), S("b")),
    lambda: (vec(), S("c")),
    lambda: (vec(), S("d")),
    lambda: (vec(), S("e")),
)
def texts_that_change(x, s):
    return x * 2, s, s + "!", len(s), {s: 1}


@case(lambda: (vec(), I(3)), lambda: (vec(), 3), lambda: (vec(), True), lambda: (vec(), F(3.0)))
def kinds_that_change(x, i):
    return x * i, type(i).__name__, i + 1


@case(lambda: (vec(), S("x")), breaks=("local_class",))
def names_of_attributes(x, name):
    class Holder:
        x = 3

    return (
        getattr(Holder, name),
        getattr(Holder(), S("y"), None),
        hasattr(Holder, name),
        operator.attrgetter(S("x"))(Holder),
    )


@case(lambda: (vec(), I(1), S("cpu")), lambda: (vec(2, 3), I(0), S("cpu")), breaks=())
def for_torch(x, i, device):
    return (
        x.sum(I(0)),
        x.to(device),
        torch.zeros(I(2), Code.TWO),
        torch.full((I(2),), F(0.5)),
        x.transpose(I(0), -1),
        x.numel() + i,
    )


@case(lambda: (vec(), I(3), S("k"), T((1, 2))), lambda: (vec(), I(4), S("j"), T((2, 1))), breaks=())
def patterns(x, i, s, t):
    found = []
    for value in (i, s, t):
        match value:
            case str(z):
                found.append(("str", z))
            case int(z) if z > 3:
                found.append(("int", z))
            case [first, *_]:
                found.append(("sequence", first))
            case _:
                found.append("none")
    return x, found, functools.reduce(operator.add, [i, 1])


test_immutable_subclasses = make_test(__name__)
