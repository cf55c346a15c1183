"""Programs that the fuzzer found and made small; what went wrong is said at each."""

from __future__ import annotations

import collections
import functools

import torch

import jitpy
from tests.semantics.harness import case, make_test


def _pair(size):
    return lambda: (torch.linspace(-1, 1, size), [])


# A mask of another length than what it selects from, written outside of any recorded size: the trial with fixed sizes
# replaced eager's error by one of the tracer's own.
@case(_pair(2), _pair(3), _pair(4))
def mask_of_wrong_length(x, log):
    log.append(1)
    try:
        picked = x[torch.ones(3, dtype=torch.bool)]
        log.append(2)
    except IndexError as error:
        log.append(str(error))
        picked = x
    return picked + 1


@case(_pair(2), _pair(4), _pair(3))
def mask_of_wrong_length_uncaught(x, log):
    log.append(x.shape[0])
    return x * 2 + x[torch.ones(3, dtype=torch.bool)]


def _divided(divisor):
    return lambda: (torch.tensor([4, 7, -3]), divisor, [])


# Integers divided by zero raise when the graph runs: the handler around them was passed by, and the traceback showed
# the first line of the function.
@case(*map(_divided, (2, 0, 3, 0)))
def integers_divided_by_zero_caught(t, divisor, log):
    log.append(divisor)
    try:
        rest = t % divisor
        parts = torch.div(t, divisor, rounding_mode="trunc") + torch.fmod(t, divisor)
        log.append("divided")
    except RuntimeError as error:
        log.append(str(error))
        rest = parts = t
    return rest * 2, parts


@case(*map(_divided, (2, 0, 3, 0)))
def integers_divided_in_generator(t, divisor, log):
    def parts():
        log.append(1)
        divided = t % (t * 0 + divisor)
        log.append(2)
        yield divided

    doubled = t * 2
    return doubled + next(parts())


# Operations that nobody reads, and that raise, were never run: the exception was lost, or another one came first.
@case(*map(_divided, (2, 0, 3, 0)))
def unread_division(t, divisor, log):
    log.append(1)
    t // divisor
    log.append(2)


@case(*map(_divided, (2, 0)))
def unread_division_before_another_exception(t, divisor, log):
    t // divisor
    log.append(2)
    return t + torch.ones(17)


@case(*map(_divided, (2, 0)))
def unread_division_in_handler(t, divisor, log):
    for _ in range(2):
        try:
            (t // divisor)[:0]
            log.append("divided")
        except RuntimeError as error:
            log.append(str(error))


def _picked(*places):
    return lambda: (torch.arange(12.0).view(4, 3), torch.tensor(places), [])


@case(_picked(0, 1), _picked(0, 9), _picked(9, 0), _picked(3, 2))
def unread_lookup(table, places, log):
    log.append(1)
    table[places]
    log.append(2)
    return table + 1


# Of a lookup of which a part was read, the kernel checked the places of that part alone.
@case(_picked(0, 1), _picked(0, 9), _picked(9, 0), _picked(3, 2))
def lookup_read_in_part(table, places, log):
    log.append(1)
    return table[places][0] + 1


@case(_picked(0, 1), _picked(0, 9), _picked(9, 0), _picked(3, 2))
def lookup_read_in_part_by_what_reads_it(table, places, log):
    return (torch.nn.functional.embedding(places, table) * 2)[1:].sum(), places.clone()


@case(_picked(0, 1), _picked(0, 9), _picked(9, 0), _picked(3, 2))
def lookup_joined_and_read_in_part(table, places, log):
    return torch.cat([table.index_select(0, places), table])[1:]


# `int()` of several elements raises a ValueError, not what `.item()` raises.
@case(*map(_pair, (1, 2)))
def number_of_several_elements(x, log):
    for kind in (int, float, complex, bool, torch.Tensor.item):
        try:
            log.append(kind(x * 0 + 1))
        except (ValueError, RuntimeError) as error:
            log.append((type(error).__name__, str(error)))


# An iterator over a list that grew here was put back before the list had its items, and so too early.
@case(*map(_pair, (2, 3)))
def iterator_over_list_that_grew(x, log):
    log += [1, 2, 3]
    forward, backward = iter(log), reversed(log)
    found = [next(forward), next(forward), next(backward)]
    print(x)
    found += [next(forward), next(forward, "end"), next(backward)]
    return found


@case(*map(_pair, (2, 3)))
def generator_over_list_that_grew(x, log):
    def each(items):
        for item in items:
            yield item
        log.append("end")

    log.append(2)
    made = each(log)
    first = next(made)
    print(x)
    return first, next(made, "nothing"), x + 1


# What feeds `extend` and its like sees the items that came before: all were collected first.
@case(*map(_pair, (2, 3)))
def feeding_what_is_read(x, log):
    def tensors(of):
        for _ in range(3):
            yield sum(of, x)

    def counted(of):
        for i in range(3):
            yield len(of) * 10 + i

    def pairs(of):
        for i in range(3):
            yield i, len(of)

    vecs, numbers, table = [x], {0}, {}
    vecs.extend(tensors(vecs))
    log += counted(log)
    log.extend(counted(log))
    numbers.update(counted(numbers))
    table.update(pairs(table))
    return vecs, sorted(numbers), table


@case(*map(_pair, (2, 3)))
def feeding_that_raises(x, log):
    def items():
        yield 1
        yield 2
        raise ValueError(len(log))

    numbers = set()
    for feed in (log.extend, numbers.update):
        try:
            feed(items())
        except ValueError as error:
            log.append(error.args)
    return sorted(numbers), x * len(log)


def _grown(size):
    def make():
        x = torch.linspace(-1, 1, size)
        return x.requires_grad_() * 1, x.detach().clone()

    return make


# Written with autograd, then through detach(): the copy-back without grad mode lost what the first write meant.
@case(_grown(2), _grown(3))
def written_with_grad_then_without(w, y):
    y.add_(w)
    y.detach().mul_(2)
    return y.requires_grad


@case(_grown(2), _grown(3))
def written_without_grad_then_with(w, y):
    with torch.no_grad():
        w.mul_(2)
    w.copy_(y)
    return w.requires_grad, y * 2


def _kinds_of_views(kind):
    def make():
        leaf = torch.linspace(-1, 1, 3).requires_grad_()
        made = leaf * 1
        with torch.no_grad():
            unconnected = made.view(-1)
        return {"leaf": leaf, "view": leaf.view(-1), "made": made, "made view": made.view(-1)[:2],
                "several": made.unbind()[1], "part": made.split(2)[0][:2], "no grad": unconnected}[kind], []

    return make


_VIEWS = ("made", "leaf", "view", "made view", "several", "part", "no grad")


# Which tensors autograd lets nobody write to was not asked: the copy-back raised, at the wrong place.
@case(*map(_kinds_of_views, _VIEWS))
def written_under_grad(x, log):
    log.append(1)
    try:
        x.add_(1)
    except RuntimeError as error:
        log.append(str(error))
        return None
    return x * 2


@case(*map(_kinds_of_views, reversed(_VIEWS)))
def written_under_grad_uncaught(x, log):
    log.append(1)
    (x[:1] if x.dim() else x).mul_(2)
    log.append(2)
    return x * 2


# One of several views whose base was written to since: asking autograd anything about it raises. Nobody reads it.
@case(_grown(3), _grown(4))
def stale_views_at_a_break(w, y):
    for i, part in enumerate(w[:3]):
        print(i)
        w.add_(1)
    return w


def _above(*limits):
    return lambda: (torch.tensor(limits), [])


# A size that depends on data was taken for another although it cannot be that in this very call.
@case(_above(0.5, 2.0), _above(0.5, 2.0, 3.0), _above(2.0, 3.0, 4.0, 5.0), _above(0.0, 0.0, 3.0))
def size_that_cannot_match(x, log):
    count = (x > 1).sum().item()
    log.append(count)
    part = x.narrow(0, 0, count % 3)
    added = torch.zeros((count + 1) % 4) + x * 0 + part
    return added, x + part


@case(_above(2.0, 2.0), _above(0.5), _above(2.0), _above(0.5))
def mask_written_to_one_element(x, log):
    log.append(1)
    x.add_(x[x > 1], alpha=0.5)
    log.append(2)
    return x


# Parts of a view made several at a time: with one element, the stride of kernels' views was 0.
@case(*map(_pair, (1, 2, 3)))
def strides_of_parts(x, log):
    doubled = x * 2
    return doubled.chunk(2), doubled.split(2), doubled.unsqueeze(0).unbind(), doubled.view(-1, 1).split(1, 1)


# A fresh tensor of one row, laid out column by column, told other strides once it was copied into.
@case(*map(_pair, (1, 2, 3)))
def strides_after_a_copy(x, log):
    column = torch.outer(x, x)[:, :1]
    made = torch.empty_like(column.t()).copy_(column.t())
    return made, made.stride(), torch.empty_like(column.t()).stride()


# A constant written through a view of all of a tensor took that tensor's place in the history: it stopped to require
# grad.
@case(_grown(3), _grown(4))
def constant_over_all_of_a_view(w, y):
    doubled, total = w * 2, w.sum()
    view, scalar = doubled.view(-1), total.view_as(total)
    view.copy_(torch.ones(()))
    asked = view.requires_grad, doubled.requires_grad, doubled.is_leaf
    scalar.copy_(torch.ones(()))
    return view, doubled * w, scalar, asked, scalar.requires_grad


# An argument that came to require grad by a write said that it was a leaf.
@case(_grown(3), _grown(4))
def argument_that_turns_into_a_result(w, y):
    before = y.is_leaf
    y += w
    return before, y.is_leaf, y.requires_grad


# Of the parts of one result some have a history that matters; the others lost theirs, and no longer fitted it.
@case(_grown(3), _grown(4))
def history_of_one_part(w, y):
    first, *rest = w.split(2)
    sums = [(part * 2).detach() for part in rest]
    return first * 2, sums


# A view beyond the memory of a tensor that the graph makes, which nobody reads, raised nothing.
@case(*(lambda n=n: (torch.ones(3), n, []) for n in (3, 2, 4, 0, 6)))
def strided_beyond_the_memory(x, n, log):
    doubled = x * 2
    log.append(n)
    doubled.as_strided((n,), (1,))
    log.append("fits")
    doubled[1:].as_strided((2,), (1,), n - 3)
    return doubled


# Text of a number that the data give breaks the graph; a handler of the program's took the break for its exception.
@case(*(lambda k=k: (torch.full((3,), float(k)), {"0:6": 1}, []) for k in (1, 2, 3)))
def text_of_data_under_a_handler(x, table, log):
    text = None
    try:
        text = "{}:{n}".format(0, n=int(x.sum().item() * 2))
        del table[text]
        log.append("deleted")
    except Exception as error:
        log.append(type(error).__name__)
    return x + 1, text


# The C operators of dicts were taken to have answered already, so that other classes of dict raised TypeError.
@case(lambda: (torch.ones(2), {"k": 1, "b": 2}))
def unions_of_dicts_of_several_classes(x, d):
    found = []
    for left, right in ((d, collections.Counter("bc")), (collections.Counter("a"), d),
                        (d, collections.OrderedDict(b=1)), (collections.OrderedDict(b=1), d),
                        (d, collections.defaultdict(int, z=3)), (d, [1])):
        try:
            found.append(left | right)
        except TypeError as error:
            found.append(str(error))
    return x + 1, found


# Behind a break the closure variables that a function makes were free ones, which CPython tells apart by the error.
@case(lambda: (torch.ones(2), True), lambda: (torch.ones(2), False))
def unbound_closure_variables_behind_a_break(x, bound):
    if bound:
        late = x + 1

    def inner():
        return late * 2

    print("break")
    try:
        here = late
    except NameError as error:
        here = type(error).__name__, str(error)
    return here, inner()


@case(lambda: (torch.ones(2),))
def deleted_closure_variables_behind_a_break(x):
    kept = x

    def forget():
        nonlocal kept
        print("break")
        del kept
        try:
            del kept
        except NameError as error:
            return type(error).__name__, str(error)

    found = forget()
    print("break", list(locals()))
    try:
        del kept
    except NameError as error:
        return x + 1, found, type(error).__name__, str(error)


# Two numbers that change were taken to be two objects, although CPython has one object for each small int.
@case(*(lambda a=a, b=b: (torch.ones(a), a, b) for a, b in ((2, 3), (3, 4), (5, 5), (7, 7), (4, 9), (6, 6))))
def identity_of_changing_ints(x, a, b):
    return x + a, a is b, [a, b].count(b), x.shape[0] is a


@case(*(lambda make=make: (torch.ones(2), *make()) for make in (
    lambda: [int("1000")] * 2, lambda: [int("1000"), int("1000")], lambda: ["".join("ab")] * 2,
    lambda: ["".join("ab"), "".join("ab")])))
def identity_of_equal_constants(x, a, b):
    return x + 1, a is b, a is not b, a == b


# What a function raises for the sizes of one call was expected of calls with other sizes, which it had not looked at.
def _summed(*tensors):
    return functools.reduce(torch.add, tensors)


@case(*((lambda a=a, b=b: (torch.ones(a), torch.ones(b)) for a, b in ((2, 2), (2, 3), (3, 3), (3, 2), (4, 4)))))
def an_error_of_other_sizes(x, y):
    print("break")
    return _summed(x, y)


# The stack of compiled code was too small for a list of more than 20,000 items: the interpreter crashed.
@case(lambda: (torch.ones(2), [1, 2]))
def a_list_of_many_items(x, items):
    items *= 15_000
    return x + 1, [[]] * 25_000


# Kernels of ops without a rule of ours refuse sizes that meta kernels take; what nobody reads raised nothing then.
@case(*(lambda values=values: (torch.tensor(values), []) for values in ([1.0, -1.0], [], [-1.0, -2.0], [3.0])))
def checks_of_sizes_by_data(x, log):
    picked = torch.masked_select(x, x > 0)
    for function in (lambda: picked.max(0), lambda: picked.median(0), lambda: picked.mode(0),
                     lambda: torch.nn.functional.interpolate(picked[None, None], scale_factor=2)):
        try:
            function()
            log.append("passed")
        except (IndexError, RuntimeError) as error:
            log.append(type(error).__name__)
    return x + 1


@case(*(lambda values=values: (torch.tensor(values),) for values in ([1.0, -1.0], [], [-1.0, -2.0], [3.0])))
def unread_reduction_of_nothing(x):
    torch.masked_select(x, x > 0).max(0)
    return x + 1


@case(*(lambda values=values: (torch.tensor(values),) for values in ([1.0, -1.0], [], [-1.0, -2.0], [3.0])))
def unread_median_of_nothing(x):
    x[x > 0].median(0)
    return x + 1


# A source of another size than its target was broadcast, and one that is its target read from before the write.
@case(lambda: (torch.ones(4, 1), torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)),
      lambda: (torch.ones(4, 2), torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)),
      lambda: (torch.ones(4, 2), torch.ones(3, 2), torch.zeros(4, dtype=torch.int64)))
def index_add_of_wrong_sources(x, source, index):
    found = []
    for target, values in ((x, source), (x * 2, source), (source, source), (x, x.view(-1).view(4, -1))):
        try:
            target.index_add_(0, index, values)
            found.append("added")
        except (RuntimeError, IndexError) as error:
            found.append(str(error)[:20])
    return x, found


# An argument that a write had given a history was still taken for a leaf: the next write under autocast was traced to
# raise what eager says of leaves, and the program's handler ran instead of the write.
@case(*(lambda make=make: (torch.ones(3), torch.nn.Parameter(make(2, 2)), []) for make in (
    torch.ones, torch.zeros, torch.ones)))
def writes_under_autocast_to_what_was_a_leaf(y, p, log):
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y += p.sum()
    try:
        y.sub_(p.sum()).xlogy_(p.sum())
    except RuntimeError as error:
        log.append(str(error))
    return y * 2, y.is_leaf


@case(lambda: (torch.ones(3), torch.nn.Parameter(torch.ones(2, 2)), []), lambda: (torch.ones(3), torch.ones(2, 2), []))
def caught_errors_of_leaves_under_autocast(y, p, log):
    for _ in range(3):
        for t in (y, p):
            try:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    t += p.sum()
            except RuntimeError as error:
                log.append(str(error))
    print("break")
    return y * 2, p * 2


# A result that is a column, of a size that changes: its gradient's strides were found to be symbolic in the backward
# pass, when it was too late to leave the graph to torch's autograd.
def test_gradient_of_a_transposed_result():
    def transposed(w):
        return torch.nn.functional.gelu(w).t()[0], torch.nn.functional.gelu(w.t())

    jitted = jitpy.jit(transposed, backend="codegen")
    for rows in (2, 6, 3, 5):
        w = torch.linspace(-1, 1, 2 * rows).view(rows, 2).requires_grad_()
        expected, found = (torch.autograd.grad(sum(t.sum() for t in fn(w)), w)[0] for fn in (transposed, jitted))
        torch.testing.assert_close(found, expected)


_NAN = float("nan")


# The result of max() and min() is one of the arguments: lists compare identical objects first, so that a NaN is found.
# Of floats that change from call to call, jitpy made another object.
@case(*(lambda a=a, b=b: (torch.ones(3), a, b) for a, b in (
    (1.5, 2.5), (2.5, 3.5), (3.5, 2.5), (_NAN, 1.5), (1.5, _NAN), (2, 1.5))))
def extrema_of_floats_that_change(x, a, b):
    a, b = a * 2, b * 2
    largest, least = max(a, b), min(a, b, 3.25)
    keyed, listed = max(a, b, key=lambda v: -v), min([b, a])
    within = [largest] == [a], least in [b], [b, a].count(keyed), listed in [a]
    jitpy.graph_break()
    return x * 2, within, [[v is w for w in (a, b)] for v in (largest, least, keyed, listed)], [largest] == [b]


@case(*(lambda a=a, b=b: (torch.tensor([a, b]),) for a, b in ((1.5, 2.5), (3.5, 2.5), (_NAN, 1.5), (1.5, _NAN))))
def extrema_of_items(x):
    a, b = x[0].item(), x[1].item()
    largest, least = max(a, b), min(b, a, 0.5)
    y = x * largest + least
    jitpy.graph_break()
    return y, [[v is w for w in (a, b)] for v in (largest, least)], [largest] == [a], least in [b]


# One guard held all numbers apart that were two objects somewhere, also those that were one: it failed at once.
def _two_of_three(number):
    other = float(repr(number))
    return lambda: (torch.ones(3), number, other, other)


@case(*map(_two_of_three, (7.5, 8.5)), lambda: (torch.ones(3), 9.5, 9.5, 9.5))
def two_of_three_equal_numbers_are_one_object(x, a, b, c):
    return x * 2, a is b, a is c, b is c


test_all = make_test(__name__)
