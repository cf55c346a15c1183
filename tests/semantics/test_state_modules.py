"""What a function changes in modules, and what others change in them between calls. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import itertools

import torch

from tests.semantics.harness import case, make_test


def vec(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + (sizes or (4,))[0])


def one():
    return (vec(),)


# -- nn.Module ----------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        torch.nn.init.constant_(self.linear.weight, 0.5)
        torch.nn.init.zeros_(self.linear.bias)
        self.register_buffer("mean", torch.zeros(4))
        self.n = 0

    def forward(self, x):
        return self.linear(x) + self.mean


def module_case(*, breaks=None, fullgraph=None, makers=(one,)):
    def register(body):
        def factory():
            layer = Layer()
            return (lambda x: body(layer, x)), layer

        factory.__name__ = body.__name__
        factory.__module__ = body.__module__
        factory.__code__ = factory.__code__.replace(co_filename=body.__code__.co_filename)
        case(*makers, factory=True, fullgraph=fullgraph, breaks=breaks)(factory)
        return body

    return register


@module_case()
def module_buffer_replaced(m, x):
    m.mean = m.mean + x
    m.mean.mul_(0.5)
    m.n += 1
    m.note = {"n": m.n}
    return m(x)


@module_case()
def module_buffer_in_place(m, x):
    m.mean += x
    m.get_buffer("mean").add_(1)
    m._buffers["mean"].add_(1)
    return m.mean, dict(m.named_buffers())["mean"] is m.mean


@module_case()
def module_registers_inside(m, x):
    m.register_buffer("late", x * 2)
    m.register_parameter("scale", torch.nn.Parameter(torch.ones(4)))
    m.child = torch.nn.Identity()
    return m.late + m.scale, [n for n, _ in m.named_modules()], [n for n, _ in m.named_parameters()]


@module_case()
def module_attributes_deleted(m, x):
    m.extra = torch.nn.Parameter(torch.ones(4))
    y = x * m.extra
    del m.extra
    m.tmp = torch.nn.ReLU()
    z = m.tmp(x)
    del m.tmp
    return y, z, hasattr(m, "extra")


@module_case()
def module_parameter_replaced(m, x):
    y = m(x)
    m.linear.weight = torch.nn.Parameter(m.linear.weight.detach() * 2)
    return y, m(x)


@module_case()
def module_wrong_assignment(m, x):
    try:
        m.linear = 5
    except TypeError as error:
        return str(error), x
    return x


@module_case()
def module_buffer_becomes_none(m, x):
    if m.mean is None:
        m.mean = x.clone()
    else:
        m.mean = None
    return x if m.mean is None else x + m.mean


@module_case()
def module_training_flips(m, x):
    m.train(not m.training)
    y = torch.nn.functional.dropout(x, 0.0, m.training)
    m.eval() if m.training else m.train()
    return y, m.training, m.linear.training


@module_case()
def module_grad_flags(m, x):
    m.requires_grad_(False)
    y = m(x)
    m.requires_grad_(True)
    m.linear.bias.requires_grad_(not m.linear.bias.requires_grad)
    return y, m.linear.weight.requires_grad, m.linear.bias.requires_grad


@module_case()
def module_hook_added_inside(m, x):
    log = []
    handle = m.linear.register_forward_hook(lambda mod, args, out: log.append(1) or out + 1)
    y = m(x)
    handle.remove()
    return y, m(x), log


@case(one, factory=True)
def module_hook_added_between_calls():
    layer = Layer()
    calls = itertools.count()
    handles = []

    def fn(x):
        return layer(x)

    def outer(x):
        n = next(calls)
        if n == 1:
            handles.append(layer.linear.register_forward_hook(lambda m, a, out: out * 2))
            layer.linear.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
        if n == 2:
            handles.pop().remove()
        return fn(x)

    return outer


@case(one, factory=True)
def module_children_changed_between_calls():
    net = torch.nn.Sequential(torch.nn.Identity())
    net.k = 1.0

    def outer(x):
        y = net(x) * net.k
        net.append(torch.nn.Hardtanh(0, len(net)))
        net.k = net.k + 0.5
        return y

    return outer


@case(one, factory=True)
def forward_patched_on_the_instance():
    layer = Layer()
    calls = itertools.count()

    def fn(x):
        return layer(x)

    def outer(x):
        if next(calls) == 1:
            layer.linear.forward = lambda v: v * 3
        return fn(x)

    return outer


@case(one, factory=True)
def state_dict_round_trip():
    layer = Layer()

    def fn(x):
        saved = {k: v.clone() for k, v in layer.state_dict().items()}
        with torch.no_grad():
            layer.mean.add_(x)
        y = layer(x)
        layer.load_state_dict(saved)
        return y, layer(x)

    return fn, layer


test_cases = make_test(__name__)
