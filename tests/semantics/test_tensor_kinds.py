"""Tensors of special layouts, dtypes and memory. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import pytest
import torch

import jitpy
from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


@case(lambda: (torch.eye(3).to_sparse(),), lambda: (torch.ones(2, 2).to_sparse(),))
def sparse_argument(x):
    y = x * 2
    return y, y.to_dense() + 1


@case(lambda: (vec(3, 3),))
def sparse_inside(x):
    s = (x * 2).relu().to_sparse()
    return s @ x, s.is_sparse, s.layout


@case(lambda: (torch.eye(3).to_sparse_csr(), vec(3, 2)))
def csr_argument(a, b):
    return a @ b + 1, a.crow_indices()


@case(one)
def sparse_made_inside(x):
    i = torch.tensor([[0, 1, 1], [2, 0, 2]])
    s = torch.sparse_coo_tensor(i, x[:3], (2, 3))
    return s.to_dense(), torch.sparse.sum(s)


@case(lambda: (torch.eye(3).to_sparse(), vec(3, 3).requires_grad_()))
def sparse_gradient(s, x):
    return torch.sparse.mm(s, x).sum()


@case(lambda: (torch.randn(4, dtype=torch.complex64),), lambda: (torch.randn(6, dtype=torch.complex64),))
def complex_argument(z):
    return z * (1 + 2j), z.real + z.imag, z.abs(), z.conj() * z, torch.angle(z)


@case(lambda: (torch.randn(4, dtype=torch.complex64).requires_grad_(),))
def complex_gradient(z):
    return (z * z.conj()).real.sum()


@case(one, fullgraph=True)
def complex_inside(x):
    z = torch.complex(x, x + 1)
    return torch.view_as_real(z), z.exp(), torch.fft.fft(z)


@case(lambda: (torch.randn(4, dtype=torch.complex64).conj(),))
def conj_argument(z):
    return z + 1, z.is_conj(), z.resolve_conj()


@case(lambda: (torch.randn(4, dtype=torch.complex64).conj().imag,))
def neg_argument(x):
    return x + 1, x.is_neg()


@case(lambda: (torch.randn(4, dtype=torch.complex64),))
def conj_result(z):
    w = z.conj()
    return w, w.imag, torch.view_as_real(w.resolve_conj())


@case(lambda: (torch.quantize_per_tensor(vec(), 0.1, 10, torch.quint8),))
def quantized_argument(q):
    return q.dequantize() + 1, q.q_scale(), q.int_repr()


@case(one)
def quantized_inside(x):
    q = torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)
    return q, q.dequantize(), q.is_quantized


@case(one, breaks=("unsupported_tensor",) * 3)
def quantized_in_other_ways(x):
    q = torch.quantize_per_channel(x.reshape(2, 2), torch.ones(2), torch.zeros(2), 0, torch.quint8)
    r = torch._make_per_tensor_quantized_tensor(x.to(torch.uint8), 0.1, 0)
    return q.int_repr(), r.int_repr(), r.dequantize()


@case(one)
def dequantized_without_need(x):
    y = x.dequantize()
    y.add_(1)
    return y, y is x, torch.dequantize([x])[0] is x


@case(lambda: (torch.empty(2, 3, device="meta"),))
def meta_argument(m):
    y = m @ m.t()
    return y, y.shape, y.device.type


@case(one)
def meta_inside(x):
    m = torch.empty(3, 4, device="meta")
    return (m + m).shape, x + 1


@case(lambda: (vec(3, 3).to_mkldnn(),))
def mkldnn_argument(m):
    return m.to_dense() + 1, (m + m).to_dense(), m.is_mkldnn


@case(lambda: (vec(3, 3),))
def mkldnn_inside(x):
    return x.to_mkldnn().to_dense() * 2


@case(lambda: (torch.empty(0),), lambda: (torch.empty(0, 3),), lambda: (torch.empty(2, 0),))
def zero_size(x):
    return x + 1, x.sum(), x.reshape(-1), torch.cat([x, x]), x.numel()


@case(lambda: (torch.empty(0, 3), vec(3, 2)))
def zero_size_matmul(x, y):
    return x @ y, (x @ y).sum(0), x.mean(0)


@case(lambda: (torch.tensor(2.0),), lambda: (torch.tensor(3),), lambda: (torch.tensor(True),))
def zero_dim(x):
    return x + 1, x * 2.5, x[None], x.unsqueeze(0), x.expand(3)


@case(lambda: (torch.tensor(2.0, dtype=torch.float64), vec()))
def zero_dim_promotion(s, x):
    return s + x, (s + x).dtype, x.to(torch.int32) * s


@case(lambda: (vec().to(torch.float8_e4m3fn),))
def float8_argument(x):
    return x.to(torch.float32) + 1, x, x[1:], x.dtype


@case(one)
def float8_inside(x):
    y = x.to(torch.float8_e5m2)
    return y, y.float(), y.view(torch.uint8)


@case(lambda: (torch.tensor([0, 1, 2, 60000], dtype=torch.uint16),))
def uint16_argument(x):
    return x.to(torch.int64) + 1, x, x.view(torch.int16)


@case(lambda: (torch.tensor([0, 1, 2, 60000], dtype=torch.uint32), torch.tensor([0, 1, 2, 60000], dtype=torch.uint64)))
def wide_unsigned(x, y):
    return x.long() + y.long(), x[:2], y.float()


@case(lambda: (torch.arange(4, dtype=torch.int64),))
def unsigned_conversion(x):
    return (x - 2).to(torch.uint16), (x * 1000).to(torch.uint8)


@case(lambda: (vec(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),), lambda: (vec(2, 3, 4, 5),))
def channels_last(x):
    y = torch.relu(x) * 2
    z = torch.nn.functional.conv2d(x, torch.ones(3, 3, 1, 1))
    return y, y.is_contiguous(memory_format=torch.channels_last), z, x.clone(), torch.empty_like(x).stride()


@case(lambda: (vec(2, 4, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_(),),
      lambda: (vec(2, 4, 4, 5).requires_grad_(),))
def padded_and_gated(x):
    ways = [torch.nn.functional.pad(x, (1, 1, 1, 1), mode=mode) for mode in ("reflect", "replicate", "circular")]
    gated = torch.nn.functional.glu(x, 1)
    return *ways, gated, [y.stride() for y in (*ways, gated)]


@case(lambda: (vec(2, 3, 4, 5),), fullgraph=True)
def to_channels_last(x):
    y = x.to(memory_format=torch.channels_last)
    return y, y + 1, y.contiguous(), y.sum(1), y.stride()


@case(lambda: (vec(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),))
def channels_last_3d(x):
    return x * 2, x.mean(1)


@case(lambda: (vec(4, 5).t(),), lambda: (vec(4, 5)[::2, 1:],), lambda: (vec(5).expand(4, 5),))
def odd_strides(x):
    y = x + 1
    return y, y.stride(), torch.empty_like(x).stride(), x.clone().stride(), x.contiguous().stride()


@case(lambda: (vec(6).as_strided((3, 3), (1, 1)),))
def overlapping(x):
    return x * 2, x.sum()


@case(lambda: (vec(6).as_strided((3, 3), (1, 1)),))
def overlapping_write(x):
    try:
        x.add_(1)
    except RuntimeError as error:
        return type(error).__name__
    return x


@case(lambda: (torch.nested.nested_tensor([vec(2, 3), vec(4, 3)], layout=torch.jagged),))
def nested_argument(n):
    return n * 2, n.is_nested, [t.shape for t in n.unbind()]


@case(lambda: (vec(2, 3), vec(4, 3)))
def nested_inside(a, b):
    n = torch.nested.nested_tensor([a, b])
    return n.unbind()[1] + 1, n.to_padded_tensor(0.0)


@case(lambda: (vec(),))
def masked_inside(x):
    from torch.masked import masked_tensor

    m = masked_tensor(x, torch.tensor([True, False, True, True]))
    return m.sum().get_data(), m.get_mask()


@case(lambda: (torch.randn(4, dtype=torch.float16), torch.randn(4, dtype=torch.bfloat16)))
def half_types(a, b):
    return a + 1, b * 2, a.float() + b.float(), (a + b).dtype


@case(lambda: (torch.zeros(2, 3, dtype=torch.bool),))
def bools(x):
    return ~x, x | True, x.sum(), x.any(), x.float() + 1, x & x


@case(one)
def storage_access(x):
    y = x * 2
    return y.untyped_storage().nbytes(), y.data_ptr() % 16 == 0, y


@case(one)
def set_data(x):
    y = x.clone()
    y.data = x * 3
    return y


@case(one)
def data_write(x):
    y = x.clone()
    y.data.add_(1)
    return y, x


@case(lambda: (vec(3, 4),))
def resized(x):
    y = x.clone()
    y.resize_(2, 2)
    return y


@case(lambda: (vec(3, 4),))
def view_dtype(x):
    return x.view(torch.int32), x.view(torch.uint8).shape, x.view(torch.complex64)


@case(lambda: (vec(4), vec(4)))
def set_storage(x, y):
    x.set_(y)
    x.add_(1)
    return x, y


@case(lambda: (torch.empty(4).fill_(float("nan")), torch.tensor([0.0, -0.0, float("inf"), 1.0])))
def special_values(x, y):
    return x == x, 1 / y, torch.maximum(x, y), y.sign(), torch.signbit(y), y.sort()


@case(lambda: (torch.tensor([2**62, -(2**63)]),))
def integer_overflow(x):
    return x * 2, x - 1, x.abs(), x // 3, x % 3


@case(one)
def operator_methods_that_decline(x):
    return x.__rsub__("x"), x.__rpow__("x"), x.__rmod__(None), x.__floordiv__("x"), torch.Tensor.__rsub__(2, 3)


class Stranger:
    pass


@case(one)
def operator_of_a_stranger(x):
    return x // Stranger()


@case(one)
def reflected_operator_of_a_stranger(x):
    return Stranger() ** x


test_all = make_test(__name__)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_zeros_without_memory(backend: str) -> None:
    def fn(x):
        return x * 2 + 1, x.t().clone(), x._is_zerotensor()

    jitted = jitpy.jit(fn, backend=backend)
    for x in (torch.ones(2, 3), torch._efficientzerotensor((2, 3)), torch.ones(2, 3)):
        for _ in range(2):
            for found, wanted in zip(jitted(x), fn(x), strict=True):
                assert torch.equal(torch.as_tensor(found), torch.as_tensor(wanted))
