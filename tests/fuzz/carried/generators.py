"""Generators and iterators."""

import itertools

from .shared import Carried, CarriedOn, pause, same


class Counts:
    """An iterator."""

    def __init__(self, v, n):
        self.v, self.n = v, n

    def __iter__(self):
        return self

    def __next__(self):
        self.n -= 1
        if self.n < 0:
            raise StopIteration
        pause()
        return self.v


def by_yield(v):
    def inner():
        pause()
        yield v
        pause()
    for got in inner():
        return got


def by_send(v):
    def inner():
        got = yield
        while True:
            pause()
            got = yield got
    made = inner()
    next(made)
    made.send(0)
    return made.send(v)


def by_throw(v):
    def inner():
        try:
            yield 1
        except Carried as e:
            pause()
            yield e.v
    made = inner()
    next(made)
    return made.throw(CarriedOn(v))


def by_yield_from(v):
    def inner():
        got = yield 1
        pause()
        return got

    def outer():
        got = yield from inner()
        yield got
    made = outer()
    next(made)
    return made.send(v)


def by_throw_through(v):
    def inner():
        try:
            yield 1
        finally:
            pause()

    def outer():
        try:
            yield from inner()
        except Carried as e:
            yield e.v
    made = outer()
    next(made)
    return made.throw(Carried(v))


def by_close(v):
    out = []

    def inner():
        try:
            yield 1
        finally:
            pause()
            out.append(v)
    made = inner()
    next(made)
    made.close()
    made.close()
    return out[0]


def by_stop(v):
    def inner():
        pause()
        return v
        yield
    try:
        next(inner())
    except StopIteration as stop:
        return stop.value


def by_generator_expression(v):
    made = (same(v) for k in range(3) if k != 1)
    next(made)
    pause()
    return next(made)


def by_escaping_generator(v):
    def numbers():
        total = 0
        while total < 9:
            got = yield (total, v)
            pause()
            total += got or 1

    def make():
        made = numbers()
        next(made)
        return made
    made = make()
    made.send(5)
    return [pair for pair in made][-1][1]


def by_pipeline(v):
    def source():
        for k in range(4):
            pause()
            yield k

    def kept(items):
        for k in items:
            if k % 2:
                yield k, v
    return dict(kept(source()))[3]


def by_coroutine(v):
    async def inner():
        return v

    async def outer():
        pause()
        return await inner()
    made = outer()
    try:
        made.send(None)
    except StopIteration as stop:
        return stop.value


def by_iterator(v):
    return [*Counts(v, 2)][1]


def by_unpacked_iterator(v):
    a, b, c = Counts(v, 3)
    return b


def by_chain(v):
    return list(itertools.chain.from_iterable([[1], Counts(v, 1)]))[1]


def by_tee(v):
    a, b = itertools.tee(Counts(v, 2))
    next(a)
    return (next(b), next(a))[1]


def by_cycle(v):
    made = itertools.cycle([1, v])
    return [next(made) for _ in range(4)][3]


def by_zip_longest(v):
    return list(itertools.zip_longest([1, 2, 3], Counts(v, 1), fillvalue=v))[2][1]


def by_starmap(v):
    return list(itertools.starmap(lambda a, b: (pause(), b)[1], [(1, v)]))[0]


def by_groupby(v):
    groups = [(k, list(g)) for k, g in itertools.groupby([1, 1, 2], lambda k: (pause(), k)[1])]
    return v if groups == [(1, [1, 1]), (2, [2])] else None


def by_accumulate(v):
    return list(itertools.accumulate([1, 2], lambda a, b: (pause(), a)[1], initial=v))[-1]


def by_takewhile(v):
    made = itertools.takewhile(lambda k: (pause(), k < 3)[1], itertools.count(1))
    return [v for _ in made][1]


def by_islice(v):
    made = Counts(v, 5)
    list(itertools.islice(made, 1, 3))
    return (next(made), made.n)[0]


def by_map(v):
    return list(map(lambda a, b: (pause(), a)[1], [v, v], Counts(1, 1)))[0]


def by_filter(v):
    return next(filter(lambda pair: (pause(), pair[0])[1], [(0, 1), (1, v)]))[1]


def by_iter_sentinel(v):
    items = [0, v, 1]
    return [got for got in iter(lambda: (pause(), items.pop())[1], 0)][1]


def by_reversed(v):
    return next(reversed({"a": 1, "v": v}.values()))


def by_enumerate(v):
    for k, got in enumerate(Counts(v, 3), start=1):
        if k == 2:
            return got
