"""Odd but everyday Python: one case a word of the language, each with what a user would write."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import inspect
import string
from typing import Any

import numpy as np
import torch

from .harness import case, make_test


def x3():
    return (torch.arange(3.0) + 1,)


@dataclasses.dataclass
class Point:
    a: Any
    b: Any = 2


@functools.singledispatch
def width(value):
    return 1


@width.register
def _(value: int):
    return value


@width.register(list)
def _(value):
    return len(value)


class Registering(type):
    made: dict[str, type] = {}

    def __new__(mcs, name, bases, space, **options):
        cls = super().__new__(mcs, name, bases, space)
        mcs.made[name] = cls
        return cls

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.__name__
        return made


class Registered(metaclass=Registering):
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k


class Settings(collections.UserDict):
    def __missing__(self, key):
        return 5


class Logged(torch.Tensor):
    calls: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


@contextlib.contextmanager
def note(log, name):
    log.append(f"+{name}")
    try:
        yield name
    finally:
        log.append(f"-{name}")


@case(x3, fullgraph=True)
def match_classes_and_mappings(x):
    out = x
    for thing in (Point(1, x), Point(x, 3), {"op": "add", "k": 2, "more": 1}, [1, 2, x], (1, Point(0)), "name", None):
        match thing:
            case Point(a=int(n), b=torch.Tensor() as t):
                out = out + n * t
            case Point(torch.Tensor() as t, b):
                out = out + t * b
            case {"op": "add", "k": k, **rest} if len(rest) == 1:
                out = out + k
            case [first, *middle, torch.Tensor()]:
                out = out * (first + len(middle))
            case (int(), Point(a=0 | 1)):
                out = out - 1
            case str() as s:
                out = out + len(s)
            case None:
                out = out * 2
    return out


@case(x3, fullgraph=True)
def dispatch_on_type(x):
    return x * width(3) + width([1, 2]) + width("s")


@case(x3, fullgraph=True)
def metaclass_call(x):
    made = Registered(3)
    return made(x), made.tag, sorted(Registering.made)


@case(x3)
def class_with_metaclass_inside(x):
    class Local(metaclass=Registering):
        size = 2

        def __init__(self):
            self.y = x * self.size

    return Local().y


@case(x3, factory=True)
def user_dict():
    settings = Settings(a=1)

    def fn(x):
        settings["n"] = settings.get("n", 0) + 1
        return x * settings["a"] + settings["other"] + len(settings)

    return fn, settings


@case(x3, factory=True)
def chain_map():
    base, top = {"a": 1, "b": 2}, {}
    chain = collections.ChainMap(top, base)

    def fn(x):
        chain["c"] = chain.get("c", 0) + 1
        child = chain.new_child({"a": 10})
        return x * child["a"] + chain["b"] + chain["c"], sorted(child)

    return fn, (base, top)


@case(x3, fullgraph=True)
def signature_of_function(x):
    def scale(t, k=2, *, bias=1.0):
        return t * k + bias

    names = list(inspect.signature(scale).parameters)
    return scale(x), names, inspect.signature(scale).parameters["k"].default


@case(x3, fullgraph=True)
def formatting(x):
    name, n, ratio = "loss", 7, 0.12345
    texts = [f"{name:>8}|{n:04d}|{ratio:.2%}|{n!r:<3}|{ratio:{'.' + str(3)}f}", "%s=%05.1f" % (name, ratio),
             "{0:x}{k}".format(255, k=n), f"{x.shape[0]=}",
             f"{tuple(x.shape)}", f"{x.dtype}"]
    return x + len("".join(texts)), texts


@case(x3)
def text_template(x):
    return x + 1, string.Template("$a-$b").substitute(a=1, b=2)


@case(x3, fullgraph=True)
def signature_of_method(x):
    found = inspect.signature(Holder.__init__)

    def annotated(a: int, b: "str" = "n", *args, c: float = 2.0, **kwargs) -> None: ...

    parameters = inspect.signature(annotated).parameters
    kinds = [p.kind.name for p in parameters.values()]
    return x * len(found.parameters), kinds, [p.annotation for p in parameters.values() if p.annotation is not p.empty]


@case(x3)
def formatted_value(x):
    return x + 1, f"{x.sum().item():.3f}", str(x.tolist())


@case(x3)
def exception_groups(x):
    out = x
    try:
        raise ExceptionGroup("several", [ValueError("a"), TypeError("b"), ExceptionGroup("in", [KeyError("c")])])
    except* ValueError as group:
        out = out + len(group.exceptions)
    except* (TypeError, KeyError) as group:
        out = out * len(group.exceptions)
    return out


@case(x3)
def exception_group_from_outside(x):
    with contextlib.suppress(ValueError):
        x = x + 1
        raise ValueError("no")
    try:
        raise ExceptionGroup("g", [OSError(1)])
    except ExceptionGroup as group:
        matched, rest = group.split(OSError)
        return x + len(matched.exceptions), rest


@case(x3)
def async_run_plain(x):
    async def numbers():
        for i in range(3):
            yield i

    async def total():
        return sum([x * i async for i in numbers()])

    async def both():
        a, b = await asyncio.gather(total(), total())
        return a + b

    return asyncio.run(both())


@case(x3, factory=True)
def exit_stack():
    log: list[str] = []

    def fn(x):
        with contextlib.ExitStack() as stack:
            names = [stack.enter_context(note(log, n)) for n in "ab"]
            stack.callback(log.append, "called")
            with contextlib.suppress(ZeroDivisionError):
                x = x * len(names)
                1 / 0  # noqa: B018
            kept = stack.pop_all()
        log.append("out")
        kept.close()
        return x + len(log)

    return fn, log


@case(x3, factory=True)
def tensor_subclass():
    Logged.calls.clear()

    def fn(x):
        y = x.as_subclass(Logged)
        return torch.sin(y).as_subclass(torch.Tensor) + 1

    return fn, Logged.calls


@case(x3)
def numpy_in_and_out(x):
    array = np.sqrt(x.numpy()) + np.arange(3)
    array[0] = 7
    return torch.from_numpy(array) * 2, float(np.mean(array)), np.argmax(array)


class Doubling:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name) * 2

    def __set__(self, obj, value):
        setattr(obj, self.name, value + 1)


class WithDescriptor:
    d = Doubling()


@case(x3, fullgraph=True)
def descriptor_with_name(x):
    thing = WithDescriptor()
    thing.d = x
    return thing.d, vars(thing)["_d"], WithDescriptor.d.name


@case(x3, fullgraph=True)
def walrus_and_starred(x):
    first, *rest = (y := [x, x + 1, x + 2])
    total = [z for t in rest if (z := t * 2) is not None]
    del y[0]
    print(*[len(y), *range(2)], sep="-")
    return first, total, {**{"a": 1}, "b": z}, [*rest, *total][-1]


@case(x3, fullgraph=True)
def reduce_and_accumulate(x):
    import itertools
    import operator

    parts = list(itertools.accumulate([1, 2, 3], operator.mul))
    pairs = list(itertools.pairwise(parts)) + list(itertools.zip_longest([1], [2, 3], fillvalue=0))
    chained = functools.reduce(lambda a, b: a + b, (x * p for p in parts))
    grouped = {k: list(g) for k, g in itertools.groupby(sorted("banana"))}
    return chained, pairs, grouped, list(itertools.islice(itertools.count(1, 2), 3))


@case(x3, fullgraph=True)
def slots_and_properties(x):
    class_name = type(Holder(x)).__name__
    holder = Holder(x)
    holder.scale = 4
    with contextlib.suppress(AttributeError):
        holder.other = 1
    return holder.scaled, class_name, hasattr(holder, "__dict__"), getattr(holder, "missing", "none")


class Holder:
    __slots__ = ("_scale", "x")

    def __init__(self, x):
        self.x = x
        self._scale = 2

    @property
    def scaled(self):
        return self.x * self._scale

    @property
    def scale(self):
        return self._scale

    @scale.setter
    def scale(self, value):
        if value < 0:
            raise ValueError("negative")
        self._scale = value


@case(x3, factory=True)
def generator_kept_between_calls():
    def counter():
        total = 0
        while True:
            got = yield total
            total += got if got is not None else 1

    running = counter()
    next(running)

    def fn(x):
        return x * running.send(2) + next(running)

    return fn


@case(x3, fullgraph=True)
def ordered_and_default(x):
    counts = collections.Counter("abracadabra")
    ordered = collections.OrderedDict(sorted(counts.items()))
    ordered.move_to_end("a")
    groups = collections.defaultdict(lambda: collections.deque(maxlen=2))
    for i, c in enumerate("aabab"):
        groups[c].append(i)
    return x * counts.most_common(1)[0][1], list(ordered), {k: list(v) for k, v in groups.items()}, counts - {"a": 3}


@case(x3, fullgraph=True)
def big_ints_and_floats(x):
    big = 1 << 80
    return x * (big >> 79), divmod(-7, 3), -7 // 2, round(2.5), round(2.675, 2), float("inf") > big, (0.1 + 0.2).hex()


@case(x3, fullgraph=True)
def partial_method_and_cached(x):
    thing = Cached(x)
    return thing.double(x), thing.total, thing.total is thing.total


class Cached:
    def __init__(self, x):
        self.x = x

    def times(self, x, k):
        return x * k

    double = functools.partialmethod(times, k=2)

    @functools.cached_property
    def total(self):
        return self.x.sum()


test_cases = make_test(__name__)
