"""Items of lists and tuples at a place that a changing number says: one variant for all places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from jitpy.engine import all_engines
from tests.programs.made_anew import radam_with_a_table_by_step


class Holder:
    """State between calls."""

    def __init__(self, **state: Any) -> None:
        self.__dict__.update(state)


def variants() -> int:
    return sum(len(engine.variants) for engine in all_engines())


def check(program: Callable[[Any, torch.Tensor], Any], make: Callable[[], Any], calls: int, most: int,
          **options: Any) -> None:
    """Each call as eager, the state as well; at most so many variants."""
    jitpy.reset()
    jitted = jitpy.jit(program, **options)
    ours, eagers = make(), make()
    for number in range(calls):
        x = torch.full((3,), 1.0 + number)
        assert torch.equal(jitted(ours, x), program(eagers, x)), number
        assert ours.__dict__ == eagers.__dict__, number
    assert variants() <= most


def rate_of_step(h: Any, x: torch.Tensor) -> torch.Tensor:
    h.step += 1
    return x * h.rates[h.step % 7]


@pytest.mark.parametrize("kind", [list, tuple])
def test_table_of_numbers(kind: Any) -> None:
    check(rate_of_step, lambda: Holder(step=0, rates=kind(0.5 * i for i in range(7))), 30, 4)
    check(rate_of_step, lambda: Holder(step=0, rates=kind(range(3, 10))), 30, 5)


def from_the_end(h: Any, x: torch.Tensor) -> torch.Tensor:
    h.step += 1
    return x + h.rates[-(h.step % 5) - 1]


def test_places_from_the_end() -> None:
    check(from_the_end, lambda: Holder(step=0, rates=[0.5, 1.5, 2.5, 3.5, 4.5]), 20, 4)


def counts_in_lines(h: Any, x: torch.Tensor) -> torch.Tensor:
    """Two lines, which are one line for some steps; both are changed."""
    h.i, h.j = (h.i + 1) % 4, (h.j + 2) % 4
    first = h.lines[h.i]
    first[0] += 1.0
    second = h.lines[h.j]
    second[0] += first[0]
    return x * first[0] + second[0]


def test_lines_that_are_one_or_two() -> None:
    check(counts_in_lines, lambda: Holder(i=0, j=1, lines=[[0.0] for _ in range(4)]), 40, 8)


def replaces_the_line(h: Any, x: torch.Tensor) -> torch.Tensor:
    """The place is read before and after it gets another line, and the number changes in between."""
    h.step = (h.step + 1) % 3
    before = h.lines[h.step]
    h.lines[h.step] = [before[0] + 1.0]
    h.step = (h.step + 1) % 3
    before.append(h.lines[h.step][0])
    return x * h.lines[h.step - 1][0] + before[-1]


def test_a_line_that_is_replaced() -> None:
    check(replaces_the_line, lambda: Holder(step=0, lines=[[1.0], [2.0], [3.0]]), 12, 40)


class Names(list[Any]):
    """A list of the program's own kind."""

    def __getitem__(self, i: Any) -> Any:
        return list.__getitem__(self, i) * 2


TABLE = [[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]]


def place_is_needed_later(h: Any, x: torch.Tensor) -> Any:
    """The number becomes a constant of the graph behind the look-up."""
    h.step += 1
    y = x * h.rates[h.step % 5]
    for _ in range(h.step % 2):
        y = y + 1.0
    return y * 3.0 if h.step == 7 else y


def looked_up_in_a_loop(h: Any, x: torch.Tensor) -> Any:
    h.step += 1
    for k in range(3):
        x = x * h.rates[(h.step + k) % 5]
    return x


def table_of_two_axes(h: Any, x: torch.Tensor) -> Any:
    h.step += 1
    return x * TABLE[h.step % 3][h.step % 2] + h.table[h.step % 2][h.step % 3]


def place_from_the_table(h: Any, x: torch.Tensor) -> Any:
    h.step = h.following[h.step]
    return x * h.rates[h.step] + h.step


def read_behind_a_change_of_another(h: Any, x: torch.Tensor) -> Any:
    """The two are one line in some calls."""
    h.step = (h.step + 1) % 3
    line = h.lines[h.step]
    h.lines[2].append(1.0)
    return x + len(line)


def list_grows_before(h: Any, x: torch.Tensor) -> Any:
    h.step += 1
    h.rates.append(float(h.step))
    return x * h.rates[h.step]


def behind_a_break(h: Any, x: torch.Tensor) -> Any:
    h.step += 1
    i, rates = h.step % 5, h.rates
    jitpy.graph_break()
    h.lines[i % 3][0] += rates[i]
    return x * rates[i] + h.lines[i % 3][0]


def kinds_of_items(h: Any, x: torch.Tensor) -> Any:
    h.step += 1
    found = h.mixed[h.step % 4]
    if found is None:
        return x
    return x * found if isinstance(found, float) else x + found["by"] if isinstance(found, dict) else x - len(found)


def words(h: Any, x: torch.Tensor) -> Any:
    h.step += 1
    h.said = h.words[h.step % 3]
    return x + 1.0 if h.said.startswith("a") else x


def own_kind_of_list(h: Any, x: torch.Tensor) -> Any:
    h.step += 1
    return x * h.own[h.step % 3]


def two_names_of_a_list(h: Any, x: torch.Tensor) -> Any:
    h.step = (h.step + 1) % 3
    h.lines[h.step].append(2.0)
    return x * h.same[h.step][-1] + len(h.same[(h.step + 1) % 3])


def dict_of_place(h: Any, x: torch.Tensor) -> Any:
    h.step = (h.step + 1) % 2
    h.dicts[h.step]["n"] = h.dicts[h.step].get("n", 0.0) + 0.5
    return x * h.dicts[h.step]["n"]


PROGRAMS = {
    place_is_needed_later: 9, looked_up_in_a_loop: 4, table_of_two_axes: 4, place_from_the_table: 4,
    read_behind_a_change_of_another: 60, list_grows_before: 60, behind_a_break: 12, kinds_of_items: 12, words: 8,
    own_kind_of_list: 60, two_names_of_a_list: 60, dict_of_place: 6,
}


def holder() -> Holder:
    lines = [[1.0], [2.0], [3.0]]
    return Holder(step=0, rates=[0.5, 1.5, 2.5, 3.5, 4.5], table=((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), lines=lines,
                  following=[3, 0, 4, 2, 1], mixed=[None, 2.0, {"by": 3.0}, (1, 2)], words=["ab", "b", "ac"],
                  own=Names([1.0, 2.0, 3.0]), same=lines, dicts=[{}, {"n": 1.0}])


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_like_eager(program: Any, dynamic: bool | None) -> None:
    check(program, holder, 30, PROGRAMS[program], dynamic=dynamic)


def test_what_changes_between_calls() -> None:
    """Items replaced, a list that shrinks under the place, other kinds of items."""
    jitpy.reset()
    jitted = jitpy.jit(rate_of_step)
    h, x = Holder(step=0, rates=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), torch.ones(2)
    for _ in range(20):
        jitted(h, x)
    count = variants()
    assert count <= 4
    h.step, h.rates[3] = 2, 50.0
    assert jitted(h, x).tolist() == [50.0, 50.0]
    assert variants() == count
    h.step, h.rates[3] = 2, 7
    assert jitted(h, x).tolist() == [7.0, 7.0]
    h.step, h.rates[3] = 2, torch.tensor([1.0, 2.0])
    assert jitted(h, x).tolist() == [1.0, 2.0]
    h.step = 4
    del h.rates[4:]
    with pytest.raises(IndexError, match="list index out of range"):
        jitted(h, x)
    h.step = 0
    assert jitted(h, x).tolist() == [2.0, 2.0]


def test_python_and_native_guards_agree() -> None:
    jitpy.reset()
    jitted = jitpy.jit(rate_of_step)
    h, x = Holder(step=0, rates=[float(i) for i in range(7)]), torch.ones(2)
    for _ in range(12):
        jitted(h, x)
    (guards,) = [engine.variants[-1].guards for engine in all_engines() if engine.variants]
    assert "rates[" in guards.source_text
    in_python = guards.compile_python()
    for rates in ([1.5] * 7, [1] * 7, [2.5] * 3, [], (1.5,) * 7, [[1.5]] * 7):
        for step in (2, 3, 10, -4, 0.5, None):
            h.step, h.rates = step, rates
            native = guards.check((h, x), globals(), None)
            assert native == in_python((h, x), globals(), None)
            assert native == (guards.explain((h, x), globals(), None) == []), (rates, step)


def test_optimizer_with_a_table_by_step() -> None:
    """Each variant is a whole step: without state, with a number of steps that changes, and by the line's kinds."""
    jitpy.reset()
    radam_with_a_table_by_step(jitpy.jit)
    found = [variant for engine in all_engines() for variant in engine.variants]
    assert len(found) <= 5
    assert not any(variant.break_record or variant.is_resume for variant in found)
