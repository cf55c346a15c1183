"""Several GPUs in one process: graphs run where their tensors are, whatever the current device is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from jitpy.runtime.gpu import graphs

MODES = ("default", "reduce-overhead")
FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)

two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs also where they do not pay."""
    monkeypatch.setattr(graphs, "_REPLAY_MICROSECONDS", 0.0)
    torch.manual_seed(0)


def attend(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Kernels, a product, and a reduction."""
    y = F.gelu(x @ weight) + x.sum(-1, keepdim=True)
    return torch.softmax(y * 2 - 1, -1)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.device == expected.device
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@two
@pytest.mark.parametrize("mode", MODES)
def test_the_current_device_is_another(mode: str) -> None:
    jitted = jitpy.jit(attend, mode=mode)
    weight = torch.randn(64, 64, device=SECOND)
    for current in (FIRST, FIRST, FIRST, SECOND, FIRST):
        with torch.cuda.device(current):
            x = torch.randn(32, 64, device=SECOND)
            same(jitted(x, weight), attend(x, weight))
            assert torch.cuda.current_device() == current.index


@two
@pytest.mark.parametrize("mode", MODES)
def test_devices_take_turns(mode: str) -> None:
    jitted = jitpy.jit(attend, mode=mode)
    weights = {device: torch.randn(64, 64, device=device) for device in (FIRST, SECOND)}
    held = []
    for number in range(12):
        device = SECOND if number % 3 else FIRST
        x = torch.randn(32, 64, device=device)
        held.append((jitted(x, weights[device]), attend(x, weights[device])))
        same(*held[-1])
    for found, expected in held:
        same(found, expected)


@two
@pytest.mark.parametrize("mode", MODES)
def test_streams_of_the_second_device(mode: str) -> None:
    jitted = jitpy.jit(attend, mode=mode)
    weight, x = torch.randn(256, 256, device=SECOND), torch.zeros(4096, 256, device=SECOND)
    jitted(x, weight)
    side = torch.cuda.Stream(SECOND)
    torch.cuda.synchronize(SECOND)
    for value in range(1, 5):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # what comes later on this stream must wait for it
            x.fill_(value / 10)
            y = jitted(x, weight)
        side.synchronize()
        same(y, attend(x, weight))
        torch.cuda.synchronize(SECOND)


@two
@pytest.mark.parametrize("mode", MODES)
def test_a_module_that_moves(mode: str) -> None:
    model = network().to(FIRST)
    jitted = jitpy.jit(model, mode=mode)
    with torch.no_grad():
        for device in (FIRST, SECOND, FIRST, torch.device("cpu"), SECOND):
            model.to(device)
            for _ in range(3):
                x = torch.randn(16, 64, device=device)
                same(jitted(x), model(x))


@two
@pytest.mark.parametrize("mode", MODES)
def test_training_on_the_second_device(mode: str) -> None:
    models = [network().to(SECOND) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]

    def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    steps: list[Callable[..., torch.Tensor]] = [loss_of, jitpy.jit(loss_of, mode=mode)]
    for _ in range(6):
        x, y = torch.randn(32, 64, device=SECOND), torch.randint(0, 10, (32,), device=SECOND)
        for model, optimizer, step in zip(models, optimizers, steps, strict=True):
            optimizer.zero_grad()
            step(model, x, y).backward()
            optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        same(one, other)


@two
@pytest.mark.parametrize("mode", MODES)
def test_two_devices_in_one_call_are_an_error(mode: str) -> None:
    jitted = jitpy.jit(attend, mode=mode)
    weight = torch.randn(64, 64, device=FIRST)
    for device in (FIRST, SECOND, FIRST, SECOND):
        x = torch.randn(8, 64, device=device)
        if device == FIRST:
            same(jitted(x, weight), attend(x, weight))
            continue
        with pytest.raises(RuntimeError) as expected:
            attend(x, weight)
        with pytest.raises(RuntimeError) as found:
            jitted(x, weight)
        assert type(found.value) is type(expected.value)
        assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


@two
@pytest.mark.parametrize("mode", MODES)
def test_copies_between_devices(mode: str) -> None:
    """Stages of a model on two GPUs, in one function."""

    def staged(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ a + 1).sin()
        return torch.softmax(y.to(SECOND) @ b, -1) * 2

    jitted = jitpy.jit(staged, mode=mode)
    a, b = torch.randn(64, 64, device=FIRST), torch.randn(64, 64, device=SECOND)
    for _ in range(5):
        x = torch.randn(16, 64, device=FIRST)
        same(jitted(x, a, b), staged(x, a, b))


@two
@pytest.mark.parametrize("mode", MODES)
def test_threads_with_a_device_each(mode: str) -> None:
    jitted = jitpy.jit(attend, mode=mode)
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    for device in devices:  # compiled before: one lock serves all of them
        jitted(torch.randn(32, 64, device=device), torch.randn(64, 64, device=device))
        torch.cuda.synchronize(device)
    wrong: list[Any] = []

    def work(device: torch.device) -> None:
        try:
            torch.cuda.set_device(device)
            generator = torch.Generator(device).manual_seed(1)  # torch refuses its own while another thread records
            weight = torch.randn(64, 64, device=device, generator=generator)
            for _ in range(40):
                x = torch.randn(32, 64, device=device, generator=generator)
                if not torch.allclose(jitted(x, weight), attend(x, weight), rtol=1e-3, atol=1e-4):
                    wrong.append(device)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in devices * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@two
def test_capture_into_a_graph_of_the_user_on_the_second_device() -> None:
    jitted = jitpy.jit(attend)
    x, weight = torch.randn(32, 64, device=SECOND), torch.randn(64, 64, device=SECOND)
    jitted(x, weight)
    with torch.cuda.device(SECOND):
        graph = torch.cuda.CUDAGraph()
        # torch keeps the stream that it makes for the first of these, for graphs on the other device, too
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            y = jitted(x, weight)
        for _ in range(3):
            x.normal_()
            graph.replay()
            same(y, attend(x, weight))


@two
def test_random_numbers_are_those_of_the_device() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    jitted = jitpy.jit(noisy)
    x = torch.ones(1000, device=SECOND)
    for seed in range(3):
        torch.cuda.manual_seed_all(seed)
        expected = noisy(x)
        torch.cuda.manual_seed_all(seed)
        same(jitted(x), expected)


@pytest.mark.parametrize("mode", MODES)
def test_numbers_on_the_cpu(cuda: torch.device, mode: str) -> None:
    """Tensors on the CPU in a program for a GPU: constants, counts of steps, and what is copied over."""
    count, table = torch.zeros(()), torch.arange(8.0)

    def step(x: torch.Tensor, count: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count += 1
        y = torch.empty_like(x)
        y[..., 0] = 3
        y[..., 1:] = x[..., 1:] * torch.tensor(0.5) + count
        return torch.softmax(y, -1), (table * count).to(x.device) + 1

    jitted, other = jitpy.jit(step, mode=mode), count.clone()
    for _ in range(6):
        x = torch.randn(16, 8, device=cuda)
        for found, expected in zip(jitted(x, count, table), step(x, other, table), strict=True):
            same(found, expected)
        assert torch.equal(count, other)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_with_numbers_on_the_cpu(cuda: torch.device, mode: str) -> None:
    factor, shift = torch.tensor(0.25), torch.arange(64.0)

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x @ weight * factor + shift.to(x.device), -1)
        return (y * torch.tensor(2.0)).square().sum()

    jitted = jitpy.jit(loss, mode=mode)
    weight = torch.randn(64, 64, device=cuda, requires_grad=True)
    for number in range(5):
        factor.fill_(number)
        x = torch.randn(16, 64, device=cuda)
        found, expected = (torch.autograd.grad(one(x, weight), weight)[0] for one in (jitted, loss))
        same(found, expected)


@pytest.mark.parametrize("mode", MODES)
def test_out_of_memory(cuda: torch.device, mode: str) -> None:
    """torch's own error; nothing stays, and the next call works."""

    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x[:, None] + y[None, :]).sin(), -1) @ y

    jitted = jitpy.jit(outer, mode=mode)
    small = torch.randn(64, device=cuda)
    for _ in range(3):
        same(jitted(small, small), outer(small, small))
    large = torch.randn(1 << 20, device=cuda)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            jitted(large, large)
        assert torch.cuda.memory_allocated() == before
    for _ in range(3):
        same(jitted(small, small), outer(small, small))
