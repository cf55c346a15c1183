"""Kernels compiled in worker processes, for a GPU that need not be there."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitpy import config
from jitpy.runtime.gpu import compile as gpu_compile
from jitpy.runtime.gpu.compile import Binary, KernelCompileError, Target, compile_kernels, key_of, submit

from . import kernels

H100 = Target("cuda", 90)
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path):
    with config.patch(cache_dir=str(tmp_path / "cache"), compile_workers=2):
        yield


def forget() -> None:
    """What this process knows of compiled kernels, not what is on disk."""
    gpu_compile._known.clear()


def test_a_kernel_becomes_a_cubin() -> None:
    sine, row_sum = compile_kernels([kernels.SINE, kernels.ROW_SUM], H100)
    assert sine.code[:4] == b"\x7fELF" and row_sum.code[:4] == b"\x7fELF"
    assert (sine.entry, sine.threads, sine.shared) == ("sine", 128, 0)
    assert (row_sum.entry, row_sum.threads) == ("row_sum", 256) and row_sum.shared > 0
    assert ".entry sine(" in sine.assembly and f"sine_param_{2 + sine.extra_parameters}\n" in sine.assembly
    assert sine.extra_parameters in (1, 2)  # scratch memory, by Triton's version


def test_divisible_pointers_are_loaded_wide() -> None:
    wide, narrow = compile_kernels([dataclasses.replace(kernels.SINE, constexprs=(("BLOCK", 512),)),
                                    dataclasses.replace(kernels.SINE, constexprs=(("BLOCK", 512),),
                                                        divisible=frozenset())], H100)
    facts = dataclasses.replace(wide.kernel, divisible=frozenset({"x", "y", "n"}))
    assert "ld.global.v4" in compile_kernels([facts], H100)[0].assembly and "v4" not in narrow.assembly


def test_another_kind_of_gpu() -> None:
    (binary,) = compile_kernels([kernels.SINE], Target("hip", "gfx942", 64))
    assert binary.code[:4] == b"\x7fELF" and binary.threads == 256 and "gfx942" in binary.assembly


def test_equal_kernels_are_compiled_once() -> None:
    first = submit(kernels.AXPB, H100)
    again = submit(dataclasses.replace(kernels.AXPB), H100)
    assert again is first or again.result() is first.result()
    assert first.result() is submit(kernels.AXPB, H100).result()


def test_binaries_are_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    binary = submit(kernels.AXPB, H100).result()
    forget()

    def no_work() -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(gpu_compile, "_pool", no_work)
    read = submit(kernels.AXPB, H100).result()
    assert read is not binary and dataclasses.asdict(read) == dataclasses.asdict(binary)


def test_what_decides_the_code_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels.SINE
    others = [dataclasses.replace(kernel, **change) for change in (
        {"source": kernel.source + "\n"}, {"num_warps": 8}, {"num_stages": 1}, {"fp_fusion": False},
        {"divisible": frozenset()}, {"constexprs": (("BLOCK", 256),)}, {"max_registers": 64},
        {"signature": (("x", "*fp32"), ("y", "*fp32"), ("n", "i64"), ("BLOCK", "constexpr"))})]
    keys = {key_of(one, H100) for one in [kernel, *others]} | {key_of(kernel, Target("cuda", 80))}
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    keys.add(key_of(kernel, H100))
    monkeypatch.setattr(gpu_compile, "triton_version", lambda: "0.0")
    keys.add(key_of(kernel, H100))
    assert len(keys) == len(others) + 4


def test_errors_name_the_kernel_and_what_the_compiler_said() -> None:
    wrong = dataclasses.replace(kernels.SINE, source=kernels.SINE.source.replace("tl.sin", "tl.no_such_function"))
    with pytest.raises(KernelCompileError, match="kernel sine: .*") as caught:
        compile_kernels([wrong], H100)
    assert "no_such_function" in str(caught.value) and "\n" not in caught.value.reason
    syntax = dataclasses.replace(kernels.SINE, source="def (")
    with pytest.raises(KernelCompileError, match="SyntaxError"):
        compile_kernels([syntax], H100)
    assert isinstance(submit(kernels.SINE, H100).result(), Binary)  # the workers go on


def test_the_kernel_that_workers_begin_with() -> None:
    (binary,) = compile_kernels([gpu_compile._FIRST], H100)
    assert binary.code[:4] == b"\x7fELF"


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_compile, "triton_version", lambda: None)
    with pytest.raises(KernelCompileError, match="Triton is not installed"):
        submit(kernels.SINE, H100)


def test_a_worker_that_is_killed_is_replaced() -> None:
    submit(kernels.SINE, H100).result()
    pool = gpu_compile._pool()
    for one in list(pool.workers):
        os.kill(one.pid, signal.SIGKILL)
    other = dataclasses.replace(kernels.SINE, num_warps=2)
    assert submit(other, H100).result().threads == 64


def test_a_kernel_that_ends_the_compiler_ends_no_other_process() -> None:
    """An assertion in the compiler's own code aborts its process: the user's lives on, and is told so."""
    source = kernels.SINE.source.replace("@triton.jit", "import os\nos.abort()\n\n@triton.jit", 1)
    broken = dataclasses.replace(kernels.SINE, source=source)
    with pytest.raises(KernelCompileError, match="ended its process three times"):
        submit(broken, H100).result()
    assert submit(dataclasses.replace(kernels.SINE, num_warps=1), H100).result().threads == 32


def test_a_maker_that_is_killed_is_replaced() -> None:
    submit(kernels.SINE, H100).result()
    pool = gpu_compile._pool()
    pool.maker.process.kill()
    for one in list(pool.workers):
        os.kill(one.pid, signal.SIGKILL)
    other = dataclasses.replace(kernels.SINE, num_warps=8)
    assert submit(other, H100).result().threads == 256
    assert not pool.broken


def test_without_processes_kernels_compile_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **named: object) -> None:
        raise OSError("no processes")

    pool = gpu_compile._Pool()
    monkeypatch.setattr(gpu_compile, "_current", pool)
    monkeypatch.setattr(gpu_compile, "_Worker", refused)
    try:
        assert submit(dataclasses.replace(kernels.AXPB, num_warps=2), H100).result().threads == 64
        assert pool.broken
    finally:
        pool.close()


PROGRAM = """
import sys, time
from jitpy.runtime.gpu.compile import Target, compile_kernels, _pool
from tests.runtime.gpu import kernels
compile_kernels([kernels.SINE], Target("cuda", 90))
print(*(one.pid for one in _pool().workers), _pool().maker.process.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("killed", [False, True])
def test_workers_end_with_the_process(killed: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "30" if killed else "0"], stdout=subprocess.PIPE, text=True,
                          cwd=ROOT, env={**os.environ, "JITPY_DISK_CACHE": "0"}) as process:
        assert process.stdout is not None
        workers = [int(word) for word in process.stdout.readline().split()]
        if killed:
            process.kill()
        process.wait(20)
    assert len(workers) == 2  # and the one that makes them
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}/exe") for pid in workers):
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}/exe") for pid in workers)
