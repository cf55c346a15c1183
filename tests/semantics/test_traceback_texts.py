"""Tracebacks as text: every line, with the marks under the part of it that raised. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import contextlib
import io
import traceback

import torch
from torch import nn

import jitpy
from tests.semantics.harness import case, make_test

net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def one():
    return (torch.randn(3),)


def text_of(fn, *args):
    try:
        fn(*args)
    except Exception:
        return traceback.format_exc()


def fails(x, depth):
    if depth: return fails(x, depth - 1)  # noqa: E701
    raise ValueError(
        "in two"
        " lines")


def with_keywords(x, *, a, b): return (x +  # noqa: E704
    fails(x,
          a))


@case(one)
def calls_over_several_lines(x):
    def among_others():
        y = (x * 2 +
             fails(x, 2) +
             x)
        return y

    return text_of(among_others), text_of(with_keywords, x), text_of(lambda: with_keywords(x, a=1,
                                                                                           b=2))


@case(one)
def printed(x):
    def inner(y):
        return y + [][0]

    try:
        z = inner(x) if x is not None else x
    except IndexError:
        z = io.StringIO()
        traceback.print_exc(file=z)
        return x, z.getvalue()
    return z


@case(one)
def through_a_context_manager(x):
    @contextlib.contextmanager
    def manager():
        try:
            yield 1
        except ValueError as error:
            raise KeyError("k") from error

    try:
        with manager():
            fails(x, 1)
    except KeyError:
        return traceback.format_exc(), x


@case(one)
def chained(x):
    try:
        try:
            fails(x, 0)
        except ValueError:
            {}["z"]
    except KeyError:
        return traceback.format_exc(), x


class Special:
    @property
    def refused(self):
        raise AttributeError("refused")

    def __getattr__(self, name):
        raise AttributeError("no " + name)

    def __add__(self, other):
        return fails(other, 0)

    def __len__(self):
        return {}["length"]

    def __bool__(self):
        return self.missing


@case(one)
def special_methods(x):
    p = Special()
    return (x, text_of(lambda: p.refused), text_of(lambda: p + 1), text_of(lambda: len(p)),
            text_of(lambda: 1 if p else 2), text_of(lambda: sorted([1], key=lambda q: fails(q, 0))),
            text_of(lambda: [fails(x, 0) for _ in range(2)]), text_of(lambda: list(map(lambda q: q.foo, [1]))))


@case(one)
def refused_by_torch(x):
    return text_of(lambda: x.reshape(
        7, 7)), text_of(lambda: x @ torch.ones(7)), text_of(lambda: net(x)), x


@case(one)
def behind_a_break(x):
    def inner(y):
        jitpy.graph_break()
        return (y +
                fails(y, 0))

    try:
        inner(x + 1)
    except ValueError as error:
        places = [(f.lineno, f.end_lineno, f.colno, f.end_colno, f.name)
                  for f in traceback.extract_tb(error.__traceback__)]
        return x, traceback.format_exc(), places


test_traceback_texts = make_test(__name__)
