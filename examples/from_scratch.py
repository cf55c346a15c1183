"""A tracing JIT from scratch: the idea of jitpy in one file, to be read from top to bottom.

    python -m examples.from_scratch

It reads a function's bytecode, runs it on symbols, keeps a graph and guards, derives gradients, fuses elementwise
operations into C++ loops, and calls them. It uses torch's tensors and kernels, a C++ compiler and nothing of jitpy.
`docs/from-scratch.md` walks through it, and names the part of jitpy behind each section.
"""

from __future__ import annotations

import ctypes
import dis
import hashlib
import math
import operator
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Break(Exception):
    """Tracing cannot go on; the message says why. The function then runs as plain Python, which is always right."""


# -- 1. The graph ------------------------------------------------------------------------------------------------------
#
# A graph is a list of nodes in the order of execution. A node is one call of one op. All tensors here are float32, on
# the CPU and contiguous, so the only fact that a node needs beside its op is its shape.

Shape = tuple[int, ...]


class Graph:
    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []
        self.outputs: list[Node] = []

    def add(self, op: Op | None, args: tuple[Any, ...], shape: Shape) -> Node:
        node = Node(self, op, args, shape)
        (self.inputs if op is None else self.nodes).append(node)
        node.name = f"x{len(self.inputs) - 1}" if op is None else f"t{len(self.nodes) - 1}"
        return node

    def __str__(self) -> str:
        lines = [f"{node.name} = {node.op.name}({', '.join(map(str, node.args))})  # {list(node.shape)}"
                 for node in self.nodes if node.op]
        return "\n".join([*(f"{x.name}: {list(x.shape)}" for x in self.inputs), *lines,
                          f"return {', '.join(map(str, self.outputs))}"])


def both(name: str) -> tuple[Callable[..., Node], Callable[..., Node]]:
    """An operator's method and its reflected one."""
    return (lambda self, other: record(name, self, other)), (lambda self, other: record(name, other, self))


class Node:
    """A value in a graph. Its operators record further nodes, so Python code runs on nodes as it does on tensors."""

    def __init__(self, graph: Graph, op: Op | None, args: tuple[Any, ...], shape: Shape) -> None:
        self.graph, self.op, self.args, self.shape = graph, op, args, shape
        self.name = ""

    def __str__(self) -> str:
        return self.name

    __add__, __radd__ = both("add")
    __sub__, __rsub__ = both("sub")
    __mul__, __rmul__ = both("mul")
    __truediv__, __rtruediv__ = both("div")
    __matmul__, __rmatmul__ = both("mm")

    def __neg__(self) -> Node:
        return record("neg", self)

    def __bool__(self) -> bool:
        raise Break("a branch on a tensor's value")


def record(name: str, *args: Any) -> Node:
    """Add a call of the op `name` to the graph of its operands."""
    graph = next(arg.graph for arg in args if isinstance(arg, Node))
    if not all(isinstance(arg, (Node, tuple)) or type(arg) in (int, float) and math.isfinite(arg) for arg in args):
        raise Break(f"{name} of {[type(arg).__name__ for arg in args]}")
    return graph.add(OPS[name], args, OPS[name].shape(*args))


# -- 2. The op table ---------------------------------------------------------------------------------------------------
#
# Whatever is known of an op stands in one place: its shape rule, torch's kernel, its gradient, and, where it works
# element by element, its C expression. A gradient is written with the same operators as user code, so it makes nodes.


class Op:
    def __init__(self, name: str, shape: Callable[..., Shape], run: Callable[..., torch.Tensor],
                 grad: Callable[..., tuple[Any, ...]], c: str = "") -> None:
        self.name, self.shape, self.run, self.grad, self.c = name, shape, run, grad, c


OPS: dict[str, Op] = {}


def define(name: str, *facts: Any, c: str = "") -> None:
    OPS[name] = Op(name, *facts, c=c)


def broadcast(*args: Any) -> Shape:
    try:
        return tuple(torch.broadcast_shapes(*(arg.shape for arg in args if isinstance(arg, Node))))
    except RuntimeError as error:
        raise Break(str(error)) from None


def product(a: Node, b: Node) -> Shape:
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        raise Break("a product of other things than two matrices")
    return a.shape[0], b.shape[1]


def turned(x: Node) -> Shape:
    if len(x.shape) != 2:
        raise Break("the transpose of something that is no matrix")
    return x.shape[::-1]


def total(x: Any, shape: Shape) -> Node:
    """The gradient of an operand that was broadcast is summed along the axes that were repeated."""
    return x if x.shape == shape else record("sum_to", x, shape)


define("add", broadcast, torch.add, lambda g, out, a, b: (g, g), c="{0} + {1}")
define("sub", broadcast, torch.sub, lambda g, out, a, b: (g, -g), c="{0} - {1}")
define("mul", broadcast, torch.mul, lambda g, out, a, b: (g * b, g * a), c="{0} * {1}")
define("div", broadcast, torch.div, lambda g, out, a, b: (g / b, -g * out / b), c="{0} / {1}")
define("neg", broadcast, torch.neg, lambda g, out, x: (-g,), c="-{0}")
define("exp", broadcast, torch.exp, lambda g, out, x: (g * out,), c="std::exp({0})")
define("tanh", broadcast, torch.tanh, lambda g, out, x: (g * (1 - out * out),), c="std::tanh({0})")
define("relu", broadcast, torch.relu, lambda g, out, x: (g * record("step", x),), c="{0} < 0 ? 0.0f : {0}")
define("step", broadcast, lambda x: (x > 0).float(), lambda g, out, x: (None,), c="{0} > 0 ? 1.0f : 0.0f")
define("mm", product, torch.mm, lambda g, out, a, b: (g @ record("t", b), record("t", a) @ g))
define("t", turned, lambda x: x.t().contiguous(), lambda g, out, x: (record("t", g),))
define("sum_to", lambda x, shape: shape, torch.Tensor.sum_to_size,
       lambda g, out, x, shape: (record("expand", g, x.shape), None))
define("expand", lambda x, shape: shape, lambda x, shape: x.expand(shape).contiguous(),
       lambda g, out, x, shape: (record("sum_to", g, x.shape), None))

#: functions that user code may call -> the op that each means. `x.exp()` is `torch.Tensor.exp(x)`.
MEANINGS: dict[Any, str] = {getattr(owner, name): name for owner in (torch, torch.Tensor)
                            for name in ("add", "sub", "mul", "div", "neg", "exp", "tanh", "relu", "mm")}


# -- 3. Guards ---------------------------------------------------------------------------------------------------------
#
# Tracing looks at this call's arguments, globals and attributes. Each fact that it read must hold when the graph is
# used again. A source is a Python expression that finds the object; a guard is a condition on a source. All guards of
# a trace become one function, which also collects the graph's inputs: `check(*args) -> inputs, or None`.


class Guards:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.conditions: list[str] = []
        self.inputs: list[str] = []
        self.names: dict[str, Any] = {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "float32": torch.float32}
        self.source_of: dict[int, str] = {}
        self.seen: dict[str, Any] = {}

    def name(self, value: Any) -> str:
        """A name for an object that guards compare with."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def wrap(self, value: Any, source: str) -> Any:
        """The only way in for an object of the outside: adds the guards that make this trace valid for it."""
        if source in self.seen:
            return self.seen[source]
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.dtype is not torch.float32 \
                    or value.device.type != "cpu" or not value.is_contiguous():
                raise Break(f"{source} is not a contiguous float32 tensor on the CPU")
            self.conditions.append(f"type({source}) is {type(value).__name__} and {source}.dtype is float32 and "
                                   f"{source}.shape == {tuple(value.shape)} and {source}.is_contiguous() and "
                                   f"{source}.device.type == 'cpu' and {source}.requires_grad is {value.requires_grad}")
            self.inputs.append(source)
            result: Any = self.graph.add(None, (value.requires_grad,), tuple(value.shape))
        elif value is None or type(value) in (bool, int, float, str):
            kind = self.name(type(value))  # texts are compared, because 0.0 == -0.0, and NaN is not equal to itself
            self.conditions.append(f"type({source}) is {kind} and repr({source}) == {repr(value)!r}")
            result = value
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)):
            self.conditions.append(f"{source} is {self.name(value)}")
            result = value
        else:  # an instance: its class is guarded here, its attributes when they are read
            self.conditions.append(f"type({source}) is {self.name(type(value))}")
            self.source_of[id(value)] = source
            result = value
        self.seen[source] = result
        return result

    def compile(self) -> Callable[..., tuple[torch.Tensor, ...] | None]:
        lines = [f"        if not ({condition}): return None" for condition in self.conditions]
        lines.append(f"        return ({''.join(f'{name}, ' for name in self.inputs)})")
        missing = "    except (AttributeError, IndexError, KeyError, TypeError): return None"
        text = "\n".join(["def check(*args):", "    try:", *lines, missing])
        exec(text, self.names)
        return self.names["check"]


# -- 4. Symbolic execution ---------------------------------------------------------------------------------------------
#
# A small bytecode interpreter. It runs the real instructions: arithmetic on numbers happens, loops are unrolled, calls
# of Python functions are inlined; only tensors are replaced by nodes. What it does not know raises Break. The names of
# instructions are those of CPython 3.11 to 3.13.

NULL = object()
BINARY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "@": operator.matmul,
          "//": operator.floordiv, "%": operator.mod, "**": operator.pow}
COMPARE = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
           ">=": operator.ge}
#: C functions without side effects, whose result depends on nothing but their arguments
PURE = {len, range, float, int, bool, abs, min, max, isinstance}


class Interpreter:
    def __init__(self, guards: Guards) -> None:
        self.guards = guards

    def run(self, fn: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `fn(*args, **kwargs)` returns, on symbols."""
        code = fn.__code__
        names = code.co_varnames[: code.co_argcount]
        if code.co_flags & 0x2AC or code.co_kwonlyargcount or kwargs.keys() - set(names) or len(args) > len(names):
            raise Break(f"{fn.__name__} is a generator or has a signature that is not simple")
        variables: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        first = len(names) - len(fn.__defaults__ or ())
        for k, name in enumerate(names):
            if name not in variables and k >= first:
                source = f"{self.guards.name(fn)}.__defaults__[{k - first}]"
                variables[name] = self.guards.wrap(fn.__defaults__[k - first], source)
        for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
            variables[name] = self.guards.wrap(cell.cell_contents, f"{self.guards.name(cell)}.cell_contents")
        instructions = list(dis.get_instructions(code))
        place = {instruction.offset: k for k, instruction in enumerate(instructions)}
        stack: list[Any] = []
        keywords: tuple[str, ...] = ()
        at = 0
        while True:
            instruction = instructions[at]
            name, value = instruction.opname, instruction.argval
            at += 1
            match name:
                case "RESUME" | "NOP" | "CACHE" | "PRECALL" | "COPY_FREE_VARS":
                    pass
                case "LOAD_FAST" | "LOAD_FAST_CHECK" | "LOAD_DEREF" | "LOAD_FAST_LOAD_FAST":
                    stack += [variables[one] for one in (value if isinstance(value, tuple) else (value,))]
                case "STORE_FAST" | "STORE_FAST_STORE_FAST":
                    for one in value if isinstance(value, tuple) else (value,):
                        variables[one] = stack.pop()
                case "STORE_FAST_LOAD_FAST":
                    variables[value[0]] = stack.pop()
                    stack.append(variables[value[1]])
                case "LOAD_CONST":
                    stack.append(value)
                case "RETURN_CONST":
                    return value
                case "RETURN_VALUE":
                    return stack.pop()
                case "LOAD_GLOBAL":
                    stack += ([NULL] if instruction.arg & 1 else []) + [self.load_global(fn, value)]
                case "LOAD_ATTR" | "LOAD_METHOD":
                    found = self.attribute(stack.pop(), value)
                    is_call = name == "LOAD_METHOD" or sys.version_info >= (3, 12) and instruction.arg & 1
                    stack += [NULL, found] if is_call else [found]
                case "PUSH_NULL":
                    stack.append(NULL)
                case "KW_NAMES":
                    keywords = code.co_consts[instruction.arg]
                case "CALL" | "CALL_KW":
                    keywords = stack.pop() if name == "CALL_KW" else keywords
                    given = [stack.pop() for _ in range(instruction.arg)][::-1]
                    callee = next(one for one in (stack.pop(), stack.pop()) if one is not NULL)
                    count = len(given) - len(keywords)
                    named, keywords = dict(zip(keywords, given[count:], strict=True)), ()
                    stack.append(self.call(callee, tuple(given[:count]), named))
                case "BINARY_OP":
                    right, left = stack.pop(), stack.pop()
                    symbol = instruction.argrepr
                    if symbol.endswith("=") and isinstance(left, Node):
                        raise Break("a tensor is changed in place")
                    stack.append(self.pure(BINARY.get(symbol.rstrip("=")), left, right))
                case "COMPARE_OP":
                    right, left = stack.pop(), stack.pop()
                    stack.append(self.pure(COMPARE[value], left, right))
                case "UNARY_NEGATIVE":
                    stack.append(self.pure(operator.neg, stack.pop()))
                case "TO_BOOL":
                    stack.append(self.pure(bool, stack.pop()))
                case "BINARY_SUBSCR":
                    key, whole = stack.pop(), stack.pop()
                    stack.append(self.pure(operator.getitem, whole, key))
                case "BUILD_TUPLE":
                    items = [stack.pop() for _ in range(value)][::-1]
                    stack.append(tuple(items))
                case "POP_TOP" | "END_FOR":
                    stack.pop()
                case "GET_ITER":
                    if not isinstance(stack[-1], (tuple, range)):
                        raise Break(f"a loop over a {type(stack[-1]).__name__}")
                    stack.append(iter(stack.pop()))
                case "FOR_ITER":
                    item = next(stack[-1], NULL)
                    if item is not NULL:
                        stack.append(item)
                    else:
                        stack.pop()
                        at = place[value] + (instructions[place[value]].opname == "END_FOR")
                        at += instructions[at].opname == "POP_TOP" and instructions[at - 1].opname == "END_FOR"
                case "JUMP_FORWARD" | "JUMP_BACKWARD" | "JUMP_BACKWARD_NO_INTERRUPT":
                    at = place[value]
                case _ if name.startswith("POP_JUMP") and "NONE" not in name:
                    if self.pure(bool, stack.pop()) is ("IF_TRUE" in name):
                        at = place[value]
                case _:
                    raise Break(f"the instruction {name}")

    def pure(self, function: Callable[..., Any] | None, *args: Any) -> Any:
        """An operation on symbols or plain data. An instance could run code of its own, so it breaks the graph."""
        if function is None or any(id(arg) in self.guards.source_of for arg in args):
            raise Break("an operator on an instance")
        if function not in BINARY.values() and function not in (bool, operator.neg) and any(
                isinstance(arg, Node) for arg in args):
            raise Break(f"{function.__name__} of a tensor")
        try:
            return function(*args)
        except Exception as error:
            raise Break(f"the program raises {error!r}") from None

    def load_global(self, fn: types.FunctionType, name: str) -> Any:
        values = self.guards.name(fn.__globals__)
        if name in fn.__globals__:
            return self.guards.wrap(fn.__globals__[name], f"{values}[{name!r}]")
        if name not in fn.__builtins__:
            raise Break(f"the name {name} is not defined")
        self.guards.conditions.append(f"{name!r} not in {values}")
        return self.guards.wrap(fn.__builtins__[name], f"{self.guards.name(fn.__builtins__)}[{name!r}]")

    def attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Node):
            if name in ("shape", "T"):
                return owner.shape if name == "shape" else record("t", owner)
            return types.MethodType(getattr(torch.Tensor, name), owner)
        if isinstance(owner, types.ModuleType) and name in vars(owner):
            return self.guards.wrap(vars(owner)[name], f"{self.guards.name(owner)}.{name}")
        source, held = self.guards.source_of.get(id(owner)), getattr(owner, "__dict__", {})
        found = getattr(type(owner), name, None)
        if source is None or type(owner).__getattribute__ is not object.__getattribute__ or hasattr(found, "__set__") \
                or name not in held and not isinstance(found, types.FunctionType):
            raise Break(f"the attribute {name} of a {type(owner).__name__}")
        if name in held:
            return self.guards.wrap(held[name], f"{source}.__dict__[{name!r}]")
        self.guards.conditions.append(f"{name!r} not in {source}.__dict__")
        self.guards.conditions.append(f"{self.guards.name(type(owner))}.{name} is {self.guards.name(found)}")
        return types.MethodType(found, owner)

    def call(self, callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(callee, types.MethodType):
            return self.call(callee.__func__, (callee.__self__, *args), kwargs)
        if id(callee) in self.guards.source_of:
            return self.call(self.attribute(callee, "__call__"), args, kwargs)
        if isinstance(callee, types.FunctionType):
            return self.run(callee, args, kwargs)
        meaning = MEANINGS.get(callee)
        if meaning is not None and not kwargs and any(isinstance(arg, Node) for arg in args):
            return record(meaning, *args)
        if callee is torch.Tensor.sum and len(args) == 1 and args[0].shape and not kwargs:
            return record("sum_to", args[0], ())
        if callee in PURE and not kwargs:
            return self.pure(callee, *args)
        raise Break(f"a call of {getattr(callee, '__name__', callee)}")


# -- 5. Gradients ------------------------------------------------------------------------------------------------------
#
# Reverse mode on the graph. The nodes of the backward pass are appended to the graph of the forward pass; then the
# graph is cut in two. What the second half reads of the first one is saved between the two calls.


def differentiate(graph: Graph) -> tuple[Graph, Graph, list[Node]]:
    """(forward half, backward half, what is saved). The backward half takes the saved values, then the gradients."""
    forward = list(graph.nodes)
    seeds = [graph.add(None, (False,), out.shape) for out in graph.outputs]
    inputs = graph.inputs[: len(graph.inputs) - len(seeds)]
    grads: dict[Node, Any] = {}
    for out, seed in zip(graph.outputs, seeds, strict=True):
        grads[out] = seed if out not in grads else grads[out] + seed
    for node in reversed(forward):
        if node in grads and node.op:
            for arg, grad in zip(node.args, node.op.grad(grads[node], node, *node.args), strict=True):
                if isinstance(arg, Node) and grad is not None:
                    grad = total(grad, arg.shape)
                    grads[arg] = grads[arg] + grad if arg in grads else grad
    backward = Graph()
    backward.nodes = graph.nodes[len(forward):]
    backward.outputs = [grads[x] for x in inputs if x.args[0] and x in grads]
    read = [arg for node in backward.nodes for arg in node.args if isinstance(arg, Node)] + backward.outputs
    saved = [node for node in dict.fromkeys(read) if node not in backward.nodes and node not in seeds]
    backward.inputs = saved + seeds
    graph.nodes, graph.inputs = forward, inputs
    return graph, backward, saved


# -- 6. Fusion and code ------------------------------------------------------------------------------------------------
#
# Elementwise nodes of one shape share a loop: each element is loaded once, all of them are computed in registers, and
# only what others read is stored. Everything else is a call of torch's kernel.


def dead_code_removed(graph: Graph) -> list[Node]:
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(arg for arg in node.args if isinstance(arg, Node))
    return [node for node in graph.nodes if node in needed]


def fuse(nodes: list[Node]) -> list[list[Node]]:
    """Steps in order: groups of nodes that share a loop, or single calls."""
    steps: list[list[Node]] = []
    step_of: dict[Node, int] = {}
    for node in nodes:
        first = max((step_of.get(arg, -1) for arg in node.args if isinstance(arg, Node)), default=-1)
        for k in range(max(first, 0), len(steps)):
            if node.op and node.op.c and steps[k][0].op.c and steps[k][0].shape == node.shape:
                steps[k].append(node)
                break
        else:
            k = len(steps)
            steps.append([node])
        step_of[node] = k
    return steps


def print_kernel(group: list[Node], stored: list[Node]) -> tuple[str, list[Node]]:
    """The C++ text of a loop nest, and the tensors that it reads."""
    shape = group[0].shape
    read = [arg for arg in dict.fromkeys(arg for node in group for arg in node.args)
            if isinstance(arg, Node) and arg not in group]
    axes = [f"i{k}" for k in range(len(shape))]

    def index(operand: Shape) -> str:
        """Axes of size 1 and axes that are missing are broadcast: they do not move the index."""
        terms, step = [], 1
        for axis, size in zip(axes[::-1], operand[::-1], strict=False):
            terms += [f"{axis} * {step}"] if size != 1 else []
            step *= size
        return " + ".join(terms) or "0"

    def text(arg: Any) -> str:
        return arg.name if isinstance(arg, Node) else f"float({float(arg)!r})"

    pointers = [f"const float* p_{x.name}" for x in read] + [f"float* out_{x.name}" for x in stored]
    lines = [f'extern "C" void kernel({", ".join(pointers)}) {{']
    lines += [f"for (long {axis} = 0; {axis} < {size}; ++{axis})" for axis, size in zip(axes, shape, strict=True)]
    lines += ["{", *(f"  const float {x.name} = p_{x.name}[{index(x.shape)}];" for x in read)]
    lines += [f"  const float {node.name} = {node.op.c.format(*map(text, node.args))};" for node in group if node.op]
    lines += [*(f"  out_{node.name}[{index(shape)}] = {node.name};" for node in stored), "}", "}"]
    return "\n".join(lines), read


_folder = tempfile.TemporaryDirectory(prefix="from-scratch-")


def build(text: str) -> Any:
    """Compile a kernel, once for each text."""
    path = Path(_folder.name) / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        flags = ["-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
        subprocess.run(["g++", *flags], check=True, input=f"#include <cmath>\n{text}".encode())
    return ctypes.CDLL(str(path)).kernel


def compile_graph(graph: Graph, kernels: list[str]) -> Callable[..., list[torch.Tensor]]:
    """A function from the inputs' tensors to the outputs' tensors. `kernels` receives the texts."""
    nodes = dead_code_removed(graph)
    steps: list[Callable[[dict[Node, torch.Tensor]], None]] = []

    def add_call(node: Node) -> None:
        def call(values: dict[Node, torch.Tensor]) -> None:
            values[node] = node.op.run(*(values[arg] if isinstance(arg, Node) else arg for arg in node.args))
        steps.append(call)

    def add_kernel(group: list[Node]) -> None:
        outside = {arg for node in nodes if node not in group for arg in node.args if isinstance(arg, Node)}
        stored = [node for node in group if node in outside or node in graph.outputs]
        text, read = print_kernel(group, stored)
        kernels.append(text)
        kernel = build(text)

        def call(values: dict[Node, torch.Tensor]) -> None:
            for node in stored:
                values[node] = torch.empty(node.shape, dtype=torch.float32)
            kernel(*(ctypes.c_void_p(values[node].data_ptr()) for node in read + stored))
        steps.append(call)

    for group in fuse(nodes):
        (add_kernel if group[0].op and group[0].op.c else lambda one: add_call(one[0]))(group)

    inputs, outputs = list(graph.inputs), list(graph.outputs)

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        values = dict(zip(inputs, tensors, strict=True))
        for step in steps:
            step(values)
        return [values[node] for node in outputs]

    return run


# -- 7. The call -------------------------------------------------------------------------------------------------------
#
# `jit` keeps a list of variants. A call runs the first one whose guards hold, or traces a new one. A function that
# cannot be traced runs as it is.


class Variant:
    def __init__(self, fn: types.FunctionType, args: tuple[Any, ...]) -> None:
        self.graph = Graph()
        guards = Guards(self.graph)
        symbols = tuple(guards.wrap(arg, f"args[{k}]") for k, arg in enumerate(args))
        guards.conditions.insert(0, f"len(args) == {len(args)}")
        result = Interpreter(guards).run(fn, symbols, {})
        self.is_tuple = isinstance(result, tuple)
        self.graph.outputs = list(result) if self.is_tuple else [result]
        if not all(isinstance(out, Node) and out.op for out in self.graph.outputs):
            raise Break("a result that is not computed from tensors")
        self.guards, self.check = guards.conditions, guards.compile()
        self.kernels: list[str] = []
        self.run = self._with_gradients() if any(x.args[0] for x in self.graph.inputs) else \
            compile_graph(self.graph, self.kernels)

    def _with_gradients(self) -> Callable[..., Any]:
        count = len(self.graph.outputs)
        forward, backward, saved = differentiate(self.graph)
        forward.outputs = forward.outputs + saved
        run_forward, run_backward = compile_graph(forward, self.kernels), compile_graph(backward, self.kernels)
        forward_outputs = forward.outputs = forward.outputs[:count]
        wanted = [x.args[0] for x in forward.inputs]
        history = {x for x in forward.inputs if x.args[0]}
        for node in forward.nodes:  # what reads a node with a history has one
            history |= {node} if history.intersection(arg for arg in node.args if isinstance(arg, Node)) else set()

        class Compiled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> Any:
                found = run_forward(*inputs)
                ctx.save_for_backward(*found[count:])
                results = zip(forward_outputs, found, strict=False)
                ctx.mark_non_differentiable(*(tensor for out, tensor in results if out not in history))
                return tuple(found[:count])

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *grads: torch.Tensor) -> Any:
                found = iter(run_backward(*ctx.saved_tensors, *(grad.contiguous() for grad in grads)))
                return tuple(next(found) if want else None for want in wanted)

        return Compiled.apply

    def __call__(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        found = self.run(*inputs)
        return tuple(found) if self.is_tuple else found[0]


def jit(fn: types.FunctionType) -> Any:
    """`fn`, compiled for the arguments that it meets. `jit(fn).variants` shows graphs, guards and kernels."""

    def call(*args: Any) -> Any:
        for variant in variants:
            inputs = variant.check(*args)
            if inputs is not None:
                return variant(inputs)
        if call.reason is None:
            try:
                variants.append(Variant(fn, args))
            except Break as reason:
                call.reason = str(reason)
            else:
                return call(*args)
        return fn(*args)

    variants: list[Variant] = []
    call.variants, call.reason = variants, None
    return call


# -- 8. An example -----------------------------------------------------------------------------------------------------


class Layer:
    def __init__(self, inner: int, outer: int) -> None:
        self.weight = (torch.randn(inner, outer) / inner**0.5).requires_grad_()
        self.scale = 0.5

    def __call__(self, x: Any) -> Any:
        return (x @ self.weight * self.scale).tanh()


LAYERS = 2


def model(layer: Layer, x: Any) -> Any:
    for k in range(LAYERS):
        x = layer(x) + x * (k + 1)
    return (x * x).sum()


def main() -> None:
    torch.manual_seed(0)
    layer, x = Layer(8, 8), torch.randn(4, 8)
    fast = jit(model)
    fast(layer, x).backward()
    found, layer.weight.grad = layer.weight.grad, None
    model(layer, x).backward()
    torch.testing.assert_close(found, layer.weight.grad)
    variant = fast.variants[0]
    print("The graph:", variant.graph, "\nThe guards:", *variant.guards, "\nA kernel:", variant.kernels[0], sep="\n")
    layer.scale = 0.25
    torch.testing.assert_close(fast(layer, x), model(layer, x))
    print(f"\n{len(fast.variants)} variants, since a guard reads layer.scale")


if __name__ == "__main__":
    main()
