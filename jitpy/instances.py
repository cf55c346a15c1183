"""The recompile limit of methods holds for each instance.

All instances share a method's variants at first: guards look at what the method reads from `self`, not at who `self`
is, so that instances that are alike need one variant together. When the shared variants reach the limit, the method is
split: from then on each instance has an engine and a dispatcher of its own, found by its identity, and these go when
it goes. A call of a split method costs some 0.2 us more.
"""

from __future__ import annotations

import types
import weakref
from typing import TYPE_CHECKING, Any

from .frontend.bytecode.code import param_names
from .marks import original_of

if TYPE_CHECKING:
    from .engine import Engine


def is_method_call(dispatcher: Any, params: tuple[Any, ...]) -> bool:
    """Whether the first parameter is the instance (or class) that the dispatcher is a method of."""
    if not params or dispatcher.original is None or not dispatcher.code.co_argcount:
        return False
    owner = params[0] if isinstance(params[0], type) else type(params[0])
    for cls in owner.__mro__:
        found = vars(cls).get(dispatcher.__name__)
        if isinstance(found, property):
            found = found.fget
        found = getattr(found, "__func__", found)
        if found is dispatcher or found is not None and original_of(found) is dispatcher.original:
            return True
    return False


class PerInstance:
    """The dispatchers of a split method: `per_instance(self)` is that of an instance, made at its first call."""

    def __init__(self, engine: Engine, root: Any) -> None:
        self._engine = engine
        self._function = root.original
        self._by_id: dict[int, tuple[weakref.ref[Any], Any]] = {}
        #: for instances that cannot be referenced weakly
        self._shared: Any = None

    def __call__(self, instance: Any) -> Any:
        found = self._by_id.get(id(instance))
        return found[1] if found is not None else self._make(instance)

    def _make(self, instance: Any) -> Any:
        key = id(instance)
        try:
            ref = weakref.ref(instance, lambda _: self._by_id.pop(key, None))
        except TypeError:
            if self._shared is None:
                self._shared = self._dispatcher()
            return self._shared
        made = self._dispatcher()
        self._by_id[key] = (ref, made)
        return made

    def _dispatcher(self) -> Any:
        engine = type(self._engine)(self._engine.options, splits=False)
        return engine.dispatcher(self._function)


def split(engine: Engine, root: Any) -> Any:
    """Give each instance its own dispatcher: the root's only entry asks for it. Returns that entry."""
    code = _router(root.code, PerInstance(engine, root))
    root.clear()
    return root.add_entry(None, code)


def _router(code: types.CodeType, per_instance: PerInstance) -> types.CodeType:
    """Code with the parameters of `code`, all positional, that passes them on to the instance's dispatcher."""
    names = param_names(code)
    n_positional, n_named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    passed = [*names[:n_positional]]
    rest = list(names[n_named:])
    if code.co_flags & 0x04:
        passed.append(f"*{rest.pop(0)}")
    passed += [f"{name}={name}" for name in names[n_positional:n_named]]
    if code.co_flags & 0x08:
        passed.append(f"**{rest.pop(0)}")
    marker = "the dispatchers of the instances"
    text = (f"def {code.co_name if code.co_name.isidentifier() else 'method'}({', '.join(names)}):\n"
            f"    _jitpy_of = {marker!r}\n"
            f"    return _jitpy_of({names[0]})({', '.join(passed)})\n")
    space: dict[str, Any] = {}
    exec(compile(text, code.co_filename, "exec"), space)
    (made,) = (value for value in space.values() if isinstance(value, types.FunctionType))
    template = made.__code__
    consts = tuple(per_instance if const == marker else const for const in template.co_consts)
    return template.replace(co_consts=consts, co_firstlineno=code.co_firstlineno, co_qualname=code.co_qualname)
