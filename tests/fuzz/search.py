"""Hypothesis draws programs until one of them fails, and makes that one small."""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass

import hypothesis
from hypothesis import strategies as st

from .calls import Call, compare, draw_program, warm_up


@dataclass(frozen=True)
class Finding:
    """A program on which eager and jitted differ."""

    source: str
    calls: list[Call]
    error: BaseException
    signature: str

    def text(self) -> str:
        """A file that `python -m tests.fuzz --program` runs again."""
        calls = "\n".join(f"# {call}" for call in self.calls)
        return f"{self.source}\n\n{calls}\n\n'''\n{''.join(traceback.format_exception(self.error))}\n'''\n"


def signature(error: BaseException) -> str:
    """What findings of one cause have in common: the error's type, where jitpy raised it, its text without data."""
    places = [f"{os.path.basename(f.filename)}:{f.name}" for f in traceback.extract_tb(error.__traceback__)
              if "/jitpy/" in f.filename][-2:]
    text = str(error).split("\n")[0]
    if isinstance(error, AssertionError):
        kinds = re.search(r"'([A-Za-z]+)' became '([A-Za-z]+)'", text)  # of exceptions, mostly
        text = text.split("at ")[0] + (f"{kinds[1]} became {kinds[2]}" if kinds else "")
    text = re.sub(r"tensor\(.*?\)|[-+]?\d+\.?\d*(e[-+]\d+)?|0x\w+|/\S+|'[^']*'|\[.*\]|\(.*\)", "", text)
    return f"{type(error).__name__} {' '.join(places)} {' '.join(text.split())[:60]}"


class _OutOfTime(BaseException):
    """Ends a search in the middle; Hypothesis lets it pass."""


@dataclass
class Progress:
    """What a search did."""

    programs: int = 0
    finding: Finding | None = None


def search(
    backend: str,
    seconds: float,
    shrink_seconds: float = 60.0,
    seed: int | None = None,
    most: int = 1_000_000,
    known: Collection[str] = (),
    started: Callable[[str], None] = lambda source: None,
) -> Progress:
    """Draw up to `most` programs for `seconds`; at the first that fails with a signature not in `known`, spend up to
    `shrink_seconds` on making it small. `started` is told each program before it runs."""
    warm_up(backend)
    progress, end = Progress(), time.monotonic() + seconds

    @hypothesis.settings(max_examples=most, database=None, deadline=None, print_blob=False,
                         report_multiple_bugs=False, suppress_health_check=list(hypothesis.HealthCheck),
                         verbosity=hypothesis.Verbosity.quiet)
    @hypothesis.given(st.data())
    def attempt(data: st.DataObject) -> None:
        nonlocal end
        try:
            source, calls = draw_program(lambda low, high: data.draw(st.integers(low, high)), backend)
        except SyntaxError:
            hypothesis.reject()
        if time.monotonic() > end:
            raise _OutOfTime  # only here: Hypothesis objects where a test stops drawing halfway
        progress.programs += 1
        started(source)
        try:
            compare(source, calls, backend)
        except Exception as error:
            name = signature(error)
            if name in known:
                return
            before = progress.finding
            if before is None:
                end = time.monotonic() + shrink_seconds
            elif name != before.signature:
                return
            if before is None or len(source) <= len(before.source):
                progress.finding = Finding(source, calls, error, name)
            raise

    if seed is not None:
        attempt = hypothesis.seed(seed)(attempt)
    try:
        attempt()
    except _OutOfTime:
        pass
    except Exception:
        if progress.finding is None:
            raise
    return progress
