"""Random programs of the tensors kind: statements on tensors whose shapes are known while drawing.

Most statements are about float tensors (`Drawing.shapes`); some are about integers, masks, complex numbers and empty
tensors (`Drawing.others`), and carry results over to the floats.
"""

from __future__ import annotations

import dataclasses
import random
import re
import textwrap

import torch

Shape = tuple[int, ...]

#: what a program gets: leaves, plain tensors, a view of a larger one, results of earlier operations, a view of one
PARAMETERS: dict[str, Shape] = {
    "w": (2, 3), "v": (3,), "x": (2, 3), "y": (2, 3), "h": (2, 3), "g": (3,), "z": (3,), "s": (),
}
#: tensors of other kinds: indices, a mask, complex numbers, no numbers at all
OTHERS: dict[str, tuple[str, Shape]] = {
    "i": ("int", (3,)), "m": ("bool", (2, 3)), "c": ("complex", (2, 3)), "e": ("empty", (0, 3)),
}


def arguments(alias: int) -> dict[str, torch.Tensor]:
    """`alias` chooses which arguments share memory, how many rows there are, of which dtype, or that nothing requires
    grad; from 14 on which arguments autograd restricts, by how they were made."""
    generator = torch.Generator().manual_seed(3)
    rows = ROWS.get(alias, 2)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    w, v = randn(rows, 3).requires_grad_(alias != 12), randn(3).requires_grad_(alias != 12)
    x, base, z, s = randn(rows, 3), randn(rows + 2, 3), randn(3), randn()
    made = w * 2 + 1
    found = {"w": w, "v": v, "x": x, "y": base[1:rows + 1], "h": w * v, "g": made[0], "z": z, "s": s}
    if alias == 1:
        found["z"] = x[1]
    elif alias == 2:
        found["y"] = x
    elif alias == 3:
        found["x"] = w.detach()
    elif alias == 4:
        found["x"], found["y"] = base[:2], base[1:3]
    elif alias == 5:
        found["h"] = made
    elif alias == 6:  # laid out column by column
        found["x"], found["y"] = randn(3, 2).t(), randn(3, 2).t()
    elif alias == 7:
        found["x"], found["z"] = base[1:3], base[2]
    elif alias == 8:
        found["g"], found["h"] = found["h"][1], made
    elif alias == 11:
        found["x"], found["z"] = x.double(), z.double()
    elif alias == 14:  # leaves that are views of what requires nothing
        w, v = base.clone()[:2].requires_grad_(), randn(2, 3)[0].requires_grad_()
        found |= {"w": w, "v": v, "h": w * v}
    elif alias == 15:  # one of several views
        found["h"], found["z"] = (w * 2).split(2)[0], randn(2, 3).unbind(0)[1]
    elif alias == 16:  # made under no_grad
        with torch.no_grad():
            found["h"], found["x"], found["g"] = (w * 2)[:], base[:2], v[:]
    elif alias == 17:  # made in inference mode
        with torch.inference_mode():
            found["x"], found["z"], found["h"] = randn(2, 3), z[:], made[:]
    elif alias == 18:  # views behind writes to what they show
        whole, parts = w * 3, randn(2, 3)
        found["h"], found["z"], found["y"] = whole[:], parts.unbind(0)[0], parts[:]
        whole.mul_(2), parts.add_(1)
    elif alias == 19:  # through `.data`
        found["x"], found["y"] = w.data, x.data
        found["z"].data = v.data
    found["i"], found["m"] = torch.tensor([1, 0, 1]), randn(rows, 3) > 0
    found["c"], found["e"] = torch.complex(randn(rows, 3), randn(rows, 3)), randn(0, 3)
    return found


#: rows, by the number that `arguments` takes; 2 for others
ROWS = {9: 4, 10: 1, 13: 5}
#: numbers for first calls, and numbers for later ones
FIRST = (0, 0, 0, *range(1, 9), *range(14, 20))
LATER = (*range(13), *range(14, 20))


@dataclasses.dataclass(frozen=True)
class TensorProgram:
    """lines: the function's body. result: what it returns. alias: see `arguments`; there is a call with `then` behind
    the first two (and one more, where that has other sizes). after: what the caller does when a call has returned."""

    lines: tuple[str, ...]
    result: tuple[str, ...]
    alias: int
    after: tuple[str, ...]
    then: int | None = None

    @property
    def source(self) -> str:
        body = "\n".join(self.lines)
        return (f"def fn({', '.join((*PARAMETERS, *OTHERS))}):\n    log = []\n{textwrap.indent(body, '    ')}\n"
                f"    return log, {', '.join(self.result)},\n")

    @property
    def calls(self) -> tuple[int, ...]:
        """What `arguments` is told at each call."""
        if self.then is None:
            return self.alias, self.alias
        return (self.alias, self.alias, self.then) + ((13,) if self.then in ROWS else ())

    def text(self) -> str:
        after = "\n".join(f"# after: {line}" for line in self.after)
        then = "" if self.then is None else f" then {self.then}"
        return f"{self.source}\n# alias: {self.alias}{then}\n{after}\n"


def parsed(text: str) -> TensorProgram:
    """The program of what `text` wrote."""
    body = text[text.index("    log = []\n"):].split("\n", 1)[1]
    lines, end = body.split("    return log, ", 1)
    result = tuple(name.strip() for name in end.split("\n", 1)[0].split(",") if name.strip())
    alias, then = re.search(r"^# alias: (\d+)(?: then (\d+))?", text, re.M).groups()  # type: ignore[union-attr]
    return TensorProgram(tuple(statements(textwrap.dedent(lines))), result, int(alias),
                         tuple(re.findall(r"^# after: (.*)$", text, re.M)), None if then is None else int(then))


def statements(text: str) -> list[str]:
    """Top-level statements, blocks as one."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith((" ", "except")) and found:
            found[-1] += "\n" + line
        elif line:
            found.append(line)
    return found


class Drawing:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shapes: dict[str, Shape] = dict(PARAMETERS)
        self.others: dict[str, tuple[str, Shape]] = dict(OTHERS)
        self.count = 0

    def program(self) -> TensorProgram:
        lines = [self.statement() for _ in range(self.random.randint(2, 9))]
        names = [name for name in (*self.shapes, *self.others) if name not in PARAMETERS and name not in OTHERS]
        names = self.random.sample(names, min(len(names), self.random.randint(1, 4)))
        names += self.random.sample([*PARAMETERS, *OTHERS], self.random.choice((0, 0, 1)))
        result = tuple(names or ["x"])
        after = tuple(self.later(result) for _ in range(self.random.choice((0, 0, 1, 2))))
        alias = self.random.choice(FIRST)
        then = self.random.choice(LATER) if self.random.random() < 0.25 else None
        return TensorProgram(tuple(lines), result, alias, after, then)

    def some(self, shape: Shape | None = None) -> str:
        names = [name for name, own in self.shapes.items() if shape is None or own == shape]
        recent = names[-4:]
        return self.random.choice(recent if self.random.random() < 0.5 else names) if names else f"torch.ones({shape})"

    def new(self, shape: Shape, kind: str = "float") -> str:
        self.count += 1
        name = f"t{self.count}"
        if kind == "float":
            self.shapes[name] = shape
        else:
            self.others[name] = kind, shape
        return name

    def other(self, kind: str) -> tuple[str, Shape]:
        """A tensor of another kind, and its shape."""
        return self.random.choice([(name, shape) for name, (own, shape) in self.others.items() if own == kind])

    def operand(self, shape: Shape) -> str:
        """Something that broadcasts to a shape."""
        fitting = [shape, ()] + ([shape[-1:]] if shape else [])
        if self.random.random() < 0.25:
            return self.random.choice(("0.5", "2", "-1.5"))
        known = [s for s in fitting if s in self.shapes.values()]
        return self.some(self.random.choice(known))

    def statement(self) -> str:
        kind = self.random.random()
        if kind < 0.26:
            return self.compute()
        if kind < 0.48:
            return self.view()
        if kind < 0.7:
            return self.write()
        if kind < 0.8:
            return self.of_other_kinds()
        if kind < 0.84:
            return self.in_a_block()
        known = dict(self.shapes)
        if kind < 0.91:
            # no views: one of a value that requires grad is a tensor of an odd kind, which `requires_grad` tells only
            # where its base is seen
            inner = [self.random.choice((self.write, self.compute))() for _ in range(2)]
            if self.random.random() < 0.15:
                inner[0] = "with torch.enable_grad():\n" + textwrap.indent(inner[0], "    ")
            return "with torch.no_grad():\n" + textwrap.indent("\n".join(inner), "    ")
        if kind < 0.97:
            inner = [self.random.choice((self.write, self.write, self.wrong))()]
            self.shapes = known
            return "try:\n" + textwrap.indent("\n".join(inner), "    ") + \
                "\nexcept (RuntimeError, IndexError, TypeError) as error:\n    log.append(str(error))"
        name = self.some()
        return self.random.choice((f"log.append({name}.requires_grad)", f"log.append({name}.is_leaf)",
                                   f"log.append(tuple({name}.stride()))", "torch._C._is_tracing()",
                                   f"log.append(({name}.dtype, {name}.ndim))"))

    def compute(self) -> str:
        a = self.some()
        shape = self.shapes.get(a, ())
        expression = self.random.choice((
            "{a} * {b}", "{a} + {b}", "{a} - {b}", "{a} * {b}", "torch.tanh({a})", "torch.sigmoid({a})",
            "torch.exp({a} * 0.25)", "torch.relu({a})", "torch.sin({a})", "{a}.clone()", "{a} * {a}",
            "{a} / ({b} * 0 + 2)", "torch.where({a} > 0, {a}, {b})", "{a}.clamp(-1, 1)", "{a}.contiguous()",
            "torch.nn.functional.gelu({a})", "torch.empty_like({a}).copy_({b})", "{a}.masked_fill({a} > 0.5, 1.0)",
            "torch.lerp({a}, {a} * 2, 0.25)", "{a}.abs().pow(2)", "{a}.double()", "{a}.nan_to_num()", "1 - {a}",
            "torch.nn.functional.dropout({a}, 0.5)", "torch.rand_like({a})", "torch.zeros_like({a})",
            "{a}.new_ones({s})",
            "{a}.flip(-1)" if shape else "-{a}", "torch.addcmul({a}, {a}, {b} * {a})", "torch.maximum({a}, {a} * 2)",
        )).format(a=a, b=self.operand(shape), s=f"{a}.shape")
        if shape and self.random.random() < 0.2:
            expression, shape = self.random.choice((
                (f"{a}.sum()", ()), (f"{a}.sum(-1)", shape[:-1]), (f"torch.softmax({a}, -1)", shape),
                (f"{a}.mean(0)", shape[1:]), (f"torch.cat([{a}, {a}])", (shape[0] * 2, *shape[1:])),
                (f"{a}.norm()", ()), (f"torch.view_as_real(torch.complex({a}, {a} * 2))", (*shape, 2)),
                (f"torch.complex({a}, {a}).conj().imag", shape), (f"{a}.cumsum(-1)", shape),
                (f"{a}.amax(-1, keepdim=True)", (*shape[:-1], 1)), (f"torch.stack([{a}, {a} * 2], -1)", (*shape, 2)),
                (f"torch.nn.functional.pad({a}, (0, 1))", (*shape[:-1], shape[-1] + 1)),
                (f"torch.nn.functional.layer_norm({a}, {a}.shape[-1:])", shape), (f"{a}.repeat_interleave(2, -1)",
                                                                                 (*shape[:-1], shape[-1] * 2)),
                (f"{a} @ {a}.mT" if len(shape) > 1 else f"{a} @ {a}",
                (*shape[:-1], shape[-2]) if len(shape) > 1 else ()),
            ))
        return f"{self.new(shape)} = {expression}"

    def view(self) -> str:
        a = self.some()
        shape = self.shapes.get(a, ())
        last = shape[-1] if shape else 0
        choices: list[tuple[str, Shape]] = [(f"{a}.detach()", shape), (f"{a}.unsqueeze(0)", (1, *shape)),
                                            (f"{a}.view_as({a})", shape)]
        if self.random.random() < 0.2:
            choices.append((f"{a}.data", shape))
        if shape:
            choices += [(f"{a}[0]", shape[1:]), (f"{a}[..., 1:]", (*shape[:-1], last - 1)),
                        (f"{a}.select(-1, 0)", shape[:-1]), (f"{a}.flatten()", (_numel(shape),)),
                        (f"{a}.expand(2, *{a}.shape)", (2, *shape)),
                        (f"{a}.chunk(2, -1)[0]", (*shape[:-1], (last + 1) // 2)), (f"{a}[None]", (1, *shape)),
                        (f"{a}[..., None]", (*shape, 1)), (f"{a}.ravel()", (_numel(shape),)),
                        (f"{a}.view(-1)", (_numel(shape),)), (f"{a}.movedim(0, -1)", (*shape[1:], shape[0])),
                        (f"{a}[..., ::2]", (*shape[:-1], (last + 1) // 2)),
                        (f"{a}.squeeze(-1)", shape[:-1] if last == 1 else shape),
                        (f"{a}.tensor_split(2, -1)[-1]", (*shape[:-1], last // 2)),
                        (f"{a}.narrow(-1, 0, 1)", (*shape[:-1], 1)), (f"{a}.unbind(0)[-1]", shape[1:]),
                        (f"{a}.split(1)[0]", (1, *shape[1:])), (f"{a}[:1]", (1, *shape[1:]))]
        if last > 1:
            choices.append((f"{a}.unfold(-1, 2, 1)", (*shape[:-1], last - 1, 2)))
        if len(shape) == 2:
            choices += [(f"{a}.mT", shape[::-1]), (f"{a}.t()", shape[::-1]), (f"{a}.transpose(0, 1)", shape[::-1]),
                        (f"{a}.diagonal()", (min(shape),)), (f"{a}.reshape(-1)", (_numel(shape),)),
                        (f"{a}[:, 0]", shape[:1])]
        if _numel(shape) >= 4 and self.random.random() < 0.1:
            choices.append((f"{a}.as_strided((2, 2), (1, 2))", (2, 2)))
        expression, made = self.random.choice([c for c in choices if 0 not in c[1]])
        return f"{self.new(made)} = {expression}"

    def write(self) -> str:
        a = self.some()
        shape = self.shapes.get(a, ())
        b = self.operand(shape)
        choices = [f"{a}.mul_({b})", f"{a}.add_({b})", f"{a} += {b}", f"{a}.sub_({b})", f"{a}.fill_(0.5)",
                   f"{a}.zero_()", f"{a}.tanh_()", f"{a}.clamp_(-1, 1)", f"{a}.masked_fill_({a} > 0, 0.25)",
                   f"{a}.copy_({self.some(shape)})", f"{a}.sigmoid_()", f"{a}.mul_({a})", f"{a} *= 2",
                   f"{a}.addcmul_({a} * 2, {b} * {a})", f"{a}.lerp_({a} * 2, 0.5)", f"{a} /= 2", f"{a} -= {b}",
                   f"{a}.abs_()", f"{a}.uniform_()", f"torch._foreach_mul_([{a}, {self.some()}], 0.5)"]
        if shape:
            part = self.some(shape[1:]) if shape[1:] in self.shapes.values() else "0.75"
            choices += [f"{a}[0] = {part}", f"{a}[0] += 1", f"{a}[{a} > 0] = 0.125", f"{a}[..., :1].mul_(3)",
                        f"{a}.index_put_((torch.tensor([0]),), torch.tensor(2.0))", f"{a}[0].add_({part})",
                        f"{a}.index_fill_(0, torch.tensor([0]), 1.5)", f"{a}.cumsum_(-1)",
                        f"{a}.index_put_(({a} > 0.5,), torch.tensor(2.0), accumulate=True)",
                        f"{a}.masked_scatter_({a} > 0, {a} * 2)", f"{a}[..., 0] = {a}[..., -1]",
                        f"{a}[...] = {b}", f"{a}.index_add_(0, torch.tensor([0]), {a}[:1].clone())"]
        if self.random.random() < 0.08:
            choices = [f"{a}.requires_grad_()", f"{a}.requires_grad = False", f"{a}.detach_()",
                       f"{a}.data.mul_({b})", f"{a}.detach().add_({b})"]
        elif self.random.random() < 0.06:
            other = self.some(shape)
            choices = [f"{a}.data = {other}", f"{a}.data = {other}.data", f"{a}.data = {a}.data * 0.9 + {other}.data",
                       f"{a}.data = {other} * 2", f"{a}.data.copy_({other})", f"{a}.data.clamp_(-1, 1)",
                       f"{a}.data, {other}.data = {other}.data, {a}.data", f"{a}.data += {b}",
                       f"if True:\n    kept = {a}.data\n    {a}.data = {other}.data + 1\n    {a}.data = kept"]
        elif self.random.random() < 0.05:
            choices = [f"torch.add({self.some(shape)}, {b}, out={a})", f"torch.mul({a}, {b}, out={a})",
                       f"torch.sin({self.some(shape)}, out={a})", f"torch.cat([{self.some(shape)}], out={a})",
                       f"torch.cumsum({self.some(shape)}, 0, out={a})"]
        return self.random.choice(choices)

    def wrong(self) -> str:
        """A call that eager refuses, nearly always."""
        a, (i, _), (m, _), (e, _) = self.some(), self.other("int"), self.other("bool"), self.other("empty")
        return self.random.choice((
            f"{a}.add_(1j)", f"{i}.add_(0.5)", f"{i} /= 2", f"{m} += 1", f"{m} - {m}", f"{a}.view(7, 7)", f"{e}.max()",
            f"{a}.add_(torch.ones(2, 5, 1, 7))", f"{a} @ torch.ones(9, 9)", f"{a}[99]", f"{a}[..., None, None, 5]",
            f"torch.cat([{a}, torch.ones(2, 2, 2, 2)])", f"{a}.sum(7)", f"torch.stack([{a}, torch.ones(9)])",
            f"{a}.clamp()", f"{a}.expand(7, 7, 7)", f"{a}.masked_fill_({a} > 0, 1j)", f"{i}.mean()", f"{a} & {a}",
            f"torch.mul({a}, 2, out={i})", f"{a}.squeeze(5)", f"{a}.to('nowhere')", f"{a}.index_select(0, {a})",
            f"{a}.copy_(torch.ones(9, 9))", f"torch.where({a}, 1, 2)", f"{a}.transpose(0, 9)",
            f"{a}.unflatten(0, (5, 5))",
            f"{e}.argmax(0)", f"{a}.split(0)", f"{a}.missing_()", f"{a}.scatter_(0, {a}, 1.0)", f"{a}.mul_('2')",
            f"torch.lerp({a}, {i}, 0.5)", f"{a}.fill_({a} if {a}.ndim else torch.ones(2))", f"{a}.sum().view(2)",
        ))

    def of_other_kinds(self) -> str:
        kind = self.random.choice(("int", "bool", "complex", "empty"))
        name, shape = self.other(kind)
        more = self.random.choice([n for n, (own, other) in self.others.items() if (own, other) == (kind, shape)])
        if self.random.random() < 0.3:
            return self.random.choice(_WRITES[kind]).format(a=name, b=more)
        if kind == "bool" and self.random.random() < 0.4:
            return self.with_mask(name, shape)
        if kind == "int" and len(shape) == 1 and self.random.random() < 0.4:
            return self.with_index(name, shape)
        expression, made, change = self.random.choice(_EXPRESSIONS[kind])
        wanted = {"": shape, "()": (), "1": (1, *shape), "2": (*shape, 2), "23": (2, 3), "3": (3,)}[change]
        return f"{self.new(wanted, made)} = {expression.format(a=name, b=more, f=self.some((2, 3)))}"

    def with_mask(self, m: str, shape: Shape) -> str:
        a, b = self.some(shape), self.some(shape)
        target = self.random.choice((
            f"{a}[{m}] = 0.5", f"{a}[{m}] += 1", f"{a}.masked_fill_({m}, 2)",
            f"{a}.index_put_(({m},), torch.tensor(3.0))",
            f"{a}.masked_scatter_({m}, {b} * 2)", "", "", ""))
        if target:
            return target
        expression, made = self.random.choice(((f"torch.where({m}, {a}, {b})", shape), (f"{a}[{m}].sum()", ()),
                                               (f"{a}.masked_fill({m}, -1.0)", shape), (f"{a} * {m}", shape),
                                               (f"{a}.masked_select({m}).mul(2).sum()", ())))
        return f"{self.new(made)} = {expression}"

    def with_index(self, i: str, shape: Shape) -> str:
        a = self.some((2, 3)) if self.random.random() < 0.5 else self.some()
        own = self.shapes.get(a, ())
        if not own:
            return f"{self.new(())} = {a} * {i}.sum()"
        rows = shape[0]
        if self.random.random() < 0.4:
            return self.random.choice((
                f"{a}[{i} % 2] = 0.25", f"{a}.index_add_(0, {i} % 2, {a}[:1].expand({rows}, *{a}.shape[1:]).clone())",
                f"{a}.index_fill_(0, {i} % 2, 2.0)", f"{a}[{i} % 2] *= 2",
                f"{a}.index_put_(({i} % 2,), torch.tensor(1.0), accumulate=True)",
                f"{a}.index_copy_(0, {i}[:1] % 2, {a}[:1] * 2)"))
        expression = self.random.choice((f"{a}[{i} % 2]", f"{a}.index_select(0, {i} % 2)", f"{a}[{i}]"))
        return f"{self.new((rows, *own[1:]))} = {expression}"

    def in_a_block(self) -> str:
        """Tensors held by objects and lists; other modes; a gradient."""
        a, b = self.some(), self.some()
        shape, other = self.shapes.get(a, ()), self.shapes.get(b, ())
        kind = self.random.randrange(8)
        if kind == 0:
            lines = [f"box = types.SimpleNamespace(t={a}, deep=[{b}, [{a}]])",
                     self.random.choice(("box.t += 1", "box.t = box.t * 2", "box.deep[1][0].mul_(2)",
                                         "box.deep[0], box.t = box.t, box.deep[0]", "box.deep[1].append(box.t)")),
                     f"{self.new(shape)} = box.deep[1][0]"]
        elif kind == 1:
            lines = [f"parts = [{a}, ({b}, {a})]", self.random.choice((
                "parts[0] += parts[1][1]", "parts[0] = parts[0] * 2", "parts.reverse()", "parts[1][0].mul_(0.5)")),
                f"{self.new(other)} = parts[0][0] if type(parts[0]) is tuple else parts[1][0]"]
        elif kind == 2:
            return f"with torch.autocast('cpu', torch.bfloat16):\n    {self.new(())} = ({a} @ {a}.mT).sum()" \
                if len(shape) > 1 else f"with torch.autocast('cpu', torch.bfloat16):\n    {self.new(shape)} = {a} * 2"
        elif kind == 3:
            inner, made = self.random.choice(((f"{a} * 2", shape), (f"{a}.mul_(2)", shape), (f"{a}[None]",
            (1, *shape))))
            return f"with torch.inference_mode():\n    {self.new(made)} = {inner}"
        elif kind == 6:
            made = self.random.choice((f"torch.ones({shape}) * {a}", f"torch.full({shape}, 0.5)",
                                       f"torch.rand({shape})", f"{a} * torch.tensor(0.5)",
                                       f"torch.zeros({shape}).add_({a})"))
            lines = ["torch.set_default_dtype(torch.float64)", "try:", f"    {self.new(shape)} = {made}", "finally:",
                     "    torch.set_default_dtype(torch.float32)"]
        elif kind == 7:
            lines = ["generator = torch.Generator().manual_seed(7)", self.random.choice((
                f"{self.new(shape)} = torch.rand({shape}, generator=generator)",
                f"{self.new(shape)} = {a} * torch.randn({shape}, generator=generator)",
                f"{a}.uniform_(generator=generator)", f"{a}.normal_(0, 1, generator=generator)"))]
        elif kind == 4:
            lines = [f"if {a}.requires_grad:",
                     f"    log.append(torch.autograd.grad({a}.sum() * {b}.sum(), {a}, retain_graph=True)[0].stride())"]
        else:
            parts = self.random.choice((f"{a}.unbind(0)", f"{a}.split(1)", f"[{a}, {b}]"))
            each = self.random.choice(("total = total + part.sum()", "part.mul_(2)", "total += part.mean()"))
            lines = ["total = 0", f"for part in {parts}:", f"    {each}",
                     f"{self.new(())} = torch.as_tensor(total) * 1.0"]
        return "if True:\n" + textwrap.indent("\n".join(lines), "    ")

    def later(self, result: tuple[str, ...]) -> str:
        name = self.random.choice((*(f"out[{k}]" for k in range(len(result))), "args['x']", "args['w']", "args['z']",
                                   "args['h']"))
        # a hook on a view whose base was written to crashes torch itself until its `grad_fn` is looked at
        # nothing through `.data`: what a compiled backward pass reads is not all that eager's does (see the README)
        return self.random.choice((f"{name}.detach().add_(1)", f"{name}.mul_(2)", f"{name}[:1].detach().mul_(0.5)",
                                   f"{name} * 2", f"{name}.grad_fn; {name}.register_hook(lambda grad: grad * 3)",
                                   f"{name}.grad_fn; {name}.retain_grad(); watched.append({name})"))


def _numel(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


#: what is computed of tensors of other kinds: expression, kind, and what becomes of the shape
_EXPRESSIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "int": (("{a} + {b}", "int", ""), ("{a} * 2", "int", ""), ("{a} // 2", "int", ""), ("{a} * 0.5", "float", ""),
            ("{a}.to(torch.float32)", "float", ""), ("{a} > 0", "bool", ""), ("{a}.sum()", "int", "()"),
            ("{a} / 2", "float", ""), ("{a} % 2", "int", ""), ("{a}.clamp(0, 1)", "int", ""), ("{a}[None]", "int", "1"),
            ("{a} ** 2", "int", ""), ("-{a}", "int", ""), ("{a}.int() + {b}", "int", ""), ("torch.arange(3)", "int",
            "3"),
            ("{a} * True", "int", ""), ("torch.true_divide({a}, 2)", "float", ""), ("{a}.abs().float().sqrt()",
            "float", ""),
            ("{a} << 1", "int", ""), ("({f} > 0).to(torch.int64)", "int", "23"), ("{a}.float().requires_grad_()",
            "float", "")),
    "bool": (("~{a}", "bool", ""), ("{a} & {b}", "bool", ""), ("{a} ^ {b}", "bool", ""), ("{a}.sum()", "int", "()"),
             ("{a}.any()", "bool", "()"), ("{a}.to(torch.float32)", "float", ""), ("{a} * 2", "int", ""),
             ("{f} > 0", "bool", "23"), ("{a} + {b}", "bool", ""), ("{a} * 0.5", "float", ""), ("{a}[None]", "bool",
             "1"),
             ("{f}.isnan()", "bool", "23"), ("torch.where({a}, 1, 0)", "int", ""), ("torch.where({a}, 1.0, 0)",
             "float", "")),
    "complex": (("{a} * {b}", "complex", ""), ("{a}.conj()", "complex", ""), ("{a}.abs()", "float", ""),
                ("{a}.real", "float", ""), ("{a}.imag", "float", ""), ("torch.view_as_real({a})", "float", "2"),
                ("torch.complex({f}, {f} * 2)", "complex", "23"), ("{f} + 1j", "complex", "23"), ("{a} * 2j",
                "complex", ""),
                ("{a}.sum()", "complex", "()"), ("{a}.conj().imag", "float", ""), ("{a}[None]", "complex", "1"),
                ("torch.exp({a} * 0.25)", "complex", ""), ("{a} + {b}.real", "complex", ""), ("{a}.conj().clone()",
                "complex", ""),
                ("{a}.angle()", "float", ""), ("{a}.resolve_conj()", "complex", ""), ("{a} / 2", "complex", "")),
    "empty": (("{a} * 2", "empty", ""), ("{a}.sum()", "float", "()"), ("torch.cat([{a}.view(0, 3), {f}])", "float",
              "23"),
              ("{a}.mean()", "float", "()"), ("{a}.clone()", "empty", ""), ("{a} + {b}", "empty", ""), ("{a}.exp()",
              "empty", ""),
              ("{a}.view(0, 3).sum(0)", "float", "3"), ("{f}[:0]", "empty", ""), ("{a}[None]", "empty", "1"),
              ("{a}.prod()", "float", "()"), ("{a}.view(0, 3).mT.contiguous().mT", "empty", ""), ("{a}.norm()",
              "float", "()")),
}
#: what is written to them
_WRITES: dict[str, tuple[str, ...]] = {
    "int": ("{a} += 1", "{a}.mul_(2)", "{a}.zero_()", "{a}.clamp_(0, 1)", "{a} %= 2", "{a}.fill_(1)", "{a} <<= 1",
            "{a}.add_({b})", "{a}.copy_({b} * 1.5)", "{a}.neg_()", "{a} //= 2", "{a}.bitwise_xor_({b})"),
    "bool": ("{a} |= {b}", "{a}.logical_not_()", "{a}.fill_(1)", "{a} &= {b}", "{a} ^= True", "{a}.copy_({b} * 2.5)",
             "{a}.zero_()", "{a}.logical_and_({b})", "{a}.masked_fill_({b}, False)"),
    "complex": ("{a}.mul_(2)", "{a}.mul_(1j)", "{a} += {b}", "{a}.real.mul_(2)", "{a}.imag.zero_()",
                "{a}.conj_physical_()",
                "{a}.conj().mul_(2)", "{a}.copy_({b}.real)", "{a} *= {b}.imag", "torch.view_as_real({a}).add_(1)",
                "{a}.neg_()"),
    "empty": ("{a}.add_(1)", "{a}.mul_({b})", "{a}.zero_()", "{a}.copy_({b} * 2)", "{a}.clamp_(0, 1)", "{a}.tanh_()",
              "{a}[{a} > 0] = 1"),
}
