"""Generators and iterators."""

from __future__ import annotations

import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


def counting(n):
    for i in range(n):  # the loop is the point
        yield i


@case(one, fullgraph=True)
def generator_in_for(x):
    for i in counting(3):
        x = x + i
    return x


@case(one, fullgraph=True)
def generator_expression(x):
    return sum(x * i for i in range(3)), max(i * i for i in (1, -3, 2)), list(i for i in "ab")


@case(one, fullgraph=True)
def generator_of_tensors(x):
    def parts(t):
        yield t + 1
        yield t * 2
        yield from (t - i for i in range(2))

    return torch.stack(list(parts(x))), tuple(parts(x))


@case(one, fullgraph=True)
def next_by_hand(x):
    g = counting(2)
    first = next(g)
    second = next(g)
    return x * first + second, next(g, "end"), next(g, "still")


@case(one, fullgraph=True)
def send_values(x):
    def averaging():
        total, count = 0, 0
        while True:
            item = yield (total / count if count else None)
            total = total + item
            count += 1

    g = averaging()
    next(g)
    return [g.send(x), g.send(x * 3)]


@case(one, fullgraph=True)
def generator_return_value(x):
    def inner():
        yield 1
        return "result"

    def outer():
        value = yield from inner()
        yield value

    return list(outer()), x + 1


@case(one, fullgraph=True)
def throw_into_generator(x):
    log = []

    def guarded():
        try:
            yield 1
        except ValueError as e:
            log.append(str(e))
            yield 2
        finally:
            log.append("finally")

    g = guarded()
    next(g)
    got = g.throw(ValueError("thrown"))
    g.close()
    return x * got, log


@case(one, fullgraph=True)
def generator_with_finally(x):
    log = []

    def numbers():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    for n in numbers():
        x = x + n
    return x, log


@case(one)
def generator_raises(x):
    def failing():
        yield 1
        raise KeyError("inside")

    for n in failing():
        x = x + n
    return x


@case(one)
def stop_iteration_inside_generator(x):
    def bad():
        yield next(iter([]))

    return list(bad())


@case(one)
def returns_generator(x):
    def lazily():
        for i in range(3):
            yield x + i

    return lazily()


@case(one)
def returns_half_used_generator(x):
    g = counting(4)
    next(g)
    return g, x + 1


@case(one, factory=True)
def generator_from_outside():
    source = counting(10)

    def fn(x):
        return x + next(source)

    return fn


@case(lambda: (vec(), iter([1, 2, 3])), lambda: (vec(), iter([4])))
def iterator_argument(x, items):
    total = x
    for n in items:
        total = total + n
    return total


@case(lambda: (vec(), iter([1, 2, 3])))
def iterator_partly_used(x, items):
    return x * next(items)


@case(one)
def generator_effects_in_order(x):
    log = []

    def producer():
        for i in range(2):
            log.append(f"make {i}")
            yield x + i

    for i, value in enumerate(producer()):
        log.append(f"use {i}")
        x = x + value
    return x, log


class Counter:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Sequence:
    def __init__(self, items):
        self.items = items

    def __getitem__(self, i):
        return self.items[i]

    def __len__(self):
        return len(self.items)


@case(one, fullgraph=True)
def iterator_class(x):
    return [x * i for i in Counter(3)], list(Counter(2)), sum(Counter(4)), 1 in Counter(3)


@case(one, fullgraph=True)
def iteration_by_getitem(x):
    s = Sequence([1, 2, 3])
    return [x * i for i in s], 3 in s, list(reversed(s)), len(s)


@case(one, fullgraph=True)
def iter_of_everything(x):
    its = [iter([1, 2]), iter((3,)), iter("ab"), iter({"k": 1}), iter(range(2)), iter({5}), zip([1], [2], strict=True)]
    return [list(i) for i in its], x + 1


@case(one, fullgraph=True)
def two_generators_interleaved(x):
    a, b = counting(3), counting(3)
    out = []
    for i in a:
        out.append((i, next(b)))
        x = x + i
    return x, out


@case(one, fullgraph=True)
def iter_with_sentinel(x):
    items = [3, 2, 0, 5]
    return [x * n for n in iter(lambda: items.pop(0), 0)], items


@case(one, fullgraph=True)
def generator_in_star_call(x):
    def take(*args):
        return len(args), args[0]

    return take(*(x + i for i in range(3))), [*counting(3)], {*counting(2)}


@case(one, fullgraph=True)
def recursive_generator(x):
    def flatten(tree):
        for item in tree:
            if isinstance(item, list):
                yield from flatten(item)
            else:
                yield item

    return [x * n for n in flatten([1, [2, [3, 4]], 5])]


@case(one)
def two_argument_zip_strict_error(x):
    return [x * a for a, b in zip([1, 2], [3], strict=True)]


@case(one, fullgraph=True)
def map_and_filter(x):
    doubled = map(lambda v: v * 2, [1, 2, 3])
    even = filter(None, [0, 1, 2])
    both = map(lambda a, b: a + b, [1, 2], (3, 4, 5))
    return [x * d for d in doubled], list(even), list(both), list(filter(lambda v: v > 1, range(4)))


@case(one)
def returns_lazy_map(x):
    return map(lambda v: x + v, [1, 2])


test_cases = make_test(__name__)
