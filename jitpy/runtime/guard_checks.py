"""The facts that guards check, in Python: each kind's predicate, its expression, and what to say where it fails.

The functions in `HELPERS` are what the printed guard function calls. They mean exactly what
`jitpy/native/runtime/guards.cpp` does: no user `__eq__`, `__hash__`, `__len__` or `__getattr__` runs here.
"""

from __future__ import annotations

import builtins
import collections
import keyword
import re
import reprlib
import struct
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils._device

from .size_relations import TEXT_NAMES
from .tensor_facts import asks_classes, is_usual

#: kinds that are about one value
NODE_KINDS = frozenset(
    ("type", "id", "weak_id", "weak_type", "eq", "len", "keys", "haskey", "nokey", "tensor", "int", "function", "empty")
)
BUILTINS = vars(builtins)
_INT64 = 1 << 63
_MISSING = object()


class Check:
    """One fact. `order` is its place in the guard set; `nodes` the values of facts about several; `lowered` what
    `GuardTree` made of symbols: an entry a size (int, ("bind", slot, low, high), ("same", slot), ("store", slot))."""

    __slots__ = ("kind", "arg", "order", "why", "nodes", "lowered")

    def __init__(self, kind: str, arg: Any, order: int, why: str, nodes: tuple[Any, ...] = ()):
        self.kind = kind
        self.arg = arg
        self.order = order
        self.why = why
        self.nodes = nodes
        self.lowered: Any = None


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


def class_finds(cls: Any, mro: tuple[Any, ...], *names: tuple[Any, ...]) -> bool:
    """Whether the class's MRO is this one, and looking up each `(name, found)` along it finds that object, and each
    `(name,)` nothing. `(name, owner, weak, True)`: it finds what that class's own dict holds.

    The classes and, in `(name, found, True)`, what is found may be given as weak references.
    """
    return not _class_failures(cls, names, mro)


def _class_failures(cls: Any, names: tuple[Any, ...], mro: tuple[Any, ...]) -> list[str]:
    failing = []
    if type(cls) is weakref.ref:
        cls = cls()
        if cls is None:
            return ["the class is gone"]
    bases = tuple(base() if type(base) is weakref.ref else base for base in mro)
    if len(bases) != len(cls.__mro__) or any(a is not b for a, b in zip(bases, cls.__mro__, strict=True)):
        return [f"{cls.__qualname__} has other bases"]
    spaces = [_own_dict(base) for base in cls.__mro__]
    for name, *rest in names:
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


def distinct(*values: Any) -> bool:
    return len({id(value) for value in values}) == len(values)


def storages_apart(value: Any, *others: Any) -> bool:
    """Whether a tensor's storage shares no byte with the others'."""
    if not all(issubclass(type(t), torch._C.TensorBase) for t in (value, *others)):
        return False
    return not any(storages_overlap(value, other) for other in others)


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
    """The modes that a state guard compares, as its fields; autocast for the device types named."""
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


def state_is(state: Any) -> bool:
    return not _state_failures(state)


def _state_failures(state: Any) -> list[str]:
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


def attention_is(expected: tuple[tuple[str, bool], ...]) -> bool:
    return all(_ALLOWED[name]() is allowed for name, allowed in expected)


def int_is(value: Any, entry: tuple[Any, ...], symbols: list[Any]) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64 and _dim_is(value, entry, symbols)


def _dim_is(found: int, entry: Any, symbols: list[Any]) -> bool:
    if isinstance(entry, int):
        return found == entry
    if entry[0] == "same":
        return found == symbols[entry[1]]
    symbols[entry[1]] = found
    return entry[0] == "store" or entry[2] <= found <= entry[3]


def tensor_is(value: Any, symbols: list[Any], guard: Any, shape: tuple[Any, ...], stride: tuple[Any, ...]) -> bool:
    """Whether a tensor guard holds; `shape` and `stride` are its lowered entries, `symbols` is filled."""
    return not _tensor_failures(value, symbols, guard, shape, stride)


def _tensor_failures(value: Any, symbols: list[Any], guard: Any, shape: Any, stride: Any) -> list[str]:
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


HELPERS: dict[str, Any] = {
    **{f.__name__: f for f in (
        instance_dict, item, index, slot, cell, constants_equal, length, keys, has_key, lacks_key, is_function,
        is_empty, alive, referent, class_finds, distinct, storages_apart, state_is, attention_is, int_is, tensor_is,
    )},
    **TEXT_NAMES,
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


def expression(check: Check, value: str, name_of: Callable[..., str]) -> str:
    """The check as a Python expression over `value` (the text of a variable or path).

    `name_of(object, hint, literal)` names an object; with `literal` false by identity.
    """
    kind, arg = check.kind, check.arg
    if kind in ("type", "id"):
        return f"{f'type({value})' if kind == 'type' else value} is {name_of(arg, literal=False)}"
    if kind == "eq":
        if arg is None or arg is True or arg is False:
            return f"{value} is {arg!r}"
        return f"constants_equal({value}, {name_of(arg)})"
    if kind == "len":
        return f"length({value}) == {arg}"
    if kind in ("keys", "haskey", "nokey"):
        name = {"keys": "keys", "haskey": "has_key", "nokey": "lacks_key"}[kind]
        return f"{name}({value}, {name_of(arg)})"
    if kind in ("weak_id", "weak_type"):
        return f"alive({name_of(arg, 'reference')}, {value if kind == 'weak_id' else f'type({value})'})"
    if kind == "function":
        return f"is_function({value}, {', '.join(name_of(part, literal=False) for part in arg)})"
    if kind == "empty":
        return f"is_empty({value})"
    if kind == "int":
        return f"int_is({value}, {check.lowered!r}, S)"
    if kind == "tensor":
        shape, stride = check.lowered
        return f"tensor_is({value}, S, {name_of(arg, 'tensor')}, {shape!r}, {stride!r})"
    if kind == "state":
        return f"state_is({name_of(arg, 'state')})"
    if kind == "attention":
        return f"attention_is({arg!r})"
    if kind == "class":
        cls, names, mro = arg
        texts = ([repr(name), *(name_of(f, literal=False) for f in found[:1]), *map(str, found[1:])]
                 for name, *found in names)
        pairs = [f"({', '.join(text)},)" for text in texts]
        bases = "".join(f"{name_of(base, literal=False)}, " for base in mro)
        return f"class_finds({', '.join([name_of(cls, literal=False), f'({bases})', *pairs])})"
    if kind == "same":
        return f"({check.nodes[0].name} is {check.nodes[1].name})"
    if kind in ("distinct", "overlap"):
        name = "distinct" if kind == "distinct" else "storages_apart"
        return f"{name}({', '.join(node.name for node in check.nodes)})"
    if kind == "python":
        return f"{name_of(arg, 'predicate')}({check.nodes[0].name})"
    if kind == "numbers":
        names = [*(node.name for node in check.nodes), *map(str, arg.symbols)]
        return f"{name_of(arg.function, 'numbers')}({', '.join(names)})"
    if arg.covered:
        return f"({arg.text})"
    return f"{name_of(arg, 'relation')}({', '.join(map(str, arg.symbols))})"


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


def _plain_name(value: Any, hint: str = "", literal: bool = True) -> str:
    if type(value) is weakref.ref:
        value = value()
        if value is None:
            return "an object that is gone"
    return value.__name__ if type(value) is type else short(value)


def failure(check: Check, value: Any, path: object, symbols: list[Any]) -> str | None:
    """Why the check on one value (or on none) does not hold; None where it does. Binds symbols. `path` is printed only
    where it does not."""
    kind, arg = check.kind, check.arg
    if kind == "tensor":
        found = _tensor_failures(value, symbols, arg, *check.lowered)
        return f"{path}: {'; '.join(found)}" if found else None
    if kind == "state":
        found = _state_failures(arg)
        return f"torch modes: {'; '.join(found)}" if found else None
    if kind == "attention":
        found = [f"{name} is {'not ' * allowed}allowed" for name, allowed in arg if _ALLOWED[name]() is not allowed]
        return f"kernels of attention: {', '.join(found)}" if found else None
    if kind == "class":
        return "; ".join(_class_failures(*arg)) or None
    if kind == "int":
        before = symbols[check.lowered[1]]
        if int_is(value, check.lowered, symbols):
            return None
        entry = check.lowered
        expected = f"{arg} = {before}" if entry[0] == "same" else f"an int in [{entry[2]}, {entry[3]}]"
        return f"{path} is {short(value)}, expected {expected}"
    holds = {
        "type": lambda: type(value) is arg,
        "id": lambda: value is arg,
        "weak_id": lambda: alive(arg, value),
        "weak_type": lambda: alive(arg, type(value)),
        "eq": lambda: constants_equal(value, arg),
        "len": lambda: length(value) == arg,
        "keys": lambda: keys(value, arg),
        "haskey": lambda: has_key(value, arg),
        "nokey": lambda: lacks_key(value, arg),
        "function": lambda: is_function(value, *arg),
        "empty": lambda: is_empty(value),
    }[kind]
    try:
        if holds():  # type: ignore[no-untyped-call]
            return None
    except Exception as error:
        return f"{expression(check, str(path), _plain_name)} raised {describe_error(error)}"
    describe = {"len": lambda: f"length {length(value)}"}
    describe["type"] = describe["weak_type"] = lambda: type(value).__qualname__
    return f"{expression(check, str(path), _plain_name)}, but found {describe.get(kind, lambda: short(value))()}"


def final_failure(
    check: Check, places: list[tuple[object, Any]], slots: dict[Any, int], symbols: list[Any]
) -> str | None:
    """Why a check on several values or on sizes does not hold; None where it does, or where a size was never read."""
    kind, arg = check.kind, check.arg
    if kind in ("relation", "numbers"):
        places = [*places, *((str(symbol), symbols[slots[symbol]]) for symbol in arg.symbols)]
    values = [value for _, value in places]
    if kind in ("relation", "numbers"):
        if None in values[len(check.nodes):]:
            return None
        try:
            if (arg if kind == "relation" else arg.function)(*values):
                return None
        except Exception as error:
            return f"{arg.text} raised {describe_error(error)}"
        return f"{arg.text}, but {', '.join(f'{name} = {short(value)}' for name, value in places)}"
    paths = [path for path, _ in places]
    if kind == "same":
        return None if values[0] is values[1] else f"{paths[0]} is {paths[1]}, but they are two objects"
    if kind == "distinct":
        if distinct(*values):
            return None
        first: dict[int, object] = {}
        pairs = [f"{first[id(v)]} is {path}" for path, v in places if first.setdefault(id(v), path) is not path]
        return f"values that were distinct are the same object: {'; '.join(pairs)}"
    if kind == "overlap":
        if not all(issubclass(type(t), torch._C.TensorBase) for t in values):
            return f"{paths[0]}: not all of {', '.join(map(str, paths))} are tensors"
        shared = [str(path) for path, other in places[1:] if storages_overlap(values[0], other)]
        return f"{paths[0]} shares memory with {', '.join(shared)}" if shared else None
    fact = f"{paths[0]} {_in_words(arg)}"
    try:
        if arg(values[0]):
            return None
        return f"{fact}, but found {short(arg.ask(values[0]))}" if hasattr(arg, "ask") else \
            f"{fact}, which is no longer so"
    except Exception as error:
        return f"{fact}: asking raised {describe_error(error)}"


def _in_words(predicate: Any) -> str:
    """The fact about a value that a predicate stands for: `is 3`, `has no grad`."""
    if "__repr__" in vars(type(predicate)) and not hasattr(predicate, "__name__"):
        return repr(predicate)
    name = getattr(predicate, "__name__", type(predicate).__name__)
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).strip().lower()
