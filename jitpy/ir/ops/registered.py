"""Registrations of a program for operators of its own: gradients and other rules written in Python.

Such code reads what it likes of Python whenever it runs, so that nothing derived from one run of it may be kept.
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch._library.triton
from torch._library.custom_ops import OPDEFS
from torch._library.simple_registry import singleton

from ..failures import is_programs_own
from ..op import Op
from .oracle import forget as forget_answers
from .table import forget

#: kernels that were registered in Python, in the dispatcher's table of an operator
_PYTHON = r"\w*(\[alias\])?: registered at [^\n]*(\.py|>):\d+ "
_GRADIENT = re.compile(f"^Autograd{_PYTHON}", re.MULTILINE)
_COMPOSITE = re.compile(f"^CompositeImplicitAutograd{_PYTHON}", re.MULTILINE)
#: kernels made of other operators, which autograd does not look into
_EXPLICIT = re.compile(f"^CompositeExplicitAutograd{_PYTHON}", re.MULTILINE)
_OF_TORCH = frozenset({"aten", "prims", "prim"})


def definition_of(overload: torch._ops.OpOverload) -> Any:
    """The `CustomOpDef` behind an operator made with `torch.library.custom_op`, or None."""
    return None if overload.namespace in _OF_TORCH else OPDEFS.get(overload._schema.name)


def fake_of(overload: torch._ops.OpOverload) -> Any:
    """The shape rule of `torch.library.register_fake`, or None."""
    if overload.namespace in _OF_TORCH:
        return None
    entry = singleton._data.get(overload._schema.name)
    return None if entry is None else entry.fake_impl.kernel


class Registration:
    """A registration in Python for an operator: true as long as that is the same."""

    def __init__(self, overload: torch._ops.OpOverload) -> None:
        self.name = overload._schema.name
        self.state = self._read()

    def _read(self) -> tuple[Any, ...]:
        definition, entry = OPDEFS.get(self.name), singleton._data.get(self.name)
        return (definition, None if definition is None else definition._backward_fn,
                None if entry is None else entry.fake_impl.kernel)

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return self.state != (None, None, None)

    def __call__(self, _: Any = None) -> bool:
        return all(a is b for a, b in zip(self._read(), self.state, strict=True))


_KNOWN: dict[str, tuple[torch._ops.OpOverload, Registration]] = {}


def registration_of(overload: torch._ops.OpOverload) -> Registration:
    """The registrations of an operator. Once one has changed, nothing derived from it is kept."""
    known, found = _KNOWN.get(str(overload), (None, None))
    if known is overload and found is not None and found():
        return found
    if known is not None:
        forget(overload)
        forget_answers()
    made = Registration(overload)
    _KNOWN[str(overload)] = overload, made
    return made


def body_of(overload: torch._ops.OpOverload) -> Any:
    """The function behind an operator made with `torch.library.triton_op`, which says that it may be looked into."""
    definition = definition_of(overload)
    kernel = None if definition is None else definition._init_fn
    if kernel is None or kernel.__module__ != torch._library.triton.__name__:
        return None
    return inspect.getclosurevars(kernel).nonlocals.get("fn")


class _Entered(Exception):
    """Carries the code of the first Python function that an operator calls, which is not run."""

    def __init__(self, frame: types.FrameType) -> None:
        super().__init__(frame.f_code.co_name)
        self.code = frame.f_code


#: what stands for an argument of a type in a call whose kernel is not run
_SAMPLES: dict[str, Any] = {"int": 1, "SymInt": 1, "float": 1.0, "bool": False, "number": 1, "str": "", "Device": "cpu",
                            "ScalarType": torch.float32, "Layout": torch.strided,
                            "MemoryFormat": torch.contiguous_format}


def _nothing() -> None:
    return None


def _registrations(overload: torch._ops.OpOverload) -> str:
    """The dispatcher's table of an operator: it grows with each kernel, also by one that replaces another (2 us)."""
    return torch._C._dispatch_dump(overload.name())


class BodyOf:
    """Guard predicate: a composite operator is made of the same function. `table` is the dispatcher's."""

    def __init__(self, overload: torch._ops.OpOverload, table: str,
                 body: Callable[[], types.FunctionType | None]) -> None:
        self.overload, self.table, self.body = overload, table, body

    def __call__(self, _: Any = None) -> bool:
        return self.body() is not None and _registrations(self.overload) == self.table


#: the newest predicate of each operator: calls in one graph share it
_BODIES: dict[torch._ops.OpOverload, BodyOf] = {}


def composite_body(overload: torch._ops.OpOverload, needs_grad: bool) -> BodyOf | None:
    """The function in Python that a composite operator is made of. Torch does not tell which that is: the operator is
    called, and left as soon as it enters a function. None where there is none, or where several have that code, or
    where autograd would not look into it, while a profiler runs, and for functions that `gc.freeze` hides."""
    if needs_grad and not has_python_body(overload):
        return None
    table, known = _registrations(overload), _BODIES.get(overload)
    if known is None or known.table != table or known.body is not _nothing and known.body() is None:
        if sys.getprofile() is not None:
            return None
        has_body = has_python_body(overload) or _is_registered(overload, _EXPLICIT)
        body = _found_body(overload) if has_body and not fake_of(overload) else _nothing
        known = _BODIES[overload] = BodyOf(overload, table, body)
    return known if known.body() is not None else None


def _found_body(overload: torch._ops.OpOverload) -> Callable[[], types.FunctionType | None]:
    samples: list[Any] = []
    for argument in overload._schema.arguments:
        kind = str(argument.real_type)
        if kind.startswith("Optional["):
            samples.append(None)
        elif "List[" in kind:
            samples.append([])
        else:
            samples.append(torch.empty(()) if kind == "Tensor" else _SAMPLES.get(kind))

    def leave(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is not torch._ops.OpOverload.__call__.__code__:
            raise _Entered(frame)

    count = sum(not argument.kwarg_only for argument in overload._schema.arguments)
    named = {one.name: sample for one, sample in
             zip(overload._schema.arguments[count:], samples[count:], strict=True)}
    try:
        sys.setprofile(leave)
        overload(*samples[:count], **named)
    except _Entered as entered:
        found = [one for one in gc.get_referrers(entered.code) if type(one) is types.FunctionType
                 and one.__code__ is entered.code]
        return weakref.ref(found[0]) if len(found) == 1 else _nothing
    except Exception:
        return _nothing  # it does not take samples
    finally:
        sys.setprofile(None)
    return _nothing


def has_python_gradient(overload: torch._ops.OpOverload) -> bool:
    """Whether the program's own Python runs when autograd meets this operator."""
    definition = definition_of(overload)
    if definition is not None:
        return definition._backward_fn is not None
    return _is_registered(overload, _GRADIENT)


def has_python_body(overload: torch._ops.OpOverload) -> bool:
    """Whether an operator is the program's own Python, which calls other operators: torch's modes see those alone."""
    return _is_registered(overload, _COMPOSITE)


def has_python_rules(overload: torch._ops.OpOverload) -> bool:
    """Whether the program's own Python may run when a transform of torch.func meets this operator."""
    return definition_of(overload) is not None or has_python_gradient(overload) or has_python_body(overload)


def looks_at_grad_mode(op: Op) -> bool:
    """Whether an op does more than its kernel where autograd would record it: a graph without gradients calls it with
    grad mode off, as what it is given may require grad all the same (a detached tensor shares its operand's place)."""
    return op.is_recordable or is_programs_own(op)


def _is_registered(overload: torch._ops.OpOverload, kernels: re.Pattern[str]) -> bool:
    if overload.namespace in _OF_TORCH:
        return False
    return kernels.search(torch._C._dispatch_dump(overload.name())) is not None
