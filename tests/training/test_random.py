"""Random numbers under training: drawn as eager draws them, reproducible, and no reason to compile again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitpy
from jitpy.engine import all_engines


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 3)
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        h = self.drop(self.first(x).relu())
        if self.training:
            h = h + 0.1 * torch.randn_like(h)
        return self.second(nn.functional.dropout(h, 0.2, self.training))


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_training_repeats_under_a_seed(backend):
    """Losses, gradients and the generator's state after each step are eager's, and the same again for the same seed."""
    torch.manual_seed(0)
    model = Noisy()
    x = torch.randn(5, 6)
    compiled = jitpy.jit(model, backend=backend, fullgraph=True)

    def steps(run):
        torch.manual_seed(7)
        found = []
        for _ in range(3):
            model.zero_grad()
            loss = run(x).square().sum()
            loss.backward()
            found.append((loss.detach(), [p.grad.clone() for p in model.parameters()], torch.get_rng_state()))
        return found

    expected, first, second = steps(model), steps(compiled), steps(compiled)
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    assert not torch.equal(first[0][0], first[1][0])


def test_flips_between_modes_compile_twice():
    """train() and eval() have a variant each; masks are drawn in one of them only."""
    jitpy.reset()
    torch.manual_seed(0)
    model = Noisy()
    compiled = jitpy.jit(model, fullgraph=True)
    x = torch.randn(5, 6)
    for _ in range(3):
        for training in (True, False):
            model.train(training)
            torch.manual_seed(3)
            expected = model(x)
            state = torch.get_rng_state()
            torch.manual_seed(3)
            torch.testing.assert_close(compiled(x), expected)
            assert torch.equal(torch.get_rng_state(), state)
    assert sum(len(engine.variants) for engine in all_engines()) == 2


def _drawing(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return (x * torch.rand(4, generator=generator) + torch.rand(4)).pow(3)


def _seeding(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    generator.manual_seed(1)
    noise = torch.rand(4, generator=generator)
    torch.manual_seed(4)
    return (x * noise + torch.rand(4)).pow(3)


@pytest.mark.parametrize("fn", [_drawing, _seeding])
def test_second_derivatives_draw_again_from_a_generator_of_the_programs_own(fn):
    """The graph runs again from the state that its generators had, and leaves them as they are."""

    def trial(run):
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        x, found = torch.ones(4, requires_grad=True), []
        for _ in range(2):
            (gradient,) = torch.autograd.grad(run(x, generator).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(gradient.sum(), x)
            found += [gradient.detach(), second, torch.rand(1, generator=generator), torch.rand(1)]
        return found

    torch.testing.assert_close(trial(jitpy.jit(fn, fullgraph=True)), trial(fn))
