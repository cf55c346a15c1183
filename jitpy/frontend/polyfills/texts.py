"""Functions that call back: methods of compiled regular expressions, and paths that are no texts."""

from __future__ import annotations

import os
import re

from .registry import give_up, substitute


@substitute(re.Pattern.sub)
def pattern_sub(pattern, repl, string, count=0):
    return _substituted(pattern, repl, string, count)[0]


@substitute(re.Pattern.subn)
def pattern_subn(pattern, repl, string, count=0):
    return _substituted(pattern, repl, string, count)


def sub(pattern, repl, string, count=0, flags=0):
    """`re.sub`."""
    return re.compile(pattern, flags).sub(repl, string, count)


def subn(pattern, repl, string, count=0, flags=0):
    """`re.subn`."""
    return re.compile(pattern, flags).subn(repl, string, count)


def _substituted(pattern, repl, string, count):
    if not callable(repl):
        give_up("a replacement that is no function")
    parts = []
    position = number = 0
    for match in pattern.finditer(string) if count >= 0 else ():
        if position < match.start():
            parts.append(string[position: match.start()])
        made = repl(match)
        if made is not None:
            parts.append(made)
        position = match.end()
        number += 1
        if number == count:
            break
    if position < len(string):
        parts.append(string[position:])
    return string[:0].join(parts), number


@substitute(os.fspath)
def fspath(path):
    if isinstance(path, (str, bytes)):
        return path
    if not hasattr(type(path), "__fspath__"):
        raise TypeError(f"expected str, bytes or os.PathLike object, not {type(path).__name__}")
    result = type(path).__fspath__(path)
    if not isinstance(result, (str, bytes)):
        raise TypeError(f"expected {type(path).__name__}.__fspath__() to return str or bytes, "
                        f"not {type(result).__name__}")
    return result
