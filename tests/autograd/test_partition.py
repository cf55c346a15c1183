"""What is kept for the backward pass, and what a smaller budget does."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import jitpy
from jitpy.autograd.flow import INFINITE, FlowGraph
from tests.autograd.models import MODELS, Step, twin


def saved_bytes(run: object) -> int:
    """Bytes of distinct memory that a forward pass saves."""
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()  # type: ignore[operator]
    return sum(seen.values())


def mlp() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2))))
    return model, torch.randn(256, 64)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_budgets_change_nothing_but_memory(name: str) -> None:
    if name != "resnet":
        pytest.importorskip("transformers")
    model, loss = MODELS[name]()
    model.train()
    state = twin(model).state_dict()
    wanted = Step(model, loss)
    kept = []
    for budget in (1.0, 0.5, 0.0):
        model.load_state_dict(state)
        with jitpy.config.patch(activation_memory_budget=budget):
            compiled = jitpy.jit(lambda m: loss(m))  # noqa: B023
            found = Step(model, compiled)
        torch.testing.assert_close(found.loss, wanted.loss)
        for key, grad in wanted.grads.items():
            torch.testing.assert_close(found.grads[key], grad, rtol=1e-3, atol=1e-5)
        assert found.random == wanted.random
        kept.append(saved_bytes(lambda: compiled(model)))  # noqa: B023
    assert kept[0] > kept[1] >= kept[2]


def test_no_more_is_kept_than_eager_keeps() -> None:
    model, x = mlp()
    compiled = jitpy.jit(model)
    compiled(x)
    assert saved_bytes(lambda: compiled(x)) <= saved_bytes(lambda: model(x))


def test_masks_are_kept_as_bytes() -> None:
    """A dropout mask takes one byte an element; what it multiplies by follows from that."""
    x = torch.randn(1000, 100, requires_grad=True)
    compiled = jitpy.jit(lambda x: torch.nn.functional.dropout(x, 0.3).sum())
    compiled(x)
    assert saved_bytes(lambda: compiled(x)) == x.numel()


def test_inputs_that_eager_does_not_keep_may_change() -> None:
    """x is not read by the gradient of exp(2 x): only the result is."""
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    compiled = jitpy.jit(lambda x, w: ((x * 2).exp() * w).sum())
    wanted = (x * 2).exp()
    for _ in range(2):
        x_now = x.clone()
        y = compiled(x_now, w)
        x_now.zero_()
        (grad,) = torch.autograd.grad(y, w)
        torch.testing.assert_close(grad, wanted)


def test_minimum_cut() -> None:
    flow = FlowGraph()
    for start, end, capacity in (("s", "a", INFINITE), ("a", "b", 3), ("b", "c", 1), ("a", "c", 1), ("c", "t", 2)):
        flow.add(start, end, capacity)
    assert flow.sink_side("s", "t") == {"t"}  # of the two cuts of 2 the one nearest to the sink
    endless = FlowGraph()
    endless.add("s", "t", INFINITE)
    assert endless.sink_side("s", "t") is None
    apart = FlowGraph()
    apart.add("s", "a", 1)
    assert apart.sink_side("s", "t") == {"t"}


def test_nothing_is_loaded_without_gradients() -> None:
    program = ("import sys, torch, jitpy; jitpy.jit(lambda x: x.sin() + 1)(torch.randn(3));"
               "print([n for n in sys.modules if n.startswith(('jitpy.autograd', 'networkx'))])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pooling_keeps_small_positions_and_no_input() -> None:
    """16 bits a result tell where its maximum is; what was pooled is asked for its sizes only."""
    x = torch.randn(2, 3, 32, 32, requires_grad=True)
    compiled = jitpy.jit(lambda x: torch.nn.functional.max_pool2d(x.exp() + x, 3, 2, 1).sum())
    (wanted,) = torch.autograd.grad(torch.nn.functional.max_pool2d(x.exp() + x, 3, 2, 1).sum(), x)
    (found,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(found, wanted)
    assert saved_bytes(lambda: compiled(x)) == x.nbytes + 2 * 2 * 3 * 16 * 16
    mean = jitpy.jit(lambda x: torch.nn.functional.avg_pool2d(x * 2, 2).sum())
    mean(x)
    assert saved_bytes(lambda: mean(x)) == 0


def test_positions_of_large_planes_keep_their_bits() -> None:
    x = torch.randn(1, 1, 256, 256, requires_grad=True)
    compiled = jitpy.jit(lambda x: torch.nn.functional.max_pool2d(x * 2, 2).square().sum())
    (wanted,) = torch.autograd.grad(torch.nn.functional.max_pool2d(x * 2, 2).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], wanted)


def test_returned_positions_stay_as_they_are() -> None:
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    compiled = jitpy.jit(lambda x: torch.nn.functional.max_pool2d(x, 2, return_indices=True))
    values, positions = compiled(x)
    wanted, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(positions, places) and positions.dtype is torch.int64
    assert torch.equal(torch.autograd.grad(values.sum(), x)[0], torch.autograd.grad(wanted.sum(), x)[0])


def test_a_mask_is_kept_where_only_the_sign_is_read() -> None:
    """The gradient of relu asks where its result is positive: a byte an element."""
    x = torch.randn(64, 64, requires_grad=True)
    with torch.no_grad():
        x[0, 0] = float("nan")
    compiled = jitpy.jit(lambda x: ((x.sum(1) @ x).sin().relu() * 3).sum())
    (wanted,) = torch.autograd.grad(((x.sum(1) @ x).sin().relu() * 3).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], wanted, equal_nan=True)
    y = torch.randn(1000, requires_grad=True)
    signs = jitpy.jit(lambda y: (y.erfinv().relu() * 3).sum())
    torch.testing.assert_close(torch.autograd.grad(signs(y), y)[0],
                               torch.autograd.grad((y.erfinv().relu() * 3).sum(), y)[0], equal_nan=True)
