"""Notes on exceptions."""

from __future__ import annotations

from .registry import substitute


@substitute(BaseException.add_note)
def add_note(self, note, /):
    if not isinstance(note, str):
        raise TypeError(f"note must be a str, not {type(note).__name__!r}")
    if not hasattr(self, "__notes__"):
        self.__notes__ = []
    elif not isinstance(self.__notes__, list):
        raise TypeError("Cannot add note: __notes__ is not a list")
    self.__notes__.append(note)
