"""collections, sets, sorting, heaps, copies: inside, returned, stored, alive at a break. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import bisect
import collections
import copy
import heapq
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple

import torch

from jitpy import graph_break
from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + (sizes or (4,))[0])


def one():
    return (vec(),)


# -- deque --------------------------------------------------------------------------------------------------


@case(one)
def deque_methods(x):
    d = deque([3, 1, 2], maxlen=4)
    d.extendleft([5, 6])
    d.rotate(-1)
    d.insert(1, 9) if len(d) < 4 else d.pop()
    d.insert(1, 9)
    d.remove(9)
    e = d.copy()
    e.reverse()
    return list(d), list(e), d.index(1), d.count(1), 1 in d, d == e, len(d), d.maxlen, e[0], d[-1], x + 1


@case(one)
def deque_errors(x):
    d = deque(maxlen=1)
    out = []
    for f in (d.pop, d.popleft, lambda: d[0], lambda: d.remove(1), lambda: d.index(1)):
        try:
            f()
        except (IndexError, ValueError) as error:
            out.append((type(error).__name__, str(error)))
    return out, x + 1


@case(one)
def deque_alive_at_break(x):
    d = deque([1, x], maxlen=3)
    alias = [d]
    d.append(2)
    graph_break()
    d.append(3)
    return d, alias[0] is d, type(d), x + 1


@case(one, factory=True)
def deque_stored():
    kept = {}

    def fn(x):
        d = deque([x])
        kept["d"] = d
        kept["same"] = d
        d.append(1)
        return d

    return fn, kept


@case(one, factory=True)
def deque_of_outside_written():
    window = deque(maxlen=3)

    def fn(x):
        window.append(x * len(window))
        window.rotate(1)
        return sum(window), len(window), window[0]

    return fn, window


@case(one, factory=True)
def deque_of_object_read():
    class Net:
        def __init__(self):
            self.history = deque([1, 2], maxlen=4)

    net = Net()

    def fn(x):
        total = x
        for v in net.history:
            total = total + v
        return total, list(net.history)

    def outer(x):
        y = fn(x)
        net.history.append(7)
        return y

    return outer, net


@case(one, factory=True)
def deque_mutated_in_iteration():
    d = deque([1, 2])

    def fn(x):
        for v in d:
            d.append(v)
        return x

    return fn, d


@case(lambda: (vec(), deque([1, 2, 3])), lambda: (vec(), deque([1, 2, 4])), lambda: (vec(), deque()))
def deque_argument_read(x, d):
    return x * sum(d), len(d), 2 in d, bool(d), list(reversed(d))


@case(lambda: (vec(), deque([1, 2, 3], maxlen=3)))
def deque_argument_written(x, d):
    d.append(x)
    d.appendleft(0)
    d.rotate()
    first = d.popleft()
    d.extend([first, 5])
    d[0] = "new"
    del d[1]
    return d, first


# -- defaultdict, OrderedDict, Counter, ChainMap ------------------------------------------------------------


@case(one)
def default_dict_made_and_returned(x):
    d = defaultdict(list)
    d["a"].append(x)
    d["b"]
    return d, d.default_factory is list, dict(d), "zz" in d, d.get("zz")


@case(one)
def default_dict_kinds(x):
    n = defaultdict(int, a=1)
    n["b"] += 2
    s = defaultdict(lambda: "x", {"k": "v"})
    nested = defaultdict(lambda: defaultdict(int))
    nested["p"]["q"] += 1
    none = defaultdict(None, [(1, 2)])
    return dict(n), s["zz"], nested["p"]["q"], sorted(n.items()), len(s), none[1], x + 1


@case(one)
def default_dict_without_factory(x):
    return defaultdict()["k"], x


@case(one)
def default_dict_alive_at_break(x):
    d = defaultdict(list)
    d["a"].append(x)
    alias = d
    graph_break()
    d["b"].append(1)
    return d, alias is d


@case(one, factory=True)
def default_dict_stored():
    class Net:
        pass

    net = Net()

    def fn(x):
        net.stats = defaultdict(list)
        net.stats["loss"].append(x.shape[0])
        return x + 1

    return fn, net


@case(one, factory=True)
def default_dict_of_outside():
    stats = defaultdict(list)

    def fn(x):
        stats["n"].append(x.shape[0])
        stats["t"].append(x)
        return x * len(stats["n"])

    return fn, stats


@case(one)
def default_dict_copy(x):
    d = defaultdict(int, a=1)
    e = d.copy()
    f = copy.copy(d)
    e["z"] += 1
    return d, e, type(e), type(f) is defaultdict, f == d, x + 1


@case(one)
def ordered_dict_methods(x):
    d = OrderedDict([("a", 1), ("b", x), ("c", 3)])
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    e = OrderedDict(reversed(list(d.items())))
    return d, list(d), d == e, dict(d) == dict(e), list(reversed(d)), d.pop("b"), d.popitem(last=False), len(d)


@case(one)
def ordered_dict_alive_at_break(x):
    d = OrderedDict(b=1, a=2)
    graph_break()
    d.move_to_end("b")
    return d, x + 1


@case(one, factory=True)
def ordered_dict_as_lru():
    cache = OrderedDict()

    def fn(x):
        for k in (1, 2, 1, 3):
            if k in cache:
                cache.move_to_end(k)
            else:
                cache[k] = x * k
                if len(cache) > 2:
                    cache.popitem(last=False)
        return sum(cache.values())

    return fn, cache


@case(one)
def counter_arithmetic(x):
    a, b = Counter("abca"), Counter(a=1, d=2)
    c = a + b
    a.subtract(b)
    return (
        dict(c),
        dict(a),
        dict(Counter("ab") & Counter("a")),
        dict(Counter("ab") | Counter("bb")),
        +a,
        c.total(),
        c.most_common(2),
        list(Counter(b=2).elements()),
        c["zz"],
        c == Counter(a=3, b=1, c=1, d=2),
        x + 1,
    )


@case(one)
def counter_returned(x):
    c = Counter([1, 2, 1])
    c[3] += x.shape[0]
    return c, x + 1


@case(one)
def counter_alive_at_break(x):
    c = Counter("aab")
    graph_break()
    c.update("b")
    return c, x + 1


@case(one, factory=True)
def counter_of_outside():
    seen = Counter()

    def fn(x):
        seen["calls"] += 1
        seen.update({"sum": 2})
        return x * seen["calls"]

    return fn, seen


@case(one)
def chain_maps(x):
    m = ChainMap({"a": 1}, {"a": 2, "b": x})
    c = m.new_child({"z": 3})
    c["a"] = 5
    return m["a"], c["a"], c["b"], sorted(c), len(c), "q" in c, c.maps[0], dict(c.parents)["a"], m


@case(one)
def user_containers(x):
    class Cfg(UserDict):
        def __missing__(self, key):
            return key * 2

    class Rows(UserList):
        def first(self):
            return self[0]

    c = Cfg(a=1)
    c["b"] = x
    r = Rows([3, 1, 2])
    r.append(x.shape[0])
    r.sort()
    return c["a"], c["q"], "b" in c, len(c), r.first(), list(r), r + [1], c, r


Pair = namedtuple("Pair", "left right", defaults=[0])


@case(one)
def named_tuples(x):
    p = Pair(x)
    q = p._replace(right=2)
    left, right = q
    return (
        p,
        q,
        q._asdict(),
        Pair._fields,
        p.right,
        right,
        left is x,
        Pair._make([1, 2]),
        q == (x, 2),
        isinstance(q, tuple),
    )


@case(one)
def named_tuple_made_inside(x):
    Local = namedtuple("Local", ["a", "b"])
    v = Local(1, b=x)
    return v.a, v.b, v._fields, len(v)


@case(one)
def named_tuple_alive_at_break(x):
    p = Pair(x, [1])
    graph_break()
    p.right.append(2)
    return p, p.left + 1


# -- sets ---------------------------------------------------------------------------------------------------


@case(one, fullgraph=True)
def set_operations(x):
    a, b = {3, 1, 2}, frozenset([2, 3, 4])
    c = set(a)
    c |= {9}
    c &= {1, 2, 9}
    c ^= {1, 100}
    c -= {100}
    tests = a < c, a >= {1}, a.isdisjoint([7]), {1} <= a, a == {1, 2, 3}, b != a, a.issubset(range(9))
    return (
        sorted(a | b),
        sorted(a & b),
        sorted(a - b),
        sorted(a ^ b),
        sorted(c),
        type(a | b),
        type(b | a),
        tests,
        sorted(a.union([7], (8,))),
        sorted(a.difference([1], [2])),
        len(b),
        x + 1,
    )


@case(one)
def set_iteration_order(x):
    s = {40, 3, 17, 9, 25, 33, 8, 16}
    s.discard(3)
    s.add(41)
    t = {"b", "a"}
    t.add("c")
    return list(s), list(t), [v for v in s | {1, 99}], min(s), s.pop() in (8, 40, 9, 16, 17, 25, 33, 41), x + 1


@case(one)
def set_pop_and_unpack(x):
    s = {5, 1}
    a = s.pop()
    (b,) = s
    return a, b, x + 1


@case(one, factory=True)
def set_of_outside_iterated():
    s = {40, 3, 17, 9}

    def fn(x):
        order = list(s)
        s.add(len(s) * 100)
        s.discard(3)
        return x, order, list(s)

    return fn, s


@case(one)
def set_returned_with_order(x):
    s = set()
    for v in (16, 8, 0, 24, 1):
        s.add(v)
    s.remove(8)
    return list(s), s, x + 1


@case(one, factory=True)
def set_order_after_unions():
    kept = {"b": {1, 2}}

    def fn(x):
        kept["b"].add(len(kept["b"]) * 10)
        copied = set(kept["b"])
        copied.discard(1)
        union = frozenset([3, 1, 2]) | copied
        return list(union), union, copied, list(copied), repr(union), x

    def outer(x):
        result = fn(x)
        return *result, list(result[1])

    return outer


@case(one)
def sets_of_objects(x):
    class Key:
        def __init__(self, n):
            self.n = n

        def __hash__(self):
            return hash(self.n)

        def __eq__(self, other):
            return self.n == other.n

    s = {Key(1), Key(2), Key(1)}
    d = {Key(1): "one"}
    return len(s), d[Key(1)], Key(3) in s, x + 1


@case(one)
def set_of_tensors(x):
    y = x + 1
    s = {x, y, x}
    return len(s), x in s, (x + 2) in s


@case(one)
def set_errors(x):
    out = []
    for f in (lambda: {1}.remove(2), lambda: set().pop(), lambda: {[]}, lambda: {1} | [2], lambda: {1: 2}[[]]):
        try:
            f()
        except (KeyError, TypeError) as error:
            out.append((type(error).__name__, str(error)))
    return out, x


@case(one, fullgraph=True)
def dict_views_as_sets(x):
    a, b = {"x": 1, "y": 2}, {"y": 2, "z": 3}
    return (
        sorted(a.keys() & b.keys()),
        sorted(a.keys() - b),
        sorted(a.keys() | b),
        a.items() & b.items(),
        a.keys() == {"x", "y"},
        list(reversed(a)),
        list(reversed(a.items())),
        a | b,
        x + 1,
    )


@case(one)
def dict_changed_in_iteration(x):
    d = {1: 2}
    for k in d:
        d[k + 1] = 0
    return x


@case(one)
def dict_methods(x):
    d = dict.fromkeys("abc", 0)
    d.setdefault("z", []).append(x)
    d |= {"q": 1}
    d.update(b=5)
    d.update([("c", 6)])
    popped = d.pop("a"), d.pop("none", "def"), d.popitem()
    return (
        d,
        popped,
        list(d.items()),
        d.get("none"),
        {**d, "n": 1},
        dict(zip("ab", [1, 2], strict=True)),
        "b" in d.keys(),
    )


# -- sorting, heaps, slices ---------------------------------------------------------------------------------


@case(one, fullgraph=True)
def sorting(x):
    rows = [("b", 2), ("a", 2), ("c", 1)]
    a = sorted(rows, key=lambda r: r[1])
    b = sorted(rows, key=lambda r: r[1], reverse=True)
    rows.sort(key=lambda r: (-r[1], r[0]))
    c = [x * 3, x, x * 2]
    c.sort(key=len)
    return a, b, rows, c, min("bca"), max([1, 5, 2], key=lambda v: -v), min([], default=None), sorted("bca")


@case(one)
def sorting_with_error_in_key(x):
    log = []

    def key(v):
        log.append(v)
        if v == 2:
            raise KeyError(v)
        return v

    try:
        sorted([3, 2, 1], key=key)
    except KeyError as error:
        log.append(repr(error))
    return log, x + 1


@case(one)
def sorting_of_mixed_types(x):
    return sorted([1, "a"]), x


@case(one)
def sorting_user_objects(x):
    class V:
        def __init__(self, n):
            self.n = n

        def __lt__(self, other):
            return self.n < other.n

    vs = [V(3), V(1), V(2)]
    return [v.n for v in sorted(vs)], min(vs).n, max(vs, key=lambda v: v.n).n, x + 1


@case(one)
def list_sort_sees_itself_empty(x):
    a = [2, 1]
    seen = []

    def key(v):
        seen.append(len(a))
        return v

    a.sort(key=key)
    return a, seen, x


@case(one)
def heaps(x):
    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    out = (
        heapq.heappop(h),
        heapq.heappushpop(h, 3),
        heapq.heapreplace(h, 9),
        heapq.nlargest(2, h),
        heapq.nsmallest(2, h),
    )
    entries = []
    for n in (3, 1, 2):
        heapq.heappush(entries, (n, n * x))
    return out, h, heapq.heappop(entries)[1], list(heapq.merge([1, 4], [2, 3]))


@case(one, fullgraph=True)
def bisection(x):
    a = [1, 3, 5, 5, 7]
    bisect.insort(a, 4)
    return a, bisect.bisect(a, 5), bisect.bisect_left(a, 5), bisect.bisect_right(a, 0), x + 1


@case(one, fullgraph=True)
def slicing(x):
    a = list(range(10))
    a[2:5] = [20]
    a[::3] = [0] * len(a[::3])
    del a[-2:]
    s = slice(1, None, 2)
    t = (1, 2, 3, 4)[s]
    return (
        a,
        t,
        "abcdef"[s],
        s.indices(5),
        s.start,
        s == slice(1, None, 2),
        b"abc"[1],
        [1, 2, 3][::-1],
        range(10)[2:8:3],
    )


@case(one, fullgraph=True)
def list_methods(x):
    a = [3, 1, 2]
    a.insert(1, x)
    a.extend((4, 5))
    a += [6]
    b = a * 2
    a.reverse()
    popped = a.pop(), a.pop(0)
    c = [1, 2, 3]
    c.remove(2)
    first, *rest = c
    return a, len(b), popped, c, c.index(3), c.count(1), first, rest, [*c, *"ab"], c < [1, 4], c == [1, 3], 3 in c


@case(one)
def list_errors(x):
    out = []
    for f in (
        lambda: [].pop(),
        lambda: [1].index(5),
        lambda: [1].remove(5),
        lambda: [1][3],
        lambda: [1]["a"],
        lambda: [1] + (2,),
        lambda: (1,)[5],
        lambda: [1].pop(4),
        lambda: [] < 1,
    ):
        try:
            f()
        except (IndexError, ValueError, TypeError) as error:
            out.append((type(error).__name__, str(error)))
    return out, x


# -- copies -------------------------------------------------------------------------------------------------


class Node:
    def __init__(self, value):
        self.value = value
        self.links = []


class Custom:
    def __init__(self, n):
        self.n = n

    def __copy__(self):
        return Custom(self.n + 1)

    def __deepcopy__(self, memo):
        return Custom(copy.deepcopy(self.n, memo) + 100)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


@case(one)
def copies(x):
    a = {"k": [1, 2], "t": (1, [2])}
    s, d = copy.copy(a), copy.deepcopy(a)
    n = Node([1])
    n.links.append(n)
    m, q = copy.copy(n), copy.deepcopy(n)
    return (
        s["k"] is a["k"],
        d["k"] is a["k"],
        d,
        m.value is n.value,
        q.value is n.value,
        q.links[0] is q,
        copy.copy(Custom(1)).n,
        copy.deepcopy([Custom(1)])[0].n,
        x + 1,
    )


@case(one)
def copies_of_other_kinds(x):
    p = Pair([1], x)
    d = deque([1, [2]], 5)
    o = OrderedDict(a=[1])
    ns = types.SimpleNamespace(a=[1])
    t = (1, (2, 3))
    return (
        copy.copy(p),
        copy.copy(d),
        copy.copy(o),
        copy.copy(ns),
        copy.copy(t) is t,
        copy.deepcopy(t) is t,
        copy.deepcopy(frozenset([1])),
        copy.copy(Slotted(1, [2])).b,
    )


@case(one)
def deep_copies_of_other_kinds(x):
    p = Pair([1], 2)
    d = deque([1, [2]], 5)
    o = OrderedDict(a=[1])
    shared = [1]
    both = copy.deepcopy([shared, shared])
    dd = copy.deepcopy(defaultdict(list, a=[1]))
    return (
        copy.deepcopy(p),
        copy.deepcopy(d),
        copy.deepcopy(o),
        both[0] is both[1],
        dd,
        copy.deepcopy(Slotted(1, [2])),
        x,
    )


@case(one)
def deepcopy_of_tensors(x):
    c = copy.deepcopy({"x": x, "again": x, "view": [x]})
    c["x"].add_(1)
    return c["x"] is c["again"], c["x"], c["view"][0], x


@case(one, factory=True)
def deepcopy_of_a_module():
    layer = torch.nn.Linear(4, 4)
    torch.nn.init.constant_(layer.weight, 0.5)
    torch.nn.init.zeros_(layer.bias)

    def fn(x):
        twin = copy.deepcopy(layer)
        with torch.no_grad():
            twin.weight.add_(1)
        return twin(x), layer(x), twin.weight is layer.weight

    return fn, layer


@case(lambda: (vec(), Node([1])))
def copies_of_an_argument(x, n):
    c, d = copy.copy(n), copy.deepcopy(n)
    c.value.append(2)
    d.value.append(3)
    return c, d, n, x


# -- modelled types everywhere -----------------------------------------------------------------------------------


@case(one)
def namespaces(x):
    ns = types.SimpleNamespace(a=1, x=x)
    ns.b = ns.x * 2
    del ns.a
    other = types.SimpleNamespace(**vars(ns))
    return ns, ns == other, other, hasattr(ns, "a")


@case(one)
def namespace_alive_at_break(x):
    ns = types.SimpleNamespace(a=1, items=[x])
    graph_break()
    ns.a += 1
    return ns, x + ns.a


@case(one)
def mapping_proxies(x):
    base = {"a": 1, "x": x}
    p = types.MappingProxyType(base)
    base["b"] = 2
    try:
        p["c"] = 3
    except TypeError as error:
        message = str(error)
    return (
        p["a"],
        p["b"],
        len(p),
        "b" in p,
        list(p),
        dict(p)["b"],
        message,
        p.get("zz"),
        isinstance(p, types.MappingProxyType),
    )


@case(one)
def mapping_proxy_alive_at_break(x):
    base = {"a": 1}
    p = types.MappingProxyType(base)
    graph_break()
    base["b"] = 2
    return p["b"], type(p), x + 1


@case(lambda: (vec(), types.MappingProxyType({"a": 2})), lambda: (vec(), types.MappingProxyType({"a": 3})))
def mapping_proxy_argument(x, p):
    return x * p["a"], len(p)


@case(one)
def everything_in_one_structure(x):
    d = deque([x])
    table = {"d": d, "dd": defaultdict(list, k=[d]), "o": OrderedDict(d=d), "c": Counter("aa")}
    table["self"] = table
    graph_break()
    d.append(1)
    return table, table["o"]["d"] is d, table["dd"]["k"][0] is d


@case(one, factory=True)
def stand_ins_stored_then_raise():
    kept = []

    def fn(x):
        d = deque([1], maxlen=2)
        kept.append(d)
        kept.append(defaultdict(int, a=1))
        d.append(x)
        raise ValueError("after")

    return fn, kept


@case(one)
def deque_in_a_closure(x):
    d = deque()

    def push(v):
        d.append(v)
        return len(d)

    push(1)
    return push, d, push(x)


@case(one)
def abstract_collections(x):
    return (
        isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping),
        isinstance(deque(), collections.abc.MutableSequence),
        isinstance(iter([]), collections.abc.Iterator),
        issubclass(dict, collections.abc.MutableMapping),
        isinstance(len, collections.abc.Callable),
        isinstance((v for v in ()), collections.abc.Generator),
        isinstance(x, collections.abc.Hashable),
        x + 1,
    )


test_cases = make_test(__name__)
