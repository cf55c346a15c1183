"""Objects that a call makes itself are others in each call: no variant is compiled for the identity of one of them."""

from __future__ import annotations

import operator
import re
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants

#: (maker of `fn(x)`, variants allowed: those of the pieces around the breaks, and one more that found out)
CASES: dict[str, tuple[Callable[[], Any], int]] = {}
_PATTERN = re.compile(r"(\d+)\.(\d+)")
_KEPT: list[Any] = []


def made(allowed: int) -> Any:
    def register(make: Any) -> Any:
        CASES[make.__name__] = make, allowed
        return make

    return register


@made(1)
def match_of_torchs_version():
    def fn(x):
        found = _PATTERN.match(torch.__version__)
        if found and int(found.group(1)) >= 2:
            return x.sin() + 1
        return x.cos()

    return fn


@made(1)
def string_of_a_match():
    def fn(x):
        found = re.search("[0-9]", torch.__version__)
        return x.sin() + (1 if found.string is torch.__version__ else 2)

    return fn


@made(2)
def truth_of_a_match():
    @jitpy.disable
    def look():
        return _PATTERN.match("12.3")

    def fn(x):
        if look():
            return x.sin() + 1
        return x.cos()

    return fn


@made(8)
def groups_of_a_match():
    @jitpy.disable
    def look():
        return _PATTERN.match("12.3")

    def fn(x):
        found = look()
        y = x.sin()
        a, b = found.groups()
        return y * int(a) + int(found.group(2)) + (0 if found.re is _PATTERN else 1)

    return fn


@made(8)
def module_made_at_each_call():
    def fn(x):
        module = types.ModuleType("made")
        module.scale = 3
        y = x.sin()
        return y * module.scale

    return fn


@made(6)
def lock_made_at_each_call():
    def fn(x):
        with threading.Lock():
            y = x.sin()
        return y + 1

    return fn


@made(6)
def method_of_an_opaque_object():
    def fn(x):
        digest = __import__("hashlib").sha256(b"abc")
        y = x.sin()
        return y + digest.digest_size + len(digest.hexdigest())

    return fn


@made(6)
def opaque_object_kept_in_a_list():
    def fn(x):
        _KEPT[:] = [__import__("zlib").compressobj()]
        y = x.sin()
        return y + len(_KEPT[0].compress(b""))

    return fn


@made(8)
def opaque_object_of_an_inlined_function():
    def inner(x):
        digest = __import__("hashlib").sha256(b"abc")
        return x.sin() + len(digest.hexdigest())

    def fn(x):
        return inner(x) * 2

    return fn


@made(6)
def bound_method_of_an_opaque_object():
    def fn(x):
        update = __import__("hashlib").sha256(b"abc").hexdigest
        y = x.sin()
        return y + len(update())

    return fn


@made(6)
def getter_made_by_plain_python():
    @jitpy.disable
    def look():
        return operator.itemgetter(1)

    def fn(x):
        second = look()
        y = x.sin()
        return y + second([1, 2])

    return fn


@made(6)
def property_made_by_plain_python():
    @jitpy.disable
    def look():
        return property(lambda self: 3)

    def fn(x):
        found = look()
        y = x.sin()
        return y + found.fget(None)

    return fn


@made(6)
def key_that_is_made_anew():
    def fn(x):
        key = __import__("hashlib").sha256(b"abc")
        table = {key: x.sin()}
        return table[key] + 1

    return fn


@pytest.mark.parametrize("name", CASES)
def test_not_one_variant_for_each_object(name: str) -> None:
    jitpy.reset()
    make, allowed = CASES[name]
    eager, jitted = make(), jitpy.jit(make())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(12):
            x = torch.arange(4.0) + k
            torch.testing.assert_close(jitted(x), eager(x))
    assert variants() <= allowed


def test_instances_do_not_count() -> None:
    """A method whose instances change splits where it has to; what it makes itself is no reason."""
    class Layer(torch.nn.Module):
        def forward(self, x):
            digest = __import__("hashlib").sha256(b"abc")
            return x.sin() + len(digest.hexdigest())

    layers = [Layer() for _ in range(3)]
    jitted = [jitpy.jit(layer) for layer in layers]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(12):
            x = torch.arange(4.0) + k
            torch.testing.assert_close(jitted[k % 3](x), layers[k % 3](x))


def test_few_objects_from_outside_are_told_apart() -> None:
    """The caller's objects are compiled for, as long as they are few."""
    jitpy.reset()

    def fn(x, pattern):
        return x.sin() + (1 if pattern.match("12") else 2)

    jitted = jitpy.jit(fn)
    patterns = [re.compile("[0-9]"), re.compile("[a-z]"), re.compile(".*")]
    for k in range(9):
        x = torch.arange(4.0) + k
        torch.testing.assert_close(jitted(x, patterns[k % 3]), fn(x, patterns[k % 3]))
    assert variants() == 3


def test_operands_of_a_break_are_no_constants() -> None:
    """A number that is computed from a changing one, and handed to a call that breaks for another reason."""
    jitpy.reset()

    def fn(p, x, state):
        doubled = p * 1
        data = p.data.float()
        jitpy.graph_break()
        state["step"] += 1
        data.addcdiv_(x, x.exp(), value=-0.01 * 0.999 ** state["step"])
        p.data.copy_(data)
        return doubled

    jitted = jitpy.jit(fn)
    ours, theirs = (torch.ones(4, requires_grad=True) for _ in range(2))
    states = {"step": 0}, {"step": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(14):
            x = torch.arange(4.0) + k
            torch.testing.assert_close(jitted(ours, x, states[0]), fn(theirs, x, states[1]))
            torch.testing.assert_close(ours, theirs)
    assert states[0] == states[1] and variants() <= 7
