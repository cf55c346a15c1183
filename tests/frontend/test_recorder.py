"""Functional recording against eager: values, who shares memory with whom, and what happens to the inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitpy.frontend.breaks import RestartAnalysis
from jitpy.frontend.capture.graph_builder import TracedGraphBuilder, Uncapturable
from jitpy.frontend.guards.guard_set import GuardSet
from jitpy.frontend.guards.source import LocalSource
from jitpy.ir import SizeEnv
from tests.frontend.recording import Recording


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in tensors(v)]
    return []


def sharing(values):
    """For each pair of tensors whether they are one object, and whether they share memory."""

    def memory(t):
        return t.untyped_storage().data_ptr()

    return [(a is b, memory(a) == memory(b)) for i, a in enumerate(values) for b in values[:i]]


def check(fn, *args):
    """Record `fn` and compare with eager: results, inputs afterwards, sharing, and the effect of later writes."""

    def copies():
        return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]

    recording = Recording(fn, *copies())
    eager_args, own_args = copies(), copies()
    expected, found = tensors(fn(*eager_args)), tensors(recording(*own_args))
    assert len(expected) == len(found)
    everything, own_everything = expected + tensors(eager_args), found + tensors(own_args)
    for a, b in zip(everything, own_everything, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True, check_stride=True)
    assert sharing(everything) == sharing(own_everything)
    for a, b in zip(expected, found, strict=True):
        if a.dtype.is_floating_point and all(s != 0 for s in a.stride()):
            a.add_(1)
            b.add_(1)
    for a, b in zip(everything, own_everything, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
    return recording


def x(*shape):
    return torch.arange(1, 1 + int(torch.tensor(shape).prod()), dtype=torch.float32).reshape(shape) / 8


def write_row(a):
    a[0].add_(1)
    return a * 2


def write_columns(a):
    a[:, 1:3] *= 2
    return a


def write_transposed(a):
    a.t().add_(a.t() * 2)
    return a.t(), a


def write_through_chain(a):
    b = a * 1
    b[1:].t()[1].view(-1).mul_(10)
    return b


def write_reshaped(a):
    b = a + 1
    c = b.view(-1)
    c[3] = 100.0
    return b, c


def write_flat_of_transposed(a):
    b = a.t().contiguous()
    c = b.flatten()
    c[2:4].zero_()
    return b.sum(0), c


def write_copy_of_view(a):
    b = a.t().reshape(-1)
    b.mul_(3)
    return a, b


def old_view_sees_write(a):
    row = a[1]
    before = row * 1
    a.mul_(2)
    return before, row, row + 1


def view_of_view_sees_write(a):
    b = a.exp()
    left = b[:, :2]
    corner = left[0]
    b.add_(1)
    left.mul_(2)
    return corner, left, b


def split_parts(a):
    b = a * 1
    p, q = b.split(2, dim=1)
    p.add_(q)
    return p, q, b


def chunk_parts(a):
    p, q = (a * 1).chunk(2, dim=0)
    return q, p, p + q


def unbind_rows(a):
    b = a.clone()
    rows = b.unbind(0)
    b.add_(1)
    return rows


def expand_result(a):
    return a[0].expand(5, -1), a[:, :1].expand_as(a)


def squeeze_in_place(a):
    b = a[None] * 2
    c = b.squeeze_(0)
    return b, c, c.t_()


def assign_scalar_and_tensor(a):
    b = a * 1
    b[0] = 0
    b[1:, 0] = a[0, 1:3]
    b[..., -1] = torch.ones(3)
    return b


def assign_by_indices(a):
    b = a * 1
    b[torch.tensor([0, 2])] = 5.0
    b[:, torch.tensor([1])] = a[:, :1]
    b[a > 1] = -1.0
    return b


def gather_by_indices(a):
    return a[torch.tensor([2, 0])], a[:, [1, 0]], a[torch.tensor([0, 1]), torch.tensor([1, 2])], a[0, torch.tensor([1])]


def index_forms(a):
    return a[..., None], a[None, 1], a[-1], a[:, ::2], a[1:, -2:], a[()], a[...], a[:], a[2, 3]


def swap_inputs(a, b):
    t = a.clone()
    a.copy_(b)
    b.copy_(t)


def mutate_and_return_input(a):
    a.add_(1)
    return a, a.t()


def same_object(a):
    return a.contiguous(), a.to(torch.float32), a.float(), F.dropout(a, 0.5, False), a.detach()


def same_intermediate(a):
    b = a + 1
    return b, b, b.contiguous(), b.view(-1), b.detach()


def out_argument(a):
    out = torch.empty(3, 4)
    r = torch.add(a, 1, out=out)
    return r, out


def diagonal_write(a):
    b = a.clone()
    b.diagonal().fill_(7)
    return b


def strided_write(a):
    b = a * 1
    b.as_strided((2, 2), (4, 1), 1).fill_(9)
    return b, b.as_strided((2,), (5,))


def copy_casts(a):
    b = torch.zeros(3, 4, dtype=torch.int64)
    b.copy_(a)
    c = a.half()
    c.add_(a)
    return b, c


def real_part_write(a):
    c = torch.complex(a, a * 2)
    c.real.add_(1)
    c.imag.zero_()
    return c, c.conj().resolve_conj()


def bits(a):
    b = a * 1
    b.view(torch.int32).bitwise_and_(0x7FFFFF00)
    return b


def no_sharing_of_factories(a):
    return torch.zeros(3), torch.tensor([1.0, 2.0]), torch.ones_like(a), a.new_full((2,), 3.0), torch.arange(3)


def logical(a):
    m = a > 1
    m |= a < 0.5
    m.logical_not_()
    return m, ~m, m & (a > 2)


def where_and_fill(a):
    b = a.masked_fill(a > 1, 0.0)
    b.masked_fill_(a < 0.3, -1)
    return torch.where(a > 1, a, 0.0), b


def zero_dim(a):
    s = a.sum()
    s += 1
    s[()] = s * 2
    return s


def scatter_into(a):
    b = torch.zeros(3, 4)
    b.scatter_(1, torch.zeros(3, 1, dtype=torch.int64), a)
    b.index_add_(0, torch.tensor([0, 0]), a[:2])
    return b


PROGRAMS = [
    write_row,
    write_columns,
    write_transposed,
    write_through_chain,
    write_reshaped,
    write_flat_of_transposed,
    write_copy_of_view,
    old_view_sees_write,
    view_of_view_sees_write,
    split_parts,
    chunk_parts,
    unbind_rows,
    expand_result,
    squeeze_in_place,
    assign_scalar_and_tensor,
    assign_by_indices,
    gather_by_indices,
    index_forms,
    mutate_and_return_input,
    same_object,
    same_intermediate,
    out_argument,
    diagonal_write,
    strided_write,
    copy_casts,
    real_part_write,
    bits,
    no_sharing_of_factories,
    logical,
    where_and_fill,
    zero_dim,
    scatter_into,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(program):
    shape = (3, 3) if program is write_transposed else (3, 4)
    check(program, x(*shape))


@pytest.mark.parametrize(
    "program",
    [write_row, write_columns, old_view_sees_write, index_forms, same_object, mutate_and_return_input],
    ids=lambda p: p.__name__,
)
def test_transposed_input(program):
    check(program, x(4, 3).t())


def test_two_inputs_swap():
    check(swap_inputs, x(2, 3), x(2, 3) * 10)


@pytest.mark.parametrize("fn, inputs", [
    (lambda a: a.add_(0.5), [torch.arange(3)]),
    (lambda a, b: a.add_(b), [torch.ones(3), torch.ones(2, 3)]),
    (lambda a: a.add_(1), [torch.ones(3, requires_grad=True)]),
    (lambda a: a[0].add_(1), [torch.ones(3, requires_grad=True)]),
])
def test_errors_of_writes_are_left_to_eager(fn, inputs):
    with pytest.raises(Uncapturable) as error:
        Recording(fn, *inputs)
    assert error.value.reason_id == "exception"


def test_write_under_no_grad_to_a_parameter():
    def step(p, g):
        with_grad = torch.is_grad_enabled()
        assert not with_grad
        p.sub_(g * 0.1)
        return p

    p = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        recording = Recording(step, p, torch.ones(3))
        q = torch.ones(3, requires_grad=True)
        result = recording(q, torch.ones(3))
    assert result is q and q.is_leaf
    torch.testing.assert_close(q.detach(), torch.full((3,), 0.9))


def test_write_through_data_of_a_parameter():
    def step(p, g):
        p.data.sub_(g * 0.1)
        p.detach()[0] = 5
        return p.data

    recording = Recording(step, torch.ones(3, requires_grad=True), torch.ones(3))
    p = torch.ones(3, requires_grad=True)
    result = recording(p, torch.ones(3))
    assert p.is_leaf and p.grad_fn is None and result.untyped_storage().data_ptr() == p.untyped_storage().data_ptr()
    torch.testing.assert_close(p.detach(), torch.tensor([5, 0.9, 0.9]))
    with pytest.raises(RestartAnalysis):  # a history begins behind the write
        Recording(lambda p: (p.data.mul_(2), p * 2)[1], torch.ones(3, requires_grad=True))
    with pytest.raises(Uncapturable):
        Recording(lambda p: (p * 2).detach().mul_(2), torch.ones(3, requires_grad=True))


def test_foreach_writes():
    def fn(a, b):
        torch._foreach_mul_([a, b[0]], 2.0)
        return b

    check(fn, x(3), x(2, 3))


def test_gradients_through_writes():
    def fn(a, w):
        b = a * w
        b[0].mul_(3)
        c = b[:, 1:]
        b.add_(w)
        c.mul_(c.detach() + 1)
        return (b * c.sum()).sum()

    a = x(3, 4)
    recording = Recording(fn, a, torch.ones(4, requires_grad=True))
    grads = []
    for run in (fn, recording):
        w = torch.linspace(1, 2, 4, requires_grad=True)
        run(a, w).backward()
        grads.append(w.grad)
    torch.testing.assert_close(grads[1], grads[0])


def overwritten_result(a, w):
    b = (a * w).exp()
    c = b * 2
    b.add_(1)
    return c


def overwritten_input(a, w):
    b = (a * w).sum()
    a.add_(1)
    return b


def overwritten_view(a, w):
    b = a + w
    c = b[1:] * b[:-1]
    b[0] = 3
    return c


@pytest.mark.parametrize("program", [overwritten_result, overwritten_input, overwritten_view], ids=lambda p: p.__name__)
def test_values_that_autograd_keeps_are_not_overwritten(program):
    """Eager's backward pass raises here, so the write is left to eager."""
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program(x(3), torch.ones(3, requires_grad=True)).sum().backward()
    with pytest.raises(RestartAnalysis) as found:
        Recording(program, x(3), torch.ones(3, requires_grad=True))
    assert "autograd keeps" in found.value.cause.detail


def test_in_place_ops_that_keep_their_own_input():
    def fn(a, w):
        a = a.clone()
        a.mul_(w)
        b = a.neg()
        b.add_(a)
        b += w
        return b

    recording = Recording(fn, x(3), torch.ones(3, requires_grad=True))
    results = []
    for run in (fn, recording):
        w = torch.linspace(1, 2, 3, requires_grad=True)
        run(x(3), w).sum().backward()
        results.append(w.grad)
    torch.testing.assert_close(results[1], results[0])


def test_batch_norm_updates_its_statistics():
    def fn(a, mean, var, w):
        return F.batch_norm(a, mean, var, w, None, True, 0.1)

    def args():
        return x(5, 3, 4), torch.zeros(3), torch.ones(3), torch.ones(3, requires_grad=True)

    recording = Recording(fn, *args())
    eager, own = args(), args()
    fn(*eager).square().sum().backward()
    recording(*own).square().sum().backward()
    for a, b in zip(eager, own, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(eager[3].grad, own[3].grad)


def test_rollback_undoes_everything():
    sizes, guards = SizeEnv(), GuardSet()
    builder = TracedGraphBuilder(sizes, guards)
    a = builder.tensor_input(x(3, 4), LocalSource(0, "a"))
    b = builder.call(torch.add, (a, 1), {})
    row = builder.call(torch.Tensor.__getitem__, (b, 0), {})
    before = str(builder.graph), len(guards), b.state(), row.state(), b.storage.state()
    mark = builder.checkpoint()
    builder.call(torch.Tensor.mul_, (row, 2), {})
    builder.call(torch.Tensor.add_, (a, b), {})
    builder.tensor_input(torch.ones(2), LocalSource(1, "c"))
    builder.call(torch._C._set_grad_enabled, (False,), {})
    builder.rollback(mark)
    assert (str(builder.graph), len(guards), b.state(), row.state(), b.storage.state()) == before
    assert builder.state.grad_enabled
    finished = builder.finish([b, row])
    assert not builder.graph.mutations and finished.places == [("output", 0), ("output", 1)]


def test_failed_call_leaves_no_trace():
    builder = TracedGraphBuilder(SizeEnv(), GuardSet())
    a = builder.tensor_input(x(3, 4), LocalSource(0, "a"))
    with pytest.raises(Uncapturable) as caught:
        builder.call(torch.ops.aten._local_scalar_dense.default, (a,), {})
    assert caught.value.reason_id == "dynamic_shape"
    assert not builder.graph.nodes


def test_same_tensor_twice_is_one_input():
    builder = TracedGraphBuilder(SizeEnv(), guards := GuardSet())
    t = x(3)
    first = builder.tensor_input(t, LocalSource(0, "a"))
    assert builder.tensor_input(t, LocalSource(1, "b")) is first
    assert [(str(g.source), g.kind, str(g.arg)) for g in guards][-1] == ("b", "same", "a")
    assert len(builder.graph.inputs) == 1


def test_mutation_guards_separate_memory():
    recording = Recording(lambda a, b: a.add_(b), x(3), x(3))
    overlaps = [g for g in recording.builder.guards if g.kind == "overlap"]
    assert [str(g.source) for g in overlaps] == ["arg0"] and [str(s) for s in overlaps[0].arg] == ["arg1"]


def test_inputs_that_share_memory_are_not_mutated():
    base = x(6)
    check_reads = Recording(lambda a, b: a + b, base[:4], base[2:])
    torch.testing.assert_close(check_reads(base[:4], base[2:]), base[:4] + base[2:])
    with pytest.raises(Uncapturable, match="input_mutation"):
        Recording(lambda a, b: a.add_(b), base[:4], base[2:])


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.empty(2, device="meta"),
        lambda: torch.ones(2, dtype=torch.cfloat).conj(),
        lambda: torch.quantize_per_channel(torch.ones(3), torch.ones(3), torch.zeros(3), 0, torch.qint8),
    ],
    ids=["sparse", "meta", "conj", "quantised"],
)
def test_special_tensors_are_refused(make):
    builder = TracedGraphBuilder(SizeEnv(), GuardSet())
    with pytest.raises(Uncapturable, match="unsupported_tensor"):
        builder.tensor_input(make(), LocalSource(0, "a"))


def _kept_samples():
    a, b, w, i = x(4, 4), x(4, 4) + 1, x(4, 4), torch.tensor([0, 2])
    for t in (a, b, w):
        t.requires_grad_()
    image, kernel, mask = (
        torch.randn(1, 2, 5, 5, requires_grad=True),
        torch.randn(3, 2, 3, 3, requires_grad=True),
        torch.eye(4) > 0,
    )
    line, cube = torch.randn(1, 2, 5, requires_grad=True), torch.randn(1, 2, 4, 4, 4, requires_grad=True)
    line_kernel, cube_kernel = torch.randn(3, 2, 3, requires_grad=True), torch.randn(3, 2, 2, 2, 2, requires_grad=True)
    aten = torch.ops.aten
    return [
        (aten.add.Tensor, (a, b)),
        (aten.sub.Tensor, (a, b)),
        (aten.rsub.Scalar, (a, 1)),
        (aten.neg.default, (a,)),
        (aten.clone.default, (a,)),
        (aten.sum.default, (a,)),
        (aten.sum.dim_IntList, (a, [0])),
        (aten.mean.default, (a,)),
        (aten.mean.dim, (a, [0])),
        (aten.cat.default, ([a, b], 0)),
        (aten.stack.default, ([a, b], 0)),
        (aten.fill.Scalar, (a, 1.0)),
        (aten.zero.default, (a,)),
        (aten._to_copy.default, (a,)),
        (aten.mul.Tensor, (a, b)),
        (aten.div.Tensor, (a, b)),
        (aten.linear.default, (a, b)),
        (aten.matmul.default, (a, b)),
        (aten.mm.default, (a, b)),
        (aten.bmm.default, (a[None], b[None])),
        (aten.addmm.default, (w, a, b)),
        (aten.baddbmm.default, (w[None], a[None], b[None])),
        (aten.embedding.default, (a, i)),
        (aten.layer_norm.default, (a, [4])),
        (aten.native_layer_norm.default, (a, [4], None, None, 1e-5)),
        (aten.gelu.default, (a,)),
        (aten.silu.default, (a,)),
        (aten.conv1d.default, (line, line_kernel)),
        (aten.conv2d.default, (image, kernel)),
        (aten.conv3d.default, (cube, cube_kernel)),
        (aten.convolution.default, (image, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
        (aten.index.Tensor, (a, [i])),
        (aten.where.self, (mask, a, b)),
        (aten.masked_fill.Scalar, (a, mask, 0.0)),
        (aten.select_scatter.default, (a, b[0], 0, 0)),
        (aten.slice_scatter.default, (a, b[:2], 0, 0, 2)),
        (aten.index_put.default, (a, [i], b[:2])),
    ]


def test_what_autograd_keeps_of_common_operators():
    from jitpy.frontend.capture import autograd_facts
    from jitpy.ir import Graph, Node, TensorSpec, ops
    from jitpy.ir.ops import table

    asked = set()
    for overload, args in _kept_samples():
        op = ops.get(overload)
        graph = Graph()

        def node(value, graph=graph):
            if isinstance(value, torch.Tensor):
                return graph.add_input(
                    TensorSpec(value.dtype, tuple(value.shape), value.stride(), value.device, value.requires_grad)
                )
            return (
                [node(v) for v in value]
                if isinstance(value, list) and value and isinstance(value[0], torch.Tensor)
                else value
            )

        nodes = tuple(node(a) for a in args)
        call = Node(op, nodes, {}, ops.infer(op, SizeEnv(), nodes), "call")
        inputs, results = autograd_facts.saved_values(TracedGraphBuilder(SizeEnv(), GuardSet()), call)
        asked.add(op.name.rpartition(".")[0])
        if not op.keeps_input:
            assert not {n for n in inputs if n.tensor.requires_grad}, op
        assert 0 not in results and not op.keeps_result, op
    assert asked == {name for name, facts in table._DECLARED.items() if facts.get("keeps_result") is False}
