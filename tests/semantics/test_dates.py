"""Days and durations, which do not change: what is computed of known ones is known."""

from __future__ import annotations

import datetime
import math

import torch

from tests.semantics.harness import case, make_test

DAY = datetime.date(2024, 1, 5)


def one():
    return (torch.randn(3),)


def with_day(*days):
    return [lambda day=day: (torch.ones(3), day) for day in days]


@case(one, fullgraph=True)
def made_of_constants(x):
    day = datetime.date(2020, 2, 28) + datetime.timedelta(days=2)
    return x * day.day, day, day.isoformat(), day.weekday(), day.replace(year=2021)


@case(one, fullgraph=True)
def day_of_the_module(x):
    return x * DAY.month, (DAY - datetime.date(2023, 12, 31)).days, DAY < datetime.date(2025, 1, 1), {DAY: 1}


@case(one, fullgraph=True)
def durations(x):
    half = datetime.timedelta(days=1) / 2
    return x * half.total_seconds(), half * 3, half + half, half < datetime.timedelta(1)


@case(*with_day(datetime.date(2020, 1, 2), datetime.date(2020, 1, 3), datetime.date(2021, 1, 3),
                datetime.date(2020, 1, 2)), rounds=3)
def day_that_changes(x, day):
    return x * day.day, day > DAY, str(day), (day - DAY).days


@case(one)
def refused(x):
    said = []
    for make in (lambda: datetime.date(2020, 13, 1), lambda: DAY + 1, lambda: DAY.nothing, lambda: DAY < 3):
        try:
            make()
        except (ValueError, TypeError, AttributeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return x + 1, said


@case(one)
def the_clock(x):
    before = datetime.date.today()
    return x + 1, datetime.date.today() >= before, datetime.date.today() - before < datetime.timedelta(2)


@case(one)
def subclasses(x):
    class Day(datetime.date):
        @property
        def half(self):
            return 1 if self.month < 7 else 2

    day = Day(2020, 8, 1)
    return x * day.half, datetime.datetime(2020, 1, 1) - datetime.datetime(2019, 1, 1)


@case(*[lambda n=n: (torch.ones(3), n) for n in (3, 5, 8, 13)], rounds=3)
def counted_bits(x, n):
    return x * n.bit_count(), (-n).bit_count()


@case(*[lambda n=n: (torch.ones(n), 2.5 * n) for n in (3, 5, 8, 13)], rounds=3)
def distances(x, v):
    return x * math.dist((1.0, 2.0), (v, 4.0)), math.dist([x.shape[0]], (1,)), math.hypot(v, v - 1, 2)


test_all = make_test(__name__)
