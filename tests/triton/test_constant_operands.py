"""Every op of the table on what the graph itself made, as Triton kernels: they print, and compile to machine code.

The calls are those of `tests/ops/test_constant_operands.py`. By default a hash chooses one group of ops in four of the
sample there; `JITPY_TEST_ALL=1` takes all. No GPU is needed.
"""

from __future__ import annotations

import warnings
import zlib

import pytest
import torch

import jitpy
from jitpy.backends.triton import plan_graph
from jitpy.engine import all_engines
from jitpy.ir.graph import Graph
from jitpy.ir.passes import run_passes
from jitpy.runtime.gpu.compile import Target, compile_kernels
from jitpy.runtime.plan import LaunchStep
from tests.databases.comparing import ALL
from tests.ops.test_constant_operands import Function, function_of, groups

pytest.importorskip("triton")

HOPPER = Target("cuda", 90)


def graphs_of(function: Function) -> list[Graph]:
    """The graph captured of the function, with symbolic sizes where these can be symbolic."""
    jitpy.reset()
    jitted = jitpy.jit(function.callable(function.lines), backend="eager")
    for inputs in function.calls:
        jitted(**inputs)
    return [variant.graph for engine in all_engines() for variant in engine.variants if variant.graph is not None]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "names"), [group for group in groups()
                                              if ALL or zlib.crc32(str(group.id).encode()) % 4 == 0])
def test_prints_and_compiles(dtype: torch.dtype, names: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = function_of(names, dtype)
        graphs = graphs_of(function) if function.lines else []
    assert_they_compile(graphs)


def assert_they_compile(graphs: list[Graph]) -> None:
    kernels = {step.kernel: None for graph in graphs for step in plan_graph(run_passes(graph)).steps
               if isinstance(step, LaunchStep)}
    for binary in compile_kernels(list(kernels), HOPPER):
        assert binary.code[:4] == b"\x7fELF"


CONSTANTS = {
    "signbit": lambda x: torch.signbit(torch.zeros(400, dtype=torch.half)),
    "gathered": lambda x: torch.zeros(1, dtype=torch.half).gather(0, torch.zeros(1, dtype=torch.int64)),
    "summed": lambda x: torch.full((5,), 3, dtype=torch.int32)[x.long()].sum(),
    "any": lambda x: torch.zeros(5, dtype=torch.bool)[x.long()].any(),
    "degrees": lambda x: torch.zeros(5).index_add(0, x.long(), torch.ones(5)),
    "unique": lambda x: torch.unique(x, return_inverse=True)[1] + torch.nonzero(x > 1).sum(),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_where_a_tensor_is_needed(name: str) -> None:
    """A method of a constant, a broadcast constant; and results whose sizes nothing reads."""
    jitpy.reset()
    jitted = jitpy.jit(CONSTANTS[name], backend="eager")
    jitted(torch.rand(5))
    assert_they_compile([v.graph for engine in all_engines() for v in engine.variants if v.graph is not None])
