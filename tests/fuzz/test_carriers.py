"""Each construct that values of random programs travel through, with one of the things that can happen inside it."""

from __future__ import annotations

import linecache
import sys
import textwrap
import types

import pytest
import torch

from tests.fuzz.carriers import PAUSES, carriers, definitions
from tests.fuzz.prelude import IMPORTS
from tests.semantics import harness

_PROGRAM = '''
def world():
    def fn(x, n):
        t = x * 2
        held = [n, t]
        a = {name}(held)
        b = {name}(t + 1)
        c = {name}(x), {name}(n)
        return a, b, c, a is held, t
    return fn, shared
'''


@pytest.mark.parametrize(("number", "name"), list(enumerate(carriers())))
def test_carrier(number: int, name: str) -> None:
    pause = PAUSES[number % len(PAUSES)]
    path = f"/jitpy-fuzz/{name}.py"
    helpers = f"def pause():\n{textwrap.indent(pause, '    ')}\n\n\n{definitions({name})}"
    source = IMPORTS + helpers + _PROGRAM.format(name=name)
    module = types.ModuleType("jitpy_fuzz_carrier")
    module.__file__ = path
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
        made = {"ticks": list, "shared": lambda: [1, 2], "counter": lambda: 3}
        calls = tuple(lambda n=n: (torch.ones(2 + n), n) for n in range(2))
        harness.check(harness.Case(module.world, calls, None, None, True, made, 2e-5, 1), "eager")
    finally:
        del sys.modules[module.__name__]
        linecache.cache.pop(path, None)
