"""Plans with launches, run by Triton's interpreter on CPU tensors. It is chosen when Triton is imported, so that it
gets a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jitpy.runtime.executable import check_plan, make_executable
from jitpy.runtime.gpu.kernel import GpuKernel
from jitpy.runtime.plan import LaunchStep, Plan, SlotRef

from . import kernels

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]

PROGRAM = """
import torch
from jitpy.runtime.executable import make_executable
from tests.runtime.gpu import kernels

cpu = torch.device("cpu")
x = torch.randn(16)
run = make_executable(kernels.sine_plan(cpu))
assert "launch sine[1](%0, %1, 16)" in run.steps_text(), run.steps_text()
torch.testing.assert_close(run(x)[0], (x + 1).sin() * 2)

run = make_executable(kernels.axpb_plan(cpu))  # sizes, scratch memory, numbers from slots; also no launch at all
for n in (0, 1, 63, 64, 200):
    x = torch.randn(n)
    torch.testing.assert_close(run(x, 3)[0], x * 3 + 0.5)
try:
    run(torch.randn(4), torch.randn(4))
except TypeError as error:
    print(error)

x = torch.randn(200)
expected, version = x + 1, x._version
make_executable(kernels.increment_plan(cpu, 200))(x)
assert torch.equal(x, expected) and x._version == version + 1
print("done")
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, check=False,
                          env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_plans_run_in_the_interpreter(printed: list[str]) -> None:
    assert printed[-1] == "done"


def test_arguments_of_the_wrong_kind_are_errors(printed: list[str]) -> None:
    assert printed[0] == "input 1 must be an int" or "takes a i32, not Tensor" in printed[0]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter is on")
def test_cpu_tensors_need_the_interpreter() -> None:
    with pytest.raises(RuntimeError, match="sine runs on CPU tensors in Triton's interpreter only"):
        make_executable(kernels.sine_plan(CPU))(torch.randn(16))


def test_plans_are_checked() -> None:
    step = LaunchStep(kernels.SINE, (1,), (SlotRef(0),), "sine")
    with pytest.raises(ValueError, match="takes 3 arguments"):
        check_plan(Plan(1, 1, (0,), [step], device=CPU))
    step = LaunchStep(kernels.SINE, (1,), (SlotRef(0), SlotRef(1), 4), "sine")
    with pytest.raises(ValueError, match="reads slot 1, which is empty"):
        check_plan(Plan(1, 2, (0,), [step], device=CPU))
    with pytest.raises(ValueError, match="do not agree"):
        GpuKernel("", "f", (("x", "*fp32"),), constexprs=(("BLOCK", 1),))
    with pytest.raises(ValueError, match="do not agree"):
        GpuKernel("", "f", (("x", "*fp32"),), divisible=frozenset({"y"}))
    assert kernels.SINE.without_facts().divisible == frozenset()
    assert kernels.AXPB.without_facts() is kernels.AXPB
