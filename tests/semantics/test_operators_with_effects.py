"""Operators that return nothing, sizes that only an operator's kernel knows, and operators that are defined anew.
PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitpy
from tests.semantics.harness import case, make_test

CALLS: list[Any] = []

_LIB = torch.library.Library("jitpyeffects", "DEF")
_LIB.define("note(Tensor x, str name='') -> ()")
_LIB.impl("note", lambda x, name="": CALLS.append((name, round(float(x.sum()), 3))), "CPU")
_LIB.define("refuse(Tensor x) -> ()")


def _refuse(x: torch.Tensor) -> None:
    CALLS.append("refused")
    if float(x.sum()) > -1000:
        raise ValueError("refused")


_LIB.impl("refuse", _refuse, "CPU")


@torch.library.custom_op("jitpyeffects::log", mutates_args=())
def log(x: torch.Tensor) -> None:
    CALLS.append(round(float(x.sum()), 3))


@torch.library.custom_op("jitpyeffects::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("jitpyeffects::places", mutates_args=())
def places(x: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = (x > 0).nonzero()[:most]
    return found, x[tuple(found.unbind(1))]


@places.register_fake
def _(x, most):
    count = torch.library.get_ctx().new_dynamic_size(min=0, max=most)
    return x.new_empty((count, x.dim()), dtype=torch.int64), x.new_empty(count)


NOTE = torch.ops.jitpyeffects.note
SEEN = {"CALLS": list}


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


@case(one, lambda: (vec(6),), fullgraph=True, globals=SEEN)
def effects_in_order(x):
    NOTE(x, "first")
    y = x.sin() + 1
    log(y)
    z = y * 2
    NOTE(z, "last")
    return z


@case(one, fullgraph=True, globals=SEEN)
def effect_alone(x):
    NOTE(x + 1)


@case(lambda: (vec(3, 4), vec(3, 4)), fullgraph=True, globals=SEEN)
def effects_around_writes(x, y):
    NOTE(x)
    x.add_(y)
    NOTE(x)
    x.mul_(2)
    log(x)
    return x.sum()


@case(lambda: (vec(), []), fullgraph=True, globals=SEEN)
def effects_beside_changes(x, seen):
    seen.append(1)
    NOTE(x)
    seen.append(x * 2)


@case(lambda: (vec().requires_grad_(),), globals=SEEN)
def effect_beside_gradients(x):
    y = (x * 2).sin()
    log(y.detach())
    return y.sum()


@case(one, globals=SEEN)
def effect_that_fails_is_handled(x):
    try:
        NOTE(x, "tried")
        torch.ops.jitpyeffects.refuse(x)
    except ValueError as error:
        return str(error)


@case(one, globals=SEEN)
def effect_beside_an_assertion(x):
    NOTE(x)
    assert x.sum() > -1000
    return x + 1


@case(one, globals=SEEN)
def effect_behind_sizes_by_data(x):
    y = x[x > 0]
    NOTE(y)
    return y + 1


@case(one, globals=SEEN)
def effect_in_front_of_sizes_by_data(x):
    NOTE(x)
    return x[x > 0] + 1


@case(lambda: (torch.tensor([1.0, -2, 3]),), lambda: (torch.tensor([1.0, 2, 3, 4, -1]),), lambda: (-torch.ones(4),),
      fullgraph=True)
def size_by_data(x):
    y = positive(x * 2)
    return y + 1, y.shape[0], y.sum()


@case(lambda: (torch.tensor([[1.0, -2], [3, 1]]),), lambda: (torch.ones(3, 5),), fullgraph=True)
def size_with_bounds(x):
    where, values = places(x, 4)
    return where[:, 0] + values, values * 2


@case(lambda: (torch.tensor([1.0, -2, 3]),), lambda: (-torch.ones(4),), fullgraph=True)
def sizes_of_two_calls(x):
    return positive(x), positive(-x), torch.cat([positive(x), positive(-x)])


test_all = make_test(__name__)


@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_an_effect_is_not_repeated(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        NOTE(x)
        torch.ops.jitpyeffects.refuse(x + 1)
        return x * 2

    jitted = jitpy.jit(fn, backend=backend, fullgraph=True)
    for _ in range(3):
        found = []
        for run in (fn, jitted):
            CALLS.clear()
            with pytest.raises(ValueError, match="refused"):
                run(torch.ones(3))
            found.append(list(CALLS))
        assert found[0] == found[1] == [("", 3.0), "refused"]


@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_operators_are_defined_anew(backend: str) -> None:
    def define(body: Any, fake: Any) -> Any:
        made = torch.library.custom_op("jitpyeffects::anew", body, mutates_args=())
        made.register_fake(fake)
        return made

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    def joined(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x])

    def by_name(x: torch.Tensor) -> Any:
        return torch.ops.jitpyeffects.anew(x + 1) + 1

    def by_object(x: torch.Tensor) -> Any:
        return ANEW[0](x + 1) + 1

    for fn in (by_name, by_object):
        jitted = jitpy.jit(fn, backend=backend)
        for body, fake in ((twice, torch.empty_like), (thrice, torch.empty_like),
                           (joined, lambda x: x.new_empty(2 * x.shape[0])), (twice, torch.empty_like)):
            ANEW[:] = [define(body, fake)]
            for _ in range(2):
                x = torch.ones(3)
                assert torch.equal(jitted(x), fn(x)), body


ANEW: list[Any] = []


@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_rules_for_shapes_are_registered_anew(backend: str) -> None:
    library = torch.library.Library(f"jitpyeffects_{backend}", "DEF")
    library.define("sized(Tensor x) -> Tensor")
    library.impl("sized", lambda x: x * 2, "CPU")
    library._register_fake("sized", lambda x: torch.empty_like(x))
    op = getattr(torch.ops, f"jitpyeffects_{backend}").sized

    def fn(x: torch.Tensor) -> Any:
        return op(x) + torch.ones(x.shape[0])

    jitted = jitpy.jit(fn, backend=backend)
    assert jitted(torch.ones(3)).tolist() == [3.0] * 3
    for _ in range(2):
        library.impl("sized", lambda x: torch.cat([x, x])[:1], "CPU", allow_override=True)
        library._register_fake("sized", lambda x: x.new_empty(1), allow_override=True)
        assert jitted(torch.ones(3)).tolist() == [2.0] * 3
