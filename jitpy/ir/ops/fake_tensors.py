"""Running torch code on fake tensors: tensors with metadata and no memory, whose ATen calls are written down.

Whatever the graph builder has no shortcut for is run once on fake tensors of its arguments, under the traced program's
grad mode and autocast. Autograd, autocast and composite ops happen in torch itself, so exactly the list of ATen calls
that eager would make arrives here. The list becomes a `Template`, which is replayed into the graph now and for every
later call with the same metadata.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._library.fake_impl import set_ctx_getter

from ..interrupts import CaptureMode
from ..op import NotCovered, Uncapturable
from ..sizes import SizeEnv
from ..spec import ScalarSpec, TensorSpec
from ..trees import tree_leaves, tree_map
from . import infer, symbolic
from .oracle import META, Ref, dim_of, fake_tensor, needed, references, spec_of
from .registered import fake_of
from .schemas import SchemaFacts, has_size_rule, names_sizes, schema_facts
from .table import get

_aten = torch.ops.aten


class FakeTensor(torch.Tensor):
    """A tensor of the real device, dtype and dispatch keys, with a meta tensor inside."""

    meta: torch.Tensor

    @staticmethod
    def __new__(cls, meta: torch.Tensor, device: torch.device, requires_grad: bool = False) -> FakeTensor:
        fake = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.size(),
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            layout=meta.layout,
            device=device,
            requires_grad=requires_grad,
        )
        fake.meta, meta.fake_device = meta, device  # type: ignore[attr-defined]
        return fake

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"FakeTensor({tuple(self.shape)}, {self.dtype})"


def make_fake(
    spec: TensorSpec, is_leaf: bool, env: SizeEnv | None = None, lazy: tuple[bool, bool] = (False, False)
) -> FakeTensor:
    """A fake tensor with the metadata of `spec`; one that requires grad is a leaf, or has a grad_fn that is no view.

    With `env`, symbolic sizes stay symbolic: what torch asks about them is recorded there. `lazy` says whether a
    conjugation and a negation are pending.
    """
    plain = spec.with_(requires_grad=False)
    meta = fake_tensor(plain, META) if env is None else symbolic.fake_tensor(env, plain)
    set_lazy_bits(meta, *lazy)
    with env.generic() if env is not None else contextlib.nullcontext():
        fake = FakeTensor(meta, spec.device, spec.requires_grad and is_leaf)
    set_lazy_bits(fake, *lazy)
    if not spec.requires_grad or is_leaf:
        return fake
    with torch.enable_grad():
        NonLeaf.mark(fake)
    return fake


def set_lazy_bits(tensor: torch.Tensor, conj: bool, neg: bool) -> None:
    """Mark a tensor as one whose conjugation or negation is pending."""
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)


class NonLeaf(torch.autograd.Function):
    """Makes a tensor look like the result of a computation that requires grad."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("fake tensors have no gradients")

    @staticmethod
    def mark(tensor: torch.Tensor) -> None:
        NonLeaf.apply(tensor, torch.empty((), device=META, requires_grad=True))  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class Constant:
    """In a template: a real tensor that torch made while the call ran, such as a converted list of indices."""

    tensor: torch.Tensor


@dataclass(slots=True)
class Record:
    """One ATen call. `results` are the value numbers of its tensor results (flat); `spec` is that of the functional
    op's whole result, with `requires_grad` filled in at the end. `unsafe_view`: autograd does not know of the view."""

    facts: SchemaFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...]
    spec: Any
    unsafe_view: bool = False


@dataclass(slots=True)
class Template:
    """The effect of one call: its ATen calls, and its result in terms of `Ref`s and constants. `names_sizes` says that
    symbols were made for sizes that depend on data: they belong to this one call."""

    records: list[Record] = field(default_factory=list)
    result: Any = None
    names_sizes: bool = False


class SizesByData(Exception):
    """A call on plain sizes has a result whose size depends on data: it needs an environment for the symbol."""


class Tape(CaptureMode):
    """Writes down the ATen calls made on fake tensors.

    torch's own code asks whether two tensors are equal before it raises ("q must be in the range [0, 1]"). It is told
    `answer`; with True a call is written down that checks this when the graph runs. `was_asked` says whether it asked:
    the caller finds out whether the other answer raises. `saves`: a tensor that autograd wraps to save it is the same.
    """

    def __init__(self, inputs: list[FakeTensor], env: SizeEnv | None = None, answer: bool = True,
                 saves: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.env = env
        self.answer = answer
        self.was_asked = False
        self.saves = saves
        #: tensors that autograd wrapped to save them, with what they were
        self.saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.start_again(inputs)
        #: copies that kernels get where a conjugation or negation is pending: made below autograd, which has the
        #: kernel's result depend on their sources
        self.resolved: set[int] = set()

    def start_again(self, inputs: Sequence[torch.Tensor]) -> None:
        """Forget the calls so far; these tensors are what the rest is computed from."""
        self.numbers: dict[int, int] = {id(t): i for i, t in enumerate(inputs)}
        self.values: list[torch.Tensor] = list(inputs)
        self.template = Template()
        self.inputs = len(inputs)
        self.numbers.update((id(saved), self.numbers[id(source)]) for saved, source in self.saved
                            if id(source) in self.numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.saves and func is _aten.detach.default and id(args[0]) in self.numbers:
            result = _run(func, args, kwargs)
            self.numbers[id(result)] = self.numbers[id(args[0])]
            self.saved.append((result, args[0]))
            return result
        if func is _aten.equal.default and args[0].shape == args[1].shape:
            self.was_asked = True
            same = self.__torch_dispatch__(_aten.eq.Tensor, types, args)
            self.__torch_dispatch__(_aten._assert_async.default, types, (
                self.__torch_dispatch__(_aten.all.default, types, (same,)),))
            return self.answer
        found = self.taken_apart(func, args, kwargs)
        if found is not NotImplemented:
            return found
        unsafe = func is _aten._unsafe_view.default
        if unsafe:
            func = _aten.view.default  # composite ops write through it (`kron(out=)`): see `_own_memory`
        if func is _aten.resize_.default and len(args) == 2 and not kwargs and tuple(args[0].shape) == tuple(args[1]):
            return args[0]  # composite ops resize their out= argument without looking
        if len(args) > 5 and get(func).writes_statistics and args[5] and args[3] is not None:
            # These update the running statistics although their schema does not say so.
            result = self.__torch_dispatch__(_aten._native_batch_norm_legit.default, types, args, kwargs)
            missing = len(func._schema.returns) - len(result)
            return (
                *result,
                *(
                    FakeTensor(torch.empty(0, dtype=torch.uint8, device=META), result[0].device)
                    for _ in range(missing)
                ),
            )
        if func is _aten._efficientzerotensor.default:
            func = _aten.zeros.default  # kernels read memory
        if func is _aten._conj.default and not isinstance(args[0], torch.Tensor):
            func, args, kwargs = _aten.full.default, ([], args[0].conjugate()), {"dtype": torch.complex128}
        if func is _aten._to_copy.default and not isinstance(args[0], torch.Tensor):
            # batching rules make tensors of numbers, which arrive here as numbers
            func = _aten.scalar_tensor.default
            kwargs = {"dtype": torch.tensor(args[0]).dtype, **kwargs}
            kwargs = {name: kwargs[name] for name in ("dtype", "device") if name in kwargs}
        facts = schema_facts(func)
        if facts.dynamic and not has_size_rule(func, args):
            raise Uncapturable("dynamic_shape", f"the result of {func} depends on the values of its arguments")
        if names_sizes(func, args):
            if self.env is None:
                raise SizesByData
            self.template.names_sizes = True
        args, kwargs = tree_map(_lift, (args, kwargs))
        record = Record(facts, self.refer(args), self.refer(kwargs), (), None, unsafe)
        if facts.mutated:
            record.spec = specs_of(_functional_spec(facts, args, kwargs))
        if facts.inplace_view:
            with torch._C._DisableTorchDispatch():
                func(*args, **kwargs)
        result = _run(func, args, kwargs, self.env, self._note_names)
        record.results = tuple(self.number(t) for t in tensors_of(result))
        if func is _aten.clone.default and (args[0].is_conj() or args[0].is_neg()):
            if torch.is_grad_enabled() and (args[0].requires_grad or self.numbers.get(id(args[0])) in self.resolved):
                self.resolved.update(record.results)
        if not facts.mutated:
            record.spec = specs_of(result)
        self.template.records.append(record)
        return result

    def _note_names(self) -> None:
        self.template.names_sizes = True

    def number(self, tensor: torch.Tensor) -> int:
        number = self.numbers.get(id(tensor))
        if number is None:
            number = self.numbers[id(tensor)] = len(self.values)
            self.values.append(tensor)
        return number

    def refer(self, value: Any) -> Any:
        """`value` with its tensors replaced by references."""
        return tree_map(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return plain(value)
        number = self.numbers.get(id(value))
        if number is not None:
            return Ref(number)
        constant = getattr(value, "constant", None)
        if constant is None:
            raise Uncapturable("unsupported_op", "a tensor appeared that no recorded operation made")
        return Constant(constant)

    def writes_to(self, tensor: torch.Tensor) -> bool:
        """Whether a recorded call wrote to a tensor, itself or through a view."""
        number = self.numbers.get(id(tensor))
        aliases = {number}
        for record in self.template.records:
            facts = record.facts
            if facts.is_view:
                if isinstance(record.args[0], Ref) and record.args[0].index in aliases:
                    aliases.update(record.results)
                continue
            written = [facts.argument(name, record.args, record.kwargs) for name in facts.mutated]
            if not aliases.isdisjoint(references(written)):
                return True
        return False

    def finish(self, result: Any, refer_result: Callable[[Any], Any]) -> Template:
        """The template, without the calls whose results nobody uses."""
        template = self.template
        for record in template.records:
            own = iter(record.results)
            if not record.facts.mutated:
                record.spec = _with_grad(record.spec, own, self.values, self.resolved)
            elif None in record.facts.returns:
                fresh = record.facts.returns.count(None)
                record.spec = (
                    *_with_grad(record.spec[:fresh], own, self.values, self.resolved), *record.spec[fresh:])
        template.result = refer_result(result)
        template.records = needed(template.records, template.result, _has_effect)
        self._own_memory(template)
        self._skip_detach(template)
        return template

    def _own_memory(self, template: Template) -> None:
        """The result of `_unsafe_view` for memory that nobody else sees is a tensor of its own, as a copying
        reshape's."""
        unsafe = [record for record in template.records if record.unsafe_view]
        if not unsafe:
            return
        makers = {number: record for record in template.records for number in record.results}
        readers: dict[int, int] = {}
        for tree in (template.result, *((record.args, record.kwargs) for record in template.records)):
            for number in set(references(tree)):
                readers[number] = readers.get(number, 0) + 1
        for record in unsafe:
            source = record.args[0].index
            maker = makers.get(source)
            if maker is not None and not maker.facts.is_view and not maker.facts.mutated and readers[source] == 1:
                record.facts = schema_facts(_aten._unsafe_view.default)

    def _skip_detach(self, template: Template) -> None:
        """Bindings of factories end in a detach() of the tensor that they just made: the same tensor to everybody."""
        if len(template.records) != 2:
            return
        last = template.records[-1]
        if (
            last.facts.overload is _aten.detach.default
            and template.result == Ref(last.results[0])
            and last.args == (Ref(template.records[0].results[0]),)
        ):
            template.result = last.args[0]
            template.records.pop()


def _has_effect(record: Record) -> bool:
    return bool(record.facts.mutated) or record.facts.is_random or not record.facts.returns


def plain(value: Any) -> Any:
    """A constant or a size as the graph may hold it."""
    if type(value) is torch.SymInt:
        return dim_of(value)
    if type(value) is torch.SymBool:
        return bool(value)
    if type(value) is torch.SymFloat:
        raise Uncapturable("unsupported_op", f"a float computed from sizes: {value}")
    return value


def _lift(value: Any) -> Any:
    """A real tensor that torch made from Python data becomes a fake tensor that remembers it."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    fake = FakeTensor(value.detach().to(META), value.device)
    fake.constant = value.detach().clone()  # type: ignore[attr-defined]
    return fake


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _functional_spec(facts: SchemaFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The metadata of what the functional form of a writing op computes."""
    functional = facts.functional_for(args, kwargs)
    if functional is None:
        raise Uncapturable("unsupported_op", f"{facts.overload} writes to its arguments and has no functional form")
    return _run(functional, *facts.functional_call(args, kwargs))


class _FakeContext:
    """The result of `torch.library.get_ctx()` in shape rules of the program's: it names sizes that depend on data."""

    def __init__(self, env: SizeEnv | None) -> None:
        self.env = env
        self.has_named = False

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        if self.env is None:
            raise SizesByData
        self.has_named = True
        estimate = 64 if max is None else builtins.max(max // 2, 2)
        return symbolic.number(self.env, self.env.new_unbacked(builtins.max(estimate, min), min, max))

    create_unbacked_symint = new_dynamic_size


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], capture: SizeEnv | None = None,
         named: Callable[[], None] | None = None) -> Any:
    """Run an op on the meta tensors inside fake tensors and wrap what it returns. `capture` names sizes by data;
    `named` is called where a shape rule of the program's did so."""
    facts = schema_facts(func)
    if None not in facts.returns and func.namespace not in ("aten", "prims"):  # no shape to be found out
        given = tuple(facts.argument(name, args, kwargs) for name in facts.returns if name is not None)
        return given[0] if len(given) == 1 else given or None
    env = capture if names_sizes(func, args) else symbolic.environment((args, tuple(kwargs.values())))
    found = _run_by_rule(_STATIC if env is None else env, func, args, kwargs)
    if found is not _NO_RULE:
        return found
    fakes: dict[int, FakeTensor] = {}
    device = _result_device(args, kwargs)
    meta_args, meta_kwargs = tree_map(lambda leaf: _unwrap(leaf, fakes), (args, kwargs))
    if "device" in meta_kwargs or not fakes and any(a.name == "device" for a in func._schema.arguments):
        meta_kwargs["device"] = META
    fake = fake_of(func)
    context = _FakeContext(capture)
    if fake is not None and capture is not None:
        env = capture
    try:
        with contextlib.ExitStack() as stack:
            if env is not None:
                stack.enter_context(symbolic._SymbolicShapes())  # type: ignore[no-untyped-call]
                stack.enter_context(env.asked_by(str(func)))
            if fake is not None:
                stack.enter_context(set_ctx_getter(lambda: context))
            result = (func if fake is None else fake)(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise Uncapturable("unsupported_op", f"{func} has no shape rule: {error}") from error
    if context.has_named and named is not None:
        named()
    return tree_map(lambda leaf: _wrap(leaf, fakes, device), result)


_NO_RULE = object()

#: For calls whose sizes are all plain.
_STATIC = SizeEnv()


def _run_by_rule(env: SizeEnv, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The op table's answer: faster than meta kernels, many of which are Python, and the one that the graph goes by."""
    facts = schema_facts(func)
    if facts.mutated:
        # An in-place call returns its argument; on symbolic sizes torch's own check of it is not worth its time.
        return (
            facts.argument("self", args, kwargs)
            if env is not _STATIC and facts.returns == ("self",) and not facts.inplace_view
            else _NO_RULE
        )
    if any(t.is_neg() or t.is_conj() or facts.is_view and t.dtype.is_complex
           for t in tensors_of((args, tuple(kwargs.values())))):
        return _NO_RULE  # only a real view op knows about pending conjugations
    try:
        spec = infer(get(func), env, *tree_map(_argument, (args, kwargs)))
    except NotCovered:
        return _NO_RULE
    # what kind of number it is says nothing of its value
    return _NO_RULE if _has_number(spec) else _fakes_of(spec, env)


def _has_number(spec: Any) -> bool:
    return any(map(_has_number, spec)) if isinstance(spec, tuple) else isinstance(spec, ScalarSpec)


def _argument(value: Any) -> Any:
    """Part of an argument as the op table takes it."""
    return specs_of(value) if isinstance(value, torch.Tensor) else plain(value)


def _fakes_of(spec: Any, env: SizeEnv) -> Any:
    if isinstance(spec, TensorSpec):
        return make_fake(spec.with_(requires_grad=False), False, env)
    return tuple(_fakes_of(s, env) for s in spec) if isinstance(spec, tuple) else None


def _result_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    explicit = kwargs.get("device")
    if explicit is not None:
        return torch.device(explicit)
    found: torch.device | None = None
    for tensor in tensors_of((args, tuple(kwargs.values()))):
        if found is not None and tensor.dim() and tensor.device != found and "meta" in (tensor.device.type, found.type):
            raise RuntimeError("tensors on the device meta and on others")
        if found is None or tensor.dim() and found.type == "cpu":
            found = tensor.device
    return found if found is not None else torch.device("cpu")


def _unwrap(value: Any, fakes: dict[int, FakeTensor]) -> Any:
    if isinstance(value, FakeTensor):
        fakes[id(value.meta)] = value
        return value.meta
    return None if isinstance(value, torch.Generator) else value


def _wrap(value: Any, fakes: dict[int, FakeTensor], device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    known = fakes.get(id(value))
    if known is not None:
        return known
    if value.is_nested or value.layout is not torch.strided or value.is_quantized:
        raise Uncapturable("unsupported_tensor", f"a result with layout {value.layout}")
    fake = FakeTensor(value, device)
    set_lazy_bits(fake, value.is_conj(), value.is_neg())
    return fake


def specs_of(value: Any) -> Any:
    """The spec of a fake tensor. Autograd says whether it requires grad only after the op returned."""
    if isinstance(value, torch.Tensor):
        return spec_of(value).with_(requires_grad=False)
    if isinstance(value, (tuple, list)):
        return tuple(map(specs_of, value))
    return None


def _with_grad(spec: Any, results: Iterator[int], values: list[torch.Tensor], resolved: set[int]) -> Any:
    """The spec of a call's result with `requires_grad` where autograd has recorded it."""
    if isinstance(spec, TensorSpec):
        number = next(results)
        return spec.with_(requires_grad=True) if number in resolved or _has_history(values[number]) else spec
    if isinstance(spec, tuple):
        return tuple(_with_grad(s, results, values, resolved) for s in spec)
    return None


def _has_history(tensor: torch.Tensor) -> bool:
    """Not of a view made under no_grad, which says that it requires grad if its base does."""
    return tensor.requires_grad and (tensor._base is None or _autograd._get_creation_meta(tensor) not in _UNRECORDED)


_autograd: Any = torch._C._autograd
_UNRECORDED = (_autograd.CreationMeta.NO_GRAD_MODE, _autograd.CreationMeta.INFERENCE_MODE)
