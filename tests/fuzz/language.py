"""Statements of several lines about the language: functions, generators, iterators, classes, patterns, groups."""

from __future__ import annotations

from collections.abc import Callable

from .drawing import indented
from .writes import Writes


class Language(Writes):
    """Each method draws statements that belong together; blocks inside them come from `Program`."""

    block: Callable[..., list[str]]
    inner: Callable[..., list[str]]

    def function(self, scope: dict[str, str], depth: int) -> list[str]:
        """A nested function: reads and rebinds variables around it, and is called."""
        name, p, q = self.name("g"), self.name("p"), self.name("q")
        bound = self.assignable(scope, "I") or self.assignable(scope, "T")
        outer, loops, self.loops = self.own, self.loops, max(self.loops, 1)
        inside = {**scope, p: "T", q: "I"}
        self.own = {p, q} | ({bound} if bound else set())
        body = [f"nonlocal {bound}"] if bound else []
        self.functions += 1
        in_loop, self.in_loop = self.in_loop, False
        body += self.block(inside, depth + 1, self.draw(1, 3))
        self.functions, self.in_loop = self.functions - 1, in_loop
        body += [f"return {self.expr(inside, 'T')}"]
        self.own, self.loops = outer, loops
        call = self.call(name, self.expr(scope, "T", 1), self.expr(scope, "I", 1), f"{p}=", f"{q}=")
        result = self.name("t")
        scope[result] = "T"
        self.own.add(result)
        return [f"def {name}({p}, {q}=1):", *indented(body), f"{result} = {call}"]

    def call(self, name: str, t: str, i: str, first: str = "", second: str = "") -> str:
        """A call of a function of a tensor and an int, whose parameters' names are given, by one of many ways."""
        return str(self.one([
            f"{name}({t}, {i})", f"{name}({t}, {i})", f"{name}({second}{i}, {first}{t})", f"{name}({t})",
            f"functools.partial({name}, {t})({i})", f"list(map({name}, [{t}], [{i}]))[0]",
            f"(lambda *a, **k: {name}(*a, **k))({t}, {second}{i})", f"[{name}({t}, k) for k in range(2)][-1]",
            f"next({name}({t}, k) for k in (0, 1))",
            f"functools.reduce({name}, [1, {i}], {t})",
            f"list(itertools.starmap({name}, [({t}, {i})]))[0]", f"types.MethodType({name}, {t})({i})",
            f"functools.lru_cache({name})({t}, {i})", f"jitpy.disable({name})({t}, {i})",
            f"jitpy.jit({name})({t}, {i})",
            f"torch.no_grad()({name})({t}, {i})", f"operator.call({name}, {t}, {i})", f"copy.copy({name})({t}, {i})",
            f"torch.utils.checkpoint.checkpoint({name}, {t}, {i}, use_reentrant=False)",
            f"type('Local', (), {{'run': staticmethod({name})}})().run({t}, {i})", f"halving({name})({t}, {i})",
            f"contextlib.ExitStack().callback({name}, {t}, {i})({t})", f"{name}(*({t}, {i}))",
            f"{name}(**dict({first}{t}))",
            f"max([({t}, 0)], key=lambda pair: {name}(pair[0], {i}).dim())[0]",
            f"sorted([2, 1], key=lambda k: -{name}({t}, k).dim())[0] * {t}",
            f"types.FunctionType({name}.__code__, globals(), 'made', (2,), {name}.__closure__)({t}, {i})",
        ]))

    def match(self, scope: dict[str, str], depth: int) -> list[str]:
        subject = self.one([
            lambda: self.expr(scope, self.one("ILDOX")),
            lambda: f"Named({self.expr(scope, 'T')}, {self.expr(scope, 'I')})",
            lambda: f"Record({self.expr(scope, 'I')}, t={self.expr(scope, 'T')})",
            lambda: f"({self.expr(scope, 'I')}, [{self.expr(scope, 'I')}, {self.expr(scope, 'X')}])",
            lambda: f"Color({self.expr(scope, 'I')} % 2 + 1)", lambda: f"{{'k': {self.expr(scope, 'L')}}}",
            lambda: f"Pair({self.expr(scope, 'I')}, Pair({self.expr(scope, 'I')}))",
        ])()
        name = self.name("m")
        inside = {**scope, name: "I"}
        cases = [
            lambda: [f"case {self.draw(0, 3)} | -1:", *self.inner(scope, depth)],
            lambda: [f"case [{name}, *_]:", *indented(self.block(inside, depth + 1, 1))],
            lambda: [f"case {{'a': {name}, **rest}}:", *indented(self.block(inside, depth + 1, 1))],
            lambda: [f"case Box(total={name}) if {self.expr(inside, 'B')}:",
                     *indented(self.block(inside, depth + 1, 1))],
            lambda: [f"case int({name}):", *indented(self.block(inside, depth + 1, 1))],
            lambda: ["case [] | '':", *self.inner(scope, depth)],
            lambda: [f"case Named(t=torch.Tensor() as {name}t, k={name}):",
                     *indented(self.block({**inside, f"{name}t": "T"}, depth + 1, 1))],
            lambda: [f"case (Record(k={name}, t=_) | Pair({name})) as whole if {name} > 1:",
                     *indented(self.block(inside, depth + 1, 1))],
            lambda: [f"case Pair(left={name}, right=Pair(right=1)):", *indented(self.block(inside, depth + 1, 1))],
            lambda: [f"case (0 | 1 | 2 as {name}, [_, str()]):", *indented(self.block(inside, depth + 1, 1))],
            lambda: ["case Color.RED:", *self.inner(scope, depth)],
            lambda: [f"case {{'k': [{name}, *_], **others}} if not others:",
                     *indented(self.block(inside, depth + 1, 1))],
            lambda: [f"case [*_, {name}] if {name} in shared:", *indented(self.block(inside, depth + 1, 1))],
        ]
        lines: list[str] = []
        for _ in range(self.draw(1, 3)):
            lines += self.one(cases)()
        if self.chance(50):
            lines += ["case _:", *self.inner(scope, depth)]
        return [f"match {subject}:", *indented(lines)]

    def generator(self, scope: dict[str, str], depth: int) -> list[str]:
        """A generator made here, partly consumed."""
        name, got = self.name("gen"), self.name("i")
        if self.chance(30):
            more = self.one([f"next({name}, 0)", f"sum({name})", f"{name}.send(None)"])
            return [f"{name} = careful({self.expr(scope, 'L')})", "try:", f"    {got} = next({name}, 0) + {more}",
                    *indented(self.block(dict(scope), depth + 1, 1)), "finally:", f"    {name}.close()"]
        lines = [f"{name} = {self.one(['evens', 'chained'])}({self.expr(scope, 'L')})", f"{got} = next({name}, 0)"]
        scope[got] = "I"
        self.own.add(got)
        lines += self.block(scope, depth + 1, 1)
        if self.chance(60):
            lines += self.one([
                [f"{got} += sum({name})"], [f"{name}.close()"],
                ["try:", f"    {name}.send(2)", "except StopIteration as e:", "    shared.append(e.value)"],
                ["try:", f"    {name}.throw(ValueError('in'))", "except ValueError:", f"    {got} = 1"],
            ])
        return lines


    def own_generator(self, scope: dict[str, str], depth: int) -> list[str]:
        """A generator function made here, whose body rebinds a variable around it; partly consumed.

        Its body has no `try` and no `with`: when CPython drops a suspended generator is not compared."""
        name, made, got = self.name("g"), self.name("gen"), self.name("t")
        bound = self.assignable(scope, "I") or self.assignable(scope, "T")
        outer, in_loop = self.own, self.in_loop
        inside = dict(scope)
        self.own, self.in_loop = {bound} if bound else set(), False
        self.functions += 1
        body = [f"nonlocal {bound}"] if bound else []
        for _ in range(self.draw(1, 3)):
            body += [*self.block(inside, 3, self.draw(1, 2)), f"yield {self.expr(inside, 'T')}"]
        self.functions -= 1
        self.own, self.in_loop = outer, in_loop
        lines = [f"def {name}():", *indented(body), f"{made} = {name}()", f"{got} = next({made})"]
        scope[got] = "T"
        self.own.add(got)
        lines += self.block(scope, depth + 1, 1)
        lines += self.one([
            [], [f"{got} = next({made}, {got})"], [f"for {got} in {made}:", *self.inner(scope, depth)],
            [f"vecs.extend({made})"], [f"{made}.close()"], [f"if {self.expr(scope, 'B')}:",
            f"    {got} += next({made})"],
            ["try:", f"    {made}.throw(KeyError('k'))", "except KeyError as e:", "    shared.append(e.args)"],
        ])
        return lines

    def local_class(self, scope: dict[str, str], depth: int) -> list[str]:
        """A class made here, whose methods read variables around it."""
        name, made, result = self.name("C"), self.name("o"), self.name("t")
        base = self.one(["", "(Box)", "(Deep)", "(list)", "(Vec)"])
        first = {"": "self.n = n", "(list)": "super().__init__([n])\n        self.n = n",
                 "(Vec)": "super().__init__(x, n)"}.get(base, "super().__init__(n, 0.5)\n        self.n = n")
        method: list[str] = []
        if self.chance(30):
            own, in_loop, self.own, self.in_loop = self.own, self.in_loop, {"p", "q"}, False
            self.functions += 1
            method = self.block({**scope, "p": "T", "q": "I"}, 3, 1)
            self.functions, self.own, self.in_loop = self.functions - 1, own, in_loop
        lines = [f"class {name}{base}:", f"    level = {self.expr(scope, 'I', 1)}", "    def __init__(self, n):",
                 *indented(indented(first.split("\n        "))), "    def run(self, p, q=2):",
                 *indented(indented(method)), f"        return p * self.level + {self.expr(scope, 'T', 1)} * q",
                 f"{made} = {name}({self.expr(scope, 'I', 1)})"]
        lines += self.one([[], [f"{made}.level = {self.expr(scope, 'I', 1)}"], [f"kept.child = {made}"],
                           [f"{name}.level += 1"]])
        lines.append(f"{result} = {made}.run({self.expr(scope, 'T', 1)})")
        scope[result] = "T"
        self.own.add(result)
        if base in ("(Box)", "(Deep)"):
            scope[made] = "O"
        return lines

    def closures(self, scope: dict[str, str], depth: int) -> list[str]:
        """Functions made in a loop, called then, and maybe kept for later calls."""
        name, result, index = self.name("fs"), self.name("t"), self.name("i")
        inside = {**scope, index: "I", "v": "T"}
        body = self.expr(inside, "T")
        made = self.one([f"lambda v, {index}={index}: {body}", f"lambda v: {body}",
                         f"functools.partial(lambda k, v: {body}, {index})"])
        lines = [f"{name} = []", f"for {index} in range({self.draw(1, 3)}):", f"    {name}.append({made})"]
        lines += self.one([[], [f"hooks.append({name}[0])", "del hooks[:-2]"], [f"kept.hook = {name}[-1]"]])
        t = self.expr(scope, "T", 1)
        last = self.one([f"{result} = {name}[{self.risky(self.expr(scope, 'I', 1), '-1')}]({t})",
                         f"{result} = sum([g({t}) for g in {name}], {t})",
                         f"{result} = functools.reduce(lambda v, g: g(v), {name}, {t})"])
        scope[result] = "T"
        self.own.add(result)
        return [*lines, last]

    def group(self, scope: dict[str, str], depth: int) -> list[str]:
        """Exception groups."""
        inside = self.one([f"ValueError({self.expr(scope, 'I', 1)})", "KeyError('k'), ValueError(2)",
                           "IndexError('i'), Halt(3)"])
        raised = f"raise ExceptionGroup('some', [{inside}])"
        lines = ["try:", *self.inner(scope, depth), f"    if {self.expr(scope, 'B')}:", f"        {raised}",
                 "except* ValueError as es:", "    shared.append(len(es.exceptions))", *self.inner_plain(scope, depth)]
        if self.chance(60):
            lines += ["except* (KeyError, IndexError, Halt) as es:", "    shared.append(str(es))"]
        return lines

    def inner_plain(self, scope: dict[str, str], depth: int) -> list[str]:
        """A block that does not leave: `except*` may not be left by return, break or continue."""
        return indented(self.assign(dict(scope)) + self.list_write(dict(scope)))

    def iterator(self, scope: dict[str, str], depth: int) -> list[str]:
        """An iterator that outlives a few statements, maybe the call."""
        name, got = self.name("it"), self.name("i")
        items, f = self.expr(scope, "L", 1), self.expr(scope, "I", 1)
        made = self.one([
            f"iter({items})", f"enumerate({items})", f"zip({items}, 'abc')", f"map(lambda v: v + {f}, {items})",
            f"filter(lambda v: v > {f}, {items})", f"reversed({items})",
            f"itertools.chain({items}, (7, 8))", f"itertools.islice(itertools.count({f}), 4)", f"iter(range({f} % 5))",
            f"(v * {f} for v in {items})", f"itertools.accumulate({items})", f"iter({self.expr(scope, 'Q', 1)})",
            f"itertools.cycle({items} or [1])", f"evens({items})", f"itertools.takewhile(lambda v: v > {f}, {items})",
            f"itertools.product({items}, (1, 2))", f"iter(sorted({self.expr(scope, 'K', 1)}))",
            f"itertools.zip_longest({items}, 'ab')", f"itertools.tee({items})[0]", f"itertools.pairwise({items})",
            f"itertools.starmap(lambda a, b: a + b, zip({items}, {items}))", f"iter([4, 3, {f}].pop, 4)",
        ])
        lines = [f"{name} = {made}", f"{got} = next({name}, 0)", *self.block(scope, depth + 1, self.draw(1, 2))]
        lines += self.one([
            [f"shared.append(str(next({name}, None)))"],
            [f"for v in itertools.islice({name}, 3):", "    shared.append(str(v))", *self.inner(scope, depth)],
            [f"kept.iterator = {name}"],
            [f"hooks.append(lambda t, it={name}: t + len(str(next(it, 1))))", "del hooks[:-2]"],
            ["try:", f"    first, *others = itertools.islice({name}, 3)", "    shared.append(len(others))",
             "except ValueError as error:", "    shared.append(str(error))"],
            [f"while (v := next({name}, None)) is not None and len(shared) < 40:", "    shared.append(str(v))"],
        ])
        return lines

    def later(self, scope: dict[str, str], depth: int) -> list[str]:
        """What an earlier call left behind: an iterator, a counter, a function."""
        name = self.name("n")
        return list(self.one([
            ["old = vars(kept).get('iterator')", "if old is not None:", "    shared.append(str(next(old, 'end')))"],
            ["old = vars(kept).get('count')", "if old is not None:", "    shared.append(old())", "else:",
             f"    {name} = {self.expr(scope, 'I', 1)}", "    def count():", f"        nonlocal {name}",
             f"        {name} += 1", f"        return {name}", "    kept.count = count", "    shared.append(count())"],
            ["if hooks:", f"    vecs.append(hooks[-1]({self.expr(scope, 'T', 1)}))"],
            [f"{name} = [0]", f"kept.count = lambda: {name}.append(len({name})) or len({name})",
             f"{name}.extend({self.expr(scope, 'L', 1)})"],
            ["old, kept.last_seen = vars(kept).get('last_seen'), x", "shared.append(old is x)", "if old is not None:",
             "    vecs.append(old[:1])"],
            [f"{name} = {self.expr(scope, 'T', 1)}", f"kept.count = lambda: {name}.dim()", f"{name} = {name} * 2",
             "shared.append(kept.count())"],
        ]))

    def recursion(self, scope: dict[str, str], depth: int) -> list[str]:
        """A function that calls itself between statements."""
        name, p, q, result = self.name("g"), self.name("p"), self.name("q"), self.name("t")
        outer, in_loop, loops = self.own, self.in_loop, self.loops
        self.own, self.in_loop, self.loops = {p, q}, False, max(loops, 1)
        self.functions += 1
        inside = {**scope, p: "T", q: "I"}
        before, after = self.block(dict(inside), depth + 2, 1), self.block(dict(inside), depth + 2, 1)
        self.functions -= 1
        self.own, self.in_loop, self.loops = outer, in_loop, loops
        again = self.one([f"{name}({p} * 0.5, {q} - 1)", f"{p} + {name}({p}, {q} - 1)",
                          f"[{name}({p}, {q} - 1) for _ in range(2)][1]", f"first(map({name}, [{p}], [{q} - 1]))"])
        # the depth has a bound of its own, because statements may rebind the counter
        body = [f"if {q} <= 0 or level_{name} <= 0:", f"    return {p}", f"level_{name} -= 1", *before,
                f"{p} = {again}", *after, f"return {p}"]
        lines = [f"level_{name} = 4", f"def {name}({p}, {q}):", f"    nonlocal level_{name}", *indented(body),
                 f"{result} = {name}({self.expr(scope, 'T', 1)}, {self.draw(0, 3)})"]
        scope[result] = "T"
        self.own.add(result)
        return lines

    def manager(self, scope: dict[str, str], depth: int) -> list[str]:
        """A context manager made here: a generator or a class, whose parts are blocks."""
        name = self.name("cm")
        caught = self.one(["Exception", "(KeyError, IndexError, Halt)", "RuntimeError"])
        outer, in_loop = self.own, self.in_loop
        self.own, self.in_loop = set(), False
        self.functions += 1
        enter, leave = self.block(dict(scope), depth + 2, 1), self.block(dict(scope), depth + 2, 1)
        self.functions -= 1
        self.own, self.in_loop = outer, in_loop
        if self.chance(50):
            lines = ["@contextlib.contextmanager", f"def {name}(k=1):", *indented(enter), "    try:", "        yield k",
                     f"    except {caught} as error:", "        shared.append(type(error).__name__)", "    finally:",
                     *indented(indented(leave))]
        else:
            lines = [f"class {name}:", "    def __init__(self, k=1):", "        self.k = k", "    def __enter__(self):",
                     *indented(indented(enter)), "        return self.k", "    def __exit__(self, kind, error, trace):",
                     *indented(indented(leave)), f"        return kind is not None and issubclass(kind, {caught})"]
        got = self.name("i")
        inside = {**scope, got: "I"}
        body = indented(self.block(inside, depth + 1, self.draw(1, 2)))
        if self.chance(40):
            body += [f"    if {self.expr(scope, 'B')}:", f"        raise {self.exception(scope)}"]
        uses = self.one([f"with {name}() as {got}:", f"with {name}(2) as {got}, {name}():",
                         f"with contextlib.ExitStack() as stack, {name}() as {got}:"])
        return [*lines, uses, *body]
