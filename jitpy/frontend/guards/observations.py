"""The values that earlier compilations saw at each place: one that changes from call to call is not compiled for each
value."""

from __future__ import annotations

import gc
import types
import weakref
from typing import Any

from ...runtime.lifetimes import is_weakly_held

#: objects in one place, classes of one name, that are compiled for; and how many classes where they are gone by then
MANY, _GONE = 3, 2


class Observations:
    """Those about one code object. Keys are those of sources."""

    def __init__(self) -> None:
        #: how often the code was compiled
        self.compilations = 0
        self.sizes: dict[Any, tuple[int, ...]] = {}
        self.dynamic_dims: dict[Any, set[int]] = {}
        #: whether all sizes are to be symbols in the next trace, since the call leaves tensors where there were none
        self.fills_state = False
        self.ints: dict[Any, int] = {}
        self.dynamic_ints: set[Any] = set()
        self.floats: dict[Any, str] = {}
        self.dynamic_floats: set[Any] = set()
        #: classes without a place in a module, those of one name: the name and a reference to each
        self.classes: dict[Any, list[tuple[tuple[str, str], weakref.ref[type]]]] = {}
        #: objects whose identity the program asked for: a reference, and how many there were
        self.objects: dict[Any, tuple[weakref.ref[Any], int]] = {}

        #: operators whose body in Python cannot be part of a graph
        self.whole_operators: set[Any] = set()
        #: values that the program needed to know, by what they are about
        self.needed: dict[Any, set[int]] = {}
        #: texts that were keys of dicts at first, and the places where others were since
        self.keys: dict[Any, str] = {}
        self.changing_keys: set[Any] = set()
        #: functions without a place in a module: references to the code and to the function seen last
        self.functions: dict[Any, tuple[weakref.ref[types.CodeType], weakref.ref[types.FunctionType]]] = {}
        self.made_anew: set[Any] = set()
        #: constants that were in containers at last, and, by `kind_of`, the places where others were before
        self.items: dict[Any, int] = {}
        self.changed: dict[Any, set[Any]] = {}
        #: pairs of items that were one object, by `kind_of`
        self.pairs: dict[Any, set[Any]] = {}

    def dims(self, key: Any, shape: tuple[int, ...]) -> set[int]:
        """Note a tensor's sizes; the axes whose size has ever changed."""
        seen = self.sizes.get(key)
        dynamic = self.dynamic_dims.setdefault(key, set())
        if seen is not None:
            if len(seen) == len(shape):
                dynamic.update(i for i, (a, b) in enumerate(zip(seen, shape, strict=True)) if a != b)
            else:
                dynamic.clear()
        self.sizes[key] = shape
        return dynamic

    def will_change(self, key: Any, shape: tuple[int, ...]) -> bool:
        """Note the sizes of the next call's tensor; whether this call's has others that may be symbols and are not."""
        seen, known = self.sizes.get(key, ()), set(self.dynamic_dims.get(key, ()))
        changed = self.dims(key, shape) - known
        return len(seen) == len(shape) and any(seen[i] > 1 for i in changed)

    def float_is_dynamic(self, key: Any, value: float, always: bool) -> bool:
        """Note a float's value; whether it has ever changed (or `always` is set)."""
        seen = self.floats.get(key)
        text = value.hex()
        if seen is not None and seen != text:
            self.dynamic_floats.add(key)
        self.floats[key] = text
        return always or key in self.dynamic_floats

    def int_is_dynamic(self, key: Any, value: int) -> bool:
        """Note an int's value; whether it has ever changed."""
        seen = self.ints.get(key)
        if seen is not None and seen != value:
            self.dynamic_ints.add(key)
        self.ints[key] = value
        return key in self.dynamic_ints

    def items_change(self, kind: Any, key: Any, value: int) -> bool:
        """Note a constant in a container; whether those at many places have ever changed."""
        changed = self.changed.setdefault(kind, set())
        if self.items.setdefault(key, value) != value:
            self.items[key] = value
            changed.add(key)
        return len(changed) >= MANY

    def pairs_change(self, kind: Any, pair: Any) -> bool:
        """Note two places that hold one object; whether these were others in an earlier compilation."""
        seen = self.pairs.setdefault(kind, set())
        if pair not in seen:
            seen.add(pair)
            return self.is_needed_often((kind, "pairs"), self.compilations, 1)
        return len(self.needed[kind, "pairs"]) > 1

    @property
    def ints_are_general(self) -> bool:
        """Whether ints that change may have any value. At first code for 2 and more is apart from that for 0 and 1, as
        it is for sizes; where several ints change, that is a variant for each combination."""
        return self.compilations > MANY

    def is_needed_often(self, key: Any, value: int, many: int = MANY) -> bool:
        """Note a value that decides what the program does; whether `many` others were in its place before it."""
        seen = self.needed.setdefault(key, set())
        if len(seen) <= many:
            seen.add(value)
        return len(seen) > many

    def is_changing_key(self, key: Any, text: str | None = None) -> bool:
        """Note the text in a place; whether it is a key of dicts that was another one before."""
        if text is not None and self.keys.get(key, text) != text:
            self.changing_keys.add(key)
        return key in self.changing_keys

    def varies(self, key: Any) -> bool:
        """Whether there were many values in a place that `is_needed_often` was told of."""
        return len(self.needed.get(key, ())) > MANY

    def is_one_object(self, key: Any, obj: Any) -> bool:
        """Note an object whose identity matters; whether few others were in its place before it."""
        ref, count = self.objects.get(key, (None, 0))
        if ref is None or ref() is not obj:
            count += 1
            self.objects[key] = weakref.ref(obj), count
        return count <= MANY

    def function_is_made_anew(self, key: Any, function: types.FunctionType) -> bool:
        """Note a function; whether there was another one of its code in its place before."""
        if not is_weakly_held(function):
            return False
        code, seen = self.functions.get(key, (None, None))
        if seen is not None and seen() is not function and code() is function.__code__:  # type: ignore[misc]
            self.made_anew.add(key)
        self.functions[key] = weakref.ref(function.__code__), weakref.ref(function)
        return key in self.made_anew

    def class_is_made_anew(self, key: Any, cls: type) -> bool:
        """Note a class; whether a class statement seems to make it at each call: others of the same name were here
        before it, and are gone or many."""
        if not is_weakly_held(cls):
            return False
        name = (cls.__module__, cls.__qualname__)
        before = [ref for known, ref in self.classes.get(key, ()) if known == name]
        if any(ref() is cls for ref in before):
            return False
        self.classes[key] = [(name, ref) for ref in (*before, weakref.ref(cls))]
        if len(before) >= _GONE:
            gc.collect()  # classes are cycles: only a collection can tell
        return len(before) >= MANY or sum(ref() is None for ref in before) >= _GONE


#: steps of keys that lead to the items which an iterator gives next
STEPS_AHEAD: set[Any] = set()


def kind_of(key: Any) -> Any:
    """The common part of the keys of a container's items, from the key of one: `batch[*][1]`. None: it is none."""
    for position, step in enumerate(key):
        if step[0] == "index" or step in STEPS_AHEAD:
            return (*key[:position], ("index", None), *key[position + 1:])
    return None
