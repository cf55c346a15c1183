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
        call = f"{name}({self.expr(scope, 'T', 1)}, {self.expr(scope, 'I', 1)})"
        if self.chance(25):
            call = f"{name}({q}={self.expr(scope, 'I', 1)}, {p}={self.expr(scope, 'T', 1)})"
        if self.chance(20):
            call = f"functools.partial({name}, {self.expr(scope, 'T', 1)})({self.expr(scope, 'I', 1)})"
        result = self.name("t")
        scope[result] = "T"
        self.own.add(result)
        return [f"def {name}({p}, {q}=1):", *indented(body), f"{result} = {call}"]

    def match(self, scope: dict[str, str], depth: int) -> list[str]:
        subject = self.expr(scope, self.one("ILDOX"))
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
