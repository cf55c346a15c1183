"""The text of kernels: names from the graph, and the same text from the same graph, byte for byte."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from jitpy.backends.triton import plan_graph
from jitpy.runtime.plan import LaunchStep
from tests.graph_tools import trace
from tests.triton.cases import CASES

pytest.importorskip("triton")
SAMPLE = ["gelu_bf16", "rotary", "softmax_long", "layer_norm", "column_sum_tall", "cumsum_long", "embedding_gradient",
          "many_updates", "cross_entropy", "transposed_bf16"]


def sources(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[str]:
    return [step.kernel.source for step in plan_graph(trace(fn, inputs)).steps if isinstance(step, LaunchStep)]


def assigned(source: str) -> list[str]:
    return re.findall(r"^    +(\w+) = ", source[source.rindex("def fused"):], re.MULTILINE)


def test_values_are_named_after_nodes() -> None:
    x, weight = torch.randn(64, 256), torch.randn(256)
    (source,) = sources(lambda x, w: F.gelu(x + w) * torch.sigmoid(x), [x, weight])
    names = assigned(source)
    assert {"arg", "arg_2", "add"} <= set(names)
    assert not any(re.fullmatch(r"t\d*|v\d+", name) for name in names), names


def test_reductions_are_named_after_what_they_do() -> None:
    (source,) = sources(lambda x: torch.softmax(x, -1), [torch.randn(64, 256)])
    assert ["max", "exp", "sum"] == [name for name in assigned(source) if name in ("max", "exp", "sum")]


def test_names_that_mean_something_else() -> None:
    """Nodes are called like tiles, keywords and helpers."""
    graph = trace(lambda a, b, c, d: a * b - c + d, [torch.randn(3, 5) for _ in range(4)])
    for node, name in zip(graph.inputs, ("x", "in", "combine_sum", "tl"), strict=True):
        node.name = name
    (step,) = [step for step in plan_graph(graph).steps if isinstance(step, LaunchStep)]
    names = assigned(step.kernel.source)
    assert {"x_value", "in_value", "sum", "tl_value"} <= set(names) and len(names) == len(set(names))


def test_loads_that_wait_for_no_reduction_start_in_front_of_it() -> None:
    """The logit of a row's target too, whose place is loaded."""
    source = max(sources(lambda x, t: F.cross_entropy(x, t, reduction="none"),
                         [torch.randn(64, 256), torch.zeros(64, dtype=torch.int64)]), key=len)
    body = source[source.rindex("def fused"):]
    assert body.count("tl.load(") == 3 and "tl.load(" not in body[body.index("tl.reduce("):]


def test_quotients_by_powers_of_two_are_products() -> None:
    (source,) = sources(lambda x: (x / 8, x / 6), [torch.randn(64, 256)])
    body = source[source.rindex("def fused"):]
    assert "arg * 0.125" in body and body.count("div_rn(") == 1


def text_of_samples() -> str:
    return "\n".join(source for case in CASES if case.name in SAMPLE for source in sources(case.fn, case.make()))


def test_functions_are_short_where_results_have_16_bits() -> None:
    """Parameters may have 32 bits, if many elements share them."""
    x, vector, other = torch.randn(64, 256).bfloat16(), torch.randn(256), torch.randn(64, 256)
    for fn, inputs, is_short in (
            (lambda x, w: F.silu((x * w).bfloat16()), [x, vector], True),
            (lambda x, w: F.silu((x * w).bfloat16()), [x, other], False),
            (lambda x, w: F.silu(x * w), [x, vector], False)):
        (source,) = sources(fn, inputs)
        assert ("fast_expf" in source) is is_short


def test_same_text_in_every_process() -> None:
    """Nothing depends on the order of a set or on addresses."""
    program = "from tests.triton.test_source import text_of_samples; print(text_of_samples())"
    found = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": "12345"},
                           capture_output=True, text=True, check=True)
    assert found.stdout == text_of_samples() + "\n"


@pytest.mark.parametrize(("fn", "shape"), [
    (lambda x: x + 1, (2**31 + 4096,)), (lambda x: x.amax(-1), (32769, 65536)), (lambda x: x.sum(0), (2**21 + 1, 1024)),
    (lambda x: x.t() + x.t(), (2**20 + 1, 2048))], ids=["pointwise", "rows", "columns", "transposed"])
def test_positions_have_64_bits_where_needed(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    large, small = torch.empty(shape, dtype=torch.int8, device="meta"), torch.empty(33, *shape[1:], device="meta")
    assert "tl.program_id(0).to(tl.int64)" in sources(fn, [large])[0]
    assert "tl.int64" not in sources(fn, [small])[0]
