"""Kernels that programs wrote: what they write to, and their machine code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

import jitpy  # noqa: E402
from jitpy.runtime.gpu import launches, stores  # noqa: E402
from jitpy.runtime.gpu.compile import Target  # noqa: E402
from jitpy.runtime.gpu.launches import Launch, Place, SameKernel, variants  # noqa: E402
from tests import counting  # noqa: E402

FACTOR = tl.constexpr(2)


def compiled(function: Any) -> Any:
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = False
        return triton.jit(function)


@compiled
def store_at(pointer, value, mask):
    tl.store(pointer, value, mask=mask)


@compiled
def by_helper(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    store_at(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), at < n)


@compiled
def loops(a, b, c, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    left, right = a + at, b + at
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(n):
        total += tl.load(left) * tl.load(right)
        left += BLOCK
        right += BLOCK
    tl.store(c + at, total + tl.sum(total, 0))


@compiled
def one_of_two(a, b, c, n, BLOCK: tl.constexpr):
    chosen = a if n > 7 else b
    tl.store(chosen + tl.arange(0, BLOCK), tl.load(c + tl.arange(0, BLOCK)))


@compiled
def goes_along(a, b, n, BLOCK: tl.constexpr):
    at = b
    while n > 0:
        tl.store(at, tl.load(a))
        at += BLOCK
        n -= 1


@compiled
def changes_places(a, b, n, BLOCK: tl.constexpr):
    first, second = a, b
    for _ in range(n):
        tl.store(first, 1.0)
        first, second = second, first


@compiled
def counts(x, bins, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + tl.load(x + at, mask=at < n).to(tl.int32), 1.0, mask=at < n)


@compiled
def under_a_condition(a, b, n, BLOCK: tl.constexpr):
    if tl.program_id(0) == 0:
        value = tl.load(a)
        if n > 2:
            tl.store(b, value)


@compiled
def pointer_from_a_number(a, b, n, BLOCK: tl.constexpr):
    target = (a.to(tl.int64) + 4).to(tl.pointer_type(tl.float32))
    tl.store(target, tl.load(b))


@pytest.mark.parametrize(("kernel", "written"), [
    (by_helper, {"out"}), (loops, {"c"}), (one_of_two, {"a", "b"}), (goes_along, {"b"}), (changes_places, {"a", "b"}),
    (counts, {"bins"}), (under_a_condition, {"b"}), (pointer_from_a_number, {"a"}),
], ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_written(kernel: Any, written: set[str]) -> None:
    launch, numbers = launch_of(kernel)
    assert {kernel.arg_names[place] for place in launch.written(numbers)} == written


def launch_of(kernel: Any, n: int = 100) -> tuple[Launch, list[Any]]:
    """A launch with float32 tensors, one for each of the first parameters."""
    count = kernel.arg_names.index("n")
    places = {name: Place("tensor", k) for k, name in enumerate(kernel.arg_names[:count])}
    places |= {"n": Place("number", 0), "BLOCK": Place("constant", 32)}
    return Launch(kernel, kernel.__name__, (), places, {}, None, (torch.float32,) * count), [n]


def test_what_cannot_be_read_is_written() -> None:
    assert stores.written_through("no text of Triton's", ["a", "b"]) == {"a", "b"}

    @compiled
    def wrong(a, b, n, BLOCK: tl.constexpr):
        tl.no_such_function(a, b)

    launch, numbers = launch_of(wrong)
    assert launch.written(numbers) == (0, 1)


@pytest.mark.parametrize(("n", "divisible", "kind"), [
    (100, {"x", "y", "out"}, "i32"), (64, {"x", "y", "out", "n"}, "i32"), (1 << 40, {"x", "y", "out", "n"}, "i64")])
def test_machine_code(n: int, divisible: set[str], kind: str) -> None:
    """Variants as Triton would specialise, and one for any arguments."""
    launch, numbers = launch_of(by_helper, n)
    usual, general = variants(launch, numbers, lambda size: size)
    assert usual.divisible == divisible and dict(usual.parameters)["n"] == kind
    assert general.divisible == frozenset() and dict(general.parameters)["n"] == "i64"
    for kernel in (usual, general):
        binary = kernel.submit(Target("cuda", 90)).result()
        assert binary.code and binary.threads == 128 and ".entry by_helper" in binary.assembly
    assert usual.submit(Target("cuda", 90)) is usual.submit(Target("cuda", 90))


def test_the_number_one_is_part_of_the_code() -> None:
    usual, _ = variants(*launch_of(by_helper, 1), lambda size: size)
    assert "n" not in dict(usual.parameters) and usual.constants["n"] == 1


def test_options() -> None:
    launch, numbers = launch_of(by_helper)
    launch.options["num_warps"] = 8
    usual, _ = variants(launch, numbers, lambda size: size)
    assert usual.submit(Target("cuda", 90)).result().threads == 256


def test_configurations() -> None:
    configs = [triton.Config({"BLOCK": 16}, num_warps=2), triton.Config({"BLOCK": 64}, num_warps=8, num_stages=2)]
    tuned = triton.autotune(configs=configs, key=["n"], do_bench=lambda *_, **__: [1.0] * 3)(by_helper)
    plain, numbers = launch_of(by_helper)
    places = {name: place for name, place in plain.places.items() if name != "BLOCK"}
    launch = Launch(tuned, "by_helper", (), places, {}, tuple(dict(one.kwargs) for one in configs), plain.tensors)
    assert launch.written(numbers) == (2,)
    usual, _ = variants(launch, numbers, lambda size: size, 1)
    assert usual.constants["BLOCK"] == 64 and usual.submit(Target("cuda", 90)).result().threads == 256


def test_globals_are_part_of_a_kernel() -> None:
    @compiled
    def scaled(x, out, n, BLOCK: tl.constexpr):
        tl.store(out, tl.load(x) * FACTOR)

    same = SameKernel(scaled)
    assert same(scaled)
    space = scaled.fn.__globals__
    before = space["FACTOR"]
    try:
        space["FACTOR"] = tl.constexpr(3)
        assert not same(scaled)
    finally:
        space["FACTOR"] = before
    assert same(scaled)


def test_a_step_is_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a plan for a GPU."""
    from jitpy.ir.ops.functional import Making
    from jitpy.ir.ops.through_views import through_views
    from jitpy.runtime.gpu import load
    from jitpy.runtime.plan import LaunchStep, SizeRef, SlotRef, ViewStep

    monkeypatch.setattr(load, "target_of", lambda device: Target("cuda", 90))
    launch, numbers = launch_of(by_helper)
    given = (((SizeRef(0),),), tuple(map(SlotRef, range(3))), (SizeRef(1),))
    op = launches.op_of(launch, (2,))
    making = Making(lambda size: size, torch.device("cuda", 0), (2,),
                    lambda base, *geometry: (ViewStep(9, base.slot, *geometry), SlotRef(9)))
    recorded = ((4,),), (), numbers
    (step,) = op.in_place.step(recorded, given, making)
    assert isinstance(step, LaunchStep) and step.grid == (SizeRef(0),) and step.writes == (2,)
    assert step.arguments == (SlotRef(0), SlotRef(1), SlotRef(2), SizeRef(1))

    seen = through_views(op).in_place.step(
        (recorded, {}, ()), (given, {}, (((SizeRef(2), 4), (8, 1), 3, (8, 1)),)), making)
    assert seen[0] == ViewStep(9, 2, (SizeRef(2), 4), (8, 1), 3)
    assert seen[1].arguments == (SlotRef(0), SlotRef(1), SlotRef(9), SizeRef(1))


@compiled
def scaled_by_global(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """`scaled_by_global` is compiled, not interpreted, and is told apart from what runs in its place: the launches."""
    launched: list[tuple[Any, ...]] = []

    def call(launch: Launch, grids: Any, tensors: Any, numbers: Any) -> None:
        launched.append((grids, numbers))
        tensors[1].copy_(tensors[0] * FACTOR.value)

    monkeypatch.setattr(Launch, "call", call)
    return launched


def test_a_change_of_a_global_is_noticed(on_the_host: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        scaled_by_global[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, out, x.numel(), BLOCK=16)
        return out + 1

    jitpy.reset()
    jitted = jitpy.jit(fn, fullgraph=True)
    for n in (20, 33, 50):
        assert jitted(torch.ones(n)).tolist() == [3.0] * n
    assert [(grids, numbers) for grids, numbers in on_the_host] == [
        (((2,),), (20,)), (((3,),), (33,)), (((4,),), (50,))]
    assert counting.variants() == 2
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(3))
    with pytest.raises(jitpy.FullGraphError, match="globals have changed"):  # Triton refuses it, too
        jitted(torch.ones(50))


def test_machine_code_that_is_looked_at(on_the_host: list[Any]) -> None:
    def fn(x: torch.Tensor) -> Any:
        out = torch.empty_like(x)
        code = scaled_by_global[(1,)](x, out, x.numel(), BLOCK=16)
        return out, code

    with pytest.raises(jitpy.FullGraphError, match="looks at"):
        jitpy.jit(fn, fullgraph=True)(torch.ones(3))
