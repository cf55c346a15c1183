"""Calls with quantised tensors, or with packed weights of `torch.ao`: nodes that call torch's own function.

All that is known of a quantised tensor is that one scale and one zero point are its own. Torch has no shape rules for
these functions: a call of the function with samples tells what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from jitpy.ir import Dim, NotCovered, Op, Spec, TensorSpec
from jitpy.ir.ops.derived import Valueless, describe
from jitpy.ir.ops.oracle import CPU, QUANTISED, SAMPLES, undispatched, zeros
from jitpy.ir.spec import contiguous_stride
from jitpy.ir.trees import tree_leaves, tree_map

from ...ir.algebra import sympy
from .traced import DECLINED, GraphBuilder, TracedScalar, TracedTensor, Uncapturable, tensors_in

_PACKED = "__torch__.torch.classes."


def run(builder: GraphBuilder, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The payload of such a call; DECLINED for any other one."""
    if not any(map(_concerns, args)) and not any(map(_concerns, kwargs.values())):
        return DECLINED
    name, tensors = getattr(fn, "__name__", str(fn)), list(tensors_in((args, kwargs)))
    if builder.state.autocast_enabled or any(
            t.spec.device != CPU or builder.state.grad_enabled and t.spec.requires_grad for t in tensors):
        raise Uncapturable("unsupported_tensor", f"{name} on a quantised tensor, with casts or gradients")
    known: list[Dim] = [size for tensor in tensors for size in tensor.spec.shape]
    leaves = [*known, *tree_leaves((args, kwargs))]
    is_symbolic = any(isinstance(leaf, sympy.Basic) for leaf in leaves)
    points = (0, 1, 4) if is_symbolic else (0, 1) if any(type(leaf) is TracedScalar for leaf in leaves) else (0,)
    found = []
    for more in points:
        sampled = _Sampled(builder, more)
        found.append(sampled.spec_of(fn, args, kwargs))
    if sampled.returned is not None and sampled.written is None:
        return sampled.returned
    if sampled.written is not None:
        _check_write(builder, sampled.written, name)
        fn = _OnCopy(fn)
    spec = _merged(builder, found, points, known)
    op = Op(f"ir.quantised_{name}", fn, infer=lambda env, *args, **kwargs: spec,
            aliasing=_same_memory if sampled.is_view else _new_memory)
    node = builder.graph.add(op, builder.to_node(args), builder.to_node(kwargs), spec, builder.loc, grad_enabled=False)
    if sampled.written is None:
        return builder.results(node, spec)
    builder.write(sampled.written, node)
    return sampled.written


def _new_memory(*args: Any, **kwargs: Any) -> str:
    return "copy"


def _same_memory(*args: Any, **kwargs: Any) -> str:
    return "view"


@dataclass(frozen=True, slots=True)
class _OnCopy:
    """A function that writes to its first argument, as one that writes to a copy."""

    function: Any

    def __call__(self, first: torch.Tensor, *rest: Any, **kwargs: Any) -> Any:
        return self.function(first.clone(), *rest, **kwargs)


def _check_write(builder: GraphBuilder, target: TracedTensor, name: str) -> None:
    """Uncapturable where something else may see the memory of a tensor that is written to."""
    if target.storage.input is not None or target.chain or any(
            node.op.aliasing is _same_memory and (node is target.node or target.node in node.input_nodes())
            for node in builder.graph.nodes):
        raise Uncapturable("unsupported_tensor", f"{name} writes to a quantised tensor that others may see")


def _concerns(value: Any) -> bool:
    kind = type(value)
    if kind is TracedTensor:
        return value.spec.dtype in QUANTISED
    if kind is tuple or kind is list:
        return any(map(_concerns, value))
    if kind is torch.dtype:
        return value in QUANTISED
    return kind is torch.ScriptObject and str(value._type()).startswith(_PACKED)


def is_per_tensor(tensor: torch.Tensor) -> bool:
    """Guard: a quantised tensor has one scale and one zero point."""
    return tensor.qscheme() is torch.per_tensor_affine


class _Sampled:
    """A call with samples of the arguments, for symbols that are larger by `more` than in the call being traced."""

    def __init__(self, builder: GraphBuilder, more: int) -> None:
        self.builder = builder
        self.more = more
        self.samples: dict[int, tuple[TracedTensor, torch.Tensor]] = {}
        #: the argument that the function returns; the one that it has written to
        self.returned: TracedTensor | None = None
        self.written: TracedTensor | None = None
        self.is_view = False

    def spec_of(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spec:
        given = tree_map(self._sample, (args, kwargs))
        name, before = getattr(fn, "__name__", str(fn)), [_place(sample) for _, sample in self.samples.values()]
        try:
            with undispatched(), torch.no_grad(), Valueless(), torch.random.fork_rng(devices=[]):
                result = fn(*given[0], **given[1])
        except NotCovered:
            raise
        except Exception as error:
            raise Uncapturable("exception", str(error)) from error
        samples = [sample for _, sample in self.samples.values()]
        self.returned = next((traced for traced, sample in self.samples.values() if sample is result), None)
        written = [traced for traced, sample in self.samples.values() if sample._version]
        # operators of torch.ops that return an argument have written to it, mostly without a new version
        if [_place(sample) for sample in samples] != before or type(result) is list or written and (
                written != [self.returned] or args[0] is not written[0]) or self.returned is not None and not written \
                and isinstance(fn, (OpOverload, OpOverloadPacket)) or isinstance(result, tuple) and hasattr(
                    result, "n_fields"):
            raise Uncapturable("unsupported_tensor", f"{name} on a quantised tensor")
        self.written = self.returned if written else None
        found = describe(result, samples, CPU)
        self.is_view = found.aliasing != "copy"
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, torch.Tensor) and not (
                    is_per_tensor(tensor) if tensor.dtype in QUANTISED else found.aliasing == "copy"):
                raise Uncapturable("unsupported_tensor", f"{name} makes a tensor with several scales, or a view")
        return found.spec

    def _sample(self, value: Any) -> Any:
        if type(value) is TracedScalar:
            return SAMPLES[value.kind] + self.more if value.kind in (int, float) else SAMPLES[value.kind]
        if isinstance(value, sympy.Basic):
            return self._size(value)
        if type(value) is not TracedTensor:
            return value
        if id(value) not in self.samples:
            spec = value.spec
            spec = spec.with_(shape=tuple(map(self._size, spec.shape)), stride=tuple(map(self._size, spec.stride)),
                              offset=self._size(spec.offset))
            self.samples[id(value)] = value, zeros(spec)
        return self.samples[id(value)][1]

    def _size(self, size: Dim) -> int:
        return self.builder.sizes.near_hint(size, self.more)


def _place(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage()._cdata


def _merged(builder: GraphBuilder, specs: Any, points: tuple[int, ...], known: list[Dim]) -> Spec:
    """One spec for several samples: a size that differs between them is a size of an argument."""
    first = specs[0]
    if type(first) is tuple:
        return tuple(_merged(builder, parts, points, known) for parts in zip(*specs, strict=True))
    if type(first) is not TensorSpec or all(spec == first for spec in specs):
        if any(spec != first for spec in specs):
            raise NotCovered("a number decides what is returned")
        return first

    def size(values: tuple[int, ...]) -> Dim:
        for one in (values[0], *known):
            if all(builder.sizes.near_hint(one, more) == value for more, value in zip(points, values, strict=True)):
                return one
        raise NotCovered("a size that is none of an argument")

    shape = tuple(map(size, zip(*(spec.shape for spec in specs), strict=True)))
    dense = all(spec.stride == contiguous_stride(spec.shape) for spec in specs)
    stride = contiguous_stride(shape) if dense else tuple(map(size, zip(*(spec.stride for spec in specs), strict=True)))
    return first.with_(shape=shape, stride=stride)
