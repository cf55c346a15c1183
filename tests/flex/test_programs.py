"""`flex_attention` inside of programs: blocks of a transformer, a training step, Hugging Face's models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import jitpy
from jitpy.engine import all_engines
from tests.counting import variants

torch_compiled = torch.compile(flex_attention)
masks_compiled = torch.compile(create_block_mask)


pytestmark = pytest.mark.usefixtures("plain_eager")


def one_graph(fn: Any, *args: Any) -> bool:
    return str(jitpy.explain(fn)(*args)).splitlines()[0].partition(": ")[2].startswith("1 graph, 0 graph breaks")


def causal(b, h, q, k):
    return q >= k


class Block(nn.Module):
    """Grouped heads, a soft cap, and a learnt bias by distance."""

    def __init__(self, width: int = 32, heads: int = 4, key_heads: int = 2) -> None:
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, width + 2 * width // heads * key_heads)
        self.out = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(heads, 64))

    def mod(self, score, b, h, q, k):
        return 15 * torch.tanh(score / 15) + self.bias[h, q - k]

    def forward(self, x, mask):
        batch, length, width = x.shape
        size = width // self.heads
        sizes = [width, self.key_heads * size, self.key_heads * size]
        q, k, v = (part.view(batch, length, -1, size).transpose(1, 2)
                   for part in self.project(self.norm(x)).split(sizes, -1))
        mixed = flex_attention(q, k, v, self.mod, mask, enable_gqa=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def trained(step: Any, model: nn.Module, inputs: list[torch.Tensor]) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [step(model, optimizer, x).item() for x in inputs]
    return [losses, [p.detach().clone() for p in model.parameters()]]


def test_a_training_step_of_blocks():
    def step(model, optimizer, x):
        optimizer.zero_grad()
        mask = create_block_mask(causal, None, None, x.size(1), x.size(1), device=x.device, BLOCK_SIZE=16)
        for block in model:
            x = block(x, mask)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = [torch.randn(2, 24, 32) for _ in range(3)]
    made = []
    for run in (step, jitpy.jit(step, fullgraph=True)):
        torch.manual_seed(1)
        made.append(trained(run, nn.Sequential(Block(), Block()), inputs))
    torch.testing.assert_close(made[1], made[0], atol=1e-5, rtol=1e-4)


def test_a_module_whose_backward_pass_runs_outside():
    model = Block()
    mask = create_block_mask(causal, None, None, 24, 24, device="cpu")
    x = torch.randn(2, 24, 32)
    found = []
    for run in (model, jitpy.jit(model, fullgraph=True)):
        model.zero_grad()
        run(x, mask).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_functions_that_torch_compiles():
    def fn(q, k, v):
        mask = masks_compiled(causal, None, None, 16, 16, device="cpu")
        return torch_compiled(q, k, v, block_mask=mask)

    def asked(q, k, v):
        mask = create_block_mask(causal, None, None, 16, 16, device="cpu", _compile=True)
        return flex_attention(q, k, v, block_mask=mask)

    given = [torch.randn(1, 2, 16, 8) for _ in range(3)]
    expected = flex_attention(*given, block_mask=create_block_mask(causal, None, None, 16, 16, device="cpu"))
    for one in (fn, asked):
        torch.testing.assert_close(jitpy.jit(one, fullgraph=True)(*given), expected)
        assert one_graph(one, *given)


def test_a_paged_cache():
    """Tokens of three sequences are decoded; pages of 16 keys lie in any order in memory that all share."""
    page, heads, width, lengths = 16, 4, 16, torch.tensor([40, 7, 25])
    rest = torch.arange(64) < lengths[:, None]

    def paged(n_pages: int) -> PagedAttention:
        table = PagedAttention(n_pages, page, 3, device="cpu")
        for step in range(1, 4):  # pages of one sequence are not neighbours
            for sequence in (2, 0, 1):
                table.reserve(torch.tensor(sequence), torch.minimum(lengths[sequence] + 4, torch.tensor(16 * step)))
        return table

    def by_distance(score, b, h, q, k):
        return score - (lengths[b] - k) * 0.1

    def decode(table, query, key, value, keys, values, positions, mask):
        table.assign(torch.arange(3), positions[:, None], key, value, keys, values)
        found = table.convert_logical_block_mask(mask, kv_len=positions + 1)
        score = table.get_score_mod(by_distance, kv_len=positions + 1)
        return flex_attention(query, keys, values, score, found, enable_gqa=True)

    table = paged(12)
    shape = 1, 2, 12 * page, width
    all_keys, all_values = torch.randn(3, 2, 64, width), torch.randn(3, 2, 64, width)
    caches = []
    for _ in range(2):
        keys, values = torch.zeros(shape), torch.zeros(shape)
        for b, length in enumerate(lengths.tolist()):
            table.assign(torch.tensor([b]), torch.arange(length)[None], all_keys[b:b + 1, :, :length],
                         all_values[b:b + 1, :, :length], keys, values)
        caches.append((keys, values))
    jitpy.reset()
    jitted, before = jitpy.jit(decode, fullgraph=True), variants()
    for step in range(3):
        positions = lengths + step
        seen = rest | (torch.arange(64) < positions[:, None] + 1)
        mask = create_block_mask(lambda b, h, q, k: k <= positions[b], 3, None, 1, 64, device="cpu", BLOCK_SIZE=page)  # noqa: B023
        query = torch.randn(3, heads, 1, width)
        new = [torch.stack([one[b, :, position][:, None] for b, position in enumerate(positions.tolist())])
               for one in (all_keys, all_values)]
        results = [call(table, query, *new, *cache, positions, mask)
                   for call, cache in zip((decode, jitted), caches, strict=True)]
        bias = (lengths[:, None] - torch.arange(64)) * -0.1
        bias = bias.masked_fill(~seen, float("-inf"))[:, None, None]
        dense = nn.functional.scaled_dot_product_attention(query, all_keys, all_values, bias, enable_gqa=True)
        for found in results:
            torch.testing.assert_close(found, dense)
        torch.testing.assert_close(caches[1], caches[0])
    assert variants() - before <= 2  # once more for functions that are made at each call
    graphs = [variant.graph for engine in all_engines() for variant in engine.variants]
    assert ["flex" in [kernel.style for part in graph.lowered for kernel in part.notes.kernels]
            for graph in graphs] == [True] * len(graphs)


def test_llama_of_hugging_face():
    transformers = pytest.importorskip("transformers")

    def model(attention: str) -> Any:
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=50, max_position_embeddings=64, attn_implementation=attention, use_cache=False))

    ids, mask = torch.randint(0, 50, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[0, -4:] = 0

    def step(model, mask):
        model.zero_grad()
        labels = ids if mask is None else ids.masked_fill(mask == 0, -100)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        return loss.detach()

    flexible, plain = model("flex_attention"), model("eager")
    for padding in (None, mask):
        expected = step(plain, padding)
        torch.testing.assert_close(jitpy.jit(step)(flexible, padding), expected)
        for own, other in zip(flexible.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, atol=1e-6, rtol=1e-4)
    assert one_graph(lambda: flexible(input_ids=ids, labels=ids).loss)


@pytest.mark.parametrize("attention", ["flex_attention", "sdpa"])
def test_padding_masks_of_hugging_face(attention):
    """Whether a mask hides anything is asked when a call begins: one graph, and none more for other sizes."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False, attn_implementation=attention)
    model = transformers.LlamaForCausalLM(config).eval()

    def logits(ids, mask):
        return model(ids, attention_mask=mask).logits * mask.unsqueeze(-1)

    compiled, before = jitpy.jit(logits, fullgraph=True), variants()
    with torch.no_grad():
        for batch, length in ((2, 12), (3, 17), (4, 9), (2, 20)):
            ids = torch.randint(0, 64, (batch, length))
            for hidden in (0, 3):
                mask = (torch.arange(length) >= hidden).long().repeat(batch, 1)
                torch.testing.assert_close(compiled(ids, mask), logits(ids, mask), rtol=1e-4, atol=1e-5)
    assert variants() - before <= 4
