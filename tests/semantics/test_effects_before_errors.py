"""Effects before an operation that raises: behind the exception the state is eager's.

Every kind of effect meets every kind of raising operation, with the exception caught in the function, or not. The
first call does not raise, so that the graph is compiled for the good case, then two that do, then a good one again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.semantics.harness import case, make_test

Effect = Callable[["State"], None]


class State:
    """What effects change."""

    def __init__(self) -> None:
        self.x = torch.arange(4.0)
        self.log: list[Any] = []
        self.count = 0
        self.buffer = torch.zeros(2)
        self.leaf = torch.ones(3, requires_grad=True)


# -- effects


def writes_input(state):
    state.x.mul_(2)


def writes_part(state):
    state.x[1:3].add_(1)
    state.x[0] = 7


def draws(state):
    state.buffer = torch.rand(2)


def draws_in_place(state):
    state.buffer.normal_()


def appends(state):
    state.log.append(state.x.sum())
    state.count += 1


def leaves_gradients(state):
    (state.leaf * state.x[:3]).sum().backward()


def writes_leaf(state):
    with torch.no_grad():
        state.leaf.sub_(0.5)


def all_effects(state):
    appends(state)
    writes_input(state)
    draws(state)
    draws_in_place(state)
    writes_leaf(state)


EFFECTS = (writes_input, writes_part, draws, draws_in_place, appends, leaves_gradients, writes_leaf, all_effects)


# -- operations: `bad` is a number, 0 for the good case


def shapes(state, bad, index, sizes):
    return state.x + torch.ones(4 + bad)


def shapes_of_input(state, bad, index, sizes):
    return state.x * sizes


def gathers(state, bad, index, sizes):
    return state.x.gather(0, index)


def embeds(state, bad, index, sizes):
    return torch.nn.functional.embedding(index, state.x.view(4, 1))


def indexes(state, bad, index, sizes):
    return state.x[index]


def selects(state, bad, index, sizes):
    return state.x[int(index[0].item())]


def own_error(state, bad, index, sizes):
    if int(index.max().item()) > 3:
        raise IndexError(f"{bad} is too much")
    return state.x + 1


def divides(state, bad, index, sizes):
    return state.x * (1 // (1 - min(bad, 1)))


def divides_tensors(state, bad, index, sizes):
    return torch.tensor([4, 6]) // (index[:2] - index[:2] + 1 - min(bad, 1))


def divides_by_item(state, bad, index, sizes):
    return state.x * (8 // (1 - min(int(index[0].item()), 1)))


def concatenates(state, bad, index, sizes):
    return torch.cat([state.x.view(2, 2), torch.ones(2, 2 + bad)])


def views(state, bad, index, sizes):
    return state.x.view(2, 2 + bad)


def writes_a_leaf(state, bad, index, sizes):
    target = state.leaf if bad else state.leaf * 1
    return target.add_(1)


def runs_backward(state, bad, index, sizes):
    loss = (state.leaf.detach() if bad else state.leaf).sum()
    loss.backward()
    return loss


def runs_backward_twice(state, bad, index, sizes):
    loss = (state.leaf * state.leaf).sum()
    for _ in range(2 if bad else 1):
        loss.backward()
    return loss


def looks_up(state, bad, index, sizes):
    return {0: state.x + 1}[bad]


OPERATIONS = (shapes, shapes_of_input, gathers, embeds, indexes, selects, own_error, divides, divides_tensors,
              divides_by_item, concatenates, views, writes_a_leaf, runs_backward, runs_backward_twice, looks_up)


def _arguments(bad: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (bad, torch.tensor([5, 1, 0] if bad else [0, 1, 2]), torch.ones(3 if bad else 4))


def _register(effect: Any, operation: Any, caught: bool) -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        state = State()
        if caught:
            def fn(bad, index, sizes):
                effect(state)
                try:
                    result = operation(state, bad, index, sizes)
                except (RuntimeError, IndexError, ZeroDivisionError, KeyError) as error:
                    state.log.append(f"{type(error).__name__}: {error}")
                    result = state.x * 3
                state.log.append(len(state.log))
                return result + 1
        else:
            def fn(bad, index, sizes):
                effect(state)
                result = operation(state, bad, index, sizes)
                state.log.append(len(state.log))
                return result + 1
        return fn, state

    make.__name__ = f"{effect.__name__}_{operation.__name__}{'_caught' if caught else ''}"
    case(_arguments(0), _arguments(1), _arguments(1), _arguments(0), factory=True, rounds=1)(make)


for _number, _operation in enumerate(OPERATIONS):
    for _place, _effect in enumerate(EFFECTS):
        for _caught in (True, False):
            _register(_effect, _operation, _caught)


test_cases = make_test(__name__)
