"""Runs torch's OpInfo samples and shows every aten call in them to a callback, at the level the user called it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from jitpy.ir import TensorSpec


class Watch(SchemaCheckMode):
    """Calls `see(overload, args, kwargs)` for every aten call, composite ops included.

    torch lets only a few kinds of mode in front of its composite ops; this passes for one of them.
    """

    def __init__(self, see: Callable[..., Any]) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self.see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        with torch._C._DisablePythonDispatcher():
            return self.see(func, args, kwargs or {})


@contextlib.contextmanager
def watching(see: Callable[..., Any]) -> Iterator[None]:
    """Show every aten call made in the block to `see`, which returns the call's result."""
    with enable_python_dispatcher(), Watch(see):
        yield


def spec_of(value: Any) -> Any:
    """A tensor's spec; other values unchanged."""
    if isinstance(value, torch.Tensor):
        return TensorSpec(
            value.dtype,
            tuple(value.shape),
            tuple(value.stride()),
            value.device,
            value.requires_grad,
            value.storage_offset(),
        )
    return value


def specs_of(tree: Any) -> Any:
    return tree_map(spec_of, tree)


def is_plain(tree: Any) -> bool:
    """Whether all tensors are dense CPU tensors without lazy conjugation or negation."""
    return all(
        t.layout is torch.strided
        and not t.is_conj()
        and not t.is_neg()
        and type(t) in (torch.Tensor, torch.nn.Parameter)
        for t in tree_leaves(tree)
        if isinstance(t, torch.Tensor)
    )


def samples(dtype: torch.dtype, limit: int, skipped: tuple[str, ...] = ()) -> Iterator[Callable[[], Any]]:
    """A thunk for each of the first `limit` samples of every OpInfo that supports `dtype`, with gradients if it has."""
    for info in op_db:
        if dtype not in info.supported_dtypes("cpu") or info.name.startswith(skipped):
            continue
        grad = info.supports_autograd and dtype.is_floating_point
        # Straight from the generator: OpInfo's own iterator looks through the whole call stack for each sample.
        for sample in itertools.islice(info.sample_inputs_func(info, "cpu", dtype, grad), limit):

            def run(info: Any = info, sample: Any = sample) -> Any:
                return info.op(sample.input, *sample.args, **sample.kwargs)

            yield run
