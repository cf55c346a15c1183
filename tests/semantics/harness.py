"""Runs small functions plainly and jitted, in two equal worlds, and compares everything a program could observe.

    @case(lambda: (torch.randn(3),), lambda: (torch.randn(5),), fullgraph=True)
    def doubled(x):
        return x + x

    @case(lambda: (torch.randn(3),), factory=True)
    def counting():                      # makes a fresh function, and what to watch, for each world
        state = {"calls": 0}
        def fn(x):
            state["calls"] += 1
            return x * state["calls"]
        return fn, state

    test_all = make_test(__name__)

Compared after each call: the value; or the exception's type, message and the lines of this file in its traceback;
printed text; the arguments, the watched state, named globals and torch's modes; which of all these objects are the same
object or share storage; gradients, where the result requires grad; and what later writes into the result do. Each
world makes every call twice.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import io
import itertools
import math
import os
import random
import re
import sys
import traceback
import types
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.counting import fallbacks

Maker = Callable[[], tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One function with the arguments of its calls, in order."""

    fn: Callable[..., Any]
    makers: tuple[Maker, ...]
    #: True: captured as one graph. None: not asked.
    fullgraph: bool | None
    #: ids of the break reasons of the first call, in order; None: not asked
    breaks: tuple[str, ...] | None
    #: `fn()` makes the function, or (function, watched state)
    factory: bool
    #: globals of the case's module, with makers of their first values; watched
    globals: dict[str, Callable[[], Any]]
    #: relative tolerance of floating-point values
    tolerance: float
    #: how often the list of calls is made
    rounds: int
    #: whether the program handles errors of its operations: the graph fails then, and plain Python handles them
    handles_errors: bool = False


CASES: dict[str, list[Case]] = collections.defaultdict(list)


def case(
    *makers: Maker,
    fullgraph: bool | None = None,
    breaks: tuple[str, ...] | None = None,
    factory: bool = False,
    globals: dict[str, Callable[[], Any]] | None = None,
    tolerance: float = 2e-5,
    rounds: int = 2,
    handles_errors: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as a case of its module."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES[fn.__module__].append(
            Case(fn, makers or ((lambda: ()),), fullgraph, breaks, factory, globals or {}, tolerance, rounds,
                 handles_errors)
        )
        return fn

    return register


def make_test(module: str) -> Callable[..., None]:
    """The test of all cases of a module: under the `eager` backend, which shows what was captured, and a sample under
    the other systems, by a hash of the case's name: the default backend, and backends as torch.compile takes them,
    which get static or symbolic graphs. JITPY_TEST_ALL=1 runs all cases under all of them."""
    rows = []
    names: collections.Counter[str] = collections.Counter()
    for one in CASES[module]:
        names[one.fn.__name__] += 1
        name = f"{module}.{one.fn.__name__}.{names[one.fn.__name__]}"
        for system, every in _SYSTEMS.items():
            if os.environ.get("JITPY_TEST_ALL") == "1" or zlib.crc32(f"{system} {name}".encode()) % every == 0:
                rows.append(pytest.param(one, system, id=f"{one.fn.__name__}-{system}"))

    @pytest.mark.parametrize(("one", "backend"), rows)
    def test(one: Case, backend: str) -> None:
        check(one, backend)

    return test


#: what runs the captured graphs -> of how many cases one is in the sample
_SYSTEMS = {"eager": 1, "codegen": 6, "fx-static": 24, "fx-symbolic": 24}


def options_of(system: str) -> dict[str, Any]:
    """The arguments of `jitpy.jit` for a system of `_SYSTEMS`, or a backend's name."""
    if not system.startswith("fx-"):
        return {"backend": system}
    return {"backend": Counting(), "dynamic": system == "fx-symbolic"}


class Counting:
    """A backend as torch.compile takes them, which counts its graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return module.forward


def jit(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jitpy.jit`; the function itself where JITPY_SEMANTICS_STUB=1 asks for a trial of the cases alone."""
    if os.environ.get("JITPY_SEMANTICS_STUB") == "1":
        return fn
    import jitpy

    return jitpy.jit(fn, **options)


def check(one: Case, backend: str = "eager", jit: Callable[..., Any] = jit) -> None:
    """AssertionError with a path to the first difference, if there is one."""
    _reset()
    expected = list(_play(one, lambda fn: fn))
    _reset()
    options = options_of(backend)
    fullgraph = one.fullgraph and backend != "fx-symbolic"  # of constant sizes more is known
    if fullgraph:
        options["fullgraph"] = True
    with contextlib.closing(_play(one, lambda fn: jit(fn, **options))) as played:
        for number, wanted in enumerate(expected):
            with fallbacks() as failed, fallbacks("backends") as refused:
                found = next(played)
            assert not [text for text in refused if "it computes sizes" not in text], (one.fn.__name__, number, refused)
            if fullgraph and wanted["error"] is None and not one.handles_errors:
                assert not failed, f"{one.fn.__name__}, call {number}: {failed}"
            for stage in wanted:
                if stage == "gradients" and wanted[stage][0] == "no backward":
                    continue  # eager lost a saved value; a graph without in-place operations may still have it
                difference = _difference(wanted[stage], found[stage], one.tolerance)
                assert difference is None, f"{one.fn.__name__}, call {number}, {stage}: {difference}"
    if one.breaks is not None and os.environ.get("JITPY_SEMANTICS_STUB") != "1":
        found = _break_ids(one)
        assert found == one.breaks, f"{one.fn.__name__} breaks at {found}, not at {one.breaks}"


def _break_ids(one: Case) -> tuple[str, ...]:
    import jitpy

    _reset()
    with _context(one) as (fn, _):
        torch.default_generator.manual_seed(1)
        with contextlib.redirect_stdout(io.StringIO()):
            report = jitpy.explain(fn)(*one.makers[0]())
    return tuple(record.reason.id for record in report.break_reasons)


def _reset() -> None:
    if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
        import jitpy

        jitpy.reset()


@contextlib.contextmanager
def _context(one: Case) -> Iterator[tuple[Callable[..., Any], Any]]:
    """A fresh function and state; the module's globals and torch's modes are put back at the end."""
    module = sys.modules[one.fn.__module__].__dict__
    kept = {name: module[name] for name in one.globals if name in module}
    module.update({name: make() for name, make in one.globals.items()})
    torch.default_generator.manual_seed(0)  # factories make modules
    torch.utils.hooks.RemovableHandle.next_id = 1000  # the keys of hooks in modules
    grad, dtype, threads = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    try:
        made = one.fn() if one.factory else one.fn
        yield made if isinstance(made, tuple) else (made, None)
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        if torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled():
            torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
        for kind, default in (("cpu", torch.bfloat16), ("cuda", torch.float16)):
            torch.set_autocast_enabled(kind, False)
            torch.set_autocast_dtype(kind, default)
        torch.set_autocast_cache_enabled(True)
        for name in one.globals:
            module.pop(name, None)
        module.update(kept)


def _play(
    one: Case, prepare: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Generator[dict[str, Any], None, None]:
    """Make all calls in a fresh world; after each one what was observed."""
    with _context(one) as (fn, state):
        called = prepare(fn)
        for number, maker in enumerate(one.makers * one.rounds):
            torch.default_generator.manual_seed(number + 1)
            random.seed(number + 1)
            args = maker()
            yield _call(one, called, args, state)


def _call(one: Case, called: Callable[..., Any], args: tuple[Any, ...], state: Any) -> dict[str, Any]:
    printed = io.StringIO()
    result, error = None, None
    kwargs: dict[str, Any] = {}
    if args and isinstance(args[-1], Keywords):
        kwargs, args = args[-1].values, args[:-1]
    with contextlib.redirect_stdout(printed):
        try:
            result = called(*args, **kwargs)
        except Exception as raised:
            error = _described(raised, one.fn.__code__.co_filename)
    module = sys.modules[one.fn.__module__].__dict__
    context = (args, kwargs, state, {name: module.get(name, "<deleted>") for name in one.globals})
    modes = _modes()
    result = _settled(result)
    observed = {
        "error": error,
        "printed": printed.getvalue(),
        "torch modes": modes,
        "values": _snapshot((result, context)),
    }
    tensors = _tensors(result)
    wanting = [
        t for t in tensors if t.requires_grad and t.grad_fn is not None and (t.is_floating_point() or t.is_complex())
    ]
    if wanting:
        total = sum((t.abs() if t.is_complex() else t).double().sum() for t in wanting)
        try:
            total.backward()  # type: ignore[union-attr]
            observed["gradients"] = _snapshot((context, [_with_plain_unit_strides(p.grad) for p in _parameters(state)]))
        except RuntimeError as raised:
            observed["gradients"] = ("no backward", type(raised).__name__)
    with torch.no_grad():
        for tensor in tensors:
            if tensor.is_floating_point():
                with contextlib.suppress(RuntimeError):  # overlapping or inference memory refuses, in both worlds
                    tensor.add_(1)
    observed["after writes"] = _snapshot((result, context))
    return observed


def _modes() -> tuple[Any, ...]:
    """What torch keeps for the process or thread: a call may change it."""
    return (
        torch.is_grad_enabled(),
        str(torch.get_default_dtype()),
        torch.is_inference_mode_enabled(),
        str(torch.get_default_device()),
        *((torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind))) for kind in ("cpu", "cuda")),
        torch.is_autocast_cache_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_num_threads(),
        hash(torch.get_rng_state().numpy().tobytes()),
        hash(random.getstate()),
    )


class Keywords:
    """As the last argument of a maker's tuple: keyword arguments."""

    def __init__(self, **values: Any) -> None:
        self.values = values


def _described(error: BaseException, filename: str, depth: int = 0) -> Any:
    frames: list[tuple[str, int | None]] = []
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == filename and not frame.name.startswith("<"):  # 3.12 inlines comprehensions
            # A function that was resumed after a break shows twice: where it left, then where it was.
            if frames and frames[-1][0] == frame.name:
                frames.pop()
            frames.append((frame.name, frame.lineno))
    chain = None
    if depth < 3:
        cause = error.__cause__ if error.__cause__ is not None else error.__context__
        if cause is not None:
            chain = _described(cause, filename, depth + 1)
    lines = frames if depth == 0 else None
    notes = getattr(error, "__notes__", None)
    text = re.sub(r"\b0x[0-9a-f]+", "0x...", str(error))  # where an object lies is no part of what it says
    return type(error).__name__, text, lines, error.__cause__ is not None, notes, chain


def _settled(value: Any) -> Any:
    """Iterators in a result are read (up to a bound), so that their items can be compared."""
    if (
        isinstance(value, (types.GeneratorType, map, filter, zip, enumerate, reversed))
        or type(value).__module__ == "itertools"
    ):
        return Drained(type(value).__name__, list(itertools.islice(value, 50)))
    if type(value) is tuple:
        return tuple(_settled(item) for item in value)
    return value


@dataclasses.dataclass
class Drained:
    kind: str
    items: list[Any]


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    seen: set[int] = set()

    def visit(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            if id(one) not in seen:
                seen.add(id(one))
                found.append(one)
        elif isinstance(one, (list, tuple, set, dict)):
            if id(one) not in seen:
                seen.add(id(one))
                for item in list(one.values()) if isinstance(one, dict) else one:
                    visit(item)
        elif isinstance(one, Drained):
            visit(one.items)

    visit(value)
    return found


def _parameters(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.nn.Module):
        return list(state.parameters())
    return []


# Snapshots: nested tuples of plain data, in which every mutable object and every storage is a number, given in the
# order of the walk. Two worlds with the same values and the same sharing have equal snapshots.

_ATOMS = (
    bool,
    int,
    str,
    bytes,
    complex,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    range,
    slice,
)


def _snapshot(root: Any) -> Any:
    objects: dict[int, int] = {}
    storages: dict[int, int] = {}
    alive: list[Any] = []

    def name(obj: Any) -> tuple[int, bool]:
        known = id(obj) in objects
        alive.append(obj)
        return objects.setdefault(id(obj), len(objects)), known

    def attributes(obj: Any) -> Any:
        found = {}
        for cls in type(obj).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(obj, slot):
                    found[slot] = getattr(obj, slot)
        found.update(getattr(obj, "__dict__", {}))
        # torch.cond and its like, called eagerly, leave marks of torch's compiler on parameters
        return tuple((key, walk(value)) for key, value in found.items() if not key.startswith("_dynamo"))

    def walk(obj: Any) -> Any:
        if isinstance(obj, np.generic):
            return ("numpy", obj.dtype.str, walk(obj.item()))
        if isinstance(obj, float):
            return ("float", obj) if type(obj) is float else (type(obj).__qualname__, float(obj))
        if isinstance(obj, _ATOMS):
            return (type(obj).__qualname__, repr(obj))
        if isinstance(obj, type):
            watched = obj.__dict__.get("__watched__", ())  # class attributes that a case changes
            return ("class", obj.__qualname__, *(walk(obj.__dict__.get(name, "<deleted>")) for name in watched))
        if isinstance(obj, types.ModuleType):
            watched = obj.__dict__.get("__watched__", ())
            return ("module", obj.__name__, *(walk(obj.__dict__.get(name, "<deleted>")) for name in watched))
        if type(obj) is tuple:
            return ("tuple", tuple(walk(item) for item in obj))
        number, known = name(obj)
        if known:
            return ("seen", number)
        kind = type(obj).__qualname__
        if isinstance(obj, torch.Tensor):
            return ("tensor", number, kind, *tensor(obj))
        if isinstance(obj, np.ndarray):
            return ("array", number, *array(obj))
        if isinstance(obj, (types.FunctionType, types.LambdaType)):
            cells = tuple(walk(_contents(cell)) for cell in obj.__closure__ or ())
            defaults = walk(obj.__defaults__), walk(obj.__kwdefaults__)
            return ("function", number, obj.__qualname__, defaults, cells, attributes(obj))
        if isinstance(obj, types.MethodType):
            return ("method", walk(obj.__self__), walk(obj.__func__))
        if isinstance(obj, (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType)):
            return ("builtin", obj.__qualname__)
        if isinstance(obj, functools.partial):
            return ("partial", number, walk(obj.func), walk(obj.args), walk(obj.keywords))
        parts: list[Any] = [kind, number]
        if isinstance(obj, dict):
            parts.append(tuple((walk(key), walk(value)) for key, value in obj.items()))
        elif isinstance(obj, (list, tuple, collections.deque)):
            parts.append(tuple(walk(item) for item in obj))
            parts.append(getattr(obj, "maxlen", None))
        elif isinstance(obj, (set, frozenset)):
            parts.append(tuple(sorted(repr(walk(item)) for item in obj)))
        elif isinstance(obj, BaseException):
            parts += [str(obj), walk(obj.args)]
        elif isinstance(obj, (type({}.keys()), type({}.values()), type({}.items()))):
            parts.append(tuple(walk(item) for item in obj))
        elif isinstance(obj, types.CellType):
            parts.append(walk(_contents(obj)))
        if isinstance(obj, collections.defaultdict):
            parts.append(walk(obj.default_factory))
        return (*parts, attributes(obj))

    def array(a: np.ndarray) -> tuple[Any, ...]:
        base, first = a, a.__array_interface__["data"][0]
        while isinstance(base.base, np.ndarray):
            base = base.base
        memory = base.base.untyped_storage() if isinstance(base.base, torch.Tensor) else None
        start = memory.data_ptr() if memory is not None else base.__array_interface__["data"][0]
        alive.append(memory)
        storage = storages.setdefault(start, len(storages))
        # the stride of an axis of size one, and of an empty array, addresses nothing
        strides = tuple(s for n, s in zip(a.shape, a.strides, strict=True) if n > 1 and a.size)
        return (a.dtype.str, a.shape, strides, first - start, a.flags.writeable, storage, walk(a.tolist()))

    def tensor(t: torch.Tensor) -> tuple[Any, ...]:
        with torch._C.DisableTorchFunction():
            return plain_tensor(t)

    def plain_tensor(t: torch.Tensor) -> tuple[Any, ...]:
        if t.is_nested:
            return (str(t.layout), str(t.dtype), tuple(plain_tensor(part) for part in t.unbind()))
        if t.layout is not torch.strided:
            return (str(t.layout), str(t.dtype), walk(t.detach().to_dense()), t.requires_grad)
        if t.is_meta:
            return (str(t.dtype), "meta", tuple(t.shape), t.stride(), t.requires_grad)
        if torch.nn.parameter.is_lazy(t):
            return ("uninitialized", t.requires_grad)
        if type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return (str(t.dtype), tuple(t.shape), t.requires_grad, attributes(t))
        with torch.no_grad():
            values = t.detach().clone() if not t.is_inference() else t.clone()
        memory = t.untyped_storage()
        alive.append(memory)
        storage = storages.setdefault(memory.data_ptr() or -memory._cdata, len(storages))
        layout = (tuple(t.shape), t.stride(), t.storage_offset())
        try:
            leaf: Any = t.is_leaf
        except RuntimeError as error:  # one of several views of a base that was written to
            leaf = type(error).__name__
        facts = (str(t.dtype), layout, t.requires_grad, leaf, t.is_inference(), t.is_conj(), t.is_neg())
        # Where autograd puts a gradient is its own affair: two gradients may share memory, or not, and an axis of one
        # element gets its stride from the order in which parts were added.
        grad = walk(_with_plain_unit_strides(t.grad.clone())) if leaf is True and t.grad is not None else None
        return (facts, storage, values, grad, attributes(t) if t.__dict__ else ())

    return walk(root)


def _with_plain_unit_strides(grad: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient looked at so that axes of one element have a stride of 1."""
    if grad is None or grad.layout is not torch.strided or grad.is_nested or 1 not in grad.shape:
        return grad
    stride = [1 if size == 1 else step for size, step in zip(grad.shape, grad.stride(), strict=True)]
    return grad.as_strided(grad.shape, stride)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "<empty cell>"


def _difference(wanted: Any, found: Any, tolerance: float, path: str = "") -> str | None:
    """Where two snapshots differ, or None."""
    if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor):
        return _tensor_difference(wanted, found, tolerance, path)
    if isinstance(wanted, (tuple, list)) and isinstance(found, (tuple, list)):
        if len(wanted) != len(found):
            return f"at {path or 'top'}: {wanted!r} became {found!r}"
        for position, (a, b) in enumerate(zip(wanted, found, strict=True)):
            difference = _difference(a, b, tolerance, f"{path}/{position}")
            if difference is not None:
                return f"{difference}\n  in {_short(wanted)}" if path.count("/") < 6 and not path else difference
        return None
    if type(wanted) is float and type(found) is float:
        same = math.isclose(wanted, found, rel_tol=tolerance, abs_tol=tolerance) or (
            wanted != wanted and found != found
        )
        if same and (wanted != 0 or found != 0 or math.copysign(1, wanted) == math.copysign(1, found)):
            return None
    elif type(wanted) is type(found) and wanted == found:
        return None
    return f"at {path or 'top'}: {wanted!r} became {found!r}"


def _tensor_difference(wanted: torch.Tensor, found: torch.Tensor, tolerance: float, path: str) -> str | None:
    if wanted.dtype is not found.dtype or wanted.shape != found.shape:
        return f"at {path}: {wanted.dtype}{list(wanted.shape)} became {found.dtype}{list(found.shape)}"
    if wanted.is_quantized or found.is_quantized:
        same = repr(wanted) == repr(found)
    elif wanted.dtype.itemsize == 1 and wanted.is_floating_point():
        same = torch.equal(wanted.view(torch.uint8), found.view(torch.uint8))
    elif wanted.dtype in (torch.uint16, torch.uint32, torch.uint64):
        same = torch.equal(wanted.long(), found.long())
    elif not wanted.is_floating_point() and not wanted.is_complex():
        same = torch.equal(wanted, found)
    else:
        half = wanted.dtype in (torch.float16, torch.bfloat16)
        near = max(tolerance, 1e-2) if half else tolerance
        same = torch.allclose(wanted, found, rtol=near, atol=near, equal_nan=True)
    return None if same else f"at {path}: {wanted} became {found}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else text[:400] + " ..."
