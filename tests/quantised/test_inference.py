"""Quantised models: one graph, eager's results."""

from __future__ import annotations

import copy

import pytest
import torch

import jitpy
from tests.quantised.models import bert, convolution, first, llama, mlp

torchao = pytest.importorskip("torchao")


def _torchao(make):
    def apply(model, x):
        from torchao import quantization

        quantization.quantize_(model, make(quantization))
        return model

    return apply


def _dynamic(model, x):
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def _exported(is_dynamic):
    def apply(model, x):
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer

        quantizer = x86_inductor_quantizer.X86InductorQuantizer()
        quantizer.set_global(x86_inductor_quantizer.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic))
        prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
        prepared(x)
        return convert_pt2e(prepared)

    return apply


RECIPES = {
    "int8 weights": _torchao(lambda q: q.Int8WeightOnlyConfig()),
    "int8 dynamic": _torchao(lambda q: q.Int8DynamicActivationInt8WeightConfig()),
    "int4 weights": _torchao(lambda q: q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=q.PerGroup(32))),
    "int8 dynamic, int4 weights": _torchao(
        lambda q: q.Int8DynamicActivationIntxWeightConfig(weight_granularity=q.PerGroup(32))),
    "float8 weights": _torchao(lambda q: q.Float8WeightOnlyConfig()),
    "torch.ao dynamic": _dynamic,
}
EXPORTED = {"PT2E": _exported(False), "PT2E dynamic": _exported(True)}
#: rounding to int8 takes a difference in the last bit to a whole step of the grid
TOLERANCE = {"int8 dynamic": 0.02}


def assert_captured(model, x, tolerance=1e-5):
    with torch.no_grad():
        want = first(model(x))
        compiled = jitpy.jit(model, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(first(compiled(x)), want, atol=tolerance * want.abs().max().item(), rtol=1e-4)
        assert jitpy.explain(model)(x).graph_break_count == 0


@pytest.mark.parametrize("make", [mlp, llama, bert])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_is_captured(recipe, make):
    if make is not mlp:
        pytest.importorskip("transformers")
    model, x = make()
    assert_captured(RECIPES[recipe](model, x), x, TOLERANCE.get(recipe, 1e-5))


@pytest.mark.parametrize("make", [mlp, convolution])
@pytest.mark.parametrize("recipe", EXPORTED)
def test_exported_recipe_is_captured(recipe, make):
    model, x = make()
    assert_captured(EXPORTED[recipe](model, x), x)


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_models_of_one_shape(recipe):
    """Weights are not mixed up, whatever else is the same."""
    model, x = mlp()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-0.5)
        models = [RECIPES[recipe](one, x) for one in (model, other)]
        compiled = [jitpy.jit(one) for one in models]
        for _ in range(2):
            for one, two in zip(models, compiled, strict=True):
                torch.testing.assert_close(two(x), one(x))


@pytest.mark.parametrize("recipe", ["int8 weights", "float8 weights", "int4 weights"])
def test_weights_that_change(recipe):
    """Another weight of the same kind compiles nothing."""
    model, x = mlp()
    other = RECIPES[recipe](mlp()[0], x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
        model = RECIPES[recipe](model, x)
        compiled = jitpy.jit(lambda m, x: m(x))
        torch.testing.assert_close(compiled(model, x), model(x))
        model[0].weight, model[2].weight = other[0].weight, other[2].weight
        torch.testing.assert_close(compiled(model, x), model(x))


@pytest.mark.parametrize("batches", [(2, 4, 6, 3)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_batches_that_change(recipe, batches):
    model, _ = mlp()
    model = RECIPES[recipe](model, None)
    compiled = jitpy.jit(model)
    with torch.no_grad():
        for batch in batches:
            x = torch.randn(batch, 64)
            torch.testing.assert_close(compiled(x), model(x))


def test_projections_in_a_generator():
    """Operators are entered wherever the program calls them."""
    class Projections(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(64, 64) for _ in range(3))

        def forward(self, x):
            q, k, v = (part(x).relu() for part in (self.q, self.k, self.v))
            return q * k + v

    torch.manual_seed(0)
    assert_captured(RECIPES["int8 dynamic"](Projections(), None), torch.randn(4, 64))


def test_processor_is_asked_while_tracing():
    """The function that torchao asks what the processor can do caches its answer: there is none yet."""
    model, x = mlp()
    model = RECIPES["int8 dynamic"](model, x)
    if hasattr(torch.cpu, "get_capabilities"):
        torch.cpu.get_capabilities.cache_clear()
    with torch.no_grad():
        got = jitpy.jit(model, fullgraph=True)(x)
        torch.testing.assert_close(got, model(x))


def test_gradients_past_quantised_weights():
    """Activations get their gradients, weights have none."""
    model, x = mlp()
    model = RECIPES["int8 weights"](model, x)
    mine, eagers = x.clone().requires_grad_(), x.clone().requires_grad_()
    model(eagers).sum().backward()
    jitpy.jit(model)(mine).sum().backward()
    torch.testing.assert_close(mine.grad, eagers.grad)


def test_float8_dynamic(monkeypatch):
    """Activations and weights in float8, one scale each: a recipe for GPUs, whose product a CPU has too."""
    from torchao.float8 import inference
    from torchao.quantization import quant_api
    for module in (inference, quant_api):
        monkeypatch.setattr(module, "_check_hardware_support", lambda *args: None)
    model, x = mlp()
    model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)
    recipe = _torchao(lambda q: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerTensor()))
    assert_captured(recipe(model, x), x, 0.05)
