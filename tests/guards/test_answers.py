"""Guards that ask a question anew: another answer takes another variant, an answer that comes back its old one."""

from __future__ import annotations

import abc
import functools
import logging
import os
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants

LOGGER = logging.getLogger("jitpy.tests.answers")
CHILD = LOGGER.getChild("child")


class Sized(abc.ABC):  # noqa: B024
    pass


class Thing:
    def size(self) -> int:
        return 3


@typing.runtime_checkable
class HasSize(typing.Protocol):
    def size(self) -> int: ...


@functools.singledispatch
def chosen(value: Any) -> int:
    return 1


def level(x: torch.Tensor) -> Any:
    return x + CHILD.getEffectiveLevel(), CHILD.isEnabledFor(logging.INFO)


def folder(x: torch.Tensor) -> Any:
    return x + 1, os.getcwd()


def text(x: torch.Tensor, names: set[int]) -> Any:
    return x + len(names), str(names)


def fits(x: torch.Tensor, value: Any) -> Any:
    return x + 1, isinstance(value, HasSize), isinstance(value, Sized)


def of_class(x: torch.Tensor, value: Any) -> Any:
    return x + chosen(value)


def _levels() -> Iterator[tuple[Any, ...]]:
    for of_parent, of_child in ((10, 0), (30, 0), (30, 10), (10, 0), (30, 0)):
        LOGGER.setLevel(of_parent)
        CHILD.setLevel(of_child)
        yield ()
    logging.disable(logging.CRITICAL)
    yield ()
    logging.disable(logging.NOTSET)
    yield ()
    LOGGER.setLevel(0)


def _folders(tmp_path: Path) -> Iterator[tuple[Any, ...]]:
    before = os.getcwd()
    try:
        for name in ("a", "b", "a"):
            (tmp_path / name).mkdir(exist_ok=True)
            os.chdir(tmp_path / name)
            yield ()
        (tmp_path / "a").rmdir()
        yield ()
        yield ()
    finally:
        os.chdir(before)


def _sets() -> Iterator[tuple[Any, ...]]:
    a, b = {8, 0}, {0, 8}  # equal, in two orders
    yield from ((a,), (b,), ({0, 16, 8},), (a,), (b,))
    a.add(3)
    yield (a,)


def _classes() -> Iterator[tuple[Any, ...]]:
    class Other:
        pass

    thing, other = Thing(), Other()
    yield from ((thing,), (other,))
    Sized.register(Other)
    yield from ((thing,), (other,))
    Other.size = lambda self: 4  # type: ignore[attr-defined]
    yield from ((thing,), (other,))
    del Other.size  # type: ignore[attr-defined]
    other.size = lambda: 5  # type: ignore[attr-defined]
    yield from ((thing,), (other,))


def _dispatched() -> Iterator[tuple[Any, ...]]:
    class Base(abc.ABC):  # noqa: B024
        pass

    class Some:
        pass

    some = Some()
    yield (some,)
    chosen.register(Base, lambda value: 2)
    yield (some,)
    Base.register(Some)
    yield (some,)
    chosen.register(Some, lambda value: 3)
    yield (some,)


def _outcome(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        result = fn(torch.ones(2), *arguments)
    except OSError as error:
        return type(error)
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in (
        result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize(("fn", "states", "most"), [
    (level, lambda _: _levels(), 4), (folder, _folders, 3), (text, lambda _: _sets(), 4),
    (fits, lambda _: _classes(), 8), (of_class, lambda _: _dispatched(), 4)])
def test_answers_of_each_call(fn: Callable[..., Any], states: Callable[[Path], Iterator[tuple[Any, ...]]], most: int,
                              tmp_path: Path) -> None:
    jitpy.reset()
    jitted = jitpy.jit(fn, backend="eager")
    for number, arguments in enumerate(states(tmp_path)):
        for _ in range(2):
            assert _outcome(jitted, arguments) == _outcome(fn, arguments), number
    assert variants() <= most
