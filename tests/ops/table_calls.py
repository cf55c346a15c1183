"""Valid calls of the ops of the table, with small operands: those of torch's own samples, and of their gradients.

`calls()` gives for each op the first call of some content that torch's samples lead to, `(args, kwargs)`.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._python_dispatch import TorchDispatchMode

from jitpy.ir import ops

Call = tuple[tuple[Any, ...], dict[str, Any]]

#: Samples of each operator that are looked at.
SAMPLES = 4
#: The largest operand.
LARGEST = 4000

#: Ops whose results are random or memory as it was found, and one that relies on what its forward op left.
LEFT_OUT = {
    "aten.log_sigmoid_backward.default",
    "aten.dropout.default", "aten.empty.memory_format", "aten.empty_like.default", "aten.empty_strided.default",
    "aten.new_empty.default", "aten.rand.default", "aten.rand_like.default", "aten.randn.default",
    "aten.randn_like.default", "aten.uniform.default",
}

_T = torch.randn
_LABELS = torch.tensor([0, 2, 1, 3])

#: Calls that no sample leads to.
_MORE: dict[str, Call] = {
    "aten._fused_rms_norm.default": ((_T(3, 4), [4], _T(4), 1e-5), {}),
    "aten._fused_rms_norm_backward.default": ((_T(3, 4), _T(3, 4), [4], _T(3, 1), _T(4), [True, True]), {}),
    "aten._native_batch_norm_legit.no_stats": ((_T(3, 4, 5), _T(4), _T(4), True, 0.1, 1e-5), {}),
    "aten._native_batch_norm_legit_functional.default":
        ((_T(3, 4, 5), _T(4), _T(4), _T(4), _T(4).abs(), True, 0.1, 1e-5), {}),
    "aten.batch_norm.default":
        ((_T(3, 4, 5), _T(4), _T(4), _T(4), _T(4).abs(), False, 0.1, 1e-5, False), {}),
    "aten.conv1d.default": ((_T(2, 3, 8), _T(4, 3, 3), _T(4)), {}),
    "aten.conv2d.padding": ((_T(2, 3, 8, 8), _T(4, 3, 3, 3), _T(4), [1, 1], "same"), {}),
    "aten.cross_entropy_loss.default": ((_T(4, 5), _LABELS), {}),
    "aten.ctc_loss.IntList": ((_T(6, 2, 5).log_softmax(-1), torch.tensor([[1, 2], [3, 1]]), [6, 6], [2, 2]), {}),
    "aten.ctc_loss.Tensor": ((_T(6, 2, 5).log_softmax(-1), torch.tensor([[1, 2], [3, 1]]), torch.tensor([6, 6]),
                              torch.tensor([2, 2])), {}),
    "aten.moveaxis.int": ((_T(2, 3, 4), 0, 2), {}),
    "aten.movedim.int": ((_T(2, 3, 4), 0, 2), {}),
    "aten.nll_loss.default": ((_T(4, 5), _LABELS), {}),
    "aten.nll_loss_nd.default": ((_T(4, 5), _LABELS), {}),
    "aten.numpy_T.default": ((_T(3, 4),), {}),
    "aten.slice_scatter.default": ((_T(4, 3), _T(2, 3), 0, 1, 3, 1), {}),
    **{f"aten.__{side}shift__.{kind}": ((torch.arange(6), 2 if kind == "Scalar" else torch.arange(6)), {})
       for side in "lr" for kind in ("Scalar", "Tensor")},
    "aten.to.device": ((_T(3, 4), torch.device("cpu"), torch.float64), {}),
    "aten.to.dtype": ((_T(3, 4), torch.float64), {}),
    "aten.to.dtype_layout": ((_T(3, 4),), {"dtype": torch.float64}),
    "aten.to.other": ((_T(3, 4), torch.zeros(2, dtype=torch.int32)), {}),
    "aten.type_as.default": ((_T(3, 4), torch.zeros(2, dtype=torch.int32)), {}),
    "aten.unique_dim.default": ((_T(3, 4), 0), {}),
    "aten.unique_dim_consecutive.default": ((_T(3, 4), 0), {}),
    "aten._upsample_bicubic2d_aa.vec": ((_T(1, 2, 4, 4), [6, 6], False, None), {}),
    "aten._upsample_bicubic2d_aa_backward.default":
        ((_T(1, 2, 6, 6), [6, 6], [1, 2, 4, 4], False, None, None), {}),
    **{f"aten.{kind}{d}d.vec": ((_T(1, 2, *[4] * d), [6] * d, None), {})
       for kind in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)},
    **{f"aten.{kind}{d}d_backward.default": ((_T(1, 2, *[6] * d), [6] * d, [1, 2, *[4] * d]), {})
       for kind in ("upsample_nearest", "_upsample_nearest_exact") for d in (2, 3)},
    **{f"aten.upsample_{kind}.vec": ((_T(1, 2, *[4] * d), [6] * d, False, None), {})
       for kind, d in (("linear1d", 1), ("bilinear2d", 2), ("bicubic2d", 2), ("trilinear3d", 3))},
}  # fmt: skip


class _GraphBuilder(TorchDispatchMode):
    """Every call of a table op below autograd."""

    def __init__(self, found: dict[str, list[Call]], names: set[str]) -> None:
        super().__init__()
        self.found = found
        self.names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name in self.names:
            self.found.setdefault(name, []).append((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def table_ops() -> list[str]:
    """The names of the ops that programs can call."""
    return [name for name in ops.defined_names() if name.startswith("aten.") and name not in LEFT_OUT]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, (list, tuple)) else []


@functools.cache
def calls() -> dict[str, Call]:
    """A call for each op of the table. Operands are float32 where the op takes that."""
    names = set(table_ops())
    found: dict[str, list[Call]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            _record(op, found, names)
        _try_other_overloads(found, names)
    for name, call in _MORE.items():
        found.setdefault(name, []).append(call)
    return {name: best for name in sorted(found) if (best := _best(found[name])) is not None}


def _record(op: OpInfo, found: dict[str, list[Call]], names: set[str]) -> None:
    """The calls that an operator's first samples lead to."""
    supported = op.supported_dtypes("cpu")
    dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if d in supported), None)
    if dtype is None:
        return
    gradients = dtype is torch.float32 and op.supports_autograd
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), SAMPLES):
        try:
            with _GraphBuilder(found, names):
                result = op.op(sample.input, *sample.args, **sample.kwargs)
                outputs = [t for t in tensors_in(result) if t.requires_grad] if gradients else []
                if outputs:
                    torch.autograd.backward([t.abs().sum() for t in outputs])
        except Exception:
            continue
        own = {op.aten_name, op.name.rpartition(".")[2], *(alias.name.rpartition(".")[2] for alias in op.aliases)}
        for name in sorted(own):
            for overload in _overloads(name, names):
                _try(found, overload, (sample.input, *sample.args), sample.kwargs)


def _overloads(name: str, names: set[str]) -> Iterator[str]:
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        if f"aten.{name}.{overload}" in names:
            yield f"aten.{name}.{overload}"


def _try(found: dict[str, list[Call]], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        with torch.no_grad():
            ops.get(name).target(*args, **kwargs)
    except Exception:
        return
    found.setdefault(name, []).append((args, kwargs))


def _try_other_overloads(found: dict[str, list[Call]], names: set[str]) -> None:
    """Calls of overloads with numbers in the place of tensors, or of tensors in the place of numbers."""
    for name in sorted(names - found.keys()):
        packet = name.split(".")[1]
        for other in (packet, packet.strip("_")):
            for overload in list(found):
                if overload.split(".")[1] not in (other, f"bitwise_{other}"):
                    continue
                for args, kwargs in found[overload][:2]:
                    for places in itertools.product((False, True), repeat=min(len(args), 3)):
                        changed = tuple(
                            _exchanged(arg) if k < 3 and places[k] else arg for k, arg in enumerate(args))
                        if name not in found:
                            _try(found, name, changed, kwargs)


def _exchanged(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return 2
    return torch.full((), arg) if isinstance(arg, (int, float)) else arg


def _best(found: list[Call]) -> Call | None:
    """The first call whose operands are neither empty nor large, nor single numbers only."""
    small = [(args, kwargs) for args, kwargs in found
             if all(t.numel() <= LARGEST and t.layout is torch.strided for t in tensors_in((args, kwargs)))]
    full = [call for call in small if all(t.numel() > 0 for t in tensors_in(call))]
    shaped = [call for call in full if max((t.dim() for t in tensors_in(call)), default=0) > 0]
    return next(iter([*shaped, *full, *small]), None)
