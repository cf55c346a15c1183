"""Tensors that enter a graph: their guard, their symbolic sizes, and which of them share memory."""

from __future__ import annotations

from typing import Any

import torch

from jitpy.ir import Dim, TensorSpec

from ...ir.algebra import sympy
from ...runtime.autograd_node import write_test
from ...runtime.tensor_facts import counts_versions
from ..guards.guard_set import TensorGuard
from ..guards.source import Source, short_name
from .array_inputs import is_array_source
from .quantised_calls import is_per_tensor
from .traced import GraphBuilder, GraphInput, Storage, TracedTensor, Uncapturable

#: Tensor classes that behave as plain tensors.
PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def make_tensor_input(
    builder: GraphBuilder, tensor: torch.Tensor, source: Source, dims: tuple[Any, ...] | None
) -> TracedTensor:
    """See `GraphBuilder.tensor_input`."""
    known = builder.known_inputs.get(id(tensor))
    if known is not None:
        first = builder.inputs[known.storage.input].source  # type: ignore[index]
        if first != source:
            builder.guards.add(source, "same", first)
        return known
    check_kind(tensor)
    leaf = None if _is_kept_up(tensor) else ask_leaf(tensor)
    index = len(builder.graph.inputs)
    memory = tensor.untyped_storage()._cdata
    sharers = builder.inputs_by_memory.get(memory, [])
    relatives = (*sharers, *related_views(builder, tensor), *sharing_arrays(builder, tensor, source))
    if any(builder.inputs[i].payload.storage.written for i in relatives):
        raise Uncapturable("input_mutation", "an input shares memory with one that was changed before")
    guard, spec = describe(builder, tensor, source, dims)
    builder.guards.add(source, "tensor", guard)
    if tensor.is_quantized:
        builder.guards.add(source, "python", is_per_tensor, "a quantised tensor")
    unrecorded = bool(leaf) and is_unrecorded(tensor)
    if unrecorded:
        builder.guards.add(source, "python", is_unrecorded, "a view that was made under no_grad")
        spec = spec.with_(requires_grad=False)
    node = builder.graph.add_input(
        spec, short_name(source), source=source, is_parameter=isinstance(tensor, torch.nn.Parameter)
    )
    payload = TracedTensor(builder, Storage(node, index), (), node, spec, is_leaf=leaf)
    payload.storage.unrecorded = unrecorded
    builder.inputs.append(GraphInput(tensor, source, payload))
    builder.known_inputs[id(tensor)] = payload
    builder.inputs_by_memory[memory] = [*sharers, index]
    base = tensor._base
    views = builder.input_views.get(id(base), [])
    if base is not None:
        builder.input_views[id(base)] = [*views, index]

    def undo() -> None:
        del builder.known_inputs[id(tensor)]
        builder.inputs_by_memory[memory] = sharers
        if base is not None:
            builder.input_views[id(base)] = views

    builder.journal.append(undo)
    return payload


def related_views(builder: GraphBuilder, tensor: torch.Tensor) -> list[int]:
    """The inputs that are, to autograd, views of one tensor with this one, or that tensor: a write to one makes the
    histories of all others anew, also where `.data = ...` has given them other memory."""
    base = tensor if tensor._base is None else tensor._base
    found = list(builder.input_views.get(id(base), ()))
    known = builder.known_inputs.get(id(base))
    if known is not None and known.storage.input is not None:
        found.append(known.storage.input)
    return found


def sharing_arrays(builder: GraphBuilder, tensor: torch.Tensor, source: Source) -> list[int]:
    """The inputs that are in the same memory as this one without a common storage: one of them is an array."""
    is_array = is_array_source(source)
    if not is_array and not builder.has_arrays:
        return []
    builder.has_arrays = True
    begin, end = memory_range(tensor)
    found = []
    for i, entry in enumerate(builder.inputs):
        if isinstance(entry.value, torch.Tensor) and entry.value is not tensor and (
                is_array or is_array_source(entry.source)):
            low, high = memory_range(entry.value)
            if low < end and begin < high:
                found.append(i)
    return found


def memory_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's storage begins and ends."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _is_kept_up(tensor: torch.Tensor) -> bool:
    """Whether autograd makes the tensor's history anew behind a write: it is a view that may be written to."""
    return tensor.requires_grad and tensor._base is not None and _creation_meta(tensor) == _PLAIN_VIEW


def ask_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor from outside is a leaf. Uncapturable for views that a graph cannot hold."""
    if torch.is_inference_mode_enabled() and _is_kept_up(tensor):
        # autograd would bring the view's history up to date, which inference mode does not let it
        return False
    try:
        return tensor.is_leaf
    except RuntimeError:
        what = "one of several views, made at once, of a tensor that was written to since: eager refuses to read it"
        raise Uncapturable("unsupported_tensor", what) from None


def check_kind(tensor: torch.Tensor) -> None:
    """Uncapturable for tensors that a graph cannot hold."""
    functorch, forward_ad, what, cls = torch._C._functorch, torch.autograd.forward_ad, None, type(tensor)
    if cls not in PLAIN_CLASSES and (
            cls.__torch_function__ is not torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]
            or cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl):  # type: ignore[attr-defined]
        what = f"a tensor of class {cls.__name__}"
    elif tensor.layout is not torch.strided:
        what = f"a tensor with layout {tensor.layout}"
    elif tensor.is_nested or tensor.is_meta:
        what = f"a {'nested' if tensor.is_nested else 'meta'} tensor"
    elif tensor.is_quantized and not is_per_tensor(tensor):
        what = "a quantised tensor with several scales"
    elif tensor.is_conj() or tensor.is_neg():
        what = "a tensor with a pending conjugation or negation"
    elif tensor._is_zerotensor():
        what = "a tensor of zeros without memory"
    elif counts_versions(tensor) == tensor.is_inference():
        what = "a tensor made in inference mode that got memory from outside of it"
    elif functorch.is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(tensor):
        what = "a tensor inside a torch.func transform"
    elif forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        what = "a tensor with a forward-mode tangent"
    if what is not None:
        raise Uncapturable("unsupported_tensor", what)


def describe(
    builder: GraphBuilder, tensor: torch.Tensor, source: Source, dims: tuple[Any, ...] | None
) -> tuple[TensorGuard, TensorSpec]:
    """The guard and the spec of an input, with symbols for its dynamic axes."""
    sizes: list[Dim] = list(tensor.shape)
    ranges: list[tuple[sympy.Symbol, int, int | None]] = []
    if dims is not None:
        for axis, dim in enumerate(dims):
            kind, low, high = dim if isinstance(dim, tuple) else (dim, None, None)
            if kind == "dynamic" and sizes[axis] >= 2:
                symbol = builder.sizes.new_symbol(tensor.shape[axis], source, axis, max(low or 2, 2), high)
                info = builder.sizes.symbols[symbol]
                info.marked = isinstance(dim, tuple)
                ranges.append((symbol, info.low, info.high))
                sizes[axis] = symbol
    strides = symbolic_strides(tensor, sizes) if ranges else tuple(tensor.stride())
    spec = TensorSpec(tensor.dtype, tuple(sizes), strides, tensor.device, tensor.requires_grad)
    guard = TensorGuard(
        type(tensor),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        spec.shape,
        spec.stride,
        torch._C._dispatch_keys(tensor).raw_repr(),
        tuple(ranges),
        tensor.is_inference(),
    )
    return guard, spec


def symbolic_strides(tensor: torch.Tensor, sizes: list[Dim]) -> tuple[Dim, ...]:
    """Strides as products of the symbolic sizes where the real ones are; ints elsewhere."""
    strides: list[Dim] = list(tensor.stride())
    # From the innermost axis out: an axis that starts where another one ends has that one's extent as its stride.
    order = sorted(range(tensor.dim()), key=lambda axis: (tensor.stride(axis), tensor.shape[axis] != 1, -axis))
    extent_real, extent = 1, 1
    for axis in order:
        if tensor.stride(axis) == extent_real:
            strides[axis] = extent
            extent_real, extent = extent_real * tensor.shape[axis], extent * sizes[axis]
        elif tensor.stride(axis):
            extent_real, extent = tensor.stride(axis) * tensor.shape[axis], tensor.stride(axis) * sizes[axis]
    return tuple(strides)


def starts_its_memory(tensor: torch.Tensor) -> bool:
    """Guard: the tensor's first element is the first of its storage."""
    return tensor.storage_offset() == 0


_creation_meta = torch._C._autograd._get_creation_meta  # type: ignore[attr-defined]
_PLAIN_VIEW = torch._C._autograd.CreationMeta.DEFAULT  # type: ignore[attr-defined]


def owns_its_memory(tensor: torch.Tensor) -> bool:
    """Guard: autograd does not know the tensor as a view."""
    return tensor._base is None


def is_leaf(tensor: torch.Tensor) -> bool:
    """Guard: the tensor is a leaf of the autograd graph, and no view that was made under no_grad of one that is not."""
    return tensor.is_leaf and (tensor._base is None or not tensor._base.requires_grad)


def is_unrecorded(tensor: torch.Tensor) -> bool:
    """Guard: the tensor is a view, made under no_grad, of one that requires grad, as it says itself. Autograd knows
    nothing of it."""
    base = tensor._base
    return base is not None and base.requires_grad and tensor.requires_grad and tensor.is_leaf


def is_no_leaf(tensor: torch.Tensor) -> bool:
    """Guard: the tensor was computed under autograd."""
    return not tensor.is_leaf


def views_require_grad(tensor: torch.Tensor) -> bool:
    """Guard: a view of the tensor that is made under no_grad requires grad, as the base of both does."""
    base = tensor._base
    return (tensor if base is None else base).requires_grad


def views_require_none(tensor: torch.Tensor) -> bool:
    """Guard: such a view does not."""
    return not views_require_grad(tensor)


def check_write_under_grad(builder: GraphBuilder, entry: GraphInput, target: TracedTensor) -> None:
    """An in-place operation on an input or a view of it, recorded by autograd. Raises Uncapturable where eager
    refuses it."""
    real: torch.Tensor = entry.value
    if any(step.multi for step in target.chain) or real._base is not None and _creation_meta(real) != _PLAIN_VIEW:
        raise Uncapturable("input_mutation", "an in-place operation on a view that autograd lets nobody write to")
    if real.requires_grad and entry.payload.is_leaf:
        raise Uncapturable("exception", "an in-place operation on a leaf that requires grad")
    takes_writes = write_test()
    if not takes_writes(real):
        raise Uncapturable("input_mutation", "an in-place operation on a view that autograd lets nobody write to")
    builder.guards.add(entry.source, "python", takes_writes, "an in-place operation")


_DIM_MARKS = frozenset({"_dynamo_static_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices",
                        "_dynamo_dynamic_range"})


def size_marks(tensor: torch.Tensor) -> dict[int, Any]:
    """The program's marks on a tensor's sizes, by axis: "static", "dynamic", or the bounds of one that has to be
    symbolic. `torch._dynamo` keeps its marks in attributes of the tensor, as jitpy does."""
    attributes = tensor.__dict__
    own = attributes.get("_jitpy_dims", {})
    if _DIM_MARKS.isdisjoint(attributes):
        return own
    found: dict[int, Any] = {}
    for name in ("_dynamo_static_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices"):
        found.update(dict.fromkeys(attributes.get(name, ()), "static" if "static" in name else "dynamic"))
    found.update({bounds.dim: (bounds.min, bounds.max) for bounds in attributes.get("_dynamo_dynamic_range", ())})
    return {axis % tensor.ndim: mark for axis, mark in found.items()} | own
