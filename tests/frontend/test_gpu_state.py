"""What programs ask of the GPU, as far as it goes without one: eager's answer or error, and a break with its reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitpy


def waits(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.cuda.synchronize()
    return y * 2


def streams(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.cuda.current_stream()
    return y * 2


def device(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.cuda.set_device(0)
    return y * 2


def memory(x: torch.Tensor) -> torch.Tensor:
    return x + torch.cuda.memory_allocated()


def moves(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).cuda() * 2


def creates(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3, device="cuda") + x


def asks(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.cuda.is_available() else x - 1


def outcome(function: Callable[..., torch.Tensor], x: torch.Tensor) -> object:
    try:
        return function(x).tolist()
    except (AssertionError, RuntimeError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("function", [waits, streams, device, memory, moves, creates, asks])
def test_as_eager(function: Callable[..., torch.Tensor]) -> None:
    jitted, x = jitpy.jit(function), torch.randn(3)
    for _ in range(3):
        assert outcome(jitted, x) == outcome(function, x)


@pytest.mark.parametrize("function", [waits, streams, device, memory])
def test_breaks_have_their_reason(function: Callable[..., torch.Tensor]) -> None:
    found: list[str] = []
    before = jitpy.logs.set_sink(found.append)
    jitpy.logs.enable("graph_breaks")
    try:
        outcome(jitpy.jit(function), torch.randn(3))
    finally:
        jitpy.logs.disable("graph_breaks")
        jitpy.logs.set_sink(before)
    assert "gpu_state" in found[0]
