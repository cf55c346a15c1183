"""Objects from outside become Values by their Python type, found along the MRO of their class."""

from __future__ import annotations

import collections
import enum
import weakref
from typing import Any

import pytest
import torch

import jitpy
from jitpy.engine import Engine
from jitpy.frontend.values import wrapping


class Pair(tuple, enum.Enum):
    A = 1, 2
    B = 3, 4


class Number(int, enum.Enum):
    ONE = 1


class Items(list):
    pass


class Reference(weakref.ref):
    pass


class Step(int):
    pass


class Thing:
    value = 3


THING = Thing()


def test_each_type_is_wrapped_in_one_place() -> None:
    assert Engine is not None  # its import loads the models
    rows = wrapping._WRAPS
    types = {object, torch.Tensor, dict, list, tuple, set, range, type(lambda: 0), BaseException, int, enum.Enum}
    assert types <= rows.keys()
    with pytest.raises(AssertionError):
        wrapping.wraps(range)(lambda context, obj, cls, source: None)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (Pair.B, lambda found: 2 if found is Pair.B else 1),
        (Pair.B, lambda found: found.value[1]),
        (Number.ONE, lambda found: found.value + (found is Number.ONE)),
        (Items([2, 5]), lambda found: found[1]),
        (collections.OrderedDict(a=3), lambda found: found["a"]),
        (range(2, 9, 3), lambda found: found.step),
        (slice(1, 4), lambda found: found.stop),
        (Step(4), lambda found: found + 1),
        (weakref.ref(THING), lambda found: found().value),
        (frozenset({2}), lambda found: 2 if 2 in found else 1),
        (THING, lambda found: found.value),
        (len, lambda found: found((1, 2))),
        ([1, 2].count, lambda found: found(2)),
    ],
)
def test_what_is_wrapped_reads_as_in_eager(given: Any, read: Any) -> None:
    def program(x: torch.Tensor, given: Any) -> torch.Tensor:
        return x * read(given)

    x = torch.arange(3.0)
    assert torch.equal(jitpy.jit(program, fullgraph=True)(x, given), program(x, given))


def test_a_reference_of_a_derived_class_is_opaque() -> None:
    def program(x: torch.Tensor, reference: Any) -> torch.Tensor:
        return x * (1 if reference is None else 2)

    x = torch.arange(3.0)
    assert torch.equal(jitpy.jit(program)(x, Reference(THING)), x * 2)
