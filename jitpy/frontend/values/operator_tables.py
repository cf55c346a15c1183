"""The operators: their functions and the special methods that stand behind them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

#: BinaryOp name -> (operator function, dunder, reflected dunder, in-place dunder)
BINARY: dict[str, tuple[Callable[..., Any], str, str, str]] = {
    "ADD": (operator.add, "__add__", "__radd__", "__iadd__"),
    "SUBTRACT": (operator.sub, "__sub__", "__rsub__", "__isub__"),
    "MULTIPLY": (operator.mul, "__mul__", "__rmul__", "__imul__"),
    "TRUE_DIVIDE": (operator.truediv, "__truediv__", "__rtruediv__", "__itruediv__"),
    "FLOOR_DIVIDE": (operator.floordiv, "__floordiv__", "__rfloordiv__", "__ifloordiv__"),
    "REMAINDER": (operator.mod, "__mod__", "__rmod__", "__imod__"),
    "POWER": (operator.pow, "__pow__", "__rpow__", "__ipow__"),
    "MATRIX_MULTIPLY": (operator.matmul, "__matmul__", "__rmatmul__", "__imatmul__"),
    "LSHIFT": (operator.lshift, "__lshift__", "__rlshift__", "__ilshift__"),
    "RSHIFT": (operator.rshift, "__rshift__", "__rrshift__", "__irshift__"),
    "AND": (operator.and_, "__and__", "__rand__", "__iand__"),
    "OR": (operator.or_, "__or__", "__ror__", "__ior__"),
    "XOR": (operator.xor, "__xor__", "__rxor__", "__ixor__"),
}
SYMBOLS = {"ADD": "+", "SUBTRACT": "-", "MULTIPLY": "*", "TRUE_DIVIDE": "/", "FLOOR_DIVIDE": "//", "REMAINDER": "%",
            "POWER": "** or pow()", "MATRIX_MULTIPLY": "@", "LSHIFT": "<<", "RSHIFT": ">>", "AND": "&", "OR": "|",
            "XOR": "^"}
UNARY = {"UNARY_NEGATIVE": (operator.neg, "__neg__"), "UNARY_POSITIVE": (operator.pos, "__pos__"),
         "UNARY_INVERT": (operator.invert, "__invert__")}
COMPARE = {"<": (operator.lt, "__lt__", "__gt__"), "<=": (operator.le, "__le__", "__ge__"),
           "==": (operator.eq, "__eq__", "__eq__"), "!=": (operator.ne, "__ne__", "__ne__"),
           ">": (operator.gt, "__gt__", "__lt__"), ">=": (operator.ge, "__ge__", "__le__")}
