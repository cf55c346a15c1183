"""`generate` of Hugging Face models around a jitted forward: its tokens are eager's, and lengths do not recompile."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants
from tests.models.test_one_graph import made
from tests.models.tiny import MODELS

transformers = pytest.importorskip("transformers")

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 20},
    "beams": {"num_beams": 3},
    "without a cache": {"use_cache": False},
}


def generated(model: Any, length: int, padded: bool = False, **settings: Any) -> torch.Tensor:
    torch.manual_seed(length)
    ids = torch.randint(3, 90, (3 if padded else 1, length))
    kept = torch.ones_like(ids)
    for row in range(len(ids)):
        kept[row, :row] = 0
    return model.generate(ids * kept, attention_mask=kept, pad_token_id=0, eos_token_id=None,  # type: ignore[no-any-return]
                          **{"do_sample": False, "max_new_tokens": 5, **settings})


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("padded", [False, True], ids=["alone", "padded"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_tokens_are_those_of_eager(name: str, padded: bool, cache: str | None) -> None:
    model = made(MODELS[name])
    jitted = copy.deepcopy(model)
    jitted.forward = jitpy.jit(jitted.forward, backend="eager")
    for case, settings in SETTINGS.items():
        if cache is None or "use_cache" not in settings:
            for length in (5, 9, 12):
                wanted, found = (generated(one, length, padded, cache_implementation=cache, **settings)
                                 for one in (model, jitted))
                assert torch.equal(found, wanted), case


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("whole", [False, True], ids=["forward", "model"])
def test_lengths_are_compiled_twice(whole: bool, dynamic: bool | None, cache: str | None) -> None:
    """For all prompts, and for all tokens behind them: with a static cache for those of the first length, too."""
    jitpy.reset()
    model = made(MODELS["llama"])
    if whole:
        model = jitpy.jit(model, dynamic=dynamic, backend="eager")
    else:
        model.forward = jitpy.jit(model.forward, dynamic=dynamic, backend="eager")
    for length in range(4, 24):
        generated(model, length, cache_implementation=cache)
    assert variants() == (3 if cache and dynamic is None else 2)


class Sums:
    """The state that a call keeps for the next one."""

    def __init__(self) -> None:
        self.total: torch.Tensor | None = None


def test_only_calls_that_fill_a_place_have_sizes_that_change() -> None:
    """A new object's empty place at the first call is filled; a module's own, and one that holds something, are not."""
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total: torch.Tensor | None = None

        def forward(self, x: torch.Tensor, sums: Sums | None = None) -> torch.Tensor:
            (self if sums is None else sums).total = x.sum(1)
            return x * 2

    for sums, wanted in ((lambda: None, 2), (Sums, 1)):
        jitpy.reset()
        model = jitpy.jit(Model(), backend="eager")
        for length in (4, 7):
            x = torch.ones(3, length)
            assert torch.equal(model(x, sums()), x * 2)
        assert variants() == wanted


def test_a_jitted_model_generates_when_torch_compiles_its_call() -> None:
    """As `generate` does of its own accord on GPUs."""
    model = made(MODELS["llama"])
    jitted = jitpy.jit(copy.deepcopy(model), backend="eager")
    everywhere = transformers.CompileConfig()
    everywhere._compile_all_devices = True
    for length in (5, 9, 12):
        wanted = generated(model, length, cache_implementation="static")
        found = generated(jitted, length, cache_implementation="static", compile_config=everywhere)
        assert torch.equal(found, wanted)
