"""Guards: every fact that tracing read from outside, as data.

A `Guard` is a fact about the value at a `Source`. `GuardSet` collects them without repeats, in the order in which they
were needed (a guard on `a.b` comes after the guard on `a`'s type, so that evaluating in order is safe).
`jitpy/runtime/guards.py` turns a set into one printable Python function and into a native evaluator.

Kinds and their argument:

    type      cls             type(value) is cls
    id        obj             value is obj (kept alive, unless it is weakly held: see runtime/lifetimes.py)
    weak_id   weakref         value is ref() and ref() is alive
    weak_type weakref         type(value) is ref() and ref() is alive
    eq        constant        type(value) is type(constant) and value == constant; floats bit for bit
                              (nan is nan, 0.0 is not -0.0); tuples and frozensets of such
    len       n               length of an exact or derived list, tuple, dict, set, deque is n
    keys      tuple           the exact dict has exactly these keys, in this order
    haskey    key             key in the exact dict (whatever its value)
    nokey     key             key not in the exact dict
    tensor    TensorGuard     see there
    same      Source          value is the value at the other source
    distinct  None            value is another object than every other `distinct` value of the set
    overlap   (Source, ...)   storages of these tensors do not overlap with value's
    state     TorchStateGuard the process's torch modes read as they did
    attention ((name, bool), ...)  (source is None) the process allows these kernels of scaled_dot_product_attention, or
                              not, as it did (`guard_checks.ATTENTION_KERNELS`)
    relation  sympy relation  holds for the sizes bound by the tensor guards (source is None)
    int       symbol          type(value) is int, and its value is bound to the symbol
    python    callable        callable(value) is true (last resort; runs Python)
    numbers   NumberFact      (source is None) an expression over numbers at several sources and over sizes is true
    empty     None            the cell at the source is empty / the closure variable unbound
    class     ClassLookup     (source is None) the class's MRO is the same, and looking the names up along it finds what
                              it found; natively one compare of `tp_version_tag` while the class and its bases are
                              unmodified, a recheck of every name otherwise
    function  (code, defaults, kwdefaults)  value is a Python function with exactly these objects in those three places
"""

from __future__ import annotations

import abc
import operator
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ...ir.algebra import sympy
from .source import Source


@dataclass(frozen=True, slots=True)
class TensorGuard:
    """The facts that must hold of a tensor.

    `shape` and `stride` entries are ints (must be equal), symbols not bound before (bound to what is found; the
    symbol's range `low <= value <= high` in `ranges` must hold), or other sympy expressions over symbols (must be
    equal once all symbols are bound). `dispatch_keys` is `torch._C._dispatch_keys(t).raw_repr()`, which covers layout,
    functorch wrappers, conj and neg bits.
    `is_leaf` None means either.
    """

    cls: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dispatch_keys: int
    ranges: tuple[tuple[sympy.Symbol, int, int | None], ...] = ()
    is_inference: bool = False


@dataclass(frozen=True, slots=True)
class TorchStateGuard:
    """Process- or thread-wide modes of torch that tracing depended on."""

    grad_enabled: bool
    inference_mode: bool
    default_dtype: torch.dtype
    #: autocast: for each device type asked about ("cpu", "cuda"): (enabled, dtype); plus cache flag
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    deterministic: bool
    default_device: str | None
    #: number of torch-function and torch-dispatch modes on their stacks
    function_modes: int
    dispatch_modes: int
    #: whether a level of forward-mode gradients is open, so that tensors may have tangents
    forward_ad: bool
    #: whether classes of tensors are asked for `__torch_function__`
    asks_classes: bool


#: `ClassLookup.names` value for a name that no class of the MRO defines
MISSING = object()


@dataclass(frozen=True, slots=True)
class HeldBy:
    """`ClassLookup.names` value for a name that leads to whatever this class's own `__dict__` holds: other guards are
    about that."""

    owner: type


@dataclass(slots=True, eq=False)
class ClassLookup:
    """Attribute lookups on a class, made while tracing: name -> the object found in some `__dict__` along `cls.__mro__`
    (as stored there, no descriptor called), or `MISSING`, or `HeldBy`. One such guard a class; `names` grows during
    tracing. `__bases__` may be assigned: the guard holds for this MRO only."""

    cls: type
    names: dict[str, Any] = field(default_factory=dict)
    mro: tuple[type, ...] = ()

    def __post_init__(self) -> None:
        self.mro = self.mro or self.cls.__mro__


def belongs_to(cls: type, abstract: type) -> bool:
    """`issubclass(cls, abstract)` as the abstract class has it itself: protocols answer as in their `isinstance`."""
    return bool(_belongs_to(cls, abstract))


#: the functions of the module `abc` may ask any protocol
_belongs_to = types.FunctionType((lambda cls, abstract: ask(abstract, cls)).__code__,  # type: ignore  # noqa: F821
                                 {"__name__": "abc", "ask": abc.ABCMeta.__subclasscheck__})


class NotRegistered:
    """Guard predicate: classes that do not belong to certain abstract classes still do not. Registering a class
    somewhere, which changes the token, can make them."""

    def __init__(self) -> None:
        self.token = abc.get_cache_token()
        self.pairs: list[tuple[weakref.ref[type], weakref.ref[type]]] = []

    def add(self, cls: type, abstract: type) -> None:
        self.pairs.append((weakref.ref(cls), weakref.ref(abstract)))

    def __call__(self, value: Any) -> bool:
        if (token := abc.get_cache_token()) != self.token:
            for cls, abstract in ((first(), second()) for first, second in self.pairs):
                if cls is not None and abstract is not None and belongs_to(cls, abstract):
                    return False
            self.token = token
        return True


class Answers:
    """Guard predicate: a question about the value has the same answer."""

    def __init__(self, question: Callable[[Any], Any], answer: Any) -> None:
        self.question = question
        self.answer = answer

    def __call__(self, value: Any) -> bool:
        return bool(self.ask(value) == self.answer)

    def ask(self, value: Any) -> Any:
        return self.question(value)

    def __repr__(self) -> str:
        name = getattr(self.question, "__name__", None)
        if name is None and isinstance(self.question, operator.methodcaller):
            name, *args = self.question.__reduce__()[1]  # type: ignore[misc]
            name += f"({', '.join(map(repr, args))})"
        return f"{name or self.question} is {self.answer!r}"


@dataclass(frozen=True, slots=True)
class NumberFact:
    """A fact about changing numbers that the program relied on: a Python expression over `p0, p1, ...` (the numbers at
    `sources`) and `q0, q1, ...` (the values of `sizes`, expressions over the symbols of sizes and ints)."""

    text: str
    sources: tuple[Source, ...]
    sizes: tuple[sympy.Expr, ...]


class MemberOf:
    """Guard predicate: the value is this member of a class that compiled code must not keep alive, as members do."""

    def __init__(self, member: Any) -> None:
        self.owner = weakref.ref(member.__objclass__)
        self.name = member.__name__

    def __call__(self, value: Any) -> bool:
        owner = self.owner()
        return owner is not None and type.__dict__["__dict__"].__get__(owner).get(self.name) is value

    def __repr__(self) -> str:
        return f"is .{self.name} of {self.owner()!r}"


@dataclass(frozen=True, slots=True)
class Guard:
    """One fact. `why` is a short text with the user's place, for reports."""

    source: Source | None
    kind: str
    arg: Any
    why: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.kind} {self.arg!r}" + (f"  # {self.why}" if self.why else "")


@dataclass(slots=True)
class GuardSet:
    """Guards in the order in which tracing needed them, each once."""

    guards: list[Guard] = field(default_factory=list)
    _seen: set[Any] = field(default_factory=set)

    def add(self, source: Source | None, kind: str, arg: Any = None, why: str = "") -> None:
        key = _guard_key(source, kind, arg)
        if key in self._seen:
            return
        self._seen.add(key)
        self.guards.append(Guard(source, kind, arg, why))

    def checkpoint(self) -> int:
        return len(self.guards)

    def rollback(self, mark: int) -> None:
        """Forget the guards added since `checkpoint()` returned `mark`."""
        for guard in self.guards[mark:]:
            self._seen.discard(_guard_key(guard.source, guard.kind, guard.arg))
        del self.guards[mark:]

    def subjects(self) -> frozenset[Any]:
        """The sources that have guards, and their kinds."""
        return frozenset((guard.source, guard.kind) for guard in self.guards)

    def __len__(self) -> int:
        return len(self.guards)

    def __iter__(self) -> Any:
        return iter(self.guards)


def _guard_key(source: Source | None, kind: str, arg: Any) -> Any:
    by_identity = kind in ("id", "type", "tensor", "weak_id", "weak_type", "python", "class", "function")
    return source, kind, id(arg) if by_identity else (type(arg), _key(arg))


def _key(arg: Any) -> Any:
    if isinstance(arg, float):
        return (arg.hex(), "float")
    if isinstance(arg, (tuple, frozenset)):
        return tuple((type(a), _key(a)) for a in arg)
    try:
        hash(arg)
    except TypeError:
        return id(arg)
    return arg
