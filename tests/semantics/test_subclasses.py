"""Tensor subclasses, function modes and dispatch modes. PYTEST_DONT_REWRITE: cases run as they are written."""

from __future__ import annotations

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import jitpy
from jitpy.engine import all_engines
from tests.semantics.harness import case, make_test

LOG: list[str] = []


class Plain(torch.Tensor):
    """No hooks of its own."""


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Methods(torch.Tensor):
    unit = 2.0

    def scaled(self):
        return self * self.unit

    @property
    def half(self):
        return self / 2

    @classmethod
    def make(cls, data):
        return data.as_subclass(cls)


class Meta:
    """Duck-typed: no tensor at all."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.value if isinstance(a, Meta) else a for a in args]
        return Meta(func(*args, **(kwargs or {})))


class Refuses(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Stronger(Logged):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append("stronger")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Doubler(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


class Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        LOG.append(str(func))
        args = [a.inner if isinstance(a, Wrapper) else a for a in args]
        return func(*args, **(kwargs or {}))


class MyParameter(nn.Parameter):
    pass


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


@case(lambda: (vec().as_subclass(Plain),), lambda: (vec(6).as_subclass(Plain),))
def plain_subclass(x):
    y = x * 2 + 1
    return y, type(y).__name__, isinstance(y, Plain)


@case(lambda: (vec().as_subclass(Plain), vec()))
def plain_subclass_with_tensor(x, y):
    return y + x, torch.add(y, x), x.sum()


@case(lambda: (vec().as_subclass(Logged),), globals={"LOG": list})
def logged(x):
    y = x + 1
    z = torch.sin(y).sum()
    return z, x.shape, x[0]


@case(lambda: (vec().as_subclass(Logged),), globals={"LOG": list})
def logged_attributes(x):
    return x.shape, x.T, x.grad, x.requires_grad, x.dtype, x.size(0), len(x)


@case(lambda: (vec().as_subclass(Logged),), globals={"LOG": list})
def logged_in_place(x):
    x.add_(1)
    x[0] = 5
    x *= 2
    return x


@case(one, globals={"LOG": list})
def logged_made_inside(x):
    y = x.as_subclass(Logged)
    return y * 2, type(y * 2).__name__


@case(lambda: (vec().as_subclass(Methods),))
def methods_and_properties(x):
    return x.scaled(), x.half, x.unit


@case(one)
def class_method(x):
    y = Methods.make(x)
    return y.scaled(), type(y).__name__


@case(lambda: (Meta(vec()),))
def duck_typed(x):
    y = torch.sin(x)
    return type(y).__name__, torch.add(x, 1).value, torch.add(torch.ones(4), x).value


@case(lambda: (vec().as_subclass(Refuses),))
def refuses(x):
    try:
        return x + 1
    except TypeError as error:
        return type(error).__name__


@case(lambda: (vec().as_subclass(Logged), vec().as_subclass(Stronger)), globals={"LOG": list})
def subclass_goes_first(x, y):
    return x + y, type(x + y).__name__


@case(lambda: (vec().as_subclass(Logged),), globals={"LOG": list})
def disabled_hooks(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x + 1
    return y, type(y).__name__


@case(lambda: (vec().as_subclass(Logged),), globals={"LOG": list})
def has_hook(x):
    return torch.overrides.has_torch_function((x,)), torch.overrides.is_tensor_like(x), torch.is_tensor(x)


@case(lambda: (vec().as_subclass(Logged),), globals={"LOG": list})
def functional_layer(x):
    return torch.nn.functional.linear(x, torch.ones(3, 4)), torch.nn.functional.gelu(x)


@case(lambda: (vec().as_subclass(Logged).requires_grad_(),), globals={"LOG": list})
def logged_gradient(x):
    return (x * x).sum()


@case(lambda: (vec().as_subclass(Plain),), lambda: (vec(),), lambda: (vec().as_subclass(Methods),))
def changing_classes(x):
    return x + 1, type(x).__name__


@case(lambda: (vec().as_subclass(Plain),))
def subclass_attribute(x):
    x.note = "hello"
    y = x + 1
    return x.note, hasattr(y, "note"), y


@case(one)
def mode_inside(x):
    with Doubler():
        y = torch.sin(x)
    return y, torch.sin(x)


@case(one, factory=True)
def mode_around():
    def fn(x):
        return torch.sin(x) + x

    def called(x):
        with Doubler():
            return fn(x)

    return called


@case(one)
def dispatch_mode_inside(x):
    mode = Counter()
    with mode:
        y = torch.sin(x) + 1
    return y, mode.ops


@case(one)
def base_function_mode(x):
    class Quiet(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Quiet():
        return x * 2


@case(lambda: (Wrapper(vec()),), globals={"LOG": list})
def dispatch_subclass(x):
    return x + 1


@case(one, globals={"LOG": list})
def dispatch_subclass_inside(x):
    w = Wrapper(x * 2)
    return w + 1, w.shape


@case(lambda: (MyParameter(vec()),))
def parameter_subclass(p):
    return p * 2, type(p).__name__, isinstance(p, nn.Parameter)


@case(one, factory=True)
def module_with_parameter_subclass():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = MyParameter(torch.randn(4))
            self.scale = nn.Buffer(torch.ones(4))
            self.loose = nn.Buffer(torch.ones(4), persistent=False)

        def forward(self, x):
            self.scale += 1
            return x * self.weight + self.scale + self.loose

    model = Model()
    return model.forward, model


@case(lambda: (vec(2, 4),), factory=True)
def lazy_module():
    model = nn.LazyLinear(3)

    def fn(x):
        torch.manual_seed(0)
        return model(x)

    return fn, model


@case(lambda: (nn.parameter.UninitializedParameter(),))
def uninitialized_parameter(p):
    return nn.parameter.is_lazy(p), isinstance(p, nn.Parameter)


@case(one)
def make_parameter(x):
    p = nn.Parameter(x)
    return p * 2, isinstance(p, nn.Parameter), p.requires_grad


@case(one)
def make_buffer(x):
    b = nn.Buffer(x)
    return b * 2, isinstance(b, nn.Buffer), type(b).__name__


@case(lambda: (vec().as_subclass(Plain),))
def subclass_stack(x):
    return torch.stack([x, torch.ones(4)]), torch.cat((x, x))


@case(lambda: (vec().as_subclass(Plain),))
def as_plain(x):
    y = x.as_subclass(torch.Tensor)
    return y + 1, type(y).__name__


@case(lambda: (vec(),), factory=True)
def class_hook_changes():
    class Switch(torch.Tensor):
        factor = 1

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs or {})
            return result * cls.factor if func is torch.Tensor.add else result

    def fn(x):
        Switch.factor += 1
        return torch.Tensor.add(x.as_subclass(Switch), 1)

    return fn


@case(lambda: (vec().as_subclass(Plain),))
def new_of_subclass(x):
    return x.new_zeros(3), torch.zeros_like(x), x.clone(), x.detach()


@case(lambda: (vec().as_subclass(Plain),))
def subclass_aliases(x):
    v = x[1:]
    v.add_(1)
    return v, x


class TracedGraphBuilder(TorchFunctionMode):
    """Writes down what it is asked."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", None))
        return func(*args, **(kwargs or {}))


@case(factory=True)
def modes_see_the_programs_calls_only():
    seen = []

    def scaled(x):
        return (x.t() + 1).sin() * x.shape[0]

    def fn(x):
        with TracedGraphBuilder(seen):
            y = scaled(x)
            with TracedGraphBuilder(seen):
                z = scaled(y[:2])
        return y, z, list(seen)

    return (lambda: fn(torch.ones(3, 3))), seen


test_all = make_test(__name__)


def test_the_inside_of_a_subclass_is_not_compiled() -> None:
    """Frames below that deal with the subclass itself would be broken into pieces, each slower than plain Python."""
    earlier = all_engines()
    jitted = jitpy.jit(lambda x: x + 1)
    for _ in range(3):
        assert type(jitted(torch.ones(2).as_subclass(Logged))) is Logged
    made = [engine for engine in all_engines() if engine not in earlier]
    names = [variant.name for engine in made for variant in engine.variants]
    assert names
    assert not any(name in ("Logged.__torch_function__", "Tensor.__torch_function__") for name in names), names
