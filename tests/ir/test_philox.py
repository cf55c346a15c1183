"""Numbers as eager's CUDA kernels draw them: by known answers, and by walking through their loops thread by thread."""

from __future__ import annotations

import math

import pytest
import torch

from jitpy.ir.builder import Builder
from jitpy.ir.graph import Graph
from jitpy.ir.op import NotCovered
from jitpy.ir.ops.philox import (
    DRAWN,
    MASK,
    MASKED,
    NORMAL,
    STATE,
    UNIFORM,
    Streams,
    _philox,
    drawn,
    dropout_mask,
    forward_scale,
    streams_of,
)
from jitpy.ir.passes.random_numbers import draw_in_kernels
from jitpy.ir.sizes import SizeEnv
from tests.graph_tools import trace

SEED, OFFSET = 0x1234_5678_9ABC_DEF1, 4 * 7


def philox(seed: int, counter: int, stream: int) -> list[int]:
    """Philox4x32-10 on Python's integers."""
    c = [counter & 0xFFFFFFFF, counter >> 32, stream & 0xFFFFFFFF, stream >> 32]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


class Thread:
    """One thread's generator: each call gives the next four numbers."""

    def __init__(self, number: int) -> None:
        self.number, self.counter = number, OFFSET // 4

    def four(self) -> list[int]:
        self.counter += 1
        return philox(SEED, self.counter - 1, self.number)


def walked(elements: int, streams: Streams) -> list[int]:
    """The number of each element, by the loops of eager's kernels."""
    found = [0] * elements
    for number in range(streams.threads):
        thread = Thread(number)
        if streams.vector == 1:
            for start in range(number, elements, streams.threads * 4):
                for k, value in enumerate(thread.four()):
                    if start + k * streams.threads < elements:
                        found[start + k * streams.threads] = value
            continue
        for start in range(number * streams.vector, elements, streams.threads * streams.vector):
            values = [value for _ in range(max(1, streams.vector // 4)) for value in thread.four()]
            found[start:start + streams.vector] = values[:streams.vector]
    return found


@pytest.mark.parametrize(("word", "expected"), [
    (0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]), (-1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD])])
def test_known_answers(word: int, expected: list[int]) -> None:
    key, counter = torch.tensor(word), torch.tensor([word])
    assert [number.item() for number in _philox(key, counter, counter)] == expected
    assert philox(word & (1 << 64) - 1, word & (1 << 64) - 1, word & (1 << 64) - 1) == expected


@pytest.mark.parametrize("vector", [1, 2, 4, 8])
@pytest.mark.parametrize("elements", [8, 1000, 4096, 16 * 1024 + 8])
def test_every_element(elements: int, vector: int) -> None:
    streams = Streams(512, vector)
    state, limit = torch.tensor([SEED, OFFSET]), 0.7
    mask = dropout_mask(state, (elements,), (1,), limit, streams.threads, vector, 0)
    numbers = torch.tensor(walked(elements, streams)).to(torch.float32) * 2.0**-32 + 2.0**-33
    assert torch.equal(mask, numbers < limit)
    later = dropout_mask(torch.tensor([SEED, OFFSET - 20]), (elements,), (1,), limit, streams.threads, vector, 20)
    assert torch.equal(mask, later)


@pytest.mark.parametrize(("elements", "vector", "expected", "increment"), [
    (1, 8, Streams(256, 1), 4), (12, 8, Streams(256, 4), 4), (6, 8, Streams(256, 2), 4), (257, 8, Streams(512, 1), 4),
    (1 << 20, 8, Streams(1056 * 256, 8), 4), ((1 << 20) + 33 * 4096, 4, Streams(1056 * 256, 4), 8),
    (1 << 26, 8, Streams(1056 * 256, 8), 252)])
def test_grids(elements: int, vector: int, expected: Streams, increment: int) -> None:
    """On an H200, which holds 132 times 8 blocks."""
    streams = streams_of(elements, vector, 1056)
    assert (streams, streams.increment(elements)) == (expected, increment)


@pytest.mark.parametrize("rows", [2, 5, 130, 4000, 30000])
def test_symbolic_numbers_of_elements(rows: int) -> None:
    """One numbering serves all sizes: it draws what eager's grid for each of them draws."""
    env = SizeEnv()
    size = env.new_symbol(rows, "rows", 0)
    found, expected = streams_of(size * 32, 8, 8), streams_of(rows * 32, 8, 8)
    assert env.hint(found.increment(size * 32)) == expected.increment(rows * 32)
    state = torch.tensor([SEED, OFFSET])
    masks = [dropout_mask(state, (rows * 32,), (1,), 0.3, one.threads, one.vector, 0) for one in (found, expected)]
    assert torch.equal(*masks) and not env.entry_relations()


def test_symbolic_neighbours() -> None:
    """Which elements a thread draws for must not depend on sizes."""
    size = SizeEnv().new_symbol(6, "rows", 0)
    with pytest.raises(NotCovered):
        streams_of(size * 4, 8, 1056)
    assert streams_of(size * 4, 4, 1056).vector == 4


def test_order_in_memory() -> None:
    """Neighbours in memory are drawn for together; single elements in row-major order."""
    state = torch.tensor([SEED, OFFSET])
    for vector in (1, 4):
        mask = dropout_mask(state, (6, 4), (1, 6), 0.5, 256, vector, 0)
        flat = dropout_mask(state, (24,), (1,), 0.5, 256, vector, 0)
        assert mask.stride() == (1, 6)
        assert torch.equal(flat, (mask.t() if vector == 4 else mask).reshape(-1))


@pytest.mark.parametrize("elements", [8, 1000, 16 * 1024 + 8])
def test_uniform_numbers(elements: int) -> None:
    """From the lower end, which the upper one becomes, each rounded once."""
    state, streams = torch.tensor([SEED, OFFSET]), Streams(512, 1)
    units = torch.tensor(walked(elements, streams)).to(torch.float32) * 2.0**-32 + 2.0**-33
    for dtype, scale, shift in ((torch.float32, 1.0, 0.0), (torch.bfloat16, 1.0, 0.0), (torch.float32, 3.5, -1.25)):
        found = drawn(state, (elements,), (1,), dtype, UNIFORM, scale, shift, streams.threads, 0)
        wanted = (units.double() * scale + shift).to(torch.float32).to(dtype)
        assert found.dtype is dtype and found.min() >= shift and found.max() < shift + scale
        assert torch.equal(found, torch.where(wanted == shift + scale, shift, wanted))
        later = drawn(torch.tensor([SEED, OFFSET - 20]), (elements,), (1,), dtype, UNIFORM, scale, shift, 512, 20)
        assert torch.equal(found, later)


def test_normal_numbers() -> None:
    """Two from two."""
    state, streams, elements = torch.tensor([SEED, OFFSET]), Streams(512, 1), 5000
    found = drawn(state, (elements,), (1,), torch.float32, NORMAL, 2.0, 0.5, streams.threads, 0)
    for number in (0, 7, 511):
        values = [x for start in range(number, elements, 4 * 512) for x in found[start::512][:4].tolist()]
        thread, wanted = Thread(number), []
        while len(wanted) < len(values):
            a, b, c, d = ((k + 0.5) / 2**32 for k in thread.four())
            for first, second in ((a, b), (c, d)):
                away, angle = math.sqrt(-2 * math.log(first)), 2 * math.pi * second
                wanted += [away * math.sin(angle), away * math.cos(angle)]
        assert values == pytest.approx([2 * x + 0.5 for x in wanted[:len(values)]], abs=1e-5)
    many = drawn(state, (100, 1000), (1, 100), torch.float32, NORMAL, 1.0, 0.0, 512, 0)
    assert abs(many.mean()) < 0.01 and abs(many.std() - 1) < 0.01 and many.stride() == (1, 100)


def test_random_tensors() -> None:
    """All states at once; what no kernel reads, what is large and what has another generator stay with eager."""
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = drop(torch.rand_like(x) * torch.randn(y.shape), 0.1)
        bounded = torch.ops.aten.uniform(x, -1, 3) + torch.ops.aten.normal_functional(y, 2, 5)
        return first, bounded, torch.randn(3, 5)

    nodes = rewritten(fn).nodes
    assert [node.op.name for node in nodes if node.op.is_random] == [STATE, "aten.randn.default"]
    drawn_nodes = [node for node in nodes if node.op.name == DRAWN]
    assert [node.args[4:7] for node in drawn_nodes] == [
        (UNIFORM, 1.0, 0.0), (NORMAL, 1.0, 0.0), (UNIFORM, 4.0, -1.0), (NORMAL, 5.0, 2.0)]
    assert [node.args[-1] for node in drawn_nodes] == [0, 4, 12, 16]
    assert not any(node.op.name == DRAWN for node in rewritten(lambda x, y: x + torch.rand_like(x), (1501, 1501)).nodes)
    generator = torch.Generator()
    graph = rewritten(lambda x, y: x + torch.rand(8, 16, generator=generator))
    assert not any(node.op.name == DRAWN for node in graph.nodes)


def drop(x: torch.Tensor, probability: float) -> torch.Tensor:
    return torch.native_dropout(x, probability, True)[0]


def two_times(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = drop(x * 2, 0.1)
    second, mask = torch.native_dropout(y + 1, 0.25, True)
    return first + second, mask


def rewritten(fn: object, shape: tuple[int, ...] = (8, 16)) -> Graph:
    graph = trace(fn, [torch.randn(shape), torch.randn(shape)])
    draw_in_kernels(graph, 1056)
    return graph


def test_a_state_is_drawn_once() -> None:
    nodes = {node.name: node for node in rewritten(two_times).nodes}
    assert [node.op.name for node in nodes.values()].count(STATE) == 1
    masks = [node for node in nodes.values() if node.op.name == MASK]
    (state,) = {mask.args[0] for mask in masks}
    assert [mask.args[-1] for mask in masks] == [0, 4] and state.args[1] == 8
    assert [node.op.name for node in nodes.values()].count(MASKED) == 2


def test_order_among_random_calls() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return drop(x, 0.1) + torch.bernoulli(x.sigmoid()) + drop(y, 0.1)

    names = [node.op.name for node in rewritten(fn).nodes if node.op.is_random]
    assert names == [STATE, "aten.bernoulli.default", STATE]


def test_without_a_mask() -> None:
    """The node keeps its name and its place."""
    graph = trace(lambda x: (x * 2,), [torch.randn(8, 16)])
    node = Builder(graph).call("aten.dropout.default", graph.outputs[0], 0.1, True)
    graph.outputs[:] = [node]
    assert draw_in_kernels(graph, 1056) and graph.outputs == [node]
    assert node.op.name == MASKED and node.args[1].op.name == MASK


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_nothing_to_draw(probability: float) -> None:
    graph = rewritten(lambda x, y: drop(x, probability) * y)
    assert all(node.op.name != STATE for node in graph.nodes)


def test_what_stays_with_eager() -> None:
    """Numbers that cannot be shared are drawn at four times the cost: few of them only."""
    assert all(node.op.name != STATE for node in rewritten(two_times, (1501, 1501)).nodes)
    assert any(node.op.name == STATE for node in rewritten(two_times, (151, 151)).nodes)


def test_scale() -> None:
    for probability in (0.1, 0.2, 1 / 3, 0.9):
        kept = torch.tensor(1 - probability, dtype=torch.float32)
        assert forward_scale(probability) == (torch.ones(()) / kept).item()
