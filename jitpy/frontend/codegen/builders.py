"""Builds the objects that tracing only imagined: one function for each kind of Value.

Objects that may refer to themselves are made empty, remembered, and filled. Values that are defined elsewhere have
their builders there.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable
from typing import Any

import torch

from ..polyfills import ORIGINALS
from ..values import (
    BoxedValue,
    BuiltinMethodValue,
    CellValue,
    DictValue,
    DictViewValue,
    FunctionValue,
    Lazy,
    ListValue,
    MethodValue,
    ModelledValue,
    ObjectValue,
    RangeValue,
    SetValue,
    SliceValue,
    SuperValue,
    TextValue,
    TupleValue,
    Value,
    WrapperValue,
)
from ..values.function_block import FunctionBlockValue
from .code_writer import later
from .frame_code import Emitter, builds, unreconstructable


@builds(ListValue)
def _list(emitter: Emitter, value: ListValue) -> None:
    if value.cls is list and all(_is_leaf(v) for v in value.items):
        emitter.emit("BUILD_LIST", emitter.load_many(value.items))
        emitter.remember(value)
        return
    if value.cls is list:
        emitter.emit("BUILD_LIST", 0)
    else:
        emitter.call(list.__new__, lambda: emitter.const_object(value.cls))
    emitter.remember(value)
    if value.items:
        emitter.run(list.extend, value, lambda: emitter.load_list(value.items))
    emitter.fill_attrs(value)


@builds(TupleValue)
def _tuple(emitter: Emitter, value: TupleValue) -> None:
    if value.cls is tuple:
        emitter.emit("BUILD_TUPLE", emitter.load_many(value.items))
    elif hasattr(value.cls, "n_sequence_fields") or value.cls is torch.Size:
        emitter.call(value.cls, lambda: emitter.load_list(value.items))
    else:
        emitter.call(tuple.__new__, lambda: emitter.const_object(value.cls),
                     lambda: emitter.load_list(value.items))
    emitter.remember(value)
    emitter.fill_attrs(value)


@builds(DictValue)
def _dict(emitter: Emitter, value: DictValue) -> None:
    if value.instance is not None:
        emitter.load_dict_of(value.instance)
        emitter.remember(value)
        return
    pairs = emitter.context.dict_items(value)
    if value.cls is dict:
        emitter.emit("BUILD_MAP", 0)
        setter: Any = None
    elif issubclass(value.cls, collections.OrderedDict):
        emitter.call(collections.OrderedDict.__new__, lambda: emitter.const_object(value.cls))
        setter = collections.OrderedDict.__setitem__
    elif issubclass(value.cls, collections.defaultdict):
        emitter.call(collections.defaultdict.__new__, lambda: emitter.const_object(value.cls))
        setter = dict.__setitem__
    else:
        emitter.call(dict.__new__, lambda: emitter.const_object(value.cls))
        setter = dict.__setitem__
    emitter.remember(value)
    for key, item in pairs:
        key_value = emitter.context.dict_key_value(value, key)
        emitter.set_item(value, setter, key_value, item)
    emitter.fill_attrs(value)


@builds(SetValue)
def _set(emitter: Emitter, value: SetValue) -> None:
    def items() -> None:
        emitter.emit("BUILD_LIST", emitter.load_many(value.items[key] for key in added))

    def comes_out(listed: Iterable[Any]) -> bool:
        """Whether a set of what is listed has the order of this one; nobody's `__eq__` is asked."""
        return list(map(id, value.cls(listed))) == list(map(id, value.mirror))

    order = added = list(value.mirror)
    plain = value.cls in (set, frozenset)
    if plain and not comes_out(order) and comes_out(value.items):
        added = order = list(value.items)
    if plain and not comes_out(order) and all(v.is_constant for v in value.items.values()):
        mirror = value.mirror.copy()  # a history that listing its elements does not tell
        emitter.call(value.cls.copy, lambda: emitter.const(mirror))
    elif plain:
        emitter.call(value.cls, items)
    else:
        base = frozenset if issubclass(value.cls, frozenset) else set
        emitter.call(base.__new__, lambda: emitter.const_object(value.cls), items)
        if base is set:
            emitter.emit("COPY", 1)
            name = emitter.store_temp()
            emitter.run(set.update, lambda: emitter.emit("LOAD_FAST", name), items)
    emitter.remember(value)
    emitter.fill_attrs(value)


@builds(ObjectValue)
def _object(emitter: Emitter, value: ObjectValue) -> None:
    if value.cls in ORIGINALS:
        raise unreconstructable(value, value.born)
    base = types.SimpleNamespace if issubclass(value.cls, types.SimpleNamespace) else object
    emitter.make(value, base.__new__, lambda: emitter.const_object(value.cls))
    emitter.fill_attrs(value)


@builds(BoxedValue)
def _boxed(emitter: Emitter, value: BoxedValue) -> None:
    emitter.make(value, value.base.__new__, lambda: emitter.const_object(value.cls), value.plain)
    emitter.fill_attrs(value)


@builds(ModelledValue)
def _modelled(emitter: Emitter, value: ModelledValue) -> None:
    is_filled = hasattr(value.body, "fill")
    emitter.make(value, value.body.make, lambda: emitter.const_object(value.cls),
                 *(() if is_filled else _hidden(value)))
    if is_filled:
        fill_modelled(emitter, value)
    emitter.fill_attrs(value)


def fill_modelled(emitter: Emitter, value: ModelledValue) -> None:
    """Fill an object that exists with what tracing knows of its hidden state."""
    emitter.run(value.body.fill, value, *_hidden(value))


def _hidden(value: ModelledValue) -> list[Value]:
    return [value.hidden[name] for name in value.body.state]


@builds(FunctionValue)
def _function(emitter: Emitter, value: FunctionValue) -> None:
    cells = emitter.parts(value, value.closure or ())
    if cells is None:
        emitter.load(value)
        return

    def closure() -> None:
        if cells:
            emitter.load_tuple(cells)
        else:
            emitter.emit("LOAD_CONST", None)

    def defaults() -> None:
        if value.defaults:
            emitter.emit("BUILD_TUPLE", emitter.load_many(value.defaults))
        else:
            emitter.emit("LOAD_CONST", None)

    emitter.make(value, types.FunctionType, lambda: emitter.const(value.code), lambda: emitter.const(value.globals),
                 lambda: emitter.const(value.name), defaults, closure)
    if value.kwdefaults:
        def build() -> None:
            for key, item in value.kwdefaults.items():
                emitter.const(key)
                emitter.load(item)
            emitter.emit("BUILD_MAP", len(value.kwdefaults))

        emitter.set_attribute(value, "__kwdefaults__", build)
    if value.qualname != value.code.co_qualname:
        emitter.set_attribute(value, "__qualname__", later(emitter.const, value.qualname))
    if value.module is not None and value.module != value.globals.get("__name__"):
        emitter.set_attribute(value, "__module__", later(emitter.const, value.module))
    if value.doc is not None:
        emitter.set_attribute(value, "__doc__", value.doc)
    if value.annotations is not None:
        _annotations(emitter, value)
    if value.attrs is not None and value.attrs.source is None:
        for key, item in emitter.context.dict_items(value.attrs):
            emitter.set_attribute(value, key, item)


def _annotations(emitter: Emitter, value: FunctionValue) -> None:
    annotations = value.annotations
    if annotations.base is tuple:
        items = [emitter.context.force(v) for v in annotations.items]
        for key, item in zip(items[::2], items[1::2], strict=True):
            emitter.load(key)
            emitter.load(item)
        emitter.emit("BUILD_MAP", len(items) // 2)
    else:
        emitter.load(annotations)
    emitter.load(value)
    emitter.emit("STORE_ATTR", "__annotations__")


@builds(CellValue)
def _cell(emitter: Emitter, value: CellValue) -> None:
    emitter.make(value, types.CellType)
    if value.held is not None:
        emitter.set_attribute(value, "cell_contents", value.held)


@builds(MethodValue)
def _method(emitter: Emitter, value: MethodValue) -> None:
    emitter.call(types.MethodType, value.func, value.self)


@builds(BuiltinMethodValue)
def _builtin_method(emitter: Emitter, value: BuiltinMethodValue) -> None:
    # the owner is passed because CPython 3.11 does not check for its absence
    owner = value.self.cls
    emitter.call(value.descriptor.__get__, value.self, lambda: emitter.const_object(owner))


@builds(TextValue)
def _text(emitter: Emitter, value: TextValue) -> None:
    if value.source is not None:
        emitter.load_source(value.source)
        return
    emitter.make(value, value.function, *value.args)


@builds(SuperValue)
def _super(emitter: Emitter, value: SuperValue) -> None:
    emitter.call(super, lambda: emitter.const_object(value.start), value.obj)


@builds(SliceValue)
def _slice(emitter: Emitter, value: SliceValue) -> None:
    emitter.call(slice, *value.children())


@builds(RangeValue)
def _range(emitter: Emitter, value: RangeValue) -> None:
    emitter.call(range, *value.children())


@builds(DictViewValue)
def _view(emitter: Emitter, value: DictViewValue) -> None:
    emitter.call(getattr(value.of.base, value.kind), value.of)


def _is_leaf(value: Any) -> bool:
    return not isinstance(value, Lazy) and (value.is_rebuilt or value.tensor is not None or value.scalar is not None)


@builds(WrapperValue)
def _wrapper(emitter: Emitter, value: WrapperValue) -> None:
    assert value.made_with is not None
    args, options = value.made_with
    emitter.call(_make_wrapper, later(emitter.load, args), later(emitter.load, options))
    emitter.remember(value)
    emitter.fill_attrs(value)


def _make_wrapper(args: tuple[Any, ...], options: dict[str, Any]) -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(*args, **options)  # type: ignore[attr-defined,no-any-return]


@builds(FunctionBlockValue)
def _function_block(emitter: Emitter, value: FunctionBlockValue) -> None:
    raise unreconstructable(value, value.born)
