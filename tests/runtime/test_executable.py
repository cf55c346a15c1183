"""Plans made callable: the native executable and the Python one must mean the same."""

from __future__ import annotations

import ctypes
import sys
import warnings
from typing import Any

import pytest
import torch

from jitpy.runtime.executable import PythonExecutable, make_executable
from jitpy.runtime.plan import (
    AllocStep,
    CopyStep,
    FreeStep,
    Plan,
    SizeRef,
    SlotRef,
    SymbolBinding,
    ViewStep,
    Workspace,
)

from .plans import CPU, F32, address, alloc, call, calls, sine_plan, symbolic_plan

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- kernels and sizes


def test_static_kernel(make, kernel):
    run = make(sine_plan(kernel))
    x = torch.randn(16)
    (y,) = run(x)
    torch.testing.assert_close(y, (x + 1).sin() * 2)
    assert y.is_contiguous() and y.storage_offset() == 0 and not y.requires_grad and y.grad_fn is None
    (again,) = run(x)
    assert again.data_ptr() != y.data_ptr()


def test_pointer_includes_storage_offset(make, kernel):
    base = torch.randn(40)
    x = base[7:23]
    torch.testing.assert_close(make(sine_plan(kernel))(x)[0], (x + 1).sin() * 2)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (17, 100), (0, 4), (400, 300)])
def test_symbolic_sizes(make, kernel, library, shape):
    run = make(symbolic_plan(kernel, library))
    x = torch.randn(shape)
    (y,) = run(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y, x - x.mean(1, keepdim=True) if x.numel() else x)


def test_python_executable_uses_the_native_size_function(kernel, library):
    plan = symbolic_plan(kernel, library)
    plan.size_function_py = None
    x = torch.randn(3, 5)
    torch.testing.assert_close(PythonExecutable(plan)(x)[0], x - x.mean(1, keepdim=True))


def test_sizes_in_calls_and_from_strides_and_ints(make, library):
    plan = Plan(
        2, 5, (2, 3, 4),
        [
            call(aten.view.default, SlotRef(0), [SizeRef(2), -1], to=2),
            call(aten.new_full.default, SlotRef(0), (SizeRef(0), 2), SizeRef(1), to=3),
            call(lambda *a: sum(a), SizeRef(0), SizeRef(3), SlotRef(1), to=4),
        ],
        symbols=(SymbolBinding(0, 0, stride=True), SymbolBinding(1), SymbolBinding(0, 0), SymbolBinding(0, 1)),
    )
    # the table of center_sizes: s0, s1, s0 * s1, 4 * s1
    plan.n_sizes = 4
    plan.size_function = address(library, "center_sizes")
    plan.size_function_py = lambda s: [s[0], s[1], s[0] * s[1], s[1] * 4]
    run = make(plan)
    x = torch.arange(24.0).view(6, 4)  # stride 4, int 3: a table of 4, 3, 12, 12
    view, full, number = run(x, 3)
    assert view.shape == (12, 2) and view._base is x._base
    torch.testing.assert_close(full, torch.full((4, 2), 3.0))
    assert number == 4 + 12 + 3


def test_workspace_is_aligned(make, kernel):
    plan = Plan(0, 1, (0,), [alloc(0, 2, dtype=torch.int64), kernel("addresses", Workspace(0), Workspace(64), 0)])
    for size in (65, 5000, 1 << 20):
        plan.workspace = size
        first, second = make(plan)()[0].tolist()
        assert first != 0 and first % 64 == 0 and second == first + 64


@pytest.mark.parametrize("shape, stride", [
    ((2, 3, 4), (1, 8, 2)), ((3, 4), (1, 3)), ((), ()), ((0, 3), (3, 1)), ((2, 3), (0, 1)), ((300, 300), (1, 300)),
    ((1, 5), (7, 1)), ((2, 3, 4, 5), (60, 1, 15, 3)),
])
def test_alloc_like_empty_strided(make, shape, stride):
    for dtype in (F32, torch.bfloat16, torch.bool, torch.complex64, torch.int64):
        (y,) = make(Plan(0, 1, (0,), [AllocStep(0, shape, stride, dtype, CPU)]))()
        expected = torch.empty_strided(shape, stride, dtype=dtype)
        assert (y.shape, y.stride(), y.dtype, y.device) == (shape, stride, dtype, CPU)
        assert y.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
        assert y.is_contiguous() == expected.is_contiguous()
        assert y.is_contiguous(memory_format=torch.channels_last) == expected.is_contiguous(
            memory_format=torch.channels_last) if len(shape) == 4 else True
        y.fill_(1)
        assert bool((y == 1).all())


def test_alloc_on_another_device(make):
    (y,) = make(Plan(0, 1, (0,), [AllocStep(0, (3, 4), (1, 3), F32, torch.device("meta"))]))()
    assert y.is_meta and y.stride() == (1, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gpu_tensors(make):
    device = torch.device("cuda", 0)
    plan = Plan(1, 5, (2, 3, 4), [
        AllocStep(1, (4, 8), (8, 1), F32, device), call(aten.copy.default, SlotRef(1), SlotRef(0), to=2),
        ViewStep(3, 0, (8, 4), (1, 8), 0), call(aten.linear.default, SlotRef(0), torch.eye(8, device=device), to=4),
    ])
    x = torch.randn(4, 8, device=device)
    copied, view, product = make(plan)(x)
    assert copied.device == device and torch.equal(copied, x) and torch.equal(view, x.t()) and view._base is x
    torch.testing.assert_close(product, x)


def test_impossible_sizes(make, library):
    plan = Plan(1, 2, (1,), [alloc(1, SizeRef(2), stride=(1,))], symbols=(SymbolBinding(0), SymbolBinding(0)),
                n_sizes=4, size_function=address(library, "center_sizes"),
                size_function_py=lambda s: [s[0], s[1], s[0] * s[1], s[1] * 4])
    run = make(plan)
    with pytest.raises(RuntimeError):
        run(1 << 31)  # 2**62 floats
    with pytest.raises(RuntimeError, match="memory"):
        run(1 << 23)  # 256 TiB, more than there are addresses
    assert run(3)[0].shape == (9,)


# ---------------------------------------------------------------------------------------------- views and mutation


def test_view_of_an_input_is_a_view(make):
    run = make(Plan(1, 2, (1,), [ViewStep(1, 0, (2, 3), (1, 2), 1)]))
    base = torch.arange(10.0)
    x = base[2:]
    (y,) = run(x)
    assert y.data_ptr() == x.data_ptr() + 4 and y.tolist() == [[3, 5, 7], [4, 6, 8]]
    assert y._is_view() and y._base is base
    before = x._version
    y.add_(1)
    assert x._version == before + 1 and x[1] == 4


def test_absolute_offset(make):
    run = make(Plan(1, 2, (1,), [ViewStep(1, 0, (2,), (1,), 1, relative=False)]))
    assert run(torch.arange(10.0)[5:])[0].tolist() == [1, 2]


def test_internal_views(make, kernel):
    """A view that only a kernel reads, and an output that views a buffer nobody else sees."""
    plan = Plan(1, 4, (3,), [
        ViewStep(1, 0, (16,), (2,), 0), alloc(2, 16), kernel("twice", 0, 2), ViewStep(3, 2, (4, 4), (1, 4), 0),
    ])
    plan.symbols, plan.n_sizes = (SymbolBinding(0, 0),), 1
    double = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64))
    sizes = double(lambda symbols, table: table.__setitem__(0, 16))
    plan.size_function = ctypes.cast(sizes, ctypes.c_void_p).value or 0
    plan.size_function_py = lambda s: [16]
    x = torch.randn(32)
    (y,) = make(plan)(x)
    torch.testing.assert_close(y, (2 * x[:16]).view(4, 4).t())


def test_two_output_views_share_a_version_counter(make):
    plan = Plan(0, 3, (1, 2), [alloc(0, 8), ViewStep(1, 0, (4,), (1,), 0), ViewStep(2, 0, (4,), (1,), 4)])
    a, b = make(plan)()
    assert a.untyped_storage()._cdata == b.untyped_storage()._cdata
    a.zero_()
    assert b._version == a._version == 1


def test_view_out_of_bounds(make, kernel):
    run = make(Plan(1, 2, (1,), [ViewStep(1, 0, (16,), (2,), 0)]))
    with pytest.raises(RuntimeError, match="out of bounds"):
        run(torch.zeros(16))
    hidden = Plan(1, 3, (2,), [ViewStep(1, 0, (16,), (2,), 0), alloc(2, 16), kernel("sine16", 1, 2)])
    with pytest.raises(RuntimeError, match="out of bounds"):
        make(hidden)(torch.zeros(16))


@pytest.mark.parametrize("grad_mode", [True, False])
def test_views_by_operators_are_eagers(make, grad_mode):
    """Views made while autograd is skipped behave later as eager's do."""
    run = make(calls(aten.transpose.int, SlotRef(0), 0, 1))
    weight = torch.ones(3, 2, requires_grad=True)
    outcomes = []
    for transpose in (lambda t: run(t)[0], lambda t: torch.transpose(t, 0, 1)):
        x = torch.randn(2, 3)
        with torch.set_grad_enabled(grad_mode):
            y = transpose(x)
        assert y._base is x and y.shape == (3, 2)
        try:
            y.mul_(weight)
            outcomes.append(type(x.grad_fn).__name__)
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1] and (outcomes[0] == "CopySlices") == grad_mode


def test_copy_back(make, kernel):
    plan = sine_plan(kernel)
    plan.steps.append(CopyStep(0, 1))
    plan.outputs = (0, 1)
    run = make(plan)
    x = torch.randn(16)
    original, version = x.clone(), x._version
    first, second = run(x)
    assert first is x and second is not x and x._version == version + 1
    torch.testing.assert_close(x, (original + 1).sin() * 2)


def test_copy_back_into_a_leaf(make, kernel):
    """A plan without autograd changes a leaf as the user's code did: under no_grad, whatever the caller's mode."""
    plan = sine_plan(kernel)
    plan.steps.append(CopyStep(0, 1))
    run = make(plan)
    leaf = torch.randn(16, requires_grad=True)
    version = leaf._version
    run(leaf)
    assert leaf.is_leaf and leaf.requires_grad and leaf._version == version + 1 and torch.is_grad_enabled()


def test_kernel_writing_an_input_moves_its_version(make, kernel):
    run = make(Plan(1, 1, (), [kernel("increment16", 0, writes=(0,))]))
    x = torch.zeros(16)
    view, version = x.view(4, 4), x._version
    assert run(x) == ()
    assert x.tolist() == [1.0] * 16 and x._version == version + 1 == view._version
    with torch.inference_mode():
        z = torch.zeros(16)
        run(z)
    assert z[0] == 1


def test_reading_does_not_materialise_a_lazy_copy(make, kernel):
    x = torch.randn(16)
    clone = torch._lazy_clone(x)
    run = make(sine_plan(kernel))
    if isinstance(run, PythonExecutable):
        pytest.skip("data_ptr() materialises; harmless but slower")
    run(clone)
    assert torch._C._is_cow_tensor(clone) and torch._C._is_cow_tensor(x)


def test_kernels_refuse_tensors_that_are_not_plain_memory(make, kernel):
    from torch._subclasses.fake_tensor import FakeTensorMode

    run = make(sine_plan(kernel))
    with pytest.raises(RuntimeError, match="does not hold its values"):
        run(torch._neg_view(torch.zeros(16)))
    with pytest.raises(RuntimeError, match="does not hold its values"):
        run(FakeTensorMode().from_tensor(torch.zeros(16)))
    with pytest.raises(RuntimeError, match="does not hold its values"):
        torch.func.vmap(lambda t: run(t)[0])(torch.zeros(2, 16))
    with pytest.raises(RuntimeError, match="storage"):
        run(torch.zeros(16).to_sparse())


# ---------------------------------------------------------------------------------------------- calls


def test_operator_arguments(make):
    x, w, b = torch.randn(4, 8), torch.randn(3, 8), torch.randn(3)
    index = torch.tensor([2, 0])
    cases = [
        (calls(aten.linear.default, SlotRef(0), SlotRef(1), SlotRef(2), n_inputs=3), (x, w, b)),
        (calls(aten.linear.default, SlotRef(0), SlotRef(1), None, n_inputs=2), (x, w)),
        (calls(aten.linear.default, SlotRef(0), weight=SlotRef(1), n_inputs=2), (x, w)),
        (calls(aten.add.Tensor, SlotRef(0), 2.5), (x,)),
        (calls(aten.add.Tensor, SlotRef(0), SlotRef(1), n_inputs=2), (x, 2)),
        (calls(aten.add.Tensor, SlotRef(0), SlotRef(0), alpha=3), (x,)),
        (calls(aten.add.Scalar, SlotRef(0), SlotRef(1), n_inputs=2), (x, 1.5)),
        (calls(aten.sum.dim_IntList, SlotRef(0), [1], True, dtype=torch.float64), (x,)),
        (calls(aten.mean.dim, SlotRef(0), (0, 1)), (x,)),
        (calls(aten.cat.default, [SlotRef(0), SlotRef(1)], 0, n_inputs=2), (x, w)),
        (calls(aten.index.Tensor, SlotRef(0), [None, SlotRef(1)], n_inputs=2), (x, index)),
        (calls(aten.full.default, (2, 3), 7, dtype=torch.int64, device=CPU, n_inputs=0), ()),
        (calls(aten.gelu.default, SlotRef(0), approximate="tanh"), (x,)),
        (calls(aten.clamp.default, SlotRef(0), None, 0.5), (x,)),
        (calls(aten.to.dtype, SlotRef(0), torch.float16), (x,)),
        (calls(aten.contiguous.default, SlotRef(0), memory_format=torch.contiguous_format), (x.t(),)),
        (calls(aten.where.ScalarOther, SlotRef(1), SlotRef(0), -1, n_inputs=2), (x, x > 0)),
        (calls(aten.layer_norm.default, SlotRef(0), [8], None, None, 1e-6), (x,)),
        (calls(aten.max_pool2d.default, SlotRef(0), 2), (torch.randn(1, 2, 6, 6),)),
        (calls(aten.fill.Scalar, SlotRef(0), True), (x,)),
        (calls(aten.mul.Tensor, SlotRef(0), 2 + 1j), (x,)),
    ]
    for plan, inputs in cases:
        step = plan.steps[0]
        values = (*inputs, None)
        plain = PythonExecutable(plan)
        expected = plain(*inputs)[0]
        got = make(plan)(*inputs)[0]
        torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=lambda m, step=step: f"{step}: {m}")
        assert got.stride() == expected.stride() and len(values)


def test_operators_avoid_python(make):
    """An OpOverload is called through the dispatcher; the Python object is not."""
    run = make(calls(aten.relu.default, SlotRef(0)))
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name))
    try:
        run(torch.ones(2))
    finally:
        sys.setprofile(None)
    python = isinstance(run, PythonExecutable)
    assert ("_call_" in seen or "__call__" in seen) == python


def test_scalars(make, kernel):
    plan = Plan(2, 7, (6, 3, 4, 5), [
        call(aten._local_scalar_dense.default, SlotRef(0), to=2),
        call(lambda a, b: a * b, SlotRef(2), SlotRef(1), to=3),
        call(lambda v: v / 8, SlotRef(3), to=4),
        call(lambda v: v > 0, SlotRef(4), to=5),
        alloc(6, 4),
        kernel("scale", 0, 3, 4, 6),
    ])
    run = make(plan)
    x = torch.tensor([5, 0, 0, 0]).view(torch.float32)  # not read as float here
    plan.steps[0] = call(lambda t: 5, SlotRef(0), to=2)
    run = make(plan)
    x = torch.tensor([1.0, 2, 3, 4])
    y, product, quotient, positive = run(x, 3)
    assert (product, quotient, positive) == (15, 1.875, True) and type(positive) is bool and type(quotient) is float
    torch.testing.assert_close(y, x * 15 + 1.875)
    plan.steps[1] = call(lambda a, b: True, SlotRef(2), SlotRef(1), to=3)
    torch.testing.assert_close(make(plan)(x, 3)[0], x * 1 + 0.125)
    plan.steps[1] = call(lambda a, b: 1 << 70, SlotRef(2), SlotRef(1), to=3)
    with pytest.raises(OverflowError):
        make(plan)(x, 3)
    plan.steps[1] = call(lambda a, b: "text", SlotRef(2), SlotRef(1), to=3)
    plan.steps[2] = call(lambda v: 1.0, SlotRef(3), to=4)
    with pytest.raises(TypeError, match="kernel takes"):
        make(plan)(x, 3)


@pytest.mark.parametrize("value", [3, 2.5, True, 1 + 2j])
def test_item(make, value):
    run = make(calls(aten._local_scalar_dense.default, SlotRef(0)))
    (number,) = run(torch.tensor(value))
    assert number == value and type(number) is type(value)


def test_multiple_results(make):
    x = torch.randn(6, 4)
    plan = Plan(1, 6, (1, 2, 3, 4, 5), [
        call(aten.max.dim, SlotRef(0), 1, to=(1, 2)),
        call(aten.chunk.default, SlotRef(0), 3, to=(3, None, 4)),
        call(aten.native_layer_norm.default, SlotRef(0), [4], None, None, 1e-5, to=(None, 5, None)),
    ])
    values, indices, first, third, mean = make(plan)(x)
    expected = x.max(1)
    assert torch.equal(values, expected.values) and torch.equal(indices, expected.indices)
    assert torch.equal(first, x[:2]) and torch.equal(third, x[4:]) and first._base is x
    torch.testing.assert_close(mean, x.mean(1, keepdim=True))


def test_sequences_from_python(make):
    plan = Plan(1, 3, (2, 1), [call(lambda t: [t + 1, 4], SlotRef(0), to=(1, 2)), call(list, to=())])
    number, tensor = make(plan)(torch.zeros(2))
    assert number == 4 and tensor.tolist() == [1, 1]
    plan = Plan(1, 4, (1,), [call(lambda t: [t], SlotRef(0), to=(1, 2, 3))])
    with pytest.raises(RuntimeError, match="returned 1 values where the program takes 3"):
        make(plan)(torch.zeros(2))
    plan = Plan(1, 4, (1,), [call(aten.chunk.default, SlotRef(0), 2, to=(1, 2, 3))])
    with pytest.raises(RuntimeError, match="returned 2 values where the program takes 3"):
        make(plan)(torch.zeros(2))
    plan = Plan(1, 3, (1,), [call(lambda t: 5, SlotRef(0), to=(1, 2))])
    with pytest.raises(TypeError):
        make(plan)(torch.zeros(2))


def test_nested_arguments_of_python_calls(make):
    seen = []

    def function(*args: Any, **kwargs: Any) -> int:
        seen.append((args, kwargs))
        return 1

    constant = [1, 2]
    step = call(function, [SlotRef(1), (SlotRef(1), None)], {"k": SlotRef(1)}, slice(SlotRef(1), None), constant,
                key=SlotRef(1), to=2)
    x = torch.zeros(1)
    make(Plan(2, 3, (), [step]))(x, 7)
    (args, kwargs), = seen
    assert args == ([7, (7, None)], {"k": 7}, slice(7, None), [1, 2]) and kwargs == {"key": 7}
    assert args[3] is constant


def test_undefined_tensor_is_none(make):
    plan = Plan(1, 4, (1, 2, 3), [
        call(aten.native_layer_norm_backward.default, SlotRef(0), SlotRef(0), [4], torch.zeros(2, 1), torch.ones(2, 1),
             None, None, [True, False, False], to=(1, 2, 3)),
    ])
    first, second, third = make(plan)(torch.randn(2, 4))
    assert isinstance(first, torch.Tensor) and second is None and third is None


def test_outputs_that_are_inputs_or_repeat(make):
    x = torch.nn.Parameter(torch.zeros(3))
    a, b, c, d = make(Plan(2, 3, (0, 1, 2, 2), [call(aten.relu.default, SlotRef(0), to=2)]))(x, 5)
    assert a is x and type(a) is torch.nn.Parameter and b == 5 and c is d


def test_warnings_become_python_warnings():
    run = make_executable(calls(aten.numpy_T.default, SlotRef(0)))
    if isinstance(run, PythonExecutable):
        pytest.skip("torch.ops calls print their warnings")
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(torch.zeros(1, 2, 3))
        assert [w.category for w in caught] == [UserWarning] and "x.T" in str(caught[0].message)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="x.T"):
                run(torch.zeros(1, 2, 3))
    finally:
        torch.set_warn_always(False)


# ---------------------------------------------------------------------------------------------- autograd


def autograd_plan() -> Plan:
    return Plan(3, 8, (7, 5), [
        call(aten.linear.default, SlotRef(0), SlotRef(1), SlotRef(2), to=3),
        call(aten.tanh.default, SlotRef(3), to=4),
        call(aten.mul.Tensor, SlotRef(4), 2.0, to=5, grad=False),
        ViewStep(6, 4, (3, 4), (1, 3), 0),
        call(aten.mul.Tensor, SlotRef(6), SlotRef(6), to=7),
        FreeStep((3, 4)),
    ], autograd=True)


def test_gradients_equal_eagers(make):
    def eager(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        t = torch.nn.functional.linear(x, w, b).tanh()
        with torch.no_grad():
            u = t * 2.0
        v = t.as_strided((3, 4), (1, 3))
        return v * v, u

    run = make(autograd_plan())
    leaves = [torch.randn(4, 8), torch.randn(3, 8), torch.randn(3)]
    results = []
    for function in (eager, run):
        inputs = [leaf.clone().requires_grad_() for leaf in leaves]
        y, u = function(*inputs)
        assert not u.requires_grad and y.requires_grad
        y.sum().backward()
        results.append([y, u, *(i.grad for i in inputs)])
    for got, expected in zip(results[1], results[0], strict=True):
        assert torch.equal(got, expected)


def test_autograd_plan_without_grad(make):
    run = make(autograd_plan())
    inputs = [torch.randn(4, 8, requires_grad=True), torch.randn(3, 8), torch.randn(3)]
    with torch.no_grad():
        assert not run(*inputs)[0].requires_grad
    assert run(*inputs)[0].requires_grad


def test_plan_without_autograd_records_nothing(make):
    run = make(calls(aten.mul.Tensor, SlotRef(0), SlotRef(0)))
    assert run(torch.ones(2, requires_grad=True))[0].grad_fn is None
    python = make(calls(lambda t: t * t, SlotRef(0)))
    assert python(torch.ones(2, requires_grad=True))[0].requires_grad  # Python code sees the caller's state
    assert (torch.ones(2, requires_grad=True) * 2).requires_grad, "the dispatcher's state was left behind"


def test_grad_mode_of_a_step(make):
    modes = []

    def note() -> None:
        modes.append(torch.is_grad_enabled())

    plan = Plan(0, 3, (), [call(note, to=0), call(note, to=1, grad=False), call(note, to=2, grad=True)])
    run = make(plan)
    run()
    with torch.no_grad():
        run()
    assert modes == [True, False, True, False, False, True] and torch.is_grad_enabled()


def test_inference_mode(make, kernel):
    run = make(sine_plan(kernel))
    with torch.inference_mode():
        (y,) = run(torch.zeros(16))
    assert y.is_inference() and not run(torch.zeros(16))[0].is_inference()


def test_dispatch_modes_see_operators(make):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Note(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    run = make(calls(aten.relu.default, SlotRef(0)))
    x = torch.tensor([-1.0, 1.0])
    with Note() as note:
        (y,) = run(x)
    assert note.seen == ["aten.relu.default"] and y.tolist() == [0, 1]


def test_users_operators_are_dispatched_as_in_eager(make):
    """Also where their only kernel is one for autograd."""
    with torch.library._scoped_library("jitpy_test_users", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "Autograd")
        run = make(calls(torch.ops.jitpy_test_users.twice.default, SlotRef(0)))
        assert run(torch.ones(2))[0].tolist() == [2, 2]
