"""Texts made of numbers that only the graph knows, or that are symbolic: made behind the graph, looked at in a break.

PYTEST_DONT_REWRITE.
"""

# ruff: noqa: UP031, UP032, F507, F509
from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch

import jitpy
from tests.counting import variants
from tests.semantics.harness import case, make_test


def one() -> tuple[torch.Tensor, ...]:
    return (torch.full((4,), 0.75),)


@case(one, fullgraph=True)
def formatted_in_every_way(x):
    n, k = x.sum().item(), int((x > 0).sum())
    return (x * 2, f"n={n}", f"{n:.2f} {k:>4}|{k!r:5}", "%s %d %.1f" % (n, k, n), "{} {a:e}".format(n, a=n), str(k),
            repr(n), format(n, "g"), ", ".join([str(n), "x", str(k)]), "a" + str(n) + f"{k}" + "b", f"{x.sum()} {k:b}")


@case(one, fullgraph=True)
def in_containers_and_attributes(x):
    n = x.mean().item()
    names = [f"{n:.1f}"]
    names.append(names[0] + "!")
    found = {"text": names, "same": names[0] is names[0]}
    return x + 1, found


@case(one, fullgraph=True)
def printed(x):
    n = x.sum().item()
    print("the sum is", f"{n:.2f}", n)
    return x * 2


@case(one, fullgraph=True)
def of_truth_values(x):
    positive = (x.sum() > 0).item()
    return x + 1, f"{positive}", "%s" % positive, f"{positive:d}"


@case(one, fullgraph=True)
def caught_error_with_a_message(x):
    n = x.sum().item()
    try:
        raise ValueError(f"bad {n}")
    except ValueError as error:
        return x + 1, str(error), error.args


@case(one, breaks=("unsupported_value",))
def looked_at(x):
    text = f"{x.sum().item():.1f}"
    y = x + 1
    if len(text) > 3:
        y = y * 2
    return y, text


@case(one, breaks=("unsupported_value",))
def as_a_key(x):
    n = x.sum().item()
    return {f"k{n}": x * 2}


@case(one)
def a_format_that_does_not_fit(x):
    try:
        return x, f"{x.sum().item():d}"
    except ValueError as error:
        return x + 1, str(error)


@case(one)
def a_type_that_does_not_fit(x):
    text = f"{x.sum().item()}"
    try:
        return x, text + 1
    except TypeError as error:
        return x + 1, str(error)


@case(lambda: (torch.tensor([float("nan"), 1.0]),))
def not_a_number_as_an_integer(x):
    n = x.sum().item()
    try:
        return "%d" % n
    except ValueError as error:
        return x + 1, str(error)


@case(one)
def methods_of_a_text(x):
    text = f"n {x.sum().item():.1f}"
    return x * 2, text.upper(), text.split(" "), text == "n 3.0", "3" in text, [c for c in text], text * 2, text[1:]


@case(one)
def across_a_break(x):
    text = f"{x.sum().item():.3f}"
    y = x + 1
    jitpy.graph_break()
    return y * 2, text + "!"


@case(lambda: (torch.tensor([3, 4]),), fullgraph=True)
def checks_of_arguments(x):
    n = x.sum()
    torch._check(n.item() == 7, lambda: f"{n} is not 7")
    if n.item() != 7:
        raise ValueError(f"Image features and image tokens do not match: {n}, {x.shape[0]}")
    return x + 1


@case(*(lambda v=v: (torch.ones(2), v)
        for v in ((1, b"a", "x", b"q"), (2, b"a", "x", b"q"), (1, "a", "x", b"q"), (1,))))
def bytes_of_a_tuple(x, v):
    return x + 1, b"%d %s %a %b" % v, b"%d of %d" % (x.shape[0], v[0])


@case(*(lambda v=v: (torch.ones(2), v) for v in (65, 66, 0x10FFFF, 0x110000, -1, 2**70)))
def character_out_of_range(x, v):
    return x + 1, f"{v:c}"


@case(*(lambda v=v: (torch.ones(2), v) for v in (10, 4299, 4300, 4301)))
def numbers_with_too_many_digits(x, v):
    long = [10**v]
    said = []
    for show in (repr, str, lambda a: f"{a}", lambda a: f"{a!a}", lambda a: f"{a[0]:d}", lambda a: "%s" % a):
        try:
            said.append(len(show(long)))
        except ValueError as error:
            said.append(str(error))
    return x + 1, said


def numbers_in_tensors():
    return torch.tensor(3.25), torch.tensor(4), torch.tensor([[2.5]]), torch.tensor(1.5, requires_grad=True)


@case(numbers_in_tensors, fullgraph=True)
def tensors_printed_as_numbers(a, b, c, d):
    print("%.3f" % a, "%d" % b, "x %5.1e|" % c, "%i %g" % (a, b), "%s %.2f%%" % ("q", a * 2), "%d" % a)
    print("%-8.2f|%+d" % (d * 2, b), "%f" % b)
    return a + 1


def _tried(make):
    try:
        return make()
    except Exception as error:
        return type(error), str(error)


@case(lambda: (torch.tensor(3.25), torch.tensor(4), torch.randn(2, 2), torch.tensor(1 + 2j)))
def tensors_that_are_no_numbers_to_texts(a, b, c, d):
    return (a + 1, _tried(lambda: "%f" % c), "%s" % a, _tried(lambda: "abc" % a), _tried(lambda: "%f %f" % a),
            _tried(lambda: "%(a)s" % a), "%*d" % (3, b), _tried(lambda: "%x" % b), _tried(lambda: "%f" % d),
            _tried(lambda: "%f" % (a, b)), _tried(lambda: "%q" % a), _tried(lambda: "%d" % torch.tensor(float("nan"))))


@case(one, fullgraph=True)
def tensors_as_texts(x):
    y = x * 2
    before = f"y = {y}"
    y.add_(1)
    print(before, f"{y!r:>5}", str(x), "a" + str(x[0]) + "b")
    return y, before, f"{y}", _tried(lambda: f"{x:.2f}")


@case(one)
def tensors_as_texts_that_are_looked_at(x):
    t = str(x * 2)
    kept = f"{x}"
    jitpy.graph_break()
    torch.set_printoptions(precision=2)
    try:
        shown = str(x / 3)
    finally:
        torch.set_printoptions(precision=4)
    return len(t), t.split(","), {t: 1}, kept, shown, x + 1


@case(lambda: (torch.randn(2, 3, requires_grad=True),), lambda: (torch.nn.Parameter(torch.randn(2)),),
      lambda: (torch.arange(3),), lambda: (torch.tensor([True]),), lambda: (torch.randn(2).to(torch.bfloat16),),
      lambda: (torch.tensor(1 + 2j),), lambda: (torch.zeros(0, 3),))
def texts_of_all_kinds_of_tensors(x):
    return str(x), f"{x}", repr(x * 1), x + 0


class Holder:
    def __init__(self, held):
        self.held = held

    def __repr__(self):
        return f"Holder({self.held})"

    def __format__(self, spec):
        return super().__format__("") + spec


@case(one)
def texts_of_what_holds_tensors(x):
    return (f"{Holder(x):q}", str(Holder(x)), str([x[0]]), f"{(x[0], 1)}", "{0} {1}".format(x, 1), "%s %d" % (x, 3),
            _tried(lambda: object.__format__(Holder(x), "d")), x + 1)


test_cases = make_test(__name__)


#: what programs do with a string `s`
USES = (
    "s*2", "2*s", "s%(1,)", "s+1", "1+s", "s<'b'", "s<1", "s==1", "s!='x'", "s[0]", "s[1:]", "s['a']", "[1]+s",
    "s+[1]", "len(s)", "list(s)", "list(map(str.upper,s))", "s()", "-s", "not s", "int(s)", "float(s)", "'3' in s",
    "s in 'abc3.0'", "s in ['a',s]", "{s:1}", "{s}", "[1,2][s]", "range(s)", "sorted([s,'0'])", "max(s,'0')",
    "min([s,'0'],key=lambda v:v*2)", "sum([s])", "''.join([s,1])", "''.join(s)", "s.join(['a','b'])",
    "hash(s)==hash(str(s))", "isinstance(s,str)", "type(s)", "s.x", "s.upper()", "getattr(x,s)", "f'{s:>10}'",
    "f'{s!r}'", "'%s|%r'%(s,s)", "'{0}{0!r}'.format(s)", "s.format(1)", "s.replace('.',',')", "s.split('.')",
    "s is s", "s is not None", "bool(s)", "s or 'q'", "s and 'q'", "tuple(s)", "dict([(s,1)])", "str(s)", "repr(s)",
    "eval(s)", "ord(s)", "abs(s)", "round(s)", "s if s else 1", "functools.reduce(lambda a,b:a+b,[s,'a','b'])",
    "functools.reduce(lambda a,b:a*2+b,[s,'a','b'])", "sorted([1,2],key=lambda k:s*k)", "print(s)", "[*s]",
    "s>='a'<s", "x*s", "x+s", "x==s", "s%x", "torch.ones(s)", "x[s]", "x.view(s)", "s@s", "s//2", "s**2",
    "str.upper(s)", "str.__add__(s,'a')", "s.__len__()", "enumerate(s).__next__()", "zip(s,s).__next__()", "all(s)",
    "any(s)", "bytes(s,'utf8')", "s.encode()", "divmod(s,2)", "pow(s,2)", "iter(s).__next__()",
    "reversed(s).__next__()", "callable(s)", "hasattr(s,'upper')", "hasattr(s,'nope')",
    "format(s,'d')", "format(s,'5')", "'a' 'b'+s+s", "s.startswith('n')", "s.strip()", "{**{s:1}}[s]",
    "copy.copy(s)", "copy.deepcopy([s])",
)
#: (how `s` comes about, calls until it is a text that tracing does not know, and one more)
ORIGINS = {
    "computed": ("s = f'n{x.sum().item():.1f}'", 3),
    "size": ("s = f'{x.shape[0]}'", 4),
    "changing": ("s = w", 7),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_every_use_of_a_text_is_as_in_eager(origin: str, capsys: Any) -> None:
    """Captured, or broken where the text is looked at; never another value, nor another exception."""
    making, calls = ORIGINS[origin]
    different = []
    for use in USES:
        space: dict[str, Any] = {"torch": torch, "functools": functools, "copy": copy}
        exec(f"def program(x, w):\n    {making}\n    y = x + 1\n    try:\n        found = {use}\n"
             "    except Exception as error:\n        found = type(error), str(error)\n    return y, found\n", space)
        program = space["program"]
        fast = jitpy.jit(program, backend="eager")
        for step in range(2, 2 + calls):
            x, w = torch.ones(step), f"w{step}"
            wanted, found = program(x, w), fast(x, w)
            if repr(wanted) != repr(found):
                different.append((use, step, wanted, found))
    assert not different, different


PROGRAMS: dict[str, Any] = {
    "f-string": lambda x: (x + 1, f"n={x.shape[0]:>3}"),
    "joined": lambda x: (x + 1, "x".join([str(n) for n in x.shape] + ["b"])),
    "computed": lambda x: (x + 1, "%d of %d" % (x.shape[0] * 2, x.numel())),
    "sum": lambda x: (x + 1, f"{x.sum().item()}"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_of_sizes_compile_once_for_all_sizes(name: str) -> None:
    jitpy.reset()
    program = PROGRAMS[name]
    fast = jitpy.jit(program, backend="eager", fullgraph=True)
    for size in (3, 4, 5, 9, 17, 2):
        x = torch.arange(float(size))
        wanted, found = program(x), fast(x)
        assert torch.equal(wanted[0], found[0]) and wanted[1] == found[1]
    assert variants() == 2


def test_a_text_of_a_size_that_is_looked_at_is_fixed() -> None:
    """As a key, it has to be known: compiled for each size, then the graph breaks."""
    def program(x: torch.Tensor, names: dict[str, int]) -> torch.Tensor:
        return x * names[f"n{x.shape[0]}"]

    fast = jitpy.jit(program, backend="eager")
    names = {f"n{n}": n for n in range(20)}
    for size in (3, 4, 5, 3, 4, 9, 12, 13):
        x = torch.ones(size)
        assert torch.equal(fast(x, names), program(x, names))
