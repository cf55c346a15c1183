"""How the functions of `jitpy/marks.py` behave while they are traced. Importing this module registers them."""

from __future__ import annotations

from ... import marks
from ...runtime.dispatch import PythonDispatcher
from ..breaks import GraphBreak
from ..interpreter.callees import builtin
from ..values import ConstValue, Interpreter, Value, const
from ..values.opaque import wrap_by_identity
from ..values.wrapping import wraps

wraps(PythonDispatcher, by_type=False)(wrap_by_identity)


@builtin(marks.graph_break)
def _graph_break(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    message = args[0] if args else kwargs.get("msg", const(""))
    raise GraphBreak("user", str(message.literal) if message.is_constant else "")


@builtin(marks.is_compiling)
def _is_compiling(interp: Interpreter, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstValue(True)
