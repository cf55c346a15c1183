"""Convolutions in channels-last: results, gradients and all strides that a program can see are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitpy
from jitpy.ir.graph import Graph
from jitpy.ir.passes import channels_last
from jitpy.ir.passes.channels_last import use_channels_last

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="convolutions without oneDNN")


@pytest.fixture(autouse=True)
def _weights_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small images change over, too."""
    monkeypatch.setattr(channels_last, "WEIGHTS", 0.0)


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


def resnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                         Residual(8, 16, 1), Residual(16, 24, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(24, 5))


def vgg() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                         nn.AvgPool2d(2), nn.Conv2d(8, 16, 3), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(144, 6))


def images() -> nn.Module:
    """The result is an image."""
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.SiLU(),
                         nn.Conv2d(8, 4, 1))


class Depthwise(nn.Module):
    """Depthwise and pointwise convolutions, with channels weighed by what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.deep = nn.Conv2d(16, 16, 3, 1, 1, groups=16)
        self.norm = nn.BatchNorm2d(16)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.point = nn.Conv2d(16, 8, 1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.norm(self.deep(self.stem(x))))
        weights = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.grouped(self.point(x * weights))


class Upwards(nn.Module):
    """Down and up again, with what lies on the way joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last, self.wide = nn.Conv2d(24, 12, 3, padding=1), nn.Conv2d(3, 8, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.first(x))
        b = F.relu(self.down(a))
        joined = torch.cat([a, self.up(b), F.interpolate(b, scale_factor=2)[:, :8]], 1)
        return F.pixel_shuffle(F.pad(self.last(joined), (1, 1, 1, 1)), 2) + self.wide(x).mean()


class Views(nn.Module):
    """Results that share memory, and readers that depend on strides."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(self.b(torch.relu(self.a(x))))
        flat = y.view(y.shape[0], 8, -1)
        heads = y.reshape(y.shape[0], 2, 4, -1).transpose(1, 2)
        return y, flat, heads @ heads.transpose(-1, -2), y[:, 1:3], y.permute(0, 2, 3, 1).contiguous()


class OtherAxes(nn.Module):
    """Convolutions over one and three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3))
        self.three = nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x.flatten(2)).sum(-1), self.three(x.unsqueeze(1))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (resnet, (4, 3, 16, 16)),
    "vgg": (vgg, (2, 3, 16, 16)),
    "images": (images, (2, 3, 12, 10)),
    "depthwise": (Depthwise, (2, 3, 12, 12)),
    "upwards": (Upwards, (2, 3, 8, 8)),
    "views": (Views, (2, 4, 8, 6)),
    "other axes": (OtherAxes, (2, 4, 6, 6)),
    "one image": (resnet, (1, 3, 16, 16)),
}


def flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def check(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    for a, b in zip(flat(found), flat(expected), strict=True):
        assert a.stride() == b.stride()
        scale = max(b.detach().abs().max().item(), 1e-2)  # gradients in front of a normalisation are rounding errors
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", NETS)
def test_inference(name: str, order: torch.memory_format) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    model = make().eval()
    jitted = jitpy.jit(model)
    x = torch.randn(shape).to(memory_format=order)
    with torch.no_grad():
        for _ in range(2):
            check(jitted(x), model(x))


@pytest.mark.parametrize("name", [name for name in NETS if name != "one image"])
def test_training(name: str) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    model = make().train()
    other = copy.deepcopy(model)
    jitted = jitpy.jit(other)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, expected = jitted(y), model(x)
        check(found, expected)
        for results in (found, expected):
            sum(part.square().mean() for part in flat(results)).backward()
        check(y.grad, x.grad, 1e-3)
        for p, q in zip(other.parameters(), model.parameters(), strict=True):
            check(p.grad, q.grad, 1e-3)
        for p, q in zip(other.buffers(), model.buffers(), strict=True):
            check(p, q)


def test_a_step_in_one_graph() -> None:
    torch.manual_seed(0)
    model = resnet().train()
    other = copy.deepcopy(model)
    x, labels = torch.randn(4, 3, 16, 16), torch.arange(4)

    def stepper(trained: nn.Module) -> Callable[[], torch.Tensor]:
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(trained(x), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    step, plain = jitpy.jit(stepper(other)), stepper(model)
    for _ in range(3):
        check(step(), plain(), 1e-3)
    for p, q in zip(other.parameters(), model.parameters(), strict=True):
        check(p, q, 1e-2)
        check(p.grad, q.grad, 1e-2)


@pytest.mark.parametrize("train", [False, True])
def test_16_bits(train: bool) -> None:
    """Under autocast; no further from float32 than eager's own."""
    torch.manual_seed(0)
    model = vgg().train(train)
    jitted = jitpy.jit(copy.deepcopy(model))
    x = torch.randn(2, 3, 16, 16)
    exact = model(x).detach()
    with torch.set_grad_enabled(train), torch.autocast("cpu", torch.bfloat16):
        found, expected = jitted(x), model(x)
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    assert (found - exact).norm() <= 2 * (expected - exact).norm() + 1e-3


def test_several_sizes() -> None:
    torch.manual_seed(0)
    model = images().eval()
    jitted = jitpy.jit(model)
    with torch.no_grad():
        for shape in ((2, 3, 12, 10), (3, 3, 12, 10), (4, 3, 9, 14), (1, 3, 8, 8), (2, 3, 1, 7)):
            x = torch.randn(shape)
            check(jitted(x), model(x))


def captured(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> list[Graph]:
    """The graphs that change over while `run` is compiled."""
    changed: list[Graph] = []
    original = channels_last._Change.run

    def run_and_keep(self: Any) -> None:
        original(self)
        changed.append(self.graph)

    monkeypatch.setattr(channels_last._Change, "run", run_and_keep)
    run()
    return changed


def conversions(graph: Graph, batch: int) -> int:
    """How many images are converted; weights, whose first axis is no batch, do not count."""
    return sum(node.op.name == "aten.clone.default" and "memory_format" in node.kwargs and node.tensor.shape[0] == batch
               for node in graph.nodes)


def test_a_network_is_converted_at_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = vgg().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        graphs = captured(monkeypatch, lambda: jitpy.jit(model)(x))
    assert [conversions(graph, 2) for graph in graphs] == [2]
    assert use_channels_last(graphs[0]) == []  # a second look finds nothing to do


def test_one_convolution_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()).eval(), torch.randn(2, 8, 16, 16)
    with torch.no_grad():
        assert captured(monkeypatch, lambda: jitpy.jit(model)(x)) == []


def test_small_images_of_many_channels_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turning the weights would cost more than the library's packing of images."""
    monkeypatch.undo()
    model = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 64, 3, padding=1)).eval()
    few, many = torch.randn(1, 64, 6, 6), torch.randn(16, 64, 24, 24)
    with torch.no_grad():
        assert captured(monkeypatch, lambda: jitpy.jit(model, dynamic=False)(few)) == []
        assert len(captured(monkeypatch, lambda: jitpy.jit(model, dynamic=False)(many))) == 1


def test_batch_statistics_of_images_far_from_zero() -> None:
    """Means a thousand times the deviations, and corners that differ from everything else."""
    torch.manual_seed(0)
    x = torch.randn(8, 16, 20, 24) + 1000
    x[0, :, 0, 0] = -1000
    x = x.to(memory_format=torch.channels_last)
    norm = nn.BatchNorm2d(16)
    exact = nn.BatchNorm2d(16).double()
    jitted, eager = jitpy.jit(copy.deepcopy(norm)), copy.deepcopy(norm)
    with torch.no_grad():
        wanted = exact(x.double())
        found, plain = jitted(x), eager(x)
    assert found.stride() == plain.stride()
    error = (found - wanted).abs().max()
    assert error <= 2 * (plain - wanted).abs().max() + 1e-5


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padded_images_of_changing_sizes_have_gradients_of_gradients(mode: str) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(F.pad(x, (1, 1, 1, 1), mode=mode), w)
        first = torch.autograd.grad(y.square().sum(), (x, w), create_graph=True)
        return *first, *torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))

    jitted = jitpy.jit(fn)
    for n, height, width in ((2, 8, 8), (3, 9, 7), (4, 5, 6)):
        x = torch.randn(n, 4, height, width, dtype=torch.double).to(memory_format=torch.channels_last).requires_grad_()
        w = torch.randn(6, 4, 3, 3, dtype=torch.double).to(memory_format=torch.channels_last).requires_grad_()
        check(jitted(x, w), fn(x, w), 1e-8)


def test_gradients_of_gradients_are_laid_out_as_eager_lays_them_out() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.autograd.grad(F.conv3d(x, w).relu().square().sum(), (x, w), create_graph=True)
        return *first, *torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))

    jitted = jitpy.jit(fn)
    for shape in ((2, 3, 4, 5, 6), (1, 3, 5, 4, 4), (3, 3, 4, 4, 7)):
        x = torch.randn(shape, dtype=torch.double).to(memory_format=torch.channels_last_3d).requires_grad_()
        w = torch.randn(2, 3, 2, 2, 2, dtype=torch.double).to(memory_format=torch.channels_last_3d).requires_grad_()
        for found, expected in zip(jitted(x, w), fn(x, w), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("fn", [
    lambda x: F.pad(x, (1,) * (2 * x.dim() - 4), mode="reflect"),
    lambda x: F.pad(x, (1,) * (2 * x.dim() - 4), mode="replicate"),
    lambda x: F.channel_shuffle(x, 2),
], ids=["reflect", "replicate", "channel_shuffle"])
def test_results_lie_as_images_do(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for shapes in (((2, 4, 8, 8), (3, 4, 9, 7), (1, 4, 5, 6)), ((2, 4, 4, 5, 6), (3, 4, 5, 4, 4))):
        order = torch.channels_last if len(shapes[0]) == 4 else torch.channels_last_3d
        jitted = jitpy.jit(lambda x: fn(x.sin()).cos())
        for shape in shapes:
            x, y = (torch.ones(shape).cumsum(1).to(memory_format=order).requires_grad_() for _ in range(2))
            found, expected = jitted(x), fn(y.sin()).cos()
            check(found, expected)
            (found**2).sum().backward()
            (expected**2).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)


def test_transposed_convolutions_of_changing_sizes() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, w, stride=2).relu()

    jitted = jitpy.jit(fn)
    for shape in ((2, 4, 8, 8), (3, 4, 9, 7), (1, 4, 5, 6)):
        x = torch.randn(shape).to(memory_format=torch.channels_last)
        w = torch.randn(4, 5, 3, 3).to(memory_format=torch.channels_last)
        check(jitted(x, w), fn(x, w))
