"""`torch.ao` in eager mode: observed, converted, captured as one graph whose numbers are eager's to the bit."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.ao.quantization as ao
import torch.nn.functional as F
from torch import nn

import jitpy
from tests.counting import variants

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Stubs(nn.Module):
    """Quantises in front of a body and dequantises behind it."""

    def __init__(self, body):
        super().__init__()
        self.quant, self.body, self.dequant = ao.QuantStub(), body, ao.DeQuantStub()

    def forward(self, x):
        return self.dequant(self.body(self.quant(x)))


class Residual(nn.Module):
    """Arithmetic on quantised tensors."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.add, self.multiply, self.cat = (nn.quantized.FloatFunctional() for _ in range(3))

    def forward(self, x):
        y = self.add.add_relu(x, self.conv(x))
        return self.cat.cat([self.multiply.mul(y, x), y], 1)


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Residual(),
                         nn.Conv2d(16, 8, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2), nn.Flatten(1),
                         nn.Linear(32, 10))


class Shapes(nn.Module):
    """Functions that torch has quantised kernels of, and views."""

    def forward(self, x):
        y = F.relu(x).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        y = F.avg_pool2d(F.interpolate(y, scale_factor=2), 2)[:, 1:]
        first, second = y.chunk(2, dim=2)
        return torch.cat([F.hardtanh(first, 0.0, 1.0), second.clamp(-0.5, 0.5)], 2).flatten(2)


def converted(body, x, engine="x86"):
    torch.manual_seed(0)
    model = Stubs(body).eval()
    model.qconfig = ao.get_default_qconfig(engine)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = ao.prepare(model)
        prepared(x)
        return ao.convert(prepared)


def images(batch=2, channels=3):
    return torch.randn(batch, channels, 16, 16, generator=torch.Generator().manual_seed(batch))


MODELS = {"convolutions": (convolutions, 3), "shapes": (Shapes, 3), "residual": (Residual, 8)}


@pytest.mark.parametrize("engine", ["x86", "qnnpack"])
@pytest.mark.parametrize("name", MODELS)
def test_model_is_captured(name, engine):
    make, channels = MODELS[name]
    model, x = converted(make(), images(channels=channels), engine), images(3, channels)
    with torch.no_grad():
        compiled = jitpy.jit(model, fullgraph=True)
        for _ in range(2):
            assert torch.equal(compiled(x), model(x))


def test_fused_modules_and_batches():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(1), nn.Linear(8 * 14 * 14, 10))
    ao.fuse_modules(model.eval(), [["0", "1", "2"]], inplace=True)
    model = converted(model, images())
    compiled, before = jitpy.jit(model, fullgraph=True), variants()
    with torch.no_grad():
        for batch in (2, 3, 7, 5, 1, 2):
            assert torch.equal(compiled(images(batch)), model(images(batch)))
    assert variants() - before <= 3


def test_scales_that_change():
    """The stub's scale is a buffer that is read at each call; a module's is a number that is guarded."""
    model, x = converted(convolutions(), images()), images(3)
    compiled = jitpy.jit(model, fullgraph=True)
    with torch.no_grad():
        for change in range(3):
            model.quant.scale.mul_(1.5)
            model.quant.zero_point.add_(1)
            model.body[0].scale *= 1.25
            assert torch.equal(compiled(x), model(x)), change


def test_weights_that_change():
    model, x = converted(convolutions(), images()), images(3)
    compiled = jitpy.jit(model, fullgraph=True)
    with torch.no_grad():
        before = compiled(x)
        weight, bias = model.body[0]._weight_bias()
        model.body[0].set_weight_bias(weight, bias + 1)
        assert torch.equal(compiled(x), model(x)) and not torch.equal(before, model(x))


def quantised(x, scale=0.1, zero=3, dtype=torch.quint8):
    return torch.quantize_per_tensor(x, scale, zero, dtype)


def per_channel(x):
    return torch.quantize_per_channel(x, torch.full((x.shape[0],), 0.1), torch.zeros(x.shape[0]), 0, torch.qint8)


@pytest.mark.parametrize("fn", [
    lambda q: q.q_scale() * 2 + q.q_zero_point(),
    lambda q: q.int_repr() * 2,
    lambda q: q.dequantize() + q.is_quantized,
    lambda q: (q[0], q[:, 1:].dequantize(), q.shape, q.dtype),
    lambda q: q.relu(),
    lambda q: (q, q.clone(), q.t().contiguous()),
    lambda q: q.flatten()[2].item(),
    lambda q: torch.ops.quantized.add(q, q, 0.2, 1).dequantize(),
    lambda q: q.max(),
    lambda q: [one.dequantize() for one in q],
    lambda q: q.qscheme() is torch.per_tensor_affine and q.dequantize(),
    lambda q: q.dequantize()[q.dequantize() > 0],
    lambda q: q[q.int_repr() > 3].dequantize(),
    lambda q: q.view(-1).view(2, -1).T.dequantize(),
    lambda q: (q == q).sum(),
    lambda q: q.tolist(),
    lambda q: bool((q > 0).any()),
    lambda q: torch.equal(q, q.clone()),
    lambda q: q.to(torch.float32),
    lambda q: q.reshape(3, 2).unsqueeze(0).squeeze().dequantize(),
    lambda q: torch.sort(q)[0].dequantize(),
    lambda q: q.mean().dequantize(),
    lambda q: torch.sigmoid(q).dequantize(),
    lambda q: (q.data.dequantize(), q.detach().int_repr()),
])
@pytest.mark.parametrize("make", [quantised, per_channel, lambda x: quantised(x, 0.05, 0, torch.qint8)])
def test_quantised_argument(fn, make):
    """A quantised tensor from outside, and results that are quantised."""
    compiled = jitpy.jit(fn)
    for scale in (1.0, 2.0):
        q = make(torch.arange(6.0).view(2, 3) * scale - 1)
        outcomes = []
        for call in (fn, compiled):
            try:
                outcomes.append(call(q))
            except Exception as error:
                outcomes.append(repr(error)[:60])
        assert_same(*outcomes)


def assert_same(want, got):
    assert type(want) is type(got), (want, got)
    if isinstance(want, torch.Tensor):
        assert want.dtype is got.dtype and (want.stride() == got.stride() or 0 in want.stride())
        if want.is_quantized:
            assert want.qscheme() is got.qscheme()
            want, got = (torch.stack([one.dequantize(), one.int_repr().float()]) for one in (want, got))
        assert torch.equal(want, got)
    elif isinstance(want, (tuple, list)) and not isinstance(want, torch.Size):
        assert len(want) == len(got)
        for one, other in zip(want, got, strict=True):
            assert_same(one, other)
    else:
        assert want == got or want is got


@pytest.mark.parametrize("fn", [
    lambda q: q.relu_().dequantize(),
    lambda q: (F.relu(q, inplace=True).dequantize(), q.dequantize()),
    lambda q: (q.copy_(quantised(torch.ones(2, 3), 0.5, 1)), q.q_scale()),
    lambda q: (q[0].relu_(), q),
    lambda q: (q.view(6).relu_(), q.dequantize()),
    lambda q: (q.fill_(1.0), q.q_scale()),
    lambda q: (torch.clamp_(q, 0, 1), q),
])
def test_writes(fn):
    """Writes to an argument, and to a tensor that is made inside."""
    make = lambda: quantised(torch.arange(6.0).view(2, 3) - 2)  # noqa: E731
    inside = lambda x: fn(quantised(x))  # noqa: E731
    for call, given in ((fn, make), (inside, lambda: torch.arange(6.0).view(2, 3) - 2)):
        compiled = jitpy.jit(call)
        for _ in range(2):
            outcomes = []
            for one in (call, compiled):
                argument = given()
                try:
                    outcomes.append((one(argument), argument))
                except Exception as error:
                    outcomes.append(repr(error)[:60])
            assert_same(*outcomes)


def test_scales_of_an_argument_that_change():
    """The scale of an argument is read at each call; a tensor with several scales is another kind."""
    compiled = jitpy.jit(lambda q: (q.q_scale() if q.qscheme() is torch.per_tensor_affine else 0, q.dequantize() * 2))
    x = torch.arange(6.0).view(2, 3)
    for q in (quantised(x, 0.5), quantised(x, 0.25, 7), per_channel(x), quantised(x, 0.125), per_channel(x)):
        scale, values = compiled(q)
        assert torch.equal(values, q.dequantize() * 2)
        assert scale == (q.q_scale() if q.qscheme() is torch.per_tensor_affine else 0)


def test_gradients_are_eagers():
    x = torch.randn(4, 4, requires_grad=True)

    def fn(x):
        return quantised(x * 2).dequantize() + x

    with torch.no_grad():
        assert torch.equal(jitpy.jit(fn)(x), fn(x))
    outcomes = []
    for call in (fn, jitpy.jit(fn)):
        try:
            outcomes.append(torch.autograd.grad(call(x).sum(), x)[0])
        except (RuntimeError, NotImplementedError) as error:
            outcomes.append(type(error))
    assert_same(*outcomes)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_dynamic_recurrent_layers(kind):
    torch.manual_seed(0)
    model = nn.Sequential(getattr(nn, kind)(16, 16)).eval()
    model = ao.quantize_dynamic(model, {nn.LSTM, nn.GRU, nn.Linear}, dtype=torch.qint8)
    x = torch.randn(5, 2, 16)
    with torch.no_grad():
        torch.testing.assert_close(jitpy.jit(model)(x), model(x), rtol=0, atol=0)


def test_embedding():
    table = torch.nn.Embedding(10, 16)
    table.qconfig = ao.float_qparams_weight_only_qconfig
    model = ao.convert(ao.prepare(nn.Sequential(table).eval()))
    given = torch.tensor([[1, 4, 3], [0, 9, 4]])
    with torch.no_grad():
        for ids in (given, given[:, :2].contiguous(), given[:1]):
            assert torch.equal(jitpy.jit(model)(ids), model(ids))


def test_operators_that_write_their_last_argument():
    def fn(x, out):
        q, mine = quantised(x), quantised(torch.zeros(6))
        torch.ops.quantized.cat_out([q, q], 0, out)
        torch.ops.quantized.cat_out([q, q], 0, mine)
        return mine.dequantize()

    compiled = jitpy.jit(fn)
    for _ in range(3):
        x, ours, eagers = torch.randn(3), quantised(torch.zeros(6)), quantised(torch.zeros(6))
        with torch.no_grad():
            assert torch.equal(compiled(x, ours), fn(x, eagers))
        assert torch.equal(ours.int_repr(), eagers.int_repr())


@pytest.mark.parametrize("fn", [lambda q: torch.topk(q, 2), lambda q: q.max(0), lambda q: q.sort()])
def test_results_with_names_keep_them(fn):
    compiled = jitpy.jit(fn)
    for _ in range(2):
        q = quantised(torch.randn(3, 4))
        ours, eagers = compiled(q), fn(q)
        assert type(ours) is type(eagers)
        assert torch.equal(ours.values.int_repr(), eagers.values.int_repr())
        assert torch.equal(ours.indices, eagers.indices)
