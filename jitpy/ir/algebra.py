"""sympy, imported when it is first needed: `from .algebra import sympy` in place of `import sympy`.

Its import takes a third of a first call's, and programs whose sizes are static never use it. Until something makes an
expression there are none: then `isinstance(x, sympy.Expr)` is False without the import. Classes that are taken from
`sympy` before that (`Basic`, `Expr`, `Symbol`, ...) are stand-ins with just this answer; they stay right afterwards.
Everything else imports it.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any


class _Later(type):
    """The type of stand-ins: makes instances of the real class, and asks it, once there is one."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return "sympy" in sys.modules and isinstance(instance, _real(cls.__name__))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return "sympy" in sys.modules and issubclass(subclass, _real(cls.__name__))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _real(cls.__name__)(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_real(cls.__name__), name)


def _imported() -> Any:
    """The module. Its import adds a filter for warnings: the program's filters stay as they are."""
    if "sympy" not in sys.modules:
        with warnings.catch_warnings():
            import sympy
    import sympy

    return sympy


def _real(name: str) -> Any:
    return getattr(_imported(), name)


class _Sympy:
    """Stands for the module."""

    def __init__(self) -> None:
        for name in ("Basic", "Expr", "Symbol", "Integer", "Rational", "Number"):
            setattr(self, name, _Later(name, (), {}))

    def __getattr__(self, name: str) -> Any:
        sympy = _imported()
        if not name.startswith("__"):
            vars(self).update((key, value) for key, value in vars(sympy).items() if not key.startswith("__"))
        return getattr(sympy, name)


if TYPE_CHECKING:
    import sympy
else:
    sympy = _Sympy()

__all__ = ["sympy"]
