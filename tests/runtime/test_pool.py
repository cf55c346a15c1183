"""The memory pool: reuse, its bound, and outputs that behave like any tensor."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from jitpy import config
from jitpy.runtime import compiler
from jitpy.runtime.executable import empty_pool, make_executable, pool_stats, set_pool_limit
from jitpy.runtime.plan import AllocStep, CallStep, Plan, SlotRef

CPU = torch.device("cpu")
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def fresh_pool() -> Iterator[None]:
    if compiler.find_compiler() is None:
        pytest.skip("no C++ compiler, so no native runtime and no pool")
    gc.collect()
    set_pool_limit(1 << 30)
    empty_pool()
    yield
    gc.collect()
    set_pool_limit(config.pool_bytes)
    empty_pool()


def maker(n_bytes: int, workspace: int = 0) -> Callable[[], torch.Tensor]:
    """A function that returns a fresh pooled uint8 tensor."""
    plan = Plan(0, 1, (0,), [AllocStep(0, (n_bytes,), (1,), torch.uint8, CPU)], workspace=workspace)
    executable = make_executable(plan)
    return lambda: executable()[0]


def test_freed_outputs_are_reused():
    make = maker(40 * MEGABYTE)
    before = pool_stats()
    y = make()
    address = y.data_ptr()
    assert address % 64 == 0
    assert pool_stats()["used_blocks"] == before["used_blocks"] + 1
    del y
    assert pool_stats()["cached_bytes"] >= 40 * MEGABYTE
    for _ in range(10):
        y = make()
        assert y.data_ptr() == address
        del y
    after = pool_stats()
    assert after["hits"] == before["hits"] + 10 and after["misses"] == before["misses"] + 1
    assert after["used_blocks"] == before["used_blocks"]
    empty_pool()
    assert pool_stats()["cached_bytes"] == pool_stats()["cached_blocks"] == 0


def test_live_outputs_do_not_overlap():
    sizes = [random.Random(0).randrange(70_000, 3_000_000) for _ in range(60)]
    live = []
    for number, size in enumerate(sizes):
        y = maker(size)()
        y.fill_(number)
        live.append((number, y))
        if number % 3 == 2:
            del live[0]
    assert all(bool((y == number).all()) for number, y in live)


def test_small_outputs_are_not_pooled():
    used = pool_stats()["used_blocks"]
    for size in range(0, 3000, 7):
        y = maker(size)()
        y.fill_(1)
        assert y.data_ptr() % 64 == 0 and int(y.sum()) == size
    assert pool_stats()["used_blocks"] == used


def test_blocks_are_at_most_an_eighth_too_large():
    for size in (65_536, 100_000, 1_000_000, 5_000_000, 40_000_000, 100_000_001):
        before = pool_stats()["used_bytes"]
        y = maker(size)()
        block = pool_stats()["used_bytes"] - before
        assert size <= block <= size * 1.125 + 8192
        del y


def test_bound():
    set_pool_limit(10 * MEGABYTE)
    make = maker(4 * MEGABYTE)
    set_pool_limit(10 * MEGABYTE)  # making an executable applies config.pool_bytes
    outputs = [make() for _ in range(5)]
    assert pool_stats()["cached_bytes"] == 0
    outputs.clear()
    stats = pool_stats()
    assert 0 < stats["cached_bytes"] <= 10 * MEGABYTE and stats["cached_blocks"] == 2
    set_pool_limit(5 * MEGABYTE)
    assert pool_stats()["cached_blocks"] == 1
    set_pool_limit(0)
    assert pool_stats()["cached_blocks"] == 0
    y = make()
    del y
    assert pool_stats()["cached_bytes"] == 0
    with pytest.raises(ValueError, match="negative"):
        set_pool_limit(-1)


def test_oldest_blocks_go_first():
    first, second, third = maker(2 * MEGABYTE), maker(3 * MEGABYTE), maker(4 * MEGABYTE)
    set_pool_limit(8 * MEGABYTE)
    a, b, c = first(), second(), third()
    kept = {b.data_ptr(), c.data_ptr()}
    del a, b, c
    assert {second().data_ptr(), third().data_ptr()} == kept
    misses = pool_stats()["misses"]
    first()
    assert pool_stats()["misses"] == misses + 1


def test_config_sets_the_bound():
    with config.patch(pool_bytes=7 * MEGABYTE):
        maker(100)
    assert pool_stats()["limit"] == 7 * MEGABYTE


def test_workspace_is_reused():
    run = maker(16, workspace=MEGABYTE)
    run()
    before = pool_stats()
    for _ in range(100):
        run()
    after = pool_stats()
    assert after["hits"] == before["hits"] + 100 and after["misses"] == before["misses"]
    assert after["used_blocks"] == before["used_blocks"]


# ---------------------------------------------------------------------------------------------- outputs as tensors


N = 200_000


@pytest.fixture
def output() -> torch.Tensor:
    return filled(N)


def filled(n: int) -> torch.Tensor:
    y = maker(n)()
    y.copy_(values(n))
    return y


def values(n: int = N) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int64).remainder(251).to(torch.uint8)


@pytest.mark.parametrize("n", [N, 5000, 150])
def test_resize(n):
    output = filled(n)
    output.resize_(100)
    assert torch.equal(output, values(100))
    output.resize_(900_000)
    assert torch.equal(output[:n], values(n))
    output.untyped_storage().resize_(10)
    assert output.untyped_storage().nbytes() == 10
    output.untyped_storage().resize_(2_000_000)
    assert torch.equal(output[:10], values(10))
    output.untyped_storage().resize_(0)
    del output
    gc.collect()


@pytest.mark.parametrize("n", [N, 5000])
def test_copies(n):
    output = filled(n)
    assert torch.equal(copy.deepcopy(output), values(n))
    assert torch.equal(output.clone(), values(n))
    assert torch.equal(torch._lazy_clone(output).add_(0), values(n))
    assert torch.equal(pickle.loads(pickle.dumps(output)), values(n))
    buffer = io.BytesIO()
    torch.save(output, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer), values(n))


@pytest.mark.parametrize("n", [N, 5000])
def test_lazy_copies_outlive_the_original(n):
    output = filled(n)
    clone = torch._lazy_clone(output)
    output[1] = 8
    del output
    gc.collect()
    clone[0] = 9
    assert clone[0] == 9 and torch.equal(clone[1:], values(n)[1:])


@pytest.mark.parametrize("n", [N, 5000])
def test_numpy_and_dlpack(n):
    output = filled(n)
    array = output.numpy()
    exchanged = torch.from_dlpack(output)
    del output
    gc.collect()
    maker(n)().fill_(0)
    assert (array == values(n).numpy()).all() and torch.equal(exchanged, values(n))


def test_shared_memory(output):
    used = pool_stats()["used_blocks"]
    output.share_memory_()
    assert output.is_shared() and torch.equal(output, values())
    assert pool_stats()["used_blocks"] == used - 1


def test_set_and_views(output):
    view = output[1000:2000]
    other = torch.empty(0, dtype=torch.uint8)
    other.set_(output.untyped_storage(), 5, (10,))
    del output
    gc.collect()
    assert torch.equal(view, values()[1000:2000]) and torch.equal(other, values()[5:15])


def test_memory_profiler_sees_outputs():
    make = maker(3 * MEGABYTE)
    small = maker(12_345)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y, z = make(), small()
        del y, z
    events = [e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert sorted(events) == [-3 * MEGABYTE, -12_345, 12_345, 3 * MEGABYTE]


def test_operators_may_return_pooled_memory():
    """Freed by whoever holds the last reference, on whatever thread."""
    plan = Plan(0, 2, (1,), [
        AllocStep(0, (300, 300), (300, 1), torch.float32, CPU),
        CallStep(torch.ops.aten.transpose.int, (SlotRef(0), 0, 1), {}, (1,)),
    ])
    used = pool_stats()["used_blocks"]
    box = [make_executable(plan)()[0]]
    assert pool_stats()["used_blocks"] == used + 1
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert pool_stats()["used_blocks"] == used


# ---------------------------------------------------------------------------------------------- threads and processes


def test_threads():
    makers = [maker(70_000 + 50_000 * i) for i in range(5)]
    errors: list[int] = []

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        live: list[tuple[int, torch.Tensor]] = []
        for _ in range(200):
            number = chooser.randrange(256)
            y = chooser.choice(makers)()
            y.fill_(number)
            live.append((number, y))
            if len(live) > 3:
                number, y = live.pop(chooser.randrange(4))
                if not bool((y == number).all()):
                    errors.append(seed)

    used = pool_stats()["used_blocks"]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not errors and pool_stats()["used_blocks"] == used


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_other_threads_use_the_pool():
    make = maker(100_000)
    kept = make()
    kept.fill_(7)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            make()

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:  # exit without cleaning up: this is a copy of the test process
                signal.alarm(20)
                torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork
                y = make()
                y[:] = 1
                good = kept[0].item() == 7 and y.data_ptr() != kept.data_ptr()
                del y, kept
                empty_pool()
                os._exit(0 if good else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert bool((kept == 7).all())



@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_outputs_go_to_other_processes(output):
    context = torch.multiprocessing.get_context("fork")
    there, back = context.SimpleQueue(), context.SimpleQueue()

    def work() -> None:
        signal.alarm(20)
        torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork
        back.put(int(there.get().sum()))

    process = context.Process(target=work)
    process.start()
    there.put(output)
    process.join(20)
    assert process.exitcode == 0 and back.get() == int(values().sum())


def test_out_of_memory_is_an_error():
    with pytest.raises(RuntimeError, match="memory"):
        maker(1 << 48)()  # more than there are addresses
    assert maker(100_000)().shape == (100_000,)


def test_other_sizes_give_way_where_more_would_be_held_than_was_ever_used():
    """A program whose buffers change their sizes does not hold one set of them for each."""
    set_pool_limit(1 << 30)  # counts anew what is used at a time
    makers = [maker(n * MEGABYTE) for n in (100, 70, 84)]
    for _ in range(2):
        for make in makers:
            make()
    assert 0 < pool_stats()["cached_bytes"] < 101 * MEGABYTE
    small = [maker(n << 10) for n in (1000, 1700, 3000)]
    before = pool_stats()["misses"]
    for _ in range(3):
        for make in small:
            make()
    assert pool_stats()["misses"] == before + 3
