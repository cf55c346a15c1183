"""Loads, stores, stack shuffling, attributes, arithmetic."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from bytecode import BinaryOp, CellVar, FreeVar

from ..breaks import GraphBreak
from ..interpreter.attributes import load_method
from ..interpreter.frame import PUSHED, Frame
from ..interpreter.library_code import is_library
from ..models.builtins.type_calls import make_super
from ..values import (
    NONE,
    NULL,
    UNBOUND,
    CellValue,
    ConstValue,
    FunctionValue,
    Interpreter,
    Missing,
    SliceValue,
    Value,
    const,
)
from .handlers import opcode


def push(interp: Interpreter, frame: Frame, result: Any) -> None:
    """Push what a model returned, unless a frame was pushed that will do so."""
    if result is not PUSHED:
        frame.stack.append(result)


def operation(*names: str, pops: int | Callable[[Any], int], drop: bool = False) -> Callable[[Any], Any]:
    """Register what an instruction makes of the stack entries that it takes: `function(interp, arg, *operands)`. Its
    result is pushed, unless it is to be dropped."""

    def register(function: Any) -> Any:
        def handler(interp: Interpreter, frame: Frame, ins: Any) -> None:
            operands = frame.popn(pops if isinstance(pops, int) else pops(ins.arg))
            result = function(interp, ins.arg, *operands)
            if not drop:
                push(interp, frame, result)
            elif result is PUSHED:
                interp.frames[-1].finish = _drop

        opcode(*names, pops=pops)(handler)
        return function

    return register


def _drop(interp: Interpreter, value: Value) -> None:
    pass


@opcode("RESUME", "NOP", "PRECALL", "COPY_FREE_VARS")
def _nothing(interp: Interpreter, frame: Frame, ins: Any) -> None:
    pass


@opcode("LOAD_CONST", pops=0)
def _load_const(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.append(constant(interp, ins.arg))


def constant(interp: Interpreter, value: Any) -> Value:
    if type(value) is tuple:
        return interp.context.literal(value, [constant(interp, v) for v in value])
    if type(value) in (types.CodeType, int, str, float, bool, type(None)):
        return ConstValue(value)
    return interp.context.const_object(value)


def load_fast(interp: Interpreter, frame: Frame, name: Any) -> Value:
    """A local variable."""
    if isinstance(name, (CellVar, FreeVar)):
        return frame.cells[name.name]
    value = frame.locals.get(name)
    if value is None:
        if name in frame.cells:
            return frame.cells[name]  # since 3.13 LOAD_FAST also loads cells
        raise interp.throw(UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with "
                                          "a value")
    return value


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def _load_fast(interp: Interpreter, frame: Frame, ins: Any) -> None:
    value = frame.locals.get(ins.arg) if type(ins.arg) is str else None
    frame.stack.append(value if value is not None else load_fast(interp, frame, ins.arg))


@opcode("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(interp: Interpreter, frame: Frame, ins: Any) -> None:
    name = ins.arg.name if isinstance(ins.arg, (CellVar, FreeVar)) else ins.arg
    found: Any = frame.cells.pop(name, None) or frame.locals.pop(name, None)
    frame.stack.append(found if found is not None else NULL)


@opcode("LOAD_FAST_LOAD_FAST")
def _load_fast_load_fast(interp: Interpreter, frame: Frame, ins: Any) -> None:
    for name in ins.arg:
        frame.stack.append(load_fast(interp, frame, name))


def _store(frame: Frame, name: Any, value: Value) -> None:
    """Store a local; inlined comprehensions (3.12) also put back cells, and NULL for unbound."""
    if isinstance(name, (CellVar, FreeVar)):
        name = name.name
    if value is NULL:
        frame.locals.pop(name, None)
        frame.cells.pop(name, None)
    elif isinstance(value, CellValue) and name in (*frame.code.co_cellvars, *frame.code.co_freevars):
        frame.cells[name] = value
    else:
        frame.locals[name] = value


@opcode("STORE_FAST")
def _store_fast(interp: Interpreter, frame: Frame, ins: Any) -> None:
    _store(frame, ins.arg, frame.stack.pop())


@opcode("STORE_FAST_LOAD_FAST")
def _store_fast_load_fast(interp: Interpreter, frame: Frame, ins: Any) -> None:
    _store(frame, ins.arg[0], frame.stack.pop())
    frame.stack.append(load_fast(interp, frame, ins.arg[1]))


@opcode("STORE_FAST_STORE_FAST")
def _store_fast_store_fast(interp: Interpreter, frame: Frame, ins: Any) -> None:
    _store(frame, ins.arg[0], frame.stack.pop())
    _store(frame, ins.arg[1], frame.stack.pop())


@opcode("DELETE_FAST")
def _delete_fast(interp: Interpreter, frame: Frame, ins: Any) -> None:
    load_fast(interp, frame, ins.arg)
    del frame.locals[ins.arg]


# -- cells --------------------------------------------------------------------------------------------------


@opcode("MAKE_CELL")
def _make_cell(interp: Interpreter, frame: Frame, ins: Any) -> None:
    name = ins.arg.name
    initial = frame.locals.pop(name, None)
    frame.cells[name] = CellValue(initial if initial is not None else UNBOUND)


@opcode("LOAD_CLOSURE")
def _load_closure(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.append(frame.cells[ins.arg.name])


@opcode("LOAD_DEREF")
def load_deref(interp: Interpreter, frame: Frame, ins: Any) -> None:
    name = ins.arg.name
    content = interp.context.cell_content(frame.cells[name])
    if isinstance(content, Missing):
        raise _unbound(interp, ins.arg)
    frame.stack.append(content)


def _unbound(interp: Interpreter, variable: CellVar | FreeVar) -> BaseException:
    if isinstance(variable, CellVar):
        return interp.throw(UnboundLocalError, f"cannot access local variable {variable.name!r} where it is not "
                                           "associated with a value")
    return interp.throw(NameError,
                        f"cannot access free variable {variable.name!r} where it is not associated with a value "
                               "in enclosing scope")


@opcode("STORE_DEREF")
def _store_deref(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.cells[ins.arg.name].store(interp.context, frame.stack.pop())


@opcode("DELETE_DEREF")
def _delete_deref(interp: Interpreter, frame: Frame, ins: Any) -> None:
    cell = frame.cells[ins.arg.name]
    if isinstance(interp.context.cell_content(cell), Missing):
        raise _unbound(interp, ins.arg)
    cell.store(interp.context, UNBOUND)


# -- names --------------------------------------------------------------------------------------------------


def load_global(interp: Interpreter, frame: Frame, name: str) -> Value:
    """A global or builtin."""
    found = interp.context.dict_get(frame.globals, name)
    if found is None:
        found = interp.context.builtins_value(name)
    if found is None:
        error = interp.make_exception(NameError, f"name {name!r} is not defined")
        error.members = {"name": const(name)}
        raise interp.raise_value(error)
    return found


@opcode("LOAD_GLOBAL", pops=0)
def _load_global(interp: Interpreter, frame: Frame, ins: Any) -> None:
    null, name = ins.arg
    (push_callable if null else push)(interp, frame, load_global(interp, frame, name))


@opcode("STORE_GLOBAL")
def _store_global(interp: Interpreter, frame: Frame, ins: Any) -> None:
    interp.context.dict_set(frame.globals, ins.arg, frame.stack.pop())


@opcode("DELETE_GLOBAL")
def _delete_global(interp: Interpreter, frame: Frame, ins: Any) -> None:
    if interp.context.dict_get(frame.globals, ins.arg) is None:
        raise interp.throw(NameError, f"name {ins.arg!r} is not defined")
    interp.context.dict_delete(frame.globals, ins.arg)


operation("LOAD_ASSERTION_ERROR", pops=0)(lambda interp, arg: interp.context.const_object(AssertionError))


# -- shuffling ----------------------------------------------------------------------------------------------


@opcode("POP_TOP", "END_FOR")
def _pop_top(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.pop()


@opcode("PUSH_NULL")
def _push_null(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.append(NULL)


@opcode("COPY")
def _copy(interp: Interpreter, frame: Frame, ins: Any) -> None:
    frame.stack.append(frame.stack[-ins.arg])


@opcode("SWAP")
def _swap(interp: Interpreter, frame: Frame, ins: Any) -> None:
    stack = frame.stack
    stack[-1], stack[-ins.arg] = stack[-ins.arg], stack[-1]


# -- attributes ---------------------------------------------------------------------------------------------


@opcode("LOAD_ATTR", pops=1)
def _load_attr(interp: Interpreter, frame: Frame, ins: Any) -> None:
    method, name = ins.arg if isinstance(ins.arg, tuple) else (False, ins.arg)
    value = frame.stack.pop()
    if method:
        push_callable(interp, frame, load_method(interp, value, name))
    else:
        push(interp, frame, interp.getattr(value, name))


def push_callable(interp: Interpreter, frame: Frame, result: Any) -> None:
    """Push what a CALL that follows is to call, with NULL below it or, from 3.13 on, above it."""
    if frame.kw_null_last:
        frame.stack += [interp.finish_sync(result), NULL]
    else:
        frame.stack.append(NULL)
        push(interp, frame, result)


@opcode("LOAD_METHOD", pops=1)
def _load_method(interp: Interpreter, frame: Frame, ins: Any) -> None:
    push_callable(interp, frame, load_method(interp, frame.stack.pop(), ins.arg))


@opcode("LOAD_SUPER_ATTR", pops=3)
def _load_super_attr(interp: Interpreter, frame: Frame, ins: Any) -> None:
    method, _, name = ins.arg
    obj = frame.stack.pop()
    cls = frame.stack.pop()
    frame.stack.pop()
    (push_callable if method else push)(interp, frame, interp.getattr(make_super(interp, [cls, obj], {}), name))


operation("STORE_ATTR", pops=2, drop=True)(lambda interp, name, new, value: interp.setattr(value, name, new))
operation("DELETE_ATTR", pops=1, drop=True)(lambda interp, name, value: interp.delattr(value, name))


# -- operators ----------------------------------------------------------------------------------------------

_BINARY_NAMES = {op: (op.name.removeprefix("INPLACE_"), op.name.startswith("INPLACE_")) for op in BinaryOp}


@operation("BINARY_OP", pops=2)
def _binary_op(interp: Interpreter, arg: Any, a: Value, b: Value) -> Any:
    name, inplace = _BINARY_NAMES[BinaryOp(arg)]
    return interp.binary(name, a, b, inplace)


@opcode("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", pops=1)
def _unary(interp: Interpreter, frame: Frame, ins: Any) -> None:
    push(interp, frame, interp.unary(ins.name, frame.stack.pop()))


operation("UNARY_NOT", pops=1)(lambda interp, arg, value: const(not interp.truth(value)))


@opcode("TO_BOOL", pops=1)
def _to_bool(interp: Interpreter, frame: Frame, ins: Any) -> None:
    if frame.stack[-1].scalar is not None or frame.stack[-1].tensor is not None:
        return  # the jump that follows breaks the graph
    frame.stack.append(const(interp.truth(frame.stack.pop())))


_COMPARE_SYMBOLS = {"LT": "<", "LE": "<=", "EQ": "==", "NE": "!=", "GT": ">", "GE": ">="}


@operation("COMPARE_OP", pops=2)
def _compare_op(interp: Interpreter, arg: Any, a: Value, b: Value) -> Any:
    name = arg.name
    result = interp.compare(_COMPARE_SYMBOLS[name.removesuffix("_CAST")], a, b)
    if name.endswith("_CAST"):
        result = interp.finish_sync(result)
        if result.scalar is None and result.tensor is None:
            result = const(interp.truth(result))
    return result


operation("IS_OP", pops=2)(lambda interp, is_not, a, b: const(interp.same_object(a, b) != bool(is_not)))
operation("CONTAINS_OP", pops=2)(
    lambda interp, is_not, item, container: const(interp.truth(interp.contains(container, item)) != bool(is_not)))
operation("BINARY_SUBSCR", pops=2)(lambda interp, arg, container, key: interp.getitem(container, key))
operation("STORE_SUBSCR", pops=3, drop=True)(
    lambda interp, arg, value, container, key: interp.setitem(container, key, value))
operation("DELETE_SUBSCR", pops=2, drop=True)(lambda interp, arg, container, key: interp.delitem(container, key))
operation("BINARY_SLICE", pops=3)(
    lambda interp, arg, container, start, stop: interp.getitem(container, SliceValue(start, stop, NONE)))
operation("STORE_SLICE", pops=4, drop=True)(
    lambda interp, arg, value, container, start, stop: interp.setitem(container, SliceValue(start, stop, NONE), value))


# -- functions ----------------------------------------------------------------------------------------------


@opcode("MAKE_FUNCTION")
def _make_function(interp: Interpreter, frame: Frame, ins: Any) -> None:
    code = frame.stack.pop()
    flags = int(ins.arg or 0)
    made = FunctionValue(code.value, frame.globals.real_dict, name=code.value.co_name, qualname=code.value.co_qualname,
                         defaults=[], kwdefaults={})
    module = interp.context.dict_get(frame.globals, "__name__")
    made.module = module.value if module is not None and module.is_constant else None
    for flag in (8, 4, 2, 1):
        if flags & flag:
            _set_function_part(interp, made, flag, frame.stack.pop())
    frame.stack.append(made)


@opcode("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(interp: Interpreter, frame: Frame, ins: Any) -> None:
    made = frame.stack.pop()
    _set_function_part(interp, made, int(ins.arg), frame.stack.pop())
    frame.stack.append(made)


def _set_function_part(interp: Interpreter, made: FunctionValue, flag: int, value: Any) -> None:
    if flag == 8:
        made.closure = list(value.items)
    elif flag == 4:
        made.annotations = value
    elif flag == 2:
        made.kwdefaults = dict(interp.context.dict_items(value))
    else:
        made.defaults = [interp.context.force(v) for v in value.items]


operation("LOAD_BUILD_CLASS", pops=0)(lambda interp, arg: interp.context.const_object(__build_class__))


@opcode("IMPORT_NAME", pops=2)
def _import_name(interp: Interpreter, frame: Frame, ins: Any) -> None:
    fromlist = frame.stack[-1]
    level = frame.stack[-2]
    name = ins.arg
    if level.value:
        package = interp.context.dict_get(frame.globals, "__package__")
        if package is None or not package.is_constant or not package.value:
            raise GraphBreak("import", name)
        base = package.value.rsplit(".", level.value - 1)[0]
        name = f"{base}.{name}" if name else base
    wants_top = fromlist.literal is None
    if name not in sys.modules and _is_part_of_library(interp, frame, name):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    module = interp.context.imported(name)
    if module is not None and wants_top:
        module = interp.context.imported(name.partition(".")[0])
    if module is None:
        raise GraphBreak("import", name)
    if any(part != "*" and not hasattr(sys.modules[name], part) for part in fromlist.constant(interp) or ()):
        raise GraphBreak("import", name)  # of submodules, which this instruction imports and the next one takes
    del frame.stack[-2:]
    frame.stack.append(module)


def _is_part_of_library(interp: Interpreter, frame: Frame, name: str) -> bool:
    """Whether code of an installed package imports a part of that package, with nothing to be done before. It may be
    imported now. Torch loads its compiler so, which may not be needed in the end."""
    package = frame.code.co_filename.rpartition("site-packages" + os.sep)[2].partition(os.sep)[0]
    return is_library(frame.code.co_filename) and name.partition(".")[0] == package != "torch" and \
        not interp.host_calls and not interp.context.dirty


@opcode("IMPORT_FROM", pops=1)
def _import_from(interp: Interpreter, frame: Frame, ins: Any) -> None:
    module = frame.stack[-1]
    name = f"{module.obj.__name__}.{ins.arg}"
    if not hasattr(module.obj, ins.arg) and (found := interp.context.imported(name)) is not None:
        frame.stack.append(found)
        return
    if isinstance(interp.context.pin(module).__dict__.get(ins.arg), type(None)) and not hasattr(module.obj, ins.arg):
        raise GraphBreak("import", name)
    push(interp, frame, interp.getattr(module, ins.arg))
