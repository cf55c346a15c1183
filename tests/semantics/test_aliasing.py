"""In-place operations, views, and what shares memory with what. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import jitpy
from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


def matrix():
    return (vec(3, 4),)


@case(one, fullgraph=True)
def argument_mutated(x):
    x.add_(1)
    x *= 2
    return x + 1


@case(one, fullgraph=True)
def argument_returned(x):
    return x


@case(one, fullgraph=True)
def argument_mutated_and_returned(x):
    x.sin_()
    return x, x


@case(matrix, fullgraph=True)
def views_returned(x):
    return x[0], x.t(), x.view(-1), x[:, 1:3], x.unsqueeze(0), x.expand(2, 3, 4), x.detach()


@case(matrix, fullgraph=True)
def view_of_intermediate_returned(x):
    y = x + 1
    return y[0], y.t(), y


@case(matrix, fullgraph=True)
def write_through_view(x):
    row = x[1]
    row.zero_()
    x[:, 0] = 5
    x[2][3] = 7
    return x.sum(), row


@case(matrix, fullgraph=True)
def write_through_view_of_intermediate(x):
    y = x * 2
    y[0].add_(10)
    z = y.view(-1)
    z[5:7] = 0
    y.t()[1, 1] = 3
    return y, z


@case(matrix, fullgraph=True)
def base_written_after_view(x):
    y = x.clone()
    v = y[1]
    before = v + 0
    y.mul_(3)
    return v, before, y


@case(lambda: (lambda x: (x, x))(vec()), fullgraph=True)
def same_tensor_twice(x, y):
    x.add_(1)
    return y * 2


@case(lambda: (lambda x: (x, x))(vec()), lambda: (vec(), vec()), lambda: (lambda x: (x, x))(vec()))
def same_tensor_twice_then_not(x, y):
    x.add_(1)
    return y * 2, x is y


@case(lambda: (lambda x: (x, x[1:3]))(vec()))
def argument_and_its_view(x, v):
    v.add_(10)
    return x * 2, v


@case(lambda: (lambda x: (x[:3], x[1:]))(vec(5)), lambda: (vec(3), vec(4)))
def overlapping_arguments(a, b):
    a.zero_()
    return b + 1


@case(lambda: (lambda x: (x[:2], x[2:]))(vec(4)))
def disjoint_views_of_one_storage(a, b):
    a.add_(1)
    b.add_(2)
    return a + b


@case(one, fullgraph=True)
def result_list_with_repeats(x):
    y = x + 1
    return [y, y, y.view(2, 2)], y


@case(one, fullgraph=True)
def setitem_forms(x):
    y = x.clone()
    y[0] = 1
    y[-1] = x[0]
    y[1:3] = torch.tensor([5.0, 6.0])
    y[torch.tensor([0, 3])] = 9
    y[y > 8] = -1
    y[None, 2] = 4
    return y


@case(matrix, fullgraph=True)
def getitem_forms(x):
    i = torch.tensor([2, 0])
    return x[i], x[:, i], x[..., -1], x[None], x[1, 2], x[[0, 1]], x[0:3:2, ::2], x[i, i]


@case(one, fullgraph=True)
def out_argument(x):
    y = torch.empty(4)
    torch.add(x, 1, out=y)
    z = torch.mul(x, 2, out=y)
    return y, z is y


@case(lambda: (vec(), torch.zeros(4)))
def out_into_argument(x, out):
    torch.sin(x, out=out)
    return out + 1


@case(one, fullgraph=True)
def copy_and_fill(x):
    y = torch.zeros(4)
    y.copy_(x)
    z = torch.empty_like(x).fill_(3)
    w = torch.zeros(2, 2)
    w.view(-1).copy_(x)
    return y, z, w


@case(one)
def data_attribute(x):
    y = x * 1
    y.data.add_(1)
    x.data = x.data * 2
    return y, x + 0


@case(lambda: (torch.randn(4, requires_grad=True),))
def in_place_on_a_leaf(x):
    x.add_(1)
    return x


@case(lambda: (torch.randn(4, requires_grad=True),), fullgraph=True)
def in_place_on_an_intermediate(x):
    y = x * 2
    y.add_(1)
    y.mul_(x)
    v = y[:2]
    v.mul_(3)
    return y, v


@case(lambda: (torch.randn(4, requires_grad=True),), fullgraph=True)
def detach_shares_memory(x):
    y = x * 2
    d = y.detach()
    return y, d


@case(lambda: (torch.randn(4, requires_grad=True),))
def in_place_after_saving_for_backward(x):
    y = x.exp()
    z = y * 2
    y.add_(1)
    return z


@case(lambda: (torch.randn(2, 4, requires_grad=True),), fullgraph=True)
def views_with_gradients(x):
    a, b = x.chunk(2, dim=1)
    return a * 2, b, x.t(), x.reshape(4, 2)


@case(matrix, fullgraph=True)
def chunks_and_splits(x):
    a, b = x.split(2, dim=1)
    c = torch.chunk(x, 3)
    u = x.unbind(0)
    a.add_(1)
    return b, c[0], u[2], x


@case(one, fullgraph=True)
def reshape_may_be_a_view(x):
    y = x.reshape(2, 2)
    y[0, 0] = 100
    z = x.view(2, 2).t().reshape(4)
    z[0] = 5
    return y, z, x.contiguous() is x, x.to(torch.float32) is x, x.float() is x


@case(matrix)
def as_strided(x):
    y = torch.as_strided(x, (2, 2), (4, 1), 1)
    y.fill_(7)
    return y, x


@case(lambda: (torch.randn(6),), lambda: (torch.randn(6, requires_grad=True),), fullgraph=True)
def strided_view_of_views_without_grad(x):
    with torch.no_grad():
        y = x * 2
        flat = x.reshape(-1).as_strided((2, 2), (1, 2), 1)
        part = y.view(2, 3)[1:].as_strided((2,), (2,))
        part += 1
    return y, flat, part, flat.requires_grad, part.requires_grad


@case(lambda: (torch.randn(6),), lambda: (torch.randn(6, requires_grad=True),))
def strided_view_with_grad_of_a_view_without(x):
    with torch.no_grad():
        flat = x.reshape(3, 2)
    part = flat.as_strided((2, 2), (1, 2))
    return part, part.requires_grad, part._is_view()


@case(one, fullgraph=True)
def clone_is_separate(x):
    y = x.clone()
    y.add_(1)
    z = x.contiguous()
    z.add_(1)
    return y, x


@case(one, fullgraph=True)
def swap_contents(x):
    y = x + 1
    tmp = x.clone()
    x.copy_(y)
    y.copy_(tmp)
    return y


@case(one, fullgraph=True)
def increments_in_a_loop(x):
    total = torch.zeros(4)
    for i in range(3):
        total += x
        total[i] = 0
    return total


@case(one)
def resize_and_set(x):
    y = x.clone()
    y.resize_(2)
    return y


@case(one, fullgraph=True)
def empty_is_filled(x):
    y = x.new_empty(4)
    y[:2] = x[2:]
    y[2:] = x[:2]
    return y


@case(lambda: (vec(), [vec(), vec()]))
def list_of_tensors_mutated(x, xs):
    for t in xs:
        t.add_(x)
    xs[0].mul_(xs[1])
    return xs[0] + xs[1]


@case(lambda: (torch.arange(4),), fullgraph=True)
def integer_in_place(x):
    x += 1
    x //= 2
    x <<= 1
    x &= 6
    x ^= 1
    return x % 3, x == 4


@case(one)
def wrong_in_place_dtype(x):
    y = torch.arange(4)
    y += x
    return y


@case(one)
def wrong_in_place_shape(x):
    y = torch.zeros(2)
    y += x
    return y


@case(lambda: (torch.zeros(4, dtype=torch.complex64),))
def complex_views(x):
    r = torch.view_as_real(x)
    r[:, 0] = 1
    x.imag.fill_(2)
    return x, x.real, x.conj()


@case(matrix, fullgraph=True)
def diagonal_and_index_put(x):
    d = torch.diagonal(x)
    d.fill_(0)
    x.index_fill_(1, torch.tensor([1]), 2.0)
    x.masked_fill_(x > 1.5, -1.0)
    x.index_add_(0, torch.tensor([0]), torch.ones(1, 4))
    return x + d.sum()


@case(one, factory=True)
def constant_tensor_must_not_change():
    table = torch.ones(4)

    def fn(x):
        y = table + x
        return y, table

    return fn, table


@case(lambda: (torch.tensor(5.0),), fullgraph=True)
def zero_dimensional(x):
    y = x.view(1)
    y += 1
    return x, x.expand(3)


@case(lambda: (vec(0),), lambda: (vec(2),), lambda: (vec(1),), lambda: (vec(0),))
def empty_tensors(x):
    return x.sum(), x * 2, torch.cat([x, x]), x.view(-1, 1).shape


@case(lambda: (vec(4), 3), lambda: (vec(6), 2))
def operand_inside_the_written_tensor(x, i):
    x += x[i]
    return x.sum()


@case(lambda: (vec(6),))
def operand_overlaps_the_written_part(x):
    x[1:] += x[:-1]
    return x * 2


@case(lambda: (vec(6),), fullgraph=True)
def operand_apart_from_the_written_part(x):
    x[:3] += x[3:]
    m = x.clone().view(2, 3)
    m[:, 0] *= m[:, 2]
    return x * 2, m


@case(lambda: (torch.arange(12.0).view(3, 4),))
def copy_between_overlapping_columns(x):
    x[:, 1:].copy_(x[:, :-1])
    x[:, 0].copy_(x[:, 1])
    return x + 1


@case(lambda: (vec(4).requires_grad_(),), fullgraph=True)
def detached_input(x):
    return x.detach(), x.detach()[1:], x.detach() * 2


@case(lambda: (vec(4).requires_grad_(),), fullgraph=True)
def write_through_a_detached_input(x):
    y = x.detach()
    y.mul_(2)
    return y


@case(lambda: (vec(4).requires_grad_(),))
def write_through_a_detached_view_and_break(x):
    y = x.detach()[1:]
    y.mul_(2)
    print("written")
    jitpy.graph_break()
    return y, x * 2


@case(lambda: (vec(4).requires_grad_(),), breaks=("unsupported_op",))
def view_of_a_leaf_without_grad_mode(x):
    with torch.no_grad():
        y = x[1:]
    return y, y * 2


@case(lambda: (vec(2, 3),), fullgraph=True)
def copy_of_a_number(x):
    return torch.empty_like(x).copy_(-1.5), x.copy_(2)


@case(lambda: (vec(2, 3)[0], vec(3)))
def detach_in_place_of_views(x, y):
    errors = []
    for view in (x, y.view_as(y), y):
        try:
            view.detach_()
        except RuntimeError as error:
            errors.append(str(error))
    return errors


# The views were made before the write, as autograd saw it: using them raised.
@case(lambda: (vec(2, 3).requires_grad_(), vec(2, 3)))
def leaf_written_and_looked_at_without_grad_mode(w, x):
    with torch.no_grad():
        w.copy_(x)
        tail = w[..., 1:]
    return tail, tail.detach(), w * 2


def _hidden():
    w = vec(2, 3).requires_grad_()
    return (w * 2, w)


@case(_hidden)
def result_written_and_looked_at_without_grad_mode(h, w):
    h.add_(torch.tanh(h).detach())
    with torch.no_grad():
        rows = h.view_as(h)
    return rows.detach() + 1, rows.is_leaf


# What eager refuses of views that were made several at once.
@case(_hidden)
def one_of_several_views_of_what_was_written(h, w):
    h.mul_(2)
    first, second = h.unbind(0)
    return first, second


@case(lambda: (vec(4), vec(4).requires_grad_()))
def several_views_written_behind_a_break(x, w):
    x.add_(1)
    first, second = x.split(2)
    errors = []
    jitpy.graph_break()
    try:
        first.mul_(w[:2])
    except RuntimeError as error:
        errors.append(str(error))
    return first, second, errors


@case(lambda: (vec(3).requires_grad_(),))
def several_views_of_a_leaf_written_without_grad_mode(v):
    first, second, _ = v.split(1)
    with torch.no_grad():
        second.fill_(0.25)
    try:
        return first * 2
    except RuntimeError as error:
        return str(error)


def vec_of_three():
    return (vec(3),)


def _named(fn, name):
    fn.__name__ = name
    return fn


def _unpacked(how):
    def make():
        w = torch.nn.Parameter(vec(2, 3))
        kept = []

        def fn(x):
            first, second = w
            loss = (first * x + second).pow(2).sum()
            w.grad = None
            loss.backward()
            if how == "kept":
                kept.append(second)
            with torch.no_grad():
                w.sub_(w.grad, alpha=0.1)
            if how == "done with":
                return loss.detach()
            try:
                return first if how == "returned" else (first * 2).detach() if how == "read" else w[0] + 1
            except RuntimeError as error:
                return str(error)[:40]

        return fn, (w, kept)

    return make


# What an optimizer changes may have been unpacked before. Eager refuses to read the parts then.
case(vec_of_three, factory=True, fullgraph=True)(_named(_unpacked("done with"), "unpacked_and_written"))
for _how in ("read", "read anew"):
    case(vec_of_three, factory=True)(_named(_unpacked(_how), f"unpacked_written_and_{_how.replace(' ', '_')}"))


@case(lambda: (vec(3).requires_grad_(),))
def view_of_a_leaf_without_grad_mode_written_with_it(w):
    with torch.no_grad():
        tail = w[1:]
    try:
        tail.sub_(tail)
    except RuntimeError as error:
        return str(error)


def _overlapping():
    both = torch.arange(5.0)
    return both[:-1], both[1:]


# The resumed part met the other argument as a tensor that no graph takes, and took its operator for missing.
@case(_overlapping)
def overlapping_arguments_written_in_a_callee(x, y):
    def scaled(p):
        try:
            p[1:] += 1.75
        except RuntimeError:
            pass
        p *= torch.tensor(0.5)
        return y + x, x - y, y == x

    return scaled(y)


# Autograd takes a change of a view's sizes for a write to it.
def _changed_views():
    def change(w, how):
        if how == "transposed":
            w[1:].t_()
        elif how == "computed":
            (w * 2)[1:].t_()
        elif how == "made here":
            torch.ones(3, 3, requires_grad=True)[1:].unsqueeze_(0)
        elif how == "one of several":
            (w * 2).unbind(0)[0].unsqueeze_(0)
        elif how == "under no_grad":
            with torch.no_grad():
                w[1:].squeeze_()
        elif how == "made under no_grad":
            x = w * 2
            with torch.no_grad():
                view = x[1:]
            view.t_()
        elif how == "detached":
            w.detach()[1:].t_()

    def fn(w, how):
        try:
            change(w, how)
        except RuntimeError as error:
            return w * 2, str(error)[:40]
        return w * 2, None

    return fn


_WAYS = ("transposed", "computed", "made here", "one of several", "under no_grad", "made under no_grad", "detached")


@case(*[lambda how=how: (torch.ones(3, 3, requires_grad=True), how) for how in _WAYS], factory=True)
def views_of_leaves_that_change_their_sizes():
    return _changed_views()


# So are leaves that are made inside a graph, and their own sizes.
def _changed_leaves():
    def told():
        return torch.ones(2, 3).requires_grad_()

    def part():
        memory = torch.ones(3, 3)
        return memory[1:].requires_grad_()

    def change(how):
        w = told()
        if how == "itself":
            w.t_()
        elif how == "itself under no_grad":
            with torch.no_grad():
                w.t_()
        elif how == "view":
            w[:].t_()
        elif how == "view under no_grad":
            with torch.no_grad():
                w[:].t_()
        elif how == "view made under no_grad":
            with torch.no_grad():
                view = w[:]
            view.t_()
        elif how == "detached":
            w.detach().t_()
        elif how == "part itself":
            w = part()
            w.t_()
        elif how == "view of a part":
            w = part()
            w[1:].t_()
        elif how == "base of a part":
            memory = torch.ones(3, 3)
            w = memory[1:].requires_grad_()
            memory.unsqueeze_(0)
        elif how == "other view of a part's base":
            memory = torch.ones(3, 3)
            w = memory[1:].requires_grad_()
            memory[1:].unsqueeze_(0)
        return w

    def fn(x, how):
        try:
            w = change(how)
        except RuntimeError as error:
            return x * 2, str(error)
        (w * w).sum().backward()
        return x * 2, w.grad, w.shape, w.is_leaf

    return fn


_LEAVES = (
    "itself",
    "itself under no_grad",
    "view",
    "view under no_grad",
    "view made under no_grad",
    "detached",
    "part itself",
    "view of a part",
    "base of a part",
    "other view of a part's base",
)


@case(*[lambda how=how: (torch.ones(3), how) for how in _LEAVES], factory=True)
def leaves_made_inside_that_change_their_sizes():
    return _changed_leaves()


@case(lambda: (torch.ones(0, 2),), lambda: (torch.ones(2, 2),))
def indexed_addition_of_itself(w):
    try:
        w.index_add_(0, torch.arange(w.shape[0]), w)
    except RuntimeError as error:
        return str(error)
    return w


class Attributes:
    pass


class Listed(list):
    pass


class Slotted:
    __slots__ = ("__dict__", "first")


@pytest.mark.parametrize("broken", [False, True])
def test_the_dict_of_what_is_made_inside(broken: bool) -> None:
    """`__dict__` is that of the instance, also where both leave the graph."""
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        def function() -> None:
            pass

        y = x + 1
        made = Attributes(), Listed([1]), Slotted(), ValueError(2), types.SimpleNamespace(), function, y
        for number, one in enumerate(made):
            one.number = number
        dicts = [one.__dict__ for one in made]
        if broken:
            jitpy.graph_break()
        for one in dicts:
            one["late"] = 1
        return made, dicts, vars(made[0]), x * 2

    for fn in (program, jitpy.jit(program, backend="eager")):
        for _ in range(2):
            made, dicts, first, _ = fn(torch.ones(2))
            assert first is dicts[0]
            for number, (one, its) in enumerate(zip(made, dicts, strict=True)):
                assert one.__dict__ is its and its == {"number": number, "late": 1}


@pytest.mark.parametrize("kept", ["dict", "both"])
def test_a_dict_that_holds_itself_and_its_instance(kept: str) -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        made = Attributes()
        its = made.__dict__
        its["its"], its["made"] = its, made
        return (its, x + 1) if kept == "dict" else (its, x + 1, made)

    its = jitpy.jit(program, backend="eager")(torch.ones(2))[0]
    assert its["its"] is its and its["made"].__dict__ is its and [*its] == ["its", "made"]


test_cases = make_test(__name__)


@pytest.mark.parametrize("how", ["returned", "kept"])
def test_parts_that_outlive_a_write_are_refused(how: str) -> None:
    """As in eager, though the harness cannot look at such a tensor's history."""
    fn, (w, kept) = _unpacked(how)()
    jitted = jitpy.jit(fn, backend="eager")
    for _ in range(2):
        result = jitted(vec(3))
        part = result if how == "returned" else kept[-1]
        assert torch.equal(part.detach(), w.detach()[int(how == "kept")])
        with pytest.raises(RuntimeError, match="is a view and its base or another view of its base"):
            _ = part.grad_fn
