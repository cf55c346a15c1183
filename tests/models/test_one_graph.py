"""Hugging Face models from random tiny configs: eager's values, one graph, one recompilation for all other sizes."""

from __future__ import annotations

import os

import pytest
import torch

import jitpy
from tests.counting import fallbacks, variants
from tests.models import tiny as small
from tests.models.compare import assert_same
from tests.models.recent import RECENT
from tests.models.tiny import Tiny

pytest.importorskip("transformers")

MODELS = {**small.MODELS, **RECENT}
#: Batch and length of the calls: the first compiles, the second makes both sizes symbolic, the others fit.
SIZES = ((2, 7), (3, 11), (4, 9))
#: Models that the C++ backend runs in every test run; JITPY_TEST_ALL=1 runs all.
COMPILED = ("llava", "bert", "gpt2", "llama", "t5", "vit", "whisper", "convnext")
#: Models that break into dozens of pieces: only JITPY_TEST_ALL=1 runs them.
SLOW = ("jamba", "longformer", "led")
ALL = os.environ.get("JITPY_TEST_ALL") == "1"


def made(tiny: Tiny) -> torch.nn.Module:
    try:
        return tiny.make()
    except AttributeError as error:
        pytest.skip(f"this transformers does not have it: {error}")


@pytest.mark.parametrize("name", [name for name in MODELS if ALL or name not in SLOW])
def test_equal_to_eager_at_every_size(name: str) -> None:
    tiny = MODELS[name]
    model = made(tiny)
    jitpy.reset()
    compiled = jitpy.jit(model, fullgraph=not tiny.broken, backend="eager")
    counts = []
    with torch.no_grad(), fallbacks() as failed:
        for batch, length in SIZES:
            inputs = tiny.inputs(batch, length)
            expected = model(**inputs)
            for _ in range(2):
                assert_same(compiled(**inputs), expected)
            counts.append(variants())
    assert not failed
    if tiny.unrolled:
        assert counts in ([1, 2, 3], [1, 2, 2])  # the second where this transformers computes it with tensors
    elif not tiny.broken:
        assert counts == [1, 2, 2]


@pytest.mark.parametrize("name", [name for name in MODELS if ALL or name in COMPILED])
def test_kernels_equal_to_eager(name: str) -> None:
    tiny = MODELS[name]
    model = made(tiny)
    compiled = jitpy.jit(model, fullgraph=not tiny.broken)
    with torch.no_grad(), fallbacks() as failed:
        for batch, length in SIZES[:2]:
            inputs = tiny.inputs(batch, length)
            expected = model(**inputs)
            for _ in range(2):
                assert_same(compiled(**inputs), expected)
    assert not failed


def test_enough_of_them_are_one_graph() -> None:
    families = {tiny.config for tiny in MODELS.values()}
    assert len(families) >= 40
    whole = sum(not tiny.broken for tiny in MODELS.values())
    assert whole >= 0.95 * len(MODELS)


def test_report_of_a_model() -> None:
    model = MODELS["bert"].make()
    with torch.no_grad():
        report = jitpy.explain(model)(**MODELS["bert"].inputs(2, 7))
    assert report.graph_count == 1 and report.graph_break_count == 0
    assert report.op_count > 20
