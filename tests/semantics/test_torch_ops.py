"""Calls of torch operators in their less usual forms."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.semantics.harness import CASES, case, check, make_test


def square():
    return (torch.randn(4, 4),)


@case(square, fullgraph=True)
def overload_and_packet(x):
    packet = torch.ops.aten.mul
    return torch.ops.aten.add.Tensor(x, x, alpha=2), packet(x, 3), packet.Tensor(x, x), torch.ops.aten.slice(x, 0, 1, 3)


@case(square, fullgraph=True)
def overload_of_a_view_and_in_place(x):
    part = torch.ops.aten.select.int(x, 0, 1)
    torch.ops.aten.add_.Tensor(part, 1)
    return part, x + 1


@case(square, factory=True)
def overloads_swapped_between_calls():
    operators = [torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor]

    def fn(x):
        operators.reverse()
        return operators[0](x, 5)

    return fn, operators


@case(square, fullgraph=True)
def new_of_a_size_is_a_shape_and_of_a_tuple_data(x):
    sizes = x.new(x.shape).fill_(1), x.new(torch.Size([3])).fill_(2), x.new(torch.Size([])).fill_(3), x.new(x.size())
    return sizes[:3], sizes[3].shape, x.new(tuple(x.shape)), x.new([2, 3]), x.new(x.shape[:1]).shape, x.new(2, 3).shape


@case(lambda: (torch.randn(2, 3), torch.randn(3, 2), torch.zeros(6, 6)), fullgraph=True)
def kron_into_out(x, y, out):
    result = torch.kron(x, y, out=out)
    return result is out, out + 1


@case(lambda: (torch.randn(5, 5), torch.zeros((), dtype=torch.int64)))
def matrix_rank_does_not_write_to_out(m, out):
    return torch.linalg.matrix_rank(m, out=out), out + 1


@case(lambda: (torch.randn(5), torch.zeros(())), fullgraph=True)
def largest_into_out(x, out):
    return torch.max(x, out=out), out * 2


@case(square, fullgraph=True)
def random_like_on_a_named_device(x):
    return torch.randint_like(x, 10, device="cpu"), torch.rand_like(x, device="cpu"), torch.randn_like(x, device="cpu")


@case(square, fullgraph=True)
def broadcast_shapes_is_a_size(x):
    return torch.broadcast_shapes(x.shape, (3, 1, 1)), torch.broadcast_shapes((1, 4), (3, 1)).numel()


@case(square, lambda: (torch.zeros(4, 4),), fullgraph=True)
def all_close(x):
    near = torch.allclose(x, x + 1e-9), torch.allclose(x, torch.zeros_like(x), atol=1e-3)
    return near, x.allclose(x * 2)


@case(lambda: (torch.randn(2, 3), torch.randn(4, 3)))
def all_close_of_other_sizes(x, y):
    return torch.allclose(x, y)


@case(lambda: (torch.randn(3, 6, requires_grad=True), torch.tensor([1, 2, 1, 3, 1, 1])), fullgraph=True)
def covariance(x, weights):
    return torch.cov(x), torch.cov(x, fweights=weights), torch.corrcoef(x), torch.cov(x[:1])


@case(lambda: (torch.randn(2, 64),), fullgraph=True)
def short_time_fourier_and_back(x):
    window = torch.hann_window(16)
    spectrum = torch.stft(x, 16, window=window, return_complex=True)
    return torch.istft(spectrum, 16, window=window), spectrum.istft(16, window=window, length=60)


@case(lambda: (torch.randn(10, 2, 5, requires_grad=True), torch.randint(1, 5, (2, 3))), fullgraph=True)
def connectionist_loss(x, targets):
    lengths = torch.tensor([10, 10]), torch.tensor([3, 2])
    return torch.nn.functional.ctc_loss(x.log_softmax(2), targets, *lengths)


@case(lambda: (torch.randn(10, 2, 5, requires_grad=True), torch.randint(1, 5, (5,))), fullgraph=True)
def connectionist_loss_of_targets_in_a_row(x, targets):
    lengths = torch.tensor([10, 10]), torch.tensor([3, 2])
    logs = x.log_softmax(2)
    losses = [torch.nn.functional.ctc_loss(logs, targets, *lengths, reduction=r) for r in ("none", "mean", "sum")]
    return *losses, torch.nn.functional.ctc_loss(logs, targets, [10, 9], [2, 3])


@case(lambda: (torch.rand(2, 3), torch.rand(2, 3)), fullgraph=True)
def weights_that_are_broadcast(x, y):
    weighted = torch.nn.functional.binary_cross_entropy(x, y, torch.tensor([0.5, 1.0, 2.0]))
    return weighted, torch._C._infer_size(x.shape, x[:1, None].shape)


@case(lambda: (torch.rand(2, 3), torch.rand(2, 3)))
def weights_that_do_not_fit(x, y):
    try:
        torch._C._infer_size(x.shape, [2])
    except (RuntimeError, TypeError) as error:
        print(error)
    return torch.nn.functional.binary_cross_entropy(x, y, y[:, :2])


@case(lambda: (torch.randn(3, dtype=torch.float64), torch.zeros(3, dtype=torch.complex64)))
def out_of_a_dtype_that_eager_refuses(x, out):
    return torch.complex(x, x, out=out)


@case(lambda: (torch.randn(3), torch.zeros(3, dtype=torch.float64)))
def out_of_a_dtype_that_eager_converts_to(x, out):
    return torch.add(x, x, out=out) is out


@case(lambda: (torch.rand(3) + 0.5,), lambda: (torch.randint(0, 9, (3,)),))
def polygamma_in_place(x):
    return x.polygamma_(1) + 1


def test_operands_that_are_left_out_are_compiled() -> None:
    @case(square, fullgraph=True)
    def one_bound(x):
        return torch.clamp(x, min=0.1), x.clamp(max=0.2), torch.clip(x, None, torch.zeros(4)), x.clone().clamp_(-0.1)

    check(CASES[__name__].pop(), "codegen")



def _heads(batch, keys):
    return torch.randn(batch, 4, 5, 8), torch.randn(batch, 1, keys, 8), torch.randn(1, 1, keys, 8)


@case(lambda: _heads(2, 3), lambda: _heads(3, 6), lambda: _heads(4, 7), fullgraph=True)
def attention_of_heads_that_share_keys(q, k, v):
    return F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, q.new_ones(q.shape[-2], 1))


@case(lambda: (torch.arange(7) * 2,), fullgraph=True)
def range_between_elements(x):
    return torch.arange(x[1], x[4] + 1, 2), torch.arange(x[3], dtype=torch.float32), torch.arange(0, end=x[2])


@case(lambda: (torch.ones(2, 3, 4), torch.ones(2)), lambda: (torch.ones(2, 3, 4), torch.ones(4)))
def values_that_do_not_fit(x, values):
    places = torch.tensor([1, 0])
    results = []
    for indices in ((places,), (places, places), (None, places)):
        try:
            results.append(torch.index_put(x, indices, values, accumulate=True))
        except RuntimeError as error:
            results.append(str(error))
    return results, (x + 1).index_put_((places, places), values, accumulate=True)


CHANNELS_LAST = (
    lambda: (torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last),),
    lambda: (torch.randn(2, 4, 2, 3, 5).to(memory_format=torch.channels_last_3d),),
)


@case(*CHANNELS_LAST, fullgraph=True)
def group_norm_of_channels_last(x):
    y = F.group_norm(x, 2)
    z = F.group_norm(x, 2, torch.ones(4), torch.ones(4)) * 2
    return y, z, y.stride(), z.stride(), y.is_contiguous(), y.flatten(2).stride()


TRANSPOSED = (
    lambda: (torch.randn(2, 4, 5).transpose(1, 2),),
    lambda: (torch.randn(1, 4, 5).transpose(1, 2),),
    lambda: (torch.randn(2, 4, 5, requires_grad=True).transpose(1, 2),),
)


@case(*TRANSPOSED)
def norms_and_pools_of_transposed_rows(x):
    y = F.batch_norm(x, torch.zeros(5), torch.ones(5))
    z = F.max_pool1d(x, 2)
    return y, z, y.stride(), z.stride(), F.batch_norm(x[..., 0], torch.zeros(5), torch.ones(5)).stride()


@case(lambda: ([torch.randn(3), torch.randn(2)],), lambda: ((torch.randn(3), torch.randn(3)),), fullgraph=True)
def lists_written_in_place(xs):
    return torch._foreach_add_(xs, 1.0), torch._foreach_neg_(self=xs) is xs, torch.ops.aten._foreach_mul_(xs, 2.0)


@case(
    lambda: (torch.randn(3, 4), torch.tensor([0, 2]), torch.ones(2, 4, dtype=torch.int64)),
    lambda: (torch.randn(3, 4), torch.tensor([0, 2]), torch.tensor(2, dtype=torch.int64)),
    lambda: (torch.randn(3, 4), torch.tensor([True, False, True]), torch.ones(2, 4).double()),
    lambda: (torch.randn(3, 4), torch.tensor([True, False, True]), torch.ones(1).double()),
    lambda: (torch.ones(3, 4).long(), torch.tensor([True, False, True]), torch.tensor(1.5)),
)
def elements_set_to_another_dtype(x, places, value):
    y = x + 1
    y[places] = value
    x[places] = value
    return y


def test_in_kernels():
    for one in CASES[__name__]:
        if one.fn in (values_that_do_not_fit, group_norm_of_channels_last, norms_and_pools_of_transposed_rows):
            check(one, "codegen")


test_cases = make_test(__name__)
