"""Loads, stores, stack shuffling, attributes, arithmetic."""

from __future__ import annotations

import types
from typing import Any

from bytecode import BinaryOp, CellVar, FreeVar

from ..breaks import GraphBreak
from ..interpreter.attributes import delete_attr, load_attr, load_method, store_attr, store_cell
from ..interpreter.interpreter import PUSHED, Executor, Frame, opcode
from ..interpreter.operators import binary, compare, constant_of, same_object, truth, unary
from ..interpreter.subscripts import contains, delete_item, get_item, set_item
from ..models.builtins.type_calls import make_super
from ..values.base import (
    NONE,
    NULL,
    UNBOUND,
    CellValue,
    ConstValue,
    DictValue,
    FunctionValue,
    Missing,
    NullValue,
    SliceValue,
    TupleValue,
    Value,
    const,
)


def push(ex: Executor, frame: Frame, result: Any) -> None:
    """Push what a model returned, unless a frame was pushed that will do so."""
    if result is not PUSHED:
        frame.stack.append(result)


@opcode("RESUME", "NOP", "PRECALL", "COPY_FREE_VARS")
def _nothing(ex: Executor, frame: Frame, ins: Any) -> None:
    pass


@opcode("LOAD_CONST")
def _load_const(ex: Executor, frame: Frame, ins: Any) -> None:
    frame.stack.append(constant(ex, ins.arg))


def constant(ex: Executor, value: Any) -> Value:
    if type(value) is tuple:
        return TupleValue([constant(ex, v) for v in value])
    if type(value) in (types.CodeType, int, str, float, bool, type(None)):
        return ConstValue(value)
    return ex.world.const_object(value)


def load_fast(ex: Executor, frame: Frame, name: Any) -> Value:
    """A local variable."""
    if isinstance(name, (CellVar, FreeVar)):
        return frame.cells[name.name]
    value = frame.locals.get(name)
    if value is None:
        if name in frame.cells:
            return frame.cells[name]  # since 3.13 LOAD_FAST also loads cells
        raise ex.throw(UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with "
                                          "a value")
    return value


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def _load_fast(ex: Executor, frame: Frame, ins: Any) -> None:
    value = frame.locals.get(ins.arg) if type(ins.arg) is str else None
    frame.stack.append(value if value is not None else load_fast(ex, frame, ins.arg))


@opcode("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(ex: Executor, frame: Frame, ins: Any) -> None:
    name = ins.arg.name if isinstance(ins.arg, (CellVar, FreeVar)) else ins.arg
    found: Any = frame.cells.pop(name, None) or frame.locals.pop(name, None)
    frame.stack.append(found if found is not None else NULL)


@opcode("LOAD_FAST_LOAD_FAST")
def _load_fast_load_fast(ex: Executor, frame: Frame, ins: Any) -> None:
    for name in ins.arg:
        frame.stack.append(load_fast(ex, frame, name))


def _store(frame: Frame, name: Any, value: Value) -> None:
    """Store a local; inlined comprehensions (3.12) also put back cells, and NULL for unbound."""
    if isinstance(name, (CellVar, FreeVar)):
        name = name.name
    if isinstance(value, NullValue):
        frame.locals.pop(name, None)
        frame.cells.pop(name, None)
    elif isinstance(value, CellValue) and name in (*frame.code.co_cellvars, *frame.code.co_freevars):
        frame.cells[name] = value
    else:
        frame.locals[name] = value


@opcode("STORE_FAST")
def _store_fast(ex: Executor, frame: Frame, ins: Any) -> None:
    _store(frame, ins.arg, frame.stack.pop())


@opcode("STORE_FAST_LOAD_FAST")
def _store_fast_load_fast(ex: Executor, frame: Frame, ins: Any) -> None:
    _store(frame, ins.arg[0], frame.stack.pop())
    frame.stack.append(load_fast(ex, frame, ins.arg[1]))


@opcode("STORE_FAST_STORE_FAST")
def _store_fast_store_fast(ex: Executor, frame: Frame, ins: Any) -> None:
    _store(frame, ins.arg[0], frame.stack.pop())
    _store(frame, ins.arg[1], frame.stack.pop())


@opcode("DELETE_FAST")
def _delete_fast(ex: Executor, frame: Frame, ins: Any) -> None:
    load_fast(ex, frame, ins.arg)
    del frame.locals[ins.arg]


# -- cells --------------------------------------------------------------------------------------------------


@opcode("MAKE_CELL")
def _make_cell(ex: Executor, frame: Frame, ins: Any) -> None:
    name = ins.arg.name
    initial = frame.locals.pop(name, None)
    frame.cells[name] = CellValue(initial if initial is not None else UNBOUND)


@opcode("LOAD_CLOSURE")
def _load_closure(ex: Executor, frame: Frame, ins: Any) -> None:
    frame.stack.append(frame.cells[ins.arg.name])


@opcode("LOAD_DEREF")
def load_deref(ex: Executor, frame: Frame, ins: Any) -> None:
    name = ins.arg.name
    content = ex.world.cell_content(frame.cells[name])
    if isinstance(content, Missing):
        raise _unbound(ex, ins.arg)
    frame.stack.append(content)


def _unbound(ex: Executor, variable: CellVar | FreeVar) -> BaseException:
    if isinstance(variable, CellVar):
        return ex.throw(UnboundLocalError, f"cannot access local variable {variable.name!r} where it is not "
                                           "associated with a value")
    return ex.throw(NameError, f"cannot access free variable {variable.name!r} where it is not associated with a value "
                               "in enclosing scope")


@opcode("STORE_DEREF")
def _store_deref(ex: Executor, frame: Frame, ins: Any) -> None:
    store_cell(ex, frame.cells[ins.arg.name], frame.stack.pop())


@opcode("DELETE_DEREF")
def _delete_deref(ex: Executor, frame: Frame, ins: Any) -> None:
    cell = frame.cells[ins.arg.name]
    if isinstance(ex.world.cell_content(cell), Missing):
        raise _unbound(ex, ins.arg)
    store_cell(ex, cell, UNBOUND)


# -- names --------------------------------------------------------------------------------------------------


def load_global(ex: Executor, frame: Frame, name: str) -> Value:
    """A global or builtin."""
    found = ex.world.dict_get(frame.globals, name)
    if found is None:
        found = ex.world.builtins_value(name)
    if found is None:
        error = ex.make_exception(NameError, f"name {name!r} is not defined")
        error.members = {"name": const(name)}
        raise ex.raise_value(error)
    return found


@opcode("LOAD_GLOBAL")
def _load_global(ex: Executor, frame: Frame, ins: Any) -> None:
    null, name = ins.arg
    value = load_global(ex, frame, name)
    if null:
        if frame.kw_null_last:
            frame.stack.append(value)
            frame.stack.append(NULL)
            return
        frame.stack.append(NULL)
    frame.stack.append(value)


@opcode("STORE_GLOBAL")
def _store_global(ex: Executor, frame: Frame, ins: Any) -> None:
    ex.world.dict_set(frame.globals, ins.arg, frame.stack.pop())


@opcode("DELETE_GLOBAL")
def _delete_global(ex: Executor, frame: Frame, ins: Any) -> None:
    if ex.world.dict_get(frame.globals, ins.arg) is None:
        raise ex.throw(NameError, f"name {ins.arg!r} is not defined")
    ex.world.dict_delete(frame.globals, ins.arg)


@opcode("LOAD_ASSERTION_ERROR")
def _load_assertion_error(ex: Executor, frame: Frame, ins: Any) -> None:
    frame.stack.append(ex.world.const_object(AssertionError))


# -- shuffling ----------------------------------------------------------------------------------------------


@opcode("POP_TOP", "END_FOR")
def _pop_top(ex: Executor, frame: Frame, ins: Any) -> None:
    frame.stack.pop()


@opcode("PUSH_NULL")
def _push_null(ex: Executor, frame: Frame, ins: Any) -> None:
    frame.stack.append(NULL)


@opcode("COPY")
def _copy(ex: Executor, frame: Frame, ins: Any) -> None:
    frame.stack.append(frame.stack[-ins.arg])


@opcode("SWAP")
def _swap(ex: Executor, frame: Frame, ins: Any) -> None:
    stack = frame.stack
    stack[-1], stack[-ins.arg] = stack[-ins.arg], stack[-1]


# -- attributes ---------------------------------------------------------------------------------------------


@opcode("LOAD_ATTR")
def _load_attr(ex: Executor, frame: Frame, ins: Any) -> None:
    method, name = ins.arg if isinstance(ins.arg, tuple) else (False, ins.arg)
    value = frame.stack.pop()
    result = load_method(ex, value, name) if method else load_attr(ex, value, name)
    if method:
        # CPython leaves [method, self] or [NULL, attribute] (3.12), [attribute, NULL] (3.13) for a CALL that follows
        if frame.kw_null_last:
            push_with_null(ex, frame, result)
        else:
            frame.stack.append(NULL)
            push(ex, frame, result)
        return
    push(ex, frame, result)


def push_with_null(ex: Executor, frame: Frame, result: Any) -> None:
    """Push `[result, NULL]`, also when the result comes from a frame that has to run first."""
    if result is PUSHED:
        result = ex.finish_sync(result)
    frame.stack.append(result)
    frame.stack.append(NULL)


@opcode("LOAD_METHOD")
def _load_method(ex: Executor, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    result = load_method(ex, value, ins.arg)
    frame.stack.append(NULL)
    push(ex, frame, result)


@opcode("LOAD_SUPER_ATTR")
def _load_super_attr(ex: Executor, frame: Frame, ins: Any) -> None:
    method, _, name = ins.arg
    obj = frame.stack.pop()
    cls = frame.stack.pop()
    frame.stack.pop()
    result = load_attr(ex, make_super(ex, [cls, obj], {}), name)
    if method:
        if frame.kw_null_last:
            push_with_null(ex, frame, result)
            return
        frame.stack.append(NULL)
    push(ex, frame, result)


@opcode("STORE_ATTR")
def _store_attr(ex: Executor, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    new = frame.stack.pop()
    discard(ex, store_attr(ex, value, ins.arg, new))


def discard(ex: Executor, result: Any) -> None:
    """Drop the result of a call made for its effect."""
    if result is PUSHED:
        ex.frames[-1].finish = _drop


def _drop(ex: Executor, value: Value) -> None:
    pass


@opcode("DELETE_ATTR")
def _delete_attr(ex: Executor, frame: Frame, ins: Any) -> None:
    discard(ex, delete_attr(ex, frame.stack.pop(), ins.arg))


# -- operators ----------------------------------------------------------------------------------------------

_BINARY_NAMES = {op: (op.name.removeprefix("INPLACE_"), op.name.startswith("INPLACE_")) for op in BinaryOp}


@opcode("BINARY_OP")
def _binary_op(ex: Executor, frame: Frame, ins: Any) -> None:
    b = frame.stack.pop()
    a = frame.stack.pop()
    name, inplace = _BINARY_NAMES[BinaryOp(ins.arg)]
    push(ex, frame, binary(ex, name, a, b, inplace))


@opcode("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT")
def _unary(ex: Executor, frame: Frame, ins: Any) -> None:
    push(ex, frame, unary(ex, ins.name, frame.stack.pop()))


@opcode("UNARY_NOT")
def _unary_not(ex: Executor, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    frame.stack.append(const(not truth(ex, value)))


@opcode("TO_BOOL")
def _to_bool(ex: Executor, frame: Frame, ins: Any) -> None:
    from ..values.base import ScalarValue, TensorValue

    if isinstance(frame.stack[-1], (ScalarValue, TensorValue)):
        return  # the jump that follows breaks the graph
    frame.stack.append(const(truth(ex, frame.stack.pop())))


_COMPARE_SYMBOLS = {"LT": "<", "LE": "<=", "EQ": "==", "NE": "!=", "GT": ">", "GE": ">="}


@opcode("COMPARE_OP")
def _compare_op(ex: Executor, frame: Frame, ins: Any) -> None:
    b = frame.stack.pop()
    a = frame.stack.pop()
    name = ins.arg.name
    result = compare(ex, _COMPARE_SYMBOLS[name.removesuffix("_CAST")], a, b)
    if name.endswith("_CAST"):
        from ..values.base import ScalarValue, TensorValue

        result = ex.finish_sync(result)
        if not isinstance(result, (ScalarValue, TensorValue)):
            result = const(truth(ex, result))
    push(ex, frame, result)


@opcode("IS_OP")
def _is_op(ex: Executor, frame: Frame, ins: Any) -> None:
    b = frame.stack.pop()
    a = frame.stack.pop()
    frame.stack.append(const(same_object(ex, a, b) != bool(ins.arg)))


@opcode("CONTAINS_OP")
def _contains_op(ex: Executor, frame: Frame, ins: Any) -> None:
    container = frame.stack.pop()
    item = frame.stack.pop()
    found = contains(ex, container, item)
    frame.stack.append(const(truth(ex, found) != bool(ins.arg)))


@opcode("BINARY_SUBSCR")
def _binary_subscr(ex: Executor, frame: Frame, ins: Any) -> None:
    key = frame.stack.pop()
    push(ex, frame, get_item(ex, frame.stack.pop(), key))


@opcode("STORE_SUBSCR")
def _store_subscr(ex: Executor, frame: Frame, ins: Any) -> None:
    key = frame.stack.pop()
    container = frame.stack.pop()
    discard(ex, set_item(ex, container, key, frame.stack.pop()))


@opcode("DELETE_SUBSCR")
def _delete_subscr(ex: Executor, frame: Frame, ins: Any) -> None:
    key = frame.stack.pop()
    discard(ex, delete_item(ex, frame.stack.pop(), key))


@opcode("BINARY_SLICE")
def _binary_slice(ex: Executor, frame: Frame, ins: Any) -> None:
    stop = frame.stack.pop()
    start = frame.stack.pop()
    push(ex, frame, get_item(ex, frame.stack.pop(), SliceValue(start, stop, NONE)))


@opcode("STORE_SLICE")
def _store_slice(ex: Executor, frame: Frame, ins: Any) -> None:
    stop = frame.stack.pop()
    start = frame.stack.pop()
    container = frame.stack.pop()
    discard(ex, set_item(ex, container, SliceValue(start, stop, NONE), frame.stack.pop()))


# -- functions ----------------------------------------------------------------------------------------------


@opcode("MAKE_FUNCTION")
def _make_function(ex: Executor, frame: Frame, ins: Any) -> None:
    code = frame.stack.pop()
    assert isinstance(code, ConstValue)
    flags = int(ins.arg or 0)
    made = FunctionValue(code.value, frame.globals.real_dict, name=code.value.co_name, qualname=code.value.co_qualname,
                         defaults=[], kwdefaults={})
    module = ex.world.dict_get(frame.globals, "__name__")
    made.module = module.value if isinstance(module, ConstValue) else None
    for flag in (8, 4, 2, 1):
        if flags & flag:
            _set_function_part(ex, made, flag, frame.stack.pop())
    frame.stack.append(made)


@opcode("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(ex: Executor, frame: Frame, ins: Any) -> None:
    made = frame.stack.pop()
    assert isinstance(made, FunctionValue)
    _set_function_part(ex, made, int(ins.arg), frame.stack.pop())
    frame.stack.append(made)


def _set_function_part(ex: Executor, made: FunctionValue, flag: int, value: Value) -> None:
    if flag == 8:
        assert isinstance(value, TupleValue)
        made.closure = list(value.items)
    elif flag == 4:
        made.annotations = value
    elif flag == 2:
        assert isinstance(value, DictValue)
        made.kwdefaults = {k: v for k, v in ex.world.dict_items(value)}
    else:
        assert isinstance(value, TupleValue)
        made.defaults = [ex.world.force(v) for v in value.items]


@opcode("LOAD_BUILD_CLASS")
def _load_build_class(ex: Executor, frame: Frame, ins: Any) -> None:
    frame.stack.append(ex.world.const_object(__build_class__))


@opcode("IMPORT_NAME")
def _import_name(ex: Executor, frame: Frame, ins: Any) -> None:
    import sys

    fromlist = frame.stack[-1]
    level = frame.stack[-2]
    assert isinstance(level, ConstValue)
    name = ins.arg
    if level.value:
        package = ex.world.dict_get(frame.globals, "__package__")
        if not isinstance(package, ConstValue) or not package.value:
            raise GraphBreak("import", name)
        base = package.value.rsplit(".", level.value - 1)[0]
        name = f"{base}.{name}" if name else base
    wants_top = isinstance(fromlist, ConstValue) and fromlist.value is None
    module = ex.world.imported(name)
    if module is not None and wants_top:
        module = ex.world.imported(name.partition(".")[0])
    if module is None:
        raise GraphBreak("import", name)
    if any(part != "*" and not hasattr(sys.modules[name], part) for part in constant_of(ex, fromlist) or ()):
        raise GraphBreak("import", name)  # of submodules, which this instruction imports and the next one takes
    del frame.stack[-2:]
    frame.stack.append(module)


@opcode("IMPORT_FROM")
def _import_from(ex: Executor, frame: Frame, ins: Any) -> None:
    module = frame.stack[-1]
    name = f"{module.obj.__name__}.{ins.arg}"
    if not hasattr(module.obj, ins.arg) and (found := ex.world.imported(name)) is not None:
        frame.stack.append(found)
        return
    if isinstance(ex.world.pin(module).__dict__.get(ins.arg), type(None)) and not hasattr(module.obj, ins.arg):
        raise GraphBreak("import", name)
    push(ex, frame, load_attr(ex, module, ins.arg))
