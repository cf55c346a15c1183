"""Iterators that live while something else happens: partly consumed, held by others, asked before and after."""

import collections
import itertools

from .shared import pause


class Source:
    """Gives items, and counts how often it was asked."""

    def __init__(self, *items):
        self.items = items
        self.at = 0

    def __iter__(self):
        pause()
        return self

    def __next__(self):
        pause()
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]


class Reader:
    def __init__(self, iterator):
        self.iterator = iterator
        self.peeked = collections.deque()

    def peek(self):
        if not self.peeked:
            self.peeked.append(next(self.iterator))
        return self.peeked[0]

    def __next__(self):
        return self.peeked.popleft() if self.peeked else next(self.iterator)

    def __iter__(self):
        return self


def by_kept_list_iterator(v):
    items = [0, 1, v, 3]
    it = iter(items)
    total = next(it)
    pause()
    total += next(it)
    items.append(4)
    got = next(it)
    pause()
    return got if total + sum(it) == 8 else None


def by_list_iterator_while_list_changes(v):
    items = [1, 2, v]
    it = iter(items)
    next(it)
    pause()
    items.insert(0, 0)
    seen = next(it)
    pause()
    del items[:1]
    return next(it, v) if seen == 1 else None


def by_finished_list_iterator(v):
    items = []
    it = iter(items)
    first = next(it, None)
    pause()
    items.append(1)
    return v if first is None and next(it, None) is None else None


def by_kept_dict_iterator(v):
    table = {"a": 1, "b": v, "c": 3}
    it = iter(table.items())
    next(it)
    pause()
    key, got = next(it)
    table["c"] = 4
    pause()
    return got if key == "b" and list(it) == [("c", 4)] else None


def by_dict_that_grows(v):
    table = {"a": 1}
    it = iter(table)
    pause()
    table["b"] = 2
    try:
        next(it)
    except RuntimeError:
        pause()
        return v


def by_kept_zip(v):
    made = zip([1, 2, 3], Source(0, v, 2))
    next(made)
    pause()
    k, got = next(made)
    pause()
    return got if [pair[0] for pair in made] == [3] and k == 2 else None


def by_kept_enumerate(v):
    made = enumerate([v, v, 1], 5)
    first, _ = next(made)
    pause()
    second, got = next(made)
    return got if (first, second) == (5, 6) and next(made) == (7, 1) else None


def by_kept_map(v):
    calls = []
    made = map(lambda a: (calls.append(1), pause(), a)[2], [0, v, 1])
    next(made)
    pause()
    got = next(made)
    return got if len(calls) == 2 and list(made) == [1] else None


def by_kept_filter(v):
    made = filter(lambda pair: pair[0] % 2, [(1, 0), (2, 0), (3, v)])
    next(made)
    pause()
    return next(made)[1]


def by_kept_reversed(v):
    items = [v, 1, 2]
    made = reversed(items)
    next(made)
    pause()
    items.append(7)
    next(made)
    return next(made)


def by_kept_set_iterator(v):
    made = iter({1, 2, 3})
    k = next(made)
    pause()
    return v if k + sum(made) == 6 else None


def by_kept_range(v):
    made = iter(range(5))
    next(made), next(made)
    pause()
    return v if list(zip(made, "ab")) == [(2, "a"), (3, "b")] and next(made, 9) in (9, 4) else None


def by_kept_text(v):
    made = iter("abc")
    next(made)
    pause()
    return v if "".join(made) == "bc" else None


def by_kept_generator(v):
    def numbers():
        got = yield 0
        pause()
        yield got
        yield 2
    made = numbers()
    next(made)
    pause()
    got = made.send(v)
    pause()
    return got if list(made) == [2] else None


def by_reader(v):
    reader = Reader(iter([1, v, 3]))
    reader.peek()
    pause()
    next(reader)
    got = reader.peek()
    pause()
    return got if next(reader) is got and [*reader] == [3] else None


def by_reader_of_generator(v):
    reader = Reader(k for k in (1, v))
    reader.peek()
    pause()
    next(reader)
    return next(reader)


def by_two_loops_over_one(v):
    it = iter([0, 1, 2, v])
    for k in it:
        if k == 1:
            pause()
            break
    rest = []
    for one in it:
        rest.append(one)
        pause()
    return rest[-1]


def by_inner_next(v):
    it = iter([0, 1, 0, v])
    got = None
    for k in it:
        if k == 0:
            got = next(it)
            pause()
    return got


def by_closure_over_iterator(v):
    it = iter([1, 2, v])

    def take():
        pause()
        return next(it)
    take()
    pause()
    take()
    return take()


def by_chunks(v):
    it = iter([1, v, 3, 4])
    pairs = [*zip(it, it)]
    pause()
    return pairs[0][1]


def by_islice_of_kept(v):
    it = itertools.count(1)
    head = [*itertools.islice(it, 2)]
    pause()
    return v if head == [1, 2] and next(it) == 3 else None


def by_kept_chain(v):
    it = itertools.chain([1], Source(2, v))
    next(it)
    pause()
    next(it)
    return next(it)


def by_tee_apart(v):
    a, b = itertools.tee([1, v, 3])
    next(a)
    pause()
    got = next(a)
    return got if next(b) == 1 and len([*b]) == 2 else None


def by_kept_product(v):
    it = itertools.product([1, v], "ab")
    next(it)
    pause()
    next(it)
    return next(it)[0]


def by_kept_groups(v):
    it = itertools.groupby([1, 1, 2], key=lambda k: k)
    key, group = next(it)
    next(group)
    pause()
    return v if (key, [*group]) == (1, [1]) and next(it)[0] == 2 else None


def by_batches(v):
    it = iter([1, 2, v])
    found = []
    while batch := [*itertools.islice(it, 2)]:
        pause()
        found.append(batch)
    return found[1][0]


def by_iterator_in_container(v):
    held = {"it": iter([0, v])}
    next(held["it"])
    pause()
    return next(held["it"])


def by_star_of_iterator(v):
    it = iter([1, v, 3])
    next(it)
    pause()
    got, *rest = it
    return got if rest == [3] and next(it, None) is None else None


def by_return_from_loop(v):
    def find(it):
        for k in it:
            pause()
            if k == 2:
                return k
    it = iter([1, 2, v])
    find(it)
    return next(it)


def by_try_in_loop(v):
    it = iter([0, 1, 2])
    found = []
    for k in it:
        try:
            if k == 0:
                continue
            if k == 2:
                break
            found.append(next(it))
        finally:
            pause()
            found.append(k)
    return v if found == [0, 2, 1] else None


def by_deque_iterator(v):
    queue = collections.deque([1, v, 3])
    it = iter(queue)
    next(it)
    pause()
    got = next(it)
    queue.append(4)
    try:
        next(it)
    except RuntimeError:
        return got


def by_iterator_of_views(v):
    table = collections.OrderedDict(a=1, v=v)
    it = reversed(table.items())
    pause()
    return next(it)[1]


def by_dropped_exhausted(v):
    it = Source(1, v)
    got = [*it]
    pause()
    return got[1] if [*it] == [] else None


def by_comprehension_of_kept(v):
    it = iter([1, 2, v])
    next(it)
    made = [(pause(), k)[1] for k in it]
    return made[-1] if next(it, None) is None else None
