"""`options={"freezing": True}`: parameters as constants, until one changes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jitpy
from jitpy.engine import all_engines
from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph
from jitpy.ir.passes import packing
from jitpy.ir.passes.freezing import freeze as freeze_graph
from tests.graph_tools import spec_of


def filled(module: nn.Module) -> nn.Module:
    """With statistics and parameters as after training."""
    for one in module.modules():
        if isinstance(one, nn.modules.batchnorm._BatchNorm):
            for tensor in (one.running_mean, one.running_var, one.weight, one.bias):
                if tensor is not None:
                    tensor.data.uniform_(0.5, 1.5)
    return module.eval()


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Scaled(nn.Module):
    """A product with what is computed from a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.tanh() * 2).t()


class GivesParameter(Scaled):
    def forward(self, x: torch.Tensor) -> Any:
        return x @ self.weight, self.weight * 2, self.weight


def convolution(axes: int, transposed: bool = False, bias: bool = True, groups: int = 1) -> nn.Module:
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{axes}d")
    return nn.Sequential(kind(4, 8, 3, padding=1, bias=bias, groups=groups), getattr(nn, f"BatchNorm{axes}d")(8))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{f"conv {axes}d{' transposed' if transposed else ''}": (
        lambda axes=axes, transposed=transposed: convolution(axes, transposed), (2, 4, *[7] * axes))
       for axes in (1, 2, 3) for transposed in (False, True)},
    "conv without bias": (lambda: convolution(2, bias=False), (2, 4, 7, 7)),
    "groups": (lambda: convolution(2, groups=2), (2, 4, 7, 7)),
    "transposed groups": (lambda: convolution(2, True, groups=2), (2, 4, 7, 7)),
    "norm without parameters": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8, affine=False)),
                                (2, 4, 7, 7)),
    "linear": (lambda: nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU()), (5, 16)),
    "linear without bias": (lambda: nn.Sequential(nn.Linear(16, 8, bias=False), nn.BatchNorm1d(8)), (5, 16)),
    "linear of sequences": (lambda: nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(5)), (3, 5, 16)),
    "gated": (Gated, (5, 16)),
    "scaled": (Scaled, (5, 16)),
}


def frozen_ops() -> list[str]:
    """The operations left in the frozen graphs, views apart."""
    graphs = [variant.compiled.graph for engine in all_engines() for variant in engine.variants
              if hasattr(variant.compiled, "graph")]
    assert graphs
    return [node.op.name.split(".")[1] for graph in graphs for node in graph.nodes if not node.op.is_view]


def freeze(module: nn.Module) -> Callable[..., Any]:
    jitpy.reset()
    return jitpy.jit(module, options={"freezing": True})


@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name: str) -> None:
    make, shape = PROGRAMS[name]
    module, x = filled(make()), torch.randn(shape)
    with torch.no_grad():
        run = freeze(module)
        for _ in range(3):
            torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
    if name == "gated":
        assert frozen_ops().count("linear") == 2
    elif name == "scaled":
        assert frozen_ops() == ["matmul"]
    elif name != "linear of sequences":
        assert not any("norm" in op for op in frozen_ops())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="oneDNN packs weights")
@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm2d(64)], ids=["plain", "norm"])
def test_weights_of_convolutions_are_packed_once(norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[packing._Convolution] = []
    usual = packing._Convolution
    monkeypatch.setattr(packing, "_Convolution", lambda *args: made.append(usual(*args)) or made[-1])
    layers = nn.Conv2d(3, 64, 3), norm, nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1, groups=2), nn.ReLU(), nn.Conv2d(64, 8, 1)
    module, x = filled(nn.Sequential(*layers)), torch.randn(2, 3, 20, 20).to(memory_format=torch.channels_last)
    with torch.no_grad():
        run = freeze(module)
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
        packed = [one.known for one in made]
        assert len(packed) == 3 and None not in packed
        for value in (float("nan"), float("inf"), 2.0):
            x[0, 0, 3, 3] = value
            torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5, equal_nan=True)
        assert all(one.known is other for one, other in zip(made, packed, strict=True))
        module[3].weight.mul_(-1.5)
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)


def replaced(parameter: torch.Tensor) -> torch.Tensor:
    return nn.Parameter(parameter.detach() * 3)


def stepped(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(module.parameters(), 0.5).step()


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "in place": lambda m: m[0].weight.mul_(2),
    ".data in place": lambda m: m[0].weight.data.mul_(2),
    ".data assigned": lambda m: setattr(m[0].weight, "data", m[0].weight.data * 2),
    "a view in place": lambda m: m[0].weight[0].fill_(7.0),
    "by numpy": lambda m: m[0].bias.detach().numpy().fill(7.0),
    "replaced": lambda m: setattr(m[0], "weight", replaced(m[0].weight)),
    "loaded": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "statistics": lambda m: m[1].running_mean.add_(1),
    "norm's scale": lambda m: m[1].weight.data.zero_(),
    "an optimizer's step": stepped,
    "frozen for autograd, and in place": lambda m: m[0].weight.requires_grad_(False).mul_(2),
    "by a foreach call": lambda m: torch._foreach_mul_([p.data for p in m.parameters()], 2.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(change: str) -> None:
    module, x = filled(convolution(2)), torch.randn(2, 4, 7, 7)
    with torch.no_grad():
        run = freeze(module)
        run(x), run(x)
        before = module(x)
        for _ in range(2):
            CHANGES[change](module)
            expected = module(x)
            torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(before, expected)


def test_training_in_between() -> None:
    module, x = convolution(2), torch.randn(2, 4, 7, 7)
    run = freeze(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        module.eval()
        with torch.no_grad():
            torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
        module.train()
        run(x).square().mean().backward()
        assert module[0].weight.grad is not None
        optimizer.step()
        optimizer.zero_grad()


def test_memory_that_others_may_write_is_not_frozen() -> None:
    """torch does not hear of writes to memory that it does not own."""
    module, x = filled(convolution(2)), torch.randn(2, 4, 7, 7)
    array = module[0].weight.detach().numpy().copy()
    module[0].weight.data = torch.from_numpy(array)
    with torch.no_grad():
        run = freeze(module)
        run(x), run(x)
        array *= 2
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)


def test_saved_models_stay_frozen() -> None:
    """Saving makes torch give a parameter other memory, with the same numbers."""
    module, x = filled(convolution(2)), torch.randn(2, 4, 7, 7)
    with torch.no_grad():
        run = freeze(module)
        run(x)
        torch.save(module.state_dict(), io.BytesIO())
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
        assert not any("norm" in op for op in frozen_ops())


def test_results_are_the_callers_own() -> None:
    module, x = GivesParameter(), torch.randn(5, 16)
    with torch.no_grad():
        run = freeze(module)
        for _ in range(3):
            product, twice, weight = run(x)
            torch.testing.assert_close(product, x @ module.weight)
            assert torch.equal(twice, module.weight * 2) and weight is module.weight
            twice.zero_()


def test_parameters_that_the_program_writes() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x @ self.weight.exp() + self.calls

    module, x = Counts(), torch.randn(3, 4)
    with torch.no_grad():
        run = freeze(module)
        for k in range(4):
            torch.testing.assert_close(run(x), x @ module.weight.exp() + k + 1)
    assert module.calls == 4


def test_sizes_that_change() -> None:
    module = filled(convolution(2))
    with torch.no_grad():
        run = freeze(module)
        for n in (2, 3, 5, 6):
            x = torch.randn(n, 4, 7, 7)
            torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
        module[0].weight.data.mul_(2)
        for n in (2, 3, 5, 6):
            x = torch.randn(n, 4, 7, 7)
            torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_weights_that_autocast_rounds(device: str) -> None:
    """On the CPU they are scaled before they are rounded. GPUs compute a convolution, its norm and relu in one call."""
    tensors = [torch.randn(*shape, device=device) for shape in ((2, 4, 7, 7), (8, 4, 3, 3), (8,), (8,))]
    graph = Graph()
    x, weight, mean, variance = (graph.add_input(spec_of(one)) for one in tensors)
    b = Builder(graph)
    images, rounded = (b.call("aten._to_copy.default", one, dtype=torch.bfloat16) for one in (x, weight))
    made = b.call("aten.conv2d.default", images, rounded)
    norm = b.call("aten.batch_norm.default", made, None, None, mean, variance, False, 0.1, 1e-5, True)
    graph.outputs = [b.call("aten.relu.default", norm)]
    freeze_graph(graph, dict(zip((weight, mean, variance), tensors[1:], strict=True)))
    names = [node.op.name.split(".")[1] for node in graph.nodes]
    assert names == (["_to_copy", "conv2d", "relu"] if device == "cpu" else
                     ["_to_copy", "_to_copy", "conv2d", "batch_norm", "relu"])


def test_16_bit_weights_keep_their_norms() -> None:
    """They would be rounded a second time."""
    module, x = filled(convolution(2)).bfloat16(), torch.randn(2, 4, 7, 7).bfloat16()
    with torch.no_grad():
        run = freeze(module)
        torch.testing.assert_close(run(x), module(x), rtol=2e-2, atol=2e-2)
        assert any("norm" in op for op in frozen_ops())


def test_reading_parameters_moves_none() -> None:
    """Whatever kernels of ours and of torch's read stays where it is."""
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = convolution(2), nn.LayerNorm(7), nn.Linear(7, 7)
            self.scale = nn.Parameter(torch.randn(7))
            self.table = nn.Embedding(7, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.norm(self.first(x))) * self.scale + self.table(x[0, 0, 0].long().clamp(0, 6)[0])

    module, x = filled(Block()), torch.randn(2, 4, 7, 7)
    with torch.no_grad():
        run = freeze(module)
        for _ in range(40):
            run(x)
        assert not any("batch_norm" in op for op in frozen_ops())
        assert all(graph._moves == 0 for engine in all_engines() for graph in
                   (variant.compiled for variant in engine.variants))
        torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)


def test_behind_a_graph_break() -> None:
    first, second, x = filled(convolution(2)), filled(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))), \
        torch.randn(2, 4, 7, 7)

    def program(x: torch.Tensor) -> torch.Tensor:
        x = first(x)
        jitpy.graph_break()
        return second(x) + 1

    with torch.no_grad():
        jitpy.reset()
        run = jitpy.jit(program, options={"freezing": True})
        for _ in range(3):
            torch.testing.assert_close(run(x), program(x), rtol=1e-4, atol=1e-5)
        second[0].weight.data.mul_(2)
        torch.testing.assert_close(run(x), program(x), rtol=1e-4, atol=1e-5)
    assert not any("norm" in op for engine in all_engines() for variant in engine.variants
                   if variant.compiled is not None and variant.compiled._usual is None
                   for op in (node.op.name for node in variant.compiled.graph.nodes))


def test_weights_of_points_that_lie_as_pixels() -> None:
    """A weight of (4, 8, 1, 1) in channels-last order is contiguous as well, with a last stride of 8."""
    model = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU()).eval().to(memory_format=torch.channels_last)
    compiled = jitpy.jit(model, options={"freezing": True})
    x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for change in (lambda w: w, lambda w: w.clone(), lambda w: w * 2):
            model[0].weight.data = change(model[0].weight.data)
            torch.testing.assert_close(compiled(x), model(x))
