"""Results of one call that are computed from each other: each can be watched, differentiated to, and changed, as in
eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import jitpy

Program = Callable[..., tuple[torch.Tensor, ...]]

#: name -> (maker of a program of one tensor of shape (4, 6), whether its results depend on each other in a chain)
PROGRAMS: dict[str, tuple[Callable[[], Program], bool]] = {}


def program(chain: bool = True) -> Any:
    def register(make: Callable[[], Program]) -> Callable[[], Program]:
        PROGRAMS[make.__name__] = make, chain
        return make

    return register


def plain(fn: Program, chain: bool = True) -> None:
    PROGRAMS[fn.__name__] = lambda: fn, chain


def two(x):
    y = x.sin()
    return y, (y * 3).exp()


def the_other_way_round(x):
    y = x.sin()
    return (y * 3).exp(), y


def chain_of_four(x):
    a = x.sin()
    b = (a * 2).cos()
    c = b.exp() + a
    return a, b, c, (c * b).tanh()


def branches(x):
    a, b = x.sin(), x.cos()
    return a, (a * 2).exp(), b, (b * 3).tanh()


def between_them(x):
    h = x.sin()
    y = h.tanh()
    return y, y * h.exp()


def used_twice(x):
    y = x.sin()
    return y, y.cos() + y.exp(), (y * y).sum(1)


def view_of_a_result(x):
    y = x.sin()
    v = y.view(2, 12)
    return y, v, v.exp()


def through_a_view(x):
    y = x.sin()
    return y, y.t().exp().t().contiguous()


def view_of_a_view(x):
    y = (x * 2).view(24)
    return y, y.view(2, 12).sin()


def view_of_the_input(x):
    y = x.view(24)
    return y, (y * 2).sin()


def base_and_view(x):
    h = x * 2
    return h.view(24), h.sin()


def the_input_too(x):
    y = x.sin()
    return x, y, y * 2


def parts_of_a_split(x):
    a, b, c = (x * 2).chunk(3, 1)
    return a, b, (a * c).sin(), (b + c).exp()


def parts_of_a_result(x):
    y = x * 2
    a, b = y.chunk(2, 1)
    return y, a, (a * b).exp()


def values_and_indices(x):
    values, indices = x.sort(1)
    return values, indices, (values * 2).exp()


def the_same_twice(x):
    y = x.sin()
    return y, y, y.exp()


def contiguous_of_itself(x):
    h = x * 2
    return h.contiguous(), h.sin()


def computed_twice(x):
    y, u = x.sin(), x.sin()
    return y, (u * 3).exp()


def there_and_back(x):
    y = -x
    return y, (-y).sin()


def detached(x):
    y = x.sin()
    return y, y.detach().exp() * x, (y.argmax(1) + 1) * x.sum()


def without_gradients(x):
    y = x.sin()
    with torch.no_grad():
        a = y.exp()
    return y, a, y * a


def integers(x):
    n = (x * 3).int()
    return n, n * x, n.sum()


def other_dtypes(x):
    y = x.to(torch.float64)
    z = y.sin().float()
    return y, z, z.bfloat16() * 2


def written_in_place(x):
    y = x.sin()
    h = y * 2
    h.mul_(3)
    return y, h, h.exp()


def result_written_before(x):
    y = x * 1.5
    y.add_(1)
    return y, y.sin()


def matrices(x):
    k, v = x @ x.t(), x.t() @ x
    s = (k / 3).softmax(-1) @ x
    return k, v, s, (s @ v).mean()


def normalised(x):
    y = nn.functional.layer_norm(x, (6,))
    return y, nn.functional.gelu(y), y.log_softmax(-1).mean()


for one in (two, the_other_way_round, chain_of_four, between_them, view_of_a_result, through_a_view, view_of_a_view,
            view_of_the_input, the_input_too, parts_of_a_result, values_and_indices, the_same_twice,
            contiguous_of_itself, there_and_back, without_gradients, other_dtypes, written_in_place,
            result_written_before, integers):
    plain(one)
for one in (branches, base_and_view, used_twice, parts_of_a_split, computed_twice, detached, matrices, normalised):
    plain(one, chain=False)


@program()
def random_numbers():
    def fn(x):
        a = nn.functional.dropout(x, 0.5)
        b = nn.functional.dropout(a * 2, 0.3)
        late = torch.rand(4, 6)
        c = (b + late).sin()
        return a, b, c, c * torch.randn(4, 6)

    return fn


@program(chain=False)
def a_network():
    torch.manual_seed(3)  # with four rows, a small eps makes differences of nearly equal numbers of the gradients
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, eps=0.1), nn.Dropout(0.4), nn.Linear(5, 3))

    def fn(x):
        hidden = net[1](net[0](x))
        logits = net[3](net[2](hidden))
        return hidden, logits, nn.functional.cross_entropy(logits, torch.tensor([0, 2, 1, 0])), \
            net[1].running_mean + 0, hidden * net[0].weight.sum()

    return fn


@program()
def checkpointed():
    def inner(y):
        a = (y * 2).tanh()
        return a, nn.functional.dropout(a, 0.5).sin()

    def fn(x):
        y = x.exp()
        a, b = checkpoint(inner, y, use_reentrant=False)
        return y, a, b, a * b

    return fn


@program(chain=False)
def changed_buffer():
    total = torch.zeros(6)

    def fn(x):
        y = x.sin() * (total + 1)
        total.copy_(y.detach().mean(0))
        z = y * total
        return y, total, z, total.view(2, 3), z.exp() * total

    return fn


@program()
def kept_elsewhere():
    class Holder:
        pass

    holder, found = Holder(), []

    def inside(x):
        holder.first = x.sin()
        found.append((holder.first * 2).exp())
        return found[-1].cos() * holder.first

    def fn(x):
        found.clear()
        last = inside(x)
        return holder.first, found[0], last

    return fn


@program(chain=False)
def an_autograd_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a * a, a * 3

        @staticmethod
        def backward(ctx, first, second):
            a, = ctx.saved_tensors
            return first * a * 2 + second * 3

    def fn(x):
        y = x.sin()
        a, b = Double.apply(y)
        return y, a, b, (a * b).exp()

    return fn


# -- what is done with the results ---------------------------------------------------------------------------------


def scalar(results: Any) -> torch.Tensor:
    return sum(((t.double() * (k + 1)).sum() for k, t in enumerate(results)), torch.zeros((), requires_grad=True))


def watchable(results: Any) -> list[torch.Tensor]:
    return [t for t in results if t.requires_grad]


def facts(results: Any) -> list[Any]:
    memory: dict[int, int] = {}
    return [(t.detach().clone(), t.requires_grad, t.is_leaf,
             memory.setdefault(t.untyped_storage().data_ptr(), k)) for k, t in enumerate(results)]


def hooks(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results, seen = fn(x), []
    for k, t in enumerate(watchable(results)):
        t.register_hook(lambda g, k=k: seen.append((k, g.clone())))
    scalar(watchable(results)).backward()
    return facts(results), seen if chain else sorted(seen, key=lambda pair: pair[0]), x.grad


def other_gradients(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    for k, t in enumerate(results):
        t.register_hook(lambda g, k=k: g * 0.5 + k)
    scalar(results).backward()
    return x.grad


def retained(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    for t in results:
        t.retain_grad()
    scalar(results[-1:]).backward(retain_graph=True)
    first = [None if t.grad is None else t.grad.clone() for t in (*results, x)]
    scalar(results).backward()
    return first, [t.grad for t in (*results, x)]


def pairs(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    return [torch.autograd.grad(scalar([a]), (b, x), retain_graph=True, allow_unused=True)
            for a in results for b in results]


def to_one(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    leaf = results[0]
    scalar(results[1:]).backward(inputs=[leaf])
    return leaf.grad, x.grad


def one_after_the_other(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    found = []
    for t in reversed(results):
        scalar([t]).backward(retain_graph=True)
        found.append(x.grad.clone())
    return found


def until_it_is_freed(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    scalar(results[-1:]).backward()
    scalar(results[-1:]).backward()


def second_derivatives(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    grads = torch.autograd.grad(scalar(results[-1:]), (results[0], x), create_graph=True, allow_unused=True)
    penalty = sum(g.square().sum() for g in grads if g is not None)
    if not penalty.requires_grad:
        return grads
    return grads, torch.autograd.grad(penalty, x, allow_unused=True)


def changed_in_place(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    with torch.no_grad():
        results[0].mul_(2)
    scalar(results).backward()
    return facts(results), x.grad


def changed_with_history(fn: Program, x: torch.Tensor, chain: bool) -> Any:
    results = watchable(fn(x))
    first = results[0]
    first.add_(x.detach().sum())
    seen: list[Any] = []
    first.register_hook(lambda g: seen.append(g.clone()))
    scalar(results).backward()
    return facts(results), seen, x.grad


USES = [hooks, other_gradients, retained, pairs, to_one, one_after_the_other, until_it_is_freed, second_derivatives,
        changed_in_place, changed_with_history]


def observe(use: Callable[..., Any], fn: Program, chain: bool, leaf: bool) -> Any:
    torch.manual_seed(11)
    x = (torch.rand(4, 6, generator=torch.Generator().manual_seed(5)) + 0.2).requires_grad_()
    given = x if leaf else x * 1.0
    if not leaf:
        given.retain_grad()
    try:
        return use(fn, given, chain)
    except RuntimeError as error:
        return type(error), str(error).split(" Hint")[0].split(", which is output")[0]


@pytest.fixture(autouse=True)
def clean():
    jitpy.reset()
    yield
    jitpy.reset()


def compare(found: Any, expected: Any, path: str = "") -> None:
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5, msg=lambda text: f"{path}: {text}\n{expected}")


@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name, backend):
    make, chain = PROGRAMS[name]
    for use in USES:
        for leaf in (True, False) if use is hooks else (True,):
            expected, got = make(), make()
            jitted = jitpy.jit(got, backend=backend)
            for _ in range(2):
                compare_all(observe(use, jitted, chain, leaf), observe(use, expected, chain, leaf), use.__name__)


def compare_all(found: Any, expected: Any, path: str) -> None:
    if isinstance(expected, (tuple, list)):
        assert type(found) is type(expected) and len(found) == len(expected), f"{path}: {found} != {expected}"
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            compare_all(a, b, f"{path}[{k}]")
    elif isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), f"{path}: {found} != {expected}"
        compare(found, expected, path)
    else:
        assert found == expected, path


# -- random programs -----------------------------------------------------------------------------------------------

#: Ops of one tensor and of two, all of them of shape (4, 6), or of their transposes, to (4, 6)
OPS: list[tuple[Callable[..., torch.Tensor], int]] = [
    (torch.sin, 1), (torch.tanh, 1), (lambda a: a * 0.5 + 1, 1), (lambda a: a.view(24).view(4, 6), 1),
    (lambda a: a.t().contiguous().t(), 1), (lambda a: a.softmax(1), 1), (lambda a: a.detach() * 2, 1),
    (lambda a: a.cumsum(1) / 4, 1), (lambda a: a[:, 1:2].expand(4, 6), 1), (lambda a: a.flip(0), 1),
    (torch.add, 2), (torch.mul, 2), (lambda a, b: a @ b.t() @ a / 10, 2), (lambda a, b: torch.cat([a, b])[2:6], 2),
    (lambda a, b: torch.where(a > b, a, b), 2), (lambda a, b: torch.stack([a, b]).mean(0), 2),
    (lambda a, b: a.chunk(2, 1)[0].repeat(1, 2) - b, 2),
]


def random_program(seed: int) -> Program:
    """A program of 12 ops on what came before, which returns a third of all values."""
    rng = random.Random(seed)
    steps: list[tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = []
    for number in range(12):
        op, arity = rng.choice(OPS)
        # mostly of what was computed last
        steps.append((op, tuple(max(0, number + 1 - rng.choice((1, 1, 2, 3, 6))) for _ in range(arity))))
    chosen = sorted(rng.sample(range(1, 13), 4))

    def fn(x):
        values = [x.cos(), x * 2]
        for op, places in steps:
            values.append(op(*[values[k] for k in places]))
        return tuple(values[k + 1] for k in chosen)

    return fn


@pytest.mark.parametrize(("seed", "backend"), [(k, "eager") for k in range(12)] + [(k, "codegen") for k in range(5)])
def test_random_programs(seed, backend):
    def double(use: Callable[..., Any], fn: Program) -> Any:
        x = (torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).requires_grad_()
        try:
            return use(fn, x, False)
        except RuntimeError as error:  # where no result needs gradients
            return str(error)

    fn = random_program(seed)
    jitted = jitpy.jit(fn, backend=backend)
    for use in (hooks, other_gradients, retained, pairs, second_derivatives):
        compare_all(double(use, jitted), double(use, fn), use.__name__)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_sizes_that_an_argument_of_another_part_tells(backend):
    """Sizes of `x` are known to be those of `mask`, which only the last result is computed from."""

    def fn(x, mask, w):
        h = (x @ w).sin()
        shown = mask.view(x.shape[0], -1)[..., None]
        return h, (h.cos() * shown).sum(1) @ w

    jitted = jitpy.jit(fn, backend=backend)
    for rows, columns in ((2, 5), (3, 7), (4, 6)):
        found = []
        for f in (fn, jitted):
            torch.manual_seed(0)
            x, w = torch.randn(rows, columns, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
            first, second = f(x, torch.rand(rows, columns), w)
            (first.sum() + second.square().sum()).backward()
            found.append((first, second, x.grad, w.grad))
        compare_all(found[1], found[0], f"{rows}, {columns}")
