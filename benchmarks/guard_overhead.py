"""What guards and dispatch add to a call, in nanoseconds.

    python benchmarks/guard_overhead.py

Each row calls a Python function that returns its first argument, directly and through a dispatcher, and prints
the difference.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch

from jitpy.frontend.guards.guard_set import GuardSet, TensorGuard, TorchStateGuard
from jitpy.frontend.guards.source import GlobalsSource, LocalSource, Source, instance_dict, item
from jitpy.runtime.dispatch import make_dispatcher
from jitpy.runtime.guard_checks import torch_state
from jitpy.runtime.guards import build_guards


def tensor_guard(t: torch.Tensor) -> TensorGuard:
    keys = torch._C._dispatch_keys(t).raw_repr()
    return TensorGuard(type(t), t.dtype, t.device, t.requires_grad, tuple(t.shape), t.stride(), keys)


def nanoseconds(call: Callable[..., Any], *args: Any) -> float:
    """The best of nine rounds."""
    timer = timeit.Timer("call(*args)", globals={"call": call, "args": args})
    number = max(1, int(0.02 / max(timer.timeit(100) / 100, 1e-9)))
    return min(timer.repeat(9, number)) / number * 1e9


def first(x: Any) -> Any:
    return x


def add_state(guards: GuardSet) -> None:
    guards.add(None, "state", TorchStateGuard(**torch_state()))


def guard_module(guards: GuardSet, source: Source, module: torch.nn.Module) -> None:
    """What a model of nested modules needs: types, children by name, parameters."""
    guards.add(source, "type", type(module))
    attributes = instance_dict(source)
    guards.add(item(attributes, "training"), "eq", module.training)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            guards.add(item(item(attributes, "_parameters"), name), "tensor", tensor_guard(parameter))
    for name, child in module._modules.items():
        guard_module(guards, item(item(attributes, "_modules"), name), child)


def row(title: str, fill: Callable[[GuardSet], None], argument: Any) -> None:
    guards = GuardSet()
    fill(guards)
    for native in (True, False):
        guard = build_guards(guards, native=native)
        dispatcher = make_dispatcher(first.__code__, globals(), on_miss=lambda *_: None, original=first, native=native)
        dispatcher.add_entry(guard, first.__code__)
        if not guard.check((argument,), globals(), None):
            raise AssertionError(guard.explain((argument,), globals(), None))
        plain, through = nanoseconds(first, argument), nanoseconds(dispatcher, argument)
        alone = nanoseconds(guard.check, (argument,), globals(), None)
        kind = "native" if native else "Python"
        print(f"{title:34} {kind:7} {len(guards):6} {plain:9.0f} {through:9.0f} {through - plain:9.0f} {alone:9.0f}")


def main() -> None:
    x = LocalSource(0, "x")
    tensor = torch.randn(16)
    print(f"{'case':34} {'':7} {'guards':>6} {'plain':>9} {'through':>9} {'added':>9} {'check':>9}   ns a call")
    row("nothing", lambda guards: None, tensor)
    row("one tensor", lambda guards: guards.add(x, "tensor", tensor_guard(tensor)), tensor)

    def usual(guards: GuardSet) -> None:
        add_state(guards)
        guards.add(x, "tensor", tensor_guard(tensor))
        guards.add(item(GlobalsSource(), "torch"), "id", torch)

    row("one tensor, state, one global", usual, tensor)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)) for _ in range(48)))
    row("model of 145 modules", lambda guards: guard_module(guards, x, model), model)


if __name__ == "__main__":
    main()
