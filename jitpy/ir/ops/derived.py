"""Shape rules derived from torch: the op itself, run on meta tensors.

This covers every op without a hand-written rule. A meta tensor has sizes and no memory, so the op's own code computes
the result's sizes, strides, dtype and whether it requires grad. Where an op has no meta kernel, or its meta kernel
raises, the real CPU kernel decides, on zeros, if that is cheap and the op is torch's. Whether a result is a view is
read off its storage.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..interrupts import CaptureMode
from ..op import NotCovered, Op
from ..sizes import SizeEnv
from ..spec import Dim, ScalarSpec, Spec, TensorSpec, contiguous_stride
from ..trees import tree_leaves, tree_map
from .layout import channels_last_stride, is_channels_last_strides, is_contiguous
from .oracle import CPU, META, SAMPLES, ask, fake_tensor, filled, mentions_symbols, spec_of, undispatched

#: The largest input, in bytes, that is materialised to run a real kernel on zeros.
_REAL_LIMIT = 1 << 24

#: Ops whose meta kernel gives other strides or sizes than the CPU kernel.
MISREPORTED = frozenset(
    f"aten.{name}"
    for name in (
        "svd.default",
        "linalg_svd.default",
        "_linalg_svd.default",
        "linalg_eig.default",
        "native_batch_norm.default",
        "nonzero_static.default",
        "embedding_bag.default",
        "embedding_bag.padding_idx",
        "_embedding_bag.default",
        "_embedding_bag_forward_only.default",
        "fft_hfft2.default",
        "fft_hfftn.default",
        "fft_rfft2.default",
        "fft_rfftn.default",
        "max_unpool2d.default",
        "_fft_r2c.default",
        "_fft_c2r.default",
        "_fft_c2c.default",
    )
)

#: The same, where it is the kernel of the CPU that keeps channels last, and that of other devices does not.
_MISREPORTED_ON_CPU = frozenset(
    {
        "aten.pixel_shuffle.default",
        "aten.pixel_unshuffle.default",
        "aten.roll.default",
        "aten.normal.Tensor_float",
        "aten.normal.float_Tensor",
        "aten.normal.Tensor_Tensor",
    }
)

#: Ops whose kernels on the CPU have results in channels-last where an argument (by number) is, and whose meta kernels
#: say row-major.
_AS_IMAGE_ON_CPU = {
    "aten.pad.default": 0,
    "aten.reflection_pad2d.default": 0,
    "aten.replication_pad2d.default": 0,
    "aten.reflection_pad2d_backward.default": 1,
    "aten.replication_pad2d_backward.default": 1,
    "aten.reflection_pad3d.default": 0,
    "aten.replication_pad3d.default": 0,
    "aten.reflection_pad3d_backward.default": 1,
    "aten.replication_pad3d_backward.default": 1,
    "aten.channel_shuffle.default": 0,
}
#: The same for images alone, where image or weight is.
_TRANSPOSED = ("aten.conv_transpose2d.input", "aten.convolution.default")

#: Ops whose results are row-major where the meta kernel keeps channels last; those on GPUs alone.
_ROW_MAJOR = frozenset({"aten.glu_backward.default"})
_ROW_MAJOR_ON_GPUS = frozenset({"aten.pixel_unshuffle.default"})
_NORM_BACKWARD = "aten.native_batch_norm_backward.default"
_ATTENTION_ON_CPU = "aten._scaled_dot_product_flash_attention_for_cpu.default"

#: Where torch's own operators are.
_NAMESPACES = frozenset(("aten", "prims", "prim"))

#: Ops that look at their data, to check it or to choose between ways to the same result: the sizes of the result do
#: not depend on it.
READ_THEIR_DATA = frozenset(
    f"aten.{name}"
    for name in (
        "cov.default",
        "corrcoef.default",
        "istft.default",
        "embedding_bag.default",
        "embedding_bag.padding_idx",
        "_embedding_bag.default",
        "_embedding_bag_forward_only.default",
    )
)

@dataclass(frozen=True, slots=True)
class Derived:
    """The result of running an op on meta tensors: the result's spec, and its aliasing ('view', 'self' or 'copy')."""

    spec: Spec
    aliasing: str


def derive(
    op: Op,
    env: SizeEnv,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    grad_enabled: bool = True,
    suspicious: bool = False,
) -> Derived:
    """Run `op` on fake tensors for `args` (specs, constants, sizes). Cached: for symbolic sizes with the graph's `env`.

    Raises what eager raises for these arguments; NotCovered where sizes depend on data, or nothing can tell.
    `suspicious` arguments look wrong: as meta kernels accept some that eager rejects, the CPU kernel is asked first.
    """
    if isinstance(op.target, torch._ops.OpOverload) and not op.numbers_are_sizes:
        # the values of numbers that kernels compute with decide no size
        args = (*[SAMPLES[value.kind] if isinstance(value, ScalarSpec) and "number" in str(argument.type) else value
                  for value, argument in zip(args, op.target._schema.arguments, strict=False)],)
    symbolic = mentions_symbols(args) or mentions_symbols(tuple(kwargs.values()))

    def answer() -> Derived:
        if symbolic:
            from .symbolic import derive_symbolic

            return derive_symbolic(op, env, args, kwargs, grad_enabled, suspicious)
        return _derive_static(op, args, kwargs, grad_enabled, suspicious)

    # what holds of symbols holds in their graph, for as long as what is known of them
    question = op.name, grad_enabled, torch.get_default_dtype(), symbolic and (suspicious, env.is_generic)
    return ask(question, (args, kwargs), answer, env if symbolic else None)


@functools.cache
def makes_new_memory(target: Any) -> bool:
    """Whether the schema alone says that no result shares memory with an argument. That of an op which torch composes
    of others does not say: `dropout` may return its input. Nor do those of lift and of unsafe views tell the truth."""
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace == "aten"
        and not any(argument.alias_info is not None for argument in target._schema.arguments)
        and not any(result.alias_info is not None for result in target._schema.returns)
        and not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
        and target is not torch.ops.aten.lift.default
        and "unsafe_" not in target.overloadpacket.__name__
    )


def _derive_static(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool, suspicious: bool
) -> Derived:
    refuse_data_dependent(op)
    device = common_device(op, args, kwargs)
    if is_misreported(op, device, args):
        return _run_for_real(op, args, kwargs, grad_enabled, NotCovered(f"{op.name} on meta tensors"))
    if suspicious or is_doubtful(op, device, args):
        with contextlib.suppress(NotCovered):
            return _run_for_real(op, args, kwargs, grad_enabled, NotCovered(f"{op.name} on meta tensors"))
    try:
        result, inputs = call(op, args, kwargs, grad_enabled, lambda spec: fake_tensor(spec, META))
        return as_laid_out(op, SizeEnv(), args, describe(result, inputs, device), device)
    except NotCovered:
        raise
    except Exception as error:
        # Not every meta kernel exists, and some are stricter than eager: the real kernel has the last word.
        return _run_for_real(op, args, kwargs, grad_enabled, error)


def as_laid_out(op: Op, env: SizeEnv, args: tuple[Any, ...], found: Derived, device: torch.device) -> Derived:
    """The answer of a meta kernel, with the strides and dtypes that the device's kernel gives its results."""
    spec: Any = found.spec
    if op.name == _ATTENTION_ON_CPU:
        out, sums, *rest = spec  # torch 2.11's meta kernel has float32 logarithms of sums always
        wide = torch.float64 if out.dtype is torch.float64 else torch.float32
        return replace(found, spec=(out, sums.with_(dtype=wide), *rest))
    if op.name == _NORM_BACKWARD and device.type == "cuda" and len(args) > 7 and args[7] is False:
        return replace(found, spec=_with_row_major_image(found.spec))
    stride = _other_stride(op, env, args, found.spec, device) if isinstance(found.spec, TensorSpec) else None
    return found if stride is None else replace(found, spec=spec.with_(stride=stride))


def _with_row_major_image(spec: Any) -> Any:
    """On GPUs the gradient of images is row-major where running statistics were used, however the images lie."""
    image, *rest = spec
    return image if image is None else image.with_(stride=contiguous_stride(image.shape)), *rest


def _other_stride(
    op: Op, env: SizeEnv, args: tuple[Any, ...], spec: TensorSpec, device: torch.device
) -> tuple[Dim, ...] | None:
    """The strides of a result where the device's kernel lays it out in another way than the meta kernel says."""
    if op.name in _ROW_MAJOR or device.type == "cuda" and op.name in _ROW_MAJOR_ON_GPUS:
        return contiguous_stride(spec.shape)
    if device.type == "cpu" and op.name in _TRANSPOSED and len(spec.shape) == len(args[0].shape) == 4:
        is_image = any(is_channels_last_strides(env, x.shape, x.stride) for x in args[:2])
        return channels_last_stride(spec.shape) if is_image else None
    if device.type != "cpu" or op.name not in _AS_IMAGE_ON_CPU or "circular" in args:
        return None
    image = args[_AS_IMAGE_ON_CPU[op.name]]
    is_image = len(spec.shape) in (4, 5) and is_channels_last_strides(env, image.shape, image.stride)
    return channels_last_stride(spec.shape) if is_image else None


def is_misreported(op: Op, device: torch.device, args: tuple[Any, ...]) -> bool:
    """Whether the meta kernel may say another layout than the kernel of the device has."""
    if op.name in MISREPORTED:
        return True
    tensors = _specs_in(args)
    return (
        op.name in _MISREPORTED_ON_CPU
        and device.type == "cpu"
        and not all(is_contiguous(x.shape, x.stride) for x in tensors)
    )


def is_doubtful(op: Op, device: torch.device, args: tuple[Any, ...]) -> bool:
    """Whether the meta kernel, often Python, may promote operands or order axes otherwise than the kernel of the CPU:
    where floating-point operands have several dtypes, and in elementwise ops on what is not laid out in one way."""
    if device.type != "cpu" or getattr(op.target, "namespace", "") not in _NAMESPACES:
        return False
    tensors = _specs_in(args)
    if len({x.dtype for x in tensors if x.shape and (x.dtype.is_floating_point or x.dtype.is_complex)}) > 1:
        return True
    return torch.Tag.pointwise in op.target.tags and not (  # type: ignore[attr-defined]
        len({(x.dtype, x.shape) for x in tensors}) <= 1 and all(is_contiguous(x.shape, x.stride) for x in tensors)
    )


def refuse_data_dependent(op: Op) -> None:
    """NotCovered for ops whose result's size (or value on the host) depends on the data."""
    tags = getattr(op.target, "tags", ())
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        raise NotCovered(f"the result of {op.name} depends on the data")


def common_device(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of the result: an explicit one, else that of the tensors (0-dim CPU tensors follow the others)."""
    specs = _specs_in((args, kwargs))
    found: torch.device | None = None
    for spec in specs:
        if (
            found is None
            or found != spec.device
            and found.type == "cpu"
            and all(s.shape == () for s in specs if s.device == found)
        ):
            found = spec.device
        elif spec.device != found and not (spec.device.type == "cpu" and spec.shape == ()):
            raise NotCovered("tensors on several devices")
    explicit = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.device)]
    if explicit:
        if found is not None and explicit[0] != found:
            raise NotCovered("a copy to another device")
        return explicit[0]
    return found if found is not None else torch.device("cpu")


def _specs_in(values: Any) -> list[TensorSpec]:
    return [leaf for leaf in tree_leaves(values) if type(leaf) is TensorSpec]


def call(
    op: Op,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    grad_enabled: bool,
    make: Callable[[TensorSpec], torch.Tensor],
    device: torch.device = META,
) -> tuple[Any, list[torch.Tensor]]:
    """Call the op on fake tensors that `make` builds on `device`; the result, and the fake tensors."""
    inputs: list[torch.Tensor] = []

    def convert(value: Any) -> Any:
        if type(value) is TensorSpec:
            tensor = make(value)
            inputs.append(tensor)
            return tensor
        if isinstance(value, torch.device):
            return device
        if isinstance(value, ScalarSpec):
            return _number(op, value)
        if isinstance(value, torch.Generator):
            return None  # nothing is drawn from the program's own; the default ones are put back
        return value

    with undispatched(), torch.set_grad_enabled(grad_enabled):
        call_args, call_kwargs = tree_map(convert, (args, kwargs))
        if not inputs and isinstance(op.target, torch._ops.OpOverload):
            if any(a.name == "device" for a in op.target._schema.arguments):
                call_kwargs["device"] = device
        return op.target(*call_args, **call_kwargs), inputs


def _number(op: Op, spec: ScalarSpec) -> Any:
    """A sample of a host scalar: its type matters, its value must not."""
    if op.kind not in ("pointwise", "reduction", "matmul"):
        raise NotCovered("a host scalar decides the result's size")
    return SAMPLES[spec.kind]


def _run_for_real(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], grad_enabled: bool, error: Exception
) -> Derived:
    """The result or error of the CPU kernel itself, where that does not depend on the values.

    It is run on zeros and on ones, and refuses to look at a value on the way. The ops in `READ_THEIR_DATA` may look,
    and may refuse one of the two. Kernels that are not torch's look unseen: these are not asked.
    """
    specs = _specs_in((args, kwargs))
    if (
        not specs
        or not op.is_pure
        or getattr(op.target, "namespace", "aten") not in _NAMESPACES
        or any(s.device.type != "cpu" for s in specs)
        or sum(s.numel * s.dtype.itemsize for s in specs) > _REAL_LIMIT
    ):
        raise NotCovered(f"{op.name} on meta tensors: {error}") from error
    reads = op.name in READ_THEIR_DATA
    watch = contextlib.nullcontext if reads else Valueless
    outcomes: list[Derived | Exception] = []
    for value in (0, 1):
        try:
            with watch(), torch.random.fork_rng(devices=[]):
                result, inputs = call(
                    op, args, kwargs, grad_enabled, functools.partial(filled, value=value), CPU
                )
            outcomes.append(describe(result, inputs, CPU))
        except NotCovered:
            raise
        except Exception as failure:
            outcomes.append(failure)
    zeros, ones = outcomes
    if isinstance(zeros, Exception) and isinstance(ones, Exception) and repr(zeros) == repr(ones):
        raise zeros
    accepted = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    if reads and len(accepted) == 1:
        return accepted[0]
    if zeros != ones or isinstance(zeros, Exception):
        raise NotCovered(f"the result of {op.name} depends on the data") from error
    return zeros


class Valueless(CaptureMode):
    """Refuses ops whose results depend on their inputs' values in more than values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags:
            raise NotCovered(f"{func} depends on the data")
        return func(*args, **(kwargs or {}))


def describe(result: Any, inputs: list[torch.Tensor], device: torch.device) -> Derived:
    """The spec and the aliasing of what an op returned."""
    storages = {t.untyped_storage()._cdata for t in inputs}
    kinds: list[str] = []

    def described(value: Any) -> Spec:
        if isinstance(value, torch.Tensor):
            if (
                value.layout is not torch.strided
                or value.is_nested
                or type(value) not in (torch.Tensor, torch.nn.Parameter)
            ):
                raise NotCovered("a result that is no dense tensor")
            if any(value is t for t in inputs):
                kinds.append("self")
            elif value.untyped_storage()._cdata in storages:
                kinds.append("view")
            else:
                kinds.append("copy")
            return spec_of(value, device)
        if value is None:
            return None
        if isinstance(value, (tuple, list)):
            return tuple(map(described, value))
        if type(value) in (bool, int, float, complex):
            return ScalarSpec(type(value))
        if isinstance(value, torch.SymInt):
            return ScalarSpec(int)
        raise NotCovered(f"a result of type {type(value).__name__}")

    spec = described(result)
    return Derived(spec, kinds[0] if len(set(kinds)) == 1 else "view" if set(kinds) - {"copy"} else "copy")
