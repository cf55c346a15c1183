"""`torch.compile(..., backend="jitpy")`."""

from __future__ import annotations

import copy
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

import jitpy
from jitpy.engine import Variant, all_engines
from jitpy.torch_compile import compile_fx

BACKENDS = [pytest.param("jitpy", id="jitpy"), pytest.param(aot_autograd(fw_compiler=compile_fx), id="aot")]


def compiled() -> list[Variant]:
    return [variant for engine in all_engines() for variant in engine.variants]


def same(first: nn.Module, second: nn.Module) -> None:
    """Parameters, gradients and buffers."""
    for (name, one), (_, other) in zip(first.state_dict(keep_vars=True).items(),
                                       second.state_dict(keep_vars=True).items(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_unseen")
@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_and_training(backend: Any) -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    other = copy.deepcopy(plain)
    fast = torch.compile(other, backend=backend)
    for number in range(3):
        x, y = torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), plain(x))
        z = y.detach().clone().requires_grad_()
        fast(z).square().sum().backward()
        plain(y).square().sum().backward()
        torch.testing.assert_close(z.grad, y.grad)
        same(plain, other)
        if number == 1:
            made = len(compiled())
    assert len(compiled()) == made and all(variant.break_record is None for variant in compiled())


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_compilation_serves_several_sizes(backend: Any) -> None:
    layer = nn.Linear(4, 4)

    def function(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
        return layer(x).view(2, -1, 4) * n + x.size(0) * scale

    fast = torch.compile(function, backend=backend, dynamic=True)
    for rows, n in ((6, 5), (8, 3), (10, 7)):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x, n, 0.5), function(x, n, 0.5))
    assert len(compiled()) == 1 and compiled()[0].break_record is None


def test_sizes_and_floats_that_change() -> None:
    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return nn.functional.dropout(x * scale, scale, training=False).sum(0)

    fast = torch.compile(function, backend="jitpy")
    for rows, scale in ((3, 0.5), (4, 0.25), (5, 0.125), (6, 0.75)):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x, scale), function(x, scale))
    assert all(variant.break_record is None for variant in compiled())


def test_graphs_between_breaks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin() * 2
        torch._dynamo.graph_break()
        if x.sum() > 0:
            return x.cos()
        return x.exp() + 1

    fast = torch.compile(function, backend="jitpy")
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        torch.testing.assert_close(fast(x), function(x))
    assert len(compiled()) == 4


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos() * 3


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:] = 2
    y[:, 0].add_(1)
    return y * x


def rounded(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ x.t()).float()


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sin()
    return x * y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [
    in_place, rounded, without_gradients,
    pytest.param(lambda x: Tripled.apply(x) * 2, id="custom gradient"),
    pytest.param(lambda x: checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False), id="checkpoint"),
    pytest.param(lambda x: torch.vmap(lambda row: row.sin().sum())(x), id="vmap"),
    pytest.param(lambda x: torch.func.grad(lambda x: x.sin().square().sum())(x), id="grad"),
    pytest.param(lambda x: x[x > 0].square(), id="sizes by data"),
    pytest.param(lambda x: x * x.sum().item(), id="item"),
])
def test_kinds_of_graphs(function: Callable[..., Any], backend: Any) -> None:
    """All of them in one piece."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        fast = torch.compile(function, backend=backend)
        for rows in (3, 5):
            x = torch.randn(rows, 4, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            one, other = function(x), fast(y)
            torch.testing.assert_close(other, one)
            assert other.requires_grad == one.requires_grad
            one.sum().backward()
            other.sum().backward()
            torch.testing.assert_close(y.grad, x.grad)
    assert compiled() and all(variant.break_record is None for variant in compiled())


def test_torch_cond() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1

    fast = torch.compile(function, backend="jitpy")
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(fast(x), function(x))
    assert len(compiled()) == 1 and compiled()[0].break_record is None


def test_results_that_are_inputs_or_views_of_them() -> None:
    def function(x: torch.Tensor) -> Any:
        x.add_(1)
        return x, x.view(-1), None, {"a": [x[0], 3]}

    fast = torch.compile(function, backend="jitpy")
    for _ in range(2):
        x, y = torch.zeros(2, 3), torch.zeros(2, 3)
        result = fast(y)
        torch.testing.assert_close(result, function(x))
        assert result[0] is y and result[1].data_ptr() == y.data_ptr() and torch.equal(x, y)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("jitpy.engine.get_backend", lambda name: lambda graph, options: seen.append(options["mode"]) or
                        __import__("jitpy.backends.eager", fromlist=["x"]).compile_graph(graph, options))
    fast = torch.compile(torch.sin, backend="jitpy", mode=mode)
    torch.testing.assert_close(fast(torch.ones(2)), torch.ones(2).sin())
    assert seen == [mode.removesuffix("-no-cudagraphs")]


def test_options() -> None:
    torch.compile(torch.sin, backend="jitpy", options={"recompile_limit": 3})(torch.ones(2))
    assert [engine.options.options for engine in all_engines() if engine.variants] == [{"recompile_limit": 3}]
    with pytest.raises(Exception, match="unknown option 'nonsense'"):
        torch.compile(torch.sin, backend="jitpy", options={"nonsense": 3})(torch.ones(2))
    with pytest.raises(Exception, match="unknown mode 'nonsense'"):
        torch.compile(torch.cos, backend="jitpy", mode="nonsense")(torch.ones(2))


# -- models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_bert(backend: Any) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                                     vocab_size=50)
    model = transformers.BertModel(config).eval()
    fast = torch.compile(model, backend=backend)
    ids, mask = torch.randint(0, 50, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[0, 5:] = 0
    with torch.no_grad():
        for _ in range(2):
            expected, result = model(ids, attention_mask=mask), fast(ids, attention_mask=mask)
            torch.testing.assert_close(result.last_hidden_state, expected.last_hidden_state)
            torch.testing.assert_close(result.pooler_output, expected.pooler_output)
    assert all(variant.break_record is None for variant in compiled())


def test_gpt2_with_four_lengths() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50, n_positions=32, bos_token_id=1,
                                     eos_token_id=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    fast = torch.compile(model, backend="jitpy", dynamic=True)
    with torch.no_grad():
        for length in (5, 8, 13, 21):
            ids = torch.randint(0, 50, (2, length))
            torch.testing.assert_close(fast(ids, use_cache=False).logits, model(ids, use_cache=False).logits)
    assert len(compiled()) == 1 and compiled()[0].break_record is None


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out))
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_steps_of_a_resnet(backend: Any) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), Residual(4, 4, 1), Residual(4, 8, 2), nn.AdaptiveAvgPool2d(1),
                          nn.Flatten(), nn.Linear(8, 5))
    other = copy.deepcopy(plain)
    fast = torch.compile(other, backend=backend)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (plain, other)]
    for _ in range(3):
        x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
        losses = []
        for model, optimizer in zip((plain, fast), optimizers, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
        same(plain, other)
    assert all(variant.break_record is None for variant in compiled())


# -- the name ----------------------------------------------------------------------------------------------


def test_entry_point_of_the_package() -> None:
    project = tomllib.loads((Path(jitpy.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    value = project["entry-points"]["torch_dynamo_backends"]["jitpy"]
    assert importlib.metadata.EntryPoint("jitpy", value, "torch_dynamo_backends").load() is compile_fx
    assert "jitpy" in torch._dynamo.list_backends() and "jitpy" not in jitpy.list_backends()


@pytest.mark.parametrize("first", ["jitpy", "torch._dynamo", "torch._dynamo; torch._dynamo.list_backends()"])
def test_registered_without_the_entry_point(first: str) -> None:
    """Whichever is imported first. Packages with entry points are hidden."""
    program = f"""
import sys, importlib.metadata
importlib.metadata.PathDistribution.read_text = lambda self, name: "" if name == "entry_points.txt" else "Name: a"
import torch
import {first}
import jitpy
assert "jitpy" in torch._dynamo.list_backends()
assert torch.compile(torch.sin, backend="jitpy")(torch.zeros(2)).sum() == 0
assert sum(len(engine.variants) for engine in sys.modules["jitpy.engine"].all_engines()) == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
