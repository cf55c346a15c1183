"""Groups of exceptions, notes, `sys.exc_info()` and what `contextlib` makes of them. PYTEST_DONT_REWRITE."""

from __future__ import annotations

import contextlib
import sys

import torch

from jitpy import graph_break
from tests.semantics.harness import case, jit, make_test


def one():
    return (torch.arange(4.0),)

class MyGroup(ExceptionGroup):
    def __new__(cls, msg, excs, code=0):
        self = super().__new__(cls, msg, excs)
        self.code = code
        return self
    def derive(self, excs):
        return MyGroup(self.message, excs, self.code)


@case(one)
def group_custom_derive(x):
    g = MyGroup("m", [ValueError(1), KeyError(2), MyGroup("i", [ValueError(3)], 7)], 5)
    a, b = g.split(ValueError)
    return type(a).__name__, a.code, repr(a.exceptions), b.code, repr(b.exceptions), x * a.code + 1


OUTSIDE = ExceptionGroup("made before", [ValueError(1)])


@case(one)
def group_from_outside(x):
    return repr(OUTSIDE), str(OUTSIDE), OUTSIDE.message, x * len(OUTSIDE.exceptions)


@case(one, breaks=("unsupported_call",))
def group_made_raised_caught(x):
    y = x + 1
    try:
        raise ExceptionGroup("many", [ValueError(1), KeyError(2)])
    except ExceptionGroup as g:
        n = len(g.exceptions)
        m = g.message
    return y * n, m


@case(one, breaks=("unsupported_call", "unsupported_call"))
def group_base(x):
    g = BaseExceptionGroup("b", [ValueError(1)])
    h = BaseExceptionGroup("b", [KeyboardInterrupt()])
    return type(g).__name__, type(h).__name__, x + len(g.exceptions)


@case(one)
def group_bad(x):
    out = []
    for bad in ((), [], [1], [KeyboardInterrupt()]):
        try:
            ExceptionGroup("m", bad)
        except (TypeError, ValueError) as e:
            out.append((type(e).__name__, str(e)))
    return out, x + 1


@case(one, breaks=("unsupported_call", "opcode"))
def group_star_in_loop(x):
    log = []
    for i in range(3):
        try:
            x = x + 1
            if i == 1:
                raise ExceptionGroup("g", [ValueError(i), TypeError(i), OSError(i)])
        except* (ValueError, TypeError) as eg:
            log.append([type(e).__name__ for e in eg.exceptions])
            x = x * 2
        except* OSError as eg:
            log.append(str(eg.exceptions[0]))
    return x, log


@case(one)
def group_star_raise_inside(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError as eg:
            raise RuntimeError("in handler") from eg
    except BaseExceptionGroup as g:
        out = repr(g), [repr(e.__cause__) for e in g.exceptions]
    return out, x + 1


def _callee_star(t):
    t = t * 2
    try:
        t = t + 1
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError:
        t = t + 3
    except* TypeError:
        t = t * 5
    return t.sin()


@case(one, breaks=("unsupported_call", "opcode"))
def group_star_in_callee(x):
    return _callee_star(x + 1) + 2


@case(one)
def group_subgroup_callable(x):
    g = ExceptionGroup("g", [ValueError(1), ValueError(20), ExceptionGroup("i", [TypeError(3)])])
    s = g.subgroup(lambda e: isinstance(e, ValueError) and e.args[0] > 5)
    return repr(s), s is g, g.subgroup(OSError), x + 1


@case(one, breaks=("unsupported_call", "unsupported_call"))
def group_notes_and_chain(x):
    e = ValueError("v")
    e.add_note("a")
    e.add_note("b")
    g = ExceptionGroup("g", [e])
    g.add_note("n")
    m, r = g.split(ValueError)
    return m.__notes__, r, g.exceptions[0].__notes__, x + 1


@case(one, fullgraph=True)
def chain_reads(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as e:
            raise TypeError("b") from e
    except TypeError as t:
        found = repr(t.__cause__), repr(t.__context__), t.__suppress_context__
        r = (*found, t.__traceback__ is not None, t.__context__ is t.__cause__)
    return r, x + 1


@case(one, fullgraph=True)
def chain_suppress_none(x):
    try:
        try:
            raise ValueError("a")
        except ValueError:
            raise TypeError("b") from None
    except TypeError as t:
        r = (repr(t.__cause__), repr(t.__context__), t.__suppress_context__)
        t.__suppress_context__ = False
        t.__cause__ = KeyError(3)
        r2 = (repr(t.__cause__), t.__suppress_context__)
    return r, r2, x + 1


@case(one)
def exc_info_values(x):
    out = []
    out.append(sys.exc_info())
    try:
        [][x.shape[0]]
    except IndexError:
        k, v, tb = sys.exc_info()
        out.append((k.__name__, str(v), tb is v.__traceback__))
    out.append(sys.exc_info() == (None, None, None))
    return out, x + 1


def _log_exc(log):
    k, v, tb = sys.exc_info()
    log.append(None if k is None else k.__name__)


@case(one, fullgraph=True)
def exc_info_in_callee(x):
    log = []
    _log_exc(log)
    try:
        raise KeyError("z")
    except KeyError:
        _log_exc(log)
        x = x + 1
    _log_exc(log)
    return x, log


@case(one)
def tb_lineno(x):
    try:
        raise KeyError("z")
    except KeyError as e:
        n = e.__traceback__.tb_lineno
        name = e.__traceback__.tb_frame.f_code.co_name
    return x + 1, n, name


@case(one, fullgraph=True)
def stack_pop_all(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, 1)
        stack.callback(log.append, 2)
        later = stack.pop_all()
        x = x + 1
    log.append("out")
    later.close()
    return x, log


@case(one, fullgraph=True)
def stack_push_cm(x):
    log = []
    @contextlib.contextmanager
    def cm(n):
        log.append(("in", n))
        try:
            yield n * 2
        finally:
            log.append(("out", n))
    with contextlib.ExitStack() as stack:
        vals = [stack.enter_context(cm(i)) for i in range(3)]
        x = x * sum(vals)
        @stack.callback
        def done():
            log.append("done")
        @stack.push
        def ex(*a):
            log.append(a[0])
            return True
    return x, log


@case(one, fullgraph=True)
def stack_suppress_error(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(ValueError))
        stack.callback(lambda **k: log.append(k), a=1)
        x = x + 1
        raise ValueError
    return x, log


@case(one, fullgraph=True)
def stack_error_in_callback(x):
    log = []
    def bad():
        raise TypeError("bad")
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, 1)
            stack.callback(bad)
            raise ValueError("body")
    except TypeError as e:
        log.append(repr(e.__context__))
    return x + 1, log


@case(one, fullgraph=True)
def stack_bad_enter(x):
    try:
        with contextlib.ExitStack() as s:
            s.enter_context(3)
    except TypeError as e:
        return str(e), x + 1


def _with_stack_break(t, log):
    with contextlib.ExitStack() as s:
        s.callback(log.append, "cb")
        t = t + 1
        graph_break()
        t = t * 2
    return t + 3


@case(one)
def stack_with_break(x):
    log = []
    y = _with_stack_break(x * 2, log)
    return y.sin(), log


@case(one, fullgraph=True)
def stack_torch_modes(x):
    with contextlib.ExitStack() as s:
        s.enter_context(torch.no_grad())
        a = torch.is_grad_enabled()
        y = x + 1
    return y, a, torch.is_grad_enabled()


@case(one, fullgraph=True)
def suppress_multiple(x):
    with contextlib.suppress(ValueError, KeyError):
        x = x + 1
        {}["k"]
    with contextlib.suppress():
        x = x * 2
    s = contextlib.suppress(IndexError)
    with s:
        raise IndexError
    with s:
        x = x - 1
    return x


@case(one)
def suppress_group(x):
    with contextlib.suppress(ValueError):
        raise ExceptionGroup("g", [ValueError(1)])
    return x + 1


@case(one, fullgraph=True)
def null_contexts(x):
    with contextlib.nullcontext(x + 1) as y, contextlib.nullcontext():
        return y * 2


@case(one, fullgraph=True)
def closing_gen(x):
    def gen():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")
    log = []
    with contextlib.closing(gen()) as g:
        n = next(g)
    return x + n, log


class Deco(contextlib.ContextDecorator):
    def __init__(self):
        self.log = []
    def __enter__(self):
        self.log.append("e")
        return self

    def __exit__(self, *a):
        self.log.append(a[0])
        return False


@case(one, fullgraph=True)
def ctx_decorator_local(x):
    d = Deco()
    @d
    def f(t):
        return t * 3
    return f(x) + 1, d.log


@contextlib.contextmanager
def _cm(n):
    yield n


@_cm(4)
def _cmdeco(t):
    return t + 4


@case(one, fullgraph=True)
def manager_as_decorator(x):
    return _cmdeco(x) + _cmdeco(x)


class AppError(Exception):
    def __init__(self, msg, code):
        super().__init__(msg)
        self.code = code
    def __str__(self):
        return f"{self.args[0]}:{self.code}"


@case(one, fullgraph=True)
def app_error(x):
    try:
        raise AppError("m", x.shape[0])
    except AppError as e:
        s = str(e), repr(e), e.code, e.args
        e.add_note("hey")
        n = e.__notes__
    return s, n, x + 1


@case(one)
def app_error_uncaught(x):
    x.add_(1)
    e = AppError("m", x.shape[0])
    e.add_note("q")
    raise e from ValueError("cause")


@case(one, fullgraph=True)
def context_set(x):
    e = ValueError(1)
    e.__context__ = KeyError(2)
    a = repr(e.__context__), e.__suppress_context__
    return a, x + 1


@case(one, fullgraph=True)
def try_finally_return(x):
    log = []
    def f(t):
        try:
            return t + 1
        finally:
            log.append(sys.exc_info()[0])
    def g(t):
        try:
            raise ValueError
        finally:
            log.append(sys.exc_info()[0].__name__)
            return t * 2
    return f(x) + g(x), log


@case(one, fullgraph=True)
def handler_exc_after_inner(x):
    out = []
    try:
        raise ValueError("o")
    except ValueError:
        try:
            raise KeyError("i")
        except KeyError:
            out.append(sys.exc_info()[0].__name__)
        out.append(sys.exc_info()[0].__name__)
        out.append(repr(sys.exception()) if hasattr(sys, "exception") else None)
    return out, x+1


@case(one,
      breaks=("unsupported_call", "unsupported_value", "unsupported_value", "unsupported_call", "unsupported_value"))
def group_shown(x):
    group = ExceptionGroup("g", [ValueError(1), KeyError("k")])
    return str(group), repr(group), str(group.subgroup(KeyError)), x + 1


@case(one, breaks=("unsupported_call", "unsupported_call", "unsupported_call"))
def group_returned(x):
    group = ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [KeyError(2)])])
    group.add_note("n")
    return group, group.split(KeyError), x + 1


@case(one, breaks=("opcode",))
def group_of_a_plain_exception(x):
    log = []
    try:
        raise ValueError("alone")
    except* ValueError as group:
        log.append((group.message, group.exceptions, group.__cause__, group.__context__))
        log.append(sys.exception() is group)
    return log, x + 1


@case(one)
def group_kept_and_changed(x):
    parts = [ValueError(1), KeyError(2)]
    group = ExceptionGroup("g", parts)
    parts.append(3)
    return group, group.exceptions, parts, x + 1


@case(one, fullgraph=True)
def suppressed_context_of_what_is_returned(x):
    first = ValueError(1)
    first.__cause__ = KeyError(2)
    first.__suppress_context__ = False
    second = ValueError(3)
    second.__suppress_context__ = True
    return first.__suppress_context__, second.__suppress_context__, (first, second), x + 1


class Slotted(Exception):
    __slots__ = ("note",)


@case(one)
def attributes_of_exceptions_written(x):
    stop = StopIteration(1)
    stop.value = 2
    leave = SystemExit(3)
    leave.code = 4
    slotted = Slotted("s")
    slotted.note = x.shape[0]
    return stop.value, stop.args, leave.code, slotted.note, stop, slotted, x + 1


@case(one)
def identity_of_tracebacks(x):
    try:
        raise ValueError(1)
    except ValueError as error:
        same = error.__traceback__ is error.__traceback__
    return same, x + 1


def _what_is_handled(x):
    kind, value, _ = sys.exc_info()
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: None)
        y = x * 2
    return y, kind, None if value is None else str(value)


def test_exception_that_the_caller_handles() -> None:
    called = jit(_what_is_handled, backend="eager")
    x = torch.ones(2)
    for text in ("first", "second"):
        assert called(x)[1:] == (None, None)
        try:
            raise KeyError(text)
        except KeyError:
            assert called(x)[1:] == (KeyError, repr(text))
    assert called(x)[1:] == (None, None)


def test_suppressed_context_of_a_returned_exception() -> None:
    first, second = jit(suppressed_context_of_what_is_returned, backend="eager")(torch.ones(2))[2]
    assert (first.__suppress_context__, second.__suppress_context__) == (False, True)


test_all = make_test(__name__)
