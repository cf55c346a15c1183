"""Modules whose class is one of its own (`torch.backends.cudnn`), and operands that get a `__torch_function__`: the
class may change between calls."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from tests.semantics.harness import case, make_test
from tests.semantics.test_changes_between_calls import Change, Surroundings, check_changes, registering

CHANGED: dict[str, tuple[Any, tuple[Change, ...]]] = {}


changed = registering(CHANGED)


def _module(cls: type = types.ModuleType, **items: Any) -> types.ModuleType:
    made = types.ModuleType("made")
    made.__class__ = cls
    vars(made).update(items)
    return made


def _kind(**items: Any) -> type:
    return type("Kind", (types.ModuleType,), items)


@changed(lambda w: setattr(w.m, "__class__", _kind(k=property(lambda m: 21))),
         lambda w: setattr(w.m, "__class__", _kind(k=30)),
         lambda w: delattr(w.m, "k"),
         lambda w: setattr(w.m, "__class__", types.ModuleType),
         lambda w: setattr(w.m, "__getattr__", lambda name: 6))
def class_of_a_module():
    m = _module(k=2)
    return lambda x: x * m.k, Surroundings(m=m)


def _count(module):
    module.__dict__["n"] = module.__dict__.get("n", 0) + 1
    return module.__dict__["n"]


@changed(lambda w: vars(w.m).update(n=10), lambda w: setattr(w.cls, "k", property(lambda m: 100)))
def property_of_a_module():
    cls = _kind(k=property(_count))
    m = _module(cls)
    return lambda x: x * m.k, Surroundings(m=m, cls=cls)


@changed(lambda w: setattr(w.cls, "k", 5),
         lambda w: delattr(w.cls, "k"),
         lambda w: setattr(w.cls, "__getattr__", lambda m, name: 9),
         lambda w: setattr(w.cls, "__getattribute__", lambda m, name: 10))
def attribute_of_the_class_of_a_module():
    cls = _kind(k=3)
    m = _module(cls)
    return lambda x: x * m.k, Surroundings(cls=cls)


@changed(lambda w: delattr(w.m, "abc"))
def module_that_loads_on_demand():
    loads = []

    def load(module, name):
        loads.append(name)
        setattr(module, name, len(name))
        return len(name)

    m = _module(_kind(__getattr__=load))
    return lambda x: (x + m.abc + m.abcd, list(loads), m.abc), Surroundings(m=m)


def _set(backend, name, value):
    with torch.backends.__allow_nonbracketed_mutation():  # torch's own tests, where they were imported, forbid it else
        setattr(backend, name, value)


@changed(lambda w: _set(torch.backends.cudnn, "benchmark", True),
         lambda w: _set(torch.backends.cudnn, "benchmark", False),
         lambda w: _set(torch.backends.mkldnn, "deterministic", True),
         lambda w: _set(torch.backends.mkldnn, "deterministic", False))
def settings_of_backends():
    def fn(x):
        if torch.backends.cudnn.benchmark:
            x = x + 5
        return x + (50 if torch.backends.mkldnn.deterministic else 1)

    return fn, Surroundings()


_answer = classmethod(lambda cls, function, types, args, kwargs=None: function.__name__)


@changed(lambda w: setattr(w.cls, "__torch_function__", _answer), lambda w: delattr(w.cls, "__torch_function__"))
def operands_with_a_torch_function():
    class Other:
        def __eq__(self, other):
            return "equal"

        def __rmatmul__(self, other):
            return "product"

    other = Other()
    return lambda x: (x @ other, x == other, other == x), Surroundings(cls=Other)


@changed(lambda w: setattr(w.cls, "__torch_function__", _answer), lambda w: delattr(w.cls, "__torch_function__"))
def numbers_with_a_torch_function():
    class Number(int):
        pass

    n = Number(1)
    return lambda x: (torch.add(x, n), x + n, x < n, x.sum(n)), Surroundings(cls=Number)


_OPERATORS = ("__add__", "__radd__", "__iadd__", "__eq__", "__lt__", "__neg__", "__setitem__", "__matmul__")
_OWN = {name: vars(torch.Tensor)[name] for name in _OPERATORS if name in vars(torch.Tensor)}


def _patched(*names: str) -> Change:
    """Give tensors methods for operators of the program's own, or take them away."""

    def change(context: Any) -> None:
        for name in _OPERATORS:
            if name in names:
                setattr(torch.Tensor, name, lambda self, *args, _name=name: (_name, len(args)))
            elif name in _OWN:
                setattr(torch.Tensor, name, _OWN[name])
            elif name in vars(torch.Tensor):
                delattr(torch.Tensor, name)

    return change


@changed(_patched("__add__", "__neg__"), _patched("__radd__", "__iadd__"), _patched("__matmul__"),
         _patched("__setitem__"), _patched("__lt__"), _patched())
def operators_of_tensors():
    def fn(x):
        y = x.clone()
        y += 1
        if isinstance(y, tuple):
            return y, 1 + x
        y[0] = 7
        return x + 1, 1 + x, y, -x, x[0], x @ x.T, x < 2, 2 > x

    return fn, Surroundings()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", CHANGED)
def test_changes_are_seen(name: str, backend: str) -> None:
    check_changes(*CHANGED[name], backend)


one = lambda: (torch.ones(2),)  # noqa: E731


@case(one, fullgraph=True)
def facts_about_backends(x):
    found = [torch.backends.cudnn.is_available(), torch.backends.mkldnn.is_available(), torch.backends.cudnn.allow_tf32,
             torch.backends.opt_einsum.enabled, torch.backends.quantized.engine, torch.backends.__name__,
             torch.utils.deterministic.fill_uninitialized_memory, hasattr(torch, "no_such_thing")]
    return torch._VF.tanh(x), found, torch.backends.cudnn.enabled


@case(one)
def what_all_modules_have(x):
    return x + 1, torch.__repr__()[:8], torch.__class__ is types.ModuleType, torch.__doc__ is torch.__doc__


@case(one)
def what_modules_lack(x):
    found = []
    for look in (lambda: types.nope, lambda: torch.nope, lambda: torch.backends.cudnn.nope, lambda: torch._VF.nope):
        try:
            look()
        except AttributeError as error:
            found.append((str(error), error.name))
    return x + 1, found


@case(one)
def settings_written_in_a_block(x):
    with torch.backends.cudnn.flags(enabled=False, benchmark=True):
        inside = torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
        y = x + 1
    return y, inside, torch.backends.cudnn.enabled


test_all = make_test(__name__)
