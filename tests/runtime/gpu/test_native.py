"""The native side of launches, as far as it goes without a GPU."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jitpy.runtime.compiler import require_compiler
from jitpy.runtime.native_build import NativeUnavailable, load_native
from jitpy.runtime.plan import AllocStep, LaunchStep, Plan, SizeRef, SlotRef, Workspace

from . import kernels

CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def native():
    try:
        return load_native("runtime")
    except NativeUnavailable as error:
        pytest.skip(error.reason)


def with_functions(native, plan: Plan) -> Plan:
    function = native.GpuFunction(b"\x7fELF not really\0and more", "name", 128, 0, 2)
    steps = [dataclasses.replace(step, functions=(function, lambda: function)) if isinstance(step, LaunchStep) else step
             for step in plan.steps]
    return dataclasses.replace(plan, steps=steps)


def test_functions_take_what_they_need(native) -> None:
    native.GpuFunction(code=b"abc", entry="f", threads=32, shared=100000, extra_parameters=0)
    with pytest.raises(TypeError):
        native.GpuFunction("text", "f", 32, 0, 0)
    with pytest.raises(TypeError):
        native.GpuFunction(b"abc", "f", 32)


@pytest.mark.parametrize("make", [kernels.sine_plan, kernels.axpb_plan, lambda on: kernels.increment_plan(on, 5)])
def test_plans_become_native(native, make) -> None:
    executable = native.Executable(with_functions(native, make(CUDA)))
    assert "launch" in executable.steps_text()


def test_plans_that_are_wrong(native) -> None:
    plan = kernels.sine_plan(CUDA)
    with pytest.raises(ValueError, match="not been compiled"):
        native.Executable(plan)
    with pytest.raises(TypeError):
        native.Executable(dataclasses.replace(plan, device="cuda"))
    with pytest.raises(ValueError, match="needs its index"):
        native.Executable(dataclasses.replace(plan, device=torch.device("cuda")))
    few = LaunchStep(kernels.SINE, (1,), (SlotRef(0),), "sine")
    with pytest.raises(ValueError, match="as many arguments"):
        native.Executable(with_functions(native, Plan(1, 1, (0,), [few], device=CUDA)))
    unknown = LaunchStep(kernels.SINE, (SizeRef(3),), (SlotRef(0), Workspace(0), 16), "sine")
    with pytest.raises(ValueError, match="no size 3"):
        native.Executable(with_functions(native, Plan(1, 1, (0,), [unknown], device=CUDA)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_call_is_torchs_error(native) -> None:
    plan = with_functions(native, kernels.sine_plan(CUDA))
    with pytest.raises(RuntimeError, match="(?i)cuda"):
        native.Executable(plan)(torch.randn(16))
    plain = Plan(1, 2, (1,), [AllocStep(1, (4,), (1,), torch.float32, CUDA)])
    with pytest.raises((RuntimeError, AssertionError), match="(?i)cuda|nvidia driver"):
        native.Executable(plain)(torch.randn(16))


def test_addresses(native) -> None:
    assert native.addresses((1, 2.0), 0, ()) == bytes(16)
    assert native.addresses((), 0, ()) == b""
    assert native.addresses((torch.randn(3),), 0, ()) is None  # of another device
    with pytest.raises(TypeError):
        native.addresses([1], 0, ())
    with pytest.raises(ValueError, match="no input 5"):
        native.addresses((1,), 0, (5,))


FAKE_DRIVER = r"""
#include <stdio.h>
int cuInit(unsigned flags) { printf("init %u\n", flags); return 0; }
int cuGetErrorString(int code, const char** text) { *text = "all is lost"; return 0; }
int cuGetErrorName(int code, const char** text) { *text = "CUDA_ERROR_LOST"; return 0; }
int cuDeviceGet(int* device, int number) { *device = number + 100; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  printf("retain %d\n", device);
  *context = (void*)7;
  return 0;
}
static void* current;
int cuCtxGetCurrent(void** context) { *context = current; return 0; }
int cuCtxSetCurrent(void* context) { current = context; return 0; }
int cuModuleLoadData(void** module, const void* code) {
  printf("load %s\n", (const char*)code);
  *module = (void*)8;
  return *(const char*)code == 'x' ? 999 : 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) { printf("find %s\n", name); return 0; }
int cuFuncSetAttribute(void* function, int attribute, int value) { printf("set %d %d\n", attribute, value); return 0; }
int cuLaunchKernel() { return 0; }
"""

PROGRAM = """
from jitpy.runtime.compiler import require_compiler
from jitpy.runtime.native_build import load_native
import torch
native = load_native("runtime")
small = native.GpuFunction(b"code", "f", 128, 100, 2)
small.load(1)
native.GpuFunction(b"more", "g", 128, 70000, 2).load(1)
try:
    native.GpuFunction(b"x", "g", 128, 70000, 2).load(1)
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


def test_the_driver_is_found_and_asked(native, tmp_path: Path) -> None:
    """A library that takes the driver's place notes what it is asked."""
    (tmp_path / "fake.c").write_text(FAKE_DRIVER)
    built = require_compiler()
    built.compile_object([tmp_path / "fake.c"], tmp_path / "fake.o", ("-fPIC", "-w"), language="c")
    built.compile_shared([tmp_path / "fake.o"], tmp_path / "libcuda.so.1", (), language="c")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment,
                          cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    said = "CUDA error: all is lost (cuModuleLoadData: CUDA_ERROR_LOST)"
    assert said in printed
    assert [line for line in printed if line != said] == [
        "init 0", "retain 101", "load code", "find f", "load more", "find g", "set 8 70000", "load x"]
