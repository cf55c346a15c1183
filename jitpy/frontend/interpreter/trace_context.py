"""The outside as one capture sees it: values for real objects, with the guards that make them valid again.

`wrap(obj, source)` is the only way in which a live object enters tracing. The same object reached by two paths becomes
one Value (plus a guard that the paths still meet).
"""

from __future__ import annotations

import abc
import builtins
import collections
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ...ir import SizeEnv
from ...runtime.lifetimes import is_weakly_held
from ..breaks import GraphBreak, RestartAnalysis, Skip
from ..capture.computed import Computed
from ..capture.graph_builder import TracedGraphBuilder, TracedTensor
from ..capture.inputs import size_marks
from ..capture.known_numbers import float_input, pin
from ..guards.guard_set import MISSING, ClassLookup, GuardSet, HeldBy, MemberOf, NotRegistered, belongs_to
from ..guards.observations import Observations
from ..guards.source import (
    CallSource,
    ClosureCellSource,
    ConstSource,
    GlobalsSource,
    Source,
    cell_contents,
    constant,
    instance_dict,
    is_at_changing_place,
    item,
    root_of,
    slot,
)
from ..polyfills import MODELLED_METHODS
from ..values import (
    CONST_TYPES,
    DELETED,
    UNBOUND,
    CellValue,
    ClassWrites,
    ConstValue,
    DictValue,
    Identity,
    Lazy,
    Missing,
    ObjectValue,
    PyValue,
    ScalarValue,
    SymValue,
    TensorValue,
    TextValue,
    TraceContext,
    TupleValue,
    Value,
    has_hook_numbers,
    is_array,
    is_number,
)
from ..values.wrapping import wrap_new, wraps
from .growing import (
    SymbolicKey,
    dict_count,
    fixed_key,
    is_changing_text,
    is_symbolic,
)
from .plain_classes import is_plain_class, is_quiet_key

CONST_TYPES.update({torch.dtype, torch.device, torch.layout, torch.memory_format, types.CodeType})

_HEAP_TYPE = 1 << 9
_MEMBERS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


class SymbolicTraceContext:
    """Everything that one capture knows of the outside."""

    def __init__(self, history: Observations, globals: dict[str, Any], dynamic: str = "auto") -> None:
        self.sizes = SizeEnv()
        self.guards = GuardSet()
        self.builder = TracedGraphBuilder(self.sizes, self.guards)
        self.builder.need = self.need
        self.history = history
        self.root_globals = globals
        self.dynamic = dynamic
        self.why = ""
        self.place: Callable[[], Any] = str  # the user's place, for guards' texts
        self.breakable = False  # whether the graph can be broken where the program stands
        #: whether a method is compiled for several instances: what differs between them is no reason for a break
        self.several_selves = False
        self.computed = Computed(history, self.builder)
        #: values by identity of the real object (which `_kept` keeps alive, so that ids stay unique)
        self._by_id: dict[int, Value] = {}
        self._kept: list[Any] = []
        #: NaNs that the program told apart, by id, with where they come from if that is outside
        self._nans: dict[int, Source | None] = {}
        self._outside_nans: dict[int, Source] = {}
        self._module_keys: set[Any] = set()  # of sources
        self._lookups: dict[type, ClassLookup] = {}
        #: attributes of classes from outside that the program wrote: see `models/builtins/class_writes.py`
        self.class_writes: dict[type, ClassWrites] = {}
        self._not_registered: NotRegistered | None = None
        #: values with changes to write back, in the order of their first change
        self.dirty: list[Value] = []
        self._dirty_ids: set[int] = set()
        #: see `note_change`
        self.changed_at: int | None = None
        self.steps: list[Value] = []  # to be taken on iterators from outside, in order
        self.tensors: dict[int, TensorValue] = {}  # by id of TracedTensor
        self.has_overloads = False  # whether there are tensors of classes that say what torch makes of them
        #: objects, by id, that compiled code changes out of the trace's sight: what to do where the program meets them
        self.hidden: dict[int, RestartAnalysis] = {}
        #: id of an instance that is a key, and of its `__dict__` -> that, and the attributes that tell which key
        self.likenesses: dict[int, Any] = {}  # what stands for such instances as keys
        self.kept_attributes: dict[int, tuple[Any, tuple[str, ...]]] = {}
        #: by a source that items of dicts are found by: when that was, and what was read there (`keyed_items.py`)
        self.keyed: dict[Any, tuple[int, set[Any]]] = {}
        self.writes = 0  # counts every change of a Value, so that a break can tell whether its instruction did anything
        self.touches = 0  # counts changes of what came from outside, dicts aside (they have logs)
        self.specialized: list[str] = []
        #: input tensors whose sizes may change: the key of the source and the shape
        self.shapes: dict[Any, tuple[int, ...]] = {}
        #: containers of subclasses of dict, list and tuple, by source: reloading an item goes through the base type
        self.container_kinds: dict[Any, type] = {}
        #: sources of instances with a `__getattribute__` in Python, which must not be asked for `__dict__`
        self.own_access: set[Any] = set()

    @property
    def may_break(self) -> bool:
        """Whether the graph can be broken for what changes from call to call."""
        return self.breakable and not self.several_selves

    # -- guards ---------------------------------------------------------------------------------------------

    def guard(self, source: Source | None, kind: str, arg: Any = None) -> None:
        if isinstance(source, ConstSource) and kind in ("id", "type"):
            return  # the code itself holds the object
        if source is not None and isinstance(root_of(source), CallSource):
            raise GraphBreak("unsupported_value", f"{source}, which is made anew at each call, is looked at")
        if kind == "id" and type(arg) in _MEMBERS and is_weakly_held(arg.__objclass__):
            kind, arg = "python", MemberOf(arg)
        if kind in ("id", "type") and source is not None and isinstance(arg, type) and \
                self.history.class_is_made_anew(source.key(), arg):
            raise Skip("local_class", f"{source} is a class {arg.__qualname__}" if kind == "id" else
                       f"{source} is of a class {arg.__qualname__}")
        self.guards.add(source, kind, arg, f"{self.place()}" if kind in ("eq", "len") else self.why)

    def pin(self, value: PyValue) -> Any:
        """The real object of a PyValue, from now on guarded by identity."""
        return value.pinned_object(self)

    def known_number(self, traced: Any, what: str) -> Any:
        """The number that the graph computes, where that is known in this call, guarded."""
        return pin(self.builder, traced, what)

    def comes_anew(self, obj: Any, source: Source) -> bool:
        """Whether another object comes to a place in each call, as far as is known; noted."""
        return self.computed.comes_anew(obj, source, self.several_selves)

    def pin_instance(self, value: Value) -> Any:
        """The real object of an instance or a parameter, from now on guarded by identity but not kept alive. None where
        there is no such object, or where another one comes at each call."""
        real = value.real if value.is_instance or value.tensor is not None else None  # type: ignore[attr-defined]
        if real is None or value.source is None or isinstance(real, torch.Tensor) and value.cls is torch.Tensor:
            return None
        if not isinstance(value.source, ConstSource):
            if type(real).__weakrefoffset__ == 0 or not self.history.is_one_object(value.source.key(), real):
                return None
            self.guard(value.source, "weak_id", weakref.ref(real))
        return real

    def class_lookup(self, cls: type, name: str) -> Any:
        """The entry of `cls.__mro__` under `name` (no descriptor called), or MISSING; guarded. The program's writes
        there show as a `ClassWrites`: `class_item` tells its Value."""
        found: Any = MISSING
        for owner in cls.__mro__:
            if name in owner.__dict__:
                found = owner.__dict__[name]
                break
        lookup = self._lookup(cls)
        if lookup is not None and not isinstance(lookup.names.get(name), HeldBy):
            lookup.names[name] = HeldBy(owner) if self._is_written(owner, name) and found is not MISSING else found
        if self.class_writes:
            holder = self._holder(cls, name)
            if holder is None:
                return MISSING
            if self._is_written(holder, name):
                return self.class_writes[holder]
            if holder is not owner:  # which is rid of it
                return self.class_lookup(holder, name)
        return MODELLED_METHODS.get(found, found) if type(found) in _C_METHODS else found

    def _is_written(self, owner: type, name: str) -> bool:
        writes = self.class_writes.get(owner)
        return writes is not None and name in writes.items

    def _holder(self, cls: type, name: str) -> type | None:
        """The class along `cls.__mro__` that holds `name` by now."""
        for owner in cls.__mro__:
            if self._is_written(owner, name):
                if self.class_writes[owner].items[name] is not DELETED:
                    return owner
            elif name in owner.__dict__:
                return owner
        return None

    def lookups(self) -> Iterable[ClassLookup]:
        """The guards on classes so far."""
        return self._lookups.values()

    def _lookup(self, cls: type) -> ClassLookup | None:
        """The guard on a class from outside; None for one that cannot change."""
        if not cls.__flags__ & _HEAP_TYPE:
            return None
        lookup = self._lookups.get(cls)
        if lookup is None:
            lookup = self._lookups[cls] = ClassLookup(cls)
            self.guards.add(None, "class", lookup, self.why)
        return lookup

    def guard_class_like(self, earlier: ClassLookup) -> None:
        """Guard what an earlier attempt at tracing found out about a class."""
        self.mro(earlier.cls)
        for name in earlier.names:
            self.class_lookup(earlier.cls, name)

    def mro(self, cls: type) -> tuple[type, ...]:
        """`cls.__mro__`, guarded."""
        self._lookup(cls)
        return cls.__mro__

    def is_subclass(self, cls: type, of: type) -> bool:
        """Whether `cls` is derived from `of` or, for an abstract class, said to belong to it; guarded. An abstract
        class gives the same answer again, until a class is registered somewhere."""
        mro = self.mro(cls)
        if not isinstance(of, abc.ABCMeta):
            return of in mro
        answer = belongs_to(cls, of)
        if not answer:
            if self._not_registered is None:
                self._not_registered = NotRegistered()
                self.guard(constant(abc, "abc"), "python", self._not_registered)
            self._not_registered.add(cls, of)
        return answer

    def has_slot(self, cls: type, *names: str) -> bool:
        """Whether a class has any of these special methods; guarded."""
        return any([self.class_lookup(cls, name) is not MISSING for name in names])

    def class_item(self, cls: type, name: str) -> Value:
        """The result of `class_lookup`, by the path to it. A number that changes from call to call may have any
        value."""
        owner = self._holder(cls, name)
        assert owner is not None
        if self._is_written(owner, name):
            return self.class_writes[owner].items[name]
        source = item(instance_dict(constant(owner, _name_of(owner))), name)
        value = self.wrap(owner.__dict__[name], source)
        if value.is_computed:
            lookup = self._lookups.get(cls)
            if lookup is not None and lookup.names.get(name) is owner.__dict__[name]:
                lookup.names[name] = HeldBy(owner)
        return value

    def values(self) -> list[Value]:
        """Those of all live objects that were met."""
        return list(self._by_id.values())

    def value_of(self, obj: Any) -> Value | None:
        """The Value of a live object that was met before."""
        return self._by_id.get(id(obj))

    def need(self, key: Any, value: int, what: str) -> None:
        """Note that code is compiled for one value of something that changes. Where it was done for others before, that
        is given up: GraphBreak, and plain Python does it for all values."""
        if self.may_break and self.history.is_needed_often(key, value):
            raise GraphBreak("changing_value", what)

    def specialize(self, expr: Any, what: str) -> int:
        """The value of a symbolic number in this call, guarded; see `need`."""
        for symbol in getattr(expr, "free_symbols", ()):
            info = self.sizes.symbols.get(symbol)
            if info is not None and not info.unbacked:
                self.need((info.source.key(), info.dim), self.sizes.hint(symbol), f"{info.source}: {what}")
        return self.sizes.specialize(expr, what)

    def touch(self, value: Value) -> None:
        """Note that a value changed: something is to be written back if it is reachable from outside."""
        self.writes += 1
        self.touches += not issubclass(value.cls, dict)
        if id(value) not in self._dirty_ids:
            self._dirty_ids.add(id(value))
            self.dirty.append(value)
            if value.source is not None:
                self.note_change()

    def note_change(self) -> None:
        """Note the step at which the program first changes what others see."""
        if self.changed_at is None:
            self.changed_at = self.builder.step()

    def has_changed(self, value: Value) -> bool:
        """Whether the program changed what is at a source."""
        return id(value) in self._dirty_ids

    # -- wrapping -------------------------------------------------------------------------------------------

    def force(self, thing: Any) -> Value:
        """A Lazy item's Value; Values as they are."""
        return self.wrap(thing.obj, thing.source) if isinstance(thing, Lazy) else thing

    def const_object(self, obj: Any, name: str | None = None) -> Value:
        """The Value of an object that the code may hold on to (classes, functions, modules, their constants)."""
        if type(obj) in CONST_TYPES:
            return ConstValue(obj)
        return self.wrap(obj, constant(obj, name or _name_of(obj)))

    def literal(self, obj: tuple[Any, ...], items: list[Value]) -> Value:
        """The Value of a tuple that stands in the code: one object, also behind a graph break."""
        source = constant(obj, "a tuple in the code")
        value: Any = self._by_id.setdefault(id(obj), TupleValue(items, source, real=obj))
        value.items[:] = items
        return self.wrap(obj, source)

    def wrap(self, obj: Any, source: Source) -> Value:
        """The Value of a live object reached through `source`, guarded as far as it was looked at."""
        cls = type(obj)
        if cls in CONST_TYPES:
            if self.computed and self.breakable:
                self.computed.note_item(obj, source, True, False)
            if cls is int:
                return self._wrap_int(obj, source)
            if cls is float and self._is_dynamic_float(obj, source) and obj == obj:  # which NaN it is, may be asked
                return ScalarValue(float_input(self.builder, obj, source), source)
            if not isinstance(source, ConstSource):
                if cls is str and (self.may_break and is_changing_text(self, obj, source) or
                                   self.history.is_changing_key(source.key(), obj)):
                    self.guard(source, "type", str)
                    return TextValue(obj, source)  # `pin` breaks the graph where the text is needed
                self.guard(source, "id" if obj is None or cls is bool else "eq", obj)
                if cls is float and obj != obj:
                    self._outside_nans.setdefault(id(obj), source)
                    self._kept.append(obj)
            return ConstValue(obj, source)
        if self.computed and self.breakable:
            self.computed.note_item(obj, source, False, is_array(obj) or is_number(obj))
        known = self._by_id.get(id(obj))
        if self.hidden and id(obj) in self.hidden and (known is None or known.source != source):
            raise self.hidden[id(obj)]
        if known is not None and known.source is not None:
            if known.source != source:
                if self.computed and self.breakable:
                    self.computed.note_pair(known.source, source)
                if isinstance(source, ConstSource):
                    self.guard(known.source, "id", obj)
                else:
                    self.guard(source, "same", known.source)
            return known
        if issubclass(cls, torch.nn.Module):
            self._module_keys.add(source.key())
        value = wrap_new(self, obj, source)
        self._by_id[id(obj)] = value
        self._kept.append(obj)
        return value

    def identify(self, value: ConstValue) -> None:
        """The program sees which object a NaN is: whether two from outside are one is guarded. A break where one may be
        of those that the code has."""
        source = value.source or self._outside_nans.get(id(value.value))
        if source is None:
            return  # made here
        if isinstance(source, ConstSource):
            source = None
        outside = [known for known in self._nans.values() if known is not None]
        if outside if source is None else len(outside) < len(self._nans):
            raise GraphBreak("unsupported_value", "identity of a NaN")
        known = self._nans.setdefault(id(value.value), source)
        if source is not None and known == source:
            self.guard(source, "distinct")
        elif source is not None and known is not None:
            self.guard(source, "same", known)

    def _is_dynamic_float(self, obj: float, source: Source) -> bool:
        if isinstance(source, ConstSource) or self.dynamic == "never":
            return False
        always = self.dynamic == "always" and not self.is_config(source) or _is_learning_rate(source) or \
            is_at_changing_place(source)
        return self.history.float_is_dynamic(source.key(), obj, always)

    def _wrap_int(self, obj: int, source: Source) -> Value:
        if isinstance(source, ConstSource):
            return ConstValue(obj, source)
        if self.dynamic != "never":
            changed = self.history.int_is_dynamic(source.key(), obj)
            always = self.dynamic == "always" and not self.is_config(source) or is_at_changing_place(source)
            if (changed or always) and abs(obj) < 1 << 62:
                return SymValue(self.builder.int_input(obj, source, self.history.ints_are_general), source)
        self.guard(source, "eq", obj)
        return ConstValue(obj, source)

    def is_config(self, source: Source) -> bool:
        """Numbers of classes, of other modules than the function's own, and of `nn.Module`s say how something is
        computed: constants till they change."""
        base: Source | None = source
        while base is not None:
            if isinstance(base, ConstSource) or base.key() in self._module_keys:
                return True
            base = base.base
        return False

    def with_attrs(self, value: Any, obj: Any) -> Any:
        """The Value of an instance from outside, from now on with its `__dict__`, if it has one."""
        if value.cls.__dictoffset__ != 0:
            real = own_dict(obj)
            if isinstance(value.cls.__getattribute__, types.FunctionType) and value.source is not None:
                self.own_access.add(value.source.key())
            if type(real) is dict:
                known = self._by_id.get(id(real))
                if known is not None:  # two objects with one __dict__
                    self.guard(instance_dict(value.source), "same", known.source)
                    value.attrs = known
                else:
                    value.attrs = self._by_id[id(real)] = DictValue(instance_dict(value.source), dict, real, real)
                    self._kept.append(real)
        return value

    def new_dict_of(self, value: Value, obj: Any = None) -> DictValue:
        """The `__dict__` of a function, tensor or instance: that of the live object, if there is one."""
        real = obj.__dict__ if obj is not None else None
        if real is not None and value.source is not None:
            return DictValue(instance_dict(value.source), dict, real, real)
        made = DictValue()
        made.instance = value
        return made

    def attributes_of(self, obj: Any, source: Source) -> DictValue:
        """The `__dict__` of an object that is opaque otherwise; guarded as it is read."""
        real = obj.__dict__
        known: Any = self._by_id.get(id(real))
        if known is not None:
            return known
        made = self._by_id[id(real)] = DictValue(instance_dict(source), dict, real, real)
        self._kept.append(real)
        return made

    def input_tensor(self, tensor: torch.Tensor, source: Source) -> TracedTensor:
        """A tensor from outside as an input of the graph, with symbols for the sizes that change."""
        return self.builder.tensor_input(tensor, source, self._dynamic_dims(tensor, source))

    def _dynamic_dims(self, tensor: torch.Tensor, source: Source) -> tuple[Any, ...] | None:
        shape = tuple(tensor.shape)
        if self.dynamic == "never" or isinstance(source, ConstSource) or isinstance(tensor, torch.nn.Parameter):
            return None
        marks = size_marks(tensor)
        changed = self.history.dims(source.key(), shape)
        self.shapes[source.key()] = shape
        chosen: list[Any] = []
        for dim, size in enumerate(shape):
            mark = marks.get(dim)
            if mark == "static":
                chosen.append(size)
            elif isinstance(mark, tuple):
                chosen.append(("dynamic", *mark))
            elif size not in (0, 1) and (self.dynamic == "always" or dim in changed or mark is not None):
                chosen.append("dynamic")
            else:
                chosen.append(size)
        return tuple(chosen) if any(type(c) is not int for c in chosen) else None

    def tensor_value(self, traced: Any, cls: type = torch.Tensor) -> TensorValue:
        """The one Value of a TracedTensor."""
        found = self.tensors.get(id(traced))
        if found is None:
            found = self.tensors[id(traced)] = TensorValue(traced, cls)
        return found

    def number_changes(self, source: Source, value: int) -> bool:
        """Note a number that is computed from what is at a source; whether it is another one from call to call."""
        return self.history.int_is_dynamic(source.key(), value) and self.dynamic != "never"

    # -- reading lazily -------------------------------------------------------------------------------------

    def cell_content(self, cell: CellValue) -> Value | Missing:
        """The content of a cell, or UNBOUND."""
        if cell.content is None:
            assert cell.source is not None
            try:
                real = cell.real.cell_contents
            except ValueError:
                self.guard(cell.source, "empty")
                cell.content = UNBOUND
            else:
                cell.content = self.wrap(real, cell_contents(cell.source))
        return cell.content

    def dict_get(self, d: DictValue, key: Any) -> Value | None:
        """The value under a (real, hashable) key, or None."""
        self.settle_keys(d)
        self._pin_key(d, key)
        found = d.vals.get(key)
        if found is not None:
            return None if isinstance(found, Missing) else found
        if d.complete:
            return None
        assert d.source is not None
        if dict.__contains__(d.real_dict, key):
            real_value = dict.__getitem__(d.real_dict, key)
            value = self.wrap(real_value, item(d.source, key))
            d.vals[key] = value
            return value
        self.guard(d.source, "nokey", key)
        d.vals[key] = DELETED
        return None

    def _pin_key(self, d: DictValue, key: Any) -> None:
        """An object that is a key of a dict from outside has to be the same object in later calls. Nobody knows which
        numbers new hooks have, but that they are larger than those of older ones."""
        if self.builder.state.hooks_registered and type(key) in (int, bool, float, complex) and \
                has_hook_numbers(d.vals) and not (type(key) is int and key < RemovableHandle.next_id):
            raise GraphBreak("unsupported_value", f"a look for {key} among the numbers of hooks")
        if d.source is None or type(key) is str:
            return
        for part in key if type(key) is tuple else (key,):
            known: Any = self._by_id.get(id(part))
            if known is not None and known.source is not None and (known.is_instance or known.tensor is not None) and \
                    known.real is part:
                self.guard(known.source, "id", part)

    def dict_complete(self, d: DictValue) -> None:
        """Read all the keys of a dict from outside (guarded), in order."""
        if d.complete:
            return
        assert d.source is not None
        self.settle_keys(d)
        ordered = isinstance(d.real_dict, collections.OrderedDict)  # whose order is not that of the dict below it
        real_keys = tuple((collections.OrderedDict if ordered else dict).__iter__(d.real_dict))
        for cls in set(map(type, real_keys)):
            if not is_quiet_key(cls):
                raise GraphBreak("unsupported_value", f"a dict whose keys are hashed by {cls.__name__}.__hash__")
        self.need((d.source.key(), "keys"), hash(real_keys), f"all of {d.source}")
        if real_keys:
            self.guard(d.source, "keys", real_keys)
        self.guard(d.source, "len", len(real_keys))
        overlay = d.vals
        merged: dict[Any, Value | Missing] = {}
        for key in real_keys:
            if key in overlay:
                merged[key] = overlay[key]
            else:
                merged[key] = self.wrap(dict.__getitem__(d.real_dict, key), item(d.source, key))
            if key not in d.keys:
                d.keys[key] = self.const_object(key)
        for key, value in d.log:
            if isinstance(value, Missing):
                merged.pop(key, None)
            else:
                merged[key] = overlay[key]
        d.vals = {k: v for k, v in merged.items() if not isinstance(v, Missing)}
        d.complete = True

    def dict_items(self, d: DictValue) -> list[tuple[Any, Value]]:
        """(key, value) pairs in order."""
        self.dict_complete(d)
        return [(k, v) for k, v in d.vals.items() if not isinstance(v, Missing)]

    def plain_items(self, d: DictValue) -> list[tuple[Any, Value]]:
        """As `dict_items`, where the keys themselves are needed; a break where they only stand for others."""
        pairs = self.dict_items(d)
        if any(self._stands_in(key) for key, _ in pairs):
            raise GraphBreak("unsupported_value", "a dict as a constant, with keys that are objects of the program's")
        return pairs

    def _stands_in(self, key: Any) -> bool:
        return type(key) is Identity or id(key) in self.likenesses or \
            type(key) in (tuple, frozenset) and any(map(self._stands_in, key))

    def dict_key_value(self, d: DictValue, key: Any) -> Value:
        """The Value of a key, as iteration gives it."""
        found = d.keys.get(key)
        return found if found is not None else self.const_object(key)

    dict_count = dict_count

    def dict_set(self, d: DictValue, key: Any, value: Value, key_value: Value | None = None) -> None:
        """`d[key] = value`, logged."""
        self._check_kept(d, key)
        self.settle_keys(d)
        self._pin_key(d, key)
        self.writes += 1
        held = d.vals.get(key)
        is_new = isinstance(held, Missing) or held is None and (d.complete or not dict.__contains__(d.real_dict, key))
        if d.complete and isinstance(held, Missing):
            del d.vals[key]
        # The key that a dict has stays when an equal one is stored (1 and True).
        if key_value is not None and (is_new or key not in d.keys and key_value.is_object(key)):
            d.keys[key] = key_value
        d.vals[key] = value
        if d.source is not None:
            for i in range(len(d.log) - 1, -1, -1):
                if _same_key(d.log[i][0], key):
                    if not isinstance(d.log[i][1], Missing):
                        d.log[i] = (key, value)
                        break
                    d.log.append((key, value))
                    break
            else:
                d.log.append((key, value))
            self.touch(d)

    def keep(self, value: ObjectValue, names: tuple[str, ...], likeness: Any) -> None:
        """Attributes of an instance that is a key, and tell which one, stay as they are."""
        self.likenesses[id(likeness)] = likeness
        for holder in (value, value.attrs):
            self.kept_attributes[id(holder)] = holder, names

    def _check_kept(self, holder: Any, name: str) -> None:
        if id(holder) in self.kept_attributes and name in self.kept_attributes[id(holder)][1]:
            raise GraphBreak("unsupported_value", f".{name} = ... of an object that is a key")

    def dict_set_unread(self, d: DictValue, key: Value) -> bool:
        """Whether `d[key] = value` can be done without knowing the key: in a dict from outside that is only written."""
        return d.source is not None and not d.complete and is_symbolic(key)

    def dict_set_symbolic(self, d: DictValue, key: Value, value: Value) -> None:
        """`d[key] = value` with a key that mentions symbolic numbers."""
        self.writes += 1
        marker = SymbolicKey(key)
        d.keys[marker] = key
        d.log.append((marker, value))
        d.unsettled += 1
        self.touch(d)

    def settle_keys(self, d: DictValue) -> None:
        """Fix the symbolic keys of a dict that is read after all."""
        first, d.unsettled = len(d.log) - d.unsettled, 0
        pending = d.log[first:]
        del d.log[first:]
        for marker, value in pending:
            key = fixed_key(self, d.keys.pop(marker))
            self.dict_set(d, key, value, self.const_object(key))

    def dict_delete(self, d: DictValue, key: Any) -> None:
        """`del d[key]`; the key is known to be present."""
        self._check_kept(d, key)
        self.settle_keys(d)
        self.writes += 1
        if d.complete:
            del d.vals[key]
        else:
            d.vals[key] = DELETED
        if type(key) is Identity:  # made while tracing: the dict did not have it before
            d.log = [entry for entry in d.log if entry[0] is not key and entry[0] != key]
        elif d.source is not None:
            d.log.append((key, DELETED))
            self.touch(d)

    def globals_of(self, globals: dict[str, Any], name: str = "") -> DictValue:
        """The Value of a module's globals, or of another dict of that kind."""
        found = self._by_id.get(id(globals))
        if found is None:
            source: Source = GlobalsSource() if globals is self.root_globals else constant(
                globals, name or f"{globals.get('__name__', '?')}.__dict__")
            found = DictValue(source, dict, globals, globals)
            self._by_id[id(globals)] = found
        return found

    def builtins_value(self, name: str) -> Value | None:
        """A builtin by name."""
        return self.dict_get(self.globals_of(vars(builtins)), name)

    def imported(self, name: str) -> Value | None:
        """The module that `import name` finds, or None where it would have to load something."""
        return self.dict_get(self.globals_of(sys.modules, "sys.modules"), name)

    def module_dict(self, module: types.ModuleType) -> DictValue:
        return self.globals_of(vars(module))

    def closure_cell(self, i: int, name: str, cell: Any) -> CellValue:
        """Cell number `i` of the root function's closure."""
        return self.wrap(cell, ClosureCellSource(i, name))  # type: ignore[return-value]

    def read_slot(self, value: ObjectValue, descriptor: Any) -> Value | None:
        """A member descriptor's value on an instance, or None where unset."""
        if value.slots is None:
            value.slots = {}
        found = value.slots.get(descriptor)
        if found is None:
            found = DELETED
            if value.real is not None:
                try:
                    real = descriptor.__get__(value.real)
                except AttributeError:
                    raise GraphBreak("unsupported_value", f"a look at slot {descriptor.__name__!r} of "
                                     f"{value.describe()}, which is not set") from None
                found = self.wrap(real, slot(value.source, descriptor))  # type: ignore[arg-type]
            value.slots[descriptor] = found
        return None if isinstance(found, Missing) else found

    def write_slot(self, value: ObjectValue, descriptor: Any, new: Value | Missing) -> None:
        self._check_kept(value, descriptor.__name__)
        self.writes += 1
        if value.slots is None:
            value.slots = {}
        value.slots[descriptor] = new
        if value.dirty_slots is None:
            value.dirty_slots = {}
        value.dirty_slots[descriptor] = True
        if value.source is not None:
            self.touch(value)


@wraps(object)
def _wrap_object(context: TraceContext, obj: Any, cls: type, source: Source) -> Value:
    """An instance of a class in Python, or an object that only its identity is known of."""
    if is_plain_class(cls):
        return context.with_attrs(ObjectValue(cls, source, obj), obj)
    return PyValue(obj, source, pinned=isinstance(source, ConstSource))


def _same_key(a: Any, b: Any) -> bool:
    """Whether two dict keys of one type are equal. As a dict does, it compares hashes first: tensors have no truth."""
    return a is b or type(a) is type(b) and hash(a) == hash(b) and a == b


def own_dict(obj: Any) -> Any:
    """`obj.__dict__`, without running code of the program's."""
    return object.__getattribute__(obj, "__dict__")


def _is_learning_rate(source: Source) -> bool:
    """`optimizer.param_groups[i]["lr"]`: schedulers change it, so that it is an input of the graph from the start."""
    if source.step != ("item", "lr") or source.base is None or source.base.base is None:
        return False
    kind, arg = source.base.base.step
    return source.base.step[0] == "index" and kind in ("item", "attr") and arg == "param_groups"


def _name_of(obj: Any) -> str:
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    if isinstance(obj, types.ModuleType):
        return str(name)
    module = getattr(obj, "__module__", None)
    return f"{module}.{name}" if isinstance(name, str) and isinstance(module, str) else f"<{type(obj).__name__}>"
