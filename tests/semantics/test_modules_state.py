"""Modules: hooks, recurrent layers, containers, parametrizations, buffers, state dicts. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.utils.parametrize as parametrize
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

from tests.semantics.harness import case, make_test

LOG: Any = None


def rows():
    return (torch.randn(3, 4, requires_grad=True),)


def of(make: Any) -> Any:
    """Seed, build a module, and give (its forward as a function, module)."""
    torch.manual_seed(0)
    module = make()

    def fn(*args, **kwargs):
        return module(*args, **kwargs)

    return fn, module


# -- hooks


@case(rows, factory=True)
def forward_hooks():
    fn, module = of(lambda: nn.Linear(4, 4))
    module.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    module.register_forward_hook(lambda m, args, out: out + 1)
    return fn, list(module.parameters())


@case(rows, factory=True)
def forward_hooks_with_kwargs():
    class Scaled(nn.Module):
        def forward(self, x, *, scale=1.0):
            return x * scale

    module = Scaled()
    module.register_forward_pre_hook(lambda m, args, kwargs: (args, {"scale": kwargs["scale"] * 2}), with_kwargs=True)
    module.register_forward_hook(lambda m, args, kwargs, out: out + kwargs["scale"], with_kwargs=True)

    def fn(x):
        return module(x, scale=3.0)

    return fn, list(module.parameters())


@case(rows, factory=True)
def forward_hook_logs():
    log: list[Any] = []
    fn, module = of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    for child in module:
        child.register_forward_hook(lambda m, args, out: log.append((type(m).__name__, tuple(out.shape))))
    return fn, [list(module.parameters()), log]


@case(rows, factory=True)
def forward_hook_keeps_output():
    kept: dict[str, Any] = {}
    fn, module = of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    module[0].register_forward_hook(lambda m, args, out: kept.__setitem__("features", out.detach()))
    return fn, [list(module.parameters()), kept]


@case(rows, factory=True, rounds=3)
def hook_added_between_calls():
    fn, module = of(lambda: nn.Linear(4, 4))
    calls = [0]

    def outside(x):
        calls[0] += 1
        if calls[0] == 2:
            module.register_forward_hook(lambda m, args, out: out * 10)
        return fn(x)

    return outside, [list(module.parameters()), calls]


@case(rows, factory=True)
def hook_added_inside():
    module = nn.Linear(4, 4)

    def fn(x):
        handle = module.register_forward_hook(lambda m, args, out: out * 10)
        y = module(x)
        handle.remove()
        return y, module(x)

    return fn, module.weight


@case(rows, factory=True)
def always_called_hook():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    log: list[str] = []
    module = Fails()
    module.register_forward_hook(lambda m, args, out: log.append("called"), always_call=True)

    def fn(x):
        try:
            return module(x)
        except ValueError:
            return x * 2

    return fn, log


@case(rows, factory=True)
def backward_hooks():
    log: list[Any] = []
    fn, module = of(lambda: nn.Linear(4, 4))
    module.register_full_backward_hook(lambda m, gi, go: log.append(tuple(g is None for g in (*gi, *go))))
    return fn, [list(module.parameters()), log]


@case(rows, factory=True)
def backward_pre_hooks():
    fn, module = of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    module[0].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    module[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    return fn, list(module.parameters())


@case(rows, factory=True)
def backward_hooks_in_the_middle():
    log: list[str] = []
    _, module = of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    module[1].register_full_backward_hook(lambda m, gi, go: log.append("back"))
    module[2].register_full_backward_pre_hook(lambda m, go: log.append("before"))

    def fn(x):
        y = module(x * 2) + 1
        with torch.no_grad():
            z = module(y)
        for layer in module:
            y = layer(y) * 2
        return [sum(map(module[1], (y, z))), *[module[2](t) for t in (y, z)]]

    return fn, [list(module.parameters()), log]


def test_modules_with_backward_hooks_are_compiled_one_by_one() -> None:
    import jitpy

    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    for layer in module:
        layer.register_full_backward_hook(lambda m, gi, go: None)
    report = jitpy.explain(module)(torch.randn(3, 4, requires_grad=True))
    assert "hooks on the backward pass of a module" in {record.detail for record in report.break_reasons}
    assert len(report.frames) <= 4  # the loop, and how it goes on


@case(rows, factory=True, fullgraph=True)
def global_forward_hook():
    fn, module = of(lambda: nn.Linear(4, 4))
    log: list[str] = []

    def outside(x):
        handle = nn.modules.module.register_module_forward_hook(lambda m, a, o: log.append(type(m).__name__))
        try:
            return fn(x)
        finally:
            handle.remove()

    return outside, [list(module.parameters()), log]


@case(rows, factory=True, fullgraph=True)
def global_hooks_that_change_values():
    fn, module = of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    class Counting:
        def __enter__(self):
            self.sizes = []
            self.handle = nn.modules.module.register_module_forward_pre_hook(self.before)
            return self

        def before(self, module, args):
            self.sizes.append((type(module).__name__, args[0].shape))
            return (args[0] * 2,)

        def __exit__(self, *_):
            self.handle.remove()

    def outside(x):
        with Counting() as counting:
            y = fn(x)
        handle = nn.modules.module.register_module_forward_hook(lambda m, a, o: o + 1, always_call=True)
        z = fn(x)
        handle.remove()
        return y, z, fn(x), counting.sizes

    return outside, [list(module.parameters())]


@case(rows, factory=True)
def global_hook_that_stays():
    fn, module = of(lambda: nn.Linear(4, 4))
    handles: list[Any] = []

    def outside(x):
        if handles:
            handles.pop().remove()
        else:
            handles.append(nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 3))
        return fn(x), len(handles), len(nn.modules.module._global_forward_hooks)

    return outside, list(module.parameters())


# -- recurrent layers


def sequence():
    return (torch.randn(5, 2, 4, requires_grad=True),)


def recurrent(name: str, make: Any) -> None:
    def factory():
        return of(make)

    factory.__name__, factory.__module__ = name, __name__
    case(sequence, factory=True, tolerance=1e-4)(factory)


recurrent("rnn", lambda: nn.RNN(4, 3, 2))
recurrent("rnn_relu", lambda: nn.RNN(4, 3, nonlinearity="relu", bias=False))
recurrent("lstm", lambda: nn.LSTM(4, 3, 2, bidirectional=True))
recurrent("lstm_projected", lambda: nn.LSTM(4, 3, proj_size=2, batch_first=True))
recurrent("gru", lambda: nn.GRU(4, 3, batch_first=True))
recurrent("lstm_dropout", lambda: nn.LSTM(4, 3, 2, dropout=0.5))


@case(sequence, factory=True, tolerance=1e-4)
def lstm_with_state():
    torch.manual_seed(0)
    module = nn.LSTM(4, 3)

    def fn(x):
        h, c = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
        y, (h, c) = module(x, (h, c))
        z, state = module(x, (h, c))
        return y, z, state

    return fn, module


@case(sequence, factory=True, tolerance=1e-4)
def cells_in_a_loop():
    torch.manual_seed(0)
    cells = nn.ModuleList([nn.RNNCell(4, 3), nn.LSTMCell(3, 3), nn.GRUCell(3, 3)])

    def fn(x):
        a = c = g = torch.zeros(2, 3)
        b = torch.zeros(2, 3)
        out = []
        for t in range(x.shape[0]):
            a = cells[0](x[t], a)
            b, c = cells[1](a, (b, c))
            g = cells[2](b, g)
            out.append(g)
        return torch.stack(out)

    return fn, cells


@case(lambda: (torch.randn(5, 2, 4, requires_grad=True), torch.tensor([5, 3])), factory=True, tolerance=1e-4)
def packed_sequences():
    torch.manual_seed(0)
    module = nn.GRU(4, 3)

    def fn(x, lengths):
        packed = pack_padded_sequence(x, lengths)
        out, h = module(packed)
        padded, sizes = pad_packed_sequence(out)
        return padded, sizes, h

    return fn, module


@case(lambda: (torch.randn(5, 4), torch.randn(3, 4)))
def padded_sequences(a, b):
    packed = pack_sequence([a, b])
    return pad_sequence([a, b], batch_first=True), packed.data, packed.batch_sizes


# -- containers


@case(rows, factory=True)
def parameter_containers():
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.items = nn.ParameterList([torch.randn(4), torch.randn(4)])
            self.named = nn.ParameterDict({"a": torch.randn(4), "b": torch.randn(4)})
            self.blocks = nn.ModuleDict({"one": nn.Linear(4, 4), "two": nn.ReLU()})
            self.rest = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.stack = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

        def forward(self, x):
            for p in self.items:
                x = x * p
            for key in self.named:
                x = x + self.named[key]
            for key, value in self.named.items():
                x = x + value * len(key)
            for block in self.blocks.values():
                x = block(x)
            for i, layer in enumerate(self.rest[1:]):
                x = layer(x) + i
            x = self.stack[:2](x) + self.stack[-1](x)
            return x * self.items[-1], len(self.rest), "a" in self.named, self.named.get("zz")

    net = Net()
    return net.forward, net


@case(rows, factory=True)
def module_walks():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))

    def fn(x):
        total = sum(p.sum() for p in net.parameters() if p.requires_grad)
        names = [n for n, _ in net.named_modules()], [n for n, _ in net.named_parameters()]
        kinds = [type(m).__name__ for m in net.modules()]
        return net(x) * total, names, kinds, [n for n, _ in net.named_buffers()], len(list(net.children()))

    return fn, net


@case(rows, factory=True)
def containers_changed_inside():
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(4, 4)])

    def fn(x):
        layers.append(nn.Identity())
        for layer in layers:
            x = layer(x)
        return x, len(layers)

    return fn, layers


@case(rows, factory=True, rounds=3)
def child_replaced_between_calls():
    fn, net = of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    calls = [0]

    def outside(x):
        calls[0] += 1
        if calls[0] == 3:
            net[1] = nn.Tanh()
        if calls[0] == 5:
            net.append(nn.Sigmoid())
        return fn(x)

    return outside, [net, calls]


@case(rows, factory=True)
def child_replaced_inside():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def fn(x):
        net[1] = nn.Tanh() if isinstance(net[1], nn.ReLU) else nn.ReLU()
        return net(x)

    return fn, net


# -- parametrizations


class Doubled(nn.Module):
    def forward(self, w):
        return w * 2


@case(rows, factory=True)
def parametrized():
    fn, module = of(lambda: nn.Linear(4, 4))
    parametrize.register_parametrization(module, "weight", Doubled())
    return fn, module


@case(rows, factory=True)
def parametrized_cached():
    torch.manual_seed(0)
    module = nn.Linear(4, 4)
    parametrize.register_parametrization(module, "weight", Doubled())

    def fn(x):
        with parametrize.cached():
            return module(x) + module(x)

    return fn, list(module.parameters())


@case(rows, factory=True)
def weight_norm_new():
    fn, module = of(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    return fn, list(module.parameters())


@case(rows, factory=True)
def weight_norm_old():
    fn, module = of(lambda: nn.utils.weight_norm(nn.Linear(4, 4)))
    return fn, list(module.parameters())


@case(rows, factory=True)
def spectral_norm_new():
    fn, module = of(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)))
    return fn, [list(module.parameters()), list(module.buffers())]


@case(rows, factory=True)
def spectral_norm_old():
    fn, module = of(lambda: nn.utils.spectral_norm(nn.Linear(4, 4)))
    return fn, [list(module.parameters()), list(module.buffers())]


@case(rows, factory=True)
def orthogonal():
    fn, module = of(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)))
    return fn, [list(module.parameters())]


@case(rows, factory=True)
def lazy_modules():
    torch.manual_seed(0)
    net = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyBatchNorm1d())

    def fn(x):
        return net(x)

    return fn, lambda: net


@case(rows)
def initializers(x):
    torch.manual_seed(1)
    w = torch.empty(4, 4)
    nn.init.xavier_uniform_(w)
    v = nn.init.kaiming_normal_(torch.empty(4, 4), nonlinearity="relu")
    u = nn.init.zeros_(torch.empty(4))
    t = nn.init.trunc_normal_(torch.empty(4), std=0.02)
    return x @ w + u, v, t, nn.init.constant_(torch.empty(2), 3), nn.init.calculate_gain("tanh")


@case(rows)
def orthogonal_init(x):
    torch.manual_seed(1)
    return x @ nn.init.orthogonal_(torch.empty(4, 4)), nn.init.eye_(torch.empty(3, 3))


@case(rows)
def module_made_inside(x):
    torch.manual_seed(1)
    layer = nn.Linear(4, 2)
    return layer(x), layer.weight.requires_grad


@case(rows, factory=True)
def parameters_reset_inside():
    layer = nn.Linear(4, 2)

    def fn(x):
        torch.manual_seed(1)
        layer.reset_parameters()
        return layer(x)

    return fn, layer


# -- modes, conversions, state dicts


@case(rows, factory=True)
def mode_switched_inside():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))

    def fn(x):
        net.eval()
        a = net(x)
        net.train()
        b = net(x)
        net[1].eval()
        return a, b, net.training, net[1].training

    return fn, net


@case(rows, factory=True)
def frozen_inside():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def fn(x):
        net[0].requires_grad_(False)
        return net(x)

    return fn, net


@case(rows, factory=True, rounds=3)
def frozen_between_calls():
    fn, net = of(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    calls = [0]

    def outside(x):
        calls[0] += 1
        net[0].requires_grad_(calls[0] % 2 == 0)
        return fn(x)

    return outside, [net, calls]


@case(rows, factory=True)
def converted_inside():
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    def fn(x):
        net.to(torch.float64)
        y = net(x.double())
        net.float()
        return y, net(x)

    return fn, net


@case(rows, factory=True)
def applied():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def set_ones(m):
        if isinstance(m, nn.Linear):
            nn.init.ones_(m.weight)

    def fn(x):
        net.apply(set_ones)
        return net(x)

    return fn, net


@case(rows, factory=True)
def state_dict_read():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def fn(x):
        y = net(x)
        return y, {k: v.clone() for k, v in net.state_dict().items()}

    return fn, net


@case(rows, factory=True)
def state_dict_loaded():
    torch.manual_seed(0)
    net, other = nn.Linear(4, 4), nn.Linear(4, 4)

    def fn(x):
        result = net.load_state_dict(other.state_dict())
        return net(x), len(result.missing_keys)

    return fn, [net, other]


@case(rows, factory=True)
def deep_copied_inside():
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    def fn(x):
        twin = copy.deepcopy(net)
        with torch.no_grad():
            twin.weight.mul_(2)
        return net(x), twin(x)

    return fn, net


@case(rows, rows, factory=True)
def batch_norm_statistics():
    fn, module = of(lambda: nn.BatchNorm1d(4))
    return fn, module


@case(rows, factory=True)
def batch_norm_cumulative():
    fn, module = of(lambda: nn.BatchNorm1d(4, momentum=None, affine=False))
    return fn, module


@case(rows, factory=True)
def moving_average():
    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("steps", torch.tensor(0))
            self.register_buffer("hidden", None, persistent=False)
            self.count = 0

        def forward(self, x):
            self.steps += 1
            self.count += 1
            self.mean.lerp_(x.detach().mean(0), 0.1)
            self.hidden = x.detach() if self.hidden is None else self.hidden * 0.5 + x.detach()
            return x - self.mean / self.steps

    net = Ema()

    def fn(x):
        return net(x)

    return fn, net


@case(rows, factory=True)
def buffer_replaced():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(3, 4))

        def forward(self, x):
            y = x + self.last
            self.last = x.detach() * 2
            return y

    net = Net()

    def fn(x):
        return net(x)

    return fn, net


@case(rows, factory=True)
def parameter_replaced():
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    def fn(x):
        net.weight = nn.Parameter(net.weight.detach() * 2)
        return net(x)

    return fn, net


@case(rows, factory=True)
def parameter_assigned_wrong():
    net = nn.Linear(4, 4)

    def fn(x):
        net.weight = torch.ones(4, 4)
        return net(x)

    return fn, net


@case(rows, factory=True)
def parameter_registered_inside():
    class Net(nn.Module):
        def forward(self, x):
            if not hasattr(self, "w"):
                self.w = nn.Parameter(torch.ones(x.shape[-1]))
                self.register_buffer("b", torch.zeros(1))
            return x * self.w + self.b

    net = Net()

    def fn(x):
        return net(x)

    return fn, net


@case(rows, factory=True)
def tied_weights():
    torch.manual_seed(0)
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight
    net = nn.Sequential(a, b)

    def fn(x):
        y = net(x)
        with torch.no_grad():
            b.weight.mul_(0.9)
        return y, net(x), a.weight is b.weight

    return fn, net


@case(rows, factory=True)
def weights_clamped():
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    def fn(x):
        net.weight.data.clamp_(-0.1, 0.1)
        with torch.no_grad():
            net.bias.fill_(1)
            net.bias.copy_(net.bias * 2)
        return net(x)

    return fn, net


@case(rows, factory=True)
def stochastic_depth():
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    def fn(x):
        keep = torch.rand(x.shape[0], 1) < 0.5
        return x + net(x) * keep / 0.5

    return fn, net


@case(rows, factory=True)
def multihead_attention():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, dropout=0.1)

    def fn(x):
        x = x[:, None]
        return layer(x, x, x, average_attn_weights=False)

    return fn, layer


@case(rows, factory=True)
def zeroed_by_module():
    torch.manual_seed(0)
    net = nn.Linear(4, 4)

    def fn(x):
        net.zero_grad()
        return net(x), net.weight.grad

    return fn, net


_ENCODER = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).eval()
_PADDED = [lambda last=last: (torch.ones(2, 3, 4).cumsum(2), torch.tensor([[False, False, True], [False, last, True]]))
           for last in (True, False)]
_HOLE = lambda: (torch.ones(2, 3, 4).cumsum(2), torch.tensor([[False, True, False]] * 2))  # noqa: E731


@case(*_PADDED, _HOLE)
def encoder_that_asks_how_the_mask_lies(x, mask):
    with torch.no_grad():
        return _ENCODER(x, src_key_padding_mask=mask)


@case(*_PADDED, _HOLE)
def a_question_that_looks_at_data(x, mask):
    return x + 1 if torch._nested_tensor_from_mask_left_aligned(x, mask.logical_not()) else x - 1


test_cases = make_test(__name__)
