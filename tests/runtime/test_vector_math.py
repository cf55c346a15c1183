"""MKL's vector functions are resolved on import, by one thread; checks say which side of a difference is off."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.cases import CASES, arguments
from examples import demo
from jitpy.runtime import vector_math

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch without MKL")


def test_every_function_that_torch_hands_to_mkl_is_known() -> None:
    text = (Path(torch.__file__).parent / "include/ATen/cpu/vml.h").read_text()
    found = re.findall(r"^IMPLEMENT_VML_MKL\((\w+),", text, re.MULTILINE)
    assert len(found) > 10 and sorted(found) == sorted(vector_math.FUNCTIONS)


@needs_mkl
def test_importing_jitpy_resolves_each_of_them() -> None:
    program = """
import torch
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as seen:
    import jitpy
for event in seen.events():
    if event.input_shapes and event.input_shapes[0] == [1]:
        print(event.name.removeprefix("aten::"), event.thread)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    calls = [line.split() for line in done.stdout.splitlines()]
    counts = collections.Counter(name for name, _ in calls)
    assert {name: counts[name] for name in vector_math.FUNCTIONS} == dict.fromkeys(vector_math.FUNCTIONS, 2)
    assert len({thread for _, thread in calls}) == 1


@needs_mkl
def test_resolving_changes_nothing_of_the_programs_state() -> None:
    with torch.device("meta"), torch.random.fork_rng():
        before = torch.random.get_rng_state()
        vector_math.resolve()
        assert torch.equal(before, torch.random.get_rng_state()) and torch.is_grad_enabled()
        assert torch.empty(1).is_meta


def test_the_demo_says_which_result_is_off() -> None:
    case = CASES[0]
    args = arguments(case, 1024)
    right = case.fn(*args)
    wrong = right + 1.0
    assert demo.check(case, args, right, right) == 0.0
    with pytest.raises(AssertionError, match=r"jitpy's is off by \d\.\de[-+]0[01], eager's by \d\.\de-0[678]"):
        demo.check(case, args, wrong, right)
    with pytest.raises(AssertionError, match=r"jitpy's is off by \d\.\de-0[678], eager's by \d\.\de[-+]0[01]"):
        demo.check(case, args, right, wrong)
