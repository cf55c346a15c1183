"""Random programs: Python control flow, containers, classes, mutation, exceptions and tensor operations, as text.

A program is a module with a function `world()` that makes the function under test and the state to watch, so that two
equal worlds can be made of one text. Expressions are drawn by kind, from the variables that are surely assigned, so
that most programs run to their end; the rest raise, which is compared too. Kinds:

    T  float tensor of shape (k,)      S  float tensor of shape ()     I  int    F  float    B  bool    X  str
    L  list of int                     V  list of T                    D  dict of str to int
    O  a Box (user class)              K  set of int                E  dict of str to T
    N  int64 tensor of shape (k,)      M  bool tensor of shape (k,)

Values stay small (sines, halves, remainders), so that rounding decides nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from .prelude import PRELUDE

#: draws an integer between the bounds, both included
Draw = Callable[[int, int], int]

PARAMETERS = {"x": "T", "y": "T", "n": "I", "f": "F", "flag": "B", "ints": "L", "vecs": "V", "table": "D", "box": "O",
              "idx": "N", "named": "E"}

class Program:
    """Draws one program; `source` is its text.

    exact: results of operations on tensors are bit for bit those of eager, so that data may decide on ints and strings.
    """

    def __init__(self, draw: Draw, exact: bool) -> None:
        self.draw = draw
        self.exact = exact
        self.fresh = 0
        self.budget = 34
        self.loops = 0
        self.functions = 0
        #: whether `break` and `continue` are possible here
        self.in_loop = False
        #: variables that the innermost function may rebind; others it can only read
        self.own: set[str] = set()
        scope = dict(PARAMETERS)
        self.own = set(scope)
        body = self.block(scope, depth=0, size=draw(2, 7))
        body.append(f"return {self.result(scope)}")
        head = f"def fn({', '.join(PARAMETERS)}):\n    global counter, shared, scale\n"
        function = head + textwrap.indent("\n".join(body), "    ")
        tail = 'return fn, {"Box": Box, "Deep": Deep, "kept": kept, "shared": shared, "net": net, "remember": remember}'
        made = "globals()['BOXES'] = (Box, Deep)\nkept = Deep(5, 0.25)\nnet = Net()"
        self.source = PRELUDE + textwrap.indent(f"{made}\n\n{function}\n\n{tail}\n", "    ")

    # -- drawing ------------------------------------------------------------------------------------------------------

    def one(self, options: Sequence[Any]) -> Any:
        return options[self.draw(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        return self.draw(0, 99) >= 100 - percent  # shrinks towards no

    def risky(self, form: str, safe: str) -> str:
        """Mostly the safe form: a program that raises early shows little."""
        return form if self.chance(20) else safe

    def name(self, prefix: str) -> str:
        self.fresh += 1
        return f"{prefix}{self.fresh}"

    def variable(self, scope: dict[str, str], kind: str) -> str | None:
        names = [name for name, its in scope.items() if its == kind]
        return self.one(names) if names else None

    def assignable(self, scope: dict[str, str], kind: str) -> str | None:
        names = [name for name, its in scope.items() if its == kind and name in self.own]
        return self.one(names) if names else None

    # -- expressions --------------------------------------------------------------------------------------------------

    def expr(self, scope: dict[str, str], kind: str, depth: int = 2) -> str:
        if depth <= 0 or self.chance(35):
            name = self.variable(scope, kind)
            if name is not None:
                return name
        if depth <= 0:
            return self.constant(kind)
        return getattr(self, f"_{kind}")(scope, lambda k: self.expr(scope, k, depth - 1))

    def constant(self, kind: str) -> str:
        constants = {
            "T": ["torch.arange(3.0)", "torch.ones(3)"], "S": ["torch.tensor(0.75)"], "I": ["0", "1", "2", "7", "-3"],
            "F": ["0.5", "-1.25", "2.0"], "B": ["True", "False"], "X": ["'a'", "'bc'"], "L": ["[1, 2, 3]", "[]"],
            "V": ["[]"], "D": ["{'a': 1}", "{}"], "O": ["kept", "Box(1, 0.5)", "Deep(2, 1.5)"],
            "K": ["{1, 2}", "set()"], "E": ["{}"], "N": ["torch.arange(3)"],
            "M": ["(x > 0.25)", "torch.ones(3, dtype=torch.bool)"],
        }
        return str(self.one(constants[kind]))

    def _T(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        forms: list[Callable[[], str]] = [
            lambda: f"({e('T')} + {e('T')})",
            lambda: f"({e('T')} * {e('F')})",
            lambda: f"({e('T')} - {e('I')})",
            lambda: f"({e('I')} - {e('T')})",
            lambda: f"torch.sin({e('T')})",
            lambda: f"{e('T')}.tanh()",
            lambda: f"torch.where({e('T')} > {e('F')}, {e('T')}, {e('T')})",
            lambda: f"({e('T')} / ({e('T')}.abs() + 1))",
            lambda: f"({e('T')} * {e('S')}.sin())",
            lambda: f"{e('O')}.scaled({e('T')})",
            lambda: f"{e('O')}.scaled({e('T')}, by={e('F')})",
            lambda: f"sum({e('V')}, {e('T')})",
            lambda: self.risky(f"{e('V')}[{e('I')}]", f"first({e('V')}[{e('I')}:], {e('T')})"),
            lambda: f"({e('T')} if {e('B')} else {e('T')})",
            lambda: f"(lambda v, w=2: v * w - {e('I')})({e('T')})",
            lambda: f"torch.stack([{e('T')}, {e('T')}]).mean(0)",
            lambda: f"{e('T')}.clone()",
            lambda: f"{e('T')}.detach()",
            lambda: f"{e('T')}.flip(0)",
            lambda: f"{e('T')}[:]",
            lambda: f"{e('T')}.view(-1)",
            lambda: f"torch.cat([{e('T')}, {e('T')}])[::2]",
            lambda: f"first({e('V')}, {e('T')})",
            lambda: f"functools.reduce(torch.add, {e('V')}, {e('T')})",
            lambda: f"({e('T')} * {e('T')}.shape[0] / 7)",
            lambda: f"torch.zeros({e('I')} % 5)",
            lambda: f"{e('T')}[{e('I')}:]",
            lambda: f"net({e('T')})",
            lambda: f"({e('N')} / 4)",
            lambda: (lambda t: f"{t}[{self.risky(e('M'), f'{t} > ' + e('F'))}]")(e("T")),
            lambda: (lambda t: f"{t}.masked_fill({self.risky(e('M'), f'{t} > ' + e('F'))}, {e('F')})")(e("T")),
            lambda: f"{e('E')}.get({e('X')}, {e('T')})",
            lambda: self.risky(f"{e('E')}[{e('X')}]", f"first({e('E')}.values(), {e('T')})"),
            lambda: f"next(walk({e('V')}), {e('T')})",
            lambda: f"{e('T')}[{e('N')}.clamp(0, 0)]",
            lambda: f"torch.rand({e('I')} % 4)",
            lambda: f"torch.rand_like({e('T')})",
            lambda: f"{e('T')}.unsqueeze(0).expand(2, -1)[1]", lambda: f"({e('T')} + x)",
            lambda: f"{e('T')}[::2]",
            lambda: f"{e('T')}.split(2)[{self.risky(e('I'), '0')}]",
            lambda: f"Named({e('T')}, {e('I')}).t",
            lambda: f"Pair({e('T')}, {e('I')}).left",
            lambda: f"Slim({e('I')}, {e('T')}).t",
            lambda: f"{e('T')}.narrow(0, 0, {e('I')} % 3)",
            lambda: f"torch.full(({e('I')} % 4,), {e('F')})",
            lambda: f"torch.nn.functional.dropout({e('T')}, 0.5, {e('B')})",
        ]
        if self.exact:
            forms += [lambda: f"torch.zeros(int({e('S')}.abs().item() * 2) % 5)",
                      lambda: f"{e('T')}[:{e('N')}.sum().item() % 5]"]
        return str(self.one(forms)())

    def _N(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"torch.arange({e('I')} % 5)", lambda: f"({e('T')} > {e('F')}).long()",
            lambda: f"({e('N')} + {e('I')})", lambda: f"({e('N')} * {e('N')} % 13)", lambda: f"{e('N')}.cumsum(0)",
            lambda: f"torch.tensor({e('L')}, dtype=torch.int64)", lambda: f"{e('N')}.flip(0)",
            lambda: f"{e('N')}[{e('I')}:]", lambda: f"({e('N')} // {e('I')})", lambda: f"{e('N')}[{e('M')}]",
            lambda: f"torch.where({e('M')}, {e('N')}, {e('I')})", lambda: f"({e('N')} % {e('I')})",
        ])())

    def _M(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"({e('T')} > {e('F')})", lambda: f"({e('N')} == {e('I')})", lambda: f"~{e('M')}",
            lambda: f"({e('M')} & {e('M')})", lambda: f"({e('N')} > {e('N')})", lambda: f"({e('T')} < {e('T')})",
        ])())

    def _E(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"{{{e('X')}: {e('T')}}}", lambda: f"dict({e('E')})", lambda: f"{{**{e('E')}, 'q': {e('T')}}}",
            lambda: f"{{k: v * 2 for k, v in {e('E')}.items()}}", lambda: f"dict(zip('pqr', {e('V')}))",
            lambda: f"{e('O')}.named",
        ])())

    def _S(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"{e('T')}.sum()", lambda: f"{e('T')}.mean()", lambda: f"({e('S')} + {e('F')})",
            lambda: f"{e('T')}[{e('I')}]", lambda: f"({e('S')} * {e('S')}).cos()", lambda: f"torch.tensor({e('F')})",
        ])())

    def _I(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        forms: list[Callable[[], str]] = [
            lambda: f"({e('I')} + {e('I')})", lambda: f"({e('I')} * {e('I')} % 97)",
            lambda: f"({e('I')} - {e('I')})",
            lambda: f"({e('I')} {self.one(['//', '%'])} {self.risky(e('I'), 'max(' + e('I') + ', 2)')})",
            lambda: f"len({e(self.one(['L', 'V', 'D', 'K', 'X', 'O']))})", lambda: f"{e('T')}.shape[0]",
            lambda: f"{e('T')}.dim()", lambda: f"{e('O')}.total", lambda: f"{e('O')}.double", lambda: f"sum({e('L')})",
            lambda: f"max({e('I')}, {e('I')})", lambda: f"abs({e('I')})", lambda: f"int({e('B')})",
            lambda: f"{e('D')}.get({e('X')}, {e('I')})",
            lambda: self.risky(f"{e('D')}[{e('X')}]", f"first({e('D')}.values(), {e('I')})"),
            lambda: f"({e('I')} if {e('B')} else {e('I')})",
            lambda: self.risky(f"{e('L')}[{e('I')}]", f"first({e('L')}[{e('I')}:], 4)"), lambda: "counter",
            lambda: f"plus({e('I')})", lambda: f"plus({e('I')}, {e('I')}, *{e('L')}, k={e('I')})",
            lambda: f"plus(*[{e('I')}, {e('I')}], **{e('D')})", lambda: "kept.total", lambda: "Box.made",
            lambda: f"kept.{self.one(['abc', 'missing', 'total', 'x'])}", lambda: f"(shared[-1] + {e('I')})",
            lambda: f"min({e('K')}, default={e('I')})", lambda: f"{e('L')}.count({e('I')})",
            lambda: f"first(evens({e('L')}), {e('I')})", lambda: f"sum(chained({e('L')}))",
            lambda: f"sum(i * {e('I')} for i in {e('L')} if i != {e('I')})",
            lambda: f"next(iter({e('L')}), 5)", lambda: f"({e('I')} ^ {e('I')})",
            lambda: f"((w := {e('I')}) + w)", lambda: f"round({e('F')})",
        ]
        forms += [
            lambda: f"{e('N')}.numel()", lambda: f"remember({e('I')})", lambda: "net.calls",
            lambda: f"below({e('O')}).total",
            lambda: f"{e('O')}.limit", lambda: f"Named(1, {e('I')}).k", lambda: f"len({e('E')})",
            lambda: f"{e('O')}.grid[0][{e('I')}]",
        ]
        if self.exact:
            forms += [lambda: f"int({e('S')}.item() * 2)", lambda: f"({e('N')}.sum().item() % 11)",
                      lambda: f"{e('M')}.sum().item()", lambda: f"int({e('N')}[{e('I')}])"]
        return str(self.one(forms)())

    def _F(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"({e('F')} + {e('F')})", lambda: f"({e('F')} * 0.5)", lambda: f"float({e('I')})",
            lambda: f"math.sin({e('F')})", lambda: f"({e('I')} / 4)", lambda: f"{e('O')}.weight", lambda: "scale",
            lambda: f"({e('F')} if {e('B')} else {e('F')})", lambda: f"{e('S')}.item()",
            lambda: f"max({e('F')}, {e('F')})",
        ])())

    def _B(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"({e('I')} {self.one(['<', '>', '==', '!=', '<='])} {e('I')})", lambda: f"(not {e('B')})",
            lambda: f"({e('B')} and {e('B')})", lambda: f"({e('B')} or {e('B')})",
            lambda: f"({e('I')} in {e(self.one(['L', 'K']))})", lambda: f"({e('X')} in {e('D')})",
            lambda: f"({e('I')} < {e('I')} <= {e('I')})", lambda: f"({e('T')} is {e('T')})",
            lambda: f"({e('O')} is kept)", lambda: f"({e('O')} == {e('O')})", lambda: f"isinstance({e('O')}, Deep)",
            lambda: f"bool({e(self.one(['L', 'D', 'K', 'X', 'O']))})", lambda: f"{e('T')}.requires_grad",
            lambda: f"bool({e('S')} > 0.1237)", lambda: f"({e('F')} < {e('F')})",
            lambda: f"any(i > {e('I')} for i in {e('L')})", lambda: f"all({e('L')})",
            lambda: f"({e('L')} == {e('L')})", lambda: f"(len({e('V')}) > 1)",
            lambda: f"bool({e('M')}.any())", lambda: "net.training", lambda: f"({e('X')} in {e('E')})",
            lambda: f"hasattr({e('O')}, 'extra')", lambda: f"{e('T')}.is_contiguous()",
        ])())

    def _X(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"f'{{{e('I')}}}'", lambda: f"({e('X')} + {e('X')})", lambda: f"{e('X')}.upper()",
            lambda: f"','.join(str(i) for i in {e('L')})", lambda: f"first({e('D')}, {e('X')})",
            lambda: f"type({e('O')}).__name__", lambda: f"'%s-%d' % ({e('X')}, {e('I')})", lambda: f"({e('X')} * 2)",
            lambda: f"{e('X')}[-1:]",
        ])())

    def _L(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"[{e('I')}, {e('I')}]", lambda: f"[i + {e('I')} for i in {e('L')}]", lambda: f"list({e('L')})",
            lambda: f"({e('L')} + {e('L')})", lambda: f"sorted({e('L')}, key=lambda i: -i)", lambda: f"{e('O')}.items",
            lambda: f"list(range({e('I')} % 5))", lambda: f"{e('L')}[{e('I')}:]", lambda: f"list({e('D')}.values())",
            lambda: f"[a * b for a, b in zip({e('L')}, {e('L')})]", lambda: f"[*{e('L')}, {e('I')}]",
            lambda: f"list(map(lambda i: i % 5, {e('L')}))", lambda: "shared", lambda: f"sorted({e('K')})",
            lambda: f"list(evens({e('L')}))",
            lambda: f"list(careful({e('L')}))", lambda: f"({e('L')} if {e('B')} else {e('L')})",
            lambda: f"list(itertools.accumulate({e('L')}))", lambda: f"list(reversed({e('L')}))",
            lambda: f"[i for row in [{e('L')}, {e('L')}] for i in row][:6]",
        ])())

    def _V(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"[{e('T')}, {e('T')}]", lambda: f"[v * 2 for v in {e('V')}]", lambda: f"list({e('V')})",
            lambda: f"({e('V')} + [{e('T')}])", lambda: f"{e('V')}[{e('I')}:]", lambda: f"{e('V')}[::-1]",
            lambda: f"[v for i, v in enumerate({e('V')}) if i != {e('I')}]",
            lambda: f"list({e('E')}.values())", lambda: f"list(walk({e('V')}))", lambda: f"list({e('T')}.split(2))",
            lambda: f"list(map(torch.sin, {e('V')}))",
        ])())

    def _D(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"{{{e('X')}: {e('I')}}}", lambda: f"dict({e('D')})", lambda: f"{{**{e('D')}, 'z': {e('I')}}}",
            lambda: f"{{str(i): i for i in {e('L')}}}", lambda: f"({e('D')} | {e('D')})",
            lambda: f"dict(zip('abc', {e('L')}))",
        ])())

    def _O(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"Box({e('I')}, {e('F')})", lambda: f"Deep({e('I')}, {e('F')})", lambda: f"{e('O')}.add({e('I')})",
            lambda: f"({e('O')} + {e('O')})", lambda: f"({e('O')} + {e('I')})", lambda: "kept",
            lambda: f"below({e('O')})",
        ])())

    def _K(self, scope: dict[str, str], e: Callable[[str], str]) -> str:
        return str(self.one([
            lambda: f"set({e('L')})", lambda: f"({e('K')} | {e('K')})", lambda: f"({e('K')} & {e('K')})",
            lambda: f"{{i % 3 for i in {e('L')}}}", lambda: f"({e('K')} - {{{e('I')}}})",
        ])())

    def result(self, scope: dict[str, str]) -> str:
        """What the function returns: tensors, then what else is at hand, in a container of some kind."""
        kinds = ["T", *(self.one("TSIFBXLVDOKNME") for _ in range(self.draw(0, 3)))]
        parts = [self.expr(scope, kind) for kind in kinds]
        if self.chance(6):
            parts.append(self.one([f"evens({self.expr(scope, 'L')})", f"map(abs, {self.expr(scope, 'L')})",
                                   f"(i * 2 for i in {self.expr(scope, 'L')})", f"zip({self.expr(scope, 'L')}, 'abc')",
                                   "(lambda: counter)", f"functools.partial(plus, {self.expr(scope, 'I')})"]))
        joined = ", ".join(parts)
        return str(self.one([f"({joined},)", f"[{joined}]", f"{{'r': [{joined}]}}", parts[0]]))

    # -- statements ---------------------------------------------------------------------------------------------------

    def block(self, scope: dict[str, str], depth: int, size: int) -> list[str]:
        """Statements that may add to `scope`; at least one."""
        lines: list[str] = []
        for _ in range(size):
            if self.budget <= 0:
                break
            self.budget -= 1
            lines += self.statement(scope, depth)
        return lines or ["pass"]

    def inner(self, scope: dict[str, str], depth: int) -> list[str]:
        """A block whose new variables are not surely assigned after it."""
        return indented(self.block(dict(scope), depth + 1, self.draw(1, 3)))

    def statement(self, scope: dict[str, str], depth: int) -> list[str]:
        simple: list[Callable[[dict[str, str]], list[str]]] = [
            self.assign, self.assign, self.assign, self.rebind, self.augment, self.tensor_write, self.list_write,
            self.dict_write, self.object_write, self.global_write, self.odd, self.tensor_write, self.tensors_write,
            self.class_write, self.net_write,
        ]
        nested: list[Callable[[dict[str, str], int], list[str]]] = [
            self.if_, self.for_, self.while_, self.try_, self.with_, self.function, self.match, self.generator,
            self.own_generator,
        ]
        if depth < 3 and self.chance(42):
            return list(self.one(nested)(scope, depth))
        known = dict(scope)
        lines = list(self.one(simple)(scope))
        if scope == known and self.chance(35):  # what is written before it raises stays
            lines = ["try:", *indented(lines), "except Exception as e:", "    shared.append(type(e).__name__)"]
        return lines

    def assign(self, scope: dict[str, str]) -> list[str]:
        kind = self.one("TTTTSIIFBXLVDOKNME")
        value = self.expr(scope, kind, 3)
        name = self.name(kind.lower())
        scope[name] = kind
        self.own.add(name)
        if kind == "I" and self.chance(15):
            other = self.name("i")
            scope[other] = "I"
            self.own.add(other)
            return [f"{name}, *_, {other} = [{value}, *{self.expr(scope, 'L')}, 4]"]
        return [f"{name} = {value}"]

    def rebind(self, scope: dict[str, str]) -> list[str]:
        kind = self.one("TTIFLVBONE")
        name = self.assignable(scope, kind)
        return [f"{name} = {self.expr(scope, kind, 3)}"] if name else self.assign(scope)

    def augment(self, scope: dict[str, str]) -> list[str]:
        kind = self.one("TTIFLX")
        name = self.assignable(scope, kind)
        if name is None:
            return self.assign(scope)
        if kind == "I":
            return [f"{name} {self.one(['+=', '-=', '%=', '//='])} {self.expr(scope, 'I')}"]
        operand = self.expr(scope, self.one("TFS") if kind == "T" else kind)
        return [f"{name} {self.one(['+=', '*=']) if kind == 'T' else '+='} {operand}"]

    def tensor_write(self, scope: dict[str, str]) -> list[str]:
        t, v = self.expr(scope, "T", 1), self.expr(scope, "T", 1)
        return [str(self.one([
            lambda: f"{t}.mul_({self.expr(scope, 'F', 1)})", lambda: f"{t}.add_({self.expr(scope, 'I', 1)})",
            lambda: f"{t}[{self.risky(self.expr(scope, 'I', 1), '0')}] = {self.expr(scope, 'F', 1)}",
            lambda: f"{t}.copy_({v})",
            lambda: f"{t}[1:] += {self.expr(scope, 'F', 1)}", lambda: f"{t}[:2] = {v}[:2]",
            lambda: f"{t}.add_({v}, alpha=0.5)", lambda: f"torch.sin({t}, out={t})", lambda: f"{t}.zero_()",
            lambda: f"{t}[{t} > 0.5] = {self.expr(scope, 'F', 1)}",
            lambda: f"{t}.view(-1)[0] = {self.expr(scope, 'F', 1)}",
            lambda: f"{t}[::2].add_({self.expr(scope, 'F', 1)})", lambda: f"{t}.unsqueeze(0)[0].sub_({v})",
            lambda: f"{t}.data.add_({self.expr(scope, 'F', 1)})",
            lambda: f"{t}.detach().mul_({self.expr(scope, 'F', 1)})",
            lambda: f"{t}.masked_fill_({self.expr(scope, 'M', 1)}, {self.expr(scope, 'F', 1)})",
            lambda: f"torch.add({t}, {v}, out={self.expr(scope, 'T', 1)})",
            lambda: f"{t}.fill_({self.expr(scope, 'S', 1)})",
            lambda: f"{t}.requires_grad_()", lambda: f"{t}[1:].copy_({t}[:-1])",
            lambda: f"{t}.clamp_({self.expr(scope, 'F', 1)})",
            lambda: f"{t}[{self.risky(self.expr(scope, 'I', 1), '-1')}] += {self.expr(scope, 'S', 1)}",
        ])())]

    def tensors_write(self, scope: dict[str, str]) -> list[str]:
        """Integer tensors, and dicts of tensors."""
        if self.chance(40):
            n, i = self.expr(scope, "N", 1), self.expr(scope, "I", 1)
            return [str(self.one([
                lambda: f"{n}.add_({i})", lambda: f"{n}[{i}] = {i}", lambda: f"{n}[{n} > {i}] = {i}",
                lambda: f"{n}[1:].mul_({i})", lambda: f"{n}.copy_({self.expr(scope, 'T', 1)})",
            ])())]
        d, key, t = self.expr(scope, "E", 1), self.expr(scope, "X", 1), self.expr(scope, "T", 2)
        return list(self.one([
            lambda: [f"{d}[{key}] = {t}"], lambda: [f"{d}[{key}].add_({self.expr(scope, 'F', 1)})"],
            lambda: [f"{d}.pop({key}, None)"], lambda: [f"{d}.update({self.expr(scope, 'E', 1)})"],
            lambda: [f"{d}.setdefault({key}, {t}).mul_({self.expr(scope, 'F', 1)})"], lambda: [f"del {d}[{key}]"],
            lambda: [f"for v in list({d}.values()):", f"    v.add_({self.expr(scope, 'I', 1)})"],
            lambda: [f"{d}[{key}] += {self.expr(scope, 'S', 1)}"],
        ])())

    def class_write(self, scope: dict[str, str]) -> list[str]:
        """Attributes of classes, and nested ones of objects."""
        o, value = self.expr(scope, "O", 1), self.expr(scope, "I")
        return list(self.one([
            lambda: [f"type({o}).limit = {value}"], lambda: [f"Deep.limit = {value}"],
            lambda: [f"Box.limit -= {value}"],
            lambda: [f"{o}.limit += {value}"], lambda: ["if 'limit' in vars(Deep):", "    del Deep.limit"],
            lambda: [f"below({o}).total += {value}"], lambda: [f"{o}.child = {self.expr(scope, 'O')}"],
            lambda: [f"{o}.child.total = {value}"],
            lambda: [f"{o}.named[{self.expr(scope, 'X', 1)}] = {self.expr(scope, 'T')}"],
            lambda: [f"{o}.grid[0][{self.expr(scope, 'I', 1)}] += {value}"], lambda: [f"{o}.grid[1].append({value})"],
            lambda: [f"del {o}.extra"], lambda: [f"{o}.__class__ = {self.one(['Box', 'Deep'])}"],
            lambda: [f"{o}.extra[{value}] = {self.expr(scope, 'I', 1)}"],
            lambda: [f"remember({self.expr(scope, 'X')})"],
        ])())

    def net_write(self, scope: dict[str, str]) -> list[str]:
        return [str(self.one([
            lambda: f"net.calls += {self.expr(scope, 'I')}", lambda: f"net.gain = {self.expr(scope, 'F')}",
            lambda: f"net.train({self.expr(scope, 'B')})", lambda: "net.eval()",
            lambda: f"net.seen.add_({self.expr(scope, 'F', 1)})", lambda: f"net.seen = {self.expr(scope, 'S')}",
            lambda: f"net.extra = {self.expr(scope, self.one('TIVE'))}",
            lambda: f"net.w.data.mul_({self.expr(scope, 'F', 1)})",
            lambda: f"net.w.requires_grad_({self.expr(scope, 'B')})",
            lambda: f"net.forward = lambda t: t - {self.draw(0, 3)}", lambda: "vars(net).pop('forward', None)",
        ])())]

    def list_write(self, scope: dict[str, str]) -> list[str]:
        if self.chance(35):
            target, item = self.expr(scope, "V", 1), self.expr(scope, "T")
        else:
            target, item = self.expr(scope, "L", 1), self.expr(scope, "I")
        return [str(self.one([
            lambda: f"{target}.append({item})", lambda: f"{target}.insert(0, {item})", lambda: f"{target}.pop()",
            lambda: f"{target}[0] = {item}", lambda: f"{target}[1:2] = [{item}]", lambda: f"del {target}[0]",
            lambda: f"{target}.reverse()", lambda: f"{target}.extend([{item}])", lambda: f"{target}.clear()",
        ])())]

    def dict_write(self, scope: dict[str, str]) -> list[str]:
        d, key, value = self.expr(scope, "D", 1), self.expr(scope, "X", 1), self.expr(scope, "I")
        return [str(self.one([
            lambda: f"{d}[{key}] = {value}", lambda: f"{d}.setdefault({key}, {value})", lambda: f"del {d}[{key}]",
            lambda: f"{d}.update({self.expr(scope, 'D', 1)})", lambda: f"{d}.pop({key}, None)",
            lambda: f"{d}[{key}] = {d}.get({key}, 0) + {value}", lambda: f"{d}.popitem()",
        ])())]

    def object_write(self, scope: dict[str, str]) -> list[str]:
        o, value = self.expr(scope, "O", 1), self.expr(scope, "I")
        return [str(self.one([
            lambda: f"{o}.total = {value}", lambda: f"{o}.total += {value}", lambda: f"{o}.double = {value}",
            lambda: f"{o}.add({value})", lambda: f"{o}.weight = {self.expr(scope, 'F')}",
            lambda: f"Box.made = {value}", lambda: f"Box.log.append({value})", lambda: f"{o}.items.append({value})",
            lambda: f"{o}.extra = {self.expr(scope, self.one('TILO'))}", lambda: f"setattr({o}, 'total', {value})",
            lambda: f"{o}.scaled = lambda t, by=None: t - {value}", lambda: f"vars({o})['total'] = {value}",
        ])())]

    def global_write(self, scope: dict[str, str]) -> list[str]:
        if self.functions:  # they are declared in the outermost one only
            return [f"shared.append({self.expr(scope, 'I')})"]
        return [str(self.one([
            lambda: f"counter += {self.expr(scope, 'I', 1)}", lambda: f"counter = {self.expr(scope, 'I')} % 50",
            lambda: f"shared.append({self.expr(scope, 'I')})", lambda: f"shared = {self.expr(scope, 'L')}",
            lambda: f"scale = {self.expr(scope, 'F')} / 2",
        ])())]

    def odd(self, scope: dict[str, str]) -> list[str]:
        return list(self.one([
            lambda: [f"print({self.expr(scope, 'I')}, {self.expr(scope, 'X')})"], lambda: ["jitpy.graph_break()"],
            lambda: [f"assert {self.expr(scope, 'B')}, 'no'"],
            lambda: [f"if {self.expr(scope, 'B')}:", f"    return {self.result(scope)}"],
            lambda: [f"if {self.expr(scope, 'B')}:", f"    raise {self.exception(scope)}"],
            lambda: [f"print({self.expr(scope, 'F')} > 100, {self.expr(scope, 'B')})"],
            lambda: [f"if {self.expr(scope, 'B')}:", f"    {self.leave(scope)}"],
            lambda: [self.impossible(scope)],
        ])())

    def leave(self, scope: dict[str, str]) -> str:
        return str(self.one(["break", "continue"])) if self.in_loop else f"return {self.result(scope)}"

    def impossible(self, scope: dict[str, str]) -> str:
        """An operation on tensors that raises, nearly always."""
        t = self.expr(scope, "T", 1)
        return str(self.one([
            f"{t} + torch.ones(17)", f"{t}.view(9, 9)", f"{t}[99]", f"torch.cat([{t}, 'a'])",
            f"{t}.mul_(torch.ones(2, 3))",
            f"{t} @ torch.ones(8, 8)", f"{t}.missing", f"torch.ones(3).item() + {t}", f"int({t}.new_ones(3))",
        ]))

    def exception(self, scope: dict[str, str]) -> str:
        return str(self.one([
            lambda: f"ValueError({self.expr(scope, 'I')})", lambda: f"Halt({self.expr(scope, 'I')}, 'late')",
            lambda: f"KeyError({self.expr(scope, 'X')})", lambda: "StopIteration",
            lambda: f"Halt({self.expr(scope, 'I')}) from ValueError('cause')",
        ])())

    def if_(self, scope: dict[str, str], depth: int) -> list[str]:
        condition = self.expr(scope, "B", 3)
        if self.chance(30):
            condition = f"{self.expr(scope, 'S')} > 0.1237"
        lines = [f"if {condition}:", *self.inner(scope, depth)]
        if self.chance(25):
            lines += [f"elif {self.expr(scope, 'B')}:", *self.inner(scope, depth)]
        if self.chance(50):
            lines += ["else:", *self.inner(scope, depth)]
        return lines

    def for_(self, scope: dict[str, str], depth: int) -> list[str]:
        if self.loops >= 2:
            return self.if_(scope, depth)
        inside = dict(scope)
        name, other = self.name("i"), self.name("j")
        header, bound = self.one([
            lambda: (f"for {name} in range({self.expr(scope, 'I', 1)} % 4):", {name: "I"}),
            lambda: (f"for {name} in list({self.expr(scope, 'L', 1)})[:4]:", {name: "I"}),
            lambda: (f"for {name} in list({self.expr(scope, 'V', 1)})[:3]:", {name: "T"}),
            lambda: (f"for {name}, {other} in list({self.expr(scope, 'D', 1)}.items()):", {name: "X", other: "I"}),
            lambda: (f"for {name}, {other} in enumerate({self.expr(scope, 'T', 1)}[:3]):", {name: "I", other: "S"}),
            lambda: (f"for {name}, {other} in zip(range(3), {self.expr(scope, 'V', 1)}):", {name: "I", other: "T"}),
            lambda: (f"for {name} in itertools.islice(evens({self.expr(scope, 'L', 1)}), 3):", {name: "I"}),
            lambda: (f"for {name} in sorted({self.expr(scope, 'K', 1)})[:3]:", {name: "I"}),
        ])()
        inside.update(bound)
        self.own |= set(bound)
        self.loops += 1
        in_loop, self.in_loop = self.in_loop, True
        body = self.block(inside, depth + 1, self.draw(1, 3))
        if self.chance(30):
            body += [f"if {self.expr(inside, 'B')}:", f"    {self.one(['break', 'continue'])}"]
            body += self.block(inside, depth + 1, 1)
        self.loops, self.in_loop = self.loops - 1, in_loop
        lines = [header, *indented(body)]
        if self.chance(20):
            lines += ["else:", *self.inner(scope, depth)]
        return lines

    def while_(self, scope: dict[str, str], depth: int) -> list[str]:
        if self.loops >= 2:
            return self.try_(scope, depth)
        name = self.name("w")
        inside = {**scope, name: "I"}
        self.loops += 1
        in_loop, self.in_loop = self.in_loop, True
        body = [f"{name} += 1", *self.block(inside, depth + 1, self.draw(1, 3))]
        self.own.discard(name)
        self.loops, self.in_loop = self.loops - 1, in_loop
        condition = f"{name} < {self.draw(1, 4)}"
        if self.chance(40):
            condition += f" and {self.expr(scope, 'B')}"
        # The counter may be rebound by the body: a second bound ends the loop.
        stop = self.name("turns")
        return [f"{name} = {stop} = 0", f"while {condition}:", *indented([f"{stop} += 1",
                f"if {stop} > 6:", "    break", *body])]

    def try_(self, scope: dict[str, str], depth: int) -> list[str]:
        lines = ["try:", *self.inner(scope, depth)]
        if self.chance(50):
            lines += indented([f"if {self.expr(scope, 'B')}:", f"    raise {self.exception(scope)}"])
        if self.chance(25):
            lines += indented([self.impossible(scope), *self.block(dict(scope), depth + 1, 1)])
        if self.chance(15):
            lines += ["finally:", *self.inner(scope, depth)]
            return lines
        caught, name = self.one(["ValueError", "(KeyError, IndexError)", "Halt", "Exception", "ZeroDivisionError",
                                 "RuntimeError", "(RuntimeError, IndexError)"]), "e"
        lines += [f"except {caught} as {name}:"]
        lines += indented([self.one([f"shared.append(len({name}.args))", f"print(type({name}).__name__)", "pass"])])
        lines += self.inner(scope, depth)
        if self.chance(25):
            again = ["raise", f"raise Halt(9) from {name}", f"raise KeyError('again', {name}.args)"]
            lines += indented([self.one(again)])
        if self.chance(25):
            lines += ["else:", *self.inner(scope, depth)]
        if self.chance(30):
            lines += ["finally:", *self.inner(scope, depth)]
        return lines

    def with_(self, scope: dict[str, str], depth: int) -> list[str]:
        manager = self.one([
            lambda: "torch.no_grad()", lambda: f"{self.expr(scope, 'O', 1)} as o", lambda: "noted(shared)",
            lambda: "noted(Box.log, swallow=True) as log", lambda: "contextlib.suppress(IndexError, ZeroDivisionError)",
            lambda: "kept", lambda: "kept, noted(shared, True)", lambda: "torch.enable_grad()",
        ])()
        return [f"with {manager}:", *self.inner(scope, depth)]

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


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
