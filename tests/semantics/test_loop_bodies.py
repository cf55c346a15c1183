"""Loops in frames that are plain Python for the sake of an object's end: their bodies are compiled by themselves."""

from __future__ import annotations

import io
import warnings

import pytest
import torch

import jitpy
from jitpy.engine import all_engines
from tests.semantics.harness import case, make_test


class Bar:
    """As a progress bar: it is iterated over by a generator, and writes down when it ends."""

    def __init__(self, items, log):
        self.items, self.log = items, log

    def __iter__(self):
        try:
            for item in self.items:
                yield item
                self.log.append("advanced")
        finally:
            self.log.append("closed")

    def __del__(self):
        self.log.append("gone")


class Noted:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("noted is gone")


def one():
    return (torch.randn(3),)


@case(one, factory=True)
def plain_loop():
    log = []

    def fn(x):
        for i in Bar(range(4), log):
            x = (x * 2).sin() + i
            log.append(i)
        log.append("behind")
        return x

    return fn, log


@case(one, factory=True)
def branches_inside():
    log = []

    def fn(x):
        y = x + 1
        for i in Bar(range(6), log):
            if i == 2:
                continue
            if i % 2:
                y = y * x
            else:
                log.append("even")
                for k in range(i):
                    y = y + k
            while i > 4:
                i -= 2
        return y, i, k

    return fn, log


@case(one, factory=True)
def the_bar_has_a_name():
    log = []

    def fn(x):
        bar = Bar(range(4), log)
        total = 0
        for i in bar:
            total = total + x * i
            bar.log.append(i)
        log.append("behind")
        return total

    return fn, log


@case(one, factory=True)
def left_early():
    log = []

    def fn(x):
        for i in Bar(range(4), log):
            x = x + i
            if i == 2:
                break
        log.append("behind")
        return x

    return fn, log


@case(one, factory=True)
def returned_from():
    log = []

    def fn(x):
        for i in Bar(range(4), log):
            x = x + i
            if i == 2:
                return x
        return x * 2

    return fn, log


@case(one, factory=True)
def what_is_overwritten_has_an_end():
    log = []

    def fn(x):
        noted = Noted(log)
        for i in Bar(range(3), log):
            noted = x * i
            log.append("overwritten")
        return noted

    return fn, log


@case(one, factory=True)
def an_item_has_an_end():
    log = []

    def fn(x):
        for noted in Bar([Noted(log), Noted(log)], log):
            x = x + 1
            log.append(noted is None)
        noted = None
        log.append("behind")
        return x

    return fn, log


@case(one, factory=True)
def the_body_makes_what_has_an_end():
    log = []

    def fn(x):
        for i in Bar(range(4), log):
            log.append("begun")
            noted = Noted(log)
            x = x + i
            log.append(noted is None)
        return x

    return fn, log


@case(one, factory=True)
def written_only_sometimes():
    log = []

    def fn(x):
        for i in Bar(range(3), log):
            if i == 1:
                found = x * 2
            x = x + i
        return found

    return fn, log


@case(one, factory=True)
def without_an_item():
    log = []

    def fn(x):
        for i in Bar((), log):
            y = x + i
        return y

    return fn, log


@case(one, factory=True)
def closure_variables():
    log = []
    factor = torch.ones(3) * 3

    def fn(x):
        shift = x * 2

        def shifted(y):
            return y + shift

        for i in Bar(range(3), log):
            x = shifted(x) * factor + i
        return x

    return fn, (log, factor)


@case(one, factory=True)
def two_loops():
    log = []

    def fn(x):
        for i in Bar(range(3), log):
            x = x + i
        for a, (b, *c) in Bar([(1, (2, 3)), (4, (5, 6))], log):
            x = x * a + b - c[0]
        for i in range(3):
            x = x + i
        return x, a, b, c

    return fn, log


@case(one, factory=True)
def inside_a_loop():
    log = []

    def fn(x):
        for epoch in range(2):
            for i in Bar(range(3), log):
                x = x + i * epoch
            log.append(epoch)
        return x

    return fn, log


@case(one, factory=True, handles_errors=True)
def an_exception_in_the_body():
    log = []

    def fn(x):
        for i in Bar(range(3), log):
            x = x + i
            if i == 1:
                log.append("raises")
                raise ValueError("no")
        return x

    return fn, log


@case(one, factory=True)
def a_loop_in_a_block():
    log = []

    def fn(x):
        try:
            for i in Bar(range(3), log):
                y = x * i
                if i == 1:
                    raise ValueError("no")
        except ValueError:
            return y, i
        return x

    return fn, log


@case(one, factory=True)
def a_frame_that_is_looked_at():
    log = []

    def fn(x):
        for i in Bar(range(3), log):
            y = x * i
            log.append(sorted(locals()))
        return y

    return fn, log


@case(one, factory=True, handles_errors=True)
def deleted_ahead_of_the_loop():
    log = []

    def fn(x):
        y = x + 1
        for epoch in range(2):
            for i in Bar(range(2), log):
                y = x * i
                log.append(i)
            del y
            log.append(epoch)
        return x

    return fn, log


test_all = make_test(__name__)


def _compiled_operations() -> int:
    return max((len(variant.graph.nodes) for engine in all_engines() for variant in engine.variants
                if variant.graph is not None), default=0)


def test_the_body_of_a_loop_under_tqdm_is_compiled() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    jitpy.reset()

    def train(model, batches, out):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for x, y in tqdm(batches, file=out):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    batches = [(torch.randn(5, 4), torch.randn(5, 1)) for _ in range(6)]
    start = {name: value.clone() for name, value in model.state_dict().items()}
    written = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jitted = jitpy.jit(train)(model, batches, written)
    model.load_state_dict(start)
    torch.testing.assert_close(jitted, train(model, batches, io.StringIO()))
    assert "6/6" in written.getvalue()
    assert _compiled_operations() > 15
