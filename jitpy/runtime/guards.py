"""Guards made callable: a set of facts becomes one native evaluator, and one printable Python function.

`build_guards(guard_set, sizes)` lowers the guards of a capture (kinds: see `jitpy/frontend/guards.py`) to a tree by
access path, in which a shared prefix is read once. A node's own facts are checked before anything below it is read;
facts about two values, relations between sizes and Python predicates come last. The tree is written down
twice: as tuples for `_jitpy_runtime.Guard` (`jitpy/native/runtime/guards.cpp`), and as the text of a Python function
`guard(L, G, C)`, which is what reports print and what runs where the native part cannot be had. Both give the same
answers.

A guard whose value cannot be read (a missing attribute, a getter that raises an `Exception`) does not hold.
"""

from __future__ import annotations

import keyword
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ..ir.algebra import sympy
from . import guard_checks as checks
from .lifetimes import is_weakly_held, name_of
from .native_build import load_native, load_or_none
from .number_facts import number_check
from .size_relations import Relation
from .tensor_facts import plain_getters

#: how a step reads its value: an expression over the base's, its argument, and L, G and C of the printed function
STEPS = {
    "local": "L[{arg}]", "closure": "cell(C[{arg}])", "closure_cell": "C[{arg}]", "globals": "G",
    "const": "{arg}", "weak_const": "referent({arg})",
    "attr": "getattr({base}, {arg})", "dict": "instance_dict({base})", "item": "item({base}, {arg})",
    "index": "index({base}, {arg})", "index_by": "index({base}, {arg})", "type": "type({base})",
    "slot": "slot({base}, {arg})", "cell": "cell({base})",
}
_READERS: dict[str, Callable[..., Any]] = {
    step: eval(f"lambda L, G, C, base, arg: {text.format(base='base', arg='arg')}", dict(checks.HELPERS))
    for step, text in STEPS.items()}
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class Node:
    """One access path: how its value is read from its base's, and what must hold of it."""

    __slots__ = ("step", "arg", "parent", "base", "source", "children", "checks", "depth", "end", "keep", "name")

    def __init__(self, step: str, arg: Any, parent: Node | None, source: Any):
        self.step = step
        self.arg = arg
        self.parent = parent
        self.base = parent  # whose value this one is read from
        self.source = source
        self.children: dict[Any, Node] = {}
        self.checks: list[checks.Check] = []
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.end = -1
        self.keep = -1
        self.name = ""

    @property
    def path(self) -> str:
        """The value as an expression in the user's words. Made on demand: long paths take long to print."""
        return str(self.source)


class GuardTree:
    """A guard set lowered: `nodes` in pre-order, then what does not belong to one node."""

    def __init__(self, guards: Iterable[Any], sizes: Any = None):
        self.roots: dict[Any, Node] = {}
        self.nodes: list[Node] = []
        self.prelude: list[checks.Check] = []
        self.finals: list[checks.Check] = []
        self.slots: dict[sympy.Symbol, int] = {}
        self.kept: list[Node] = []
        #: weak references to the weakly held objects that the guards are about
        self.weakly_held: dict[int, weakref.ref[Any]] = {}
        self._weakly_held_kind: dict[int, bool] = {}
        self._by_source: dict[int, tuple[Any, Node]] = {}
        relations: list[tuple[int, Any, str]] = []
        distinct: list[tuple[int, Any, Node]] = []
        for order, guard in enumerate(guards):
            if guard.kind == "relation":
                relations.append((order, guard.arg, guard.why))
            elif guard.kind == "distinct" and guard.arg is None:
                distinct.append((order, guard, self._keep(guard.source)))
            else:
                self._place(order, guard)
        if len(distinct) > 1:
            order, guard, _ = distinct[-1]
            self.finals.append(checks.Check("distinct", None, order, guard.why, tuple(node for _, _, node in distinct)))
        if sizes is not None:
            known = {relation for _, relation, _ in relations}
            for relation, why in sizes.entry_relations():
                if relation not in known:
                    relations.append((len(relations) + INT64_MAX, relation, why))
        self._number()
        self._by_source.clear()
        self._bind_symbols(sizes)
        for order, relation, why in relations:
            self._add_relation(order, relation, why)

    def _place(self, order: int, guard: Any) -> None:
        kind, arg, why = guard.kind, guard.arg, guard.why
        if kind in ("state", "attention"):
            self.prelude.append(checks.Check(kind, arg, order, why))
        elif kind == "class":
            names = {name: self._class_member(arg, value) for name, value in arg.names.items()}
            mro = tuple(self._weak(cls)[0] for cls in arg.mro)
            self.prelude.append(checks.Check("class", (self._weak(arg.cls)[0], mro, names), order, why))
        elif kind in ("same", "distinct"):
            self.finals.append(checks.Check(kind, None, order, why, (self._keep(guard.source), self._keep(arg))))
        elif kind == "overlap":
            nodes = (self._keep(guard.source), *(self._keep(other) for other in arg))
            self.finals.append(checks.Check(kind, None, order, why, nodes))
        elif kind == "python":
            self.finals.append(checks.Check(kind, arg, order, why, (self._keep(guard.source),)))
        elif kind == "numbers":
            self.finals.append(checks.Check(kind, number_check(arg), order, why, tuple(map(self._keep, arg.sources))))
        elif kind in checks.KINDS:
            node = self._cell_node(guard.source) if kind == "empty" else self.node(guard.source)
            if kind == "eq" and (arg is None or arg is True or arg is False):
                kind = "id"
            if kind in ("id", "type"):
                arg, *weak = self._weak(arg)
                kind = f"weak_{kind}" if weak else kind
            node.checks.append(checks.Check(kind, arg, order, why))
        else:
            raise ValueError(f"unknown kind of guard: {kind!r}")

    def _class_member(self, lookup: Any, value: Any) -> tuple[Any, ...]:
        missing, held_by = checks.class_markers(lookup)
        if isinstance(value, held_by):
            owner, *weak = self._weak(value.owner)
            return owner, bool(weak), True
        return () if value is missing else self._weak(value)

    def _weak(self, obj: Any) -> tuple[Any, ...]:
        """(the object,), or where it is weakly held (a weak reference to it, True)."""
        weak = self._weakly_held_kind.get(id(obj))
        if weak is None:
            weak = self._weakly_held_kind[id(obj)] = is_weakly_held(obj)
        if not weak:
            return (obj,)
        return self.weakly_held.setdefault(id(obj), weakref.ref(obj)), True

    def node(self, source: Any) -> Node:
        """The node of a source; the path to it is made where it is new."""
        found = self._by_source.get(id(source))
        if found is not None:
            return found[1]
        kind, arg = source.step
        if kind not in STEPS or ("{base}" in STEPS[kind]) is (source.base is None):
            raise ValueError(f"{source}: unknown access step {kind!r}")
        if kind == "const":
            arg, *weak = self._weak(arg)
            kind = "weak_const" if weak else kind
        if kind == "index_by":  # a root for the evaluator: it is read when the numbers that say the place are bound
            node = self._child(None, kind, Relation(arg), source)
            node.base = self._keep(source.base)
        else:
            node = self._child(None if source.base is None else self.node(source.base), kind, arg, source)
        self._by_source[id(source)] = (source, node)  # holds the source, so that its id stays its own
        return node

    def _child(self, parent: Node | None, kind: str, arg: Any, source: Any) -> Node:
        siblings = self.roots if parent is None else parent.children
        key = (kind, type(arg), arg) if type(arg) in (str, bytes, int, float, bool, type(None)) else (kind, id(arg))
        node = siblings.get(key)
        if node is None:
            node = siblings[key] = Node(kind, arg, parent, source)
        return node

    def _cell_node(self, source: Any) -> Node:
        """`empty` is about the cell, whether the source is the cell or its contents."""
        kind, arg = source.step
        if kind == "closure":
            return self._child(None, "closure_cell", arg, f"<cell {source}>")
        return self.node(source.base if kind == "cell" else source)

    def _keep(self, source: Any) -> Node:
        node = self.node(source)
        if node.keep < 0:
            node.keep = len(self.kept)
            self.kept.append(node)
        return node

    def _number(self) -> None:
        """Put the nodes in pre-order. Constant roots come together, since the native evaluator treats them as one; then
        items whose place is computed from numbers that are bound by then."""
        order = {"index_by": 0, "const": 1, "weak_const": 1}
        stack = sorted(reversed(self.roots.values()), key=lambda root: order.get(root.step, 2))
        while stack:
            node = stack.pop()
            self.nodes.append(node)
            stack.extend(reversed(node.children.values()))
        for index in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[index]
            node.end = max(node.end, index + 1)
            if node.parent is not None:
                node.parent.end = max(node.parent.end, node.end)

    def name_nodes(self) -> set[str]:
        """Give each node its variable in the printed function; returns all names that are taken."""
        taken = {"type", "getattr", "min", "max", "abs", "Exception", "L", "G", "C", "S", "guard"}
        taken.update(checks.HELPERS, map(str, self.slots))
        for i, node in enumerate(self.nodes):
            name = node.path if node.step == "local" else ""
            name = name if name.isidentifier() else f"v{i}"
            while name in taken or keyword.iskeyword(name):
                name += "_"
            taken.add(name)
            node.name = name
        return taken

    def _bind_symbols(self, sizes: Any) -> None:
        """Give symbols their slots as the tree meets them: the first place binds, later ones compare."""
        for node in self.nodes:
            if node.step == "index_by" and not self.slots.keys() >= set(node.arg.symbols):
                raise ValueError(f"{node.path}: no guard binds the place before")
            for check in node.checks:
                if check.kind == "tensor":
                    guard = check.arg
                    ranges = {symbol: (low, high) for symbol, low, high in guard.ranges}
                    shape = tuple(self._dim(d, ranges, sizes, check) for d in guard.shape)
                    stride = tuple(self._dim(d, ranges, sizes, check) for d in guard.stride)
                    check.lowered = (shape, stride)
                elif check.kind == "int":
                    check.lowered = self._dim(check.arg, {}, sizes, check), str(check.arg)
                    if check.lowered[0][0] == "store":
                        raise ValueError(f"{node.path}: an int guard takes a symbol, not {check.arg}")

    def _dim(self, dim: Any, ranges: dict[Any, Any], sizes: Any, check: checks.Check) -> Any:
        if isinstance(dim, int):
            return int(dim)
        if dim.is_Integer:
            return int(dim)
        if not dim.is_Symbol:
            found = sympy.Symbol(f"found{len(self.slots)}", integer=True)
            slot = self.slots[found] = len(self.slots)
            self._add_relation(check.order, sympy.Eq(dim, found, evaluate=False), check.why)
            return ("store", slot)
        if dim in self.slots:
            return ("same", self.slots[dim])
        slot = self.slots[dim] = len(self.slots)
        low, high = INT64_MIN, INT64_MAX
        info = sizes.symbols.get(dim) if sizes is not None else None
        given = [ranges[dim]] if dim in ranges else []
        given += [(info.low, info.high)] if info is not None else []
        for some_low, some_high in given:
            low = low if some_low is None else max(low, int(some_low))
            high = high if some_high is None else min(high, int(some_high))
        return ("bind", slot, low, high)

    def _add_relation(self, order: int, relation: Any, why: str) -> None:
        if relation is not True and relation != sympy.true:
            self.finals.append(checks.Check("relation", Relation(relation), order, why))

    def check_symbols(self) -> None:
        """Every symbol of a relation must be read from somewhere; ValueError else."""
        for check in self.finals:
            unbound = [str(symbol) for symbol in check.symbols if symbol not in self.slots]
            if unbound:
                raise ValueError(f"the relation {check.arg.text} mentions {', '.join(unbound)}, which no guard binds")

    # ---- the native form ----------------------------------------------------

    def native_program(self) -> tuple[Any, ...]:
        """The arguments of `_jitpy_runtime.Guard`; guards.cpp says what they mean."""
        nodes = tuple((n.step, self._native_arg(n), n.depth, n.end, n.keep, tuple(map(_native_check, n.checks)))
                      for n in self.nodes)
        states = tuple(tuple(getattr(c.arg, name) for name in checks.torch_state())
                       for c in self.prelude if c.kind == "state")
        attention = checks.attention_bits(c.arg for c in self.prelude if c.kind == "attention")
        classes = tuple((cls, tuple((name, *found) for name, found in names.items()), mro)
                        for cls, mro, names in (c.arg for c in self.prelude if c.kind == "class"))
        return nodes, tuple(self._native_final(c) for c in self.finals), states, attention, classes, len(self.slots)

    def _native_arg(self, node: Node) -> Any:
        if node.base is None or node.base is node.parent:
            return node.arg
        return node.base.keep, node.arg.program(self.slots) or ()  # no item is found where it has no program

    def _native_final(self, check: checks.Check) -> tuple[Any, ...]:
        program = check.arg.program(self.slots) or () if check.kind == "relation" else ()
        kind = "python" if check.kind == "numbers" else check.kind
        slots = tuple(self.slots[symbol] for symbol in check.symbols)
        return kind, tuple(node.keep for node in check.nodes), slots, check.arg, program


def _native_check(check: checks.Check) -> tuple[str, Any]:
    kind, arg = check.kind, check.arg
    if kind == "int":
        entry, _ = check.lowered
        _, slot, low, high = entry if entry[0] == "bind" else (*entry, 0, 0)
        return kind, (slot, entry[0] == "bind", low, high)
    if kind == "tensor":
        facts = (arg.dtype, arg.device, arg.requires_grad, arg.dispatch_keys, arg.is_inference)
        return kind, (arg.cls, (*facts, *check.lowered))
    return kind, arg


class GuardFunction:
    """A guard set made callable. `native_guard` is the native evaluator, or None."""

    __slots__ = ("tree", "native_guard", "check", "native", "_text", "_names", "_watching", "__weakref__")

    #: check(params: tuple, globals: dict, closure: tuple | None = None) -> bool
    check: Callable[..., bool]

    def __init__(self, tree: GuardTree, native_module: Any | None):
        self.tree = tree
        self._text: str | None = None
        self._names: dict[str, Any] = {}
        self._watching: list[weakref.ref[Any]] = []
        self.native = native_module is not None
        self.native_guard = native_module.Guard(*tree.native_program()) if native_module is not None else None
        self.check = self.native_guard.check if self.native_guard is not None else self.compile_python()

    def __repr__(self) -> str:
        count = sum(len(node.checks) for node in self.tree.nodes) + len(self.tree.prelude) + len(self.tree.finals)
        return f"<guards: {count} facts, {len(self.tree.nodes)} paths{'' if self.native else ', in Python'}>"

    def watch_weakly_held(self, gone: Callable[[str], None]) -> None:
        """Have `gone` called with an object's name when one goes without which the guards cannot hold."""
        for reference in self.tree.weakly_held.values():
            obj = reference()
            if obj is not None:
                name = name_of(obj)
                self._watching.append(weakref.ref(obj, lambda _, name=name: gone(name)))  # type: ignore[misc]

    @property
    def walked(self) -> int:
        """How many paths were followed in all calls so far. Snapshots answer most; Python does not count."""
        return 0 if self.native_guard is None else self.native_guard.walked

    @property
    def source_text(self) -> str:
        """`def guard(L, G, C)` as text: L the parameters, G the globals, C the closure's cells or None."""
        if self._text is None:
            self._text, self._names = write_function(self.tree)
        return self._text

    @property
    def names(self) -> dict[str, Any]:
        """The meaning of the names in `source_text`: with these as globals the text can be run."""
        _ = self.source_text
        return {**checks.HELPERS, **self._names}

    def compile_python(self) -> Callable[..., bool]:
        """The function of `source_text`, run with torch-function overrides off: getters of tensors are torch's own."""
        namespace = dict(self.names)
        exec(compile(self.source_text, "<jitpy guard>", "exec"), namespace)
        function = namespace["guard"]

        def check(params: tuple[Any, ...], globals: dict[str, Any], closure: tuple[Any, ...] | None = None) -> bool:
            with plain_getters():
                return function(params, globals, closure)

        return check

    def explain(
        self, params: tuple[Any, ...], globals: dict[str, Any], closure: tuple[Any, ...] | None = None
    ) -> list[str]:
        """Every guard that does not hold: its expression and what was found. Empty exactly if `check` is true."""
        with plain_getters():
            return _explain(self.tree, params, globals, closure)


def build_guards(guard_set: Any, sizes: Any = None, *, native: bool | None = None) -> GuardFunction:
    """Lower the guards of a capture. `sizes` (a SizeEnv) adds its symbols' ranges and its relations.

    `native` None takes the native evaluator where it can be had; True raises NativeUnavailable where not.
    ValueError: an unknown kind or step, or a relation over a symbol that no guard binds.
    """
    tree = GuardTree(guard_set, sizes)
    tree.check_symbols()
    load = load_native if native else load_or_none
    return GuardFunction(tree, None if native is False else load("runtime"))


# ---- the printed function ----------------------------------------


class _Names:
    """Names for the objects that the printed function mentions."""

    def __init__(self, taken: set[str]):
        self.objects: dict[str, Any] = {}
        self._taken = taken
        self._by_id: dict[int, str] = {}

    def of(self, value: Any, literal: bool = True) -> str:
        """A literal where repr gives one and identity does not matter, else a name that stands for the object."""
        if value is None or value is True or value is False or literal and checks.is_literal(value):
            return repr(value)
        known = self._by_id.get(id(value))
        if known is not None:
            return known
        name = checks.name_hint(value)
        stem, count = name, 0
        while name in self._taken or checks.BUILTINS.get(name, value) is not value:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        self._by_id[id(value)] = name
        self.objects[name] = value
        return name


def write_function(tree: GuardTree) -> tuple[str, dict[str, Any]]:
    """The text of the guard function, and the objects that its names stand for."""
    names = _Names(tree.name_nodes())
    lines: list[tuple[str, str]] = []

    def require(expression: str, why: str) -> None:
        lines.append((f"if not {expression}: return False", why))

    for check in tree.prelude:
        require(checks.expression(check, (), names.of), check.why)
    if any(check.kind in ("tensor", "int") for node in tree.nodes for check in node.checks):
        lines.append((f"S = [None] * {len(tree.slots)}", ", ".join(["sizes", *map(str, tree.slots)])))
    for node in tree.nodes:
        path = node.path
        if node.step == "index_by":
            lines += [(f"{symbol} = S[{tree.slots[symbol]}]", "") for symbol in node.arg.symbols]
        lines.append((f"{node.name} = {_read_text(node, names)}", path if path != node.name else ""))
        for check in node.checks:
            comments = [checks.tensor_facts(check.arg)] if check.kind == "tensor" else []
            comments += [check.why] if check.why else []
            require(checks.expression(check, [node.name], names.of), "; ".join(comments))
    if any(check.symbols for check in tree.finals):
        lines.append((", ".join(map(str, tree.slots)) + (", = S" if len(tree.slots) == 1 else " = S"), ""))
    for check in tree.finals:
        require(checks.expression(check, [node.name for node in check.nodes], names.of), check.why)
    body = "\n".join(f"        {text}" + (f"  # {_one_line(why)}" if why else "") for text, why in lines)
    text = f"def guard(L, G, C):\n    try:\n{body}\n        return True\n    except Exception:\n        return False\n"
    return text, names.objects


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _read_text(node: Node, names: _Names) -> str:
    base = "" if node.base is None else node.base.name
    arg = str(node.arg) if node.step == "index_by" else names.of(node.arg, node.step not in ("const", "slot"))
    return STEPS[node.step].format(base=base, arg=arg)


# ---- explaining a miss ----------------------------------------


def _explain(tree: GuardTree, params: Any, globals: Any, closure: Any) -> list[str]:
    values: dict[Node, Any] = {}
    failing: list[tuple[int, str]] = []
    symbols: list[int | None] = [None] * len(tree.slots)

    def look(check: checks.Check, *places: tuple[object, Any]) -> None:
        found = checks.failure(check, list(places), tree.slots, symbols)
        if found is not None:
            failing.append((check.order, found + (f"  # {_one_line(check.why)}" if check.why else "")))

    for check in tree.prelude:
        look(check)
    first_order: dict[Node, int] = {}
    for node in reversed(tree.nodes):  # where a path cannot be read, the first guard below it is the one that failed
        orders = [check.order for check in node.checks] + [first_order[child] for child in node.children.values()]
        orders += [check.order for check in tree.finals if node in check.nodes] if node.keep >= 0 else []
        first_order[node] = min(orders, default=INT64_MAX)
    for node in tree.nodes:
        if node.base is not None and node.base not in values:
            continue
        try:
            arg = node.arg
            if node.step == "index_by":
                arg = arg.value(*[symbols[tree.slots[symbol]] for symbol in arg.symbols])
            base = None if node.base is None else values[node.base]
            values[node] = _READERS[node.step](params, globals, closure, base, arg)
        except Exception as error:
            failing.append((first_order[node], f"{node.path} cannot be read: {checks.describe_error(error)}"))
            continue
        for check in node.checks:
            look(check, (node.source, values[node]))
    for check in tree.finals:
        if all(node in values for node in check.nodes):
            look(check, *((node.source, values[node]) for node in check.nodes))
    return [text for _, text in sorted(failing, key=lambda pair: pair[0])]
