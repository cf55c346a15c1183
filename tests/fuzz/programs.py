"""Random programs: Python control flow, containers, classes, mutation, exceptions and tensor operations, as text.

A program is a module with a function `world()` that makes the function under test and the state to watch, so that two
equal worlds can be made of one text. Expressions are drawn by kind, from the variables that are surely assigned, so
that most programs run to their end; the rest raise, which is compared too. Kinds:

    T  float tensor of shape (k,)      S  float tensor of shape ()     I  int    F  float    B  bool    X  str
    L  list of int                     V  list of T                    D  dict of str to int
    O  a Box (user class)              K  set of int                E  dict of str to T
    N  int64 tensor of shape (k,)      M  bool tensor of shape (k,)    W  float tensor of shape (k, 2)
    Q  deque of int                    P  callable of T to T           G  a Vec (operators, descriptor)

Values stay small (sines, halves, remainders), so that rounding decides nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from .carriers import PAUSES, definitions
from .drawing import Draw, indented
from .language import Language
from .patches import Patches
from .prelude import IMPORTS, PRELUDE

PARAMETERS = {"x": "T", "y": "T", "n": "I", "f": "F", "flag": "B", "ints": "L", "vecs": "V", "table": "D", "box": "O",
              "idx": "N", "named": "E", "w": "W", "queue": "Q"}

#: what every world makes, and what of it is watched
EVENTS = 2
_MADE = """\
globals().update(BOXES=(Box, Deep), Vec=Vec, helper=plus)
kept = Deep(5, 0.25)
net = Net()
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
vec = Vec(torch.ones(2), 3)
hooks = []
"""
_WATCHED = ("elsewhere", "adder", "Box", "Deep", "Vec", "kept", "shared", "net", "model", "opt", "vec", "hooks",
            "remember")


class Program(Language, Patches):
    """Draws one program; `source` is its text.

    exact: results of operations on tensors are bit for bit those of eager, so that data may decide on ints and strings.
    """

    def __init__(self, draw: Draw, exact: bool) -> None:
        super().__init__(draw, exact)
        pause = self.one(PAUSES)
        function = self.definition("fn", result=True, size=draw(2, 7))
        events = [self.definition(f"event{number}", result=False, size=draw(1, 3)) for number in range(EVENTS)]
        tail = f"return fn, {{{', '.join(f'{name!r}: {name}' for name in _WATCHED)}}}"
        listed = f"EVENTS[:] = {', '.join(f'event{number}' for number in range(EVENTS))}"
        world = "\n\n\n".join([_MADE, function, *events, listed, tail])
        helpers = f"def pause():\n{textwrap.indent(pause, '    ')}\n\n\n{definitions(self.carriers)}"
        self.source = IMPORTS + helpers + PRELUDE + textwrap.indent(world, "    ") + "\n"

    def definition(self, name: str, result: bool, size: int) -> str:
        """A function of the arguments of a call."""
        scope = dict(PARAMETERS)
        self.own = set(scope)
        self.budget = max(self.budget, 6)
        body = self.block(scope, depth=0, size=size)
        if result:
            body.append(f"return {self.result(scope)}")
        head = f"def {name}({', '.join(PARAMETERS)}):\n    global counter, shared, scale, helper\n    nonlocal level\n"
        return head + textwrap.indent("\n".join(body), "    ")

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
            self.class_write, self.net_write, self.model_write, self.vec_write, self.queue_write, self.training,
            self.matrix_write, self.odd_torch, self.unpack, self.delete, self.patch, self.patch,
        ]
        nested: list[Callable[[dict[str, str], int], list[str]]] = [
            self.if_, self.for_, self.while_, self.try_, self.with_, self.function, self.match, self.generator,
            self.own_generator, self.local_class, self.closures, self.group, self.iterator, self.later, self.recursion,
            self.manager,
        ]
        if depth < 3 and self.chance(42):
            return list(self.one(nested)(scope, depth))
        known = dict(scope)
        lines = list(self.one(simple)(scope))
        if scope == known and self.chance(35):  # what is written before it raises stays
            lines = ["try:", *indented(lines), "except Exception as e:", "    shared.append(type(e).__name__)"]
        return lines

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
            lambda: (f"for {name}, {other} in itertools.product({self.expr(scope, 'L', 1)}[:2], (1, 2)):",
                     {name: "I", other: "I"}),
            lambda: (f"for {name}, {other} in zip(reversed({self.expr(scope, 'L', 1)}), itertools.count(2)):",
                     {name: "I", other: "I"}),
            lambda: (f"for {name} in [*{self.expr(scope, 'Q', 1)}][:3]:", {name: "I"}),
            lambda: (f"for {name}, {other} in [{self.expr(scope, 'G', 1)}, vec]:", {name: "T", other: "I"}),
            lambda: (f"for {name} in {self.expr(scope, 'W', 1)}.unbind(1):", {name: "T"}),
            lambda: (f"for {name} in {self.expr(scope, 'W', 1)}.split(1, 1):", {name: "W"}),
            lambda: (f"for {name} in range({self.expr(scope, 'T', 1)}.shape[0]):", {name: "I"}),
            lambda: (f"for {name}, {other} in list({self.expr(scope, 'E', 1)}.items())[:3]:", {name: "X", other: "T"}),
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
            lambda: f"torch.set_grad_enabled({self.expr(scope, 'B')})", lambda: "contextlib.nullcontext(kept)",
            lambda: "torch.inference_mode()", lambda: "contextlib.ExitStack() as stack",
            lambda: "torch.autocast('cpu', dtype=torch.bfloat16)", lambda: "torch.random.fork_rng(devices=[])",
        ])()
        if "stack" in manager:
            entered = self.one(["stack.enter_context(torch.no_grad())", "stack.callback(shared.append, 9)",
                                "stack.enter_context(noted(shared))", "stack.push(kept)"])
            return [f"with {manager}:", f"    {entered}", *self.inner(scope, depth)]
        return [f"with {manager}:", *self.inner(scope, depth)]
