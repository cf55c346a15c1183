"""No guard believes an address: an object that is freed and another one made at its place are told apart.

Each case lets a jitted function read an object, frees it, allocates objects of its kind until one lies at the same
address, with other content, and compares with plain Python. `JITPY_TEST_ALL=1` tries every combination; without it a
hash of its name chooses one in 32.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jitpy

from .reuse import FUNCTIONS, LEAVES, PLACES, WRAPS, Nest, Outcome, run

ALL = bool(os.environ.get("JITPY_TEST_ALL"))

def is_chosen(*name: object) -> bool:
    return ALL or zlib.crc32(repr(name).encode()) % 32 == 0


def nests_of_one(place: str) -> Iterator[tuple[Nest, int]]:
    """Each kind around each leaf, with the leaf freed too or held."""
    for leaf in LEAVES:
        for wrap in WRAPS:
            nest = Nest((wrap,), leaf)
            if nest.is_possible() and not (place == "class attribute by an instance" and wrap in FUNCTIONS):
                for held in (0, 1):
                    yield nest, held


#: guards of classes hold what was found there, so that few of its addresses are free again
_HELD_BY_GUARDS = {"class attribute", "class attribute by an instance"}


def check(place: str, outcomes: dict[object, Outcome]) -> None:
    stale = {name: outcome.detail for name, outcome in outcomes.items() if outcome.stale}
    assert not stale
    reused = sum(outcome.reused for outcome in outcomes.values())
    print(f"{len(outcomes)} tried, {reused} at the same address, {len(stale)} stale")
    # AddressSanitizer keeps freed memory aside: there, reads of it are what fails
    share = 0 if place in _HELD_BY_GUARDS or os.environ.get("JITPY_SANITIZE") else .4
    assert reused >= len(outcomes) * share, f"only {reused} of {len(outcomes)} landed at the former address"


@pytest.mark.parametrize("place", PLACES)
def test_one_object_in_each_place(place: str) -> None:
    check(place, {(*nest, held): run(place, nest, held) for nest, held in nests_of_one(place)
                  if is_chosen(place, *nest, held)})


@pytest.mark.parametrize("place", PLACES)
def test_leaves_that_lie_in_the_place_itself(place: str) -> None:
    names = [leaf for leaf in LEAVES
             if not (place == "class attribute by an instance" and leaf == "function")]
    outcomes = {leaf: run(place, Nest((), leaf), 0) for leaf in names}
    assert not {leaf: outcome.detail for leaf, outcome in outcomes.items() if outcome.stale}


@settings(max_examples=1500 if ALL else 25)
@given(st.data())
def test_nests(data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(sorted(PLACES)))
    wraps = tuple(data.draw(st.lists(st.sampled_from(sorted(WRAPS)), min_size=2, max_size=5)))
    leaf = data.draw(st.sampled_from(sorted(LEAVES)))
    held = data.draw(st.integers(0, len(wraps)))
    nest = Nest(wraps, leaf)
    if nest.is_possible() and not (place == "class attribute by an instance" and wraps[0] in FUNCTIONS):
        outcome = run(place, nest, held)
        assert not outcome.stale, outcome.detail


def test_the_guards_of_these_programs_are_snapshots() -> None:
    """Otherwise the tests above would try what is read anew at each call."""
    from .reuse import call, functions_of

    place = PLACES["attribute"]()
    jitted, _ = functions_of(place, "h.v[0]")
    place.put((2.5,))
    for _ in range(4):
        call(place, jitted, torch.ones(2))
    guard = jitted.entries[0].guard.native_guard
    if guard is None:
        pytest.skip("no native guards here")
    assert guard.noted()["words"] > 0


def test_a_tuple_replaced_by_one_with_other_attributes() -> None:
    class V:
        def __init__(self, v: float) -> None:
            self.v = v

    class S:
        pass

    s, a, b = S(), V(2.0), V(3.0)
    f = jitpy.jit(lambda s, x: x * s.st[0].v)
    x = torch.ones(2)
    for k in range(50):
        one, other = (a, b) if k % 2 else (b, a)
        s.st = (one,)  # type: ignore[attr-defined]
        for _ in range(3):
            assert f(s, x)[0] == one.v
        s.st = None  # type: ignore[attr-defined]
        s.st = (other,)  # type: ignore[attr-defined]
        assert f(s, x)[0] == other.v
