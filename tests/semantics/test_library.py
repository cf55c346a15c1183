"""functools, itertools, collections, operator, math and the rest of the library. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import collections
import copy
import functools
import heapq
import itertools
import keyword
import math
import operator
import types

import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


def affine(x, a, b=1, *, c=0):
    return x * a + b - c


@case(one, fullgraph=True)
def partial_made_inside(x):
    f = functools.partial(affine, b=5)
    g = functools.partial(f, x, c=2)
    return f(x, 2), g(3), functools.partial(operator.add, 1)(x)


@case(one, factory=True, fullgraph=True)
def partial_from_outside():
    f = functools.partial(affine, a=3, c=1)

    def fn(x):
        return f(x, b=2)

    return fn


@case(lambda: (vec(), functools.partial(affine, a=2)), lambda: (vec(), functools.partial(affine, a=3)))
def partial_argument(x, f):
    return f(x), f.keywords["a"], f.func is affine


@case(one)
def partial_returned(x):
    f = functools.partial(affine, x, 2)
    return f, f()


@case(one, fullgraph=True)
def reduce(x):
    return functools.reduce(lambda a, b: a * b, [x, x + 1, 2]), functools.reduce(operator.add, [], 5)


@case(one)
def reduce_of_nothing(x):
    return functools.reduce(operator.add, [])


@functools.lru_cache(maxsize=None)
def cached_constant(n):
    return n * 2


@functools.singledispatch
def dispatched(value):
    return "object"


@dispatched.register
def _(value: int):
    return "int"


@dispatched.register
def _(value: list):
    return "list"


@case(one)
def cached_function(x):
    return x * cached_constant(3) + cached_constant(3)


@case(one)
def single_dispatch(x):
    return dispatched(1), dispatched([]), dispatched("s"), x + 1


@case(one, fullgraph=True)
def chains(x):
    a = list(itertools.chain([1], (2,), "c"))
    b = list(itertools.chain.from_iterable([[x], [x + 1]]))
    return a, b


@case(one, fullgraph=True)
def slices_and_counts(x):
    a = list(itertools.islice(itertools.count(5, 2), 3))
    b = list(itertools.islice(itertools.cycle("ab"), 5))
    c = list(itertools.islice([x, 1, 2, 3], 1, None, 2))
    return a, b, c, list(itertools.repeat(x, 2)), [i for i, _ in zip(itertools.count(), "abc", strict=False)]


@case(one, fullgraph=True)
def combinatorics(x):
    a = list(itertools.product([1, 2], "ab"))
    b = [p for p in itertools.permutations([x, 1, 2], 2)]
    c = list(itertools.combinations(range(4), 2))
    return a, len(b), c, sum(1 for _ in itertools.product(range(2), repeat=3))


@case(one, fullgraph=True)
def more_itertools(x):
    a = list(itertools.accumulate([1, 2, 3], operator.mul))
    b = list(itertools.accumulate([x, x], initial=x))
    c = list(itertools.zip_longest([1, 2], "a", fillvalue="-"))
    d = list(itertools.starmap(pow, [(2, 3), (3, 2)]))
    e = list(itertools.takewhile(lambda v: v < 3, range(9))), list(itertools.dropwhile(lambda v: v < 7, range(9)))
    f = list(itertools.compress("abc", [1, 0, 1])), list(itertools.filterfalse(None, [0, 1, 2]))
    return a, b, c, d, e, f, list(itertools.pairwise("abc"))


@case(one, fullgraph=True)
def grouping(x):
    groups = {k: list(g) for k, g in itertools.groupby(sorted("abcab"), key=lambda c: c == "a")}
    first, second = itertools.tee([x, x + 1])
    return groups, list(first), next(second)


@case(one)
def returns_itertools_object(x):
    return itertools.chain([x], [x + 1])


@case(one)
def returns_started_islice(x):
    it = itertools.islice([1, 2, 3], 3)
    next(it)
    return it, x + 1


@case(one, fullgraph=True)
def operator_functions(x):
    get, attr, call = operator.itemgetter(1), operator.attrgetter("shape"), operator.methodcaller("add", 2)
    return operator.add(x, 1), get([0, x]), attr(x), call(x), operator.mul(x, x), operator.neg(x), operator.lt(1, 2)


@case(one, factory=True)
def getters_from_outside():
    get = operator.itemgetter("a", "b")
    call = operator.methodcaller("sum", dim=0)

    def fn(x):
        a, b = get({"a": x, "b": 2})
        return call(a * b)

    return fn


@case(one, fullgraph=True)
def deque_inside(x):
    d = collections.deque([1, 2], maxlen=3)
    d.append(x)
    d.appendleft(0)
    d.extend("z")
    d.rotate(1)
    return d.popleft(), len(d), list(d), d[-1]


@case(one)
def deque_returned(x):
    d = collections.deque(maxlen=2)
    d.extend([1, x, 2])
    return d


@case(lambda: (vec(), collections.deque([1, 2, 3], maxlen=3)), lambda: (vec(), collections.deque([4, 5])))
def deque_argument(x, d):
    d.append(9)
    first = d[0]
    return x * first, sum(d), len(d), d.maxlen


@case(one)
def default_dict(x):
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["a"].append(1)
    d["b"]
    return d, len(d), d.get("zz")


@case(lambda: (vec(), collections.defaultdict(int, a=1)))
def default_dict_argument(x, d):
    d["n"] += 2
    return x * d["n"] * d["a"], d["new"]


@case(one)
def ordered_dict(x):
    d = collections.OrderedDict(a=1, b=x)
    d["c"] = 3
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    return d, list(d), d.popitem(last=False)


@case(lambda: (vec(), collections.OrderedDict(a=1, b=2)))
def ordered_dict_argument(x, d):
    d.move_to_end("a")
    d["z"] = x
    del d["b"]
    return list(d.items())


@case(one)
def counter(x):
    c = collections.Counter("abca")
    c.update("b")
    return c["a"], c["zz"], c.most_common(1), sum(c.values()), x + 1


@case(one)
def chain_map(x):
    m = collections.ChainMap({"a": 1}, {"a": 2, "b": x})
    return m["a"], m["b"], len(m)


@case(one, fullgraph=True)
def math_on_constants(x):
    n = x.shape[0]
    a = math.sqrt(n), math.pi, math.floor(2.5), math.ceil(n / 3), math.prod(x.shape), math.gcd(12, 18), math.log2(8)
    return a, math.isclose(0.1 + 0.2, 0.3), math.inf > 1, math.isnan(math.nan), x / math.sqrt(n)


@case(lambda: (vec(), 4.0), lambda: (vec(), 9.0), lambda: (vec(), 16.0))
def math_on_argument(x, f):
    return x * math.sqrt(f), math.exp(f) > 10, math.trunc(f)


@case(lambda: (vec(), -1.0))
def math_error(x, f):
    return x * math.sqrt(f)


@case(one, fullgraph=True)
def builtin_numbers(x):
    a = abs(-3), divmod(7, 3), pow(2, 5), pow(2, 5, 7), round(2.567, 1), round(2.5), int("12"), float("1e3"), hex(255)
    return a, bin(5), sum([1, 2.5]), min(3, 1), max([1, 5], default=0), complex(1, 2), bool("x"), int(3.9), x + 1


@case(one, fullgraph=True)
def reflection(x):
    return (
        type(x).__name__,
        x.__class__ is torch.Tensor,
        affine.__name__,
        affine.__defaults__,
        vec.__module__ == __name__,
        hasattr(math, "pi"),
        getattr(math, "tau", None),
        callable(affine),
        x + 1,
    )


@case(one)
def heap(x):
    h = []
    for n in (3, 1, 2):
        heapq.heappush(h, n)
    return heapq.heappop(h), heapq.nsmallest(1, h), h, x + 1


@case(one)
def simple_namespace(x):
    ns = types.SimpleNamespace(a=1, x=x)
    ns.b = ns.x * 2
    return ns, ns.b, vars(ns)["a"]


@case(lambda: (types.SimpleNamespace(n=2, x=vec()),), lambda: (types.SimpleNamespace(n=3, x=vec()),))
def namespace_argument(ns):
    ns.n += 1
    return ns.x * ns.n


@case(lambda: ({"a": [vec()]},))
def copy_functions(d):
    shallow, deep = copy.copy(d), copy.deepcopy(d)
    return shallow["a"] is d["a"], deep["a"] is d["a"], deep["a"][0] + 1


@case(one, fullgraph=True)
def torch_size_and_tuple(x):
    s = x.view(2, 2).shape
    facts = len(s), s.numel(), s == (2, 2), isinstance(s, tuple)
    return s, s[0], facts, s[:1], tuple(s), list(s), s + (1,), x.size(), x.size(0)


@case(one, fullgraph=True)
def dtype_and_device_objects(x):
    facts = x.dtype.is_floating_point, x.device.type, torch.device("cpu") == x.device, torch.finfo(x.dtype).eps
    return facts, x.to("cpu") is x


@case(one)
def bound_lookups_of_containers(x):
    words, numbers = frozenset("ab"), {1, 2}
    found = list(filter(words.__contains__, "abc")), list(map(numbers.__contains__, (1, 5)))
    return x + len(found), found, keyword.iskeyword("if"), keyword.iskeyword("iff"), set.__contains__(numbers, 2)


class Tagged(dict):
    def __new__(cls, *args, **kwargs):
        made = dict.__new__(cls, *args, **kwargs)
        made.tag = 3
        return made


@case(one, fullgraph=True)
def dicts_made_by_hand(x):
    made = Tagged(a=1)
    return x + made["a"] + made.tag, made, type(dict.__new__(dict)) is dict


@case(one, fullgraph=True)
def asking_for_tensors(x):
    found = next(a for a in (torch.nn.ReLU(), "a", x) if torch.is_tensor(a))
    return found + 1, torch.is_tensor(torch.nn.Identity())


NAMES = {"reflect", "constant", "circular"}


@case(one, fullgraph=True, globals={"NAMES": lambda: {"reflect", "constant", "circular"}})
def text_of_a_set(x):
    return x + 1, f"one of {NAMES}", str(NAMES), repr(NAMES)


@case(one, fullgraph=True)
def autocast_of_any_device(x):
    return x + any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda", "mps", "xpu"))


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return torch.relu(x * self.scale) + 1


@case(one, factory=True)
def graph_modules():
    module = torch.fx.symbolic_trace(Layers())

    def fn(x):
        return module(x) * 2, module(x - 1)

    return fn


def active(x):
    return x * 2 + torch._C._are_functorch_transforms_active()


@case(one)
def asking_for_transforms(x):
    return torch.func.vmap(active)(x), active(x), torch.func.grad(lambda y: (active(y) * active(y)).sum())(x)


test_cases = make_test(__name__)
