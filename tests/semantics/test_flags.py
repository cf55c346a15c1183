"""Branches on tensors of one element from outside: guards, not breaks. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from tests.semantics.harness import case, make_test


def numbers(*values):
    return tuple(lambda v=v: (torch.tensor(v), torch.ones(2)) for v in values)


@case(*numbers(0, 5, 2, 1, 0, -3), fullgraph=True)
def questions_about_a_number(n, x):
    if n == 0:
        return x + 1
    if n.item() > 3:
        return x + 2
    if not n % 2:
        return x * 5
    return x * 3 if n.bool().all() and n.reshape(1)[0] > 0 else -x


@case(*numbers([True], [False]), fullgraph=True)
def flags_in_lists(flag, x):
    return bool(flag), not flag, x + 1 if flag else x, x * 2 if flag.any() and not flag.all() else -x


def masks(*sizes):
    return tuple(lambda n=n, padded=padded: (torch.arange(2 * n).view(2, n) >= padded, torch.ones(2, n))
                 for n in sizes for padded in (0, 3))


@case(*masks(4, 5, 7, 4), fullgraph=True)
def masks_that_hide_nothing(mask, x):
    """As Hugging Face asks whether a padding mask is needed."""
    if mask[:, -mask.shape[1]:].sum() == mask.numel():
        return x + 1
    return x * 2 if mask.any() and not mask.all() else -x


@case(*masks(4, 5), fullgraph=True)
def masks_of_integers(mask, x):
    mask = mask.to(torch.int64)
    return x + 1 if mask.bool().all() else x * mask


@case(*masks(4, 4))
def masks_that_are_changed_before(mask, x):
    mask[0, 0] = False
    return x + 1 if mask.all() else x * mask


@case(lambda: (torch.ones(1 << 17, dtype=torch.bool),), lambda: (torch.ones(3),))
def too_much_to_ask_in_front(mask):
    return mask + 1 if mask.all() else mask


@case(*numbers(1.5, float("nan"), -1.0), fullgraph=True)
def floats(n, x):
    return x + 1 if float(n) > 0 else x * 2 if n <= 0 else -x


@case(*numbers(3, 4))
def changed_before_it_is_asked(n, x):
    n += 1
    if n == 4:
        return x + 1
    n.mul_(2)
    return x + n


@case(*numbers(3, 0, 5))
def loops(n, x):
    while n > 0:
        n = n - 1
        x = x + n
    return x


@case(*numbers(*range(12)))
def many_answers(n, x):
    for k in range(10):
        if n == k:
            return x + k
    return x


@case(lambda: (torch.ones(2),), factory=True)
def two_views_of_a_flag():
    flag = torch.zeros(2, dtype=torch.int64)

    def fn(x):
        first, second = flag[0], flag
        second.add_(1)
        return x + 1 if first == 1 else x

    return fn, flag


@case(*numbers(3, 0, 5), fullgraph=True)
def counts_of_a_loop(n, x):
    for k in range(n):
        x = x + k
    for _ in range(1, int(n), 2):
        x = x * 2
    return x


@case(*numbers(*range(9)))
def many_counts(n, x):
    for k in range(n):
        x = x + k
    return x, "abcdefghijkl"[n.item()], [1, 2, 3][:n]


@case(*numbers(1, [2], -1, 7), fullgraph=True)
def places_in_sequences(n, x):
    try:
        return x * (1, 2, 3)[n], list(range(10))[n.item():]
    except IndexError as error:
        return str(error)


@case(*numbers(2, True, [2], 1.0, [1, 2], 2 + 0j))
def what_is_no_count(n, x):
    try:
        return [x + k for k in range(n)]
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error), str(error)


@case(*numbers(2, 3))
def changed_before_it_counts(n, x):
    n += 1
    for k in range(n):
        x = x + k
        n -= 1
    return x, n


class Normalised(nn.Module):
    """Initialised by the first batch, as activation norms are."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("initialised", torch.tensor(0, dtype=torch.uint8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training and not self.initialised:
            with torch.no_grad():
                self.scale.copy_(1 / (x.std(0) + 1e-6))
            self.initialised.fill_(1)
        self.steps += 1
        return x * self.scale.detach()


@case(lambda: (torch.randn(3, 4),), factory=True, rounds=4)
def initialised_by_the_first_batch():
    net = Normalised()
    return (lambda x: net(x)), net


@case(lambda: (torch.randn(3, 4),), factory=True, rounds=5)
def every_third_step():
    steps = torch.zeros((), dtype=torch.int64)

    def fn(x):
        steps.add_(1)
        return x

    def asked(x):
        y = x * 2 if steps % 3 == 0 else x
        return fn(y)

    return asked, steps


def _averaged(**options):
    def made():
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        averaged = AveragedModel(net, **options)

        def fn(x):
            with torch.no_grad():
                net[0].weight.add_(0.1)
            averaged.update_parameters(net)
            with torch.no_grad():
                return averaged(x)

        return fn, averaged

    return made


for _name, _options in {"plainly": {}, "with_buffers": {"use_buffers": True, "avg_fn": get_ema_avg_fn(0.9)},
                        "exponentially": {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}}.items():
    _made = _averaged(**_options)
    _made.__name__, _made.__module__ = f"averaged_{_name}", __name__
    case(lambda: (torch.randn(3, 4),), factory=True, fullgraph=True, rounds=4)(_made)


test_flags = make_test(__name__)
