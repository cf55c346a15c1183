"""The derived path: a torch function run on fake tensors of its arguments, and replayed from the template
afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitpy.ir import Dim, SizeEnv, SizeUnknown
from jitpy.ir.ops import symbolic
from jitpy.ir.ops.fake_tensors import (
    Constant,
    FakeTensor,
    SizesByData,
    Tape,
    Template,
    make_fake,
    plain,
    tensors_of,
)
from jitpy.ir.ops.oracle import ANSWERS, META, Ref, at_hints, fake_tensor, keep, zeros
from jitpy.ir.ops.quiet import without_compiler_import
from jitpy.ir.ops.registered import fake_of
from jitpy.ir.ops.schemas import is_user_op
from jitpy.ir.trees import tree_map

from ...ir.algebra import sympy
from .traced import (
    DECLINED,
    GraphBuilder,
    StructPayload,
    TracedScalar,
    TracedTensor,
    Uncapturable,
    tensors_in,
)

_aten = torch.ops.aten


def run(builder: GraphBuilder, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record `fn(*args, **kwargs)`."""
    tensors: list[TracedTensor] = []
    seen: dict[int, int] = {}
    key: Any = None
    template: Template | None = None
    templates = ANSWERS
    try:
        key = "template", fn, _rule(fn), builder.state.key(), _key(args, tensors, seen), _key(kwargs, tensors, seen)
        if _SYMBOLIC in seen:
            # A template with symbols relies on what was recorded about them, so it belongs to this capture.
            templates = builder.templates
        template = templates.get(key)
    except TypeError:
        # An argument that cannot be told from others of its kind: nothing is remembered.
        key, tensors = None, list({id(t): t for t in tensors_in((args, kwargs))}.values())
    symbolic = _SYMBOLIC in seen or key is None and any(not t.spec.is_static for t in tensors)
    if template is None:
        template = _make_template(builder, fn, args, kwargs, tensors, symbolic)
        if key is not None and not template.names_sizes:
            keep(templates, key, template)
    return replay(builder, template, tensors)


def _rule(fn: Any) -> Any:
    """The program's shape rules of an operator, which it may register anew."""
    if isinstance(fn, torch._ops.OpOverloadPacket):
        return tuple(fake_of(getattr(fn, name)) for name in fn.overloads())
    return fake_of(fn) if isinstance(fn, torch._ops.OpOverload) else None


#: The entry of `seen` that says that an argument mentions symbols.
_SYMBOLIC = -1


def _key(value: Any, tensors: list[TracedTensor], seen: dict[int, int]) -> Any:
    """All of an argument that the recording depends on, as a hashable; fills `tensors` with the distinct tensors."""
    kind = type(value)
    if kind is TracedTensor:
        number = seen.get(id(value))
        if number is not None:
            return number
        seen[id(value)] = len(tensors)
        tensors.append(value)
        spec = value.spec
        if not spec.is_static or type(spec.offset) is not int:
            seen[_SYMBOLIC] = 1
        leaf = not value.builder.speculation.has_history(value)
        return (spec, leaf, *value.lazy_bits) if value.chain else (spec, leaf)
    if kind is tuple or kind is list:
        return (kind, *[_key(v, tensors, seen) for v in value])
    if kind is dict:
        return (kind, *[(k, _key(v, tensors, seen)) for k, v in value.items()])
    if kind is slice:
        return slice, *[_key(v, tensors, seen) for v in (value.start, value.stop, value.step)]
    if kind is StructPayload:
        return (value.cls, *[_key(v, tensors, seen) for v in value.items])
    if kind is TracedScalar:
        raise Uncapturable("unsupported_op", "a number computed by the graph as an argument here")
    if isinstance(value, sympy.Basic):
        seen[_SYMBOLIC] = 1
        return value
    if kind is float:
        return kind, value.hex()
    if kind in (int, bool, complex):
        return kind, value
    if isinstance(value, torch.Tensor):
        raise TypeError("unhashable: a real tensor has no key")
    return value


def _make_template(
    builder: GraphBuilder,
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[TracedTensor],
    symbolic: bool,
) -> Template:
    if not symbolic:
        try:
            return _run_on_fakes(builder, fn, args, kwargs, tensors, None)
        except SizesByData:
            pass
    import torch.fx.experimental.symbolic_shapes  # noqa: F401  (gives SymInt its operators; slow to import)

    mark = builder.sizes.checkpoint()
    try:
        return _run_on_fakes(builder, fn, args, kwargs, tensors, builder.sizes)
    except Uncapturable as error:
        if builder.sizes.unbacked_in_all(tuple(t.spec for t in tensors)):
            raise
        # Not every function takes symbolic sizes: try with the sizes of this call, which become guards.
        builder.sizes.rollback(mark)
        try:
            return _run_on_fakes(builder, fn, args, kwargs, tensors, None)
        except SizesByData:
            raise error from error.__cause__  # nothing but symbols can stand for sizes that depend on data


def _with(tensors: dict[int, Any], convert: Callable[[Any], Any], arguments: Any) -> Any:
    """Payloads as the function itself takes them: `tensors` by the ids of traced ones, other leaves converted."""
    def leaf(value: Any) -> Any:
        if type(value) is TracedTensor:
            return tensors[id(value)]
        return value.cls(tree_map(leaf, value.items)) if type(value) is StructPayload else convert(value)

    return tree_map(leaf, arguments)


def _run_on_fakes(
    builder: GraphBuilder,
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[TracedTensor],
    env: SizeEnv | None,
    at: Callable[[Dim], int] | None = None,
) -> Template:
    """Run the function; sizes are symbolic with `env`, what `at` says, or else fixed to those of this call."""
    name = getattr(fn, "__name__", str(fn))
    why = f"{name} has no symbolic form"

    def fixed(size: Dim) -> Dim:
        if at is not None:
            return at(size)
        return size if type(size) is int or env is not None else builder.sizes.specialize(size, why)

    fakes: dict[int, FakeTensor] = {}
    for tensor in tensors:
        spec = tensor.spec
        if env is None and not (spec.is_static and type(spec.offset) is int):
            spec = spec.with_(
                shape=tuple(map(fixed, spec.shape)), stride=tuple(map(fixed, spec.stride)), offset=fixed(spec.offset)
            )
        fakes[id(tensor)] = make_fake(spec, not builder.speculation.has_history(tensor), env, tensor.lazy_bits)

    def convert(value: Any) -> Any:
        if type(value) is TracedScalar:
            raise Uncapturable("unsupported_op", "a number computed by the graph as an argument here")
        return symbolic.number(env, fixed(value)) if isinstance(value, sympy.Basic) else value

    def run_with(tape: Tape) -> Any:
        with without_compiler_import(), builder.state.active(), tape:
            return fn(*_with(fakes, convert, args), **call_kwargs)

    tape = Tape(list(fakes.values()), env)
    try:
        call_kwargs = _with(fakes, convert, kwargs)
        result = run_with(tape)
        if tape.was_asked and not _raises(run_with, Tape(list(fakes.values()), env, answer=False)):
            raise Uncapturable("dynamic_shape", f"what {name} does depends on the values of its arguments")
        for out in tensors_of(call_kwargs.get("out")):
            if not tape.writes_to(out):
                raise Uncapturable("unsupported_op", f"{name} does not write to its out= argument here")
        return tape.finish(result, lambda value: _refer_result(tape, value, builder.state.grad_enabled))
    except (Uncapturable, SizesByData, SizeUnknown):
        raise
    except Exception as error:
        raise _refusal(builder, error, fn, args, kwargs) from error


def run_alike(builder: GraphBuilder, fn: Any, args: tuple[Any, ...], tensors: list[TracedTensor]) -> Any:
    """Record a function that makes the same calls for all sizes but very small ones, although it has no symbolic form:
    those that it makes for this call's sizes and for two others. DECLINED where they differ."""
    def run(more: int) -> Template:
        return _run_on_fakes(builder, fn, args, {}, tensors, None, lambda size: builder.sizes.near_hint(size, more))

    template = run(0)
    try:
        if not all(_alike(template, run(more)) for more in (1, 4)):
            return DECLINED
    except Uncapturable:  # sizes of parameters do not change with it
        return DECLINED
    return replay(builder, template, tensors, new_sizes=True)


def _alike(a: Template, b: Template) -> bool:
    """Whether two recordings are the same up to the sizes of results."""
    if len(a.records) != len(b.records) or not _equal(a.result, b.result):
        return False
    return all(x.facts is y.facts and x.results == y.results and _equal((x.args, x.kwargs), (y.args, y.kwargs))
               for x, y in zip(a.records, b.records, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return type(a) is not Constant and bool(a == b)


def _raises(run_with: Callable[[Tape], Any], tape: Tape) -> bool:
    """Whether a call raises with what this tape answers."""
    try:
        run_with(tape)
    except (Uncapturable, SizesByData, SizeUnknown):
        return False
    except RuntimeError:
        return True
    return False


def _refusal(builder: GraphBuilder, error: Exception, fn: Any, args: Any, kwargs: Any) -> Uncapturable:
    """The break for an error on fake tensors. Eager raises its own, or not."""
    name, text = getattr(fn, "__name__", str(fn)), str(error).partition("\n")[0]
    if "its data is not allocated yet" in text:  # the fake tensors' data
        return Uncapturable("unsupported_op", f"{name} reads the values of its arguments on the host")
    # the kernel of an operator of the program's may have effects: it only runs where the program runs it
    is_raised = not is_user_op(fn) and _raises_on_zeros(builder, fn, args, kwargs)
    return Uncapturable("exception" if is_raised else "unsupported_op", f"{name}: {type(error).__name__}: {text}")


#: Bytes of fakes that are materialised to find out whether eager raises.
_ZEROS_LIMIT = 1 << 26


def _raises_on_zeros(builder: GraphBuilder, fn: Any, args: Any, kwargs: Any) -> bool:
    """Whether eager raises for tensors of these sizes that are full of zeros."""
    sizes, made = builder.sizes, {}
    for tensor in tensors_in((args, kwargs)):
        spec = at_hints(sizes, tensor.spec)
        if spec.device.type != "cpu" or fake_tensor(spec, META).untyped_storage().nbytes() > _ZEROS_LIMIT:
            return False
        made[id(tensor)] = zeros(spec)
    given = _with(made, lambda value: sizes.hint(value) if isinstance(value, sympy.Basic) else value, (args, kwargs))
    try:
        with torch.random.fork_rng(devices=[]), builder.state.active():
            fn(*given[0], **given[1])
    except Exception:
        return True
    return False


_PLAIN = frozenset((type(None), type(NotImplemented), bool, int, float, complex, str, torch.dtype, torch.device,
                    torch.layout))


def _refer_result(tape: Tape, value: Any, grad_enabled: bool) -> Any:
    if isinstance(value, torch.Tensor):
        number = tape.numbers.get(id(value))
        if number is None:
            raise Uncapturable("unsupported_op", "a result that no recorded operation made")
        if value.requires_grad and value.is_leaf and number >= tape.inputs and grad_enabled:
            # (parts of a leaf that are made under no_grad say so, too, and autograd knows nothing of them)
            raise Uncapturable("unsupported_op", "a new leaf tensor that requires grad")
        return Ref(number)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(_refer_result(tape, v, grad_enabled) for v in value)
    if kind is torch.Size:
        return tuple(map(plain, value))
    if kind in (torch.SymInt, torch.SymBool):
        return plain(value)
    if isinstance(value, tuple):
        return StructPayload(kind, tuple(_refer_result(tape, v, grad_enabled) for v in value))
    if kind in _PLAIN:
        return value
    raise Uncapturable("unsupported_op", f"a result of type {kind.__name__}")


def replay(builder: GraphBuilder, template: Template, tensors: list[TracedTensor], new_sizes: bool = False) -> Any:
    """Record what the template says, on these tensors; `new_sizes` says that they are not those of the template."""
    values: dict[int, Any] = dict(enumerate(tensors))

    def leaf(value: Any) -> Any:
        kind = type(value)
        if kind is Ref:
            return values[value.index]
        if kind is Constant:
            return builder.fresh(builder.constant(value.tensor))
        return StructPayload(value.cls, tree_map(leaf, value.items)) if kind is StructPayload else value

    for record in template.records:
        args, kwargs = tree_map(leaf, record.args), tree_map(leaf, record.kwargs)
        overload, spec = record.facts.overload, None if new_sizes else record.spec
        if overload is _aten.lift_fresh.default:
            result: Any = builder.record(_aten.clone.default, args, kwargs, spec)
        else:
            result = builder.record(overload, args, kwargs, spec)
        values.update(zip(record.results, tensors_in(result), strict=True))
    return tree_map(leaf, template.result)
