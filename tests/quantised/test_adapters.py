"""Adapters of low rank (peft): switched, merged, taken off and put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitpy
from tests.counting import variants
from tests.quantised.models import first, llama

try:
    import peft
except ImportError as error:  # or a part that it needs
    pytest.skip(str(error), allow_module_level=True)


def adapted():
    pytest.importorskip("transformers")
    model, x = llama()

    def config(rank):
        return peft.LoraConfig(r=rank, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)

    model = peft.get_peft_model(model, config(4))
    model.add_adapter("same rank", config(4))
    model.add_adapter("higher rank", config(8))
    return model.eval(), x


def test_adapters_switched_merged_and_taken_off():
    model, x = adapted()
    compiled = jitpy.jit(model, fullgraph=True)
    names = ("default", "same rank", "higher rank")

    def check():
        torch.testing.assert_close(first(compiled(x)), first(model(x)), rtol=1e-4, atol=1e-5)

    with torch.no_grad():
        for name in (*names, *names):
            model.set_adapter(name)
            check()
        before = variants()
        for name in names[::-1]:
            model.set_adapter(name)
            check()
        assert variants() == before
        model.set_adapter("same rank")
        model.base_model.merge_adapter()
        check()
        model.base_model.unmerge_adapter()
        check()
        with model.disable_adapter():
            check()
        check()


def test_weights_of_an_adapter_that_change():
    """New weights in an adapter compile nothing."""
    model, x = adapted()
    compiled = jitpy.jit(model, fullgraph=True)
    with torch.no_grad():
        compiled(x)
        before = variants()
        for scale in (2.0, -1.0):
            for name, parameter in model.named_parameters():
                if "lora" in name:
                    parameter.mul_(scale)
            torch.testing.assert_close(first(compiled(x)), first(model(x)), rtol=1e-4, atol=1e-5)
        assert variants() == before


def test_training_of_an_adapter():
    model, x = adapted()
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def loss(ids):
        return first(model(ids)).float().pow(2).mean()

    want = torch.autograd.grad(loss(x), parameters)
    got = torch.autograd.grad(jitpy.jit(loss, fullgraph=True)(x), parameters)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_adapter_on_quantised_weights():
    """The base is int8, the adapter float32 and trained."""
    quantization = pytest.importorskip("torchao.quantization")

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.base = nn.Linear(64, 64).requires_grad_(False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    model = Adapted()
    quantization.quantize_(model.base, quantization.Int8WeightOnlyConfig())
    x = torch.randn(8, 64)
    parameters = [model.down.weight, model.up.weight]
    want = torch.autograd.grad(model(x).sum(), parameters)
    got = torch.autograd.grad(jitpy.jit(model, fullgraph=True)(x).sum(), parameters)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
