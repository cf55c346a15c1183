"""One thread compiles at a time: tracing reads and guards the state of the whole process.

A backend of the program's runs while a thread has its turn, and may wait for other threads. Code that these would
compile runs as plain Python then, as they must not wait for the turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_changed = threading.Condition()
_owner: int | None = None
#: how often the owner has entered, and how many of its calls are in code that may wait for other threads
_depth = _waiting = 0


@contextmanager
def turn() -> Iterator[bool]:
    """Wait for this thread's turn. False: it does not come, as the thread that has it may wait for this one."""
    global _owner, _depth
    me = threading.get_ident()
    with _changed:
        _changed.wait_for(lambda: _owner in (None, me) or _waiting)
        is_ours = _owner in (None, me)
        if is_ours:
            _owner, _depth = me, _depth + 1
    try:
        yield is_ours
    finally:
        if is_ours:
            with _changed:
                _depth -= 1
                if not _depth:
                    _owner = None
                    _changed.notify_all()


@contextmanager
def may_wait() -> Iterator[None]:
    """Around code of the program's that may wait for other threads."""
    global _waiting
    if _owner != threading.get_ident():
        yield
        return
    with _changed:
        _waiting += 1
        _changed.notify_all()
    try:
        yield
    finally:
        with _changed:
            _waiting -= 1
