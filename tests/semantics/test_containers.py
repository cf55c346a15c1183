"""Lists, tuples, dicts, sets, strings. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import collections

import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


@case(lambda: ([1, 2, 3], vec()), lambda: ([1, 2, 3, 4], vec()))
def list_methods_on_argument(items, x):
    items.append(x)
    items.insert(0, "first")
    items.extend([7, 8])
    popped = items.pop()
    items.remove(2)
    items.reverse()
    return popped, items.index("first"), items.count(7), items, items.copy() is items


@case(lambda: ({1: 2, 3: 4}, vec()), breaks=())
def views_of_values_are_no_sets(table, x):
    """They are equal to themselves only, and have none of the operators of sets."""
    refused = []
    for operation in (lambda: table.values() | {2}, lambda: {2} & table.values(), lambda: table.values() - [2],
                      lambda: table.values() <= table.values()):
        try:
            refused.append(operation())
        except TypeError as error:
            refused.append(str(error))
    values = table.values()
    return x + 1 if values == table.values() else x - 1, values == values, values != {2: 4}.values(), refused


@case(one, fullgraph=True)
def list_slices(x):
    items = [0, 1, 2, 3, 4, 5]
    items[1:3] = ["a", "b", "c"]
    items[::2] = [9] * len(items[::2])
    del items[0]
    del items[-2:]
    items += [x]
    items *= 2
    return items, items[-1] is x, items[1:4], items[::-1][:2], [1, 2] + [3], [0] * 3


@case(one, fullgraph=True)
def list_comparisons(x):
    return [1, 2] == [1, 2], [1, 2] < [1, 3], [1] != [2], (1, 2) <= (1, 2), [x] == [x], x in [1, x], [[1]] * 2


@case(one, fullgraph=True)
def sorting(x):
    items = [3, 1, 2]
    words = sorted(["bb", "a", "ccc"], key=len, reverse=True)
    items.sort(key=lambda v: -v)
    pairs = sorted([(1, "b"), (0, "z"), (1, "a")])
    return items, words, pairs, sorted({"k": 1, "a": 2}), min([3, 1], key=lambda v: -v), max("abc", default=0), x + 1


@case(one, fullgraph=True)
def tuples(x):
    t = (1, x, "s")
    a = t + (2,)
    return a, t * 2, t[1] is x, t.index("s"), t.count(1), len(t), (), (x,), tuple([1, 2]), t[::-1][0]


@case(lambda: ({"a": vec(), "b": 2}, vec()), lambda: ({"b": 2, "a": vec()}, vec()))
def dict_methods_on_argument(d, x):
    d["new"] = x
    d["b"] += 1
    d.setdefault("c", []).append(3)
    popped = d.pop("a")
    d.update({"z": 1}, y=2)
    del d["z"]
    return popped * 2, d.get("nope"), d.get("b", 0), list(d), list(d.items())[0], "b" in d, len(d)


@case(one, fullgraph=True)
def dict_building(x):
    d = {i: x * i for i in range(3)}
    d |= {3: "three"}
    e = {**d, "k": 1} | {"m": 2}
    f = dict([("a", 1)], b=2)
    g = dict.fromkeys("xy", 0)
    h = dict(zip("ab", [1, 2], strict=True))
    return d, list(e), f, g, h, d.popitem(), {**f} == f, f.keys() & {"a"}, list(reversed(f))


@case(one, fullgraph=True)
def dict_keys_of_many_kinds(x):
    d = {1: "a", 1.0: "b", True: "c", "1": "d", (1, 2): "e", None: "f", torch.float32: "g", int: "h"}
    d[frozenset({1})] = "i"
    return len(d), d[1], d[(1, 2)], d[None], d[torch.float32], d[int], x.dtype in d


@case(lambda: ({vec: 1},), rounds=1)
def dict_with_function_key(d):
    return d[vec] + 1


@case(one)
def dict_with_tensor_key(x):
    d = {x: 1}
    y = x + 1
    d[y] = 2
    return d[x], y in d, torch.ones(1) in d


@case(lambda: ({1, 2},), lambda: ({3},))
def set_methods_on_argument(s):
    s.add(5)
    s.discard(1)
    s |= {7, 8}
    return sorted(s), 5 in s, s & {5, 6}, s - {5}, s ^ {5}, len(s), s >= {5}, {1, 2} | {3}, s.isdisjoint({99})


@case(one, fullgraph=True)
def sets_made(x):
    s = {1, 2}
    t = frozenset([3, 3])
    return len(s), len(t), {i % 2 for i in range(5)}, set("aab") == {"a", "b"}, s.union([9], (8,)), t | s, x + 1


@case(one, fullgraph=True)
def nested_containers(x):
    tree = {"a": [x, {"b": (x + 1, [])}]}
    tree["a"][1]["b"][1].append(tree["a"][0])
    inner = tree["a"]
    inner.append(inner[1])
    return tree, inner[2] is inner[1]


@case(one, fullgraph=True)
def aliasing_of_containers(x):
    a = [x]
    b = a
    c = list(a)
    b.append(1)
    d = [a] * 2
    d[0].append(2)
    return a, b, c, d


@case(lambda: ((lambda a: (a, a))([1]),), lambda: ([1], [1]), lambda: ((lambda a: (a, a))([1]),))
def aliased_arguments(pair, other=None):
    a, b = pair if other is None else (pair, other)
    a.append(5)
    return len(b), a is b


@case(lambda: ([[]],))
def list_containing_itself(items):
    items.append(items)
    return len(items), items[1] is items


@case(one, fullgraph=True)
def strings(x):
    s = "abc"
    n = x.shape[0]
    parts = s.upper(), s[1:], s + "d", s * 2, "b" in s, s.find("c"), s.replace("a", "z"), ",".join(["x", "y"])
    more = "a b".split(), " x ".strip(), s.startswith(("a", "q")), len(s), ord("a")
    more = more + ("%s-%d" % (s, n), "{} {k}".format(1, k=2))
    return parts, more, s.encode(), b"ab"[0], list(s), s.partition("b"), s.isalpha(), "ß".casefold(), chr(97)


@case(lambda: (vec(), 3.14159, "name"), lambda: (vec(3), 2.5, "other"))
def f_strings(x, pi, name):
    return f"{name!r:>8}|{pi:.2f}|{x.shape[0]:03d}|{x.dim()}|{len(name)=}|{'nested ' + name}|{{}}|{pi:{'>'}{8}.1f}"


@case(one, fullgraph=True)
def string_of_objects(x):
    of_torch = str(x.dtype), f"{x.shape}", repr(torch.Size([1])), str(x.device)
    return str([1, "a"]), repr({"k": (1,)}), f"{[1.5]}", of_torch, str(None), str(True)


@case(one)
def string_of_tensor(x):
    y = x * 0
    return f"{y}", str(y.long()), repr(y.shape)


@case(lambda: ([vec(), vec()], {"k": [vec()]}))
def tensors_in_argument_containers(xs, d):
    xs[0] = xs[0] + 1
    xs[1].add_(1)
    d["k"].append(xs[0])
    return torch.stack(xs), d["k"][0]


@case(one, fullgraph=True)
def unhashable_key(x):
    try:
        {}[[1]] = 2
    except TypeError as e:
        return str(e)[:10], x + 1


@case(lambda: ({"a": 1, "b": 2}, vec()))
def views_see_changes(d, x):
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = 3
    return list(keys), list(values), len(items), ("c", 3) in items, x + 1


@case(lambda: ([3, 4], vec()))
def index_with_negative_and_bool(items, x):
    return items[-1], items[True], x[-1], x[True], x[None].shape, x[...].shape


@case(one, fullgraph=True)
def enumerate_and_zip_objects(x):
    pairs = list(zip(range(3), "abc", [x, x + 1, x + 2], strict=False))
    return pairs, list(enumerate("ab", start=5)), dict(enumerate([1, 2])), [*zip(*[(1, 2), (3, 4)], strict=True)]


@case(one, fullgraph=True)
def ranges(x):
    r = range(1, 10, 2)
    facts = len(r), 3 in r, 4 in r, r[1], r == range(1, 11, 2), sum(r), r.stop
    return list(r), facts, list(r[1:3]), list(reversed(r)), x + 1


@case(one, fullgraph=True)
def slices_as_objects(x):
    s = slice(1, None, 2)
    return x[s], s.start, s.stop, s.indices(4), x[slice(2)], [1, 2, 3][s]


@case(lambda: (vec(), (1, [2, 3])))
def list_inside_tuple_mutated(x, t):
    t[1].append(x)
    try:
        t[0] = 5
    except TypeError:
        return t


@case(one, fullgraph=True)
def star_unpack_dicts(x):
    def f(**kw):
        return list(kw.items())

    try:
        f(**{"a": 1}, **{"a": 2})
    except TypeError as e:
        error = "multiple values" in str(e)
    return f(a=1, **{"b": x}), error


@case(lambda: ([],), lambda: ([1],), lambda: ([1, 2],))
def emptiness(items):
    if not items:
        return "empty"
    return "one" if len(items) == 1 else torch.ones(len(items))


@case(one)
def huge_container(x):
    return [i for i in range(200)], {i: str(i) for i in range(100)}, x + sum(range(50))


class Rank:
    """A key that is no constant."""

    def __init__(self, n):
        self.n = n

    def __lt__(self, other):
        return self.n < other.n

    def __gt__(self, other):
        return self.n > other.n


@case(lambda: (torch.ones(3),), factory=True, fullgraph=True)
def keys_are_computed_once_in_order():
    seen = []

    def key(item):
        seen.append(item)
        return Rank(item % 3) if isinstance(item, int) else item.sum()

    def fn(x):
        items = [4, 2, 3, 5, 1]
        items.sort(key=key, reverse=True)
        return (items, sorted([2, 4, 1, 5], key=key), sorted([x], key=key), sorted([7, 8], key=key, reverse=True),
                max([4, 2, 3], key=key), min([4, 2, 3], key=key), max([x], key=key), x + 1)

    return fn, seen


def _said(function):
    try:
        return function()
    except RuntimeError as error:
        return str(error)


@case(one)
def dicts_that_get_other_keys_while_they_are_read(x):
    def swapped():
        found = {1: 1, 2: 2}
        keys = iter(found)
        next(keys)
        found[3] = x
        del found[1]
        return list(keys)

    def swapped_in_a_loop():
        found, seen = {1: 1, 2: 2, 3: 3}, []
        for key in found:
            seen.append(key)
            found[key + 10] = found.pop(key)
            if len(seen) > 5:
                break
        return seen

    def ordered():
        found = collections.OrderedDict(a=1, b=2)
        for key in found:
            del found[key]

    return x + 1, _said(swapped), _said(swapped_in_a_loop), _said(ordered)


test_cases = make_test(__name__)
