"""Exceptions and context managers."""

import contextlib
import io

from .shared import Carried, CarriedOn, pause


@contextlib.contextmanager
def entered(v):
    pause()
    try:
        yield v
    finally:
        pause()


class Swallows:
    def __init__(self, kind):
        self.kind = kind

    def __enter__(self):
        pause()
        return self

    def __exit__(self, kind, error, trace):
        pause()
        self.error = error
        return kind is not None and issubclass(kind, self.kind)


def by_raise(v):
    try:
        pause()
        raise CarriedOn(v)
    except (KeyError, Carried) as e:
        return e.v


def by_cause(v):
    try:
        try:
            {}["k"]
        except KeyError as cause:
            pause()
            raise Carried(v) from cause
    except Carried as e:
        return e.v if isinstance(e.__cause__, KeyError) and e.__suppress_context__ else None


def by_context(v):
    try:
        try:
            raise Carried(v)
        except Carried:
            pause()
            [].pop()
    except IndexError as e:
        return e.__context__.v


def by_reraise(v):
    try:
        try:
            raise Carried(v)
        except Carried as e:
            e.add_note("seen")
            pause()
            raise
    except Exception as e:
        return e.args[0] if e.__notes__ == ["seen"] else None


def by_finally(v):
    try:
        raise Carried(0)
    finally:
        pause()
        return v


def by_finally_in_loop(v):
    for k in range(3):
        try:
            if k == 1:
                continue
            got = v
        finally:
            pause()
    return got


def by_else(v):
    try:
        pause()
    except Carried:
        return None
    else:
        return v
    finally:
        pause()


def by_group(v):
    found = None
    try:
        raise ExceptionGroup("some", [Carried(v), KeyError(1), ExceptionGroup("in", [Carried(2)])])
    except* Carried as group:
        pause()
        found = group.exceptions[0].v
    except* KeyError:
        pause()
    return found


def by_split(v):
    group = ExceptionGroup("some", [Carried(v), KeyError(1)])
    hit, rest = group.split(Carried)
    pause()
    return hit.exceptions[0].v


def by_unwinding(v):
    def down(n):
        try:
            if n == 0:
                raise Carried(v)
            down(n - 1)
        finally:
            pause()
    try:
        down(3)
    except Carried as e:
        return e.v


def by_swallowing(v):
    with Swallows(Carried) as s, Swallows(KeyError):
        raise Carried(v)
    return s.error.v


def by_with(v):
    with entered(v) as got, contextlib.nullcontext(got) as again:
        pause()
        return again


def by_exit_stack(v):
    with contextlib.ExitStack() as stack:
        stack.callback(pause)
        got = stack.enter_context(entered(v))
        stack.push(lambda kind, error, trace: kind is Carried)
        raise Carried(got)
    return got


def by_suppress(v):
    with contextlib.suppress(KeyError, IndexError):
        pause()
        [][1]
    return v


def by_decorating_context(v):
    @entered(1)
    def inner():
        return v
    return inner()


def by_closing(v):
    def inner():
        yield v
    with contextlib.closing(inner()) as made:
        pause()
        return next(made)


def by_redirect(v):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        pause()
    return v
