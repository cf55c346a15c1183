"""Annotations of functions made inside, and instances that become those of another class."""

from __future__ import annotations

import functools

import torch

import jitpy
from tests.semantics.harness import case, make_test

X = lambda: (torch.ones(3),)


class A1:
    def f(self):
        return 1


class B1:
    z = 3

    def f(self):
        return 2


class S1:
    __slots__ = ("a",)


class S2:
    __slots__ = ("b",)


class P1(A1):
    def __init__(s):
        s.v = 1
        s.__class__ = P2


class P2(P1):
    def f(self):
        return "p2"


@jitpy.disable
def breakable():
    pass


@case(X)
def class_assign(x):
    a = A1()
    a.k = x
    r = a.f()
    a.__class__ = B1
    return x * a.f(), type(a).__name__, isinstance(a, B1), a.__class__ is B1, r, a, a.z, P1().f(), P1()


@case(X)
def class_assign_bad(x):
    out = []
    for a, c in ((A1(), S1), (S1(), S2), (A1(), int), (A1(), 3), (3, A1)):
        try:
            a.__class__ = c
            out.append(type(a).__name__)
        except TypeError as e:
            out.append(str(e))
    return x, out


@case(X)
def class_assign_break(x):
    a = A1()
    a.__class__ = B1
    torch.manual_seed(0)
    print("x")
    breakable()
    return a.f(), a, x


@case(X, fullgraph=True)
def annot(x):
    def h(a: int, b: str = "c") -> float:
        return a

    def g(a):
        return a

    h.__annotations__["z"] = x
    g.__annotations__["q"] = 1
    return h, g, h.__annotations__, h.__annotations__ is h.__annotations__, g.__annotations__


@case(X, fullgraph=True)
def annot_wraps(x):
    def deco(f):
        @functools.wraps(f)
        def w(*a):
            return f(*a) + 1

        return w

    @deco
    def h(a: int):
        return a

    h.__annotations__["zz"] = 2
    return h(x), h, h.__wrapped__.__annotations__ is h.__annotations__, h.__wrapped__


@case(X, breaks=("local_class", "local_class"))
def annot_class(x):
    class CD:
        def __init__(s, f):
            s.f = f
            functools.update_wrapper(s, f)

        def __call__(s, *a):
            return s.f(*a) + 1

    @CD
    def h(v: int):
        return v

    class K:
        @CD
        def m(self, v):
            return v

    return h(x), h.__annotations__, h.__name__


@case(X, factory=True, fullgraph=True)
def annot_outside():
    def h(a: int):
        return a

    def fn(x):
        h.__annotations__["n"] = h.__annotations__.get("n", 0) + 1
        return x * h.__annotations__["n"], list(h.__annotations__)

    return fn, h.__annotations__


@case(X, breaks=("local_class", "local_class"))
def sup(x):
    class B:
        def m(s):
            return 1

    class C(B):
        def u(s):
            q = super()
            return q.m(), q.__thisclass__ is C, q.__self__ is s, q.__self_class__ is C

    return x, C().u()


test_all = make_test(__name__)
