"""Weak references that are found, made, kept and asked for what has gone. PYTEST_DONT_REWRITE: cases run as written."""

from __future__ import annotations

import weakref

import torch

from tests.semantics.harness import case, make_test


def one():
    return (torch.arange(4.0),)


class Thing:
    def __init__(self, scale=2.0):
        self.scale = scale
        self.ref = None


class Transform:
    """As transforms of distributions refer to their inverses."""

    def __init__(self, scale):
        self.scale = scale
        self._inv = None

    @property
    def inv(self):
        inv = None
        if self._inv is not None:
            inv = self._inv()
        if inv is None:
            inv = Inverse(self)
            self._inv = weakref.ref(inv)
        return inv

    def __call__(self, x):
        return x * self.scale


class Inverse:
    def __init__(self, transform):
        self._inv = transform

    def __call__(self, x):
        return x / self._inv.scale


@case(one, one, one, factory=True, fullgraph=True)
def inverse_that_is_made_anew():
    transform = Transform(3.0)

    def without_the_question(x):
        return transform.inv(x)

    return without_the_question, [transform.scale]


@case(one, one, one, factory=True)
def inverse_that_has_gone():
    transform = Transform(3.0)

    def fn(x):
        first = transform.inv(x) + transform.inv(x * 2)
        return first, transform._inv() is None, transform.inv is transform.inv

    return fn


@case(one, one, factory=True)
def inverse_that_is_kept():
    transform = Transform(3.0)
    kept = [transform.inv]

    def fn(x):
        same = transform.inv is kept[0]
        y = transform.inv(x)
        if len(kept) > 1:
            kept.pop()
        kept.append(transform.inv)
        return y, same, transform._inv() is kept[1]

    return fn


@case(one, one, factory=True, fullgraph=True)
def object_found_by_a_reference():
    thing = Thing()
    ref = weakref.ref(thing)

    def fn(x):
        found = ref()
        found.scale += 1
        return x * thing.scale, found is thing

    return fn, thing


@case(one, one, one, factory=True)
def object_that_dies_between_calls():
    things = [Thing(4.0)]
    ref = weakref.ref(things[0])
    calls = []

    def fn(x):
        found = ref()
        calls.append(found is None)
        if found is None:
            return x - 1
        y = x * found.scale
        del found
        if len(calls) > 1:
            things.clear()
        return y

    return fn, calls


@case(one, one, factory=True)
def object_that_is_let_go():
    holder = Thing()

    def fn(x):
        holder.ref = Thing(5.0)
        ref = weakref.ref(holder.ref)
        before = ref() is holder.ref
        holder.ref = None
        return x + 1, before, ref() is None

    return fn


@case(one, one)
def local_that_is_deleted(x):
    thing = Thing(3.0)
    ref = weakref.ref(thing)
    y = x * ref().scale
    del thing
    return y, ref() is None


@case(one, one, factory=True)
def argument_that_is_deleted():
    def inner(thing, ref, x):
        y = x * thing.scale
        del thing
        return y, ref() is None

    def fn(x):
        thing = Thing(3.0)
        ref = weakref.ref(thing)
        kept = inner(thing, ref, x)
        return kept, ref() is thing

    return fn


@case(one, one)
def reference_across_a_break(x):
    thing = Thing(3.0)
    ref = weakref.ref(thing)
    if x.sum() > 0:
        y = x * ref().scale
    else:
        y = x
    del thing
    return y, ref() is None


@case(one, one, factory=True)
def references_that_are_kept():
    kept = []
    outside = Thing(1.0)
    outside_ref = weakref.ref(outside)

    def fn(x):
        inside = Thing(2.0)
        kept.append(weakref.ref(inside))
        kept.append(weakref.ref(outside))
        same = weakref.ref(inside) is kept[-2]
        return x * inside.scale, same, weakref.ref(outside) is outside_ref, weakref.ref(outside) == outside_ref

    def calls(x):
        result = fn(x)
        return *result, [ref() is None for ref in kept], kept[-1] is outside_ref

    return calls


@case(one, one, factory=True)
def references_returned():
    outside = Thing(1.0)

    def fn(x):
        inside = Thing(2.0)
        return x + 1, weakref.ref(outside), weakref.ref(inside), inside

    def calls(x):
        y, first, second, inside = fn(x)
        return y, first() is outside, second() is inside

    return calls


@case(one, one, factory=True)
def references_with_callbacks():
    gone = []

    def fn(x):
        thing = Thing(2.0)
        ref = weakref.ref(thing, lambda ref: gone.append(1))
        y = x * ref().scale
        del thing
        return y, len(gone)

    return fn, gone


ROUND = []  # what looks through the globals for who holds an object must not go round for ever
ROUND.append(ROUND)


def asked(x, ref, table=ROUND):
    return x * ref().scale


@case(one, one, factory=True, fullgraph=True)
def references_in_a_module_with_a_list_in_itself():
    thing = Thing(2.0)
    ref = weakref.ref(thing)

    def fn(x):
        thing.scale += 1.0
        return asked(x, ref)

    return fn, thing


@case(one, one, factory=True)
def weak_dictionaries():
    table = weakref.WeakKeyDictionary()
    values = weakref.WeakValueDictionary()
    thing = Thing(2.0)
    table[thing] = 3
    values["a"] = thing

    def fn(x):
        other = Thing(1.0)
        table[other] = 4
        return x * table[thing] + values["a"].scale, sorted(table.values()), len(table)

    return fn


@case(one, one, factory=True)
def proxies():
    thing = Thing(2.0)
    proxy = weakref.proxy(thing)

    def fn(x):
        proxy.scale += 1
        return x * thing.scale, isinstance(proxy, Thing), proxy.scale

    return fn, thing


test_all = make_test(__name__)
