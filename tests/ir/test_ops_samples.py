"""Every shape rule against eager, on torch's OpInfo samples: shape, strides, dtype, requires_grad, offset, aliasing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from jitpy.ir import NotCovered, SizeEnv, TensorSpec, contiguous_stride, ops
from jitpy.ir.ops.derived import derive
from tests.ir.op_samples import is_plain, samples, specs_of, watching

#: Calls of one overload that are looked at.
PER_OVERLOAD = 40

#: OpInfos that are slow and reach no rule, or do not run on a CPU.
SKIPPED = (
    "fft",
    "histogram",
    "jiterator",
    "linalg",
    "lu",
    "masked",
    "pca",
    "signal",
    "sparse",
    "special",
    "stft",
    "svd",
)

_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch


class Survey:
    """Compares what `check` says of each call with what eager returned, and counts."""

    def __init__(self, check: Callable[..., None], per_overload: int = PER_OVERLOAD) -> None:
        self.check = check
        self.per_overload = per_overload
        self.seen: set[str] = set()
        self.counts: dict[str, int] = {}
        self.covered: dict[str, int] = {}
        self.failures: list[str] = []

    def see(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = str(func)
        if func._schema.is_mutable or self.counts.get(name, 0) >= self.per_overload or not is_plain((args, kwargs)):
            return func(*args, **kwargs)
        specs, kwspecs = specs_of(args), specs_of(kwargs)
        result = func(*args, **kwargs)
        key = f"{name} {specs} {kwspecs}"
        if key not in self.seen:
            self.seen.add(key)
            self.counts[name] = self.counts.get(name, 0) + 1
            torch._C._dispatch_tls_set_dispatch_key_included(_PRE_DISPATCH, False)
            try:
                self.check(self, func, specs, kwspecs, result, (args, kwargs))
            except NotCovered:
                pass
            except Exception as error:
                self.failures.append(f"{key}: {type(error).__name__}: {error}")
            finally:
                torch._C._dispatch_tls_set_dispatch_key_included(_PRE_DISPATCH, True)
        return result

    def run(self, dtype: torch.dtype, limit: int) -> None:
        for thunk in samples(dtype, limit, SKIPPED):
            with watching(self.see):
                try:
                    thunk()
                except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError):
                    continue  # some samples are not for this machine
        assert not self.failures, "\n".join(self.failures[:20])


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, (tuple, list)) else value


def agree(got: Any, want: Any) -> bool:
    """Equal specs; strides and offsets of tensors without elements do not matter, sizes that depend on data are any."""
    if isinstance(got, tuple) and isinstance(want, tuple):
        return len(got) == len(want) and all(map(agree, got, want))
    if type(got) is TensorSpec and type(want) is TensorSpec and not got.is_static:
        if len(got.shape) != len(want.shape):
            return False
        shape = tuple(a if type(a) is int else b for a, b in zip(got.shape, want.shape, strict=True))
        got = got.with_(shape=shape, stride=want.stride)
    if type(got) is TensorSpec and type(want) is TensorSpec and 0 in want.shape:
        return (got.shape, got.dtype, got.requires_grad) == (want.shape, want.dtype, want.requires_grad)
    return got == want


def real_aliasing(result: Any, inputs: Any) -> str:
    """What the tensors of a result are to those of the inputs."""
    given = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    returned = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    if returned and all(any(r is t for t in given) for r in returned):
        return "self"
    shared = any(r.untyped_storage()._cdata == t.untyped_storage()._cdata for r in returned for t in given)
    return "view" if shared else "copy"


def check_static(survey: Survey, func: Any, specs: Any, kwspecs: Any, result: Any, inputs: Any) -> None:
    op = ops.get(func)
    env = SizeEnv()
    want = as_tuples(specs_of(result))
    if not isinstance(want, (tuple, TensorSpec)) or op.infer is None and survey.counts[op.name] > 4:
        return
    if op.infer is not None:
        try:
            args, options = ops.normalize(op, specs, kwspecs)
            op.infer(env, *args, **options)
            survey.covered[op.name] = survey.covered.get(op.name, 0) + 1
        except NotCovered:
            pass
    got = ops.infer(op, env, specs, kwspecs, torch.is_grad_enabled())
    assert agree(got, want), f"{got} instead of {want}"
    if all(t.numel() for t in tree_leaves(result)) and tree_leaves(result):
        found, real = ops.aliasing(op, env, specs, kwspecs), real_aliasing(result, inputs)
        assert found == real, f"{found} instead of {real}"
    assert not env.relations


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 12), (torch.int64, 8), (torch.bfloat16, 5)])
def test_rules_equal_eager(dtype: torch.dtype, limit: int) -> None:
    survey = Survey(check_static)
    survey.run(dtype, limit)
    # The survey itself must reach the table: most calls of ops with a rule are answered by the rule.
    table = [n for n in survey.counts if ops.get(n).infer is not None]
    assert len(table) >= 150
    assert sum(survey.covered.values()) >= 0.75 * sum(survey.counts[n] for n in table)


# -- The same with symbols for sizes -------------------------------------------------------------------------------


def symbolic(env: SizeEnv, tree: Any) -> Any:
    """Specs with a symbol for each distinct size above 1. Raises NotCovered for tensors that are not row-major."""
    symbols: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        if type(value) is not TensorSpec:
            return value
        if value.stride != contiguous_stride(value.shape):
            raise NotCovered("strides")
        shape = tuple(
            symbols.setdefault(s, None) or symbols.__setitem__(s, env.new_symbol(s, "size")) or symbols[s]
            if s > 1
            else s
            for s in value.shape
        )
        return value.with_(shape=shape, stride=contiguous_stride(shape))

    return tree_map(convert, tree)


def at_hints(env: SizeEnv, spec: Any) -> Any:
    if type(spec) is tuple:
        return tuple(at_hints(env, s) for s in spec)
    if type(spec) is not TensorSpec:
        return spec
    assert all(type(d) is int or not d.is_number for d in (*spec.shape, *spec.stride)), "a sympy number among the sizes"
    return spec.with_(shape=env.hints(spec.shape), stride=env.hints(spec.stride), offset=env.hint(spec.offset))


def without_unit_strides(spec: Any) -> Any:
    """Strides of axes of size 1 say nothing; torch's own symbolic shape code chooses them differently."""
    if type(spec) is tuple:
        return tuple(map(without_unit_strides, spec))
    if type(spec) is not TensorSpec:
        return spec
    return spec.with_(stride=tuple(0 if n == 1 else s for n, s in zip(spec.shape, spec.stride, strict=True)))


def check_symbolic(survey: Survey, func: Any, specs: Any, kwspecs: Any, result: Any, inputs: Any) -> None:
    op = ops.get(func)
    env = SizeEnv()
    args, options = symbolic(env, (specs, kwspecs))
    want = as_tuples(specs_of(result))
    if not env.symbols or not isinstance(want, (tuple, TensorSpec)):
        return
    got = at_hints(env, ops.infer(op, env, args, options, torch.is_grad_enabled()))
    assert agree(got, want) or agree(without_unit_strides(got), without_unit_strides(want)), f"{got} instead of {want}"
    survey.covered[op.name] = survey.covered.get(op.name, 0) + 1
    for relation in env.relations:
        value = relation.subs({s: info.hint for s, info in env.symbols.items()})
        assert value == True, f"{relation} does not hold"  # noqa: E712  (sympy's own truth)


def test_rules_on_symbolic_sizes() -> None:
    survey = Survey(check_symbolic, per_overload=3)
    survey.run(torch.float32, 3)
    assert len(survey.covered) >= 300


def check_derived(survey: Survey, func: Any, specs: Any, kwspecs: Any, result: Any, inputs: Any) -> None:
    op = ops.get(func)
    if op.infer is None:
        return
    got = derive(op, SizeEnv(), specs, kwspecs, torch.is_grad_enabled())
    assert agree(got.spec, as_tuples(specs_of(result))), f"{got.spec}"


def test_derived_rule_agrees_where_there_is_a_written_one() -> None:
    Survey(check_derived, per_overload=4).run(torch.float32, 2)
