"""Ways on which exceptions and generators leave: groups, chains, context managers, what is closed when."""

# ruff: noqa: E741, F821, F524, F525, F841
from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import itertools
import math
import operator
import sys
import traceback
import types

import torch

from jitpy import graph_break
from tests.semantics.harness import case, make_test

nothing, three, letters, numbers, pair = None, 3, "a", [1], (1, 2)


def vec(n=4):
    return torch.arange(1.0, 1 + n)


def one():
    return (vec(),)


class E1(Exception):
    def __init__(self, code, *, extra=None):
        super().__init__(f"code {code}")
        self.code = code
        self.extra = extra


@case(one)
def groups(x):
    r = []
    try:
        try:
            raise ExceptionGroup(
                "eg", [ValueError(1), TypeError("t"), ExceptionGroup("in", [KeyError("k"), ValueError(2)])]
            )
        except* ValueError as g:
            r.append((g.message, [str(e) for e in g.exceptions], type(g).__name__))
        except* KeyError as g:
            r.append(len(g.exceptions))
    except ExceptionGroup as rest:
        r.append((rest.message, [type(e).__name__ for e in rest.exceptions]))
    return x + 1, r


@case(one)
def star_plain(x):
    r = []
    try:
        raise ValueError("v")
    except* ValueError as g:
        r.append((type(g).__name__, g.message, g.exceptions[0].args))
    try:
        try:
            raise KeyError("k")
        except* ValueError:
            pass
    except Exception as e:
        r.append((type(e).__name__, str(e)))
    return x + 1, r


@case(one)
def star_raise_in_handler(x):
    r = []
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1), TypeError(2)])
        except* ValueError:
            raise RuntimeError("n")
        except* TypeError:
            raise
    except BaseException as g:
        r.append((type(g).__name__, str(g), [(type(e).__name__, str(e)) for e in getattr(g, "exceptions", ())]))
    return x, r


@case(one)
def star_leaves(x):
    y = x * 2
    try:
        raise ExceptionGroup("a", [ValueError(1), TypeError(2)])
    except* ValueError:
        y = y + 1
    return y


@case(one)
def group_methods(x):
    g = ExceptionGroup("a", [ValueError(1), ExceptionGroup("b", [TypeError(2), ValueError(3)])])
    a, b = g.split(ValueError)
    c = g.subgroup(lambda e: isinstance(e, TypeError))
    d = g.derive([KeyError(1)])
    return x, str(a), str(b), [str(e) for e in a.exceptions], repr(c), d.message, repr(d)


@case(one, factory=True)
def chain_explicit():
    kept = []

    def fn(x):
        try:
            try:
                {}["a"]
            except KeyError as e:
                raise E1(5, extra=x) from e
        except E1 as e:
            kept.append(e)
            r = [type(e.__cause__).__name__, e.__suppress_context__, e.__context__ is e.__cause__, e.code, e.args]
            e.add_note("hello")
            r.append(e.__notes__)
        try:
            try:
                raise ValueError(1)
            except ValueError:
                raise TypeError(2) from None
        except TypeError as e:
            r += [e.__cause__, type(e.__context__).__name__, e.__suppress_context__]
        try:
            try:
                raise ValueError(1)
            finally:
                raise TypeError(2)
        except TypeError as e:
            r += [e.__cause__, type(e.__context__).__name__, e.__suppress_context__]
        return x, r

    return fn, kept


@case(one)
def exc_info(x):
    r = [sys.exc_info()]
    try:
        raise ValueError(3)
    except ValueError as e:
        t, v, tb = sys.exc_info()
        r += [t, v is e, tb is e.__traceback__, sys.exc_info()[1] is e]
        try:
            raise KeyError(1)
        except KeyError:
            r.append(sys.exc_info()[0])
        r.append(sys.exc_info()[0])
    r.append(sys.exc_info()[0])
    return x, r


@case(one)
def exception_311(x):
    try:
        raise ValueError(3)
    except ValueError as e:
        r = sys.exception() is e
    return x, r, sys.exception()


@case(one)
def name_deleted_after_except(x):
    e = 5
    try:
        raise ValueError(1)
    except ValueError:
        pass
    try:
        return e
    except UnboundLocalError as u:
        return x, str(u)


@case(one)
def traceback_attr(x):
    try:
        raise ValueError(3)
    except ValueError as e:
        tb = e.__traceback__
        ln = tb.tb_lineno - tb.tb_frame.f_code.co_firstlineno
        e2 = e.with_traceback(None)
        return x, ln, e2 is e, e.__traceback__


@case(one)
def format_exc(x):
    try:
        raise ValueError("text")
    except ValueError:
        s = traceback.format_exc()
    return x, s.splitlines()[-1], traceback.format_exception_only(ValueError(2))


@case(one)
def finally_return(x):
    def f():
        try:
            raise ValueError
        finally:
            return 1

    def g():
        for i in range(3):
            try:
                raise ValueError
            finally:
                if i < 2:
                    continue
                break
        return i

    def h():
        try:
            return x * 2
        finally:
            r.append("fin")

    r = []
    return f(), g(), h(), r


@case(one, factory=True)
def raise_effects_order():
    s = {"l": [], "d": {}}

    def fn(x):
        s["l"].append(1)
        s["d"]["a"] = x + 1
        x.add_(1)
        try:
            s["l"].append(2)
            raise E1(len(s["l"]))
        finally:
            s["l"].append(3)
            s["d"]["b"] = x * 2

    return fn, s


@case(one, factory=True)
def raise_effects_with_break():
    s = {"l": [], "d": {}}

    def fn(x):
        s["l"].append(1)
        s["d"]["a"] = x + 1
        graph_break()
        x.add_(1)
        try:
            s["l"].append(2)
            graph_break()
            raise E1(len(s["l"]))
        except KeyError:
            pass
        finally:
            s["l"].append(3)
            s["d"]["b"] = x * 2
            graph_break()
            s["l"].append(4)

    return fn, s


class Swallow:
    def __init__(s, log, *k):
        s.log = log
        s.k = k

    def __enter__(s):
        s.log.append("in")
        return s

    def __exit__(s, t, v, tb):
        s.log.append((t and t.__name__, str(v), tb is not None))
        return t is not None and issubclass(t, s.k)


@case(one, factory=True)
def swallowing():
    log = []

    def fn(x):
        with Swallow(log, ValueError):
            raise ValueError("a")
            log.append("no")
        with Swallow(log), Swallow(log, ValueError) as q:
            x = x + 1
            graph_break()
            int("z")
        try:
            with Swallow(log, KeyError):
                raise ValueError("b")
        except ValueError as e:
            log.append(("out", str(e)))
        for i in range(4):
            with Swallow(log, ValueError):
                if i == 1:
                    continue
                if i == 3:
                    break
                raise ValueError(i)
        return x, i

    return fn, log


@case(one, factory=True)
def exitstack():
    log = []

    def fn(x):
        with contextlib.ExitStack() as st:
            a = st.enter_context(Swallow(log, ValueError))
            st.callback(log.append, "cb")
            st.push(lambda *e: log.append(("push", e[0])))
            st.push(Swallow(log))
            raise ValueError("q")
        with contextlib.ExitStack() as st:
            st.callback(lambda: log.append("never?"))
            kept = st.pop_all()
        log.append("after")
        kept.close()
        with contextlib.suppress(KeyError, IndexError):
            [][1]
        with contextlib.nullcontext(5) as n:
            x = x + n
        with contextlib.closing(types.SimpleNamespace(close=lambda: log.append("closed"))) as c:
            pass
        return x

    return fn, log


@case(one, factory=True)
def ctxgen():
    log = []

    @contextlib.contextmanager
    def cm(k):
        log.append("enter")
        try:
            yield k
        except ValueError as e:
            log.append(str(e))
        except KeyError:
            raise RuntimeError("conv") from None
        finally:
            log.append("exit")

    @cm(1)
    def deco(a):
        return a + 1

    def fn(x):
        with cm(3) as k:
            x = x + k
            raise ValueError("inner")
        try:
            with cm(4):
                {}[1]
        except RuntimeError as e:
            log.append((str(e), e.__suppress_context__))
        try:
            with cm(4):
                raise IndexError(9)
        except IndexError as e:
            log.append(str(e))
        return deco(x)

    return fn, log


@case(one)
def ctxgen_bad(x):
    @contextlib.contextmanager
    def two():
        yield 1
        yield 2

    @contextlib.contextmanager
    def zero():
        if False:
            yield

    @contextlib.contextmanager
    def stop():
        yield

    r = []
    for c in (two, zero):
        try:
            with c():
                pass
        except RuntimeError as e:
            r.append(str(e))
    try:
        with two():
            raise ValueError(3)
    except Exception as e:
        r.append((type(e).__name__, str(e)))
    try:
        with stop():
            raise StopIteration(3)
    except Exception as e:
        r.append((type(e).__name__, str(e)))
    try:
        with 5:
            pass
    except Exception as e:
        r.append((type(e).__name__, str(e)))
    return x, r


class CD(contextlib.ContextDecorator):
    def __init__(s, l):
        s.l = l

    def __enter__(s):
        s.l.append("e")

    def __exit__(s, *a):
        s.l.append(len(a))


@case(one, factory=True)
def ctxdeco():
    l = []

    @CD(l)
    def g(x):
        return x * 2

    def fn(x):
        return g(x) + g(x)

    return fn, l


@case(one, factory=True)
def gen_escape():
    kept = []

    def gen(x, log):
        try:
            for i in range(5):
                log.append(i)
                got = yield x * i
                if got:
                    log.append(got)
        except GeneratorExit:
            log.append("closed")
            raise
        finally:
            log.append("fin")

    def fn(x):
        log = []
        g = gen(x, log)
        a = next(g)
        b = g.send("s")
        kept.append((g, log))
        return a + b, g

    return fn, kept


@case(one, factory=True)
def gen_close_order():
    log = []

    def gen():
        try:
            yield 1
            yield 2
        finally:
            log.append("fin")

    def fn(x):
        g = gen()
        next(g)
        log.append("before")
        g.close()
        log.append("after")
        h = gen()
        next(h)
        log.append("b2")
        del h
        log.append("a2")
        for v in gen():
            log.append(v)
            break
        log.append("loop left")

        def inner():
            k = gen()
            next(k)
            log.append("in")

        inner()
        log.append("end")
        return x + 1

    return fn, log


@case(one)
def gen_protocol(x):
    r = []

    def gen():
        try:
            a = yield 1
            r.append(a)
            try:
                yield 2
            except ValueError as e:
                r.append(("caught", str(e)))
                yield "after"
        finally:
            r.append("f")
        return "ret"

    g = gen()
    try:
        g.send(3)
    except TypeError as e:
        r.append(str(e))
    r.append(next(g))
    r.append(g.send("A"))
    r.append(g.throw(ValueError("q")))
    try:
        next(g)
    except StopIteration as s:
        r.append(s.value)
    r.append(next(g, "default"))

    def outer():
        v = yield from gen()
        r.append(v)
        yield from [1, 2]
        return (yield from iter("ab"))

    o = outer()
    r.append(list(o))

    def bad():
        yield 1
        raise StopIteration

    try:
        list(bad())
    except RuntimeError as e:
        r.append((str(e), type(e.__cause__).__name__))
    g2 = gen()
    next(g2)
    r.append(inspect.getgeneratorstate(g2))
    r.append(g2.gi_running)
    try:
        g2.throw(KeyError("z"))
    except KeyError as e:
        r.append(str(e))

    def reent():
        nonlocal it
        yield 1
        try:
            next(it)
        except ValueError as e:
            r.append(str(e))
        yield 2

    it = reent()
    r.append(list(it))

    def ignoring():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    i = ignoring()
    next(i)
    try:
        i.close()
    except RuntimeError as e:
        r.append(str(e))
    return x, r


@case(one, factory=True)
def gen_input_part():
    def src():
        i = 0
        while True:
            i += 1
            yield i

    g = src()

    def fn(x):
        a = next(g)
        b = [next(g) for _ in range(2)]
        c = list(itertools.islice(g, 2))
        for v in g:
            if v % 3 == 0:
                break
        return x * a, b, c, v

    return fn, None


@case(one, factory=True)
def input_iterators():
    l = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    w = types.SimpleNamespace(
        it=iter(l),
        en=enumerate(l),
        z=zip(l, l),
        m=map(str, l),
        d=iter({i: i for i in range(40)}),
        c=itertools.count(),
        cy=itertools.cycle("ab"),
    )

    def fn(x):
        r = [
            next(w.it, None),
            next(w.en, None),
            next(w.z, None),
            next(w.m, None),
            next(w.d),
            next(w.c),
            next(w.cy),
            list(itertools.islice(w.c, 2)),
        ]
        return x + 1, r

    return fn, l


async def co(x):
    return x + 1


@case(one)
def async_run(x):
    async def main():
        a = await co(x)
        async with actx() as q:
            a = a + q
        async for i in agen():
            a = a * i
        return a

    @contextlib.asynccontextmanager
    async def actx():
        yield 3

    async def agen():
        yield 1
        yield 2

    return asyncio.run(main())


@case(one)
def coroutine_by_hand(x):
    c = co(x)
    try:
        c.send(None)
    except StopIteration as s:
        return s.value


@case(one)
def assert_msgs(x):
    r = []
    for f in (
        lambda: int("q"),
        lambda: [][0],
        lambda: {}["k"],
        lambda: 1 / 0,
        lambda: None.a,
        lambda: "a" + 1,
        lambda: (1).foo,
        lambda: x.nope,
        lambda: undefined_name,
        lambda: len(3),
        lambda: x[9],
        lambda: f(1),
        lambda: int(),
        lambda: [1].index(2),
        lambda: "a".index("b"),
        lambda: [].pop(),
        lambda: {}.pop("a"),
        lambda: set().pop(),
        lambda: (1, 2).index(3),
        lambda: next(iter([])),
        lambda: float("x"),
        lambda: chr(-1),
        lambda: [1, 2].remove(5),
        lambda: math.sqrt(-1),
        lambda: 2.0**5000,
        lambda: int(float("inf")),
        lambda: int(float("nan")),
        lambda: "%d" % "a",
        lambda: "{0}".format(),
        lambda: range(0, 1, 0),
        lambda: [3, "a"].sort(),
        lambda: max([]),
        lambda: sum(["a"]),
        lambda: collections.deque().pop(),
        lambda: isinstance(1, 2),
        lambda: getattr(1, 2),
        lambda: type("A", (int, str), {}),
        lambda: super().x,
        lambda: 1 << -1,
        lambda: math.factorial(-1),
        lambda: b"a" + "a",
        lambda: [1] * "a",
        lambda: (lambda a: a)(),
        lambda: (lambda a: a)(1, 2),
        lambda: (lambda a, /: a)(a=1),
        lambda: (lambda *, k: k)(),
        lambda: dict([1]),
        lambda: zip([1], [1, 2], strict=True).__next__() and list(zip([1], [1, 2], strict=True)),
        lambda: x.view(3),
        lambda: torch.cat([]),
        lambda: x @ vec(3),
        lambda: abs("a"),
        lambda: round("a"),
        lambda: divmod(1, 0),
        lambda: 5 % 0,
        lambda: 5.0 // 0,
        lambda: pow(2, -1, 4),
        lambda: int("12", 1),
        lambda: hash([]),
        lambda: {[]: 1},
        lambda: {1: 2}[[]],
        lambda: object() < object(),
        lambda: -"a",
        lambda: ~1.5,
        lambda: [*5],
        lambda: {**5},
        lambda: "a".join([1]),
        lambda: bytes([300]),
        lambda: iter(5),
        lambda: reversed({1}),
        lambda: slice(1)(),
        lambda: nothing(),
        lambda: three(),
        lambda: letters[1.0],
        lambda: numbers["a"],
        lambda: pair[None],
        lambda: setattr(object(), "a", 1),
        lambda: delattr(types.SimpleNamespace(), "z"),
        lambda: operator.attrgetter("a.b")(1),
    ):
        try:
            r.append(f())
        except Exception as e:
            r.append((type(e).__name__, str(e), e.args if not isinstance(e, RuntimeError) else 0))
    return x, r


@case(*(lambda v=v: (vec(), v) for v in (0.5, 1.5, -2.5, 3.5, 1e9)), rounds=5)
def line_of_a_call_that_fails_often(x, v):
    # CPython 3.11 makes such calls in the instruction in front of CALL, once they are worth it
    y = x + 1

    return y, format(v, "d")


class Undecided:
    def __bool__(self):
        graph_break()
        raise ValueError("undecided")


@case(lambda: (vec(), Undecided()), rounds=5)
def line_of_a_truth_value_that_fails(x, v):
    y = x + 1

    return y if v else x


@case(one)
def group_of_what_is_no_sequence(x):
    said = []
    for parts in (ValueError(1), {ValueError(1)}, iter([ValueError(1)]), [], [3], (ValueError(1),)):
        try:
            said.append(ExceptionGroup("g", parts).message)
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return x + 1, said


@case(lambda: (torch.ones(2),))
def chains_of_wrong_arguments(x):
    messages = []
    for args, kwargs in (((), {}), (([], []), {}), ((), {"iterable": []}), ((5,), {})):
        try:
            list(itertools.chain.from_iterable(*args, **kwargs))
        except TypeError as error:
            messages.append(str(error))
    return x + 1, messages


test_all = make_test(__name__)
