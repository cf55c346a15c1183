"""What looks at the frames of its callers, and what C checks of the values that a program's own methods return."""

from __future__ import annotations

import inspect
import io
import itertools
import logging
import sys
import traceback
import warnings

import torch

import jitpy
from tests.semantics.harness import case, make_test

one = lambda: (torch.ones(2),)  # noqa: E731
two = lambda: (torch.ones(3),)  # noqa: E731


def _who(depth=1):
    frame = sys._getframe(depth)
    return frame.f_code.co_name, frame.f_lineno


@case(one, two)
def names_and_lines_of_callers(x):
    first = _who()

    def inner():
        z = x * 2
        return _who(), _who(2), z

    return first, inner(), _who(), x + 1


@case(one, two)
def variables_of_callers(x):
    y = x.shape[0]

    def peek():
        return sorted(sys._getframe(1).f_locals), sys._getframe(1).f_locals["y"]

    first = peek()
    jitpy.graph_break()
    z = y + 1
    return first, peek(), x + z


@case(one, two)
def callers_by_inspect_and_traceback(x):
    def inner():
        names = [frame.name for frame in traceback.extract_stack()][-2:]
        return inspect.currentframe().f_back.f_code.co_name, names

    return inner(), x + 1


@case(one, two)
def lines_of_warnings(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = x + 1
        warnings.warn("one")

        def inner():
            warnings.warn("two", stacklevel=2)
            warnings.warn("three", DeprecationWarning)
            return y * 2

        z = inner()
    return z, [(str(w.message), w.lineno, w.category.__name__) for w in caught]


_log = logging.getLogger("tests.semantics.frames")
_log.propagate = False


@case(one, two)
def lines_of_log_records(x):
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(funcName)s %(lineno)d %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)

    def inner(y):
        _log.warning("inside")
        return y * 2

    y = x + 1
    _log.info("number %d", 3)
    z = inner(y)
    _log.removeHandler(handler)
    return out.getvalue(), z


@case(one, two)
def print_refuses_arguments_where_it_is_called(x):
    found = []
    for keywords in ({"foo": 1}, {"end": 3}, {"sep": b""}):
        try:
            print("a", **keywords)
        except TypeError as error:
            found.append(str(error))
    print("b", end=None, sep=None)
    return found, x + 1


@case(one, two)
def lengths_below_zero(x):
    class Sized:
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

    found = []
    for n in (-1, "a", True, 0, x.shape[0]):
        for ask in (len, bool, lambda s: 1 if s else 2):
            try:
                found.append(ask(Sized(n)))
            except (TypeError, ValueError) as error:
                found.append((type(error).__name__, str(error)))
    return found, x + 1


@case(one, two)
def names_written_through_locals_of_a_class(x):
    class Made:
        y = x + 1
        locals()["dynamic"] = 4
        vars()["other"] = y

    return Made.dynamic, Made.other, Made.y


@case(one, two, factory=True)
def keyword_defaults_changed_in_place():
    def helper(*, d=1):
        return d

    def fn(x):
        def inner(*, d=4):
            return d

        inner.__kwdefaults__["d"] = 9
        held = inner.__kwdefaults__
        held["d"] += 1
        before = helper()
        helper.__kwdefaults__["d"] += 1
        after = helper()
        helper.__kwdefaults__.pop("d")
        try:
            helper()
        except TypeError as error:
            refused = str(error)
        kept = helper.__kwdefaults__
        kept["d"] = after
        return inner(), held is inner.__kwdefaults__, before, after, refused, helper(), x + 1

    return fn, helper


class _Counts:
    """An iterator in Python, which ends with a value."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        self.n -= 1
        if self.n < 0:
            raise StopIteration(7)
        return self.n

    def send(self, value):
        return value or next(self)


@case(one, two)
def yield_from_an_iterator_in_python(x):
    def inner():
        got = yield from _Counts(2)
        yield got

    w = x * 2
    found = []
    for make in (inner, lambda: itertools.chain.from_iterable([[1], _Counts(1)]), lambda: itertools.chain(_Counts(2))):
        try:
            found.append(list(make()))
        except RuntimeError:
            w.zero_()
    made = inner()
    found += [next(made), made.send(5), next(made), next(made), next(made, "end")]
    return found, w


test_all = make_test(__name__)
