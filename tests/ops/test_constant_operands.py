"""Every op of the table on what the graph itself made: constant tensors, Python numbers, sizes and `.item()` numbers.

torch's samples feed ops with inputs of the graph only. Here each op of the table is called with `zeros`, `ones`,
`full`, `arange`, `eye`, `zeros_like`, `full_like` and numbers of each kind as its operands, in each dtype that eager
takes, alone and with a neighbour that is fused with it. Everything must compile and be equal to eager.

A sample by default, chosen by a hash of op and dtype; JITPY_TEST_ALL=1 runs all. Several ops share a compilation.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

import jitpy
from jitpy.errors import SpecializationError
from jitpy.ir import ops
from tests.databases.comparing import ALL, compare, copied, observe
from tests.ops.table_calls import Call, calls, table_ops, tensors_in

#: Of so many pairs of op and dtype one is tested by default.
SHARE = 180
#: So many ops share a function.
GROUP = 6
#: Above this the products of the numbers of a range overflow, in an order that is eager's own.
LONGEST_RANGE = 30

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
)  # fmt: skip

#: Constants as text: `s` is a shape, `n` how many elements that is, `d` a dtype, `v` a number, `x` an input.
CONSTANTS = {
    "zeros": "torch.zeros({s}, dtype={d})",
    "ones": "torch.ones({s}, dtype={d})",
    "full": "torch.full({s}, {v}, dtype={d})",
    "arange": "torch.arange({n}, dtype={d}).reshape({s})",
    "remainders": "(torch.arange({n}) % 5).to({d}).reshape({s})",
    "eye": "torch.eye({r}, {c}, dtype={d}).reshape({s})",
    "zeros_like": "torch.zeros_like({x})",
    "full_like": "torch.full_like({x}, {v})",
    "tensor": "torch.tensor({v}, dtype={d})",
}
#: Numbers as text: the first size of the input `p` varies, `i` and `f` are tensors of one number.
NUMBERS = {
    "bool": "True", "int": "2", "negative": "-3", "float": "0.75", "complex": "(1+2j)", "size": "p.shape[0]",
    "float of a size": "(p.shape[0] * 0.5)", "item of ints": "i.item()", "item of floats": "f.item()",
}  # fmt: skip
#: The neighbour behind the op: `{0}` is its result, `{1}` an input of that shape and dtype.
NEIGHBOURS = {
    "plus": "{0} + {1}", "twice": "{0} * 2", "max": "{0}.max()", "sum": "{0}.sum()", "any": "{0}.any(-1)",
    "select": "torch.where({1} > 0, {0}, {1})",
}  # fmt: skip

#: Of functions that are off by some roundings.
TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.complex64: 1e-5}


class Line(NamedTuple):
    """One result of a tested function: the text that computes it, and what that is about."""

    label: str
    text: str


class Function:
    """A function of many results, written out as text, with the inputs of its two calls."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.names: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan}
        self.calls: tuple[dict[str, Any], dict[str, Any]] = (
            {"p": torch.ones(3), "i": torch.tensor(2), "f": torch.tensor(0.75)},
            {"p": torch.ones(5), "i": torch.tensor(3), "f": torch.tensor(0.25)},
        )

    def name_of(self, value: Any) -> str:
        """The text of an argument, or the name that it is given."""
        if isinstance(value, torch.Tensor):
            name = f"x{len(self.calls[0])}"
            for inputs in self.calls:
                inputs[name] = value
            return name
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.name_of, value))}]"
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def values(self, text: str) -> list[Any] | None:
        """Eager's results of an expression in both calls; None where it raises."""
        try:
            return [eval(text, {**self.names, **copied(inputs)}) for inputs in self.calls]
        except Exception:
            return None

    def add(self, label: str, text: str, neighbour: str) -> None:
        """Two results, of the op alone and of the op with a neighbour, where eager takes that. Of several results of
        the op it is the last tensor."""
        values = self.values(text)
        if values is None:
            return
        if isinstance(values[0], (list, tuple)):
            places = [k for k, part in enumerate(values[0]) if isinstance(part, torch.Tensor)]
            if not places:
                return
            text, values = f"{text}[{places[-1]}]", [value[places[-1]] for value in values]
        result = values[0]
        if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
            return
        self.lines.append(Line(label, text))
        other = ""
        if "{1}" in NEIGHBOURS[neighbour]:
            other = self.name_of((torch.arange(result.numel()) % 3).reshape(result.shape).to(result.dtype))
        fused = NEIGHBOURS[neighbour].format(text, other)
        if self.values(fused) is not None:
            self.lines.append(Line(f"{label}, {neighbour}", fused))

    def callable(self, lines: list[Line]) -> Callable[..., list[Any]]:
        """The function that computes these lines."""
        results = "".join(f"        {line.text},\n" for line in lines)
        scope = dict(self.names)
        exec(f"def f({', '.join(self.calls[0])}):\n    return [\n{results}    ]\n", scope)
        return scope["f"]  # type: ignore[no-any-return]

    def failures(self, lines: list[Line], tolerance: float | None, marked: bool = True) -> list[str]:
        """Failures of the jitted lines, each with its text: it does not compile, or differs from eager. Sizes
        are symbolic from the first call on (`marked`) where they can be symbolic at all."""
        if not lines:
            return []
        fn = self.callable(lines)
        jitpy.reset()
        compiled = jitpy.jit(fn)
        found: dict[int, str] = {}
        for inputs in self.calls:
            inputs = {**inputs, "p": inputs["p"].clone()}
            if marked:
                jitpy.mark_dynamic(inputs["p"], 0)
            plain = observe(fn, ((), inputs))
            assert plain.error is None, plain.error
            jitted = observe(compiled, ((), inputs))
            if jitted.error is not None:
                if jitted.error[0] is SpecializationError:
                    return self.failures(lines, tolerance, marked=False)
                half = len(lines) // 2
                if half:
                    return [f for part in (lines[:half], lines[half:]) for f in self.failures(part, tolerance, marked)]
                return [f"{lines[0].label}: {lines[0].text}\n    {jitted.error[0].__name__}: {jitted.error[1]}"]
            for k, parts in enumerate(zip(plain.result, jitted.result, strict=True)):
                one, other = (dataclasses.replace(outcome, result=part, arguments=())
                              for outcome, part in zip((plain, jitted), parts, strict=True))
                difference = compare(one, other, tolerance=tolerance)
                if difference is not None:
                    found[k] = difference
        return [f"{lines[k].label}: {lines[k].text}\n    {text}" for k, text in found.items()]


def data_dtype(tensors: list[torch.Tensor]) -> torch.dtype | None:
    """The dtype of the operands that a call is about: floating point if any is."""
    dtypes = [t.dtype for t in tensors]
    return next((d for d in dtypes if d.is_floating_point or d.is_complex), dtypes[0] if dtypes else None)


def constant(kind: str, tensor: torch.Tensor, function: Function) -> str:
    """A constant of the tensor's shape and dtype as text."""
    n, shape = tensor.numel(), tuple(tensor.shape)
    rows = shape[0] if shape else 1
    value = "True" if tensor.dtype is torch.bool else "0.375" if tensor.dtype.is_floating_point else "3"
    like = function.name_of(tensor) if "{x}" in CONSTANTS[kind] else ""
    return CONSTANTS[kind].format(s=shape, n=n, d=tensor.dtype, r=rows, c=n // max(rows, 1), v=value, x=like)


class Operands:
    """The arguments of a call. `tensors` and `numbers` are the places where constants can stand."""

    def __init__(self, op: str, call: Call, dtype: torch.dtype, function: Function) -> None:
        self.op, self.function, self.dtype = op, function, dtype
        self.old = data_dtype(tensors_in(call))
        self.args = [self._converted(arg) for arg in call[0]]
        self.kwargs = {name: self._converted(arg) for name, arg in call[1].items()}
        self.tensors = tensors_in((self.args, self.kwargs))
        parameters = ops.get(op).target._schema.arguments
        self.numbers = [k for k, parameter in enumerate(parameters[: len(self.args)]) if _takes_numbers(parameter)]
        for k, parameter in enumerate(parameters[: len(self.args)]):
            if parameter.name == "input_dtype":  # for any other, kernels and meta kernels of torch's disagree
                self.args[k] = dtype

    def _converted(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.detach().clone()
            return value.to(self.dtype) if value.dtype is self.old else value
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._converted, value))
        return value

    def text(self, tensors: dict[int, str], numbers: dict[int, str] | None = None) -> str:
        """The call, with these texts in the place of the tensors and of the arguments of these numbers."""
        position = -1

        def one(value: Any) -> str:
            nonlocal position
            if isinstance(value, torch.Tensor):
                position += 1
                return tensors.get(position) or self.function.name_of(value)
            if isinstance(value, (list, tuple)):
                return f"[{', '.join(map(one, value))}]"
            return self.function.name_of(value)

        parts = [(numbers or {}).get(k) or one(arg) for k, arg in enumerate(self.args)]
        parts += [f"{name}={one(arg)}" for name, arg in self.kwargs.items()]
        return f"torch.ops.{self.op}({', '.join(parts)})"

    def constants(self, kind: str, everywhere: bool = False) -> dict[int, str]:
        """Constants in the place of the operands that have the dtype in question, or of all."""
        return {k: constant(kind, t, self.function) for k, t in enumerate(self.tensors)
                if everywhere or t.dtype is self.dtype}

    def variants(self) -> Iterator[tuple[str, str]]:
        """The calls with constants among the operands: what stands there, and the call as text."""
        largest = max((t.numel() for t in self.tensors), default=0)
        for kind in CONSTANTS if self.tensors else ():
            if kind == "arange" and largest > LONGEST_RANGE:
                continue
            yield kind, self.text(self.constants(kind))
            if any(t.dtype is not self.dtype for t in self.tensors):
                yield f"{kind} everywhere", self.text(self.constants(kind, everywhere=True))
        for k in range(len(self.tensors) if len(self.tensors) > 1 else 0):
            yield f"full as {k}", self.text({k: constant("full", self.tensors[k], self.function)})
        for number, (kind, text) in enumerate(NUMBERS.items()):
            for k in range(min(len(self.tensors), 2)):
                others = self.constants("full") if (number + k) % 2 else {}
                yield f"{kind} as {k}", self.text({**others, k: text})
            for k in self.numbers:
                others = self.constants("remainders") if (number + k) % 2 else {}
                yield f"{kind} as argument {k}", self.text(others, {k: text})


def _takes_numbers(parameter: Any) -> bool:
    """Whether a parameter of an op is a number that is no size."""
    return str(parameter.type) in ("number", "Optional[number]")


#: packed sequences take the result of another op
WITHOUT_CALL = {"aten._pack_padded_sequence.default"}


def chosen() -> dict[torch.dtype, list[str]]:
    """The ops that are tested in each dtype; their calls are looked for when a test runs."""
    pairs = [(dtype, op) for dtype in DTYPES for op in sorted({*table_ops()} - WITHOUT_CALL)]
    kept = [(d, op) for d, op in pairs if ALL or zlib.crc32(f"{op} {d}".encode()) % SHARE == 0]
    return {dtype: [op for d, op in kept if d is dtype] for dtype in DTYPES}


def groups() -> Iterator[Any]:
    for dtype, names in chosen().items():
        for start in range(0, len(names), GROUP):
            some = names[start : start + GROUP]
            short = ",".join(name.removeprefix("aten.").removesuffix(".default") for name in some)
            yield pytest.param(dtype, some, id=f"{str(dtype).removeprefix('torch.')}-{short}")


def function_of(names: list[str], dtype: torch.dtype) -> Function:
    """All that is tested of some ops in a dtype as one function."""
    function = Function()
    for op in names:
        operands = Operands(op, calls()[op], dtype, function)
        for label, text in operands.variants():
            kinds = list(NEIGHBOURS)
            function.add(f"{op} of {label}", text, kinds[zlib.crc32(f"{op} {dtype} {label}".encode()) % len(kinds)])
    return function


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "names"), list(groups()))
def test_like_eager(dtype: torch.dtype, names: list[str], record_property: Callable[[str, object], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = function_of(names, dtype)
    record_property("lines", len(function.lines))
    failures = function.failures(function.lines, TOLERANCE.get(dtype))
    assert not failures, "\n".join([f"{len(failures)} of {len(function.lines)}:", *failures])


def test_every_op_has_a_call() -> None:
    """Of the ops that programs can call."""
    assert set(table_ops()) - calls().keys() == WITHOUT_CALL


def test_reductions_of_constants() -> None:
    """The plainest calls: `int(batch.max()) + 1` of a batch of zeros."""
    dtypes = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64]
    shape = torch.zeros(5, 3)

    def called(x: torch.Tensor) -> list[Any]:
        batch = x.new_zeros(4, dtype=torch.int64)
        found: list[Any] = [int(batch.max()) + 1]
        for dtype in dtypes:
            for made in (torch.zeros_like(x, dtype=dtype), torch.full_like(x, 3, dtype=dtype)):
                found += [made.max(), made.min(), made.amax(0), made.argmax(1), made.sum(), made.prod(1),
                          torch.maximum(made, made + 1), made.any()]
        return found

    plain, jitted = observe(called, ((shape,), {})), observe(jitpy.jit(called), ((shape,), {}))
    assert compare(plain, jitted) is None, compare(plain, jitted)
