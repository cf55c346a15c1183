"""Hugging Face models from random tiny configs: one graph, eager's values, one recompilation for all other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants
from tests.models.tiny import MODELS, outputs

pytest.importorskip("transformers")

#: Batch and length of the calls: the first compiles, the second makes both sizes symbolic, the others fit.
SIZES = ((2, 7), (3, 11), (4, 13), (5, 9))


def compare(result: Any, expected: Any) -> None:
    assert type(result) is type(expected)
    if isinstance(expected, dict):
        assert list(result) == list(expected)
    found, wanted = outputs(result), outputs(expected)
    assert len(found) == len(wanted) > 0
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_equal_to_eager(name: str) -> None:
    model = MODELS[name].make()
    compiled = jitpy.jit(model, fullgraph=True)
    with torch.no_grad():
        for batch, length in SIZES[:2]:
            inputs = MODELS[name].inputs(batch, length)
            expected = model(**inputs)
            for _ in range(2):
                compare(compiled(**inputs), expected)


@pytest.mark.parametrize("name", MODELS)
def test_other_sizes_recompile_once(name: str) -> None:
    model = MODELS[name].make()
    jitpy.reset()
    compiled = jitpy.jit(model, fullgraph=True, backend="eager")
    counts = []
    with torch.no_grad():
        for batch, length in SIZES:
            inputs = MODELS[name].inputs(batch, length)
            compare(compiled(**inputs), model(**inputs))
            counts.append(variants())
    assert counts == [1, 2, 2, 2]


def test_report_of_a_model() -> None:
    model = MODELS["bert"].make()
    with torch.no_grad():
        report = jitpy.explain(model)(**MODELS["bert"].inputs(2, 7))
    assert report.graph_count == 1 and report.graph_break_count == 0
    assert report.op_count > 20
