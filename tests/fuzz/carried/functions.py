"""Functions, closures, patterns, loops."""

import contextvars
import functools
import inspect
import logging
import sys
import threading
import types
import warnings

from .shared import AsDecorator, pause


def twice_called(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        pause()
        return fn(*args, **kwargs)
    return wrapper


def with_option(option):
    def decorate(fn):
        def wrapper(v):
            return fn(v) if option else None
        return wrapper
    return decorate


def in_an_order(v):
    return (pause(), v, pause())[1]


def by_keyword(v):
    def inner(a, /, b=2, *rest, k, **named):
        pause()
        return named["v"] if k else a
    return inner(*(1, 2), *[3], **{"k": 1, "v": v})


def by_star(v):
    first, *_, last = [0, *(1, 2), v]
    pause()
    return last


def by_nonlocal(v):
    got = None

    def inner():
        nonlocal got
        pause()
        got = v
    inner()
    return got


def by_late_cell(v):
    get = lambda: made
    made = 1
    pause()
    made = v
    return get()


def by_loop_closures(v):
    made = [lambda k=k: (k, v)[1] for k in range(3)]
    pause()
    return [f() for f in made][2]


def by_default(v):
    def inner(a=v, *, b=v):
        pause()
        return b
    inner.__defaults__ = (1,)
    return inner()


def by_kwdefaults(v):
    def inner(*, b=1):
        return b
    inner.__kwdefaults__ = {"b": v}
    pause()
    return inner()


def by_function_attribute(v):
    def inner():
        return inner.kept
    inner.kept = v
    pause()
    return inner()


def by_walrus(v):
    if (got := v) is v and [last := k for k in range(2)]:
        pause()
    return (got, last)[0]


def by_del(v):
    kept, v = v, None
    del v
    pause()
    try:
        return v
    except UnboundLocalError:
        return kept


def by_recursion(v, n=3):
    if n == 0:
        pause()
        return v
    return by_recursion(v, n - 1)


def by_mutual(v):
    def even(n):
        return v if n == 0 else odd(n - 1)

    def odd(n):
        pause()
        return even(n - 1)
    return even(4)


def by_match_mapping(v):
    match {"k": {"v": v}, "n": 1}:
        case {"k": {"v": got}, **rest} if len(rest) == 1:
            pause()
            return got


def by_match_sequence(v):
    match [1, (2, v), 3]:
        case [1 | 4, (int(), got) as pair, *rest]:
            pause()
            return pair[1]


def by_partial(v):
    return functools.partial(by_star_of, 1, v=v)()


def by_star_of(*args, v, **named):
    pause()
    return v


def by_reduce(v):
    return functools.reduce(lambda a, b: (pause(), b)[1], [1, 2, v])


def by_lru_cache(v):
    @functools.lru_cache(maxsize=None)
    def inner(k):
        pause()
        return v
    return (inner(1), inner(1))[1]


def by_wraps(v):
    @twice_called
    @with_option(True)
    @AsDecorator
    def inner(v):
        return v
    return inner(v)


def by_bound(v):
    return types.MethodType(lambda self, k: (pause(), self)[1], v)(2)


def by_context_variable(v):
    variable = contextvars.ContextVar("variable", default=None)
    token = variable.set(v)
    pause()
    got = variable.get()
    variable.reset(token)
    return got


def by_eval(v):
    return eval("v")


def by_locals(v):
    pause()
    return locals()["v"]


def by_signature(v):
    bound = inspect.signature(by_star_of).bind(1, v=v)
    return bound.kwargs["v"]


def by_comprehensions(v):
    return {k: [v for _ in range(2) if (pause(), True)[1]] for k in {1, 2}}[2][1]


def by_while_else(v):
    k = 0
    while k < 2:
        k += 1
        if k > 5:
            break
        pause()
    else:
        return v


def by_nested_loops(v):
    for a in range(3):
        for b in range(3):
            if a * b == 2:
                pause()
                break
        else:
            continue
        return (a, b, v)[2]


def by_threads(v):
    got = []
    thread = threading.Thread(target=lambda: got.append(v))
    thread.start()
    thread.join()
    return got[0]


def by_frame(v):
    def peek():
        frame = sys._getframe(1)
        return frame.f_locals["kept"] if frame.f_code.co_name == "by_frame" else None
    kept = v
    pause()
    return peek()


def by_changed_kwdefaults(v):
    def inner(*, b=1):
        return b
    inner.__kwdefaults__["b"] = v
    pause()
    return inner()


def by_warning(v):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pause()
        warnings.warn("here", stacklevel=2)
    shared.append(caught[0].lineno)
    return v


def by_log_record(v):
    records = []

    class Keeps(logging.Handler):
        def emit(self, record):
            records.append((record.funcName, v))
    logger = logging.Logger("made")
    logger.addHandler(Keeps())
    pause()
    logger.warning("message")
    return records[0][1] if records[0][0] == "by_log_record" else None


def by_exec(v):
    space = {"v": v, "pause": pause}
    exec("pause()\ngot = v", space)
    return space["got"]


def by_class_locals(v):
    class Local:
        locals()["kept"] = v
        pause()
    return Local.kept


def by_refused_print(v):
    try:
        print(v is None, end=3)
    except TypeError:
        pause()
        return v


def by_yield_in_finally(v):
    def inner():
        try:
            yield 1
        finally:
            pause()
            yield v
    made = inner()
    next(made)
    return next(made)


def by_return_in_loop_finally(v):
    for k in range(3):
        try:
            if k == 1:
                return v
        finally:
            pause()


def by_break_in_finally(v):
    while True:
        try:
            raise KeyError(1)
        finally:
            pause()
            break
    return v


def by_nested_functions_with_defaults(v, seen=()):
    def outer(a, *, b=v):
        def middle(c=b):
            def inner(d=c):
                pause()
                return d
            return inner
        return middle()
    return outer(1)()


def by_global_name(v):
    globals()["carried_value"] = v
    pause()
    try:
        return carried_value
    finally:
        del globals()["carried_value"]


def by_attribute_of_function(v):
    same.kept = v
    pause()
    got = same.kept
    del same.kept
    return got


def by_chained_comparison(v):
    seen = []

    def at(n):
        seen.append(v)
        pause()
        return n
    return seen[-1] if at(1) < at(2) > at(1) else None


def by_conditional_chain(v):
    return (None or v if pause() is None else 0) if v is not None else 0
