"""Keys of dicts and members of sets that are equal without being the same."""

from __future__ import annotations

from typing import Any

import torch

from tests.semantics.harness import case, make_test


def in_both(name: str, change: Any) -> None:
    """A case that changes a dict made in the function, and one from outside."""

    def factory() -> Any:
        outside = {1: 1, 2: 2}

        def fn(x: torch.Tensor) -> Any:
            inside = {1: 1, 2: 2}
            return x + 1, change(inside), list(inside.items()), change(outside), list(outside.items())

        return fn, outside

    factory.__name__ = name
    case(lambda: (torch.ones(3),), factory=True, fullgraph=True)(factory)


def deleted_and_stored_again(d: dict[Any, Any]) -> None:
    del d[1]
    d[True] = 5


def popped_and_stored_again(d: dict[Any, Any]) -> Any:
    found = d.pop(1), d.popitem()
    d[1.0], d[2.0] = found
    return d.setdefault(True, 8)


def stored_over(d: dict[Any, Any]) -> None:
    d[True] = 5
    d[2.0] = 7


def stored_over_then_deleted(d: dict[Any, Any]) -> list[Any]:
    d[True] = 5
    keys = list(d)
    d.pop(1.0)
    d[1] = 7
    return keys


for one in (deleted_and_stored_again, popped_and_stored_again, stored_over, stored_over_then_deleted):
    in_both(one.__name__, one)


@case(lambda: (torch.ones(3),), fullgraph=True)
def sets_and_unions(x):
    members = {1, 2}
    members.discard(1)
    members.add(1.0)
    return x + 1, list(members), list({1: 2} | {True: 3}), {True} | {1}


test_equal_keys = make_test(__name__)
