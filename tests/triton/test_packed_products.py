"""Products with weights of four bits in torch's layout for tensor cores, by templates."""

from __future__ import annotations

import pytest
import torch

from jitpy.backends.triton import plan_graph, target
from jitpy.ir.spec import contiguous_spec
from jitpy.runtime.gpu.compile import Target, compile_kernels
from tests.triton.cases import BF16, Tensor
from tests.triton.test_products import launches, run
from tests.triton.test_quantised_products import begun

pytest.importorskip("triton")


def words_of(numbers: Tensor, inner: int) -> Tensor:
    """Numbers from 0 to 15 in words, as the comments of torch's kernel describe them: a lane of a warp has a column,
    and of two tiles of 16 four numbers each."""
    columns, depth = numbers.shape
    words = torch.zeros(columns // 8, depth // (32 * inner), 32, inner, dtype=torch.int64)
    for lane in range(32):
        for word in range(inner):
            found = 0
            for bit, (tile, eighth, odd) in enumerate([(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0),
                                                       (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]):
                k = (2 * word + tile) * 16 + eighth * 8 + lane % 4 * 2 + odd
                found = found | numbers[lane // 4::8, k::32 * inner].long() << 4 * bit
            words[:, :, lane, word] = found
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@pytest.mark.parametrize("rows", [2, 16, 40, 100])
@pytest.mark.parametrize("inner, group, depth", [(4, 128, 256), (4, 32, 256), (4, 256, 512), (2, 64, 192),
                                                 (1, 32, 96), (4, 128, 8192)])
def test_numbers(rows: int, inner: int, group: int, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number reaches its place, with the factor and the term of its group."""
    monkeypatch.setattr(target, "has_clusters", lambda device: True)
    numbers = torch.randint(0, 16, (48, depth))
    scales = torch.rand(depth // group, 48, 2).to(BF16)
    inputs = torch.randn(rows, depth).to(BF16), words_of(numbers, inner), scales
    graph, b, (x, words, factors) = begun(inputs)
    product = b.call("aten._weight_int4pack_mm.default", x, words, group, factors,
                     spec=contiguous_spec(BF16, (rows, 48), torch.device("cpu")))
    graph.outputs = [b.call("aten.relu.default", product)]
    plan = plan_graph(graph, products="some")
    assert len(launches(plan)) == 1
    assert compile_kernels([step.kernel for step in launches(plan)], Target("cuda", 90))
    factor, term = scales.float().repeat_interleave(group, 0).permute(2, 1, 0)
    weight = ((numbers - 8) * factor + term).to(BF16)
    wanted = (inputs[0].double() @ weight.double().t()).relu()
    assert (run(plan, inputs)[0] - wanted).norm() <= 3e-3 * wanted.norm()


def test_only_factors_are_read_as_words() -> None:
    """Numbers of two bytes that a program adds may lie anywhere, one that is an element of others too."""
    numbers, scales = torch.randint(0, 16, (48, 256)), torch.rand(2, 48, 2).to(BF16)
    inputs = torch.randn(16, 256).to(BF16), words_of(numbers, 4), scales, torch.randn(2).to(BF16)[1]
    graph, b, (x, words, factors, number) = begun(inputs)
    product = b.call("aten._weight_int4pack_mm.default", x, words, 128, factors,
                     spec=contiguous_spec(BF16, (16, 48), torch.device("cpu")))
    graph.outputs = [b.call("aten.mul.Tensor", product, number)]
    (step,) = launches(plan_graph(graph, products="some"))
    text = step.kernel.source
    assert text.count(".to(tl.pointer_type(tl.int32))") == 1
    pointer = next(name for name, kind in step.kernel.signature if kind == "*bf16" and f"tl.load({name})" in text)
    assert f"{pointer}.to(" not in text
    graph, b, (x, words, factors, number) = begun(inputs)
    factors = b.call("aten.mul.Tensor", factors, number)
    graph.outputs = [b.call("aten._weight_int4pack_mm.default", x, words, 128, factors,
                            spec=contiguous_spec(BF16, (16, 48), torch.device("cpu")))]
    assert all("tl.int32)" not in step.kernel.source for step in launches(plan_graph(graph, products="some")))
