"""What is known of masks, against the masks themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitpy.ir.graph import Node
from jitpy.ir.passes.masks import Band, Uniform, hides_nothing, is_causal, known_mask
from tests.graph_tools import trace

Tensor = torch.Tensor
N = 6

arange = torch.arange


def rows(n: int = N) -> Tensor:
    return arange(n)[None, None, :, None]


def columns(n: int = N) -> Tensor:
    return arange(n)[None, None, None, :]


def packed() -> Tensor:
    """The numbers of sequences that positions belong to, where there is one."""
    at = arange(N).expand(2, -1)
    return (torch.cat([at[:, :1] - 1, at], -1).diff(dim=-1) != 1).cumsum(-1)


TRUE: dict[str, Callable[[], Tensor]] = {
    "ones": lambda: torch.ones(N, N, dtype=torch.bool),
    "not negative": lambda: (rows() >= 0).expand(2, -1, N, N),
    "below the size": lambda: columns() < N,
    "and": lambda: (rows().new_ones((), dtype=torch.bool) & (rows() >= 0)) & torch.ones(N, dtype=torch.bool),
    "or": lambda: (columns() <= rows()) | torch.full((), True),
    "not": lambda: ~torch.zeros(N, N, dtype=torch.bool),
    "shifted": lambda: arange(3, 3 + N) + 2 >= 5,
    "same axis": lambda: columns() <= columns(),
    "converted": lambda: torch.ones(N, dtype=torch.int64).to(torch.bool),
}
CAUSAL: dict[str, Callable[[], Tensor]] = {
    "le": lambda: columns() <= rows(),
    "ge": lambda: (rows() >= columns()).expand(3, -1, N, N),
    "lt": lambda: columns() < rows() + 1,
    "gt": lambda: ~(columns() > rows()),
    "tril": lambda: torch.tril(torch.ones(N, N, dtype=torch.bool)),
    "triu": lambda: torch.triu(torch.full((N, N), True), 1).logical_not(),
    "and": lambda: (rows() >= 0) & (columns() <= rows()),
    "views": lambda: (arange(N).view(1, N) <= arange(N).reshape(N, 1)).unsqueeze(0).unsqueeze(0),
    "sliced": lambda: (arange(2 * N) <= arange(2 * N)[:, None])[N:, N:],
    "start": lambda: arange(4, 4 + N) <= arange(4, 4 + N)[:, None],
    "int32": lambda: arange(N, dtype=torch.int32).to(torch.int64) <= arange(N)[:, None],
    "packed": lambda: (packed()[:, None, :, None] == packed()[:, None, None, :]) & (columns() <= rows()),
    "twice shifted": lambda: arange(N) - 1 <= (arange(N) + 2)[:, None] - 3,
}
OTHER: dict[str, Callable[[], Tensor]] = {
    "window": lambda: (columns() <= rows()) & (columns() > rows() - 3),
    "strict": lambda: columns() < rows(),
    "one ahead": lambda: columns() <= rows() + 1,
    "wrong way": lambda: columns() >= rows(),
    "transposed": lambda: arange(N)[:, None] <= arange(N),
    "some": lambda: columns() >= 2,
    "few": lambda: columns() < N - 1,
    "cut": lambda: (arange(2 * N) <= arange(2 * N)[:, None])[N:, :N],
    "bytes": lambda: arange(N, dtype=torch.uint8) + 252 >= 252,
    "step": lambda: arange(0, 2 * N, 2) <= arange(N)[:, None],
    "wide": lambda: torch.tril(torch.ones(N, N, dtype=torch.bool), 1),
    "batches": lambda: arange(N)[:, None, None] >= arange(N),
    "not a mask": lambda: columns() - rows(),
}


def node_of(make: Callable[[], Tensor]) -> Node:
    (node,) = trace(lambda: make(), []).outputs
    return node


def square(mask: Tensor) -> Any:
    return mask.expand(*mask.shape[:-2], N, N) if mask.ndim > 1 else mask.expand(N, N)


@pytest.mark.parametrize("make", TRUE.values(), ids=TRUE)
def test_nothing_is_hidden(make: Callable[[], Tensor]) -> None:
    assert bool(make().all()) and hides_nothing(node_of(make))


@pytest.mark.parametrize("make", CAUSAL.values(), ids=CAUSAL)
def test_causal(make: Callable[[], Tensor]) -> None:
    every = torch.ones(N, N, dtype=torch.bool)
    assert torch.equal(make().reshape(-1, N, N)[0], every.tril())
    node = node_of(make)
    assert is_causal(node, N, N) and not hides_nothing(node) and not is_causal(node, N, N + 1)
    assert known_mask(node_of(lambda: ~make())) == Band(0, below=False)


@pytest.mark.parametrize("make", OTHER.values(), ids=OTHER)
def test_neither(make: Callable[[], Tensor]) -> None:
    node = node_of(make)
    assert not hides_nothing(node) and not is_causal(node, N, N)


def test_forms_say_what_the_values_are() -> None:
    """Whatever is said of a mask holds for each of its elements."""
    position = arange(N)
    for make in (*TRUE.values(), *CAUSAL.values(), *OTHER.values()):
        form, value = known_mask(node_of(make)), make()
        if isinstance(form, Uniform):
            assert bool((value == form.value).all())
        elif isinstance(form, Band):
            band = (position - position[:, None] <= form.last) == form.below
            assert bool((value == band).all())


def test_constants() -> None:
    every = torch.ones(N, N, dtype=torch.bool)
    for value, form in ((every, Uniform(True)), (every.tril(), Band(0)), (every.triu(1), Band(0, below=False)),
                        (every.tril(1), None), (every.tril().expand(2, N, N), Band(0))):
        assert known_mask(node_of(lambda value=value: value)) == form
