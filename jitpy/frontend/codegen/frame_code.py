"""Bytecode that puts Values back into the real world.

An `Emitter` writes the body of a compiled frame: it reloads values by their sources, calls the compiled graph, has the
objects built that tracing only imagined (`builders.py`), and the changes of those that exist replayed (`replay.py`).
Everything that comes from outside is loaded before the first change is made (the prelude), so that a later load never
sees an earlier write.

The body is written twice: a first pass finds which tensors have to come out of the graph.
"""

from __future__ import annotations

import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from bytecode import FreeVar, Label
from bytecode.instr import InstrLocation

from ...ir.algebra import sympy
from ...ir.sizes_expr import python_text
from ...runtime.autograd_node import forget_history
from ...runtime.lifetimes import is_weakly_held
from ..breaks import GraphBreak, RestartAnalysis
from ..bytecode.code import param_names
from ..capture import front_calls
from ..capture.computed_sizes import number_of
from ..capture.history import retain_gradient
from ..guards.source import (
    CallSource,
    ClosureCellSource,
    ClosureSource,
    ConstSource,
    GlobalsSource,
    LocalSource,
    Source,
    StepSource,
)
from ..interpreter.trace_context import SymbolicTraceContext, own_dict
from ..values import (
    ConstValue,
    Missing,
    NullValue,
    ObjectValue,
    PyValue,
    ScalarValue,
    SymValue,
    TensorValue,
    Value,
)
from .code_writer import CodeWriter, later, make_code

_PY311 = sys.version_info < (3, 12)


class Emitter(CodeWriter):
    """Writes one function body."""

    def __init__(self, context: SymbolicTraceContext, code: types.CodeType) -> None:
        super().__init__(InstrLocation(code.co_firstlineno, None, None, None))
        self.context = context
        self.code = code
        self.params = param_names(code)
        self.prelude: list[Any] = []
        self.body: list[Any] = self.out
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
        #: where the code calls a callable with one argument, as `return callable(argument)`
        self.hand_over = Label()
        self.uses_hand_over = False

    # -- instructions ---------------------------------------------------------------------------------------

    def const_object(self, obj: Any) -> None:
        """Push an object of the program's, which the code does not keep alive if it is weakly held."""
        if is_weakly_held(obj):
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

    def push(self, load: Any) -> None:
        """Push a Value, or what a loader pushes."""
        if callable(load):
            load()
        else:
            self.load(load)

    def run(self, function: Any, *loads: Any) -> None:
        """`call` whose result nobody wants."""
        self.call(function, *loads)
        self.emit("POP_TOP")

    def make(self, value: Value, function: Any, *loads: Any) -> None:
        """`call` whose result is the object that `value` stands for."""
        self.call(function, *loads)
        self.remember(value)

    def set_attribute(self, target: Value, name: str, new: Any) -> None:
        """`target.name = new`, with `new` a Value or a loader."""
        self.push(new)
        self.load(target)
        self.emit("STORE_ATTR", name)

    def return_call(self, function: Any, argument: Callable[[], None]) -> None:
        """`return function(argument)`, from a frame that is not seen from then on, and holds nothing."""
        self.begin_call(later(self.const, function))
        argument()
        self.emit("JUMP_BACKWARD_NO_INTERRUPT", self.hand_over)
        self.uses_hand_over = True

    def let_go(self, but: Iterable[str] = ()) -> None:
        """Drop what the frame holds, except for some variables."""
        for name in {*self.params, *(f"___t{k + 1}" for k in range(self._temps))}.difference(but):
            self.emit("LOAD_CONST", None)
            self.emit("STORE_FAST", name)

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
            self.const(self.context.root_globals)
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
            self.call(function, *(later(self.load_number, arg) for arg in value.args))

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
            self.load_attr(arg)
        elif kind == "dict" and base.key() in self.context.own_access:
            self.call(own_dict, lambda: self.load_source(base))
        elif kind == "dict":
            self.load_source(base)
            self.load_attr("__dict__")
        elif kind in ("item", "index", "index_by"):
            push = self._load_expression if kind == "index_by" else self.const
            kinds = self.context.container_kinds.get(base.key())
            if kinds is not None:
                getter = kinds.__getitem__
                self.call(getter, lambda: self.load_source(base), lambda: push(arg))
            else:
                self.load_source(base)
                push(arg)
                self.emit("BINARY_SUBSCR")
        elif kind == "type":
            self.call(type, lambda: self.load_source(base))
        elif kind == "slot":
            self.call(arg.__get__, lambda: self.load_source(base))
        elif kind == "cell":
            self.load_source(base)
            self.load_attr("cell_contents")
        else:
            raise AssertionError(kind)

    def load_attr(self, name: str) -> None:
        self.emit("LOAD_ATTR", name if _PY311 else (False, name))

    # -- values ---------------------------------------------------------------------------------------------

    def load(self, value: Value) -> None:
        """Push the real object that a Value stands for."""
        if not value.is_rebuilt:
            name = self._memo.get(id(value))
            if name is not None:
                self.emit("LOAD_FAST", name)
                return
            if value.source is not None:
                self.load_source(value.source)
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

    def _load_nan(self, value: ConstValue) -> None:
        """Programs tell NaNs apart: one from outside is that very one, one that was computed is new in each call."""
        name = self._memo.get(id(value.value))
        if value.source is not None:
            self.load_source(value.source)
        elif name is not None:
            self.emit("LOAD_FAST", name)
        else:
            self.call(operator.neg, lambda: self.const(-value.value))
            self.emit("COPY", 1)
            self._memo[id(value.value)] = self.store_temp()

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

    def write_afterwards(self) -> None:
        while self._afterwards:
            self._afterwards.pop(0)()

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
        self.call(function, *(later(self.load_symbol, s) for s in symbols))

    def load_symbol(self, symbol: Any) -> None:
        """Push the run-time value of a size symbol."""
        info = self.context.sizes.symbols[symbol]
        if info.unbacked:
            self.load(ScalarValue(number_of(self.context.builder, symbol)))
            return
        self.load_source(info.source)
        if info.dim is not None:
            self.load_attr("shape")
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
            self.load(self.context.force(value))
            count += 1
        return count

    def load_list(self, items: Iterable[Any]) -> None:
        self.emit("BUILD_LIST", self.load_many(items))

    def _build_parameter(self, value: TensorValue) -> None:
        data = self.context.builder.parameters.data[value.traced]
        self.call(torch.Tensor._make_subclass, later(self.const, value.cls), later(self._load_live, data),
                  later(self.const, value.traced.spec.requires_grad))
        self.remember(value)
        if value.grad is not None and value.grad.literal is not None:
            self.set_attribute(value, "grad", value.grad)
        self.fill_attrs(value)

    def _retain_gradient(self, value: TensorValue) -> None:
        """A result that was told to retain its gradient, and may have got one."""
        assert value.grad is not None
        self.run(retain_gradient, value, value.grad)

    def _forget_history(self, value: TensorValue) -> None:
        """A view that is older than the history of what it shows: nobody has asked for its own yet."""
        self.run(forget_history, value)

    def set_item(self, target: Value, setter: Any, key: Value, item: Value) -> None:
        """`target[key] = item`, by a class's own `__setitem__` where one is given."""
        if setter is None:
            self.load(item)
            self.load(target)
            self.load(key)
            self.emit("STORE_SUBSCR")
        else:
            self.run(setter, target, key, item)

    def fill_attrs(self, value: ObjectValue | TensorValue) -> None:
        """Give a new instance its attributes; the instance stays on the stack."""
        if value.attrs is not None and value.attrs.source is None:
            for key, item in self.context.dict_items(value.attrs):
                self.load(item)
                if self._is_stored_plainly(value.cls, key):
                    self.load(value)
                    self.emit("STORE_ATTR", key)
                else:
                    self.load_dict_of(value)
                    self.const(key)
                    self.emit("STORE_SUBSCR")
        for descriptor, item in (value.slots or {}).items():
            if not isinstance(item, Missing):
                self.run(descriptor.__set__, value, item)

    def _is_stored_plainly(self, cls: type, name: Any) -> bool:
        """Whether storing an attribute writes to the `__dict__`. It is quicker than a write there, and so are all
        accesses of an object whose `__dict__` nobody asked for."""
        if type(name) is not str or self.context.class_lookup(cls, "__setattr__") is not object.__setattr__:
            return False
        found = self.context.class_lookup(cls, name)
        return not hasattr(type(found), "__set__") and not hasattr(type(found), "__delete__")

    def load_dict_of(self, value: Value) -> None:
        """Push the `__dict__` of an instance."""
        if isinstance(value.cls.__getattribute__, types.FunctionType):
            self.call(own_dict, value)
        else:
            self.load(value)
            self.load_attr("__dict__")

    # -- assembling -----------------------------------------------------------------------------------------

    def assemble(self) -> types.CodeType:
        """The code object: positional parameters of the original, its free variables, prelude then body."""
        head: list[Any] = []
        self.out = head
        free = self.code.co_freevars
        if free:
            self.emit("COPY_FREE_VARS", len(free))
        if self.uses_hand_over:
            # The code before RESUME is hidden from tracebacks: the frame is the resume function's from then on.
            begin = Label()
            self.emit("JUMP_FORWARD", begin)
            head.append(self.hand_over)
            self.let_go()
            self.finish_call(1)
            self.emit("RETURN_VALUE")
            head.append(begin)
        self.emit("RESUME", 0)
        return make_code([*head, *self.prelude, *self.body], self.code, self.params, free)


def unreconstructable(value: Value, born: int) -> Exception:
    """The exception for a Value that cannot be handed to plain Python: trace again without making it."""
    cause = GraphBreak("generator" if value.is_generator else "unsupported_value",
                       f"{value.describe()} is alive at a graph break")
    if born > 0:
        return RestartAnalysis(born, cause)
    return Unreconstructable(cause)


class Unreconstructable(Exception):
    """A Value cannot be built in plain Python, and where it was made is not known."""

    def __init__(self, cause: GraphBreak) -> None:
        super().__init__(str(cause))
        self.cause = cause


def builds(kind: type) -> Callable[[Any], Any]:
    """Register what builds the objects that Values of one kind stand for."""

    def register(function: Callable[[Emitter, Any], None]) -> Any:
        _BUILDERS[kind] = function
        return function

    return register


_BUILDERS: dict[type, Callable[[Emitter, Any], None]] = {}


@builds(NullValue)
def _build_null(emitter: Emitter, value: NullValue) -> None:
    emitter.emit("PUSH_NULL")


@builds(ConstValue)
def _build_constant(emitter: Emitter, value: ConstValue) -> None:
    if type(value.value) in (float, complex) and value.value != value.value:
        emitter._load_nan(value)
    else:
        emitter.const(value.value)


@builds(SymValue)
def _build_size(emitter: Emitter, value: SymValue) -> None:
    emitter._load_expression(value.expr)


@builds(PyValue)
def _build_object(emitter: Emitter, value: PyValue) -> None:
    emitter.const_object(value.obj)


@builds(ScalarValue)
def _build_number(emitter: Emitter, value: ScalarValue) -> None:
    if front_calls.is_beside_graph(value.traced.node):
        emitter.load_number(value.traced.node)
    else:
        emitter._load_live(value.traced)


@builds(TensorValue)
def _build_tensor(emitter: Emitter, value: TensorValue) -> None:
    if value.traced in emitter.context.builder.parameters.data:
        emitter._build_parameter(value)
        return
    if value.cls is torch.Tensor:
        emitter._load_live(value.traced)
    else:
        emitter.call(torch._C.TensorBase.as_subclass, later(emitter._load_live, value.traced),
                     later(emitter.const_object, value.cls))
        emitter.remember(value)
    if emitter.context.builder.speculation.retains(value.traced):
        emitter.remember(value)
        emitter.afterwards(later(emitter._retain_gradient, value))
    if value.traced.is_late and value.traced.storage.input is None:
        emitter.remember(value)
        emitter.afterwards(later(emitter._forget_history, value))
    if value.attrs is not None and emitter.context.dict_items(value.attrs):
        emitter.remember(value)
        emitter.fill_attrs(value)
