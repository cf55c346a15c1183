"""`copy.copy`, `copy.deepcopy` and `dataclasses.replace` of what a program makes or holds; regular expressions with
functions. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import collections
import copy
import dataclasses
import re
from typing import Any

import torch

from tests.semantics.harness import case, make_test


def one() -> tuple[Any, ...]:
    return (torch.ones(3),)


class Plain:
    def __init__(self, value, items):
        self.value = value
        self.items = items


class Slotted:
    __slots__ = ("items", "value")

    def __init__(self, value, items):
        self.value = value
        self.items = items


class Reduced(Plain):
    def __reduce__(self):
        return Reduced, (self.value, self.items)


class Stateful(Plain):
    def __getstate__(self):
        return {"value": 9}

    def __setstate__(self, state):
        self.value = state["value"]
        self.items = "set"


@dataclasses.dataclass
class Config:
    size: int = 1
    items: list = dataclasses.field(default_factory=list)
    inner: Any = None


@dataclasses.dataclass(frozen=True)
class Key:
    name: Any


@case(one, fullgraph=True)
def shallow_copies(x):
    made = []
    for kind in (Plain, Slotted, Reduced, Stateful):
        old = kind(x, [1])
        new = copy.copy(old)
        made.append((type(new) is kind, new.value is old.value, new.items is old.items, new.items))
    return x, made


@case(one, factory=True, fullgraph=True)
def copies_of_configurations():
    config = Config(3, [1, 2], Config(4))

    def fn(x):
        deep = copy.deepcopy(config)
        deep.size += 1
        deep.items.append(3)
        deep.inner.size = 0
        shallow = copy.copy(config)
        shallow.size = 9
        shallow.items.append(7)
        return x * deep.size, deep, shallow, dataclasses.replace(config, size=5)

    return fn, config


@case(one, fullgraph=True)
def copies_of_containers(x):
    counted = collections.Counter("aab")
    ordered = collections.OrderedDict(a=[1])
    copied = copy.copy(ordered)
    lists = collections.defaultdict(list, a=[1])
    return (x, copied, copied["a"] is ordered["a"], copy.copy(counted), copy.deepcopy(lists), copy.deepcopy(ordered),
            copy.deepcopy(collections.deque([1])))


@case(one, fullgraph=True)
def deep_copies_have_keys_of_their_own(x):
    plain, key = Plain(1, []), Key(2)
    d = {plain: 1, key: 2, (plain, 1): 3}
    copied, members = copy.deepcopy(d), copy.deepcopy({plain, key})
    return (x, plain in copied, key in copied, [k is key for k in copied], plain in members, key in members,
            len(copied), plain in copy.deepcopy([d])[0], copy.copy(d) == d)


@case(one)
def texts_of_containers_with_such_keys(x):
    key = Key(Key(2))
    return x, f"{ {key: 1} }", str({Key(1): 2}), "%s" % ({key},), repr([{Key(1): Key(3)}])


@case(one, fullgraph=True)
def parts_of_matches(x):
    match = re.fullmatch(r"a(?P<n>.)", "ab")
    following = iter([1, 2]).__next__
    return x, match["n"], match[0], match[1], match.span(), following(), following()


@case(one, fullgraph=True)
def substitutions_by_functions(x):
    seen = []

    def replaced(match):
        seen.append(match.group(0))
        return match.group(0) * x.shape[0]

    text = re.sub("a|", replaced, "bab", count=3), re.subn(r"(\d)", lambda match: f"<{match[1]}>", "1a2", flags=re.I)
    return x, text, seen, re.sub("a", "b", "aa"), re.compile("b").subn(replaced, "abab", 1)


@case(one)
def substitutions_that_raise(x):
    found = []
    for what in (lambda: re.sub("a", lambda match: 3, "a"), lambda: re.sub("("), lambda: re.sub("(", len, "a"),
                 lambda: re.sub("a", lambda match: {}[match[0]], "a")):
        try:
            found.append(what())
        except (TypeError, KeyError, re.error) as error:
            found.append((type(error).__name__, str(error)))
    return x, found


test_copies = make_test(__name__)
