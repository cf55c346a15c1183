"""Pieces of research code that once went wrong, each as its author wrote it."""

from __future__ import annotations

import random

import torch

from .harness import case, make_test


def emissions(length):
    return lambda: (torch.randn(3, length, 4), torch.randint(0, 4, (3, length)))


@case(emissions(4), emissions(5), emissions(6))
def score_of_tags(emission, tags):
    score = emission[:, 0].gather(1, tags[:, :1]).squeeze(1)
    for t in range(1, emission.size(1)):
        score = score + emission[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
    return score


def spectrum():
    return torch.randn(2, 3, 16), torch.randn(3, 3, 4, dtype=torch.cfloat, requires_grad=True)


@case(spectrum)
def fourier_layer(x, weight):
    modes = torch.fft.rfft(x)
    out = torch.zeros(x.size(0), x.size(1), x.size(-1) // 2 + 1, dtype=torch.cfloat)
    out[:, :, :4] = torch.einsum("bix,iox->box", modes[:, :, :4], weight)
    out[0] = out[0].conj() * 2
    out[:, -1, 1:3] = weight[0, :2, 0]
    return torch.fft.irfft(out, n=x.size(-1))


def a_parameter():
    return torch.randn(4, requires_grad=True), torch.randn(4)


@case(*[lambda n=n: (*a_parameter(), n) for n in (3.0, 2.0, 1.0, 0.5)], factory=True)
def own_update():
    """The call is refused, and tried again with the values of its numbers: its keywords are still keywords."""
    log = []

    def update(weight, direction, rate):
        weight.addcdiv_(direction, direction.abs() + 1, value=-rate)

    def step(weight, direction, rate):
        loss = (weight * weight).sum()
        with torch.no_grad():
            try:
                update(weight, direction, rate)
            finally:
                log.append(rate)
        return loss.detach()

    return step, log


@case(*[lambda n=n: (torch.randn(3), n) for n in (3, 4, 5)], fullgraph=True)
def factors_by_keyword(x, n):
    return torch.sub(x, alpha=n, other=x * 2), torch.addcdiv(x, tensor2=x.abs() + 9, tensor1=x, value=n / 3)


@case(*[lambda n=n: (torch.randn(3), n) for n in (3, 4, 5, 6, 7)], breaks=("data_dependent_branch",), factory=True)
def numbers_at_random():
    """Numbers are drawn in front of the graph; a branch on one of them ends it."""
    drawn = []
    own = random.Random(5)

    def step(x, seed):
        random.seed(seed)
        order = list(range(4))
        random.shuffle(order)
        drawn.append((order, random.sample(range(9), 3)))
        return x * random.randrange(5) + own.choice([1, 2]) * (x if own.random() < 0.5 else -x)

    return step, drawn


test_all = make_test(__name__)
