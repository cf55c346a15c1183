"""Where a value came from.

One `Source` yields three things: the guard's access path (`base` and `step`), the bytecode that reloads the value
(`frontend/codegen/frame_code.py` walks the same path), and its name in reports (`str(source)`), which is also the
Python expression in the printed guard function.

Roots are locals of the frame, cells of its closure, its globals, and constants (modules' dicts, classes, ...: objects
that tracing holds on to). Every other source is one step from its base.

Steps, as the guard evaluator sees them: ("attr", name) runs `getattr`; ("dict", None) is `vars(obj)`; ("item", key)
looks `key` up in an exact dict; ("index", i) takes an item of a list or tuple (or a subclass, by the base type's
slot), and ("index_by", expr) the one at the place that a size expression has in this call; ("type", None) is
`type(obj)`; ("slot", descriptor) reads a member descriptor; ("cell", None) reads a cell's contents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from ...ir.algebra import sympy
from ...runtime.lifetimes import held


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Base of all sources. Sources compare by identity of path: `key()`."""

    #: Key and hash are asked for at every guard, and a path is walked step by step to make them: kept once made.
    _key: tuple[Any, ...] | None = field(default=None, init=False, repr=False)
    _hash: int = field(default=0, init=False, repr=False)

    @property
    def base(self) -> Source | None:
        return None

    @property
    def step(self) -> tuple[str, Any]:
        raise NotImplementedError

    def key(self) -> tuple[Any, ...]:
        """A hashable path: equal for sources that denote the same place."""
        if self._key is None:
            kind, arg = self.step
            tail = (kind, _hashable(arg))
            base = self.base
            object.__setattr__(self, "_key", (*base.key(), tail) if base is not None else (tail,))
        assert self._key is not None
        return self._key

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Source) and self.key() == other.key())

    def __hash__(self) -> int:
        if not self._hash:
            object.__setattr__(self, "_hash", hash(self.key()))
        return self._hash


def _hashable(arg: Any) -> Any:
    """Dict keys compare by type and value; anything unhashable or with its own equality by identity."""
    if arg is None or isinstance(arg, (str, bytes, int, float, bool, sympy.Expr)):
        return (type(arg), arg)
    return ("id", id(arg))


def _key_text(key: Any) -> str:
    """A dict's key in reports: what is no plain constant (a tensor, a module) is named by its type."""
    plain = isinstance(key, (str, bytes, int, float, bool, type, NoneType))
    return repr(key) if plain else f"<{type(key).__name__}>"


@dataclass(frozen=True, slots=True, eq=False)
class LocalSource(Source):
    """Parameter number `index` of the frame (`*args` and `**kwargs` count as one each)."""

    index: int
    name: str
    is_star: bool = False

    @property
    def step(self) -> tuple[str, Any]:
        return ("local", self.index)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class ClosureSource(Source):
    """The *contents* of closure cell number `index` of the frame's function."""

    index: int
    name: str

    @property
    def step(self) -> tuple[str, Any]:
        return ("closure", self.index)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class ClosureCellSource(Source):
    """Closure cell number `index` of the frame's function: the cell itself."""

    index: int
    name: str

    @property
    def step(self) -> tuple[str, Any]:
        return ("closure_cell", self.index)

    def __str__(self) -> str:
        return f"<cell {self.name}>"


@dataclass(frozen=True, slots=True, eq=False)
class GlobalsSource(Source):
    """The globals dict of the frame's function."""

    @property
    def step(self) -> tuple[str, Any]:
        return ("globals", None)

    def __str__(self) -> str:
        return "globals()"


@dataclass(frozen=True, slots=True, eq=False)
class ConstSource(Source):
    """An object that the compiled code holds on to, weakly if weakly held: a module's dict, a class, a C function."""

    holder: Callable[[], Any]
    name: str

    @property
    def value(self) -> Any:
        return self.holder()

    @property
    def step(self) -> tuple[str, Any]:
        return ("const", self.value)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class CallSource(Source):
    """A result of a call that compiled code makes in front of the graph, or `late`, behind it: no guard can be about
    it."""

    number: int
    name: str
    late: bool = False

    @property
    def step(self) -> tuple[str, Any]:
        return ("call", self.number)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class StepSource(Source):
    """One step from `parent`; see the module's text for the kinds."""

    parent: Source
    kind: str
    arg: Any = None

    @property
    def base(self) -> Source:
        return self.parent

    @property
    def step(self) -> tuple[str, Any]:
        return (self.kind, self.arg)

    def __str__(self) -> str:
        base, kind, arg = self.parent, self.kind, self.arg
        if kind == "item":
            if isinstance(base, GlobalsSource):
                return str(arg)
            if isinstance(base, StepSource) and base.kind == "dict" and isinstance(arg, str):
                return f"{base.parent}.{arg}"
            return f"{base}[{_key_text(arg)}]"
        if kind == "slot":
            arg = getattr(arg, "__name__", "<state>")
        template = _TEXTS.get(kind, f"{kind}({{}}, {{!r}})")
        return template.format(base, _key_text(arg) if kind == "index" else arg)


#: how a step is written, with its base and what it takes
_TEXTS = {"attr": "{}.{}", "dict": "vars({})", "index": "{}[{}]", "index_by": "{}[{}]", "type": "type({})",
          "slot": "{}.{}", "cell": "{}.cell_contents"}


def constant(obj: Any, name: str) -> ConstSource:
    return ConstSource(held(obj), name)


def attr(base: Source, name: str) -> Source:
    return StepSource(base, "attr", name)


def instance_dict(base: Source) -> Source:
    return StepSource(base, "dict")


def item(base: Source, key: Any) -> Source:
    return StepSource(base, "item", key)


def index(base: Source, i: int) -> Source:
    return StepSource(base, "index", i)


def index_by(base: Source, place: sympy.Expr) -> Source:
    return StepSource(base, "index_by", place)


def slot(base: Source, descriptor: Any) -> Source:
    return StepSource(base, "slot", descriptor)


def cell_contents(base: Source) -> Source:
    return StepSource(base, "cell")


def root_of(source: Source) -> Source:
    """Where a path begins."""
    while (base := source.base) is not None:
        source = base
    return source


def is_at_changing_place(source: Source) -> bool:
    """Whether the path leads through an item whose place changes from call to call."""
    return any(step[0] == "index_by" for step in source.key())


#: parts of paths that say how an object is kept, not what it is
_PLUMBING = frozenset({"_modules", "_parameters", "_buffers", "self", "args", "kwargs", "<cell target>", "__dict__"})


def module_path(source: Source) -> str:
    """`encoder.layers.0` for a module of the one that is called, which has no path itself."""
    root, _, path = short_name(source).partition(".")
    if root.startswith("<cell "):
        root = root.removeprefix("<cell ").rstrip(">").replace("target", "")
    return ".".join(part for part in (root, path) if part and part not in ("cell_contents", "self"))


def short_name(source: Source) -> str:
    """The value's name for a reader: `encoder.layers.0.weight` for a parameter, deep in a module's dicts."""
    words: list[str] = []
    at: Source | None = source
    while isinstance(at, StepSource):
        if at.kind in ("attr", "item", "index"):
            words.append(at.arg if isinstance(at.arg, str) else _key_text(at.arg))
        elif at.kind == "slot":
            words.append(getattr(at.arg, "__name__", "slot"))
        at = at.parent
    if at is not None and not isinstance(at, GlobalsSource):
        words.append(str(at))
    told = [word for word in reversed(words) if word not in _PLUMBING]
    if not told or told[0].isdigit():
        told.insert(0, words[-1])  # args[0]
    return ".".join(told)
