"""Programs that the fuzzer found and made small; what went wrong is said at each."""

from __future__ import annotations

import torch

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


test_all = make_test(__name__)
