"""Notes on exceptions, and groups of exceptions."""

from __future__ import annotations

import types

from .registry import give_up, substitute


@substitute(BaseException.add_note)
def add_note(self, note, /):
    if not isinstance(note, str):
        raise TypeError(f"note must be a str, not {type(note).__name__!r}")
    if not hasattr(self, "__notes__"):
        self.__notes__ = []
    elif not isinstance(self.__notes__, list):
        raise TypeError("Cannot add note: __notes__ is not a list")
    self.__notes__.append(note)


@substitute(BaseExceptionGroup.derive)
def derive(self, exceptions, /):
    return BaseExceptionGroup(self.message, exceptions)


@substitute(BaseExceptionGroup.split)
def split(self, condition, /):
    return _split(self, _matcher(condition))


@substitute(BaseExceptionGroup.subgroup)
def subgroup(self, condition, /):
    return _split(self, _matcher(condition), False)[0]


def _matcher(condition):
    if isinstance(condition, types.FunctionType):
        return condition
    for kind in condition if isinstance(condition, tuple) else (condition,):
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            give_up("a condition that is no class of exceptions and no function")
    return lambda error: isinstance(error, condition)


def _split(error, fits, wants_rest=True):
    """(The part of an exception that fits, the rest): each an exception or None."""
    if fits(error):
        return error, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    fitting = []
    others = []
    for part in error.exceptions:
        found, left = _split(part, fits, wants_rest)
        if found is not None:
            fitting.append(found)
        if left is not None and wants_rest:
            others.append(left)
    return _part(error, fitting), _part(error, others)


def _part(group, exceptions):
    """A group like `group`, of some of its exceptions."""
    if not exceptions:
        return None
    made = group.derive(exceptions)
    if not isinstance(made, BaseExceptionGroup):
        raise TypeError("derive must return an instance of BaseExceptionGroup")
    made.__traceback__ = group.__traceback__
    made.__context__ = group.__context__
    made.__cause__ = group.__cause__
    if hasattr(group, "__notes__"):
        made.__notes__ = list(group.__notes__)
    return made


def match(error, kinds):
    """What `except* kinds` handles of an exception, and what it leaves."""
    if isinstance(error, kinds):
        return error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", (error,)), None
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)
    return None, error


def leave(group, rest):
    """The part of a group that no handler took: the exceptions that are in `rest`."""
    leaves = _leaves(rest)

    def is_left(error):
        return not isinstance(error, BaseExceptionGroup) and any(error is leaf for leaf in leaves)

    return _split(group, is_left, False)[0]


def _leaves(error):
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    found = []
    for part in error.exceptions:
        found.extend(_leaves(part))
    return found
