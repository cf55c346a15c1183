"""Exceptions: raising, chaining, groups, managers, and breaks among them. PYTEST_DONT_REWRITE: run as written."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Any

import torch

from tests.semantics.harness import case, jit, make_test


def graph_break(message: str = "") -> None:
    """`jitpy.graph_break`, looked up late: the cases alone run without it."""


if os.environ.get("JITPY_SEMANTICS_STUB") != "1":
    from jitpy import graph_break  # type: ignore[no-redef]


def one() -> tuple[Any, ...]:
    return (torch.randn(4),)


class Problem(Exception):
    def __init__(self, code, **state):
        super().__init__(code)
        self.code = code
        self.__dict__.update(state)


# -- raising and chaining -----------------------------------------------------------------------------------


@case(one)
def raise_from(x):
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        return (repr(error.__cause__), repr(error.__context__), error.__suppress_context__,
                error.__cause__ is error.__context__, x)


@case(one)
def raise_from_none(x):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as error:
        return error.__cause__, repr(error.__context__), error.__suppress_context__, x


@case(one)
def raise_from_class(x):
    try:
        raise ValueError("v") from KeyError
    except ValueError as error:
        return repr(error.__cause__), x


@case(one)
def raise_from_junk(x):
    try:
        raise ValueError("v") from 3
    except TypeError as error:
        return str(error), x


@case(one)
def raise_junk(x):
    try:
        raise 3
    except TypeError as error:
        return str(error), x


@case(one)
def implicit_chain_of_three(x):
    try:
        try:
            try:
                raise KeyError(1)
            except KeyError:
                raise ValueError(2)
        except ValueError:
            [][3]
    except IndexError as error:
        return repr(error.__context__), repr(error.__context__.__context__), x


@case(one)
def context_ends_with_handler(x):
    try:
        raise KeyError(1)
    except KeyError:
        pass
    try:
        raise ValueError(2)
    except ValueError as error:
        return error.__context__, x


@case(one)
def bare_reraise_keeps_identity(x):
    first = None
    try:
        try:
            raise Problem(5, extra=x)
        except Problem as error:
            first = error
            raise
    except Problem as error:
        return error is first, error.extra + 1, error.code


@case(one)
def reraise_after_inner_handler(x):
    try:
        try:
            raise KeyError("outer")
        except KeyError:
            try:
                raise ValueError("inner")
            except ValueError:
                pass
            raise
    except KeyError as error:
        return repr(error), repr(error.__context__), x


@case(one)
def reraise_without_exception(x):
    try:
        raise
    except RuntimeError as error:
        return str(error), x


@case(one)
def uncaught_with_cause(x):
    y = x + 1
    try:
        raise KeyError("cause")
    except KeyError as error:
        raise Problem(3, y=y) from error


@case(one)
def uncaught_in_finally(x):
    try:
        raise KeyError("lost")
    finally:
        raise ValueError("kept")


@case(one)
def exception_group_class_match(x):
    out = []
    for error in (KeyError("k"), ValueError("v"), ZeroDivisionError("z"), OSError(2, "no file")):
        try:
            raise error
        except (KeyError, ValueError) as caught:
            out.append(("first", repr(caught)))
        except ArithmeticError as caught:
            out.append(("second", repr(caught)))
        except Exception as caught:
            out.append(("third", str(caught), caught.errno, caught.strerror))
    return out, x


@case(one)
def except_not_a_class(x):
    try:
        try:
            raise KeyError("k")
        except 3:
            pass
    except TypeError as error:
        return str(error), x


@case(one)
def add_note(x):
    try:
        try:
            raise ValueError("v")
        except ValueError as error:
            error.add_note("a note")
            error.add_note("another")
            raise
    except ValueError as error:
        return error.__notes__, x


@case(one)
def add_note_uncaught(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        error.add_note("a note")
        raise


@case(one)
def with_traceback(x):
    error = ValueError("v")
    before = error.__traceback__
    try:
        raise error.with_traceback(None)
    except ValueError as caught:
        return before is None, caught.__traceback__ is not None, caught is error, x


@case(one)
def exc_info(x):
    before = sys.exc_info()
    try:
        raise ValueError("v")
    except ValueError as error:
        inside = sys.exc_info()
        same = inside[1] is error, inside[0].__name__, sys.exception() is error
    return before, same, sys.exc_info(), x


@case(one)
def format_exception(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        return traceback.format_exception_only(type(error), error), x + 1


@case(one)
def exception_stored_and_raised_later(x):
    kept = []
    try:
        raise Problem(1)
    except Problem as error:
        kept.append(error)
    try:
        raise kept[0]
    except Problem as error:
        return error is kept[0], error.code, x


@case(one)
def exception_returned(x):
    try:
        raise Problem(9, t=x)
    except Problem as error:
        return error


@case(one)
def exception_with_context_returned(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise Problem(9, t=x)
    except Problem as error:
        return error, repr(error.__context__)


@case(one)
def attribute_and_name_errors(x):
    out = []
    try:
        x.nothing
    except AttributeError as error:
        out += [error.name, error.obj is x]
    try:
        undefined_thing
    except NameError as error:
        out.append(error.name)
    try:
        {}["k"]
    except KeyError as error:
        out.append(error.args)
    try:
        import no_such_module_anywhere  # noqa: F401
    except ImportError as error:
        out.append(error.name)
    return out, x


def sizes(a, b):
    return lambda: (torch.randn(4, a), torch.randn(b, 3))


@case(sizes(2, 2), sizes(3, 3), sizes(4, 5), sizes(6, 6), sizes(5, 4), sizes(7, 7))
def caught_error_of_sizes(x, y):
    """What raised for some sizes must not be taken for others."""
    try:
        return x @ y
    except RuntimeError:
        return "mismatch"


@case(sizes(2, 2), sizes(3, 3), sizes(4, 5), sizes(6, 6), sizes(5, 4), sizes(7, 7))
def caught_error_of_size_arithmetic(x, y):
    try:
        return x.view(-1, 8) + x.shape[1] // (y.shape[0] - 5)
    except (RuntimeError, ZeroDivisionError) as error:
        return type(error).__name__


@case(*(lambda n=n: (torch.randn(n),) for n in (3, 4, 5, 6, 9, 2)))
def caught_error_of_an_index(x):
    try:
        return x[5], x[x.shape[0] - 6]
    except IndexError:
        return "outside"


@case(one)
def stop_iteration_value(x):
    try:
        raise StopIteration(x)
    except StopIteration as error:
        return error.value + 1


@case(one)
def system_exit_and_keyboard_interrupt(x):
    out = []
    for error in (SystemExit(3), KeyboardInterrupt()):
        try:
            raise error
        except BaseException as caught:
            out.append((type(caught).__name__, caught.args))
    return out, x


# -- finally ---------------------------------------------------------------------------------------------------


@case(one)
def finally_return_swallows(x):
    def inner():
        try:
            raise ValueError("gone")
        finally:
            return x + 1

    return inner()


@case(one)
def finally_break_and_continue(x):
    log = []
    for i in range(4):
        try:
            if i == 1:
                raise ValueError("gone")
            log.append(i)
        finally:
            if i == 1:
                continue
            if i == 3:
                break
    return log, x


@case(one)
def finally_overrides_return(x):
    def inner():
        for i in range(3):
            try:
                return "try", i
            finally:
                if i < 1:
                    continue
                log.append(i)

    log = []
    return inner(), log, x


@case(one)
def nested_finally_order(x):
    log = []
    try:
        try:
            log.append(1)
            raise KeyError("k")
        finally:
            log.append(2)
            try:
                log.append(3)
                raise ValueError("v")
            except ValueError:
                log.append(4)
            finally:
                log.append(5)
    except KeyError as error:
        log.append(repr(error.__context__))
    else:
        log.append("else")
    finally:
        log.append(6)
    return log, x


@case(one)
def try_else_finally(x):
    log = []
    for n in (0, 1):
        try:
            log.append(1 // n)
        except ZeroDivisionError:
            log.append("except")
        else:
            log.append("else")
        finally:
            log.append("finally")
    return log, x


# -- groups ----------------------------------------------------------------------------------------------------


@case(one)
def group_split(x):
    log = []
    try:
        raise ExceptionGroup("many", [ValueError(1), KeyError(2), ExceptionGroup("in", [ValueError(3)])])
    except* ValueError as group:
        log.append((type(group).__name__, group.message, repr(group.exceptions)))
    except* KeyError as group:
        log.append(repr(group.exceptions))
    return log, x + 1


@case(one)
def group_left_over(x):
    try:
        try:
            raise ExceptionGroup("many", [ValueError(1), KeyError(2)])
        except* ValueError:
            y = x + 1
    except ExceptionGroup as rest:
        return repr(rest), y


@case(one)
def group_of_plain_exception(x):
    log = []
    try:
        raise ValueError("alone")
    except* ValueError as group:
        log.append(repr(group))
    return log, x


@case(one)
def group_methods(x):
    group = ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [KeyError(2)])])
    matched, rest = group.split(ValueError)
    return repr(matched), repr(rest), repr(group.subgroup(KeyError)), str(group), x


@case(one)
def group_without_exception(x):
    try:
        y = x + 1
    except* ValueError:
        y = x
    return y


@case(one)
def group_uncaught(x):
    try:
        raise ExceptionGroup("many", [ValueError(1), KeyError(2)])
    except* ValueError:
        pass


# -- managers --------------------------------------------------------------------------------------------------


class Swallow:
    def __init__(self, *kinds):
        self.kinds = kinds
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, tb):
        self.seen.append((kind and kind.__name__, repr(value)))
        return kind is not None and issubclass(kind, self.kinds)


class Failing:
    def __init__(self, where):
        self.where = where

    def __enter__(self):
        if self.where == "enter":
            raise KeyError("enter")
        return self

    def __exit__(self, *info):
        if self.where == "exit":
            raise KeyError("exit")
        return False


@case(one)
def swallowing(x):
    with Swallow(ValueError) as a:
        x = x + 1
        raise ValueError("v")
    with Swallow(KeyError) as b, contextlib.suppress(IndexError):
        [][0]
    return x, a.seen, b.seen


@case(one)
def failing_managers(x):
    out = []
    for where in ("enter", "exit"):
        with Swallow(KeyError) as s, Failing(where):
            raise ValueError("body")
        out.append(s.seen)
    return out, x


@case(one)
def exit_exception_context(x):
    try:
        with Failing("exit"):
            raise ValueError("body")
    except KeyError as error:
        return repr(error.__context__), x


@case(one)
def exit_stack_features(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
        a = stack.enter_context(Swallow(ValueError))
        stack.push(lambda *info: log.append(info[0] and info[0].__name__))
        raise ValueError("v")
    return log, a.seen, x


@case(one)
def contextlib_decorator(x):
    log = []

    @contextlib.contextmanager
    def noted():
        log.append("in")
        yield
        log.append("out")

    @noted()
    def work(t):
        return t + 1

    return work(work(x)), log


@case(one)
def redirect_and_closing(x):
    class Thing:
        closed = False

        def close(self):
            self.closed = True

    thing = Thing()
    with contextlib.closing(thing) as t, contextlib.nullcontext(3) as n:
        y = x * n
    return y, t.closed


# -- breaks among them -----------------------------------------------------------------------------------------


@case(one)
def break_in_try_of_nested_callee(x):
    log = []

    def inner(t):
        try:
            t = t + 1
            graph_break()
            raise Problem(2)
        finally:
            log.append("inner finally")

    def outer(t):
        with Swallow(KeyError) as s:
            try:
                return inner(t)
            finally:
                log.append(s.seen)

    try:
        outer(x)
    except Problem as error:
        return x * error.code, log


@case(one)
def break_in_handler_sees_exception(x):
    try:
        raise Problem(4)
    except Problem as error:
        y = x + error.code
        graph_break()
        z = sys.exc_info()[1] is error
        return y, z, repr(error.__context__)


@case(one)
def break_in_handler_then_reraise(x):
    try:
        try:
            raise Problem(4)
        except Problem:
            graph_break()
            raise
    except Problem as error:
        return x * error.code


@case(one)
def break_in_finally_while_raising(x):
    log = []
    try:
        try:
            raise Problem(1)
        finally:
            y = x + 1
            graph_break()
            log.append(y)
    except Problem:
        graph_break()
        return log


@case(one)
def break_in_enter_and_exit(x):
    class Breaking:
        def __enter__(self):
            graph_break()
            return x + 1

        def __exit__(self, *info):
            graph_break()
            return True

    with Breaking() as y:
        z = y * 2
        raise ValueError("swallowed")
    return z + 1


@case(one)
def break_in_with_in_loop_with_continue(x):
    log = []
    for i in range(3):
        with Swallow(ValueError) as s:
            x = x + i
            graph_break()
            if i == 1:
                continue
            if i == 2:
                raise ValueError(i)
        log.append(s.seen)
    return x, log


@case(one)
def break_in_except_star(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError:
        y = x + 1
        graph_break()
    except* KeyError:
        y = y * 2
    return y


@case(one)
def uncaught_after_break(x):
    y = x + 1
    graph_break()
    z = y * 2
    raise Problem(float(z.sum() * 0))


@case(one)
def uncaught_in_callee_after_break(x):
    def inner(t):
        graph_break()
        raise Problem(3)

    def outer(t):
        return inner(t + 1) * 2

    return outer(x)


test_all = make_test(__name__)


# -- tracebacks ------------------------------------------------------------------------------------------------


def _frames(fn: Any, *args: Any) -> list[tuple[str, int | None]]:
    try:
        fn(*args)
    except Exception as error:
        found = traceback.extract_tb(error.__traceback__)
        return [(f.name, f.lineno) for f in found if f.filename == __file__ or f.filename.endswith("resume.py")][1:]
    raise AssertionError("nothing was raised")


def raises_at_top(x):
    y = x + 1
    raise Problem(y.shape[0])


def raises_in_callee(x):
    return helper(x + 1)


def helper(t):
    t = t * 2
    raise Problem(1)


def raises_after_break(x):
    y = x + 1
    graph_break()
    y = y * 2
    graph_break()
    raise Problem(y.shape[0])


def raises_what_was_caught(x):
    kept = None
    try:
        helper(x + 1)
    except Problem as e:
        kept = e
    x = x * 2
    raise kept


def test_tracebacks_show_each_frame_once() -> None:
    for fn in (raises_at_top, raises_in_callee, raises_after_break, raises_what_was_caught):
        wanted = _frames(fn, torch.ones(3))
        compiled = jit(fn, backend="eager")
        for _ in range(2):
            assert _frames(compiled, torch.ones(3)) == wanted


def adds_to_a_tensor_without_data(x):
    made = torch.ones(2, device="meta")
    try:
        made + x
    except RuntimeError:
        return x * 2
    return x


def test_an_unused_result_of_tensors_on_two_devices_raises() -> None:
    x = torch.ones(2)
    compiled = jit(adds_to_a_tensor_without_data)
    for _ in range(2):
        assert torch.equal(compiled(x), adds_to_a_tensor_without_data(x))
