"""The facts that guards check, in Python: `KINDS` has one expression for each.

The printed guard function is made of these expressions, and explanations evaluate them. The functions in `HELPERS` are
what they call. They mean exactly what `jitpy/native/runtime/guards.cpp` does: no user `__eq__`, `__hash__`, `__len__`
or `__getattr__` runs here.
"""

from __future__ import annotations

import builtins
import collections
import functools
import keyword
import re
import reprlib
import struct
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.utils._device

from .size_relations import TEXT_NAMES
from .tensor_facts import asks_classes, is_usual

BUILTINS = vars(builtins)
_INT64 = 1 << 63
_MISSING = object()


class Check:
    """One fact. `order` is its place in the guard set; `nodes` the values of facts about several; `lowered` what
    `GuardTree` made of a tensor's shape and stride: an entry a size (int, ("bind", slot, low, high), ("same", slot),
    ("store", slot)); of an int's symbol: the entry, and its name."""

    __slots__ = ("kind", "arg", "order", "why", "nodes", "lowered")

    def __init__(self, kind: str, arg: Any, order: int, why: str, nodes: tuple[Any, ...] = ()):
        self.kind = kind
        self.arg = arg
        self.order = order
        self.why = why
        self.nodes = nodes
        self.lowered: tuple[Any, ...] = ()

    @property
    def symbols(self) -> tuple[Any, ...]:
        """The sizes that it is about."""
        return self.arg.symbols if self.kind in ("relation", "numbers") else ()


def class_markers(lookup: Any) -> tuple[Any, Any]:
    """The marker of absent names in a class lookup's `names`, and the type of what stands for a class that holds
    the name: globals of the module that defines the lookup's class."""
    module = sys.modules[type(lookup).__module__]
    return module.MISSING, module.HeldBy


# ---- reading values ----------------------------------------


def instance_dict(value: Any) -> Any:
    """The dict of an object's own attributes; a class gives a copy of its own. TypeError where there is none."""
    if issubclass(type(value), type):  # isinstance would ask the value for its __class__
        return dict(type.__dict__["__dict__"].__get__(value))
    for cls in type(value).__mro__:
        descriptor = type.__dict__["__dict__"].__get__(cls).get("__dict__")
        if isinstance(descriptor, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return descriptor.__get__(value)
    raise TypeError(f"{type(value).__name__} objects have no __dict__")


def item(container: Any, key: Any) -> Any:
    if not issubclass(type(container), dict):
        raise TypeError(f"{type(container).__name__} is no dict")
    found = dict.get(container, key, _MISSING)  # dict.__getitem__ would call __missing__
    if found is _MISSING:
        raise KeyError(key)
    return found


def index(container: Any, i: int) -> Any:
    for base in (list, tuple):
        if issubclass(type(container), base):
            return base.__getitem__(container, i)
    raise TypeError(f"{type(container).__name__} is no list or tuple")


def slot(value: Any, descriptor: Any) -> Any:
    if value is None:  # `__get__(None, ...)` asks for the descriptor itself
        raise TypeError("None has no slots")
    return descriptor.__get__(value, type(value))


def cell(value: Any) -> Any:
    if type(value) is not types.CellType:
        raise TypeError(f"{type(value).__name__} is no cell")
    return value.cell_contents


# ---- predicates ----------------------------------------


def constants_equal(a: Any, b: Any) -> bool:
    """Equality of constants: same types throughout, floats bit for bit; other objects only if they are the same."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind in (int, str, bytes, torch.device):
        return a == b
    if kind is float:
        return struct.pack("d", a) == struct.pack("d", b)
    if kind is complex:
        return struct.pack("2d", a.real, a.imag) == struct.pack("2d", b.real, b.imag)
    if kind in (tuple, torch.Size):
        return len(a) == len(b) and all(map(constants_equal, a, b))
    if kind is frozenset:
        return len(a) == len(b) and all(any(constants_equal(x, y) for y in b) for x in a)
    if kind is slice:
        return all(constants_equal(getattr(a, part), getattr(b, part)) for part in ("start", "stop", "step"))
    return False


_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)


def length(value: Any) -> int:
    """Items of a built-in container or of an object derived from one, by the container's own count; else -1."""
    for base in _CONTAINERS:
        if issubclass(type(value), base):
            return base.__len__(value)
    return -1


def keys(value: Any, expected: tuple[Any, ...]) -> bool:
    if not issubclass(type(value), dict) or dict.__len__(value) != len(expected):
        return False
    ordered = issubclass(type(value), collections.OrderedDict)  # which has an order of its own
    return all(map(constants_equal, (collections.OrderedDict if ordered else dict).__iter__(value), expected))


def has_key(value: Any, key: Any) -> bool:
    return issubclass(type(value), dict) and dict.__contains__(value, key)


def lacks_key(value: Any, key: Any) -> bool:
    return issubclass(type(value), dict) and not dict.__contains__(value, key)


def is_function(value: Any, code: Any, defaults: Any, kwdefaults: Any, is_marked: bool) -> bool:
    """`...`: any defaults. `is_marked`: whether torch.compiler may take its result for a constant."""
    if type(value) is not types.FunctionType:
        return False
    if (value.__dict__.get("_dynamo_marked_constant") is True) is not is_marked:
        return False
    found = value.__code__, value.__defaults__, value.__kwdefaults__
    return all(x is y or y is ... for x, y in zip(found, (code, defaults, kwdefaults), strict=True))


def is_empty(value: Any) -> bool:
    if type(value) is not types.CellType:
        return False
    try:
        _ = value.cell_contents
    except ValueError:
        return True
    return False


def alive(reference: weakref.ref[Any], value: Any) -> bool:
    return value is reference() and value is not None


def referent(reference: weakref.ref[Any]) -> Any:
    found = reference()
    if found is None:
        raise ReferenceError("the object is gone")
    return found


def class_finds(cls: Any, mro: tuple[Any, ...], names: dict[str, tuple[Any, ...]]) -> list[str]:
    """Whether the class's MRO is this one, and looking the names up along it finds those objects. `()`: nothing.
    `(owner, weak, True)`: what that class's own dict holds.

    The classes and, in `(found, True)`, what is found may be given as weak references.
    """
    failing = []
    if type(cls) is weakref.ref:
        cls = cls()
        if cls is None:
            return ["the class is gone"]
    bases = tuple(base() if type(base) is weakref.ref else base for base in mro)
    if len(bases) != len(cls.__mro__) or any(a is not b for a, b in zip(bases, cls.__mro__, strict=True)):
        return [f"{cls.__qualname__} has other bases"]
    spaces = [_own_dict(base) for base in cls.__mro__]
    for name, rest in names.items():
        found = next((space[name] for space in spaces if name in space), _MISSING)
        expected = _expected_in_class(name, *rest)
        if found is not expected or len(rest) == 3 and found is _MISSING:
            was, now = ("missing" if thing is _MISSING else short(thing) for thing in (expected, found))
            failing.append(f"{cls.__qualname__}.{name} is {now}, expected {was}")
    return failing


def _own_dict(cls: type) -> Any:
    return type.__dict__["__dict__"].__get__(cls)


def _expected_in_class(name: str, thing: Any = _MISSING, weak: bool = False, held: bool = False) -> Any:
    thing = thing() if weak else thing
    return _own_dict(thing).get(name, _MISSING) if held and thing is not None else thing


def distinct(*values: Any) -> list[str]:
    first: dict[int, int] = {}
    return [f"{{{first[id(value)]}}} is {{{i}}}" for i, value in enumerate(values)
            if first.setdefault(id(value), i) != i]


def storages_apart(*values: Any) -> list[str]:
    """Whether the first tensor's storage shares no byte with the others'."""
    if not all(issubclass(type(t), torch._C.TensorBase) for t in values):
        return ["these are no longer tensors"]
    return [f"{{0}} shares memory with {{{i}}}" for i, other in enumerate(values)
            if i and storages_overlap(values[0], other)]


def storages_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the storages of two tensors share bytes; True where a storage cannot be read."""
    try:
        x, y = a.untyped_storage(), b.untyped_storage()
        if x._cdata == y._cdata:
            return True
        if x.device != y.device:
            return False
        start, other = x.data_ptr(), y.data_ptr()
        return bool(start and other) and start < other + y.nbytes() and other < start + x.nbytes()
    except (RuntimeError, NotImplementedError):
        return True


def torch_state(devices: tuple[str, ...] = ()) -> dict[str, Any]:
    """The modes that a state guard compares, as its fields, in the order in which the native program has them; autocast
    for the device types named."""
    default_device = torch.utils._device.CURRENT_DEVICE
    return {
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "default_dtype": torch.get_default_dtype(),
        "autocast": tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default_device": None if default_device is None else str(default_device),
        "function_modes": torch._C._len_torch_function_stack(),
        "dispatch_modes": torch._C._len_torch_dispatch_stack(),
        "forward_ad": torch.autograd.forward_ad._current_level >= 0,
        "asks_classes": asks_classes(),
    }


def state_is(state: Any) -> list[str]:
    found = torch_state(tuple(device for device, _, _ in state.autocast))
    expected = {name: getattr(state, name) for name in found} | {"autocast": tuple(state.autocast)}
    failures = [f"{name} is {now}, expected {expected[name]}" for name, now in found.items() if now != expected[name]]
    if torch._C._get_tracing_state() is not None:
        failures.append("torch.jit.trace is running, which has to see each operation")
    return failures


#: The kernels that scaled_dot_product_attention may be, by the names of torch's functions that say whether they may.
ATTENTION_KERNELS = ("flash", "mem_efficient", "math", "cudnn", "overrideable")
_ALLOWED = {name: getattr(torch._C, f"_get_{name}_sdp_enabled") for name in ATTENTION_KERNELS}


def attention_bits(guards: Iterable[tuple[tuple[str, bool], ...]]) -> tuple[int, int]:
    """Of these kernels, a bit each: which are asked about, and which of them must be allowed."""
    expected = {name: allowed for guard in guards for name, allowed in guard}
    return (sum(1 << ATTENTION_KERNELS.index(name) for name in expected),
            sum(allowed << ATTENTION_KERNELS.index(name) for name, allowed in expected.items()))


def attention_is(expected: tuple[tuple[str, bool], ...]) -> list[str]:
    return [f"{name} is {'not ' * allowed}allowed" for name, allowed in expected if _ALLOWED[name]() is not allowed]


def int_is(value: Any, symbols: list[Any], entry: tuple[Any, ...], symbol: str) -> list[str]:
    if type(value) is int and -_INT64 <= value < _INT64 and _dim_is(value, entry, symbols):
        return []
    return [f"is {short(value)}, expected {_expected_dim(entry, symbol, symbols)}"]


def _dim_is(found: int, entry: Any, symbols: list[Any]) -> bool:
    if isinstance(entry, int):
        return found == entry
    if entry[0] == "same":
        return found == symbols[entry[1]]
    symbols[entry[1]] = found
    return entry[0] == "store" or entry[2] <= found <= entry[3]


def tensor_is(value: Any, symbols: list[Any], guard: Any, shape: tuple[Any, ...], stride: tuple[Any, ...]) -> list[str]:
    """Whether a tensor guard holds; `shape` and `stride` are its lowered entries, `symbols` is filled."""
    if type(value) is not guard.cls:
        return [f"type is {type(value).__qualname__}, expected {guard.cls.__qualname__}"]
    try:
        facts = {
            "dispatch_keys": torch._C._dispatch_keys(value).raw_repr() & (1 << 64) - 1,
            "dtype": value.dtype, "device": value.device, "requires_grad": value.requires_grad,
            "is_inference": value.is_inference(),
        }
        sizes, strides = tuple(value.shape), value.stride()
        failing = [] if is_usual(value) else ["autograd takes it for another kind of tensor"]
    except Exception as error:
        return [f"its facts cannot be read: {describe_error(error)}"]
    for name, found in facts.items():
        expected = getattr(guard, name)
        if found != (expected & (1 << 64) - 1 if name == "dispatch_keys" else expected):
            failing.append(f"{name} is {found}, expected {expected}")
    if len(sizes) != len(shape):
        return [*failing, f"it has {len(sizes)} dimensions, expected {len(shape)}"]
    lists = (("size", sizes, shape, guard.shape), ("stride", strides, stride, guard.stride))
    for what, numbers, entries, names in lists:
        for i, (found, entry, name) in enumerate(zip(numbers, entries, names, strict=True)):
            if type(found) is not int:
                failing.append(f"{what} {i} is no plain int")
            elif not _dim_is(found, entry, symbols):
                failing.append(f"{what} {i} is {found}, expected {_expected_dim(entry, name, symbols)}")
    return failing


def _expected_dim(entry: Any, name: Any, symbols: list[Any]) -> str:
    if isinstance(entry, int):
        return str(entry)
    if entry[0] == "same":
        return f"{name} = {symbols[entry[1]]}"
    low, high = entry[2], entry[3]
    return f"{name} >= {low}" if high >= _INT64 - 1 else f"{low} <= {name} <= {high}"


def _named(*functions: Callable[..., Any]) -> dict[str, Any]:
    return {function.__name__: function for function in functions}


#: checks that list what does not hold; several values stand there by their numbers
_LISTS = _named(class_finds, distinct, storages_apart, state_is, attention_is, int_is, tensor_is)
_ASKED = {**_named(instance_dict, item, index, slot, cell, constants_equal, length, keys, has_key, lacks_key,
                   is_function, is_empty, alive, referent), **TEXT_NAMES}
#: the names that the printed function uses
HELPERS: dict[str, Any] = {
    **_ASKED, **{name: lambda *args, found=found: not found(*args) for name, found in _LISTS.items()}}


class Kind(NamedTuple):
    """How facts of one kind are checked."""

    #: an expression over the values `{0}`, `{1}`, ... (`{all}`: all, and sizes), the argument `{arg}` or its `{parts}`,
    #: sizes and strides `{lowered}`, and the symbols `S`
    text: str
    #: whether an equal constant may stand for the argument
    literal: bool = True
    #: the check is one of `_LISTS`: how its sentence begins
    says: str | None = None
    #: what is said of a value that does not pass
    found: Callable[[Any], object] | None = None


def _type_name(value: Any) -> str:
    return type(value).__qualname__


KINDS = {
    # of one value
    "type": Kind("type({0}) is {arg}", False, found=_type_name),
    "id": Kind("{0} is {arg}", False),
    "weak_id": Kind("alive({arg}, {0})", False),
    "weak_type": Kind("alive({arg}, type({0}))", False, found=_type_name),
    "eq": Kind("constants_equal({0}, {arg})"),
    "len": Kind("length({0}) == {arg}", found=lambda value: f"length {length(value)}"),
    "keys": Kind("keys({0}, {arg})"),
    "haskey": Kind("has_key({0}, {arg})"),
    "nokey": Kind("lacks_key({0}, {arg})"),
    "function": Kind("is_function({0}, {parts})", False),
    "empty": Kind("is_empty({0})"),
    "int": Kind("int_is({0}, S, {lowered})", says="{0} "),
    "tensor": Kind("tensor_is({0}, S, {arg}, {lowered})", says="{0}: "),
    # of none, or of several
    "state": Kind("state_is({arg})", says="torch modes: "),
    "attention": Kind("attention_is({arg})", says="kernels of attention: "),
    "class": Kind("class_finds({parts})", False, says=""),
    "same": Kind("({0} is {1})"),
    "distinct": Kind("distinct({all})", says="values that were distinct are the same object: "),
    "overlap": Kind("storages_apart({all})", says=""),
    "python": Kind("{arg}({0})"),
    "relation": Kind("{arg}({all})"),
    "numbers": Kind("{arg}({all})"),
}


# ---- printing ----------------------------------------


def is_literal(value: Any) -> bool:
    """Whether `repr` gives an expression for the same constant."""
    kind = type(value)
    if kind is float:
        return value - value == 0.0
    if kind is tuple:
        return all(map(is_literal, value))
    return value is None or value is Ellipsis or kind in (bool, int, str, bytes)


def name_hint(value: Any) -> str:
    """An identifier that says what the object is."""
    if type(value) is weakref.ref:
        value = value()
    kind = type(value)
    if kind in (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType):
        text = "".join(c if c.isalnum() else "_" for c in value.__name__)
    else:
        text = f"a_{kind.__name__}"
    return text if text.isidentifier() and not keyword.iskeyword(text) else "an_object"


def expression(check: Check, values: Iterable[str], name_of: Callable[..., str]) -> str:
    """The check as a Python expression over values (the texts of variables or paths).

    `name_of(object, literal)` names an object; with `literal` false by identity.
    """
    if check.kind == "relation" and check.arg.exact_text is not None:
        return f"({check.arg.exact_text})"
    kind, names = KINDS[check.kind], [*values, *map(str, check.symbols)]
    fields: dict[str, Iterable[str]] = {"all": names, "lowered": map(repr, check.lowered)}
    if check.kind == "function":
        fields["parts"] = (name_of(part, False) for part in check.arg)
    elif check.kind == "class":
        cls, mro, members = check.arg
        found = (f"{name!r}: {_tuple_text(name_of, what)}" for name, what in members.items())
        fields["parts"] = name_of(cls, False), _tuple_text(name_of, mro), f"{{{', '.join(found)}}}"
    else:
        fields["arg"] = (name_of(check.arg, kind.literal),)
    return kind.text.format(*names, **{field: ", ".join(texts) for field, texts in fields.items()})


def _tuple_text(name_of: Callable[..., str], parts: tuple[Any, ...]) -> str:
    return f"({''.join(f'{name_of(part, False)}, ' for part in parts)})" if parts else "()"


def tensor_facts(guard: Any) -> str:
    """A tensor guard in words, for comments."""
    text = f"{guard.cls.__name__} {str(guard.dtype).removeprefix('torch.')}{list(guard.shape)}"
    text += f" stride {list(guard.stride)} {guard.device}"
    return text + (" requires_grad" if guard.requires_grad else "") + (" inference" if guard.is_inference else "")


def short(value: Any) -> str:
    """A short text for a value, without running its `__repr__` unless it is a built-in constant."""
    if is_literal(value) or type(value) in (float, torch.dtype, torch.device, torch.Size):
        try:
            return reprlib.repr(value)
        except ValueError:  # an int of too many digits
            return f"{type(value).__name__} object at {id(value):#x}"
    if type(value) in (type, types.FunctionType, types.BuiltinFunctionType):
        return f"{type(value).__name__} {value.__qualname__}"
    return f"{type(value).__name__} object at {id(value):#x}"


def describe_error(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as second:
        return f"{type(error).__name__} (its text cannot be had: {type(second).__name__})"


# ---- what to say where a check fails ----------------------------------------


@functools.cache
def _predicate(text: str, lists: bool) -> Callable[..., Any]:
    """The check `(argument, lowered, symbols, *values)` of an expression."""
    namespace = {**_ASKED, **_LISTS} if lists else dict(HELPERS)
    places = (f"values[{i}]" for i in range(2))
    check = text.format(*places, all="*values", arg="arg", parts="*arg", lowered="*lowered")
    return eval(f"lambda arg, lowered, S, *values: {check}", namespace)  # type: ignore[no-any-return]


def _plain_name(value: Any, literal: bool = True) -> str:
    if type(value) is weakref.ref:
        value = value()
        if value is None:
            return "an object that is gone"
    return value.__name__ if type(value) is type else short(value)


def failure(check: Check, places: list[tuple[object, Any]], slots: dict[Any, int], symbols: list[Any]) -> str | None:
    """Why the check on values does not hold; None where it does, or where a size was never read. Binds symbols.
    `places`: the path of each value, printed only where the check does not hold, and the value."""
    kind = KINDS[check.kind]
    sizes = [(symbol, symbols[slots[symbol]]) for symbol in check.symbols]
    if any(size is None for _, size in sizes):
        return None
    places = [*places, *sizes]
    values = [value for _, value in places]
    try:
        answer = _predicate(kind.text, kind.says is not None)(check.arg, check.lowered, symbols, *values)
        if not answer if kind.says is not None else answer:
            return None
        paths = [str(path) for path, _ in places]
        if kind.says is not None:
            return kind.says.format(*paths) + "; ".join(
                text.format(*paths) if check.nodes else text for text in answer)
        if check.kind in ("relation", "numbers"):
            found = ", ".join(f"{path} = {short(value)}" for path, value in zip(paths, values, strict=True))
        elif check.kind == "python" and not hasattr(check.arg, "ask"):
            return f"{_fact(check, places)}, which is no longer so"
        elif check.kind == "python":
            found = short(check.arg.ask(values[0]))
        else:
            found = ", ".join(str((kind.found or short)(value)) for value in values)
        return f"{_fact(check, places)}, but found {found}"
    except Exception as error:
        return f"{_fact(check, places)} raised {describe_error(error)}"


def _fact(check: Check, places: list[tuple[object, Any]]) -> str:
    if check.kind in ("relation", "numbers"):
        return str(check.arg.text)
    if check.kind == "python":
        return f"{places[0][0]} {_in_words(check.arg)}"
    return expression(check, [str(path) for path, _ in places], _plain_name)


def _in_words(predicate: Any) -> str:
    """The fact about a value that a predicate stands for: `is 3`, `has no grad`."""
    if "__repr__" in vars(type(predicate)) and not hasattr(predicate, "__name__"):
        return repr(predicate)
    name = getattr(predicate, "__name__", type(predicate).__name__)
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).strip().lower()
