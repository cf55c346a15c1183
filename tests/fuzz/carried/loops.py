"""Loops that go on behind a pause, over iterators of every kind, which others hold, advance and change."""

import collections
import itertools

from .shared import Carried, pause


def by_loop_over_list(v):
    found = []
    for one in [1, v, 2]:
        pause()
        found.append(one)
    return found[1]


def by_loop_over_numbered(v):
    for k, one in enumerate([3, v, 2], 1):
        pause()
        if k == 2:
            return one


def by_loop_over_zip(v):
    found = []
    for k, one, c in zip(range(5), (1, v, 2), "abcd"):
        pause()
        found.append((c, one, k))
    return found[1][1] if len(found) == 3 else None


def by_loop_over_items(v):
    table = {"a": 1, "b": v, "c": 3}
    for key, one in table.items():
        pause()
        if key == "b":
            found = one
    return found


def by_loop_over_values_that_change(v):
    table = {"a": 1, "b": 2, "c": 3}
    found = []
    for one in table.values():
        pause()
        found.append(one)
        table["c"] = v
    return found[2]


def by_loop_over_list_that_grows(v):
    items = [1, 2]
    for one in items:
        pause()
        if len(items) < 5:
            items.append(v)
    return one if len(items) == 5 else None


def by_loop_over_list_that_shrinks(v):
    items = [0, 1, 2, 3, v]
    seen = []
    for one in items:
        pause()
        seen.append(one)
        if isinstance(one, int):
            items.pop(0)
    return v if seen[:2] == [0, 2] and len(seen) == 3 else None


def by_loop_over_dict_that_grows(v):
    table = {"a": v}
    try:
        for key in table:
            pause()
            table[key + "b"] = 1
    except RuntimeError:
        return table["a"]


def by_nested_live_loops(v):
    found = []
    for i, row in enumerate([[1, 2], [v], []]):
        for j, one in enumerate(row):
            pause()
            found.append((i, j, one))
    return found[2][2] if [pair[:2] for pair in found] == [(0, 0), (0, 1), (1, 0)] else None


def by_loop_in_callee(v):
    def inner(items):
        for k, one in items:
            pause()
            if k == 1:
                return one
    found = []
    for made in (enumerate([0, v]), zip(range(3), [1, v, 2])):
        found.append(inner(made))
        pause()
        found.append([k for k, _ in made])
    return found[0] if found[1:2] == [[]] and found[3] == [2] else None


def by_loop_over_two_names(v):
    a = b = iter([0, 1, 2, 3, v])
    got = []
    for one in a:
        pause()
        got.append(next(b, None))
        got.append(one)
    return got[-1] if got[-2] is None else None


def by_loop_over_shared_zip(v):
    it = iter([1, v, 3, 4, 5])
    found = []
    for a, b in zip(it, it):
        pause()
        found.append(b)
    return found[0] if next(it, None) is None else None


def by_loop_under_enumerate(v):
    it = iter("abcdef")
    found = []
    for k, c in enumerate(it):
        pause()
        found.append((k, c, next(it, "-")))
    return v if found == [(0, "a", "b"), (1, "c", "d"), (2, "e", "f")] else None


def by_loop_over_map(v):
    made = map(lambda one: (pause(), one)[1], [1, v])
    for one in made:
        pause()
    return one


def by_loop_over_filter(v):
    for pair in filter(lambda pair: pair[0], [(0, 1), (1, v), (2, v)]):
        pause()
        if pair[0] == 2:
            return pair[1]


def by_loop_over_reversed(v):
    items = [v, 1, 2]
    for one in reversed(items):
        pause()
        items.append(5)
    return one


def by_loop_over_set(v):
    total = 0
    for one in {1, 2, 3}:
        pause()
        total += one
    return v if total == 6 else None


def by_loop_with_else(v):
    for k in range(3):
        pause()
        if k > 5:
            break
    else:
        return v


def by_loop_with_finally(v):
    got = []
    for k in [0, 1, 2, 3]:
        try:
            pause()
            if k == 1:
                continue
            if k == 2:
                break
        finally:
            got.append(k)
    return v if got == [0, 1, 2] else None


def by_loop_with_errors(v):
    got = []
    for k, one in enumerate([1, "a", v]):
        try:
            pause()
            got.append(one + 1 if k < 2 else one)
        except TypeError as e:
            got.append(type(e))
    return got[2] if got[:2] == [2, TypeError] else None


def by_loop_of_generator(v):
    def numbers():
        for k, one in enumerate([1, v]):
            pause()
            yield one
            pause()
    for one in numbers():
        pause()
    return one


def by_loop_over_ordered(v):
    table = collections.OrderedDict(a=1, v=v)
    table.move_to_end("a")
    for key, one in table.items():
        pause()
        return one


def by_loop_over_counter(v):
    found = {}
    for key, n in collections.Counter("abca").items():
        pause()
        found[key] = n
    return v if found == {"a": 2, "b": 1, "c": 1} else None


def by_loop_over_chain(v):
    for one in itertools.chain([1], (2, v)):
        pause()
    return one


def by_loop_over_repeat(v):
    total = 0
    for one in itertools.repeat(v, 3):
        pause()
        total += 1
    return one if total == 3 else None


def by_loop_over_count(v):
    for k in itertools.count(3, 2):
        pause()
        if k > 6:
            return v if k == 7 else None


def by_loop_left_and_taken_up(v):
    it = iter([1, 2, v, 4])
    for one in it:
        pause()
        if one == 2:
            break
    for one in it:
        pause()
        break
    return one if list(it) == [4] else None


def by_loop_in_comprehension(v):
    made = [(pause(), one, k)[1:] for k, one in enumerate([0, v])]
    return made[1][0]


def by_loop_that_raises(v):
    it = iter([1, v, 3])
    try:
        for one in it:
            pause()
            if one is v:
                raise Carried(one)
    except Carried as e:
        return e.v if next(it) == 3 else None


def by_loop_kept_in_object(v):
    class Holder:
        pass
    holder = Holder()
    holder.it = enumerate([1, v, 3])
    for k, one in holder.it:
        pause()
        if k == 1:
            return one if next(holder.it) == (2, 3) else None


def by_while_with_next(v):
    it = iter([1, 2, v])
    while (one := next(it, None)) is not None:
        pause()
        last = one
    return last


def by_growing_tuple(v):
    states = ()
    for k in range(4):
        states = states + (k,)
        pause()
        states += (v,)
    return states[3] if len(states) == 8 else None
