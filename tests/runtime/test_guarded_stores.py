"""Every kind of store into what a compiled call has read: seen at the next call, and the old variant serves again once
the store is undone."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitpy
from jitpy.runtime.dispatch import explain_miss
from jitpy.runtime.native_build import load_native

load_native("runtime")  # until it is built, jitted functions are plain ones in front of dispatchers

X = torch.ones(2, 3)
FACTOR = 2.0
TABLE = {"bias": 1.0}


def helper(x: torch.Tensor, plus: float = 1.0, *, times: float = 1.0) -> torch.Tensor:
    return (x + plus) * times


def other_helper(x: torch.Tensor, plus: float = 5.0, *, times: float = 2.0) -> torch.Tensor:
    return (x - plus) * times


class Block(nn.Module):
    scale = 1.5

    def __init__(self, cell: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
        self.register_buffer("mean", torch.ones(3))
        self.gain = 3.0
        self.sizes = [1.0, 2.0]
        self.closure = cell
        nn.init.constant_(self.linear.weight, 0.5)

    def shift(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x) * self.gain * self.scale + self.sizes[0]
        x = self.shift(self.inner(x)) * FACTOR + TABLE["bias"]
        return self.closure(helper(x))


class OtherBlock(Block):
    def shift(self, x: torch.Tensor) -> torch.Tensor:
        return x * 7


def make() -> tuple[Block, Any]:
    torch.manual_seed(0)
    value = 4.0

    def cell(x: torch.Tensor) -> torch.Tensor:
        return x * value

    return Block(cell).eval(), cell.__closure__[0]  # type: ignore[index]


def attribute(target: Callable[[Block, Any], Any], name: str, value: Callable[[], Any]) -> Callable[..., Any]:
    """Store an attribute; undo by storing what was there, or by deleting it."""

    def store(model: Block, cell: Any) -> Callable[[], None]:
        owner, missing = target(model, cell), object()
        # classes are asked for what lies in themselves: functions as they are, not bound
        before = vars(owner).get(name, missing) if isinstance(owner, type) else getattr(owner, name, missing)
        setattr(owner, name, value())
        return lambda: delattr(owner, name) if before is missing else setattr(owner, name, before)

    return store


def dict_store(model: Block, cell: Any) -> Callable[[], None]:
    model.__dict__["gain"] = 9.0
    return lambda: model.__dict__.__setitem__("gain", 3.0)


def dict_update(model: Block, cell: Any) -> Callable[[], None]:
    model.__dict__.update(gain=8.0)
    return lambda: model.__dict__.update(gain=3.0)


def dict_replaced(model: Block, cell: Any) -> Callable[[], None]:
    before = model.__dict__
    model.__dict__ = {**before, "gain": 6.0}
    return lambda: setattr(model, "__dict__", before)


def deletion(model: Block, cell: Any) -> Callable[[], None]:
    Block.gain = 30.0  # type: ignore[assignment]
    del model.gain

    def undo() -> None:
        del Block.gain
        model.gain = 3.0

    return undo


def method_on_instance(model: Block, cell: Any) -> Callable[[], None]:
    model.shift = types.MethodType(lambda self, x: x - self.mean, model)  # type: ignore[method-assign]
    return lambda: delattr(model, "shift")


def hiding(model: Block, cell: Any) -> Callable[[], None]:
    model.scale = 4.5
    return lambda: delattr(model, "scale")


def item_store(model: Block, cell: Any) -> Callable[[], None]:
    model.sizes[0] = 10.0
    return lambda: model.sizes.__setitem__(0, 1.0)


def global_store(model: Block, cell: Any) -> Callable[[], None]:
    global FACTOR
    FACTOR = 20.0

    def undo() -> None:
        global FACTOR
        FACTOR = 2.0

    return undo


def globals_item(model: Block, cell: Any) -> Callable[[], None]:
    before = helper
    globals()["helper"] = other_helper
    return lambda: globals().__setitem__("helper", before)


def global_dict_item(model: Block, cell: Any) -> Callable[[], None]:
    TABLE["bias"] = 11.0
    return lambda: TABLE.__setitem__("bias", 1.0)


def library_global(model: Block, cell: Any) -> Callable[[], None]:
    before = nn.functional.linear
    nn.functional.linear = lambda x, w, b=None: before(x, w, b) + 1
    return lambda: setattr(nn.functional, "linear", before)


def kwdefault_item(model: Block, cell: Any) -> Callable[[], None]:
    helper.__kwdefaults__["times"] = 12.0
    return lambda: helper.__kwdefaults__.__setitem__("times", 1.0)


def hook(model: Block, cell: Any) -> Callable[[], None]:
    return model.linear.register_forward_hook(lambda module, args, out: out + 1).remove


def pre_hook(model: Block, cell: Any) -> Callable[[], None]:
    return model.inner.register_forward_pre_hook(lambda module, args: (args[0] * 2,)).remove


def training(model: Block, cell: Any) -> Callable[[], None]:
    model.inner[1].p = 0.0
    model.train()

    def undo() -> None:
        model.eval()
        model.inner[1].p = 0.5

    return undo


def parameter_data(model: Block, cell: Any) -> Callable[[], None]:
    before = model.linear.weight.data
    model.double()
    return lambda: model.float() and setattr(model.linear.weight, "data", before)


def requires_grad(model: Block, cell: Any) -> Callable[[], None]:
    model.requires_grad_(False)
    return lambda: model.requires_grad_(True) and None  # type: ignore[func-returns-value]


def parameters_item(model: Block, cell: Any) -> Callable[[], None]:
    before = model.linear._parameters["bias"]
    model.linear._parameters["bias"] = None
    return lambda: model.linear._parameters.__setitem__("bias", before)


def deleted_parameter(model: Block, cell: Any) -> Callable[[], None]:
    before = model.linear.bias
    del model.linear.bias
    model.linear.bias = None  # type: ignore[assignment]

    def undo() -> None:
        del model.linear.bias
        model.linear.register_parameter("bias", before)

    return undo


STORES: dict[str, Callable[..., Callable[[], None]]] = {
    "module attribute": attribute(lambda m, c: m, "gain", lambda: 5.0),
    "submodule": attribute(lambda m, c: m, "linear", lambda: nn.Linear(3, 3, bias=False)),
    "item of a Sequential": attribute(lambda m, c: m.inner, "0", lambda: nn.Identity()),
    "parameter": attribute(lambda m, c: m.linear, "weight", lambda: nn.Parameter(torch.eye(3).t())),
    "parameter of another size": attribute(lambda m, c: m.linear, "bias", lambda: nn.Parameter(torch.ones(1))),
    "parameter in its dict": parameters_item,
    "parameter deleted": deleted_parameter,
    "parameters' data": parameter_data,
    "requires_grad_": requires_grad,
    "buffer": attribute(lambda m, c: m, "mean", lambda: torch.ones(1)),
    "class attribute": attribute(lambda m, c: Block, "scale", lambda: 4.5),
    "attribute that hides a class's": hiding,
    "method of the class": attribute(lambda m, c: Block, "shift", lambda: lambda self, x: x * 3),
    "method of the instance": method_on_instance,
    "method of a library class": attribute(lambda m, c: nn.Linear, "forward", lambda: lambda s, x: x + s.weight[0]),
    "__class__": attribute(lambda m, c: m, "__class__", lambda: OtherBlock),
    "__dict__ item": dict_store,
    "__dict__ update": dict_update,
    "__dict__": dict_replaced,
    "del": deletion,
    "list item": item_store,
    "global": global_store,
    "globals() item": globals_item,
    "global dict's item": global_dict_item,
    "library global": library_global,
    "defaults": attribute(lambda m, c: helper, "__defaults__", lambda: (9.0,)),
    "kwdefaults": attribute(lambda m, c: helper, "__kwdefaults__", lambda: {"times": 9.0}),
    "kwdefaults' item": kwdefault_item,
    "code": attribute(lambda m, c: helper, "__code__", lambda: other_helper.__code__),
    "closure cell": attribute(lambda m, c: c, "cell_contents", lambda: 44.0),
    "hook": hook,
    "pre-hook": pre_hook,
    "training": training,
}


@pytest.mark.parametrize("kind", STORES)
def test_a_store_is_seen_and_undone(kind: str) -> None:
    model, cell = make()
    fn = jitpy.jit(lambda model, x: model(x), backend="eager", dynamic=False)

    def agree(count: int) -> None:
        x = X.to(next(model.parameters()).dtype)
        for _ in range(count):
            torch.testing.assert_close(fn(model, x), model(x))

    agree(5)
    (first,) = fn.entries
    hits = first.hits
    undo = STORES[kind](model, cell)
    try:
        agree(3)
        assert len(fn.entries) == 2, "the store changed nothing that guards look at"
        assert first.hits == hits
        agree(2)
        assert len(fn.entries) == 2
        # what failed is named
        ((_, reasons), _) = explain_miss(fn, (model, X.to(next(model.parameters()).dtype)))
        assert reasons
    finally:
        undo()
    agree(3)
    assert fn.entries[0] is first
    assert len(fn.entries) <= 2  # a variant for functions that are gone is gone as well
    assert first.hits >= hits + 3
