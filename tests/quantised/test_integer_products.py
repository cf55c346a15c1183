"""Products of int8 as torchao writes them for torch's compiler: `out_dtype` behind `is_compiling()`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo import is_compiling
from torch._higher_order_ops.out_dtype import out_dtype

import jitpy
from jitpy.ir.ops.matmul import INT8_PRODUCT, int8_mm
from tests.triton import cuda_captures

MM = torch.ops.aten.mm.default


def _bytes(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def _safe(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As torchao's `safe_int_mm`."""
    if is_compiling() or "FakeTensor" in a.__repr__():
        if a.device.type == "cpu":
            return out_dtype(MM, torch.int32, a.float(), b.float())
        return out_dtype(MM, torch.int32, a, b)
    return a.int() @ b.int()


@pytest.mark.parametrize("inner", [8, 4096])
def test_compiling_branch_of_products(inner: int) -> None:
    """Sums that float32 cannot hold are exact too."""
    for a, b in ((_bytes(4, inner), _bytes(inner, 3)),
                 (torch.full((3, inner), 127, dtype=torch.int8), torch.full((4, inner), 127, dtype=torch.int8).t())):
        a[0, 0] = 3
        assert torch.equal(jitpy.jit(_safe, fullgraph=True)(a, b), a.int() @ b.int())
        assert torch.equal(jitpy.jit(_safe, fullgraph=True, dynamic=True)(a, b), a.int() @ b.int())


@pytest.mark.parametrize("make", [
    lambda: (MM, torch.int32, _bytes(3, 5), _bytes(5, 4)),
    lambda: (MM, torch.int32, torch.randn(3, 5) * 9, torch.randn(5, 4)),
    lambda: (MM, torch.float64, torch.randn(3, 5), torch.randn(5, 4)),
    lambda: (torch.ops.aten.mul.Tensor, torch.int32, _bytes(6), _bytes(6)),
    lambda: (torch.ops.aten.mul.Scalar, torch.float32, _bytes(6), 3),
])
def test_out_dtype_is_that_of_eager(make) -> None:
    given = make()
    want = out_dtype(*given)
    got = jitpy.jit(lambda *tensors: out_dtype(*given[:2], *tensors), fullgraph=True)(*given[2:])
    assert got.dtype is want.dtype and torch.equal(got, want)


def test_refusals_are_those_of_eager() -> None:
    x = torch.ones(2, requires_grad=True)
    for given in ((torch.ops.aten.add.Tensor, torch.int32, x.detach(), x.detach()), ("mm", torch.int32, x)):
        for call in (out_dtype, jitpy.jit(lambda *tensors, given=given: out_dtype(*given[:2], *tensors))):
            with pytest.raises(ValueError, match="out_dtype"):
                call(*given) if call is out_dtype else call(*given[2:])


def graphs_on_a_gpu(folder: Path) -> None:
    """Prints the operators of products on a pretended GPU, by sizes."""
    cuda_captures.pretend(folder)
    found = {}
    for rows, inner, columns in ((32, 64, 16), (1, 64, 16), (32, 60, 15)):
        graph = cuda_captures.capture(lambda a, b: out_dtype(MM, torch.int32, a, b), _bytes(rows, inner),
                                      _bytes(inner, columns))
        found[f"{rows} {inner} {columns}"] = [[node.op.name for node in graph.nodes], str(graph.outputs[0].spec.dtype),
                                              list(graph.outputs[0].tensor.shape)]
    print(json.dumps(found))


@pytest.mark.skipif(torch.cuda.is_available() or cuda_captures.compiler() is None, reason="a GPU is pretended")
def test_products_of_a_gpu_are_one_operator(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from tests.quantised import test_integer_products as t; " \
           f"t.graphs_on_a_gpu(Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, capture_output=True,
                          text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        f"{rows} {inner} {columns}": [[INT8_PRODUCT], "torch.int32", [rows, columns]]
        for rows, inner, columns in ((32, 64, 16), (1, 64, 16), (32, 60, 15))}


@pytest.mark.parametrize("sizes", [(32, 64, 16), (1, 64, 16), (32, 60, 15)])
def test_sizes_are_filled_up_for_the_library(sizes: tuple[int, int, int]) -> None:
    rows, inner, columns = sizes
    a, b = _bytes(rows, inner), _bytes(inner, columns)
    assert torch.equal(int8_mm(a, b), a.int() @ b.int())
