"""Pickles of jitted functions, and what torch.jit.script makes, jitted."""

from __future__ import annotations

import copy
import pickle
import textwrap
from typing import Any

import torch
from torch import nn

import jitpy


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@jitpy.jit
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x + 1


under_another_name = jitpy.jit(double)


def test_by_reference() -> None:
    for jitted in (decorated, under_another_name):
        assert pickle.loads(pickle.dumps(jitted)) is jitted
        assert copy.copy(jitted) is jitted and copy.deepcopy(jitted) is jitted


def test_without_a_name_it_is_jitted_again() -> None:
    jitted = jitpy.jit(double, dynamic=True)
    again = pickle.loads(pickle.dumps({"f": jitted}))["f"]
    assert again is not jitted and again.on_miss.options == jitted.on_miss.options
    assert torch.equal(again(torch.ones(3)), torch.full((3,), 2.0))
    assert copy.deepcopy(jitted) is jitted


def test_in_another_process(tmp_path: Any) -> None:
    """Before the module has compiled anything there."""
    import subprocess
    import sys

    (tmp_path / "library.py").write_text("import jitpy\n@jitpy.jit\ndef f(x):\n    return x * 3\n")
    program = textwrap.dedent("""
        import pickle, sys, torch
        sys.path.insert(0, sys.argv[1])
        if sys.argv[2] == "dump":
            import library
            pickle.dump(library.f, open(sys.argv[1] + "/pickle", "wb"))
        else:
            f = pickle.load(open(sys.argv[1] + "/pickle", "rb"))
            assert f is sys.modules["library"].f and f(torch.ones(1)) == 3
    """)
    for what in ("dump", "load"):
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path), what], capture_output=True, text=True,
                              timeout=300, check=False)
        assert done.returncode == 0, done.stderr


def test_scripted_module() -> None:
    scripted = torch.jit.script(nn.Linear(3, 3))
    fast = jitpy.jit(scripted)
    for _ in range(2):
        x = torch.randn(2, 3)
        torch.testing.assert_close(fast(x), scripted(x))
    assert fast.state_dict().keys() == scripted.state_dict().keys()
