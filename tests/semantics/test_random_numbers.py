"""Random numbers drawn outside torch: the same numbers, in the same order, and generators left as eager leaves them."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

import jitpy
from tests.semantics.harness import jit


def same(fn, *makers, calls=3, breaks=None, backend="eager", state=None):
    """Calls with equal seeds: results or exceptions, and what the generators draw next."""
    def play(f):
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)
        own = state() if state is not None else ()
        seen = []
        for call in range(calls):
            args = makers[call % len(makers)]()
            try:
                found = f(*args, *own)
            except Exception as error:
                found = type(error), str(error)
            seen.append((found, args, random.random(), np.random.rand(), torch.rand(1),
                         [g.random() for g in own if hasattr(g, "random")]))
        return seen

    jitpy.reset()
    expected = play(fn)
    compiled = play(jit(fn, backend=backend))
    for a, b in zip(expected, compiled, strict=True):
        assert_equal(a, b)
    if breaks is not None:
        jitpy.reset()
        own = state() if state is not None else ()
        report = jitpy.explain(fn)(*makers[0](), *own)
        assert tuple(r.reason.id for r in report.break_reasons) == breaks, report


def assert_equal(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif isinstance(a, np.random.Generator):
        assert a.bit_generator.state == b.bit_generator.state
    elif isinstance(a, dict):
        assert_equal(list(a.items()), list(b.items()))
    else:
        assert a == b, (a, b)


def x():
    return (torch.arange(12.0).reshape(4, 3),)


CAPTURED = {
    "random": lambda x: x * random.random(),
    "uniform": lambda x: x + random.uniform(-1, 1) * 2,
    "gauss": lambda x: (x + random.gauss(0, 1), random.gauss(0.0, 2.0)),
    "randint": lambda x: x[random.randint(0, 3)],
    "randrange": lambda x: (x[:, random.randrange(3)], random.randrange(2, 9)),
    "choice": lambda x: x * random.choice([0.5, 1.5, 2.5]),
    "choices": lambda x: sum(random.choices([1, 2, 3], k=4)) + x,
    "sample": lambda x: x[random.sample(range(4), 3)],
    "getrandbits": lambda x: x + random.getrandbits(8),
    "order": lambda x: x * random.random() + random.random() * random.uniform(0, 3),
    "number alone": lambda x: random.random(),
    "bool": lambda x: (x, random.random() < 0.5),
    "of a size": lambda x: x * random.randint(0, x.shape[0]),
    "of a draw": lambda x: x * random.uniform(0, random.random() + 1),
    "seeded inside": lambda x: (random.seed(3), x * random.random()),
    "np rand": lambda x: x * np.random.rand(),
    "np beta": lambda x: x * np.random.beta(0.3, 0.3),
    "np randint": lambda x: x[np.random.randint(4)],
    "np normal": lambda x: x + np.random.normal(0, 2.0),
    "np array": lambda x: torch.from_numpy(np.random.rand(4, 3)) + x,
    "np permutation": lambda x: x[torch.from_numpy(np.random.permutation(4))],
    "np array leaves": lambda x: (x + 1, np.random.randn(3), np.random.randint(0, 9, (2, 2))),
    "np seed": lambda x: (np.random.seed(5), x * np.random.rand()),
    "generator made inside": lambda x: x * random.Random(4).random(),
    "np generator made inside": lambda x: x + torch.from_numpy(np.random.default_rng(x.shape[0]).normal(size=3)),
    "np legacy generator made inside": lambda x: (x, np.random.RandomState(2).rand(), np.random.default_rng(1)),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_captured(name):
    same(CAPTURED[name], x, breaks=())


@pytest.mark.parametrize("name", ["random", "randint", "np array", "order"])
def test_generated_code(name):
    same(CAPTURED[name], x, backend="codegen")


def test_generators_from_outside():
    def fn(x, rng, legacy, modern):
        return (x * rng.random() + legacy.rand() + modern.random(), modern.integers(0, 5), rng.randint(1, 6),
                modern.normal(size=3), legacy.permutation(4))

    same(fn, x, breaks=(), state=lambda: (random.Random(3), np.random.RandomState(4), np.random.default_rng(5)))


def test_held_by_an_object():
    class Augment:
        def __init__(self):
            self.rng = random.Random(1)
            self.seen = []

        def __call__(self, x):
            r = self.rng.uniform(0.5, 1.5)
            self.seen.append(r)
            return x * r

    def run(wrap):
        augment = Augment()
        call = wrap(lambda x: augment(x))
        results = [call(torch.ones(2)) for _ in range(4)]
        return results, augment.seen, augment.rng.random()

    jitpy.reset()
    assert_equal(run(lambda f: f), run(lambda f: jit(f, backend="eager", fullgraph=True)))


def test_branch_breaks_at_the_branch_only():
    def drop(x):
        y = x.sin()
        if random.random() < 0.5:
            return y
        return y * 2 + random.random()

    same(drop, x, calls=8, breaks=("data_dependent_branch",))


def test_a_probability_of_zero_is_no_branch():
    def drop(x, p=0.0):
        if random.random() < p or random.uniform(0, 1) < p:
            return x
        return x * 2

    same(drop, x, breaks=())


def test_stochastic_depth_constant_number_of_graphs():
    layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(6))

    def forward(x):
        for layer in layers:
            if random.random() < 0.5:
                continue
            x = layer(x)
        return x

    same(forward, x, calls=6)


def test_mixup():
    model = torch.nn.Linear(3, 2)

    def step(x):
        lam = float(np.random.beta(0.4, 0.4))
        order = torch.randperm(x.shape[0])
        mixed = lam * x + (1 - lam) * x[order]
        return model(mixed).sum(), lam

    same(step, x, breaks=(), calls=4)


def test_with_gradients():
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        loss = (x * w * random.random()).sum() * random.uniform(1, 2)
        loss.backward()
        grad = w.grad.clone()
        w.grad = None
        return loss.detach(), grad

    same(fn, x, calls=3)
    compiled = jit(lambda x: (x * w).sum() * random.random(), backend="codegen")
    random.seed(1)
    loss = compiled(x()[0])
    loss.backward()
    found, w.grad = w.grad, None
    random.seed(1)
    ((x()[0] * w).sum() * random.random()).backward()
    assert_equal(found, w.grad)
    w.grad = None


def test_graph_that_gives_up_draws_again():
    """Eager draws one number, raises, and has drawn no other."""
    def fn(x, i):
        a = random.random()
        y = x.index_select(0, i)
        return y * a + random.random()

    same(fn, lambda: (*x(), torch.tensor([1])), lambda: (*x(), torch.tensor([9])), calls=4)


def test_caught_failure():
    def fn(x, i):
        try:
            a = random.random()
            y = x.index_select(0, i) * np.random.rand()
        except (IndexError, RuntimeError):
            y = x * a
        return y * random.random()

    same(fn, lambda: (*x(), torch.tensor([1])), lambda: (*x(), torch.tensor([9])), calls=4)


def test_raised_by_the_program():
    def fn(x, bad):
        a = random.random()
        if bad:
            raise ValueError("stop")
        return x * a * random.random()

    same(fn, lambda: (*x(), False), lambda: (*x(), True), calls=4)


def test_refused_arguments():
    def fn(x):
        try:
            return x * random.randint(3, 1)
        except ValueError:
            return x * random.random()

    same(fn, x)


def test_shuffled_lists():
    def fn(x, items):
        random.shuffle(items)
        order = list(range(4))
        random.shuffle(order)
        return x[order], order

    same(fn, lambda: (*x(), [1, 2, 3, 4, 5]), breaks=())
    same(lambda x, items: random.shuffle(items), lambda: (*x(), ["a", "b", [1]]))


def test_state_is_read_between():
    def fn(x):
        a = random.random()
        state = random.getstate()
        b = random.random()
        random.setstate(state)
        return x * a * b, random.random() == b

    same(fn, x)


def test_in_checkpointed_region():
    from torch.utils.checkpoint import checkpoint

    w = torch.ones(3, requires_grad=True)

    def fn(x):
        y = checkpoint(lambda v: (v * w * random.random()).sin(), x, use_reentrant=False)
        y.sum().backward()
        grad = w.grad.clone()
        w.grad = None
        return grad

    same(fn, x)


def test_printed():
    def fn(x):
        r = random.random()
        text = f"{r:.3f}"
        return x * r, text

    same(fn, x)


def test_subclass_of_a_generator_runs_its_own_code():
    class Counting(random.Random):
        calls = 0

        def random(self):
            Counting.calls += 1
            return 0.25

    def fn(x, rng):
        return x * rng.random() + rng.uniform(0, 4), Counting.calls

    def state():
        Counting.calls = 0
        return (Counting(1),)

    same(fn, x, state=state)


def test_generator_made_inside_lives_on():
    class Loader:
        rng = None

        def __call__(self, x, seed):
            if self.rng is None:
                self.rng = random.Random(seed)
            rng = self.rng
            y = x * rng.random()
            print(end="")
            return y, rng.random(), self.rng is rng

    def run(wrap):
        loader = Loader()
        call = wrap(lambda x, seed: loader(x, seed))
        found = [call(torch.ones(2), seed) for seed in (1, 2, 3)]
        return found, loader.rng.getstate()

    jitpy.reset()
    assert_equal(run(lambda f: f), run(lambda f: jit(f, backend="eager")))


def test_another_generator_comes():
    def fn(x, rng):
        return x * rng.random()

    def run(f):
        first, second = random.Random(1), random.Random(2)
        return [f(torch.ones(1), rng) for rng in (first, second, first, second)]

    jitpy.reset()
    assert_equal(run(fn), run(jit(fn, backend="eager", fullgraph=True)))


def test_the_first_generator_of_a_process():
    """A generator of numpy's that is made before anything else of its module was called."""
    code = """
import numpy as np, numpy.random, torch, jitpy
def fn(x):
    return x + np.random.RandomState(3).rand()
assert not jitpy.explain(fn)(torch.ones(2)).break_reasons
assert torch.equal(jitpy.jit(fn)(torch.ones(2)), fn(torch.ones(2)))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
