"""Asks torch what it would do with operands: one cache of answers, and the tensors that torch is asked with.

Shape rules (`derived.py`), errors (`error_of`), what autograd saves (`ir/autograd_saves.py`), gradients that are
recorded (`autograd/derived.py`) and calls on fake tensors (`frontend/capture/derived_calls.py`) ask through `ask`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..algebra import sympy
from ..interrupts import held
from ..sizes import SizeEnv, simplify
from ..spec import Dim, ScalarSpec, TensorSpec
from ..trees import tree_leaves
from .quiet import without_compiler_import

META, CPU = torch.device("meta"), torch.device("cpu")

#: Numbers that stand for those that are known at run time only: none is zero, so that division works.
SAMPLES = {int: 3, float: 1.5, bool: True, complex: 1.5 + 0.5j}

#: Answers for calls without symbols, by question and arguments; those with symbols are in `SizeEnv.answers`.
ANSWERS: dict[Any, Any] = {}
_MOST = 16384
_UNKNOWN = object()
T = TypeVar("T")


def ask(question: Any, arguments: Any, answer: Callable[[], T], env: SizeEnv | None = None) -> T:
    """The answer of `answer()`, asked once for each question and arguments; with `env` for as long as what is known
    of its symbols. Arguments without a hash are asked for anew each time."""
    known = ANSWERS if env is None else env.answers
    key = question, key_of(arguments)
    try:
        found = known.get(key, _UNKNOWN)
    except TypeError:
        return answer()
    if found is _UNKNOWN:
        found = answer()
        keep(known, key, found)
    return found


def keep(known: dict[Any, Any], key: Any, answer: Any) -> None:
    """Remember an answer."""
    if len(known) >= _MOST:
        known.clear()
    known[key] = answer


@dataclass(frozen=True, slots=True)
class Ref:
    """Value number `index` of a recording: the operands first, then the results of its calls."""

    index: int


def references(tree: Any) -> Iterator[int]:
    """The numbers of the values that part of a recording refers to, also in the frontend's named tuples."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Ref):
            yield leaf.index
        elif isinstance(getattr(leaf, "items", None), tuple):
            yield from references(leaf.items)


def needed(records: list[T], result: Any, keeps: Callable[[T], bool]) -> list[T]:
    """The calls of a recording that its result depends on, and those that `keeps` tells."""
    live, kept = set(references(result)), []
    for record in reversed(records):
        call: Any = record
        if keeps(record) or not live.isdisjoint(call.results):
            live.update(references((call.args, call.kwargs)))
            kept.append(record)
    return kept[::-1]


def forget() -> None:
    """Drop what is known: the program has registered other rules."""
    ANSWERS.clear()


def key_of(value: Any) -> Any:
    """Equal for arguments that mean the same: 1, 1.0 and True differ."""
    kind = type(value)
    if kind is tuple or kind is list:
        return (kind, *map(key_of, value))
    if kind in (int, float, bool, complex):
        return kind, value
    if kind is dict:
        return (kind, *((name, key_of(item)) for name, item in value.items()))
    return value


def mentions_symbols(value: Any) -> bool:
    """Whether sizes among arguments are symbolic."""
    if isinstance(value, (tuple, list)):
        return any(map(mentions_symbols, value))
    if type(value) is TensorSpec:
        return not value.is_static or type(value.offset) is not int
    return isinstance(value, sympy.Basic)


def fake_tensor(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """A tensor with the layout of `spec` on `device`. On none, it names the real one as torch's fake tensors do."""
    if spec.offset == 0:
        tensor = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)
    else:
        extent = (
            1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
            if 0 not in spec.shape
            else 0
        )
        base = torch.empty(spec.offset + extent, dtype=spec.dtype, device=device)
        tensor = base.as_strided(spec.shape, spec.stride, spec.offset)
    if device is META:
        tensor.fake_device = spec.device  # type: ignore[attr-defined]
    return tensor.requires_grad_() if spec.requires_grad else tensor


def dim_of(value: Any) -> Dim:
    """The int or expression behind a number of torch's."""
    return int(value) if isinstance(value, int) else simplify(getattr(value, "node", value).expr)


def spec_of(tensor: torch.Tensor, device: torch.device | None = None) -> TensorSpec:
    """The metadata of a tensor, which stands for one on `device`."""
    shape, stride = tuple(map(dim_of, tensor.shape)), tuple(map(dim_of, tensor.stride()))
    return TensorSpec(tensor.dtype, shape, stride, device or tensor.device, tensor.requires_grad,
                      dim_of(tensor.storage_offset()))


def at_hints(env: SizeEnv, spec: TensorSpec) -> TensorSpec:
    """The spec in memory of its own, with the sizes of the traced call."""
    if spec.is_static and type(spec.offset) is int and spec.offset == 0:
        return spec
    return spec.with_(shape=env.hints(spec.shape), stride=env.hints(spec.stride), offset=0)


def filled(spec: TensorSpec, value: int) -> torch.Tensor:
    """The same on the CPU, all of whose memory is a number."""
    tensor = fake_tensor(spec.with_(requires_grad=False), CPU)
    storage = tensor.untyped_storage()
    torch.empty(0, dtype=spec.dtype).set_(storage, 0, (storage.nbytes() // spec.dtype.itemsize,)).fill_(value)  # type: ignore[call-overload]
    return tensor.requires_grad_() if spec.requires_grad else tensor


#: Element types of tensors with a scale and a zero point.
QUANTISED = frozenset({torch.qint8, torch.quint8, torch.qint32})


def zeros(spec: TensorSpec) -> torch.Tensor:
    """A tensor of zeros with the spec of an input, sizes at their hints; quantised ones have the scale 1.

    Zeros are valid indices, and large ones take no memory until somebody writes to them.
    """
    reach = sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True)) + 1
    extent = max(int(spec.offset + reach), 0)
    with torch._C.DisableTorchFunction(), torch.inference_mode(False):
        storage = torch._empty_affine_quantized([extent], scale=1.0, zero_point=0, dtype=spec.dtype) \
            if spec.dtype in QUANTISED else torch.zeros(extent, dtype=spec.dtype, device=spec.device)
        view = storage.as_strided(spec.shape, spec.stride, spec.offset)
        return view.detach().requires_grad_(spec.requires_grad)


@contextlib.contextmanager
def undispatched() -> Iterator[None]:
    """Keep the user's autocast, torch-function modes (`torch.device` as a context, ...) and signal handlers away, and
    torch's compiler out of the process."""
    with held(), torch._C.DisableTorchFunction(), torch._C._DisableAutocast(), without_compiler_import():
        yield


def in_small(value: Any, hint: Callable[[Any], Any] | None = None) -> Any:
    """An argument for `error_of`: of nodes and of what stands for them, dtypes with two elements along each axis, or
    as many as `hint` says."""
    spec = getattr(value, "spec", None)
    if type(spec) is TensorSpec:
        return spec.dtype, (2,) * spec.ndim if hint is None else tuple(map(hint, spec.shape))
    if type(spec) is ScalarSpec:
        return spec.kind(1)
    if isinstance(value, (tuple, list)):
        return tuple([in_small(item, hint) for item in value])
    if isinstance(value, sympy.Basic):
        return 2 if hint is None else hint(value)
    return CPU if isinstance(value, torch.device) else value


def error_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The text of the error that an operator raises for arguments from `in_small`; None where it raises none, or one
    about something else, or where something has no hash."""
    named = tuple(kwargs.items())
    try:
        hash((args, named))
    except TypeError:
        return None
    return ask(("error", target), (args, named), lambda: _error_of(target, args, named))


def _error_of(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> str | None:
    try:
        is_random = torch.Tag.nondeterministic_seeded in target.tags
        with torch.no_grad(), torch._C.DisableTorchFunction(), torch._C._DisableAutocast(), \
                torch.random.fork_rng(devices=[], enabled=is_random):
            target(*map(_made, args), **{name: _made(value) for name, value in kwargs})
    except (RuntimeError, OverflowError) as error:
        return str(error)
    except (TypeError, ValueError, IndexError, AssertionError):
        return None
    return None


def _made(value: Any) -> Any:
    if isinstance(value, tuple):
        if len(value) == 2 and isinstance(value[0], torch.dtype):
            return torch.ones(value[1], dtype=value[0], device="cpu")
        return list(map(_made, value))
    return value
