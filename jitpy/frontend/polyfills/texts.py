"""Methods of compiled regular expressions that call back."""

from __future__ import annotations

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
