"""Bytecode that puts Values back into the real world.

An `Emitter` writes the body of a compiled frame: it reloads values by their sources, calls the compiled graph, builds
the objects that tracing only imagined, and replays the changes of those that exist. Everything that comes from outside
is loaded before the first change is made (the prelude), so that a later load never sees an earlier write.

The body is written twice: a first pass finds which tensors have to come out of the graph.
"""

from __future__ import annotations

import collections
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from bytecode import Bytecode, FreeVar, Instr, Label

from ...ir.algebra import sympy
from ...ir.sizes_expr import python_text
from ...runtime.lifetimes import is_mortal
from .. import front_calls
from ..breaks import GraphBreak, Restart
from ..builtins.live_iterators import advance
from ..builtins.texts import TextValue
from ..code import param_names
from ..polyfills import ORIGINALS
from ..recording.history import retain_gradient
from ..source import (
    CallSource,
    ClosureCellSource,
    ClosureSource,
    ConstSource,
    GlobalsSource,
    LocalSource,
    Source,
    StepSource,
)
from ..tensors.computed_sizes import number_of
from ..values.base import (
    BoxedValue,
    BuiltinMethodValue,
    CellValue,
    ClassWrites,
    ConstValue,
    DictValue,
    DictViewValue,
    FunctionValue,
    GeneratorValue,
    ListValue,
    MethodValue,
    Missing,
    NullValue,
    ObjectValue,
    PyValue,
    RangeValue,
    ScalarValue,
    SetValue,
    SliceValue,
    StandInValue,
    SuperValue,
    SymValue,
    TensorValue,
    TupleValue,
    Value,
)
from ..world import World, own_dict

_PY311 = sys.version_info < (3, 12)
_PY313 = sys.version_info >= (3, 13)
_SIMPLE_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), types.CodeType)


class _Slot:
    """A placeholder for an object in the constants of code being assembled."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj


class Emitter:
    """Writes one function body."""

    def __init__(self, world: World, code: types.CodeType) -> None:
        self.world = world
        self.code = code
        self.params = param_names(code)
        self.line = code.co_firstlineno
        self.prelude: list[Any] = []
        self.body: list[Any] = []
        self.out: list[Any] = self.body
        self._memo: dict[int, str] = {}
        self._sources: dict[Any, str] = {}
        self._held: list[Any] = []
        #: what is written once all changes of existing objects are replayed
        self._afterwards: list[Callable[[], None]] = []
        self._temps = 0
        self.is_break = False  # whether other code goes on where this one ends
        #: graph results wanted: payloads in order of first use
        self.live: list[Any] = []
        self._live_ids: dict[int, int] = {}
        #: where each live payload is found: ("output", temp name) or ("input", Source); empty in the first pass
        self.places: list[tuple[str, Any]] | None = None
        #: where the code calls a callable with a tuple of arguments, as `return callable(*arguments)`
        self.hand_over = Label()
        self.uses_hand_over = False

    # -- instructions ---------------------------------------------------------------------------------------

    def emit(self, name: str, *arg: Any) -> None:
        self.out.append(Instr(name, *arg, lineno=self.line))

    def const(self, obj: Any) -> None:
        """Push an object."""
        if isinstance(obj, _SIMPLE_CONSTANTS):
            self.emit("LOAD_CONST", obj)
        else:
            self.emit("LOAD_CONST", _Slot(obj))

    def const_object(self, obj: Any) -> None:
        """Push an object of the program's, which the code does not keep alive if it is mortal."""
        made = self.world.made.get(id(obj))
        if made is not None:
            self.load(made)
        elif is_mortal(obj):
            self.call(weakref.ref(obj))
        else:
            self.const(obj)

    def temp(self) -> str:
        self._temps += 1
        return f"___t{self._temps}"

    def store_temp(self) -> str:
        name = self.temp()
        self.emit("STORE_FAST", name)
        return name

    def call(self, function: Any, *loads: Callable[[], None]) -> None:
        """Push `function(*args)`; each of `loads` pushes one argument. `function` is an object or a loader."""
        push = function if getattr(function, "__name__", "") == "<lambda>" else (lambda: self.const(function))
        if _PY313:
            push()
            self.emit("PUSH_NULL")
        else:
            self.emit("PUSH_NULL")
            push()
        for load in loads:
            load()
        self.finish_call(len(loads))

    def finish_call(self, count: int) -> None:
        if _PY311:
            self.emit("PRECALL", count)
        self.emit("CALL", count)

    def return_call(self, function: Any, arguments: Callable[[], None]) -> None:
        """`return function(*arguments)`, from a frame that is not seen from then on; `arguments` pushes a tuple."""
        if _PY313:
            self.const(function)
            self.emit("PUSH_NULL")
        else:
            self.emit("PUSH_NULL")
            self.const(function)
        arguments()
        self.emit("JUMP_BACKWARD_NO_INTERRUPT", self.hand_over)
        self.uses_hand_over = True

    def closure_cell(self, name: str) -> None:
        """Push a closure cell itself."""
        self.emit("LOAD_FAST" if _PY313 else "LOAD_CLOSURE", FreeVar(name))

    # -- sources --------------------------------------------------------------------------------------------

    def load_source(self, source: Source) -> None:
        """Push the real value at a source, loaded in the prelude (once)."""
        if isinstance(source, LocalSource):
            self.emit("LOAD_FAST", source.name)
            return
        if isinstance(source, ConstSource):
            self.const_object(source.value)
            return
        if isinstance(source, GlobalsSource):
            self.const(self.world.root_globals)
            return
        if isinstance(source, ClosureCellSource):
            self.closure_cell(source.name)
            return
        if isinstance(source, CallSource):
            self.emit("LOAD_FAST", self.result_name(source))
            return
        key = source.key()
        name = self._sources.get(key)
        if name is None:
            before, self.out = self.out, self.prelude
            self._load_path(source)
            name = self._sources[key] = self.store_temp()
            self.out = before
        self.emit("LOAD_FAST", name)

    @staticmethod
    def result_name(source: CallSource) -> str:
        """Where a result of a call in front of the graph is."""
        return f"___r{source.number}"

    def load_number(self, value: Any) -> None:
        """Push a number that is known without the graph (`front_calls.is_beside_graph`)."""
        if not hasattr(value, "meta"):
            self.const(value)
        elif "source" in value.meta:
            self.load_source(value.meta["source"])
        elif (function := front_calls.function_of(value)) is None:
            self.load_number(value.args[0])
        else:
            self.call(lambda: self.const(function), *(_later(self.load_number, arg) for arg in value.args))

    def _load_path(self, source: Source) -> None:
        """Push the value at a path, for the prelude."""
        if isinstance(source, ClosureSource):
            self.emit("LOAD_DEREF", FreeVar(source.name))
            return
        assert isinstance(source, StepSource), source
        base, kind, arg = source.parent, source.kind, source.arg
        if kind == "item" and isinstance(base, GlobalsSource) and isinstance(arg, str):
            self.emit("LOAD_GLOBAL", (False, arg))
        elif kind == "attr":
            self.load_source(base)
            self._load_attr(arg)
        elif kind == "dict" and base.key() in self.world.own_access:
            self.call(own_dict, lambda: self.load_source(base))
        elif kind == "dict":
            self.load_source(base)
            self._load_attr("__dict__")
        elif kind in ("item", "index"):
            kinds = self.world.container_kinds.get(base.key())
            if kinds is not None:
                getter = kinds.__getitem__
                self.call(getter, lambda: self.load_source(base), lambda: self.const(arg))
            else:
                self.load_source(base)
                self.const(arg)
                self.emit("BINARY_SUBSCR")
        elif kind == "type":
            self.call(type, lambda: self.load_source(base))
        elif kind == "slot":
            self.call(arg.__get__, lambda: self.load_source(base))
        elif kind == "cell":
            self.load_source(base)
            self._load_attr("cell_contents")
        else:
            raise AssertionError(kind)

    def _load_attr(self, name: str) -> None:
        self.emit("LOAD_ATTR", name if _PY311 else (False, name))

    # -- values ---------------------------------------------------------------------------------------------

    def load(self, value: Value) -> None:
        """Push the real object that a Value stands for."""
        if isinstance(value, NullValue):
            self.emit("PUSH_NULL")
            return
        if isinstance(value, ConstValue):
            self.const(value.value)
            return
        name = self._memo.get(id(value))
        if name is not None:
            self.emit("LOAD_FAST", name)
            return
        if isinstance(value, SymValue):
            self._load_expression(value.expr)
            return
        if isinstance(value, PyValue) and type(value) not in _BUILDERS:
            if value.source is None:
                self.const_object(value.obj)
            else:
                self.load_source(value.source)
            return
        if value.source is not None:
            self.load_source(value.source)
            return
        if isinstance(value, (TensorValue, ScalarValue)):
            if isinstance(value, TensorValue) and value.traced in self.world.recorder.parameters.data:
                self._build_parameter(value)
                return
            if isinstance(value, ScalarValue) and front_calls.is_beside_graph(value.traced.node):
                self.load_number(value.traced.node)
                return
            self._load_live(value.traced)
            if isinstance(value, TensorValue) and self.world.recorder.bets.retains(value.traced):
                self.remember(value)
                self.afterwards(_later(self._retain_gradient, value))
            if isinstance(value, TensorValue) and value.attrs is not None and self.world.dict_items(value.attrs):
                self.remember(value)
                self.fill_attrs(value)
            return
        build = _BUILDERS.get(type(value))
        if build is None:
            raise unreconstructable(value, -1)
        build(self, value)

    def parts(self, value: Value, parts: Iterable[Value]) -> list[str] | None:
        """Build the parts of an object first: their temporaries, or None where that has built the object itself, since
        one of them refers to it."""
        names = []
        for part in parts:
            self.load(part)
            names.append(self.store_temp())
        return names if id(value) not in self._memo else None

    def has_built(self, value: Value) -> bool:
        return id(value) in self._memo

    def remember(self, value: Value) -> None:
        """Keep the object on top of the stack as the one that `value` stands for."""
        self._held.append(value)
        self.emit("COPY", 1)
        self._memo[id(value)] = self.store_temp()

    def load_early(self, value: Value, load: Callable[[], None]) -> None:
        """Push an object that `load` makes in the prelude."""
        before, self.out = self.out, self.prelude
        load()
        name = self.store_temp()
        self.out = before
        self._held.append(value)
        self._memo[id(value)] = name
        self.emit("LOAD_FAST", name)

    def afterwards(self, write: Callable[[], None]) -> None:
        """Have something written once all changes of existing objects are replayed."""
        self._afterwards.append(write)

    def _load_live(self, payload: Any) -> None:
        position = self._live_ids.get(id(payload))
        if position is None:
            position = self._live_ids[id(payload)] = len(self.live)
            self.live.append(payload)
        if self.places is None:
            self.emit("LOAD_CONST", None)
            return
        kind, where = self.places[position]
        if kind == "input":
            self.load_source(where)
        else:
            self.emit("LOAD_FAST", where)

    def _load_expression(self, expr: sympy.Expr) -> None:
        symbols = sorted(expr.free_symbols, key=str)
        if len(symbols) == 1 and symbols[0] == expr:
            self.load_symbol(expr)
            return
        text = python_text(expr)
        function = eval(f"lambda {', '.join(map(str, symbols))}: {text}", {})
        self.call(lambda: self.const(function), *(_later(self.load_symbol, s) for s in symbols))

    def load_symbol(self, symbol: Any) -> None:
        """Push the run-time value of a size symbol."""
        info = self.world.sizes.symbols[symbol]
        if info.unbacked:
            self.load(ScalarValue(number_of(self.world.recorder, symbol)))
            return
        self.load_source(info.source)
        if info.dim is not None:
            self._load_attr("shape")
            self.emit("LOAD_CONST", info.dim)
            self.emit("BINARY_SUBSCR")

    def load_tuple(self, names: list[str]) -> None:
        """Push the tuple of some temporaries."""
        for name in names:
            self.emit("LOAD_FAST", name)
        self.emit("BUILD_TUPLE", len(names))

    def load_many(self, values: Iterable[Any]) -> int:
        count = 0
        for value in values:
            self.load(self.world.force(value))
            count += 1
        return count

    def _fill_list(self, value: ListValue) -> None:
        if value.cls is list and all(_is_leaf(v) for v in value.items):
            self.emit("BUILD_LIST", self.load_many(value.items))
            self.remember(value)
            return
        if value.cls is list:
            self.emit("BUILD_LIST", 0)
        else:
            self.call(list.__new__, lambda: self.const_object(value.cls))
        self.remember(value)
        if value.items:
            self.call(list.extend, lambda: self.load(value), lambda: self.emit("BUILD_LIST",
                                                                              self.load_many(value.items)))
            self.emit("POP_TOP")
        self.fill_attrs(value)

    def _build_tuple(self, value: TupleValue) -> None:
        if value.cls is tuple:
            self.emit("BUILD_TUPLE", self.load_many(value.items))
        elif hasattr(value.cls, "n_sequence_fields") or value.cls is torch.Size:
            self.call(value.cls, lambda: self.emit("BUILD_LIST", self.load_many(value.items)))
        else:
            self.call(tuple.__new__, lambda: self.const_object(value.cls),
                      lambda: self.emit("BUILD_LIST", self.load_many(value.items)))
        self.remember(value)
        self.fill_attrs(value)

    def _build_dict(self, value: DictValue) -> None:
        pairs = self.world.dict_items(value)
        if value.cls is dict:
            self.emit("BUILD_MAP", 0)
            setter: Any = None
        elif issubclass(value.cls, collections.OrderedDict):
            self.call(collections.OrderedDict.__new__, lambda: self.const_object(value.cls))
            setter = collections.OrderedDict.__setitem__
        elif issubclass(value.cls, collections.defaultdict):
            self.call(collections.defaultdict.__new__, lambda: self.const_object(value.cls))
            setter = dict.__setitem__
        else:
            self.call(dict.__new__, lambda: self.const_object(value.cls))
            setter = dict.__setitem__
        self.remember(value)
        for key, item in pairs:
            key_value = self.world.dict_key_value(value, key)
            self._set_item(value, setter, key_value, item)
        self.fill_attrs(value)

    def _build_parameter(self, value: TensorValue) -> None:
        data = self.world.recorder.parameters.data[value.traced]
        self.call(torch.Tensor._make_subclass, _later(self.const, value.cls), _later(self._load_live, data),
                  _later(self.const, value.traced.spec.requires_grad))
        self.remember(value)
        if value.grad is not None and not (isinstance(value.grad, ConstValue) and value.grad.value is None):
            self.load(value.grad)
            self.load(value)
            self.emit("STORE_ATTR", "grad")
        self.fill_attrs(value)

    def _retain_gradient(self, value: TensorValue) -> None:
        """A result that was told to retain its gradient, and may have got one."""
        assert value.grad is not None
        self.call(retain_gradient, _later(self.load, value), _later(self.load, value.grad))
        self.emit("POP_TOP")

    def _set_item(self, target: Value, setter: Any, key: Value, item: Value) -> None:
        if setter is None:
            self.load(item)
            self.load(target)
            self.load(key)
            self.emit("STORE_SUBSCR")
        else:
            self.call(setter, _later(self.load, target), _later(self.load, key), _later(self.load, item))
            self.emit("POP_TOP")

    def _build_set(self, value: SetValue) -> None:
        def items() -> None:
            self.emit("BUILD_LIST", self.load_many(value.items[key] for key in added))

        def comes_out(listed: Iterable[Any]) -> bool:
            """Whether a set of what is listed has the order of this one; nobody's `__eq__` is asked."""
            return list(map(id, value.cls(listed))) == list(map(id, value.twin))

        order = added = list(value.twin)
        plain = value.cls in (set, frozenset)
        if plain and not comes_out(order) and comes_out(value.items):
            added = order = list(value.items)
        if plain and not comes_out(order) and all(isinstance(v, ConstValue) for v in value.items.values()):
            twin = value.twin.copy()  # a history that listing its elements does not tell
            self.call(value.cls.copy, lambda: self.const(twin))
        elif plain:
            self.call(value.cls, items)
        else:
            base = frozenset if issubclass(value.cls, frozenset) else set
            self.call(base.__new__, lambda: self.const_object(value.cls), items)
            if base is set:
                self.emit("COPY", 1)
                name = self.store_temp()
                self.call(set.update, lambda: self.emit("LOAD_FAST", name), items)
                self.emit("POP_TOP")
        self.remember(value)
        self.fill_attrs(value)

    def _build_object(self, value: ObjectValue) -> None:
        if value.cls in ORIGINALS:
            raise unreconstructable(value, value.born)
        base = types.SimpleNamespace if issubclass(value.cls, types.SimpleNamespace) else object
        self.call(base.__new__, lambda: self.const_object(value.cls))
        self.remember(value)
        self.fill_attrs(value)

    def _build_boxed(self, value: BoxedValue) -> None:
        self.call(value.base.__new__, lambda: self.const_object(value.cls), lambda: self.load(value.plain))
        self.remember(value)
        self.fill_attrs(value)

    def _build_stand_in(self, value: StandInValue) -> None:
        fill = getattr(value.body, "fill", None)
        if fill is None:
            self.call(lambda: self.const(value.body.make), lambda: self.const_object(value.cls), *self._hidden(value))
            self.remember(value)
        else:
            self.call(lambda: self.const(value.body.make), lambda: self.const_object(value.cls))
            self.remember(value)
            self._fill_stand_in(value)
        self.fill_attrs(value)

    def _fill_stand_in(self, value: StandInValue) -> None:
        self.call(lambda: self.const(value.body.fill), _later(self.load, value), *self._hidden(value))
        self.emit("POP_TOP")

    def _hidden(self, value: StandInValue) -> list[Callable[[], None]]:
        return [_later(self.load, value.hidden[name]) for name in value.body.state]

    def fill_attrs(self, value: ObjectValue | TensorValue) -> None:
        """Give a new instance its attributes; the instance stays on the stack."""
        if value.attrs is not None and value.attrs.source is None:
            hidden = isinstance(value.cls.__getattribute__, types.FunctionType)
            for key, item in self.world.dict_items(value.attrs):
                self.load(item)
                if hidden:
                    self.call(own_dict, _later(self.load, value))
                else:
                    self.load(value)
                    self._load_attr("__dict__")
                self.const(key)
                self.emit("STORE_SUBSCR")
        slots = value.slots if isinstance(value, ObjectValue) else None
        for descriptor, item in (slots or {}).items():
            if isinstance(item, Value) and id(descriptor.__objclass__) in self.world.made:
                self.call(object.__setattr__, _later(self.load, value), _later(self.const, descriptor.__name__),
                          _later(self.load, item))
                self.emit("POP_TOP")
            elif isinstance(item, Value):
                self.call(descriptor.__set__, _later(self.load, value), _later(self.load, item))
                self.emit("POP_TOP")

    def _build_function(self, value: FunctionValue) -> None:
        cells = self.parts(value, value.closure or ())
        if cells is None:
            self.load(value)
            return

        def closure() -> None:
            if cells:
                self.load_tuple(cells)
            else:
                self.emit("LOAD_CONST", None)

        def defaults() -> None:
            if value.defaults:
                self.emit("BUILD_TUPLE", self.load_many(value.defaults))
            else:
                self.emit("LOAD_CONST", None)

        self.call(types.FunctionType, lambda: self.const(value.code), lambda: self.const(value.globals),
                  lambda: self.const(value.name), defaults, closure)
        self.remember(value)
        if value.kwdefaults:
            def build() -> None:
                for key, item in value.kwdefaults.items():  # type: ignore[union-attr]
                    self.const(key)
                    self.load(item)
                self.emit("BUILD_MAP", len(value.kwdefaults))  # type: ignore[arg-type]

            build()
            self.load(value)
            self.emit("STORE_ATTR", "__kwdefaults__")
        if value.qualname != value.code.co_qualname:
            self.const(value.qualname)
            self.load(value)
            self.emit("STORE_ATTR", "__qualname__")
        if value.module is not None and value.module != value.globals.get("__name__"):
            self.const(value.module)
            self.load(value)
            self.emit("STORE_ATTR", "__module__")
        if value.doc is not None:
            self.load(value.doc)
            self.load(value)
            self.emit("STORE_ATTR", "__doc__")
        if value.annotations is not None:
            self._annotations(value)
        if value.attrs is not None and value.attrs.source is None:
            for key, item in self.world.dict_items(value.attrs):
                self.load(item)
                self.load(value)
                self.emit("STORE_ATTR", key)

    def _annotations(self, value: FunctionValue) -> None:
        annotations = value.annotations
        if isinstance(annotations, TupleValue):
            items = [self.world.force(v) for v in annotations.items]
            for key, item in zip(items[::2], items[1::2], strict=True):
                self.load(key)
                self.load(item)
            self.emit("BUILD_MAP", len(items) // 2)
        else:
            assert annotations is not None
            self.load(annotations)
        self.load(value)
        self.emit("STORE_ATTR", "__annotations__")

    def _build_cell(self, value: CellValue) -> None:
        self.call(types.CellType)
        self.remember(value)
        if isinstance(value.content, Value):
            self.load(value.content)
            self.load(value)
            self.emit("STORE_ATTR", "cell_contents")

    def _build_method(self, value: MethodValue) -> None:
        self.call(types.MethodType, lambda: self.load(value.func), lambda: self.load(value.self))

    def _build_builtin_method(self, value: BuiltinMethodValue) -> None:
        # the owner is passed because CPython 3.11 does not check for its absence
        self.call(value.descriptor.__get__, lambda: self.load(value.self), lambda: self.const_object(value.self.cls))

    def _build_text(self, value: TextValue) -> None:
        if value.source is not None:
            self.load_source(value.source)
            return
        function = value.function
        self.call(lambda: self.const(function), *(_later(self.load, arg) for arg in value.args))
        self.remember(value)

    def _build_super(self, value: SuperValue) -> None:
        self.call(super, lambda: self.const_object(value.start), lambda: self.load(value.obj))

    def _build_slice(self, value: SliceValue) -> None:
        self.call(slice, *(_later(self.load, v) for v in (value.start, value.stop, value.step)))

    def _build_range(self, value: RangeValue) -> None:
        self.call(range, *(_later(self.load, v) for v in (value.start, value.stop, value.step)))

    def _build_view(self, value: DictViewValue) -> None:
        self.call(getattr(value.base, value.kind), lambda: self.load(value.of))

    # -- effects --------------------------------------------------------------------------------------------

    def replay(self) -> None:
        """Write every change of existing objects back, in the order in which they were first changed: iterators first,
        which have gone on before what they go over was changed."""
        for iterator, steps in itertools.groupby(self.world.steps):
            self.call(advance, _later(self.load, iterator), _later(self.const, len(list(steps))))
            self.emit("POP_TOP")
        for value in self.world.dirty:
            if value.source is None:
                continue
            if isinstance(value, ListValue):
                self._replay_list(value)
            elif isinstance(value, DictValue):
                self._replay_dict(value)
            elif isinstance(value, SetValue):
                for method, kind, items in value.log:
                    self._replay_set(value, method, kind, items)
            elif isinstance(value, CellValue):
                if isinstance(value.content, Value):
                    self.load(value.content)
                    self.load(value)
                    self.emit("STORE_ATTR", "cell_contents")
                else:
                    self.load(value)
                    self.emit("DELETE_ATTR", "cell_contents")
            elif isinstance(value, StandInValue):
                self._replay_stand_in(value)
            elif isinstance(value, ClassWrites):
                self._replay_class(value)
            elif isinstance(value, TensorValue):
                if value.data is not None:
                    self.load(value.data)
                    self.load(value)
                    self.emit("STORE_ATTR", "data")
                if value.flag is not None:
                    self.const(value.flag)
                    self.load(value)
                    self.emit("STORE_ATTR", "requires_grad")
                if value.grad_assigned and value.grad is not None:
                    self.load(value.grad)
                    self.load(value)
                    self.emit("STORE_ATTR", "grad")
            if isinstance(value, ObjectValue) and value.dirty_slots:
                for descriptor in value.dirty_slots:
                    self._replay_slot(value, descriptor)
        while self._afterwards:
            self._afterwards.pop(0)()

    def _list_of(self, items: Iterable[Any]) -> None:
        self.emit("BUILD_LIST", self.load_many(items))

    def _replay_list(self, value: ListValue) -> None:
        if value.dirty or value.unread is None and len(value.log) > len(value.items):
            self.call(list.__setitem__, _later(self.load, value), lambda: self.const(slice(None)),
                      _later(self._list_of, value.items))
            self.emit("POP_TOP")
        else:
            self._replay_calls(value, value.log, lambda method: getattr(list, method))

    def _replay_stand_in(self, value: StandInValue) -> None:
        lists = [hidden for hidden in value.hidden.values() if isinstance(hidden, ListValue) and hidden.owner is value]
        if value.dirty or any(hidden.dirty for hidden in lists):
            self._fill_stand_in(value)
        else:
            for hidden in lists:
                self._replay_calls(value, hidden.log, value.body.changes.__getitem__)

    def _replay_calls(self, target: Value, log: list[Any], method_of: Callable[[str], Any]) -> None:
        """Call the methods of list that changed a list; items appended one after the other at once."""
        appended: list[Any] = []
        for i, (method, args) in enumerate(log):
            if method in ("append", "extend"):
                appended += args if method == "append" else args[0]
                if i + 1 < len(log) and log[i + 1][0] in ("append", "extend"):
                    continue
                method, args = ("append", appended) if len(appended) == 1 else ("extend", (list(appended),))
                appended = []
            self.call(method_of(method), _later(self.load, target), *(_later(self._load_argument, a) for a in args))
            self.emit("POP_TOP")

    def _load_argument(self, arg: Any) -> None:
        """Push an argument of a logged call: a position, a list of items, or an item."""
        if isinstance(arg, int):
            self.const(arg)
        elif isinstance(arg, list):
            self._list_of(arg)
        else:
            self.load(self.world.force(arg))

    def _replay_dict(self, value: DictValue) -> None:
        setter: Any = None
        deleter: Any = None
        if value.cls is not dict:
            base = collections.OrderedDict if issubclass(value.cls, collections.OrderedDict) else dict
            setter, deleter = base.__setitem__, base.__delitem__
        for key, item in value.log:
            key_value = self.world.dict_key_value(value, key)
            if isinstance(item, Value):
                self._set_item(value, setter, key_value, item)
            elif deleter is None:
                self.load(value)
                self.load(key_value)
                self.emit("DELETE_SUBSCR")
            else:
                self.call(deleter, _later(self.load, value), _later(self.load, key_value))
                self.emit("POP_TOP")

    def _replay_class(self, value: ClassWrites) -> None:
        for name, item in value.items.items():
            if isinstance(item, Missing):
                self.call(type.__delattr__, _later(self.const_object, value.obj), _later(self.const, name))
            else:
                self.call(type.__setattr__, _later(self.const_object, value.obj), _later(self.const, name),
                          _later(self.load, item))
            self.emit("POP_TOP")

    def _replay_set(self, value: SetValue, method: str, kind: type, items: list[Value]) -> None:
        """One change of a set: `kind` is the type of the method's argument, NoneType for an element."""
        if method == "clear":
            loads: list[Callable[[], None]] = []
        elif kind is type(None):
            loads = [_later(self.load, items[0])]
        elif kind is list:
            loads = [_later(self._list_of, items)]
        else:
            loads = [lambda: self.call(dict.fromkeys if kind is dict else kind, _later(self._list_of, items))]
        self.call(getattr(set, method), _later(self.load, value), *loads)
        self.emit("POP_TOP")

    def _replay_slot(self, value: ObjectValue, descriptor: Any) -> None:
        new = value.slots[descriptor]  # type: ignore[index]
        if isinstance(new, Missing):
            self.call(descriptor.__delete__, _later(self.load, value))
        else:
            self.call(descriptor.__set__, _later(self.load, value), _later(self.load, new))
        self.emit("POP_TOP")

    # -- assembling -----------------------------------------------------------------------------------------

    def assemble(self) -> types.CodeType:
        """The code object: positional parameters of the original, its free variables, prelude then body."""
        code = self.code
        head: list[Any] = []
        free = list(code.co_freevars)
        if free:
            head.append(Instr("COPY_FREE_VARS", len(free), lineno=code.co_firstlineno))
        if self.uses_hand_over:
            # What lies before RESUME is hidden from tracebacks: the frame is the resume function's from then on.
            begin = Label()
            head += [Instr("JUMP_FORWARD", begin, lineno=code.co_firstlineno), self.hand_over,
                     Instr("CALL_FUNCTION_EX", 0, lineno=code.co_firstlineno),
                     Instr("RETURN_VALUE", lineno=code.co_firstlineno), begin]
        head.append(Instr("RESUME", 0, lineno=code.co_firstlineno))
        bytecode = Bytecode([*head, *self.prelude, *self.body])
        bytecode.argnames = list(self.params)
        bytecode.argcount = len(self.params)
        bytecode.freevars = free
        bytecode.name = code.co_name
        bytecode.qualname = code.co_qualname
        bytecode.filename = code.co_filename
        bytecode.first_lineno = code.co_firstlineno
        bytecode.flags = code.co_flags & 0x10 | 0x03
        return assemble(bytecode)


#: what instructions that leave more on the stack than they take begin with
_PUSHING = ("LOAD_", "PUSH_", "COPY", "BUILD_", "FOR_ITER", "BEFORE_WITH", "IMPORT_FROM", "GET_LEN", "MATCH_")


def assemble(bytecode: Bytecode) -> types.CodeType:
    """Assemble, then put the real objects where the constants hold placeholders."""
    # What nothing bounds but the program's data (the items of a list) may all lie on the stack at once.
    depth = 64 + sum(i.arg if i.name == "UNPACK_SEQUENCE" else i.name.startswith(_PUSHING)
                     for i in bytecode if isinstance(i, Instr))
    code = bytecode.to_code(stacksize=depth, compute_exception_stack_depths=False)
    return code.replace(co_consts=tuple(c.obj if isinstance(c, _Slot) else c for c in code.co_consts))


def slot(obj: Any) -> Any:
    """A constant operand for `Instr`: simple ones as they are, others through a placeholder."""
    return obj if isinstance(obj, _SIMPLE_CONSTANTS) else _Slot(obj)


def unreconstructable(value: Value, born: int) -> Exception:
    """What to raise for a Value that cannot be handed to plain Python: trace again without making it."""
    cause = GraphBreak("generator" if isinstance(value, GeneratorValue) else "unsupported_value",
                       f"{value.describe()} is alive at a graph break")
    if born > 0:
        return Restart(born, cause)
    return Unreconstructable(cause)


class Unreconstructable(Exception):
    """A Value cannot be built in plain Python, and where it was made is not known."""

    def __init__(self, cause: GraphBreak) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _later(function: Callable[..., None], *args: Any) -> Callable[[], None]:
    def run() -> None:
        function(*args)

    return run


def _is_leaf(value: Any) -> bool:
    return isinstance(value, (ConstValue, TensorValue, ScalarValue, SymValue))


def builds(kind: type) -> Callable[[Any], Any]:
    """Register what builds the objects that Values of one kind stand for."""

    def register(function: Callable[[Emitter, Any], None]) -> Any:
        _BUILDERS[kind] = function
        return function

    return register


_BUILDERS: dict[type, Callable[[Emitter, Any], None]] = {
    ListValue: Emitter._fill_list, TupleValue: Emitter._build_tuple, DictValue: Emitter._build_dict,
    SetValue: Emitter._build_set, ObjectValue: Emitter._build_object, StandInValue: Emitter._build_stand_in,
    BoxedValue: Emitter._build_boxed,
    FunctionValue: Emitter._build_function, CellValue: Emitter._build_cell, MethodValue: Emitter._build_method,
    BuiltinMethodValue: Emitter._build_builtin_method, SuperValue: Emitter._build_super,
    SliceValue: Emitter._build_slice, RangeValue: Emitter._build_range, DictViewValue: Emitter._build_view,
    TextValue: Emitter._build_text,
}
