"""Keeps torch's shape functions from importing torch's compiler.

Many shape functions of torch are Python, and some are wrapped by `torch._disable_dynamo`, which imports the whole
compiler (seconds) when it is first called, only to be invisible to it. The wrapper looks for the invisible form on the
function first, so while shape functions run without the compiler loaded, the function itself stands there. Reverse-mode
transforms of `torch.func` ask for the compiler by name; an object that loads it only when it must has that name then.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch

_ATTRIBUTE = "__dynamo_disable"
_MODULES = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations")

_lock = threading.RLock()
_depth = 0
_wrapped: list[Any] | None = None


@contextlib.contextmanager
def without_compiler_import() -> Iterator[None]:
    """Run torch's shape functions in this block without loading `torch._dynamo`. Nests; does nothing once loaded."""
    global _depth
    if "torch._dynamo" in sys.modules:
        yield
        return
    with _lock:
        if not _depth:
            for function in _functions():
                setattr(function, _ATTRIBUTE, function)
            vars(torch).setdefault("_dynamo", _COMPILER)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                for function in _functions():
                    if getattr(function, _ATTRIBUTE, None) is function:
                        delattr(function, _ATTRIBUTE)
                if vars(torch).get("_dynamo") is _COMPILER:
                    del torch._dynamo


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Hide what autograd saves in this block from the program's saved-tensor hooks: ops run to learn something."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        yield


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Compiler:
    """Stands for `torch._dynamo` while that is not loaded: torch.func turns its autograd compiler off around backward
    passes, which needs no loading. Whatever else is asked for is loaded."""

    def __getattr__(self, name: str) -> Any:
        if name == "compiled_autograd" and "torch._dynamo" not in sys.modules:
            return _AUTOGRAD_COMPILER
        return getattr(torch.__getattr__("_dynamo"), name)  # torch loads it as for anybody who asks


class _AutogradCompiler:
    """See `_Compiler`."""

    _disable = contextlib.nullcontext

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.__getattr__("_dynamo").compiled_autograd, name)


_COMPILER, _AUTOGRAD_COMPILER = _Compiler(), _AutogradCompiler()


def _functions() -> list[Any]:
    """The functions that `torch._disable_dynamo` wraps in the modules of shape functions. Found once."""
    global _wrapped
    if _wrapped is None:
        wrapper = torch._disable_dynamo(lambda: None).__code__  # type: ignore[attr-defined]
        found: dict[int, Any] = {}
        seen: set[int] = set()
        stack = [
            value
            for name, module in list(sys.modules.items())
            if name.startswith(_MODULES) and module is not None
            for value in vars(module).values()
        ]
        for table in torch._decomp.global_decomposition_table.values():
            stack += table.values()
        while stack:
            function = stack.pop()
            if not isinstance(function, types.FunctionType) or id(function) in seen:
                continue
            seen.add(id(function))
            cells = [value for cell in function.__closure__ or () if (value := _contents(cell)) is not None]
            if function.__code__ is wrapper:
                found.update((id(value), value) for value in cells if isinstance(value, types.FunctionType))
            stack += [*cells, getattr(function, "__wrapped__", None)]
        _wrapped = list(found.values())
    return _wrapped


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None
