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


class Experts(nn.Module):
    """Layers, numbers and tensors by name; the names of the active ones are attributes."""

    def __init__(self, sizes):
        super().__init__()
        torch.manual_seed(0)
        self.active = ["0"]
        self.mode = "0"
        self.layers = nn.ModuleDict({str(i): nn.Linear(8, size) for i, size in enumerate(sizes)})
        self.scaling = {str(i): 1.0 + i for i in range(len(sizes))}
        self.tables = {str(i): torch.full((8,), float(i)) for i in range(len(sizes))}
        self.variants = {}

    def forward(self, x):
        found = x.sum()
        for name in self.active:
            if name not in self.layers or name in self.variants:
                continue
            found = found + self.layers[name](x).sum() * self.scaling[name]
        return found + self.tables[self.mode].sum()


def activate(model, i):
    model.active, model.mode = [str(i)], str(i)


def test_names_of_parts_that_change():
    model, x = Experts([4] * 20), torch.randn(3, 8)
    compiled, before = jitpy.jit(model, fullgraph=True), variants()
    for i in (*range(20), 3, 0, 19):
        activate(model, i)
        torch.testing.assert_close(compiled(x), model(x))
    assert variants() - before <= 3  # the number in `scaling` changes too


def test_parts_of_other_sizes():
    model, x = Experts([4, 4, 5, 6, 4, 7]), torch.randn(3, 8)
    compiled, before = jitpy.jit(model, fullgraph=True), variants()
    for count in (6, 0):
        for i in range(6):
            activate(model, i)
            torch.testing.assert_close(compiled(x), model(x))
        assert variants() - before <= count
        before = variants()


def test_parts_that_are_exchanged_or_missing():
    model, x = Experts([4, 4, 4, 4]), torch.randn(3, 8)
    compiled = jitpy.jit(model)

    def check():
        try:
            want = model(x)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), want)

    for i in range(3):
        activate(model, i)
        check()
    model.layers["2"] = nn.Linear(8, 4)
    check()
    model.layers["2"] = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    check()
    model.variants["2"] = 1
    check()
    del model.variants["2"]
    activate(model, 7)
    check()
    model.active = ["1", "2"]
    check()
    model.mode = "1"
    check()
    model.active = ["1", "1"]
    check()
    model.active = "2"
    check()
    del model.tables["1"]
    check()
    model.tables = {"1": torch.ones(8)}
    check()
    model.mode = type("Text", (str,), {})("1")
    check()
    model.scaling["2"] = torch.ones(())
    check()


class Switches(Experts):
    """Names that are changed inside, compared and shown."""

    def forward(self, x):
        first = self.tables[self.mode] * 2
        self.tables[self.mode] = first
        if self.mode == "2":
            first = first + 10
        self.mode = str((int(self.mode) + 1) % 4)
        return first + self.tables[self.mode], self.mode + "!", len(self.tables)


def test_names_that_change_inside():
    given = torch.randn(3, 8)
    models = [Switches([4] * 4) for _ in range(2)]
    compiled = jitpy.jit(models[1])
    for _ in range(9):
        want, got = models[0](given), compiled(given)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:] and models[0].mode == models[1].mode
        for one, other in zip(models[0].tables.values(), models[1].tables.values(), strict=True):
            torch.testing.assert_close(one, other)


def test_adapters_of_one_shape():
    pytest.importorskip("transformers")
    model, x = llama()
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(model, config)
    names = ["default", *(f"adapter {i}" for i in range(1, 20))]
    for name in names[1:]:
        model.add_adapter(name, config)
    compiled, before = jitpy.jit(model.eval(), fullgraph=True), variants()
    with torch.no_grad():
        for name in names:
            model.set_adapter(name)
            torch.testing.assert_close(first(compiled(x)), first(model(x)), rtol=1e-4, atol=1e-5)
    assert variants() - before <= 2
