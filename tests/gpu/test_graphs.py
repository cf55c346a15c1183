"""mode="reduce-overhead": CUDA graphs never overwrite what the program can still see, and never read what is gone."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitpy
from jitpy.ir import ops
from jitpy.runtime.executable import make_executable
from jitpy.runtime.gpu import graphs
from jitpy.runtime.gpu.graphs import GraphedExecutable, unfit
from jitpy.runtime.gpu.modes import gpu_executable
from jitpy.runtime.plan import CallStep, CopyStep, Plan, SlotRef
from tests.runtime.gpu import kernels

from .programs import PROGRAMS
from .test_programs import compare, copied, doubled

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs also where they do not pay."""
    monkeypatch.setattr(graphs, "_REPLAY_MICROSECONDS", 0.0)


def graphed(plan: Plan) -> GraphedExecutable:
    run = gpu_executable(plan, "reduce-overhead")
    assert isinstance(run, GraphedExecutable)
    return run


def recordings(run: GraphedExecutable) -> int:
    return sum(len(site.recordings) for site in run._sites.values())


def sine(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).sin() * 2


def test_replays(cuda: torch.device) -> None:
    run = graphed(kernels.sine_plan(cuda, 1000))
    for _ in range(10):
        x = torch.randn(1000, device=cuda)
        (y,) = run(x)
        torch.testing.assert_close(y, sine(x))
    assert 1 <= recordings(run) <= 2 and not run.reason


def test_a_first_call_elsewhere(cuda: torch.device) -> None:
    """A tensor that is not on the GPU counts as no call: it says nothing of addresses."""
    run = graphed(kernels.sine_plan(cuda, 1000))
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        run(torch.randn(1000))
    for _ in range(4):
        x = torch.randn(1000, device=cuda)
        torch.testing.assert_close(run(x)[0], sine(x))


def test_held_outputs_keep_their_values(cuda: torch.device) -> None:
    run = graphed(kernels.sine_plan(cuda, 1000))
    inputs = [torch.randn(1000, device=cuda) for _ in range(20)]
    held = [run(x)[0] for x in inputs]
    for x, y in zip(inputs, held, strict=True):
        torch.testing.assert_close(y, sine(x))
    assert len({y.data_ptr() for y in held}) == 20
    del held, y
    for _ in range(5):
        torch.testing.assert_close(run(inputs[0])[0], sine(inputs[0]))
    assert recordings(run) <= 2


def test_a_view_of_an_output_is_enough_to_keep_it(cuda: torch.device) -> None:
    run = graphed(kernels.sine_plan(cuda, 1000))
    x = torch.randn(1000, device=cuda)
    run(x)
    kept = run(x)[0][10:20]
    expected = kept.clone()
    for _ in range(5):
        run(torch.randn(1000, device=cuda))
    assert torch.equal(kept, expected)


def test_outputs_may_be_changed_and_resized(cuda: torch.device) -> None:
    run = graphed(kernels.sine_plan(cuda, 1000))
    x = torch.randn(1000, device=cuda)
    for number in range(6):
        (y,) = run(x)
        torch.testing.assert_close(y, sine(x))
        if number % 2:
            y.zero_()
        else:
            y.resize_(5000)
            y.fill_(7)
        del y


def test_an_output_that_becomes_the_input(cuda: torch.device) -> None:
    run = graphed(kernels.sine_plan(cuda, 1 << 19))  # 2 MiB: not copied at once
    x = torch.randn(1 << 19, device=cuda)
    expected = x
    for _ in range(12):
        (x,), expected = run(x), sine(expected)
        torch.testing.assert_close(x, expected, rtol=1e-3, atol=1e-3)


def test_large_inputs_that_move(cuda: torch.device) -> None:
    run = graphed(kernels.sine_plan(cuda, 1 << 20))
    for _ in range(4):
        inputs = [torch.randn(1 << 20, device=cuda) for _ in range(7)]
        for x in inputs:
            torch.testing.assert_close(run(x)[0], sine(x))
    assert recordings(run) <= 8


def test_an_input_whose_memory_is_gone_is_not_read(cuda: torch.device) -> None:
    run = graphed(kernels.sine_plan(cuda, 1 << 20))
    for _ in range(3):
        x = torch.randn(1 << 20, device=cuda)
        torch.testing.assert_close(run(x)[0], sine(x))
        del x
        gc.collect()
        torch.cuda.empty_cache()


def test_sizes(cuda: torch.device) -> None:
    run = graphed(kernels.axpb_plan(cuda))
    for n in (10, 500, 10, 500, 10, 500, 0, 0, 0, 77):
        for scale in (2, 3):
            x = torch.randn(n, device=cuda)
            torch.testing.assert_close(run(x, scale)[0], x * scale + 0.5)
    assert recordings(run) >= 4


def test_written_inputs(cuda: torch.device) -> None:
    run = graphed(kernels.increment_plan(cuda, 500))
    same = torch.zeros(500, device=cuda)
    for number in range(6):
        version = same._version
        assert run(same)[0] is same
        assert same._version > version and torch.equal(same, torch.full_like(same, number + 1))
    for _ in range(6):  # others each time
        x = torch.randn(500, device=cuda)
        expected, version = x + 1, x._version
        assert run(x)[0] is x
        assert torch.equal(x, expected) and x._version > version


def test_results_of_operators(cuda: torch.device) -> None:
    steps = [CallStep(aten.mm.default, (SlotRef(0), SlotRef(1)), {}, (2,)),
             CallStep(aten.t.default, (SlotRef(0),), {}, (3,)), CopyStep(1, 2)]
    run = graphed(Plan(2, 4, (2, 3), steps, device=cuda))
    for _ in range(6):
        x, y = torch.randn(64, 64, device=cuda), torch.randn(64, 64, device=cuda)
        expected = x @ y
        product, transposed = run(x, y)
        torch.testing.assert_close(product, expected)
        assert torch.equal(y, product) and transposed.data_ptr() == x.data_ptr() and torch.equal(transposed, x.t())
    assert not run.reason


def products_plan(device: torch.device) -> Plan:
    """Outputs that operators allocate, one of them with a view, between others that are not kept."""
    steps = [CallStep(aten.mm.default, (SlotRef(0), SlotRef(1)), {}, (2,)),
             CallStep(aten.add.Tensor, (SlotRef(2), 1), {}, (3,)),
             CallStep(aten.mm.default, (SlotRef(3), SlotRef(1)), {}, (4,)),
             CallStep(aten.sin.default, (SlotRef(4),), {}, (5,)),
             CallStep(aten.var_mean.correction, (SlotRef(5), [1]), {"correction": 0, "keepdim": False}, (6, 7),
                      multiple=True),
             CallStep(aten.t.default, (SlotRef(2),), {}, (8,))]
    return Plan(2, 9, (2, 5, 6, 7, 8), steps, device=device)


def test_held_results_of_operators(cuda: torch.device) -> None:
    """They are in a pool of the recording's: nothing overwrites them, nor are they copied."""
    run, plain = graphed(products_plan(cuda)), make_executable(products_plan(cuda))
    held: list[Any] = []
    for number in range(30):
        x, y = torch.randn(64, 64, device=cuda), torch.randn(64, 64, device=cuda)
        found = run(x, y)
        held.append((found, [value.clone() for value in plain(x, y)]))
        if number % 3 == 2:
            del held[0], found
        for ours, theirs in held:
            assert ours[0].data_ptr() == ours[4].data_ptr()
            for one, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert not run.reason and recordings(run)


def test_results_outlive_their_recordings(cuda: torch.device) -> None:
    """What several programs recorded and dropped again: the memory of what is held is no one else's."""
    held: list[Any] = []
    for number in range(12):
        run = graphed(products_plan(cuda))
        x, y = torch.randn(32 + number, 48, device=cuda), torch.randn(48, 48, device=cuda)
        for _ in range(4):
            kept = run(x, y)[1]
        held.append((kept, ((x @ y + 1) @ y).sin()))
        assert recordings(run)
        del run
        gc.collect()
        if number % 4 == 3:
            torch.cuda.empty_cache()
        for one, other in held:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)


def test_memory_of_dropped_recordings_is_given_back(cuda: torch.device) -> None:
    def use() -> None:
        run = graphed(products_plan(cuda))
        x, y = torch.randn(2000, 2000, device=cuda), torch.randn(2000, 2000, device=cuda)
        for _ in range(4):
            run(x, y)
        assert recordings(run)

    def reserved() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(cuda)

    for _ in range(3):
        use()
    before = reserved()
    for _ in range(10):
        use()
    assert reserved() - before < 64 << 20


def test_random_numbers(cuda: torch.device) -> None:
    """The same numbers as without graphs, for the same seed; others at each call."""
    plan = Plan(1, 2, (1,), [CallStep(aten.bernoulli.p, (SlotRef(0), 0.5), {}, (1,))], device=cuda)
    run, plain = graphed(plan), make_executable(plan)
    x = torch.zeros(1000, device=cuda)
    torch.manual_seed(5)
    expected = [plain(x)[0] for _ in range(8)]
    torch.manual_seed(5)
    found = [run(x)[0].clone() for _ in range(8)]
    assert not run.reason and recordings(run)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(found[-1], found[-2])


def test_streams(cuda: torch.device) -> None:
    run = graphed(kernels.axpb_plan(cuda))
    streams = [torch.cuda.Stream() for _ in range(3)]
    x = torch.randn(1 << 20, device=cuda)
    torch.cuda.synchronize()
    for number in range(30):
        with torch.cuda.stream(streams[number % 3]):
            y = run(x, 5)[0]
            wrong = (y - (x * 5 + 0.5)).abs().max()
        streams[number % 3].synchronize()
        assert wrong < 1e-4


def test_threads(cuda: torch.device) -> None:
    run = graphed(kernels.axpb_plan(cuda))
    torch.cuda.synchronize()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                generator = torch.Generator(cuda).manual_seed(seed)
                for _ in range(50):
                    x = torch.randn(3000, device=cuda, generator=generator)
                    if not torch.allclose(run(x, 5)[0], x * 5 + 0.5):
                        wrong.append(seed)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_inside_a_capture_of_the_user(cuda: torch.device) -> None:
    run = graphed(kernels.sine_plan(cuda, 1000))
    x = torch.randn(1000, device=cuda)
    for _ in range(3):
        run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)[0]
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, sine(x))


def test_what_cannot_be_recorded_has_a_reason(cuda: torch.device) -> None:
    nonzero = Plan(1, 2, (1,), [CallStep(aten.nonzero.default, (SlotRef(0),), {}, (1,))], device=cuda)
    assert "nonzero" in unfit(nonzero)
    assert unfit(Plan(1, 1, (0,), [], device=cuda)) == "it launches nothing"
    assert unfit(Plan(1, 1, (0,), [], device=torch.device("cpu"))) == "it does not run on a GPU"


def test_a_capture_that_fails_leaves_all_as_it_was(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that waits for the GPU, taken for one that does not: the plan runs plainly from then on."""
    monkeypatch.setattr(ops.get(aten.histc.default), "waits", False)
    plan = Plan(1, 3, (2,), [CallStep(aten.bernoulli.p, (SlotRef(0), 0.5), {}, (1,)),
                             CallStep(aten.histc.default, (SlotRef(1), 10), {}, (2,))], device=cuda)
    run, other = graphed(plan), graphed(kernels.sine_plan(cuda, 1000))
    x, y = torch.rand(5000, device=cuda), torch.randn(1000, device=cuda)
    for _ in range(4):
        assert run(x)[0].sum() == 5000
        torch.testing.assert_close(other(y)[0], sine(y))
    assert run.reason and not other.reason and recordings(other)
    torch.manual_seed(3)
    first = torch.rand(50, device=cuda), torch.rand(50, device=cuda)
    torch.manual_seed(3)
    assert torch.equal(first[0], torch.rand(50, device=cuda)) and not torch.equal(*first)


def test_modes_of_the_caller(cuda: torch.device) -> None:
    """A recording made under inference mode serves a program that needs gradients later, and the other way round."""
    run = graphed(kernels.sine_plan(cuda, 1000))
    x = torch.randn(1000, device=cuda)
    for inference in (True, True, True, False, False, True):
        with torch.inference_mode(inference):
            y = run(x)[0]
        weight = torch.ones(1000, device=cuda, requires_grad=True)
        (weight * y.clone()).sum().backward()
        torch.testing.assert_close(weight.grad, sine(x))
        if not inference:
            (weight * y).sum().backward()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(cuda: torch.device, name: str) -> None:
    function, make = PROGRAMS[name]
    jitted = jitpy.jit(function, mode="reduce-overhead")
    held = []
    for _ in range(5):
        arguments = make(torch.float32, cuda)
        ours, theirs, exact = copied(arguments), copied(arguments), tuple(map(doubled, copied(arguments)))
        found = (jitted(*ours), ours)
        expected = (function(*theirs), theirs)
        compare(found, expected, (function(*exact), exact))
        held.append((found, expected, (function(*tuple(map(doubled, copied(arguments)))), exact)))
    for found, expected, exact in held:
        compare(found, expected, exact)


def test_a_model_with_parameters(cuda: torch.device) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128),
                                torch.nn.Linear(128, 10)).to(cuda)
    jitted = jitpy.jit(model, mode="reduce-overhead")
    with torch.no_grad():
        for number in range(8):
            x = torch.randn(32, 64, device=cuda)
            torch.testing.assert_close(jitted(x), model(x), rtol=1e-3, atol=1e-4)
            if number == 3:
                for parameter in model.parameters():
                    parameter.add_(0.1)
            if number == 5:
                for parameter in model.parameters():
                    parameter.data = parameter.data.clone()


def test_training(cuda: torch.device) -> None:
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)).to(cuda)
              for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]

    def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    steps = [loss_of, jitpy.jit(loss_of, mode="reduce-overhead")]
    for _ in range(12):
        x, y = torch.randn(32, 64, device=cuda), torch.randint(0, 10, (32,), device=cuda)
        losses = []
        for model, optimizer, step in zip(models, optimizers, steps, strict=True):
            optimizer.zero_grad()
            loss = step(model, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
