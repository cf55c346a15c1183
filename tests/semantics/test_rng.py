"""Random numbers: the same as eager's under the same seed, and the generators' states after it. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import os
import random
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from tests.semantics.harness import case, make_test

GENERATOR: Any = None


def graph_break() -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    import jitpy

    graph_break = jitpy.graph_break  # type: ignore[assignment]


def vec() -> torch.Tensor:
    return torch.randn(4)


def one():
    return (vec(),)


def leaf():
    return (torch.randn(4, requires_grad=True),)


@case(one, fullgraph=True)
def factories(x):
    return torch.rand(3), torch.randn(4) + x, torch.randint(0, 10, (5,)), torch.randperm(6)


@case(one, fullgraph=True)
def like_factories(x):
    return torch.rand_like(x), torch.randn_like(x) * x, torch.randint_like(x, 5), torch.empty_like(x).uniform_()


@case(one, fullgraph=True)
def in_place_fills(x):
    y = torch.empty(4)
    y.normal_(1, 2)
    z = torch.empty(4).exponential_()
    w = torch.zeros(4).bernoulli_(0.5)
    return y, z, w, torch.empty(3).geometric_(0.4), torch.empty(3).log_normal_(), torch.empty(3).cauchy_()


@case(one)
def distributions_of_tensors(x):
    p = x.sigmoid()
    return torch.bernoulli(p), torch.normal(x, 1.0), torch.normal(0.0, p), torch.normal(x, p), torch.poisson(p * 5)


@case(one)
def multinomial(x):
    return torch.multinomial(x.sigmoid(), 3), torch.multinomial(x.sigmoid(), 8, replacement=True)


@case(leaf, one, fullgraph=True)
def dropouts(x):
    y = F.dropout(x, 0.5)
    return y, F.dropout(x, 0.5, training=False), F.alpha_dropout(x, 0.3, training=True)


@case(lambda: (torch.randn(2, 3, 4, 4, requires_grad=True),))
def feature_dropouts(x):
    return F.dropout2d(x, 0.5), F.feature_alpha_dropout(x, 0.5, training=True)


@case(leaf)
def random_activations(x):
    return F.rrelu(x, training=True), F.gumbel_softmax(x), F.gumbel_softmax(x, hard=True)


@case(one, fullgraph=True)
def unused_draws_advance(x):
    torch.rand(3)
    torch.randn(2)
    return x * 2


@case(one, fullgraph=True)
def order_of_draws(x):
    a = torch.rand(2)
    b = torch.randn(2)
    c = torch.rand(2)
    return c, b, a


@case(one)
def same_draw_twice(x):
    a = torch.rand(4)
    b = torch.rand(4)
    return a + x, b + x


@case(one)
def draws_around_a_break(x):
    a = torch.rand(4)
    if x.sum() > 0:
        a = a + torch.rand(4)
    return a, torch.rand(4)


@case(one)
def draws_before_an_exception(x):
    y = torch.rand(4)
    raise ValueError(str(float(y[0])))


@case(one, fullgraph=True)
def seeded_inside(x):
    torch.manual_seed(3)
    return torch.rand(4) + x


@case(one, fullgraph=True)
def seeded_twice(x):
    torch.manual_seed(3)
    a = torch.rand(4)
    torch.manual_seed(3)
    return a, torch.rand(4)


@case(one, fullgraph=True)
def seed_read(x):
    torch.manual_seed(7)
    return torch.initial_seed(), x * 2


@case(one, fullgraph=True)
def state_saved_and_restored(x):
    state = torch.get_rng_state()
    a = torch.rand(4)
    torch.set_rng_state(state)
    b = torch.rand(4)
    return a, b, x * 2


@case(one, fullgraph=True)
def state_returned(x):
    y = torch.rand(4)
    return torch.get_rng_state(), y + x


@case(one)
def forked(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        a = torch.rand(4)
    return a, torch.rand(4) + x


@case(lambda: (torch.Generator().manual_seed(5), torch.randn(4)))
def generator_passed_in(g, x):
    return torch.rand(4, generator=g) + x, torch.randn(4, generator=g), torch.rand(4)


@case(lambda: (torch.Generator().manual_seed(5), torch.randn(4)))
def generator_state_after(g, x):
    y = torch.empty(4).uniform_(generator=g)
    return y, g.get_state(), g.initial_seed()


@case(one)
def generator_made_inside(x):
    g = torch.Generator()
    g.manual_seed(11)
    return torch.randperm(6, generator=g), torch.multinomial(x.sigmoid(), 2, generator=g)


@case(one, globals={"GENERATOR": lambda: torch.Generator().manual_seed(1)})
def generator_in_globals(x):
    return torch.rand(4, generator=GENERATOR) + x


@case(one, factory=True)
def python_random():
    random.seed(4)

    def fn(x):
        return x * random.random(), random.randint(0, 10), random.choice([1, 2, 3])

    return fn


@case(one, factory=True)
def python_random_branches():
    random.seed(4)

    def fn(x):
        return x * 2 if random.random() < 0.5 else x * 3

    return fn


@case(one, factory=True)
def python_random_object():
    rng = random.Random(3)

    def fn(x):
        items = [1, 2, 3, 4]
        rng.shuffle(items)
        return x * rng.uniform(0, 1), items, rng.gauss(0, 1)

    return fn


@case(one, factory=True)
def numpy_random():
    import numpy as np

    np.random.seed(4)
    rng = np.random.default_rng(2)

    def fn(x):
        return x * float(np.random.rand()), float(rng.random())

    return fn


@case(lambda: (torch.randn(2, 5),), factory=True)
def dropout_module_switched():
    drop = nn.Dropout(0.5)
    calls = [0]

    def fn(x):
        return drop(x)

    def outside(x):
        calls[0] += 1
        drop.train(calls[0] % 2 == 1)
        return fn(x)

    return outside, calls


@case(lambda: (torch.randn(2, 3, 8, requires_grad=True),), factory=True)
def attention_with_dropout():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)

    def fn(x):
        return layer(x)

    return fn, layer


@case(lambda: (torch.randn(1, 2, 3, 4, requires_grad=True),))
def sdpa_with_dropout(q):
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3)


@case(one, fullgraph=True)
def seed_all_and_default_generator(x):
    torch.default_generator.manual_seed(9)
    a = torch.rand(4)
    return a, torch.random.initial_seed(), x + 1


@case(one)
def random_distributions(x):
    normal = torch.distributions.Normal(x, x.exp(), validate_args=False)
    kinds = torch.distributions.Categorical(logits=x, validate_args=False)
    return normal.sample(), normal.rsample((2,)), kinds.sample()


@case(*(lambda i=i: (torch.ones(3), torch.tensor(i)) for i in (1, 9, 2)), factory=True)
def own_generator_where_an_index_is_wrong():
    generator = torch.Generator().manual_seed(3)
    log = []

    def fn(x, i):
        log.append(len(log))
        noise = torch.rand(3, generator=generator)
        return x[i] * noise, torch.rand(2)

    return fn, log


@case(lambda: (torch.randn(4, 6).t(),), lambda: (torch.randn(2, 3, 4).transpose(1, 2),), fullgraph=True)
def masks_of_transposed_tensors(x):
    return torch.empty_like(x).bernoulli_(0.5), x * x.detach().clone().bernoulli_(0.3), torch.bernoulli(x.sigmoid())


@case(lambda: (torch.randn(4, 6).t().requires_grad_(),), lambda: (torch.randn(8, 6)[::2].t().requires_grad_(),))
def dropout_of_transposed_tensors(x):
    return F.dropout(x * 1, 0.5) + 1, F.dropout(x, 0.2), F.alpha_dropout(x, 0.5, True)


def generated():
    return (torch.Generator().manual_seed(3),)


@case(generated, fullgraph=True)
def every_fill_from_a_generator(g):
    new = torch.ones(3)
    return (
        new.clone().exponential_(generator=g),
        new.clone().cauchy_(generator=g),
        new.clone().log_normal_(generator=g),
        new.clone().geometric_(0.3, generator=g),
        new.clone().normal_(generator=g),
        new.clone().uniform_(generator=g),
        new.clone().random_(generator=g),
        new.clone().bernoulli_(0.4, generator=g),
        torch.multinomial(new, 2, generator=g),
        torch.bernoulli(new * 0.5, generator=g),
        torch.normal(new, new, generator=g),
        torch.poisson(new, generator=g),
        torch.randperm(5, generator=g),
        torch.rand(2, generator=g),
    )


@case(one, factory=True)
def seeded_with_a_count():
    calls = [0]

    def fn(x):
        calls[0] += 1
        torch.manual_seed(calls[0])
        y = torch.rand(3) * x[:3]
        graph_break()
        return y, torch.rand(2)

    return fn, calls


@case(lambda: (torch.randn(3),), lambda: (torch.randn(4),), lambda: (torch.randn(5),))
def seeded_with_a_size(x):
    torch.manual_seed(x.shape[0])
    return torch.rand(3)


@case(one)
def seeded_with_a_value(x):
    torch.manual_seed(int(x.abs().sum() * 100))
    return torch.rand(3)


@case(one)
def seeds_that_torch_refuses(x):
    a = torch.rand(2)
    try:
        torch.manual_seed(1 << 70)
    except (RuntimeError, ValueError, OverflowError) as error:
        return a, type(error).__name__, torch.rand(3)


@case(one, fullgraph=True)
def seeded_with_a_negative_number(x):
    torch.manual_seed(-3)
    return torch.initial_seed(), torch.rand(3)


@case(one)
def seeded_before_an_error(x):
    torch.manual_seed(2)
    y = torch.rand(4)
    raise ValueError(f"{torch.initial_seed()} {y.shape}")


@case(one)
def seeded_where_an_index_is_wrong(x):
    torch.rand(2)
    torch.manual_seed(4)
    y = x[torch.randint(0, 10, (3,))]
    return y, torch.rand(3)


@case(one)
def forked_with_a_break(x):
    a = torch.rand(2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        b = torch.rand(4)
        graph_break()
        c = torch.rand(4)
    return a, b, c, torch.rand(4) + x, torch.initial_seed()


@case(one)
def forked_and_an_error(x):
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            a = torch.rand(4)
            raise KeyError("inside")
    except KeyError:
        return a, torch.rand(4)


@case(leaf, fullgraph=True)
def seeds_between_dropouts(x):
    torch.manual_seed(5)
    y = F.dropout(x, 0.5)
    torch.manual_seed(5)
    z = F.dropout(x * 2, 0.5)
    return y, z, F.dropout(y + z, 0.3)


@case(lambda: (torch.Generator().manual_seed(5), torch.randn(4)))
def own_generator_rewound(g, x):
    a = torch.rand(4, generator=g)
    state = g.get_state()
    b = torch.randn(3, generator=g)
    g.set_state(state)
    c = torch.randn(3, generator=g)
    g.manual_seed(3)
    return a, b, c, state, g.initial_seed(), torch.rand(2, generator=g), torch.rand(2)


@case(lambda: (torch.Generator().manual_seed(5), torch.randn(4)))
def seed_given_elsewhere(g, x):
    return g.initial_seed(), torch.initial_seed(), torch.rand(2, generator=g) + x[:2]


@case(one)
def states_that_torch_refuses(x):
    a = torch.rand(2)
    try:
        torch.set_rng_state(torch.zeros(5056, dtype=torch.uint8))
    except RuntimeError:
        return a, torch.rand(3)


@case(one)
def state_changed_and_set(x):
    state = torch.get_rng_state()
    kept = state.clone()
    torch.rand(3)
    kept.copy_(state)
    torch.set_rng_state(kept)
    return torch.rand(3), kept


@case(leaf)
def seeded_in_a_checkpoint(x):
    def part(x):
        torch.manual_seed(3)
        return F.dropout(x, 0.5).sin()

    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False) + torch.rand(4)


@case(one)
def seeded_in_a_branch(x):
    def seeded(x):
        torch.manual_seed(3)
        return x * torch.rand(4)

    y = seeded(x) if x.sum() > 0 else x + torch.rand(4)
    return y, torch.rand(2)


@case(one, factory=True)
def state_kept_in_an_object():
    class Replay:
        def __init__(self) -> None:
            self.state = torch.get_rng_state()

    replay = Replay()

    def fn(x):
        replay.state = torch.get_rng_state()
        a = torch.rand(3)
        torch.set_rng_state(replay.state)
        return a, torch.rand(3)

    return fn, replay


@case(lambda: (torch.randn(4), torch.Generator().manual_seed(5)), rounds=6)
def generator_passed_anew(x, generator):
    y = x * 2
    return y + torch.rand(4, generator=generator) * 3


@case(one, rounds=4)
def generator_made_at_each_call(x):
    g = torch.Generator()
    g.manual_seed(0)
    return torch.randn(4, generator=g) + x


# Whether attention takes a mask of this dtype was tried with its dropout, which drew from the program's generator.
@case(lambda: (torch.randn(1, 2, 4, 8), torch.ones(4, 4, dtype=torch.bool).tril()), fullgraph=True)
def attention_with_mask_and_dropout(x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask, dropout_p=0.5), torch.rand(2)


test_cases = make_test(__name__)
