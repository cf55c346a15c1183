"""Captures in a process in which torch.compile has run: it patches parts of torch when it is used first.

The programs run in processes of their own, because the patches stay.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import torch
from torch import nn
import jitpy

untouched = nn.Module.__init__

def compiler():
    assert torch.compile(torch.sin, backend="eager")(torch.ones(1)) == torch.sin(torch.ones(1))
    assert nn.Module.__init__ is not untouched

class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return x * self.factor

layers, blocks = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), nn.ModuleList([nn.Tanh(), nn.ReLU()])

def slices(x):
    y = layers[:2](x)
    for block in blocks[1:]:
        y = block(y)
    return y

def made_inside(x):
    return Scale(2.5)(x), nn.Sequential(nn.Tanh(), layers[0])(x), len(nn.ModuleList([layers]))

kept = []
def leaves_one(x):
    kept.append(Scale(x.shape[0]))
    return kept[-1](x)

def check(function, x):
    fast = jitpy.jit(function, fullgraph=True)
    for number in range(4):
        if number == WHEN:
            compiler()
        kept.clear()
        expected, state = function(x), [(type(m), sorted(m.__dict__), m.training) for m in kept]
        kept.clear()
        torch.testing.assert_close(fast(x), expected)
        assert [(type(m), sorted(m.__dict__), m.training) for m in kept] == state
        if function is leaves_one:
            assert torch.equal(kept[0](x), x * 2) and list(kept[0].modules()) == kept

WHEN = {when}
for function in (slices, made_inside, leaves_one):
    check(function, torch.randn(2, 3))
"""


@pytest.mark.parametrize(("when", "functions"), [
    (0, "slices, made_inside, leaves_one"), (2, "slices"), (2, "made_inside"), (2, "leaves_one")])
def test_modules_that_are_made_inside(when: int, functions: str) -> None:
    """Before the first call, and between calls: each function in a process of its own then."""
    program = _PROGRAM.replace("{when}", str(when)).replace("slices, made_inside, leaves_one)", f"{functions},)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_what_a_program_puts_around_the_patch_runs() -> None:
    """A wrapper of the program's own says nothing about the compiler: its side effects stay."""
    program = _PROGRAM[: _PROGRAM.index("def check")] + """
compiler()
seen, patched = [], nn.Module.__init__
def counted(self, *args, **kwargs):
    seen.append(type(self).__name__)
    patched(self, *args, **kwargs)
nn.Module.__init__ = counted
fast = jitpy.jit(lambda x: Scale(2.0)(x), fullgraph=True)
for number in range(1, 4):
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0)) and seen == ["Scale"] * number
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
