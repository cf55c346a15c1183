"""Attributes of classes from outside that are written and deleted inside and between the calls. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import torch

from jitpy import graph_break
from tests.semantics.harness import case, jit, make_test


def one():
    return (torch.arange(4.0),)


def _counted():
    class C:
        __watched__ = ("count", "registry", "scale")
        count = 0
        registry = []
        scale = 2.0
        def __init__(self):
            type(self).count += 1
        def bump(self, x):
            type(self).count += 1
            self.__class__.scale = self.scale + 1
            C.registry.append(x.shape[0])
            return x * self.count + C.scale
    return C


@case(one, factory=True, fullgraph=True)
def count():
    C = _counted()
    c = C()
    def fn(x):
        return c.bump(x) * c.count, C.count, len(C.registry)
    return fn, C


@case(one, factory=True, fullgraph=True)
def init_count():
    C = _counted()
    def fn(x):
        a = C()
        C()
        return x * C.count, a.count
    return fn, C


@case(one, factory=True, fullgraph=True)
def setattr():
    C = _counted()
    def fn(x):
        setattr(C, "extra", getattr(C, "extra", 0) + 1)
        C.scale *= 2
        return x * C.extra * C.scale
    C.__watched__ = ("extra", "scale")
    return fn, C


@case(one, factory=True, fullgraph=True)
def deleted():
    C = _counted()
    C.__watched__ = ("extra", "scale")
    def fn(x):
        had = hasattr(C, "extra")
        C.extra = 3
        y = x * C.extra
        del C.extra
        return y, had, hasattr(C, "extra")
    return fn, C


@case(one, factory=True)
def del_inherited():
    class A:
        v = 1
    class B(A):
        __watched__ = ("v",)
        v = 2
    def fn(x):
        y = x * B.v
        if "v" in B.__dict__:
            del B.v
        return y + B.v, "v" in vars(B)
    return fn, B


@case(one, factory=True, fullgraph=True)
def inherited_write():
    class A:
        __watched__ = ("v",)
        v = 1
    class B(A):
        __watched__ = ("v",)
    def fn(x):
        y = x * B.v
        A.v += 1
        y = y * B.v
        B.v = 10
        A.v += 1
        return y + B.v + A.v
    return fn, (A, B)


@case(one, factory=True)
def del_missing():
    class A:
        v = 1
    class B(A):
        pass
    def fn(x):
        try:
            del B.v
        except AttributeError as e:
            return str(e), x + 1
    return fn


@case(one, factory=True, fullgraph=True)
def properties_of_the_metaclass():
    class Meta(type):
        @property
        def level(cls):
            return cls._level
        @level.setter
        def level(cls, v):
            cls._level = v * 2
        def __len__(cls):
            return 7
        def __getitem__(cls, k):
            return k + 1
        def __iter__(cls):
            return iter([1, 2])
        def __contains__(cls, k):
            return k == 3
        def __getattr__(cls, n):
            if n.startswith("dyn"):
                return 5
            raise AttributeError(n)
        def __setattr__(cls, n, v):
            type.__setattr__(cls, n, v)
    class K(metaclass=Meta):
        __watched__ = ("_level",)
        _level = 1
    def fn(x):
        y = x * K.level
        K.level = K.level + 1
        return y + K.level + len(K) + K[4] + K.dyn_a, list(K), 3 in K, hasattr(K, "nope")
    return fn, K


@case(one, factory=True)
def slots():
    class S:
        __slots__ = ("a", "b")
        __watched__ = ("total",)
        total = 0
        def __init__(self):
            self.a = 1
    s = S()
    def fn(x):
        S.total += s.a
        s.a += 1
        return x * S.total, hasattr(s, "b")
    return fn, (S, s)


@case(one, factory=True, fullgraph=True)
def class_dict():
    class D:
        __watched__ = ("cache",)
        cache = {}
    def fn(x):
        k = x.shape[0]
        if k not in D.cache:
            D.cache[k] = k * 2
        return x * D.cache[k]
    return fn, D


@case(one, factory=True, fullgraph=True)
def classmethod_state():
    class D:
        __watched__ = ("inst", "n")
        inst = None
        n = 0
        @classmethod
        def get(cls):
            if cls.inst is None:
                cls.inst = cls()
            cls.n += 1
            return cls.inst
    def fn(x):
        d = D.get()
        return x * D.n, d is D.get()
    return fn, D


@case(one, factory=True, fullgraph=True)
def tensor_attr():
    class D:
        __watched__ = ("buf",)
        buf = torch.ones(4)
    def fn(x):
        D.buf = D.buf + x
        return D.buf * 2
    return fn, D


@case(one, factory=True, fullgraph=True)
def tensor_inplace():
    class D:
        __watched__ = ("buf",)
        buf = torch.ones(4)
    def fn(x):
        D.buf += x
        return D.buf * 2
    return fn, D


@case(one, factory=True)
def replace_method():
    class D:
        __watched__ = ()
        def f(self, x):
            return x + 1
    d = D()
    def fn(x):
        y = d.f(x)
        D.f = lambda self, x: x + 2
        return y * d.f(x)
    return fn


@case(one, factory=True)
def break_between():
    C = _counted()
    def fn(x):
        C.count += 1
        graph_break()
        C.count += 1
        return x * C.count
    return fn, C


@case(one, factory=True)
def callee_break():
    C = _counted()
    def inner(x):
        C.scale += 1
        graph_break()
        return x * C.scale
    def fn(x):
        C.count += 1
        y = inner(x)
        return y * C.count
    return fn, C


@case(one, factory=True)
def raise_after():
    C = _counted()
    def fn(x):
        C.count += 1
        C.registry.append(1)
        if C.count > 2:
            raise ValueError(C.count)
        return x * C.count
    return fn, C


@case(one, factory=True, fullgraph=True)
def bool_flag():
    class Cfg:
        __watched__ = ("on",)
        on = False
    def fn(x):
        if Cfg.on:
            y = x * 2
        else:
            y = x + 1
        Cfg.on = not Cfg.on
        return y
    return fn, Cfg


@case(one, factory=True, fullgraph=True)
def del_instance_shows_class():
    class P:
        __watched__ = ("v",)
        v = 1
    p = P()
    def fn(x):
        p.v = 5
        y = x * p.v
        del p.v
        P.v += 1
        return y + p.v
    return fn, (P, p)


@case(one, factory=True, fullgraph=True)
def type_setattr():
    C = _counted()
    def fn(x):
        type.__setattr__(C, "scale", 4.0)
        type(C()).scale += 1
        return x * C.scale
    return fn, C


@case(one, factory=True, fullgraph=True)
def nn_module_classattr():
    class M(torch.nn.Module):
        __watched__ = ("calls",)
        calls = 0
        def forward(self, x):
            M.calls += 1
            type(self).calls += 1
            return x * self.calls
    m = M()
    def fn(x):
        return m(x)
    return fn, (M, m)


@case(one, factory=True, fullgraph=True)
def two_attributes_swapped():
    class Pair:
        __watched__ = ("a", "b")
        a = torch.ones(4)
        b = torch.zeros(4)

    def fn(x):
        Pair.a, Pair.b = Pair.b, Pair.a
        return x + Pair.a

    return fn, Pair


@case(one, factory=True)
def read_through_super():
    class Base:
        __watched__ = ("size",)
        size = 1

        def value(self):
            return self.size

    class Derived(Base):
        size = 5

        def value(self):
            return super().size + self.size

    derived = Derived()

    def fn(x):
        Base.size += 1
        return x * derived.value()

    return fn, Base


@case(one, factory=True, fullgraph=True)
def written_and_read_by_subclasses():
    class Base:
        __watched__ = ("n",)
        n = 1

    class Left(Base):
        pass

    class Right(Base):
        __watched__ = ("n",)
        n = 7

    def fn(x):
        before = Left.n, Right.n
        Base.n = 10 + x.shape[0]
        del Right.n
        after = Left.n, Right.n
        Right.n = 7
        Base.n = 1
        return before, after, x + Right.n

    return fn, (Base, Right)


@case(one, factory=True, fullgraph=True)
def containers_put_there():
    class Store:
        __watched__ = ("last", "all")
        last = None
        all = {}

    def fn(x):
        Store.last = [x + 1, {"n": x.shape[0]}]
        Store.all = {**Store.all, len(Store.all): x}
        Store.last.append(3)
        return Store.last[0] * 2

    return fn, Store


@case(one, factory=True, fullgraph=True)
def class_kept_as_attribute():
    class Kind:
        factor = 3

    class Holder:
        __watched__ = ("kind", "dtype")
        kind = None
        dtype = torch.float32

    def fn(x):
        Holder.kind = Kind
        Holder.dtype = torch.float64 if Holder.dtype is torch.float32 else torch.float32
        return x.to(Holder.dtype) * Holder.kind.factor

    return fn, Holder


@case(one, factory=True)
def refused_by_the_metaclass():
    class Meta(type):
        def __setattr__(cls, name, value):
            if name.startswith("fixed"):
                raise AttributeError(f"{name} is fixed")
            super().__setattr__(name, value)

    class Settings(metaclass=Meta):
        __watched__ = ("free", "fixed_one")
        free = 0
        fixed_one = 1

    def fn(x):
        Settings.free += 1
        try:
            Settings.fixed_one = 3
        except AttributeError as error:
            said = str(error)
        return x * Settings.free, said

    return fn, Settings


def test_written_between_calls_and_inside() -> None:
    class Config:
        scale = 2
        offset = 0

    class Special(Config):
        pass

    def fn(x):
        Config.offset += 1
        return x * Special.scale + Special.offset

    called = jit(fn, backend="eager")
    x = torch.ones(2)
    assert called(x).tolist() == [3, 3] and Config.offset == 1
    assert called(x).tolist() == [4, 4]
    Config.scale = 5
    assert called(x).tolist() == [8, 8]
    Special.scale = 7
    assert called(x).tolist() == [11, 11]
    Special.offset = 100
    assert called(x).tolist() == [107, 107] and Config.offset == 5
    del Special.offset
    Config.offset = 0.5
    assert called(x).tolist() == [8.5, 8.5] and Config.offset == 1.5
    del Special.scale, Config.scale
    try:
        called(x)
    except AttributeError as error:
        assert "scale" in str(error)
    else:
        raise AssertionError
    assert Config.offset == 2.5


def test_tensors_written_each_time_need_one_variant() -> None:
    class Store:
        last = torch.zeros(2)

    def fn(x):
        Store.last = Store.last * 0.5 + x
        return Store.last + 1

    called = jit(fn, backend="eager", fullgraph=True)
    found = [called(torch.ones(2)).tolist()[0] for _ in range(12)]
    expected, last = [], 0.0
    for _ in range(12):
        last = last * 0.5 + 1
        expected.append(last + 1)
    assert torch.allclose(torch.tensor(found), torch.tensor(expected))


test_all = make_test(__name__)
