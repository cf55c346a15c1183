"""Whether what a model returned is what eager returns: types, fields, caches, and every tensor."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch


def assert_same(found: Any, wanted: Any, place: str = "result", *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """AssertionError where the two differ, naming the place. Walks containers and the attributes of objects."""
    assert type(found) is type(wanted), f"{place}: {type(found).__name__} instead of {type(wanted).__name__}"
    tolerances = {"rtol": rtol, "atol": atol}
    if isinstance(wanted, torch.Tensor):
        assert found.requires_grad == wanted.requires_grad, f"{place}: requires_grad is {found.requires_grad}"
        torch.testing.assert_close(found, wanted, **tolerances, msg=lambda text: f"{place}: {text}")
        return
    if isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), f"{place}: {len(found)} items instead of {len(wanted)}"
        for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert_same(a, b, f"{place}[{index}]", **tolerances)
        return
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), f"{place}: keys {list(found)} instead of {list(wanted)}"
        for key in wanted:
            assert_same(found[key], wanted[key], f"{place}[{key!r}]", **tolerances)
        if not dataclasses.is_dataclass(wanted):
            return
    attributes = getattr(wanted, "__dict__", None)
    if attributes is None or isinstance(wanted, type) or callable(wanted):
        assert found == wanted, f"{place}: {found!r} instead of {wanted!r}"
        return
    assert list(vars(found)) == list(attributes), (
        f"{place}: attributes {list(vars(found))} instead of {list(attributes)}"
    )
    for name, value in attributes.items():
        assert_same(getattr(found, name), value, f"{place}.{name}", **tolerances)
