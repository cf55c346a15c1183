"""Attributes and metadata methods of tensors: answered from the spec while tracing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from jitpy.ir import NotCovered, TensorSpec
from jitpy.ir.graph import OWN_VERSIONS
from jitpy.ir.ops.layout import has_format
from jitpy.ir.ops.oracle import QUANTISED

from ...guards.source import attr
from .. import derived_calls
from ..composites import LOWERINGS
from ..inputs import is_leaf, is_no_leaf, views_require_grad, views_require_none
from ..traced import DECLINED, GraphBuilder, TracedTensor, Uncapturable

_aten = torch.ops.aten


def read_attribute(builder: GraphBuilder, tensor: TracedTensor, name: str) -> Any:
    """See `GraphBuilder.attribute`. Uncapturable for attributes that only a real tensor has."""
    reader = _ATTRIBUTES.get(name)
    if reader is None or not hasattr(torch.Tensor, name):
        raise Uncapturable("unsupported_value", f"Tensor.{name}")
    return reader(builder, tensor)


def _of_spec(read: Callable[[TensorSpec], Any]) -> Callable[[GraphBuilder, TracedTensor], Any]:
    return lambda builder, tensor: read(tensor.spec)


def _called(method: Any) -> Callable[[GraphBuilder, TracedTensor], Any]:
    """An attribute that is computed by ATen: the getter runs on the derived path."""

    def reader(builder: GraphBuilder, tensor: TracedTensor) -> Any:
        return derived_calls.run(builder, method, (tensor,), {})

    return reader


def _transposed(overload: Any, method: Any) -> Callable[[GraphBuilder, TracedTensor], Any]:
    """`T` and `mT` of a matrix, in the op table's terms; what torch says of other ranks is left to the getter."""

    def reader(builder: GraphBuilder, tensor: TracedTensor) -> Any:
        result = LOWERINGS[overload](builder, overload, (tensor,), {}) if tensor.ndim == 2 else DECLINED
        return derived_calls.run(builder, method, (tensor,), {}) if result is DECLINED else result

    return reader


def _is_leaf(builder: GraphBuilder, tensor: TracedTensor) -> bool:
    builder.state.grad_questions += 1
    builder.speculation.check_view(tensor)
    if not tensor.spec.requires_grad:
        _check_date(tensor)
        return True
    if builder.state.transforms:
        raise Uncapturable("transform", "Tensor.is_leaf of what a transform made")
    index, storage = tensor.input, tensor.storage
    builder.ask_history(tensor)
    if builder.speculation.is_leaf(tensor) or tensor.stands_for is not None:
        return True
    if index is None or storage.written and not storage.lost_grad and storage.base.tensor.requires_grad:
        return False  # computed here, or by what was written into it
    entry = builder.inputs[index]
    builder.guards.add(entry.source, "python", is_leaf if tensor.is_leaf else is_no_leaf, "is_leaf was read")
    return tensor.is_leaf


def _check_date(tensor: TracedTensor) -> None:
    """Eager refuses to tell of a view that was made under no_grad what its history is once its base was written to."""
    if tensor.made != tensor.storage.generation and tensor.hides_history:
        raise Uncapturable("autograd_nodes", "the history of a view, made under no_grad, of what was written to since")


def _retains_grad(builder: GraphBuilder, tensor: TracedTensor) -> bool:
    if _is_leaf(builder, tensor):
        return False
    if tensor.input is not None:
        raise Uncapturable("unsupported_value", "Tensor.retains_grad of a tensor that was computed before")
    return builder.speculation.retains(tensor)


def has_no_grad(tensor: torch.Tensor) -> bool:
    """Guard: no gradient has been accumulated."""
    return tensor.grad is None


def _grad(builder: GraphBuilder, tensor: TracedTensor) -> Any:
    index = tensor.input
    if index is None:
        if tensor.spec.requires_grad and not builder.speculation.is_leaf(tensor):
            raise Uncapturable("unsupported_value", "Tensor.grad of a tensor that is no leaf")
        return None
    entry = builder.inputs[index]
    if entry.value.is_leaf and entry.value.grad is None:
        builder.guards.add(entry.source, "python", has_no_grad, "grad was read")
        return None
    if entry.value.grad is not None:
        return builder.tensor_input(entry.value.grad, attr(entry.source, "grad"))
    raise Uncapturable("unsupported_value", "Tensor.grad of a tensor that is no leaf")


def _data(builder: GraphBuilder, tensor: TracedTensor) -> Any:
    if builder.state.batched:
        raise Uncapturable("transform", "Tensor.data under vmap")
    data = builder.record(_aten.detach.default, (tensor,), {})
    step = replace(data.chain[-1], is_data=True)
    data.node.meta[OWN_VERSIONS] = step  # autograd does not see what the tensor and this one do to each other
    data.chain = (*data.chain[:-1], step)
    return data


def _grad_fn(builder: GraphBuilder, tensor: TracedTensor) -> Any:
    if not tensor.spec.requires_grad:
        _check_date(tensor)
    if not tensor.spec.requires_grad or builder.speculation.is_leaf(tensor) or tensor.stands_for is not None or \
            tensor.input is not None and _is_leaf(builder, tensor):
        return None
    raise Uncapturable("autograd_nodes", "Tensor.grad_fn")


def _requires_grad(builder: GraphBuilder, tensor: TracedTensor) -> bool:
    builder.state.grad_questions += 1
    builder.speculation.check_view(tensor)
    if builder.state.batched and tensor.spec.requires_grad:
        raise Uncapturable("transform", "Tensor.requires_grad under vmap, whose tensors have a history outside of it")
    if builder.parameters.unrecorded(tensor) is not None:
        raise Uncapturable("unsupported_op", "a view, made under no_grad, of a parameter that was made here")
    return tensor.spec.requires_grad or tensor.hides_history and _base_requires_grad(builder, tensor)


def _base_requires_grad(builder: GraphBuilder, view: TracedTensor) -> bool:
    """Whether what autograd takes for the base of a view requires grad: not where that is a view itself that was told
    to."""
    storage = view.storage
    entry = None if storage.input is None else builder.inputs[storage.input]
    if entry is None or storage.history is not None or not entry.value.requires_grad:
        return True
    answer = views_require_grad(entry.value)
    builder.guards.add(entry.source, "python", views_require_grad if answer else views_require_none,
                        "requires_grad of a view that was made under no_grad")
    return answer


_BY_SPEC: dict[str, Callable[[GraphBuilder, TracedTensor], Any]] = {
    "shape": _of_spec(lambda s: s.shape),
    "dtype": _of_spec(lambda s: s.dtype),
    "device": _of_spec(lambda s: s.device),
    "ndim": _of_spec(lambda s: s.ndim),
    "layout": _of_spec(lambda s: torch.strided),
    "itemsize": _of_spec(lambda s: s.dtype.itemsize),
    "nbytes": _of_spec(lambda s: s.nbytes),
    "names": _of_spec(lambda s: (None,) * s.ndim),
    **{f"is_{kind}": _of_spec(lambda s, kind=kind: s.device.type == kind) for kind in ("cpu", "cuda", "mps", "xpu")},
    **dict.fromkeys(("is_ipu", "is_xla", "is_mtia", "is_maia", "is_vulkan", "is_mkldnn", "is_meta", "is_sparse",
                     "is_sparse_csr", "is_nested"), _of_spec(lambda s: False)),
    "is_quantized": _of_spec(lambda s: s.dtype in QUANTISED),
}
#: attributes that only the spec tells
OF_SPEC = frozenset(_BY_SPEC)

_ATTRIBUTES: dict[str, Callable[[GraphBuilder, TracedTensor], Any]] = {
    **_BY_SPEC,
    "requires_grad": _requires_grad,
    "is_leaf": _is_leaf,
    "retains_grad": _retains_grad,
    "grad": _grad,
    "grad_fn": _grad_fn,
    "data": _data,
    "T": _transposed(_aten.numpy_T.default, torch._C.TensorBase.T.__get__),
    "mT": _transposed(_aten.mT.default, torch._C.TensorBase.mT.__get__),
    "H": _called(torch._C.TensorBase.H.__get__),
    "mH": _called(torch._C.TensorBase.mH.__get__),
    "real": _called(torch._C.TensorBase.real.__get__),
    "imag": _called(torch._C.TensorBase.imag.__get__),
}


# -- methods and functions that only read metadata


def _size(builder: GraphBuilder, self: TracedTensor, dim: int | None = None) -> Any:
    return self.shape if dim is None else self.shape[_axis(self, dim)]


def _stride(builder: GraphBuilder, self: TracedTensor, dim: int | None = None) -> Any:
    return self.spec.stride if dim is None else self.spec.stride[_axis(self, dim)]


def _axis(tensor: TracedTensor, dim: Any) -> int:
    rank = tensor.ndim
    if not isinstance(dim, int):
        raise Uncapturable("unsupported_call", "a dimension that is no plain int")
    low = max(rank, 1)
    if not -low <= dim < low or rank == 0:
        raise Uncapturable("exception", f"dimension {dim} of a tensor with {rank}")
    return dim % rank


def _is_contiguous(
    builder: GraphBuilder, self: TracedTensor, memory_format: torch.memory_format = torch.contiguous_format
) -> bool:
    spec = self.spec
    if spec.is_static and memory_format is not torch.contiguous_format:
        return torch.empty_strided(spec.shape, spec.stride, device="meta").is_contiguous(memory_format=memory_format)
    try:
        return has_format(builder.sizes, spec, memory_format)
    except NotCovered:
        raise Uncapturable(
            "unsupported_call", f"is_contiguous(memory_format={memory_format}) with symbolic sizes") from None


def _storage_offset(builder: GraphBuilder, self: TracedTensor) -> Any:
    if self.storage.input is not None:
        raise Uncapturable("unsupported_value", "the storage offset of a tensor from outside")
    return self.spec.offset


def _get_device(builder: GraphBuilder, self: TracedTensor) -> int:
    index = self.spec.device.index
    return -1 if self.spec.device.type == "cpu" else (index or 0)


def _numel(builder: GraphBuilder, input: TracedTensor | None = None, self: TracedTensor | None = None) -> Any:
    tensor = input if input is not None else self
    assert tensor is not None
    return tensor.spec.numel


def _length(builder: GraphBuilder, self: TracedTensor) -> Any:
    if not self.ndim:
        raise Uncapturable("exception", "len() of a 0-d tensor")
    return self.shape[0]


def shows_inference_tensor(builder: Any, self: TracedTensor) -> bool:
    """`is_inference()`."""
    if self.storage.input is not None:
        return bool(builder.inputs[self.storage.input].value.is_inference())
    return self.storage.inference


def _refuse_method(name: str) -> Callable[..., Any]:
    def handler(builder: GraphBuilder, *args: Any, **kwargs: Any) -> Any:
        raise Uncapturable("unsupported_call", f"Tensor.{name}()")

    return handler


_Base = torch._C.TensorBase

#: methods that are functions of torch, too
_BOTH: dict[str, Callable[..., Any]] = {
    "is_floating_point": lambda builder, input: input.spec.dtype.is_floating_point,
    "is_complex": lambda builder, input: input.spec.dtype.is_complex,
    "is_signed": lambda builder, input: input.spec.dtype.is_signed,
    "is_conj": lambda builder, input: input.lazy_bits[0],
    "is_neg": lambda builder, input: input.lazy_bits[1],
}

metadata_methods: dict[Any, Callable[..., Any]] = {
    **{getattr(owner, name): read for name, read in _BOTH.items() for owner in (_Base, torch)},
    _Base.size: _size,
    _Base.stride: _stride,
    _Base.dim: lambda builder, self: self.ndim,
    _Base.ndimension: lambda builder, self: self.ndim,
    _Base.numel: lambda builder, self: self.spec.numel,
    _Base.nelement: lambda builder, self: self.spec.numel,
    _Base.element_size: lambda builder, self: self.spec.dtype.itemsize,
    _Base.is_contiguous: _is_contiguous,
    _Base.storage_offset: _storage_offset,
    _Base.get_device: _get_device,
    _Base.is_inference: shows_inference_tensor,
    _Base.__len__: _length,
    torch.numel: _numel,
    torch.promote_types: lambda builder, type1, type2: torch.promote_types(type1, type2),
    torch.can_cast: lambda builder, from_, to: torch.can_cast(from_, to),
    **{getattr(_Base, name): _refuse_method(name) for name in (
        "data_ptr", "untyped_storage", "set_", "resize_", "resize_as_", "numpy", "register_hook", "retain_grad",
        "backward", "_is_view", "is_shared", "share_memory_", "pin_memory", "is_pinned", "record_stream", "_set_data",
        "to_sparse", "sparse_mask", "storage_type", "__reduce_ex__", "_make_subclass", "apply_", "map_", "map2_",
        "is_set_to") if hasattr(_Base, name)},
}

__all__ = ["OF_SPEC", "metadata_methods", "read_attribute"]
