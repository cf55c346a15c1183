"""Whatever a program can read is changed between its calls: classes, functions, modules, containers, torch itself.

Each case makes (function, what it reads); the changes are done one after the other, with two calls after each.
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import math
import os
import re
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy

Surroundings = types.SimpleNamespace
Change = Callable[[Any], Any]
CASES: dict[str, tuple[Callable[[], tuple[Callable[..., Any], Any]], tuple[Change, ...]]] = {}


def registering(cases: dict[str, Any]) -> Callable[..., Any]:
    """A decorator that puts what makes a function and its world into `cases`, with the changes it is given."""

    def changed(*changes: Change) -> Callable[[Any], Any]:
        def register(make: Any) -> Any:
            cases[make.__name__] = make, changes
            return make

        return register

    return changed


changed = registering(CASES)


def outcomes(make: Any, changes: tuple[Change, ...], backend: str | None) -> list[str]:
    function, context = make()
    if backend is not None:
        function = jitpy.jit(function, backend=backend)
    found = []
    for change in (lambda w: None, *changes, lambda w: None):
        change(context)
        for _ in range(2):
            try:
                text = repr(function(torch.arange(6.0).reshape(2, 3)))
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
            found.append(re.sub(r"grad_fn=<\w+>", "grad_fn", text))
    return found


@changed(lambda e: setattr(e.o, 'k', 5),
         lambda e: delattr(e.o, 'k'),
         lambda e: setattr(e.B, 'k', 7),
         lambda e: delattr(e.B, 'k'),
         lambda e: setattr(e.A, 'k', 9))
def instance_attr_shadows_class_changes():

    class A:
        k = 2

        def f(self, x):
            return x * self.k

    class B(A):
        pass
    o = B()
    return (lambda x: o.f(x), Surroundings(A=A, B=B, o=o))


@changed(lambda e: setattr(e.A, 'f', lambda s, x: x + 1),
         lambda e: setattr(e.B, 'f', lambda s, x: x + 2),
         lambda e: setattr(e.o, 'f', lambda x: x + 3))
def method_replaced_on_base_changes():

    class A:
        k = 2

        def f(self, x):
            return x * self.k

    class B(A):
        pass
    o = B()
    return (lambda x: o.f(x), Surroundings(A=A, B=B, o=o))


def chg_class(e):

    class C(e.A):
        k = 11
    e.o.__class__ = C


@changed(chg_class)
def class___assigned_changes():

    class A:
        k = 2

        def f(self, x):
            return x * self.k

    class B(A):
        pass
    o = B()
    return (lambda x: o.f(x), Surroundings(A=A, B=B, o=o))


def add_ga(e):
    e.A.__getattribute__ = lambda s, n: 4 if n == 'k' else object.__getattribute__(s, n)


@changed(add_ga)
def getattribute___added_changes():

    class A:
        k = 2

        def f(self, x):
            return x * self.k

    class B(A):
        pass
    o = B()
    return (lambda x: o.f(x), Surroundings(A=A, B=B, o=o))


@changed(lambda e: setattr(e.Meta, '__call__', lambda cls, *a: types.SimpleNamespace(v=8)),
         lambda e: setattr(e.A, '__init__', lambda s, v: setattr(s, 'v', v + 1)))
def metaclass_call_changed_changes():

    class Meta(type):

        def __call__(cls, *a):
            return type.__call__(cls, *a)

    class A(metaclass=Meta):

        def __init__(self, v):
            self.v = v
    return (lambda x: x * A(3).v, Surroundings(A=A, Meta=Meta))


@changed(lambda e: setattr(e.A, '__new__', staticmethod(lambda cls: types.SimpleNamespace(v=8))))
def new___added_changes():

    class A:

        def __init__(self):
            self.v = 3
    return (lambda x: x * A().v, Surroundings(A=A))


@changed(lambda e: setattr(e.g, '__defaults__', (5,)),
         lambda e: e.g.__kwdefaults__.update(b=9),
         lambda e: setattr(e.g, '__kwdefaults__', {'b': 1}),
         lambda e: setattr(e.g, '__code__', (lambda x, a=2, *, b=3: x - a).__code__))
def defaults_changed_changes():

    def g(x, a=2, *, b=3):
        return x * a + b
    return (lambda x: g(x), Surroundings(g=g))


def reorder(e):
    v = e.d.pop('a')
    e.d['a'] = v


@changed(reorder,
         lambda e: e.d.update(cc=3),
         lambda e: e.d.clear())
def dict_order_changes():
    d = {'a': 1, 'b': 2}

    def f(x):
        for k, v in d.items():
            x = x * v + len(k)
        return x
    return (f, Surroundings(d=d))


@changed(lambda e: setattr(e, 'c', type(e.c).G))
def enum_changes():

    class Color(enum.Enum):
        R = 1
        G = 2
    e = Surroundings(c=Color.R)
    return (lambda x: x * (3 if e.c is Color.R else 4) + e.c.value, e)


@changed(lambda e: e.l.append(4),
         lambda e: e.l.insert(0, 3),
         lambda e: setattr(e, 'l', (3, 3)),
         lambda e: setattr(e, 'l', [True, 3]))
def list_changes():
    e = Surroundings(l=[1, 2, 3])
    return (lambda x: x * sum(e.l) + len(e.l) + (2 in e.l) + e.l.index(3), e)


@changed(lambda e: setattr(e, 'v', True),
         lambda e: setattr(e, 'v', 1.0),
         lambda e: setattr(e, 'v', torch.tensor(1)),
         lambda e: setattr(e, 'v', 1 + 0j),
         lambda e: setattr(e, 'v', float('nan')),
         lambda e: setattr(e, 'v', -0.0),
         lambda e: setattr(e, 'v', 0.0),
         lambda e: setattr(e, 'v', 0))
def int_bool_float_changes():
    e = Surroundings(v=1)
    return (lambda x: (x * e.v).to(torch.float64) if isinstance(e.v, bool) else x * e.v, e)


@changed(lambda e: setattr(e, 'v', 0.0),
         lambda e: setattr(e, 'v', -0.0),
         lambda e: setattr(e, 'v', 0))
def minus_zero_changes():
    e = Surroundings(v=-0.0)
    return (lambda x: x * 0 + math.copysign(1, e.v), e)


def data_desc(e):
    e.D.__set__ = lambda s, o, v: None


@changed(lambda e: e.a.__dict__.update(d=7),
         data_desc,
         lambda e: setattr(e.D, '__get__', lambda s, o, t: 9))
def descriptor_changes():

    class D:

        def __get__(self, o, t):
            return 3

    class A:
        d = D()
    a = A()
    return (lambda x: x * a.d, Surroundings(A=A, D=D, a=a))


@changed(lambda e: setattr(e.A, 'p', property(lambda s: 5)),
         lambda e: setattr(e.A, 'p', 6))
def property_changes():

    class A:

        @property
        def p(self):
            return 2
    a = A()
    return (lambda x: x * a.p, Surroundings(A=A, a=a))


@changed(lambda e: e.m.acts.append(torch.nn.Tanh()),
         lambda e: setattr(e.m, 'l', torch.nn.Identity()),
         lambda e: e.m.register_forward_hook(lambda m, i, o: o + 1),
         lambda e: e.m._forward_hooks.clear(),
         lambda e: e.m.register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
         lambda e: setattr(e.m, 'forward', lambda x: x + 100),
         lambda e: e.m.acts.__delitem__(0))
def module_edits_changes():

    class M(torch.nn.Module):

        def __init__(s):
            super().__init__()
            s.l = torch.nn.Linear(3, 3)
            torch.nn.init.ones_(s.l.weight)
            torch.nn.init.zeros_(s.l.bias)
            s.acts = torch.nn.ModuleList([torch.nn.ReLU()])

        def forward(s, x):
            x = s.l(x)
            for a in s.acts:
                x = a(x)
            return x
    mod = M()
    return (lambda x: mod(x), Surroundings(m=mod))


@changed(lambda e: setattr(e.m, 'weight', torch.nn.Parameter(torch.eye(3))),
         lambda e: setattr(e.m, 'bias', None),
         lambda e: setattr(e.m.weight, 'data', torch.full((3, 3), 2.0)),
         lambda e: setattr(e.m.weight, 'data', torch.full((4, 3), 2.0)),
         lambda e: e.m.weight.requires_grad_(False),
         lambda e: e.m.double())
def param_edits_changes():
    mod = torch.nn.Linear(3, 3)
    torch.nn.init.ones_(mod.weight)
    torch.nn.init.zeros_(mod.bias)
    return (lambda x: mod(x).detach(), Surroundings(m=mod))


@changed(lambda e: torch.set_default_dtype(torch.float64),
         lambda e: torch.set_default_dtype(torch.float32))
def default_dtype_changes():
    torch.set_default_dtype(torch.float32)
    return (lambda x: (x + torch.ones(3) + torch.tensor(1.5)).dtype, Surroundings())


@changed(lambda e: torch.set_grad_enabled(False),
         lambda e: torch.set_grad_enabled(True))
def grad_mode_changes():
    return (lambda x: (torch.is_grad_enabled(), (x * torch.ones(3, requires_grad=True)).requires_grad), Surroundings())


def dele(e):
    del globals()['gg']


def addb(e):
    builtins.gg = 9


def delb(e):
    del builtins.gg


@changed(lambda e: globals().update(gg=4),
         dele,
         addb,
         delb)
def global_del_builtin_changes():
    G = globals()
    G['gg'] = 3
    return (lambda x: x * gg, Surroundings())  # noqa: F821


@changed(lambda e: globals().update(len=lambda items: 7),
         lambda e: globals().__delitem__('len'))
def builtin_shadowed_changes():

    def len_(x):
        return x
    return (lambda x: x * len([1, 2]), Surroundings())


@changed(lambda e: e.s.add(5),
         lambda e: e.s.remove(2),
         lambda e: setattr(e, 's', frozenset({2})))
def set_changes():
    e = Surroundings(s={1, 2})
    return (lambda x: x * (2 if 2 in e.s else 3) + len(e.s), e)


@changed(lambda e: e.base.__setitem__(0, 5),
         lambda e: e.g.cache_clear())
def lru_changes():

    @functools.lru_cache
    def g(n):
        return n + base[0]
    base = [1]
    return (lambda x: x * g(2), Surroundings(g=g, base=base))


@changed(lambda e: e.cnt.__setitem__(0, 5),
         lambda e: delattr(e.a, 'p'),
         lambda e: e.a.__dict__.update(p=8))
def cached_property_changes():

    class A:

        @functools.cached_property
        def p(self):
            return cnt[0]
    cnt = [1]
    a = A()
    return (lambda x: x * a.p, Surroundings(a=a, cnt=cnt))


@changed(lambda e: e.g.register(e.A)(lambda v: 5),
         lambda e: e.g.register(object)(lambda v: 6))
def singledispatch_changes():

    @functools.singledispatch
    def g(v):
        return 1

    class A:
        pass
    a = A()
    return (lambda x: x * g(a), Surroundings(g=g, A=A))


@changed(lambda e: e.A.register(e.B))
def abc_register_changes():

    class A(abc.ABC):
        pass

    class B:
        pass
    b = B()
    return (lambda x: x * (2 if isinstance(b, A) else 3), Surroundings(A=A, B=B))


@changed(lambda e: e.flag.__setitem__(0, False),
         lambda e: setattr(e.Meta, '__instancecheck__', lambda c, o: True))
def instancecheck_changes():

    class Meta(type):

        def __instancecheck__(cls, o):
            return flag[0]

    class A(metaclass=Meta):
        pass
    flag = [True]
    return (lambda x: x * (2 if isinstance(3, A) else 3), Surroundings(flag=flag, Meta=Meta))


def delbool(e):
    del e.A.__bool__
    e.A.__len__ = lambda s: 0


@changed(lambda e: setattr(e.A, '__bool__', lambda s: False),
         delbool)
def bool_changes():

    class A:

        def __bool__(self):
            return True
    a = A()
    return (lambda x: x * (2 if a else 3), Surroundings(A=A))


@changed(lambda e: setattr(e.a, 'v', 5),
         lambda e: setattr(e.A, '__add__', lambda s, o: 100),
         lambda e: delattr(e.A, '__add__'))
def add_changes():

    class A:

        def __init__(s, v):
            s.v = v

        def __add__(s, o):
            return s.v + o
    a = A(2)
    return (lambda x: x * (a + 1), Surroundings(A=A, a=a))


@changed(lambda e: delattr(e, 'a'))
def weakref_changes():
    w = types.SimpleNamespace()

    class A:
        pass
    w.a = A()
    r = weakref.ref(w.a)
    return (lambda x: x * (2 if r() is None else 3), w)


@changed(lambda e: e.d.append(9),
         lambda e: e.d.rotate(1))
def deque_changes():
    dq = collections.deque([1, 2, 3], maxlen=3)
    return (lambda x: x * dq[0] + sum(dq), Surroundings(d=dq))


@changed(lambda e: e.c.maps[0].pop('a'),
         lambda e: e.c.maps[1].update(b=9),
         lambda e: e.c.maps.insert(0, {'b': 20}))
def chainmap_changes():
    c = collections.ChainMap({'a': 1}, {'a': 2, 'b': 3})
    return (lambda x: x * c['a'] + c['b'], Surroundings(c=c))


@changed(lambda e: e.s(5),
         lambda e: e.s(2.5),
         lambda e: e.d(),
         lambda e: e.s(1))
def closure_changes():
    cell = 1

    def f(x):
        return x * cell

    def s(v):
        nonlocal cell
        cell = v

    def d():
        nonlocal cell
        del cell
    return (f, Surroundings(s=s, d=d))


@changed(lambda e: setattr(e.C, 'a', 4),
         lambda e: setattr(e.c, 'a', 3),
         lambda e: e.c.b.append(1))
def dataclass_changes():

    @dataclasses.dataclass
    class C:
        a: int = 1
        b: list = dataclasses.field(default_factory=lambda: [1])
    c = C()
    return (lambda x: x * C().a * c.a + len(c.b), Surroundings(C=C, c=c))


@changed(lambda e: e.p.keywords.update(z=7),
         lambda e: e.p.__setstate__((lambda x: x - 1, (), {}, {})))
def partial_changes():
    p = functools.partial(lambda x, k, z=1: x * k + z, k=2)
    return (lambda x: p(x), Surroundings(p=p))


@changed(lambda e: e.t.mul_(2),
         lambda e: setattr(e, 't', torch.ones(2, 1)),
         lambda e: setattr(e, 't', torch.ones(3, dtype=torch.int32)),
         lambda e: setattr(e, 't', 4),
         lambda e: setattr(e, 't', torch.ones(3, requires_grad=True)),
         lambda e: setattr(e, 't', torch.nn.Parameter(torch.ones(3))),
         lambda e: setattr(e, 't', torch.ones(3).expand(2, 3)))
def tensor_changes():
    e = Surroundings(t=torch.ones(3))
    return (lambda x: x * e.t, e)


@changed(lambda e: setattr(e.t, 'my', 5),
         lambda e: setattr(e.t, 'my', 6),
         lambda e: delattr(e.t, 'my'))
def tensor_attr_changes():
    e = Surroundings(t=torch.ones(3), k=[0])
    return (lambda x: x * e.t.my if hasattr(e.t, 'my') else x, e)


@changed(lambda e: setattr(torch, 'sin', lambda x: x + 50),
         lambda e: setattr(torch, 'sin', e.o))
def torch_fn_patched_changes():
    return (lambda x: torch.sin(x), Surroundings(o=torch.sin))


@changed(lambda e: setattr(torch.nn.functional, 'relu', lambda x: x + 50),
         lambda e: setattr(torch.nn.functional, 'relu', e.o))
def f_relu_patched_changes():
    return (lambda x: x.sin() + torch.nn.functional.relu(x), Surroundings(o=torch.nn.functional.relu))


@changed(lambda e: os.environ.update(JPX='4'),
         lambda e: os.environ.pop('JPX'))
def environ_changes():
    return (lambda x: x * int(os.environ.get('JPX', '1')), Surroundings())


@changed(lambda e: sys.setrecursionlimit(e.o + 7),
         lambda e: sys.setrecursionlimit(e.o))
def reclimit_changes():
    return (lambda x: x * sys.getrecursionlimit(), Surroundings(o=sys.getrecursionlimit()))


def newmod(e):
    sys.modules['fakemod'] = types.SimpleNamespace(v=8)


@changed(lambda e: setattr(sys.modules['fakemod'], 'v', 5),
         newmod)
def import_changes():
    sys.modules['fakemod'] = types.ModuleType('fakemod')
    sys.modules['fakemod'].v = 3

    def f(x):
        import fakemod
        return x * fakemod.v
    return (f, Surroundings())


@changed(lambda e: setattr(e.a, 'v', 4),
         lambda e: delattr(e.a, 'v'),
         lambda e: setattr(e.a, 'v', 1))
def slots_changes():

    class A:
        __slots__ = ('v',)
    a = A()
    a.v = 2
    return (lambda x: x * a.v, Surroundings(a=a))


@changed(lambda e: e.v.__setitem__(0, False),
         lambda e: setattr(e.A, '__eq__', lambda s, o: NotImplemented),
         lambda e: delattr(e.A, '__eq__'))
def eq_changes():

    class A:

        def __eq__(s, o):
            return v[0]
        __hash__ = None
    v = [True]
    a, b = (A(), A())
    return (lambda x: x * (2 if a == b else 3) + (1 if a != b else 0) + [b].count(a), Surroundings(v=v, A=A))


@changed()
def iterator_changes():
    it = iter([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    return (lambda x: x * next(it, -1), Surroundings())


@changed()
def gen_outside_changes():

    def gen():
        i = 0
        while True:
            i += 1
            yield i
    g = gen()
    return (lambda x: x * next(g), Surroundings())


@changed(lambda e: e.d.update(a=4),
         lambda e: setattr(e.d, 'default_factory', lambda: 9),
         lambda e: e.d.clear(),
         lambda e: setattr(e.d, 'default_factory', None),
         lambda e: e.d.clear())
def defaultdict_changes():
    e = Surroundings(d=collections.defaultdict(int))
    return (lambda x: x + e.d['a'] + len(e.d), e)


@changed(lambda e: e.s.__setitem__(1, torch.nn.Sigmoid()),
         lambda e: e.s.append(torch.nn.ReLU()),
         lambda e: e.s.eval(),
         lambda e: e.s.__delitem__(0),
         lambda e: setattr(torch.nn.Sigmoid, 'forward', torch.nn.Sigmoid.forward))
def sequential_changes():
    s = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
    return (lambda x: s(x), Surroundings(s=s))


@changed(lambda e: setattr(e.d, 'p', 1.0),
         lambda e: e.d.eval(),
         lambda e: e.d.train())
def dropout_p_changes():
    d = torch.nn.Dropout(0.0)
    return (lambda x: d(x), Surroundings(d=d))


@changed(lambda e: setattr(e.T, '__torch_function__', lambda s, f, t, a=(), k=None: 6))
def torch_function_changes():

    class T:

        def __torch_function__(s, f, t, a=(), k=None):
            return 5
    t = T()
    return (lambda x: torch.add(x, t), Surroundings(T=T))


@changed(lambda e: setattr(e, 'n', 4),
         lambda e: setattr(e, 'n', 1),
         lambda e: setattr(e, 'n', 0),
         lambda e: setattr(e, 'n', 5),
         lambda e: setattr(e, 'n', -1),
         lambda e: setattr(e, 'n', 2.0),
         lambda e: setattr(e, 'n', True))
def int_size_changes():
    e = Surroundings(n=3)
    return (lambda x: x.new_zeros(e.n, 2) + e.n, e)


@changed(lambda e: setattr(e, 'n', 'b'),
         lambda e: setattr(e, 'n', 'ccc'),
         lambda e: setattr(e, 'n', b'b'))
def str_changes():
    e = Surroundings(n='a')
    return (lambda x: x * {'a': 1, 'b': 2}.get(e.n, 9) + len(e.n), e)


@changed(lambda e: setattr(e.A, '__bases__', (e.Mix,)),
         lambda e: setattr(e.Mix, 'f', lambda s, x: x - 1))
def bases_changes():

    class Base:

        def f(s, x):
            return x + 1

    class Mix:

        def f(s, x):
            return x * 10

    class A(Base):

        def f(s, x):
            return super().f(x) * 2
    a = A()
    return (lambda x: a.f(x), Surroundings(A=A, Mix=Mix, Base=Base))


@changed(lambda e: setattr(e, 'f', lambda x: x + 2),
         lambda e: setattr(e, 'f', torch.sin),
         lambda e: setattr(e, 'f', torch.nn.ReLU()),
         lambda e: setattr(e, 'f', functools.partial(torch.add, other=3)),
         lambda e: setattr(e, 'f', None))
def fn_swap_changes():
    e = Surroundings(f=lambda x: x + 1)
    return (lambda x: e.f(x), e)


@changed(lambda e: setattr(e, "first", type("First", (e.A,), {})),
         lambda e: setattr(e, "second", type("Second", (e.first,), {})),
         lambda e: setattr(e, "third", type("Third", (e.A,), {})))
def subclasses_changes():

    class A:
        pass

    def fn(x):
        names = [c.__name__ for c in A.__subclasses__()]
        return x + len(names), names
    return (fn, Surroundings(A=A))


@changed(lambda e: setattr(e.g, "__name__", "renamed"),
         lambda e: setattr(e.g, "__qualname__", "outer.renamed"),
         lambda e: setattr(e.g, "__doc__", "another"),
         lambda e: setattr(e.g, "__module__", "elsewhere"),
         lambda e: setattr(e.g, "__doc__", None))
def names_of_a_function():
    def g(x):
        """Adds one."""
        return x + 1

    return lambda x: (g(x), g.__name__, g.__qualname__, g.__doc__, g.__module__), Surroundings(g=g)


@changed(lambda e: setattr(e.A, "__name__", "Renamed"),
         lambda e: setattr(e.A, "__qualname__", "Outer.Renamed"),
         lambda e: setattr(e.A, "__doc__", "another"),
         lambda e: setattr(e.A, "__module__", "elsewhere"),
         lambda e: setattr(e.A, "__doc__", None))
def names_of_a_class():
    class A:
        """A class."""

    a = A()
    return lambda x: (x + 1, type(a).__name__, A.__qualname__, a.__class__.__doc__, A.__module__), Surroundings(A=A)


@changed(lambda e: e.builtins.update(mine=1),
         lambda e: e.builtins.update(len=lambda v: 50),
         lambda e: e.builtins.pop("mine"),
         lambda e: e.builtins.update(mine=2, int=str))
def builtins_of_its_own():
    own = dict(vars(builtins))
    space = {"__builtins__": own}
    exec("def fn(x):\n    try:\n        return x + 1, len([1, 2]), isinstance(3, int), mine\n"
         "    except NameError as error:\n        return x, str(error)", space)
    inner = space["fn"]
    return lambda x: (inner(x), x * 2), Surroundings(builtins=own)


@changed(lambda e: setattr(e.A, "__eq__", lambda self, other: True),
         lambda e: setattr(e.A, "__eq__", None),
         lambda e: setattr(e.A, "__lt__", None),
         lambda e: setattr(e.B, "__eq__", lambda self, other: NotImplemented),
         lambda e: setattr(e.B, "__ne__", None))
def comparisons_that_are_none():
    class A:
        pass

    class B:
        pass

    def said(compare):
        try:
            return compare()
        except TypeError as error:
            return str(error)

    a, b = A(), B()
    return lambda x: (x + 1, said(lambda: a == b), said(lambda: b == a), said(lambda: a != b), said(lambda: b != a),
                      said(lambda: a < b), said(lambda: 1 == a), said(lambda: a != 1)), Surroundings(A=A, B=B)


def check_changes(make: Any, changes: tuple[Change, ...], backend: str) -> None:
    """Jitted calls see each change as eager ones do."""
    expected = outcomes(make, changes, None)
    assert outcomes(make, changes, backend) == expected
    assert len(set(expected)) > 1, "the changes are to be seen"


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", CASES)
def test_changes_are_seen(name: str, backend: str) -> None:
    check_changes(*CASES[name], backend)
