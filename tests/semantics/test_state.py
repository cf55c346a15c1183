"""State outside the function: globals, modules' attributes and buffers, torch's modes. PYTEST_DONT_REWRITE."""

from __future__ import annotations

from typing import Any

import torch

from tests.semantics.harness import case, make_test

COUNT: Any = 0
TABLE: Any = None
SCALE = torch.tensor(2.0)
CONFIG = {"factor": 3, "nested": {"on": True}}
_HIDDEN = [1, 2]


def vec(*sizes: int) -> torch.Tensor:
    return torch.randn(*(sizes or (4,)))


def one():
    return (vec(),)


@case(one, fullgraph=True)
def global_read(x):
    return x * SCALE + CONFIG["factor"], CONFIG["nested"]["on"], _HIDDEN[0]


@case(one, globals={"COUNT": lambda: 0})
def global_written(x):
    global COUNT
    COUNT += 1
    COUNT = COUNT + 1
    return x * COUNT


@case(one, globals={"COUNT": lambda: torch.zeros(4)}, fullgraph=True)
def global_tensor_replaced(x):
    global COUNT
    COUNT = COUNT + x
    return COUNT * 2


@case(one, globals={"TABLE": dict})
def global_dict_written(x):
    TABLE[len(TABLE)] = x
    TABLE.setdefault("all", []).append(len(TABLE))
    return len(TABLE)


@case(one, globals={"COUNT": lambda: 5}, rounds=1)
def global_deleted(x):
    global COUNT
    y = x * COUNT
    del COUNT
    return y


def bump_global():
    global COUNT
    COUNT += 10


@case(one, globals={"COUNT": lambda: 0})
def global_written_by_callee(x):
    bump_global()
    y = x + COUNT
    bump_global()
    return y, COUNT


@case(one, globals={"TABLE": lambda: [torch.zeros(4)]})
def global_list_of_tensors(x):
    TABLE[0].add_(x)
    TABLE.append(x * 2)
    return TABLE[0] + 1, len(TABLE)


class Box:
    def __init__(self):
        self.n = 0
        self.items = []
        self.tensor = torch.zeros(4)
        self.table = {"a": 1}


@case(one, factory=True)
def object_holds_list_and_dict():
    box = Box()

    def fn(x):
        box.items.append(x + 1)
        box.table["b"] = box.table.get("b", 0) + 1
        box.n = len(box.items)
        return x * box.n

    return fn, box


@case(one, factory=True)
def object_holds_tensor_in_place():
    box = Box()

    def fn(x):
        box.tensor += x
        box.tensor.mul_(2)
        view = box.tensor[:2]
        view.zero_()
        return box.tensor + 0

    return fn, box


@case(one, factory=True)
def read_after_write():
    box = Box()

    def fn(x):
        box.tensor = x
        before = box.tensor
        box.tensor = x + 1
        box.tensor.add_(1)
        return before is x, box.tensor, before

    return fn, box


@case(one, factory=True)
def same_object_by_two_paths():
    box = Box()
    holder = {"box": box, "items": box.items}

    def fn(x):
        holder["box"].n += 1
        box.items.append(box.n)
        return x * len(holder["items"])

    return fn, (box, holder)


@case(one, factory=True)
def changed_from_outside_between_calls():
    box = Box()
    steps = iter(range(100))

    def outer(x):
        box.table["k"] = next(steps) // 2
        return inner(x)

    def inner(x):
        return x * box.table["k"] + len(box.table)

    return outer, box


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.history = []
        self.calls = 0

    def forward(self, x):
        self.steps += 1
        self.calls += 1
        self.mean = self.mean * 0.9 + x.detach() * 0.1
        self.history.append(self.calls)
        return self.linear(x) - self.mean


@case(one, factory=True)
def module_with_buffers():
    layer = Layer()
    return layer, layer


@case(one, factory=True)
def module_called_in_function():
    layer = Layer()

    def fn(x):
        return layer(x) + layer(x * 2)

    return fn, layer


@case(lambda: (vec(3, 4),), factory=True)
def module_training_flag():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.0))

    def fn(x):
        y = layer(x)
        layer.train(not layer.training)
        return y

    torch.manual_seed(3)
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    return fn, layer


@case(one, factory=True, fullgraph=True)
def module_hooks():
    layer = torch.nn.Linear(4, 4)
    torch.nn.init.constant_(layer.weight, 0.5)
    torch.nn.init.zeros_(layer.bias)
    log = []
    layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    layer.register_forward_hook(lambda m, args, out: log.append(len(log)) or out * 2)

    def fn(x):
        return layer(x)

    return fn, log


@case(one, factory=True, fullgraph=True)
def module_containers():
    torch.manual_seed(5)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
    named = torch.nn.ModuleDict({"act": torch.nn.ReLU(), "norm": torch.nn.LayerNorm(4)})
    weights = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(4))])

    def fn(x):
        for i, layer in enumerate(layers):
            x = named["act"](layer(x)) * (i + 1)
        return named["norm"](x) * weights[0] + len(layers) + sum(p.numel() for p in named.parameters())

    return fn


@case(one, factory=True)
def parameter_updated_in_place():
    w = torch.nn.Parameter(torch.ones(4))

    def fn(x):
        with torch.no_grad():
            w.sub_(x * 0.1)
        return (w * x).sum()

    return fn, w


@case(lambda: (torch.randn(4, requires_grad=True),), fullgraph=True)
def no_grad_block(x):
    with torch.no_grad():
        y = x * 2
        inside = torch.is_grad_enabled()
    z = x * 3
    return y, z, y.requires_grad, z.requires_grad, inside


@case(lambda: (torch.randn(4, requires_grad=True),), fullgraph=True)
def grad_modes_nested(x):
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 2
        z = x * 2
    with torch.set_grad_enabled(False):
        w = x + 1
    return y, z, w


@case(lambda: (torch.randn(4, requires_grad=True),))
def grad_mode_left_changed(x):
    y = x * 2
    torch.set_grad_enabled(False)
    z = x * 3
    return y, z, torch.is_grad_enabled()


@torch.no_grad()
def decorated_no_grad(x):
    return x * 2, torch.is_grad_enabled()


@case(lambda: (torch.randn(4, requires_grad=True),), fullgraph=True)
def no_grad_decorator(x):
    y, flag = decorated_no_grad(x)
    return y + x, flag


@case(lambda: (torch.randn(4, requires_grad=True),))
def exception_inside_no_grad(x):
    with torch.no_grad():
        raise ValueError("inside")


@case(one)
def inference_mode(x):
    with torch.inference_mode():
        y = x * 2
    return y + 1, y.is_inference()


@case(one)
def default_dtype_changed(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3)
    torch.set_default_dtype(before)
    return y, torch.ones(2), x + 1


@case(one)
def default_dtype_left_changed(x):
    torch.set_default_dtype(torch.float64)
    return torch.zeros(2), x * 2


@case(one)
def autocast_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.mm(x.view(2, 2), x.view(2, 2))
        z = x + 1
    return y, z, torch.mm(x.view(2, 2), x.view(2, 2))


@case(lambda: (torch.randn(4, requires_grad=True),))
def detach_and_requires_grad(x):
    y = x.detach()
    z = (x * 2).requires_grad_(True)
    w = torch.zeros(4, requires_grad=True)
    return y, z, w, x.requires_grad, y.requires_grad


@case(lambda: (torch.randn(4, requires_grad=True),))
def backward_inside(x):
    y = (x * x).sum()
    y.backward()
    return x.grad * 2


@case(lambda: (torch.randn(4, requires_grad=True),))
def autograd_grad_inside(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x)
    return g


class Doubler(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + x * 0


@case(lambda: (torch.randn(4, requires_grad=True),))
def custom_autograd_function(x):
    return Doubler.apply(x) + 1


@case(one)
def seeded_random(x):
    torch.manual_seed(3)
    a = torch.rand(4)
    b = torch.randn_like(x)
    return a + b + x


@case(one)
def unseeded_random(x):
    return x + torch.rand(4), torch.nn.functional.dropout(x, 0.5)


@case(one)
def attribute_on_a_tensor(x):
    x.tag = "mine"
    y = x + 1
    y.note = x.tag
    return y, x.tag


@case(lambda: (torch.randn(4),), lambda: (torch.randn(4, requires_grad=True),), lambda: (torch.randn(4),))
def requires_grad_changes(x):
    return x * 2


@case(lambda: (torch.nn.Parameter(torch.ones(4)), vec()), fullgraph=True)
def parameter_argument(p, x):
    return p * x, isinstance(p, torch.nn.Parameter), p.requires_grad


class Tagged(torch.Tensor):
    pass


@case(lambda: (torch.randn(4).as_subclass(Tagged),))
def tensor_subclass(x):
    y = x + 1
    return y, type(y).__name__


@case(lambda: (torch.randn(3, 3).to_sparse(),))
def sparse_tensor(x):
    return (x * 2).to_dense()


@case(one)
def environment_print(x):
    print("start", x.shape[0])
    y = x + 1
    print("end", sep="-", end="!\n")
    return y


test_cases = make_test(__name__)
