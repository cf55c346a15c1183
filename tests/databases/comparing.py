"""One call, plainly and jitted, from equal arguments and the same random state: all that a program could observe of it.

    expected = observe(fn, (args, kwargs))
    found = observe(jitpy.jit(fn), (args, kwargs))
    assert compare(expected, found) is None

Compared are the result or the exception, the arguments afterwards, which of these tensors are one object or share
memory, the state of the random generator and, where asked for, gradients.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

import jitpy
from jitpy.autograd import compile_differentiable
from jitpy.backends import eager
from jitpy.backends.registry import register_backend
from jitpy.engine import all_engines
from jitpy.ir import Graph, NotCovered
from jitpy.ir.alias import any_needs_grad


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a call did: its result or its exception, its arguments afterwards, and the random state it left."""

    result: Any
    error: tuple[type, str] | None
    arguments: Any
    random: torch.Tensor
    gradients: Any = None


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of a jitted call: the first difference from eager, why it was not captured whole, eager's exception."""

    difference: str | None
    breaks: tuple[str, ...]
    error: tuple[type, str] | None


#: Whether all samples are asked for.
ALL = os.environ.get("JITPY_TEST_ALL") == "1"

#: Before each call.
SEED = 11


class Tally:
    """Calls by what came of them. A plain dict holds them, which can go from one process to another."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def count(self, difference: str | None, breaks: tuple[str, ...], only_behaviour: bool = False) -> None:
        """One more call. `only_behaviour`: of one that eager refuses, say, it does not matter whether it breaks."""
        what = "captured whole and equal"
        if difference is not None:
            what = "different"
        elif only_behaviour:
            what = "refused or resizing alike"
        elif breaks:
            what = "equal with a listed break"
        self.calls[what] = self.calls.get(what, 0) + 1


#: Why graphs whose results need gradients went to torch's autograd under the backend `halves`.
refusals: list[str] = []


@register_backend("halves", takes_graph=True)
def compile_halves(graph: Graph, options: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
    """The forward and the backward half of a graph, each op by op with torch's kernels: what our own gradients are
    without what kernels make of them, and without the time that it takes to compile those."""

    def op_by_op(part: Graph) -> Callable[..., tuple[Any, ...]]:
        return eager.compile_graph(part, {})

    if not any_needs_grad(graph.nodes):
        return op_by_op(graph)
    try:
        return compile_differentiable(graph, op_by_op, op_by_op)
    except NotCovered as reason:
        refusals.append(str(reason))
        return op_by_op(graph)


def trial(
    fn: Callable[..., Any],
    arguments: tuple[Any, Any],
    backend: str = "eager",
    gradients: bool = False,
    values: bool = True,
    tolerance: float | None = None,
) -> Trial:
    """Call `fn` plainly once and jitted twice. `fn` is jitted anew; nothing compiled before is used.

    `values` False is for operators that give out uninitialised memory.
    """
    expected = observe(fn, arguments, gradients)

    def called(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    jitpy.reset()
    compiled = jitpy.jit(called, backend=backend)
    difference = None
    for _ in range(2):
        difference = difference or compare(expected, observe(compiled, arguments, gradients), values, tolerance)
    return Trial(difference, break_reasons(), expected.error)


def break_reasons() -> tuple[str, ...]:
    """Why what was compiled since the last reset is not one graph: `id: detail` of each break and skipped frame."""
    found: dict[str, None] = {}
    for engine in all_engines():
        for record in [*(variant.break_record for variant in engine.variants), *engine.skipped]:
            if record is not None:
                found[f"{record.reason.id}: {record.detail}"] = None
    return tuple(found)


def observe(
    fn: Callable[..., Any],
    arguments: tuple[Any, Any],
    gradients: bool = False,
    module: torch.nn.Module | None = None,
) -> Outcome:
    """Call `fn(*args, **kwargs)` on copies of the arguments from a fixed random state.

    The parameters and buffers of `module` count as arguments.
    """
    args, kwargs = copied(arguments)
    torch.default_generator.manual_seed(SEED)
    result, error, found = None, None, None
    try:
        result = fn(*args, **kwargs)
    except Exception as raised:
        error = type(raised), str(raised)
    random = torch.get_rng_state()
    state = dict(module.state_dict(keep_vars=True)) if module is not None else {}
    everything = (args, kwargs, state)
    if gradients and error is None:
        found = gradients_of(result, everything)
    return Outcome(result, error, everything, random, found)


def gradients_of(result: Any, arguments: Any) -> list[torch.Tensor | None] | str:
    """Gradients of a weighted sum of the result with respect to the leaves among the arguments."""
    outputs = [t for t in tensors_in(result) if t.requires_grad and t.grad_fn is not None and t.layout is torch.strided]
    inputs = [t for t in tensors_in(arguments) if t.requires_grad and t.is_leaf]
    if not outputs or not inputs:
        return []
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in outputs]
    try:
        return list(torch.autograd.grad(outputs, inputs, weights, allow_unused=True))
    except (RuntimeError, NotImplementedError) as refused:
        return type(refused).__name__


def copied(value: Any) -> Any:
    """The arguments again, in memory of their own that is shared among them as before."""
    memo: dict[int, Any] = {}
    for tensor in tensors_in(value):
        if tensor.layout is not torch.strided:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        elif not tensor.is_leaf:
            memo[id(tensor)] = copy.deepcopy(tensor.detach(), memo).requires_grad_(tensor.requires_grad)
    return copy.deepcopy(value, memo)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    return list(_walk(value))


def _walk(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _walk(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _walk(item)


def compare(plain: Outcome, jitted: Outcome, values: bool = True, tolerance: float | None = None) -> str | None:
    """The first difference in words. `tolerance` is relative and absolute; None takes torch's own for the dtype."""
    if plain.error != jitted.error:
        return _unlike("exception", plain.error, jitted.error)
    for name in ("result", "arguments", "gradients"):
        check = values, tolerance
        found = _differ(name, getattr(plain, name), getattr(jitted, name), *check)
        if found is not None:
            return found
    sharing = _sharing(plain), _sharing(jitted)
    if sharing[0] != sharing[1]:
        return _unlike("sharing of objects and memory", *sharing)
    if not torch.equal(plain.random, jitted.random):
        return "the random generator is left in another state"
    return None


def further_off(plain: Outcome, jitted: Outcome, exact: Outcome) -> str | None:
    """The first tensor of `jitted` that is further from the one of `exact`, computed in float64, than that of `plain`
    is: some times as far (sums in another order are), or some units of the last place of the largest element, is
    noise."""
    for name in ("result", "arguments", "gradients"):
        triples = zip(*(tensors_in(getattr(one, name)) for one in (plain, jitted, exact)), strict=True)
        for number, (own, found, reference) in enumerate(triples):
            if not own.is_floating_point():
                if not torch.equal(own, found):
                    return f"tensor {number} of {name} is another"
                continue
            errors = [(t.detach().double() - reference.detach()).abs().nan_to_num(0.0) for t in (own, found)]
            size = reference.detach().abs().nan_to_num(0.0)
            theirs, ours, largest = (float(t.max()) if t.numel() else 0.0 for t in (*errors, size))
            allowed = 4 * theirs + 32 * torch.finfo(own.dtype).eps * largest
            if ours > allowed or not torch.equal(own.isnan(), found.isnan()):
                return f"tensor {number} of {name} is off by {ours:.3g}, where eager is off by {theirs:.3g}"
    return None


def _unlike(what: str, plain: Any, jitted: Any) -> str:
    return f"{what}: eager {str(plain)[:300]}, jitted {str(jitted)[:300]}"


def _differ(path: str, plain: Any, jitted: Any, values: bool, tolerance: float | None) -> str | None:
    if type(plain) is not type(jitted):
        return _unlike(f"type of {path}", type(plain), type(jitted))
    if isinstance(plain, torch.Tensor):
        return _tensors_differ(path, plain, jitted, values, tolerance)
    if isinstance(plain, dict):
        if list(plain) != list(jitted):
            return _unlike(f"keys of {path}", list(plain), list(jitted))
        plain, jitted = list(plain.values()), list(jitted.values())
    if isinstance(plain, (list, tuple)):
        if len(plain) != len(jitted):
            return _unlike(f"length of {path}", len(plain), len(jitted))
        for index, (left, right) in enumerate(zip(plain, jitted, strict=True)):
            found = _differ(f"{path}[{index}]", left, right, values, tolerance)
            if found is not None:
                return found
        return None
    if not values or not isinstance(plain, _COMPARABLE):
        return None  # of other objects the type is all that can be compared
    if plain == jitted or plain != plain and jitted != jitted:
        return None
    if isinstance(plain, (float, complex)) and abs(plain - jitted) <= 1e-5 * abs(plain):
        return None
    return _unlike(path, plain, jitted)


_COMPARABLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)


def _tensors_differ(
    path: str, plain: torch.Tensor, jitted: torch.Tensor, values: bool, tolerance: float | None
) -> str | None:
    facts = _facts(plain), _facts(jitted)
    for name in facts[0].keys() - ({"strides"} if path.startswith("gradients") else set()):
        if facts[0][name] != facts[1].get(name):
            return _unlike(f"{name} of {path}", facts[0][name], facts[1].get(name))
    if not values:
        return None
    options = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    if jitted.dim() > 32:
        return None if torch.equal(jitted, plain) else f"values of {path}"  # `assert_close` does not take them
    try:
        torch.testing.assert_close(jitted.detach(), plain.detach(), equal_nan=True, check_stride=False, **options)
    except AssertionError as unlike:
        return f"values of {path}: {str(unlike)[:300]}"
    return None


def _facts(tensor: torch.Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is_conj": tensor.is_conj(),
        "is_neg": tensor.is_neg(),
    }
    if tensor.layout is torch.strided:
        # The stride of an axis of size one, and of an empty tensor, addresses nothing.
        moving = [size > 1 and tensor.numel() > 0 for size in tensor.shape]
        facts["strides"] = tuple(s for s, moves in zip(tensor.stride(), moving, strict=True) if moves)
    return facts


def _sharing(outcome: Outcome) -> list[Any]:
    """For each tensor among arguments and result: the first one that is the same object; the first one in the same
    memory, and where in it this one begins."""
    objects: dict[int, int] = {}
    memories: dict[int, int] = {}
    found: list[Any] = []
    for number, tensor in enumerate([*tensors_in(outcome.arguments), *tensors_in(outcome.result)]):
        same = objects.setdefault(id(tensor), number)
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            found.append(same)
            continue
        memory = memories.setdefault(tensor.untyped_storage()._cdata, number)
        found.append((same, memory, tensor.storage_offset() if memory != number else None))
    return found
