"""functools, itertools, operator and contextlib, and what they keep. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import operator

import torch

from jitpy import graph_break
from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + (sizes or (4,))[0])


def one():
    return (vec(),)


def affine(x, a, b=1, *, c=0):
    return x * a + b - c


# -- functools ----------------------------------------------------------------------------------------------


@case(one)
def partial_attributes(x):
    f = functools.partial(affine, x, c=3)
    g = functools.partial(f, 2, c=4)
    f.note = "n"
    return g.func is affine, g.args[1:], g.keywords, f.note, g(), isinstance(g, functools.partial), type(g) is type(f)


@case(one)
def partial_alive_at_break(x):
    f = functools.partial(affine, x, c=3)
    both = [f, f]
    graph_break()
    return f(2), both[0] is both[1], type(f), both


@case(one, factory=True)
def partial_stored():
    kept = {}

    def fn(x):
        f = functools.partial(affine, a=2)
        kept["f"] = f
        kept["g"] = functools.partial(f, b=x)
        return f(x), kept["g"](x)

    return fn, kept


@case(one, factory=True)
def partial_of_method_from_outside():
    class Scale:
        def __init__(self, k):
            self.k = k

        def apply(self, x, extra=0):
            return x * self.k + extra

    scale = Scale(3)
    f = functools.partial(scale.apply, extra=1)

    def fn(x):
        scale.k += 1
        return f(x)

    return fn, scale


@case(one, factory=True)
def partial_keywords_changed_between_calls():
    f = functools.partial(affine, a=1)

    def fn(x):
        f.keywords["a"] += 1
        return f(x)

    return fn, f


@case(one)
def partial_method(x):
    class Cell:
        def set_state(self, state, extra=0):
            self.state = state + extra
            return self

        alive = functools.partialmethod(set_state, 1)
        dead = functools.partialmethod(set_state, 0, extra=5)

    return Cell().alive().state, Cell().dead().state, x + 1


@case(one, fullgraph=True)
def wraps_decorator(x):
    def deco(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            """Inner."""
            return f(*args, **kwargs) + 1

        return inner

    @deco
    def original(x):
        """Original."""
        return x * 2

    return original(x), original.__name__, original.__wrapped__(x), original.__doc__


@case(one)
def wraps_returned(x):
    def f(a):
        """The doc of f."""
        return a + x

    f.tag = 7

    @functools.wraps(f)
    def g(a):
        return f(a) * 2

    return g, g.tag, g.__doc__, g.__name__


@case(one, factory=True)
def lru_cache_state():
    @functools.lru_cache(maxsize=2)
    def square(n):
        return [n * n]

    def fn(x):
        a, b = square(2), square(2)
        square(3)
        info = square.cache_info()
        return a is b, x * a[0], info.hits, info.misses, info.currsize

    return fn


@case(one, factory=True)
def lru_cache_returns_the_cached_object():
    made = []

    @functools.cache
    def table(n):
        made.append(n)
        return {"n": n}

    def fn(x):
        t = table(1)
        t["n"] += 1
        return x * t["n"], t

    return fn, made


@case(one, factory=True)
def lru_cache_of_tensors():
    @functools.lru_cache
    def grid(n):
        return torch.arange(n) * 1.0

    def fn(x):
        return x + grid(4), grid(4) is grid(4), grid.cache_info().misses

    return fn


@case(one, factory=True)
def lru_cache_cleared():
    @functools.lru_cache
    def f(n):
        return object()

    keep = []

    def fn(x):
        a = f(1)
        f.cache_clear()
        b = f(1)
        keep.append(a)
        return a is b, x + 1

    return fn


@case(one, factory=True)
def lru_cache_method():
    class Net:
        def __init__(self):
            self.calls = 0

        @functools.lru_cache(None)
        def scale(self, n):
            self.calls += 1
            return n * 2

        def forward(self, x):
            return x * self.scale(3) + self.scale(3) + self.calls

    net = Net()
    return net.forward, net


@case(one, factory=True)
def cached_property_state():
    class Net:
        def __init__(self):
            self.calls = 0

        @functools.cached_property
        def table(self):
            self.calls += 1
            return torch.ones(4) * self.calls

        def forward(self, x):
            return x + self.table + self.table, self.table is self.table

    net = Net()
    return net.forward, net


@case(one)
def cached_property_of_local_instance(x):
    class Net:
        @functools.cached_property
        def size(self):
            return x.shape[0]

    n = Net()
    return n.size, n.size, vars(n), x + 1


@functools.singledispatch
def kind(v, x):
    return "object", x


@kind.register
def _(v: int, x):
    return "int", x + v


@kind.register(list)
@kind.register(tuple)
def _(v, x):
    return "sequence", x + len(v)


@kind.register
def _(v: torch.Tensor, x):
    return "tensor", x + v


@case(one)
def single_dispatch(x):
    return kind(1, x), kind([1], x), kind((), x), kind(x, x), kind("s", x), kind(True, x)


@case(one, factory=True)
def single_dispatch_method():
    class Net:
        @functools.singledispatchmethod
        def go(self, v, x):
            return x

        @go.register
        def _(self, v: int, x):
            return x + v

        @go.register
        def _(self, v: str, x):
            return x * len(v)

    net = Net()

    def fn(x):
        return net.go(2, x), net.go("ab", x), net.go(None, x)

    return fn


@case(one, factory=True)
def single_dispatch_registered_between_calls():
    @functools.singledispatch
    def f(v):
        return 1

    calls = itertools.count()

    def fn(x):
        return x * f("s"), x * f(3)

    def outer(x):
        if next(calls) == 1:
            f.register(str, lambda v: 10)
        return fn(x)

    return outer


@case(one, fullgraph=True)
def compare_key(x):
    words = ["bb", "a", "ccc", "dd"]
    by = functools.cmp_to_key(lambda a, b: len(b) - len(a))
    return sorted(words, key=by), min(words, key=by), x + 1


@case(one)
def ordering_class(x):
    @functools.total_ordering
    class V:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            return self.n < other.n

    a, b = V(1), V(2)
    return a <= b, a >= b, a > b, a != b, max(a, b).n, x + 1


@functools.total_ordering
class Version:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n if isinstance(other, Version) else NotImplemented

    def __lt__(self, other):
        return self.n < other.n if isinstance(other, Version) else NotImplemented


@case(one, fullgraph=True)
def ordering_class_from_outside(x):
    a, b = Version(1), Version(2)
    return a <= b, a >= b, a > b, sorted([b, a])[0].n, x + 1


@case(one)
def ordering_with_another_type(x):
    return Version(1) < 3, x


@case(one, fullgraph=True)
def reduce_forms(x):
    a = functools.reduce(lambda s, t: s + t, (x * i for i in range(3)))
    b = functools.reduce(max, [3, 1, 4], 0)
    return a, b, functools.reduce(operator.getitem, ["k", 0], {"k": [x]})


# -- itertools ----------------------------------------------------------------------------------------------


@case(one, fullgraph=True)
def tee_shares(x):
    source = iter([x, x + 1, x + 2])
    a, b, c = itertools.tee(source, 3)
    first = next(a)
    return first, list(b), list(a), next(c), list(source)


@case(one)
def tee_returned(x):
    a, b = itertools.tee(iter([1, 2, 3]))
    next(a)
    return a, b, x + 1


@case(one, fullgraph=True)
def islice_of_a_consumed_iterator(x):
    it = iter(range(10))
    a = list(itertools.islice(it, 3))
    b = list(itertools.islice(it, 1, 5, 2))
    return a, b, next(it), x + 1


@case(one, fullgraph=True)
def groupby_forms(x):
    pairs = [("a", 1), ("a", x), ("b", 3), ("a", 4)]
    out = [(k, [v for _, v in g]) for k, g in itertools.groupby(pairs, key=operator.itemgetter(0))]
    skipped = [k for k, _ in itertools.groupby("aabbc")]
    held = [(k, g) for k, g in itertools.groupby([1, 1, 2])]
    return out, skipped, [list(g) for _, g in held]


@case(one, fullgraph=True)
def accumulate_forms(x):
    a = list(itertools.accumulate([1, 2, 3]))
    b = list(itertools.accumulate([3, 1, 2], max, initial=2))
    c = list(itertools.accumulate([x, x, x], lambda s, t: s * 2 + t))
    return a, b, c


@case(one, fullgraph=True)
def products_and_repeats(x):
    a = list(itertools.product("ab", [1, 2], repeat=1))
    b = [x * i * j for i, j in itertools.product(range(2), range(3))]
    c = list(map(pow, [2, 3], itertools.repeat(2)))
    d = list(itertools.chain(*([i] * i for i in range(3))))
    return a, b, c, d


@case(one)
def iterators_alive_at_a_break(x):
    c = itertools.count(3)
    next(c)
    cyc = itertools.cycle([1, 2])
    next(cyc)
    ch = itertools.chain([1], [2, 3])
    next(ch)
    graph_break()
    return next(c), next(cyc), next(cyc), list(ch), x + 1


@case(one)
def builtin_iterators_alive_at_a_break(x):
    z = zip([1, 2, 3], "abc", strict=False)
    e = enumerate([x, x + 1], 5)
    m = map(lambda v: v * 2, [1, 2, 3])
    f = filter(None, [0, 1, 2])
    r = reversed([1, 2, 3])
    for it in (z, m, r):
        next(it)
    graph_break()
    return list(z), next(e), list(m), list(f), list(r), type(r)


@case(one, factory=True)
def count_kept_outside():
    numbers = itertools.count(1)

    def fn(x):
        return x * next(numbers) + next(numbers)

    return fn


@case(one, factory=True)
def iterator_kept_outside():
    it = iter(range(100))

    def fn(x):
        for v in it:
            if v % 3 == 2:
                break
        return x + v, list(itertools.islice(it, 2))

    return fn


@case(one)
def returned_builtin_iterators(x):
    it = iter([1, 2, 3])
    next(it)
    return it, zip([x], [1]), enumerate("ab"), map(str, [1, 2]), reversed([1, 2]), iter({1: 2}), iter("ab"), iter((1,))


@case(one)
def itertools_types(x):
    c = itertools.count()
    r = itertools.repeat(1, 2)
    return isinstance(c, itertools.count), type(r) is itertools.repeat, iter(c) is c, x + 1


@case(one, fullgraph=True)
def zip_strict_and_longest(x):
    try:
        list(zip([1, 2], [1], strict=True))
    except ValueError as e:
        message = str(e)
    return message, list(itertools.zip_longest("ab", [1])), x + 1


@case(*(lambda parts=parts: (vec(), parts) for parts in (
    (), ("ab",), ("ab", "cd"), ("ab", "c"), ("a", "bc"), ("ab", "cd", "e"), ("a", "b", "cd"), ("", ""))))
def zip_strict_of_unequal_parts(x, parts):
    iterators = [iter(part) for part in parts]
    found = []
    try:
        for row in zip(*iterators, strict=len(parts) < 9):
            found.append(row)
    except ValueError as error:
        found.append(str(error))
    return found, [list(it) for it in iterators], x + len(found)


@case(lambda: (vec(), [vec(), vec()]), lambda: (vec(), [vec(), -vec()]), breaks=("data_dependent_branch",))
def equality_of_all_pairs(x, others):
    if all(torch.equal(a, b.abs()) for a, b in zip(others, others, strict=True)):
        return x + 1
    return x - 1


@case(lambda: (vec(), [1, 2, 3], (4, 5, 6)), lambda: (vec(), [1, 2, 3], (4, 5)))
def breaks_in_a_strict_zip(x, a, b):
    for v, w in zip(a, b, strict=True):
        graph_break()
        x = x * v + w
    return x


@case(one, fullgraph=True)
def iter_with_sentinel(x):
    values = [1, 2, 0, 3]
    return list(iter(lambda: values.pop(0), 0)), values, x + 1


@case(one)
def stop_iteration_with_default(x):
    it = iter([1])
    return next(it), next(it, "end"), x + next(it, 7)


@case(one)
def next_of_nothing(x):
    return next(iter(()))


# -- operator -----------------------------------------------------------------------------------------------


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def moved(self, dx, *, dy=0):
        return Point(self.x + dx, self.y + dy)


@case(one, fullgraph=True)
def getters(x):
    p = Point(Point(1, x), 2)
    item, several = operator.itemgetter(1), operator.itemgetter(0, -1)
    deep, both = operator.attrgetter("x.y"), operator.attrgetter("x.x", "y")
    moved = operator.methodcaller("moved", 1, dy=2)
    return item([0, x]), several("abc"), deep(p), both(p), moved(p.x).x, sorted([(2, 1), (1, 2)], key=item)


@case(one)
def getters_returned(x):
    return operator.itemgetter(1)([1, x]), operator.itemgetter(slice(1, None))([1, 2, 3]), operator.attrgetter("shape")


@case(one)
def getter_of_missing(x):
    return operator.itemgetter("k")({}), x


@case(one, fullgraph=True)
def operator_module(x):
    ints = [
        f(7, 3)
        for f in (
            operator.add,
            operator.sub,
            operator.mul,
            operator.floordiv,
            operator.mod,
            operator.pow,
            operator.and_,
            operator.or_,
            operator.xor,
            operator.lshift,
            operator.rshift,
        )
    ]
    tests = [f(1, 2) for f in (operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt)]
    a = [1, 2, 3]
    operator.setitem(a, 0, x)
    operator.delitem(a, 1)
    b = operator.iadd(a, [4])
    return (
        ints,
        tests,
        b is a,
        a,
        operator.contains([1], 1),
        operator.is_(a, b),
        operator.not_(a),
        operator.truth([]),
        operator.index(3),
        operator.inv(5),
        operator.pos(-1),
        operator.truediv(1, 2),
    )


# -- contextlib ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def logged(log, name):
    log.append(("enter", name))
    try:
        yield name
    except ValueError as error:
        log.append(("caught", str(error)))
    finally:
        log.append(("exit", name))


@case(one)
def context_managers(x):
    log = []
    with logged(log, "a") as name, logged(log, "b"):
        y = x + len(log)
    with logged(log, "c"):
        raise ValueError("inside")
    return y, log, name


@case(one)
def context_manager_with_break(x):
    log = []
    with logged(log, "a"):
        y = x + 1
        graph_break()
        y = y * 2
    return y, log


@case(one)
def context_manager_as_decorator(x):
    log = []

    @logged(log, "deco")
    def f(v):
        return v + 1

    return f(x), f(x), log


class Doubling(contextlib.ContextDecorator):
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *exc):
        self.log.append(exc[0])
        return False


@case(one)
def context_decorator(x):
    log = []

    @Doubling(log)
    def f(v):
        return v + 1

    return f(x), log


@case(one)
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(logged(log, "a"))
        stack.callback(log.append, "called")
        stack.push(lambda *exc: log.append(exc[0]))
        y = x * 2
    return y, log


@case(one)
def exit_stack_swallows(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(logged(log, "a"))
        stack.callback(log.append, "called")
        raise ValueError("v")
    return x, log


@case(one)
def exit_stack_kept(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, 1)
        kept = stack.pop_all()
    log.append(0)
    kept.close()
    return x + 1, log


@case(one)
def small_context_managers(x):
    class Closing:
        closed = False

        def close(self):
            self.closed = True

    thing = Closing()
    with contextlib.suppress(KeyError, IndexError):
        [][1]
    with contextlib.nullcontext(x + 1) as y, contextlib.closing(thing) as same:
        pass
    return y, same is thing, thing.closed


@case(one)
def suppressed_in_loop(x):
    seen = []
    for key in ("a", "b", "c"):
        with contextlib.suppress(KeyError):
            seen.append({"a": 1, "c": x}[key])
    return seen


@case(one)
def redirected_output(x):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print("hidden", 3)
    print("shown")
    return out.getvalue(), x + 1


test_cases = make_test(__name__)
