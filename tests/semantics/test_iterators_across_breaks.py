"""Generators and iterators of itertools that are half-way at a graph break: they go on as in eager."""

import itertools

import pytest
import torch

import jitpy
from jitpy import config
from tests.semantics.harness import jit


class Layers:
    def __init__(self, n):
        self.layers = [float(k) for k in range(n)]
        self.log = []

    def items(self):
        for k, layer in enumerate(self.layers):
            self.log.append(k)
            yield layer
        self.log.append("end")


def over_generator(x, n):
    owner = Layers(n)
    for layer in owner.items():
        x = x + layer
        jitpy.graph_break()
        x = x * 2
    return x, owner.log


def left_early(x, n):
    owner = Layers(n)
    for layer in owner.items():
        x = x + layer
        jitpy.graph_break()
        if layer == 2.0:
            break
    else:
        x = x + 100
    return x, owner.log


def numbered(x, n):
    seen = []
    for i, v in enumerate((k * k for k in range(n)), 3):
        x = x + v
        jitpy.graph_break()
        seen.append((i, v))
    return x, seen


def zipped(x, n):
    def pairs():
        for k in range(n):
            yield k, -k

    seen = []
    for (a, b), c, i in zip(pairs(), range(100), (v for v in range(50)), strict=False):
        x = x + a
        jitpy.graph_break()
        seen.append((a, b, c, i))
    return x, seen


def nested(x, n):
    def outer():
        for k in range(n):
            yield k

    for a in outer():
        for b in (a * k for k in range(3)):
            x = x + b
            jitpy.graph_break()
            x = x - a
        jitpy.graph_break()
    return x


def delegating(x, n):
    def inner(k):
        yield k
        yield k + 1

    def outer():
        for k in range(n):
            yield from inner(k)

    for v in outer():
        x = x + v
        jitpy.graph_break()
    return x


def with_cells(x, n):
    factor = 1

    def scaled():
        nonlocal factor
        for k in range(n):
            factor += 1
            yield k * factor

    for v in scaled():
        x = x + v
        jitpy.graph_break()
        factor += 10
    return x, factor


def of_tensors(x, n):
    def steps(y):
        for _ in range(n):
            y = y * 2
            yield y
            y = y + 1

    total = x
    for y in steps(x):
        total = total + y
        jitpy.graph_break()
    return total


def also_named(x, n):
    source = (k for k in range(n))
    for v in source:
        x = x + v
        jitpy.graph_break()
        x = x + next(source, 0)
    return x, list(source)


def also_kept(x, n):
    kept = []

    def items():
        for k in range(n):
            yield k

    kept.append(items())
    for v in kept[0]:
        x = x + v
        jitpy.graph_break()
        if v == 1:
            x = x + next(kept[0], 0)
    return x, list(kept[0])


def stored(x, n):
    class Holder:
        pass

    holder = Holder()
    holder.last = None
    holder.items = (k for k in range(n))
    for v in holder.items:
        x = x + v
        jitpy.graph_break()
        holder.last = next(holder.items, None)
    return x, holder.last


def with_finally(x, n):
    said = []

    def items():
        try:
            for k in range(n):
                yield k
        finally:
            said.append("closed")

    for v in items():
        x = x + v
        jitpy.graph_break()
        if v == 2:
            break
    return x, said


def that_raises(x, n):
    def items():
        for k in range(n):
            if k == 3:
                raise KeyError(k)
            yield k

    try:
        for v in items():
            x = x + v
            jitpy.graph_break()
    except KeyError as error:
        return x, error.args
    return x, None


def raising_body(x, n):
    found = []
    for v in (k for k in range(n)):
        try:
            x = x + v
            jitpy.graph_break()
            if v % 2:
                raise ValueError(v)
        except ValueError as error:
            found.append(error.args)
            continue
        finally:
            found.append(v)
    return x, found


def in_a_callee(x, n):
    def total(items, y):
        for v in items:
            y = y + v
            jitpy.graph_break()
        return y

    for k in (j for j in range(3)):
        x = total((v * k for v in range(n)), x)
    return x


def sent_to(x, n):
    def running():
        total = 0
        while total < 10 * n:
            got = yield total
            total += 1 if got is None else got

    g = running()
    for v in g:
        x = x + v
        jitpy.graph_break()
        x = x + g.send(2)
        if v > n:
            break
    return x, next(g, None)


def random_access(make):
    def fn(x, n):
        seen = []
        for v in make(n):
            x = x + 1
            jitpy.graph_break()
            seen.append(v)
        return x, seen

    return fn


ITERTOOLS = {
    "islice": lambda n: itertools.islice(itertools.count(2), 1, 2 * n, 2),
    "chain": lambda n: itertools.chain(range(n), "ab", (k for k in range(2))),
    "from_iterable": lambda n: itertools.chain.from_iterable([k] * 2 for k in range(n)),
    "cycle": lambda n: itertools.islice(itertools.cycle([1, 2, 3]), n),
    "count": lambda n: zip(itertools.count(), range(n), strict=False),
    "zip_longest": lambda n: itertools.zip_longest(range(n), "ab", fillvalue="-"),
    "product": lambda n: itertools.product(range(n), "ab"),
    "accumulate": lambda n: itertools.accumulate(range(n)),
    "accumulate with": lambda n: itertools.accumulate(range(1, n), lambda a, b: a * b, initial=2),
    "pairwise": lambda n: itertools.pairwise(range(n)),
    "groupby": lambda n: ((k, list(g)) for k, g in itertools.groupby(range(n), lambda v: v // 2)),
    "takewhile": lambda n: itertools.takewhile(lambda v: v < n, itertools.count()),
    "dropwhile": lambda n: itertools.dropwhile(lambda v: v < 2, range(n)),
    "starmap": lambda n: itertools.starmap(max, zip(range(n), [3] * n, strict=True)),
    "compress": lambda n: itertools.compress(range(n), itertools.cycle([1, 0])),
    "repeat": lambda n: itertools.repeat("v", n),
    "permutations": lambda n: itertools.permutations(range(3), 2),
    "combinations": lambda n: itertools.combinations(range(4), 2),
    "filterfalse": lambda n: itertools.filterfalse(lambda v: v % 2, range(n)),
    "map": lambda n: map(lambda v: v + 1, (k for k in range(n))),
    "filter": lambda n: filter(lambda v: v % 2, (k for k in range(n))),
    "enumerate islice": lambda n: enumerate(itertools.islice((k for k in range(100)), n)),
}
CASES = {fn.__name__: fn for fn in (
    over_generator, left_early, numbered, zipped, nested, delegating, with_cells, of_tensors, also_named, also_kept,
    stored, with_finally, that_raises, raising_body, in_a_callee, sent_to)}
CASES.update((name, random_access(make)) for name, make in ITERTOOLS.items())


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name):
    fn = CASES[name]
    jitpy.reset()
    compiled = jit(fn, backend="eager")
    for n in (5, 4, 7, 5, 0):
        assert str(fn(torch.ones(2), n)) == str(compiled(torch.ones(2), n)), n


@pytest.mark.parametrize("name", CASES)
def test_where_resume_functions_run_as_plain_python(name):
    fn = CASES[name]
    jitpy.reset()
    with config.patch(recompile_limit=1):
        compiled = jit(fn, backend="eager")
        for n in (5, 4, 7):
            assert str(fn(torch.ones(2), n)) == str(compiled(torch.ones(2), n)), n


GENERATORS = ("over_generator", "numbered", "zipped", "of_tensors", "with_cells", "delegating")
OF_ITERTOOLS = ("islice", "cycle", "count", "zip_longest", "accumulate", "pairwise", "enumerate islice")


@pytest.mark.parametrize("name", (*GENERATORS, *OF_ITERTOOLS))
def test_breaks_behind_one_in_a_loop(name):
    """Plain Python advances them from then on; the loop's body is compiled."""
    jitpy.reset()
    report = jitpy.explain(CASES[name])(torch.ones(2), 6)
    expected = {"user", "opaque_iterator"} | ({"generator"} if name in OF_ITERTOOLS else set())
    assert {record.reason.id for record in report.break_reasons} == expected, report.break_reasons
