"""Every case of the `*.passes` files: `text.py` says how they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from jitpy.ir.interpret import interpret
from jitpy.ir.passes import run_passes
from jitpy.ir.passes.pipeline import STAGES
from jitpy.ir.specialize import specialize
from jitpy.ir.verify import verify
from tests.ir.random_graphs import same_bits, sharing
from tests.passes.text import Case, cases, structure, values

FILES = sorted(Path(__file__).parent.glob("*.passes"))
PASSES = {one.name: one for stage in STAGES.values() for one in stage}


def run(case: Case) -> str:
    """The structure that the passes leave, checked against what the graph computed before."""
    graph, before = case.graph(), case.graph()
    verify(graph)
    for name, given in re.findall(r"(\w+)(?:\((\w+)\))?", case.options["passes"]):
        if name == "captured":
            run_passes(graph)
        else:
            PASSES[name].run(graph, *filter(None, [given]))
            verify(graph)
    for seed in range(2):
        first, second = values(before, seed), values(before, seed)
        torch.manual_seed(seed)
        expected = [*interpret(specialize(before, {}), first), *first]
        torch.manual_seed(seed)
        found = [*interpret(specialize(graph, {}), second), *second]
        assert sharing(expected) == sharing(found)
        for one, other in zip(expected, found, strict=True):
            assert one.dtype is other.dtype and one.shape == other.shape and one.stride() == other.stride()
            if case.options.get("rounding") == "allowed":
                torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
            else:
                assert same_bits(one, other)
    return structure(graph)


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{path.stem}: {case.name}") for path in FILES
                                  for case in cases(path)])
def test_case(case: Case) -> None:
    found = run(case)
    if case.expected == "same":
        assert found == structure(case.graph())
    elif case.expected.endswith("nodes"):
        assert found.count(" = ") == int(case.expected.split()[0]), found
    else:
        assert found == structure(case.wanted())


def test_files_have_cases() -> None:
    names = [f"{path.stem}: {case.name}" for path in FILES for case in cases(path)]
    assert len(names) >= 59 and len(set(names)) == len(names)
    assert all(case.expected for path in FILES for case in cases(path))
