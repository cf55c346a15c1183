"""Classes: attributes, descriptors, operators, metaclasses."""

import copy
import functools
import operator
import types
import weakref

import torch

from .shared import AsDecorator, pause


class Holder:
    def __init__(self, v=None):
        pause()
        self.v = v

    def get(self):
        pause()
        return self.v

    @classmethod
    def made(cls, v):
        return cls(v)

    @staticmethod
    def plain(v):
        pause()
        return v

    @property
    def value(self):
        pause()
        return self.v

    @value.setter
    def value(self, v):
        pause()
        self.v = v

    @value.deleter
    def value(self):
        del self.v


class Under(Holder):
    def __init__(self, v):
        super().__init__(v)
        self.__own = v

    def get(self):
        return super(Under, self).get()

    @classmethod
    def made(cls, v):
        return super().made(v)

    @property
    def value(self):
        return super().value

    def own(self):
        return self.__own


class Left:
    def go(self, v):
        pause()
        return v


class Right:
    def go(self, v):
        return [v][0]


class LeftSub(Left):
    def go(self, v):
        return super().go(v)


class RightSub(Right):
    def go(self, v):
        return super().go(v)


class Both(LeftSub, RightSub, Left):
    pass


class Slotted:
    __slots__ = ("v", "w", "__weakref__")

    def __init__(self, v):
        self.v = v
        pause()


class Fallback:
    def __init__(self, v):
        self.kept = v

    def __getattr__(self, name):
        pause()
        if name != "missing":
            raise AttributeError(name)
        return self.kept


class Intercept:
    def __init__(self, v):
        self.kept = v

    def __getattribute__(self, name):
        if name == "other":
            pause()
            return object.__getattribute__(self, "kept")
        return super().__getattribute__(name)


class Redirects:
    def __setattr__(self, name, value):
        pause()
        object.__setattr__(self, "_" + name, value)

    def __delattr__(self, name):
        object.__delattr__(self, "_" + name)


class Typed:
    """A descriptor that stores under another name."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        pause()
        return self if obj is None else obj.__dict__[self.name]

    def __set__(self, obj, value):
        pause()
        obj.__dict__[self.name] = value

    def __delete__(self, obj):
        del obj.__dict__[self.name]


class Lazily:
    """A descriptor that an instance's attribute hides."""

    def __get__(self, obj, owner=None):
        pause()
        return obj.source


class HasDescriptors:
    v = Typed()
    lazy = Lazily()

    def __init__(self, v):
        self.v = v
        self.source = v

    @functools.cached_property
    def once(self):
        pause()
        return self.source


class Meta(type):
    def __call__(cls, *args, **kwargs):
        pause()
        obj = super().__call__(*args, **kwargs)
        obj.stamp = args[-1]
        return obj

    def __getattr__(cls, name):
        return name

    def __instancecheck__(cls, obj):
        return hasattr(obj, "stamp")


class ByMeta(metaclass=Meta):
    def __init__(self, v):
        self.v = v


class Unwraps:
    def __new__(cls, v):
        pause()
        return v


class Registers:
    def __init_subclass__(cls, give=None, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.given = [give]

    def __class_getitem__(cls, item):
        return item


class Operand:
    """Operators from either side."""

    def __init__(self, v):
        self.v = v

    def __add__(self, other):
        return NotImplemented if isinstance(other, int) else self.v

    def __radd__(self, other):
        pause()
        return self.v

    def __rsub__(self, other):
        return self.v

    def __matmul__(self, other):
        pause()
        return self.v

    def __ior__(self, other):
        pause()
        return self

    def __invert__(self):
        return self.v

    def __call__(self, *args, **kwargs):
        pause()
        return self.v

    def __getitem__(self, key):
        pause()
        return self.v if key == 2 else [key]

    def __eq__(self, other):
        return other is self.v

    def __gt__(self, other):
        return NotImplemented

    def __bool__(self):
        pause()
        return True

    def __len__(self):
        return 1

    def __enter__(self):
        return self.v

    def __exit__(self, *error):
        pause()


def by_instance(v):
    return Holder(v).get()


def by_class_method(v):
    return Holder.made(Holder.plain(v)).v


def by_property(v):
    holder = Holder()
    holder.value = v
    got = holder.value
    del holder.value
    return got if not hasattr(holder, "v") else None


def by_super(v):
    return Under.made(v).value


def by_private(v):
    return Under(v).own()


def by_mro(v):
    return Both().go(v)


def by_slots(v):
    s = Slotted(v)
    s.w, s.v = s.v, 0
    return s.w if not hasattr(s, "u") else None


def by_getattr(v):
    return getattr(Fallback(v), "missing", None)


def by_getattribute(v):
    return Intercept(v).other


def by_setattr(v):
    r = Redirects()
    r.v = v
    got = r._v
    del r.v
    return got if not vars(r) else None


def by_descriptor(v):
    h = HasDescriptors(v)
    return h.v


def by_lazy_descriptor(v):
    h = HasDescriptors(v)
    h.lazy = h.lazy
    return vars(h)["lazy"]


def by_cached_property(v):
    h = HasDescriptors(v)
    return (h.once, h.once)[1]


def by_metaclass(v):
    made = ByMeta(v)
    return made.stamp if isinstance(made, ByMeta) else None


def by_new(v):
    return Unwraps(v)


def by_type_call(v):
    made = type("Made", (Holder,), {"extra": v, "get": lambda self: self.extra})
    pause()
    return made().get()


def by_local_class(v):
    class Local(Holder):
        kept = v

        def get(self):
            return self.kept or __class__.kept
        pause()
    return Local().kept


def by_init_subclass(v):
    class Sub(Registers, give=v):
        pass
    pause()
    return Sub.given[0]


def by_class_item(v):
    return Registers[v]


def by_class_attribute(v):
    class Local:
        total = 0
    Local.total = v
    pause()
    return Local().total


def by_reflected(v):
    return 3 + Operand(v)


def by_reflected_tensor(v):
    return torch.ones(2) - Operand(v) if False else 2 - Operand(v)


def by_operators(v):
    o = Operand(v)
    o |= 3
    return o @ 1 if o else None


def by_invert(v):
    return ~Operand(v)


def by_call(v):
    return Operand(v)(1, k=2)


def by_getitem(v):
    return Operand(v)[2]


def by_contains(v):
    return v if Operand(v) in [1, Operand(v), v] or True else None


def by_object_with(v):
    with Operand(v) as got:
        return got


def by_partial_method(v):
    class Local:
        def pick(self, which, items):
            pause()
            return items[which]
        last = functools.partialmethod(pick, -1)
    return Local().last([1, v])


def by_dispatch(v):
    class Local:
        @functools.singledispatchmethod
        def of(self, key, v):
            return None

        @of.register
        def _(self, key: int, v):
            pause()
            return v
    return Local().of(3, v)


def by_decorated_method(v):
    class Local:
        @AsDecorator
        def get(self):
            return self.v
    made = Local()
    made.v = v
    return made.get()


def by_getters(v):
    return operator.attrgetter("a.v")(types.SimpleNamespace(a=Holder(v)))


def by_method_caller(v):
    return operator.methodcaller("get")(Holder(v))


def by_copy(v):
    return copy.copy(Holder(v)).v


def by_vars(v):
    holder = Holder()
    vars(holder).update(v=v)
    pause()
    return holder.v


def by_class_change(v):
    holder = Holder(v)
    holder.__class__ = Under
    return holder.get()


def by_dict_change(v):
    holder = Holder(1)
    holder.__dict__ = {"v": v}
    pause()
    return holder.v


def by_monkey_patch(v):
    holder = Holder(1)
    holder.get = lambda: (pause(), v)[1]
    return holder.get()


def by_weak_reference(v):
    holder = Holder(v)
    return weakref.ref(holder)().v
