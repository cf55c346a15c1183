"""Hugging Face models as they are trained and as they generate: gradients, caches passed back in, `generate`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import jitpy
from tests.models.compare import assert_same
from tests.models.test_one_graph import made
from tests.models.tiny import MODELS

pytest.importorskip("transformers")

LABELLED = ("bert classifier", "roberta", "llama", "gpt-neo", "bart", "mt5", "deit")
DECODERS = ("gpt2", "llama", "mistral", "qwen3", "gemma2", "opt", "t5", "marian")
GENERATORS = ("gpt2", "llama", "t5")


@pytest.mark.parametrize("name", LABELLED)
def test_gradients_equal_eager(name: str) -> None:
    tiny = MODELS[name]
    model = made(tiny)
    twin = copy.deepcopy(model)
    compiled = jitpy.jit(twin, fullgraph=not tiny.broken, backend="eager")
    for batch, length in ((2, 7), (3, 11), (4, 9)):
        inputs = tiny.inputs(batch, length)
        expected, result = model(**inputs), compiled(**inputs)
        assert_same(result, expected)
        expected.loss.backward()
        result.loss.backward()
        for (key, wanted), found in zip(model.named_parameters(), twin.parameters(), strict=True):
            assert_same(found.grad, wanted.grad, key)


def tokens_after(inputs: dict[str, Any], cache: Any, past: int) -> dict[str, Any]:
    """Inputs of one step behind `inputs`, of which a decoder has seen `past` tokens."""
    batch = next(iter(inputs.values())).shape[0]
    token = torch.randint(3, 90, (batch, 1))
    if "decoder_input_ids" in inputs:
        return {**inputs, "decoder_input_ids": token, "past_key_values": cache}
    return {
        "input_ids": token,
        "past_key_values": cache,
        "attention_mask": torch.ones(batch, past + 1, dtype=torch.long),
    }


@pytest.mark.parametrize("name", DECODERS)
def test_decoding_with_a_cache(name: str) -> None:
    tiny = MODELS[name]
    model = made(tiny)
    compiled = jitpy.jit(model, fullgraph=not tiny.broken, backend="eager")
    with torch.no_grad():
        for batch, length in ((2, 7), (3, 11)):
            inputs = {key: value for key, value in tiny.inputs(batch, length).items() if key != "labels"}
            past = inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1]
            expected, result = model(**inputs, use_cache=True), compiled(**inputs, use_cache=True)
            assert_same(result, expected)
            for step in range(3):
                following = tokens_after(inputs, None, past + step)
                wanted = model(**{**following, "past_key_values": expected.past_key_values})
                cache = result.past_key_values
                result = compiled(**{**following, "past_key_values": cache})
                assert result.past_key_values is cache, "the cache passed in is the one returned"
                assert_same(result, wanted)
                expected = wanted


@pytest.mark.parametrize("name", GENERATORS)
def test_generate_around_a_jitted_forward(name: str) -> None:
    tiny = MODELS[name]
    model = made(tiny)
    prompts = {"input_ids": torch.randint(3, 90, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    settings = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(**prompts, **settings)
    model.forward = jitpy.jit(model.forward, backend="eager")
    for _ in range(2):
        assert torch.equal(model.generate(**prompts, **settings), expected)
