"""Functions under `torch.jit.script` and `torch.jit.trace`: their TorchScript is run on Values, node by node.

Such a function was fixed when it was made: the globals that it mentions, the functions that it calls, its
defaults. So its graph is read, not the Python that it came from, whose meaning differs besides (`2 ** 2` is a float in
TorchScript, ints have 64 bits, errors are its own). Only nodes that do here what they do there are run; any other
breaks the graph at the call.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from .... import config
from ....ir.algebra import sympy
from ...breaks import GraphBreak
from ...interpreter.calls import as_int, call, record
from ...interpreter.frame import TracedException
from ...interpreter.operators import binary, compare, length, truth, unary
from ...values import UNKNOWN, ConstValue, Interpreter, ListValue, PyValue, TupleValue, Value

#: the types of arguments that are taken as they are, and of results that are given back
_PLAIN: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor, torch.nn.Parameter), "int": (int,), "float": (float,), "bool": (bool,),
    "Optional[Tensor]": (torch.Tensor, torch.nn.Parameter, type(None)), "Optional[int]": (int, type(None)),
    "Optional[float]": (float, type(None)), "Optional[bool]": (bool, type(None)), "NoneType": (type(None),),
}
#: TorchScript's numbers of dtypes
DTYPES = dict(enumerate((
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool,
))) | {15: torch.bfloat16}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
#: what arguments that are numbers in TorchScript are in Python, by parts of the names of their types
_MEANT: dict[str, dict[int, Any]] = {
    "ScalarType": DTYPES,
    "Layout": {0: torch.strided},
    "MemoryFormat": dict(enumerate((torch.contiguous_format, torch.preserve_format, torch.channels_last,
                                    torch.channels_last_3d))),
}


def _applied(function: Any, name: str) -> Callable[[Interpreter, list[Value]], Value]:
    return lambda interp, operands: function(interp, name, *operands)


#: nodes on numbers that do what Python does, where ints have less than 64 bits
_NUMBERS: dict[str, Callable[[Interpreter, list[Value]], Value]] = {
    **{f"aten::{node}.{kinds}": _applied(binary, name)
       for node, name in (("add", "ADD"), ("sub", "SUBTRACT"), ("mul", "MULTIPLY"))
       for kinds in ("int", "float", "int_float", "float_int")},
    "aten::floordiv.int": _applied(binary, "FLOOR_DIVIDE"),
    "aten::remainder.int": _applied(binary, "REMAINDER"),
    "aten::__and__.bool": _applied(binary, "AND"), "aten::__or__.bool": _applied(binary, "OR"),
    **{f"aten::neg.{kind}": _applied(unary, "UNARY_NEGATIVE") for kind in ("int", "float")},
    **{f"aten::{node}.{kind}": _applied(compare, symbol)
       for node, symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))
       for kind in ("int", "float")},
}
#: beyond this, what is computed from a symbolic int might have more than 64 bits
_SYMBOLIC_LIMIT = 2**31


def call_scripted(interp: Interpreter, fn: PyValue, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """A call of a `torch.jit.ScriptFunction`, recorded op by op."""
    obj = interp.context.pin(fn)
    if interp.builder.state.autocast_enabled:
        raise GraphBreak("unsupported_call", "a function of TorchScript, which has an autocast of its own")
    script = _Script(interp, f"{obj.name} in TorchScript")
    try:
        graph = obj.inlined_graph
        results = script.run(graph, list(graph.inputs()), script.arguments(obj.schema.arguments, args, kwargs))
    except TracedException as error:
        raise script.refuse(f"raises {error.value.cls.__name__}, as an error of TorchScript's own") from None
    return script.result(results[0])


class _Script:
    """One call: the Values of the graph's values."""

    def __init__(self, interp: Interpreter, name: str) -> None:
        self.interp = interp
        self.name = name
        self.values: dict[str, Value] = {}
        #: how many nodes were traced
        self.ran = 0

    def refuse(self, why: str) -> GraphBreak:
        return GraphBreak("unsupported_call", f"{self.name}: {why}")

    # -- in and out -----------------------------------------------------------------------------------------

    def arguments(self, declared: Any, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
        """The arguments in order, of the very types that were declared: TorchScript converts others."""
        rest = dict(kwargs)
        found = []
        for i, parameter in enumerate(declared):
            if i < len(args):
                value = args[i]
            elif parameter.name in rest:
                value = rest.pop(parameter.name)
            elif parameter.has_default_value():
                value = self.constant(parameter.default_value)
            else:
                raise self.refuse(f"no argument {parameter.name}")
            if value.cls not in _PLAIN.get(str(parameter.type), ()):
                raise self.refuse(f"argument {parameter.name} is a {value.cls.__name__}, not plainly {parameter.type}")
            found.append(self.number(value))
        if rest or len(args) > len(declared):
            raise self.refuse("arguments that it does not have")
        return found

    def result(self, value: Value) -> Value:
        items = value.listed(self.interp) if value.cls is tuple else None
        if items is not None:
            return TupleValue([self.result(item) for item in items])
        if any(value.cls in classes for classes in _PLAIN.values()):
            return value
        raise self.refuse(f"returns a {value.cls.__name__}")

    def constant(self, value: Any) -> Value:
        if value is None or type(value) in (int, float, bool, str, torch.device):
            return self.number(ConstValue(value))
        if type(value) is list and all(type(item) in (int, float, bool) for item in value):
            return ListValue([self.number(ConstValue(item)) for item in value])
        raise self.refuse(f"a constant {type(value).__name__}")

    def number(self, value: Value) -> Value:
        """A value that may be an int, which has 64 bits here whatever comes in other calls."""
        if value.expr is not None:
            sizes, limit = self.interp.context.sizes, _SYMBOLIC_LIMIT
            if sizes.decide(sympy.And(value.expr < limit, value.expr > -limit), self.name):
                return value
            value = ConstValue(self.interp.context.specialize(value.expr, self.name))
        if value.scalar is not None and value.cls is int:
            raise self.refuse("an int that the graph computes")
        if type(value.literal) is int and not -(2**63) <= value.literal < 2**63:
            raise self.refuse("an int of more than 64 bits")
        return value

    # -- nodes ----------------------------------------------------------------------------------------------

    def run(self, block: Any, parameters: list[Any], arguments: list[Value]) -> list[Value]:
        """The results of a block, or of the whole graph."""
        values = self.values
        values.update((parameter.debugName(), value) for parameter, value in zip(parameters, arguments, strict=True))
        for node in block.nodes():
            self.interp.total += 1
            self.ran += 1
            if self.interp.total > config.unroll_limit and self.interp.is_too_long(self.ran):
                raise GraphBreak("too_long", f"more than {config.unroll_limit} instructions", tail=True)
            found = self.node(node, [values[i.debugName()] for i in node.inputs() if i.debugName() in values])
            values.update(zip((output.debugName() for output in node.outputs()), found, strict=True))
        return [values[output.debugName()] for output in block.outputs()]

    def node(self, node: Any, inputs: list[Value]) -> list[Value]:
        kind = node.kind()
        if kind == "prim::Constant":
            return [self.constant(node.output().toIValue())]
        if kind == "prim::If":
            taken = list(node.blocks())[0 if self.interp.truth(inputs[0]) else 1]
            return self.run(taken, [], [])
        if kind == "prim::Loop":
            return self.loop(node, inputs)
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(self, node, inputs)
        schema = node.schema()
        if not schema.startswith(("aten::", "prim::")):
            raise self.refuse(f"a node {kind}")
        name = schema[: schema.index("(")]
        if name in _NUMBERS:
            return [self.number(_NUMBERS[name](self.interp, [self.number(value) for value in inputs]))]
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, node, inputs)
        return self.tensor_op(name, inputs)

    def loop(self, node: Any, inputs: list[Value]) -> list[Value]:
        """`prim::Loop(most, condition, *carried)`: the block takes a counter and gives the next condition."""
        most, carried = as_int(self.interp, inputs[0], self.name), inputs[2:]
        (block,) = node.blocks()
        condition, i = inputs[1], 0
        while i < most and self.interp.truth(condition):
            condition, *carried = self.run(block, list(block.inputs()), [ConstValue(i), *carried])
            i += 1
        return carried

    def tensor_op(self, name: str, inputs: list[Value]) -> list[Value]:
        """An operator of tensors, as a call of its overload."""
        op, _, overload = name.removeprefix("aten::").partition(".")
        found = getattr(getattr(torch.ops.aten, op, None), overload or "default", None) \
            if name.startswith("aten::") else None
        if found is None or not _is_of_tensors(found._schema):
            raise self.refuse(f"a node {name}")
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        for declared, value in zip(found._schema.arguments, inputs, strict=True):
            meant = next((by for kind, by in _MEANT.items() if kind in str(declared.real_type)), None)
            if meant is not None:
                value = self.meant(value, meant)
            if declared.kwarg_only:
                kwargs[declared.name] = value
            else:
                args.append(value)
        result = self.interp.record(found, args, kwargs)
        return result.listed(self.interp) if len(found._schema.returns) > 1 else [result]

    def meant(self, value: Value, by: dict[int, Any]) -> Value:
        """The dtype or the like that is meant by a number of TorchScript's; None as it is."""
        if value.literal is None:
            return value
        if value.literal not in by:
            raise self.refuse("a dtype, layout or memory format that is not known")
        return self.interp.context.const_object(by[value.literal])


def _is_of_tensors(schema: Any) -> bool:
    """Whether an operator gives tensors, and changes nothing but tensors (no lists)."""
    return bool(schema.returns) and all(str(r.type) in ("Tensor", "List[Tensor]") for r in schema.returns) and all(
        a.alias_info is None or not a.alias_info.is_write or str(a.type) == "Tensor" for a in schema.arguments
    )


# -- nodes with a meaning of their own -----------------------------------------------------------------------------

_SPECIAL: dict[str, Callable[[_Script, Any, list[Value]], list[Value]]] = {}


def _special(*names: str) -> Callable[[Any], Any]:
    def register(handler: Any) -> Any:
        _SPECIAL.update(dict.fromkeys(names, handler))
        return handler

    return register


@_special("prim::ListConstruct")
def _list(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    return [ListValue(inputs)]


@_special("prim::TupleConstruct")
def _tuple(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    if "NamedTuple" in node.output().type().kind() or str(node.output().type()).startswith("__torch__"):
        raise script.refuse("a named tuple")
    return [TupleValue(inputs)]


@_special("prim::ListUnpack", "prim::TupleUnpack")
def _unpack(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    items = inputs[0].listed(script.interp) or []
    if len(items) != node.outputsSize():
        raise script.refuse("a list of another length is unpacked")
    return items


@_special("prim::unchecked_cast", "prim::unchecked_unwrap_optional")
def _same(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    return inputs


@_special("prim::Uninitialized")
def _uninitialized(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    return [ConstValue(None)]  # nobody looks at it


@_special("aten::__is__", "aten::__isnot__")
def _is(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    nones = [value.literal is None for value in inputs]
    if not any(nones):
        raise script.refuse("`is`")
    return [ConstValue(all(nones) is (node.kind() == "aten::__is__"))]


@_special("aten::__not__")
def _not(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    return [ConstValue(not truth(script.interp, inputs[0]))]


@_special("aten::div.int", "aten::div.float")
def _div(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    """TorchScript divides floats: as Python does, for ints that are floats, and but for zeros."""
    a, b = (i.literal if i.expr is None else script.interp.context.specialize(i.expr, script.name) for i in inputs)
    if UNKNOWN in (a, b) or not b or abs(a) >= 2**53 or abs(b) >= 2**53 or not math.isfinite(a / b):
        raise script.refuse("a division of numbers that are not known")
    return [ConstValue(a / b)]


@_special("prim::min.int", "prim::max.int")
def _extremum(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    function = min if node.kind() == "prim::min" else max
    return [script.number(call(script.interp, script.interp.context.const_object(function), inputs, {}))]


@_special("aten::size")
def _size(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    sizes = record(script.interp, torch.Tensor.size, inputs, {})
    items = sizes.listed(script.interp)
    return [sizes if items is None else ListValue(items)]


@_special("aten::dim", "aten::numel")
def _count(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    return [record(script.interp, getattr(torch.Tensor, node.kind().removeprefix("aten::")), inputs, {})]


@_special("aten::len.t", "aten::len.Tensor")
def _len(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    return [length(script.interp, inputs[0])]


@_special("aten::__getitem__.t")
def _getitem(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    items, key = inputs[0].listed(script.interp) or [], inputs[1].literal
    if key is UNKNOWN or not -len(items) <= operator.index(key) < len(items):
        raise script.refuse("an index that is not known")
    return [items[key]]


@_special("prim::dtype")
def _dtype(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    return [ConstValue(_CODES[inputs[0].tensor.spec.dtype])]


@_special("aten::tensor.int", "aten::tensor.float", "aten::tensor.bool")
def _tensor(script: _Script, node: Any, inputs: list[Value]) -> list[Value]:
    number, dtype, device, grad = inputs
    return [record(script.interp, torch.tensor, [number],
                   {"dtype": script.meant(dtype, DTYPES), "device": device, "requires_grad": grad})]
