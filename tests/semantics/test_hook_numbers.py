"""The number of a hook that the program registers is an int that tracing does not know."""

from __future__ import annotations

from typing import Any

import torch

from tests.semantics.harness import case, make_test

NUMBERS = {number: number for number in range(1000, 1010)}


def asks(name: str, question: Any) -> None:
    """A case that registers a hook, asks something about its number, and removes it."""

    def factory() -> Any:
        layer = torch.nn.Linear(3, 3)

        def fn(x: torch.Tensor) -> Any:
            handle = layer.register_forward_hook(lambda *given: None)
            try:
                return x + 1, question(handle.id, layer._forward_hooks)
            finally:
                handle.remove()

        return fn, [layer]

    factory.__name__ = name
    case(lambda: (torch.ones(3),), factory=True)(factory)


def matched(number: int) -> str:
    match number:
        case 1000 | 1001:
            return "early"
        case int():
            return "late"
    return "never"


asks("key_of_a_dict", lambda number, hooks: (NUMBERS.get(number), number in NUMBERS, NUMBERS[number]))
asks("member_of_sets", lambda number, hooks: (number in {1000, 1001}, len({1000, 1001, number}), {number} & {1000}))
asks("made_into_a_dict", lambda number, hooks: len({1000: 2, 1001: 3, 1002: 4, 1003: 5, number: 1}))
asks("part_of_a_key", lambda number, hooks: {(1, 1000): "a", (1, 1001): "b"}.get((1, number)))
asks("member_of_lists", lambda number, hooks: (number in [1000, 1001], (1000,).count(number), number in range(1001)))
asks("compared", lambda number, hooks: (number == 1000, number < 1001, (1, number) == (1, 1000)))
asks("truth", lambda number, hooks: 1 if number else 2)
asks("text", lambda number, hooks: (f"{number}", str(number), "%d" % number))
asks("matched_by_patterns", lambda number, hooks: matched(number))
asks("arithmetic", lambda number, hooks: (number + 1, -number, divmod(number, 7), max(number, 3)))
asks("hash_of_it", lambda number, hooks: (hash(number), int(number), type(number), isinstance(number, int)))
asks("sorted_among_others", lambda number, hooks: sorted([1002, number, 3]))
asks("looked_for_among_hooks", lambda number, hooks: (1000 in hooks, hooks.get(1001) is None, list(hooks)))
asks("keys_of_hooks_compared", lambda number, hooks: (hooks.keys() == {1000}, hooks == {1000: 1}, dict(hooks).keys()))

@case(lambda: (torch.ones(2, 3),), lambda: (torch.ones(2, 3),), factory=True)
def numbers_beside_watched_gradients() -> Any:
    layer = torch.nn.Linear(3, 3)

    def fn(w: torch.Tensor) -> Any:
        w[:, 0] = 0.5
        result = torch.tanh(layer(w)).sum()
        return result, layer.register_forward_hook(lambda *given: None)

    def numbered(w: torch.Tensor) -> Any:
        result, handle = fn(w)
        handle.remove()
        return result, handle.id

    return numbered, [layer]


test_hook_numbers = make_test(__name__)
