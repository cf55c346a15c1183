"""Every gradient rule against torch's autograd and against finite differences, on torch's OpInfo samples in float64,
call by call of ATen.

A part of the samples by default; all of them with JITPY_TEST_ALL=1. Rules that no sample reaches have calls in `CALLS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from jitpy.autograd import compile_differentiable
from jitpy.autograd.reverse import vjp
from jitpy.autograd.rules.registry import RULES
from jitpy.backends import eager as eager_backend
from jitpy.ir import Graph, Node, NotCovered, TensorSpec, ops
from jitpy.ir.builder import Builder
from jitpy.ir.interpret import interpret
from tests.ir.op_samples import spec_of
from tests.ir.test_ops_samples import Survey

ALL = bool(os.environ.get("JITPY_TEST_ALL"))

#: Rules of GPU kernels.
ON_GPUS = {
    f"aten._scaled_dot_product_{kind}_attention.default" for kind in ("flash", "efficient", "cudnn")
}

#: ops that a graph makes of its own bodies: tests/semantics/test_higher_order.py and tests/flex compare gradients
OF_ONE_GRAPH = {"ir.cond", "ir.flex_attention"}
#: What does not depend on the values of the argument, which has no gradient.
FACTORIES = {f"aten.{name}_like.default" for name in ("empty", "zeros", "ones", "full")}

#: Rules for complex numbers: `tests/training/test_complex_numbers.py`.
COMPLEX = {"aten._conj.default", *(f"aten._fft_{kind}.default" for kind in ("c2c", "r2c", "c2r"))}

#: Calls of each op that are compared with finite differences, those that are tried for it, and how many elements
#: their arguments may have.
CHECKED = 30 if ALL else 1
TRIED = 60 if ALL else 6
SMALL = 500
#: With more elements, derivatives are taken along random directions.
EACH = 60


class Gradients(Survey):
    """Compares the gradients of each call."""

    def __init__(self, per_overload: int) -> None:
        super().__init__(check, per_overload)
        self.reached: set[str] = set()
        self.refused: dict[str, str] = {}
        #: how many calls of an op were compared with finite differences
        self.checked: dict[str, int] = {}
        self.tried: dict[str, int] = {}

    def by_differences(self, op: Any, args: Any, kwargs: Any, real: list[torch.Tensor],
                       results: list[torch.Tensor]) -> None:
        """`torch.autograd.gradcheck` of a call, where a rule of ours answers and eager passes, too: elsewhere the
        function has a kink, or rounds to less than float64."""
        done, tried = self.checked.get(op.name, 0), self.tried.get(op.name, 0)
        if op.name not in RULES or done >= CHECKED or tried >= TRIED or sum(t.numel() for t in real) > SMALL:
            return
        if any(t.is_floating_point() and t.dtype is not torch.float64 for t in (*real, *results)):
            return  # differences need all the digits
        self.tried[op.name] = tried + 1
        with answered_by_rule(op.name) as answers:
            found = gradcheck(ours(op, args, kwargs, real), real)
        if answers and gradcheck(lambda *values: op.target(*with_values((args, kwargs), real, values)[0],
                                                           **with_values((args, kwargs), real, values)[1]), real):
            assert found, f"{op.name} differs from its finite differences"
            self.checked[op.name] = done + 1


@contextmanager
def answered_by_rule(name: str) -> Iterator[list[str]]:
    """Notes in the list where the rule of an op gives gradients: what it does not take is derived from torch."""
    answers: list[str] = []
    rule = RULES[name]

    def noting(*args: Any, **kwargs: Any) -> Any:
        found = rule(*args, **kwargs)
        answers.append(name)
        return found

    RULES[name] = noting
    try:
        yield answers
    finally:
        RULES[name] = rule


def gradcheck(fn: Callable[..., Any], real: list[torch.Tensor]) -> bool:
    """Whether gradients are finite differences, from the same random state at each call."""

    def seeded(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        return tuple(t for t in tree_leaves(fn(*values)) if isinstance(t, torch.Tensor) and t.requires_grad)

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        return torch.autograd.gradcheck(seeded, real, raise_exception=False, check_undefined_grad=False,
                                        check_batched_grad=False,
                                        fast_mode=sum(t.numel() for t in real) > EACH)


def ours(op: Any, args: Any, kwargs: Any, real: list[torch.Tensor], first: bool = False) -> Callable[..., Any]:
    """Twice the call's results (or the `first` of them), as a graph of its own whose halves run op by op.

    A result that is a view of an argument would be made by torch."""
    graph = Graph()
    nodes = [graph.add_input(spec_of(t)) for t in real]
    b = Builder(graph)
    args, kwargs = with_values((args, kwargs), real, nodes)
    call = b.call(op, *args, **kwargs)
    outputs = [b.getitem(call, k) for k in range(len(call.spec))] if isinstance(call.spec, tuple) else [call]
    outputs = [node for node in outputs if isinstance(node.spec, TensorSpec) and node.spec.requires_grad]
    graph.outputs = [b.call("aten.mul.Tensor", node, 2.0) for node in outputs[:1 if first else None]]
    return compile_differentiable(graph, *[lambda part: eager_backend.compile_graph(part, {})] * 2)


def with_values(tree: Any, real: list[torch.Tensor], values: Any) -> Any:
    """A call's arguments with others in place of its tensors."""
    others = {id(t): value for t, value in zip(real, values, strict=True)}
    return tree_map(lambda v: others[id(v)] if isinstance(v, torch.Tensor) else v, tree)


def leaves_of(args: Any, kwargs: Any) -> Any:
    """The arguments with tensors of their own, leaves where they require grad."""
    return tree_map(lambda t: t.detach().clone().requires_grad_(t.requires_grad)
                    if isinstance(t, torch.Tensor) else t, (args, kwargs))


def check(survey: Gradients, func: Any, specs: Any, kwspecs: Any, result: Any, inputs: Any) -> None:
    op = ops.get(func)
    results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    if any(t.layout is not torch.strided for t in results):
        return
    if not any(t.requires_grad for t in results) or any(t.is_complex() for t in results):
        return
    args, kwargs = leaves_of(*inputs)
    real = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if any(t.is_complex() for t in real):
        return
    if op.is_random:
        survey.by_differences(op, args, kwargs, real, results)
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        cotangents = [torch.randn_like(t) if t.requires_grad else None for t in results]
    try:
        want_values, want = eager(func, args, kwargs, real, cotangents)
    except RuntimeError:
        return  # eager has no gradient here either
    graph = Graph()
    try:
        wrt = differentiate(graph, op, args, kwargs, real, cotangents)
    except NotCovered as reason:
        survey.refused[op.name] = str(reason)
        return
    finally:
        survey.reached.update(node.op.name for node in graph.nodes if node.grad_enabled)
    found = interpret(graph, [*real, *(c for c in cotangents if c is not None)])
    count = len(want_values)
    for got, value in zip(found[:count], want_values, strict=True):
        torch.testing.assert_close(got, value, rtol=0, atol=0, equal_nan=True)
    rest = iter(found[count:])
    for tensor, grad, there in zip([t for t in real if t.requires_grad], want, wrt, strict=True):
        got = next(rest) if there else None
        if got is None or grad is None:
            # an undefined gradient and one of zeros are the same to an accumulation
            assert all(g is None or not g.count_nonzero() for g in (got, grad)), f"{got} where eager has {grad}"
            continue
        assert got.dtype == tensor.dtype and got.shape == tensor.shape
        torch.testing.assert_close(got, grad, rtol=1e-9, atol=1e-9, equal_nan=True)
    survey.by_differences(op, args, kwargs, real, results)


def eager(func: Any, args: Any, kwargs: Any, real: list[torch.Tensor], cotangents: list[Any]) -> Any:
    with torch.enable_grad():
        results = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    pairs = [(t, c) for t, c in zip(results, cotangents, strict=True) if c is not None]
    wrt = [t for t in real if t.requires_grad]
    grads = torch.autograd.grad([t for t, _ in pairs], wrt, [c for _, c in pairs], allow_unused=True)
    return [t.detach() for t in results], grads


def differentiate(graph: Graph, op: Any, args: Any, kwargs: Any, real: list[torch.Tensor],
                  cotangents: list[Any]) -> list[bool]:
    """Fill the graph with the call and its gradients; says for each tensor that requires grad whether it has one."""
    nodes = {id(t): graph.add_input(spec_of(t)) for t in real}
    b = Builder(graph)
    args, kwargs = tree_map(lambda v: nodes[id(v)] if isinstance(v, torch.Tensor) else v, (args, kwargs))
    call = b.call(op, *args, **kwargs)
    outputs = [b.getitem(call, k) for k in range(len(call.spec))] if isinstance(call.spec, tuple) else [call]
    outputs = [node for node in outputs if isinstance(node.spec, TensorSpec)]
    given = [(node, graph.add_input(spec_of(c))) for node, c in zip(outputs, cotangents, strict=True) if c is not None]
    wrt: list[Node] = [nodes[id(t)] for t in real if t.requires_grad]
    grads = vjp(graph, [node for node, _ in given], [c for _, c in given], wrt)
    graph.outputs = [*outputs, *(g for g in grads if g is not None)]
    return [g is not None for g in grads]


def test_rules_equal_torchs_autograd() -> None:
    survey = Gradients(400 if ALL else 6)
    survey.run(torch.float64, 1000 if ALL else 6)
    assert len(survey.refused) <= 25
    unchecked = set(RULES) - set(survey.checked) - set(CALLS) - set(BY_DIFFERENCES_ALONE) - ON_GPUS - COMPLEX
    unchecked -= FACTORIES | OF_ONE_GRAPH
    assert not unchecked, f"no call of these was compared with finite differences: {sorted(unchecked)}"



def _rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


X, Y = (torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) + 0.5 for k in (1, 2))
FUNCTIONAL = "aten._native_batch_norm_legit_functional.default"
MASK = torch.tensor([True, False, True, True])
IDS = torch.tensor([[0, 2, 1, 0]])

#: Calls whose overloads the samples do not show: torch replaces names that mean the same before they can be seen.
CALLS: dict[str, Any] = {
    **{f"aten.{name}.default": (X * 0.5,) for name in (
        "contiguous", "fix", "zero", "lift_fresh")},
    **{f"aten.{name}": (X, Y) for name in (
        "divide.Tensor", "multiply.Tensor", "subtract.Tensor", "to.other", "type_as.default")},
    **{f"aten.{name}.Scalar": (X, 0.7) for name in ("divide", "fmod", "multiply", "rsub", "subtract", "true_divide")},
    "aten.pow.Scalar": (1.5, X),
    "aten.alias.default": (X,),
    **{f"aten.{name}.Scalar": (X, 0.7) for name in ("add", "div", "mul", "remainder", "sub")},
    "aten.div.Scalar_mode": (X, 0.7),
    "aten._log_softmax.default": (X, 1, False),
    "aten._unsafe_view.default": (X, [4, 3]),
    "aten.bernoulli.Tensor": (X, Y / 2),
    "aten.native_dropout.default": (X, 0.5, True),
    "aten.convolution.default": (_rand(1, 2, 5), _rand(3, 2, 3), _rand(3), [1], [1], [1], False, [0], 1),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (_rand(1, 2, 3, 4), _rand(1, 2, 3, 4),
                                                                 _rand(1, 2, 3, 4)),
    "aten.nll_loss_forward.default": (X, torch.tensor([0, 3, 1]), None, 1, -100),
    "aten.nll_loss2d_forward.default": (_rand(1, 3, 2, 2), torch.tensor([[[0, 2], [1, 1]]]), None, 1, -100),
    "aten.max_pool3d_with_indices.default": (_rand(1, 1, 2, 4, 4), [2, 2, 2]),
    "aten._adaptive_avg_pool2d.default": (_rand(1, 2, 4, 4), [2, 2]),
    "aten._adaptive_avg_pool3d.default": (_rand(1, 1, 2, 4, 4), [1, 2, 2]),
    "aten.masked_fill.Scalar": (X, MASK, 0.5),
    "aten.moveaxis.intlist": (X, [0, 1], [1, 0]),
    "aten.movedim.int": (X, 0, 1),
    "aten.slice_scatter.default": (X, Y[:, 1:3], 1, 1, 3, 1),
    "aten.topk.default": (X, 2, 1, True, True),
    "aten.to.device": (X, torch.device("cpu"), torch.float64),
    "aten.to.dtype": (X, torch.float64),
    "aten.to.dtype_layout": (X,),
    "aten._softmax.default": (X, 1, False),
    "aten.clamp.default": (X, 0.7, 1.2),
    "aten.clip.default": (X, 0.7, None),
    "aten.clamp_max.default": (X, 1.0),
    "aten.clamp_min.default": (X, 1.0),
    "aten.concat.default": ([X, Y], 1),
    "aten.concatenate.default": ([X, Y], 0),
    "aten.fill.Tensor": (X, torch.tensor(0.5, dtype=torch.float64)),
    "aten.masked_fill.Tensor": (X, MASK, torch.tensor(0.5, dtype=torch.float64)),
    "aten.moveaxis.int": (X, 0, 1),
    "aten.movedim.intlist": (X, [0, 1], [1, 0]),
    "aten.swapaxes.default": (X, 0, 1),
    "aten.swapdims.default": (X, 0, 1),
    "aten.scatter.value": (X, 0, IDS, 0.5),
    "aten.split.sizes": (X, [1, 3], 1),
    "aten.where.ScalarOther": (MASK, X, 0.5),
    "aten.where.ScalarSelf": (MASK, 0.5, X),
    "aten._to_copy.default": (X,),
    "aten._cdist_forward.default": (X, Y[:2], 2.0, None),
    "aten._prelu_kernel.default": (X - 1, Y),
    "aten.grid_sampler_2d.default": (_rand(1, 2, 3, 4), _rand(1, 2, 2, 2) - 0.5, 0, 0, False),
    "aten.norm.ScalarOpt_dim": (X, 2, [1], True),
    "aten.upsample_nearest3d.vec": (_rand(1, 1, 2, 2, 2), [3, 4, 2], None),
    "aten._upsample_nearest_exact2d.vec": (_rand(1, 2, 2, 3), None, [2.0, 1.5]),
    "aten._upsample_nearest_exact3d.vec": (_rand(1, 1, 2, 2, 2), [3, 4, 2], None),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "aten.div.Scalar_mode": {"rounding_mode": None},
    "aten.to.dtype_layout": {"dtype": torch.float64},
}


#: Calls of which only the first result is differentiated, or for which torch itself has no gradient. Dropout's kernels
#: scale by a float32 forwards and by a double backwards: the gradient is not quite the one of the call's parts.
BY_DIFFERENCES_ALONE: dict[str, Any] = {
    FUNCTIONAL: (_rand(4, 3, 5), _rand(3), _rand(3), torch.zeros(3, dtype=torch.float64),
                 torch.ones(3, dtype=torch.float64), True, 0.1, 1e-5),
    "aten.native_group_norm.default": (_rand(2, 4, 3), _rand(4), _rand(4), 2, 4, 3, 2, 1e-5),
    "aten.copy.default": (X, Y),
    "ir.in_layout_of": (X, Y),
    "aten.bernoulli.p": (X, 0.5),
    "ir.masked": (X, Y > 1, 0.1),
    "ir.recurrent_layer": (_rand(3, 2, 4), _rand(2, 3), _rand(9, 4), _rand(9, 3), _rand(9), _rand(9), "gru", True),
}


@pytest.mark.parametrize("name", BY_DIFFERENCES_ALONE)
def test_calls_that_torch_does_not_differentiate(name: str) -> None:
    op = ops.get(name)
    args, _ = leaves_of(tree_map(lambda t: t.clone().requires_grad_(t.is_floating_point())
                                 if isinstance(t, torch.Tensor) else t, BY_DIFFERENCES_ALONE[name]), {})
    if name == FUNCTIONAL:
        for statistic in args[3:5]:
            statistic.requires_grad_(False)
    real = [a for a in args if isinstance(a, torch.Tensor)]
    with answered_by_rule(name) as answers:
        assert gradcheck(ours(op, args, {}, real, first=True), real)
    assert answers


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_no_sample_makes(name: str) -> None:
    survey = Gradients(1)
    args = tree_map(lambda t: t.clone().requires_grad_(t.is_floating_point()) if isinstance(t, torch.Tensor) else t,
                    CALLS[name])
    op = ops.get(name)
    with torch.enable_grad():
        result = op.target(*args, **OPTIONS.get(name, {}))
    check(survey, op.target, None, {}, result, (args, OPTIONS.get(name, {})))
    assert not survey.refused and (name in survey.reached or op.is_random)
    assert survey.checked == ({name: 1} if name in RULES else {})


def test_batch_norm_while_training() -> None:
    """The form that the frontend records: running statistics come back as results without gradients."""
    x = torch.rand(4, 3, 5, dtype=torch.float64)
    args = (x.requires_grad_(), torch.rand(3, dtype=torch.float64).requires_grad_(),
            torch.rand(3, dtype=torch.float64).requires_grad_(), torch.zeros(3, dtype=torch.float64),
            torch.ones(3, dtype=torch.float64), True, 0.1, 1e-5)
    graph = Graph()
    nodes = [graph.add_input(spec_of(a)) if isinstance(a, torch.Tensor) else a for a in args]
    b = Builder(graph)
    out = b.getitem(b.call(FUNCTIONAL, *nodes), 0)
    cotangent = torch.rand_like(x)
    grads = vjp(graph, [out], [graph.add_input(spec_of(cotangent))], nodes[:3])
    graph.outputs = [g for g in grads if g is not None]
    found = interpret(graph, [*(a for a in args if isinstance(a, torch.Tensor)), cotangent])
    plain = torch.nn.functional.batch_norm(x, None, None, args[1], args[2], True, 0.1, 1e-5)
    for got, want in zip(found, torch.autograd.grad(plain, args[:3], cotangent), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", sorted(RULES.keys() - OF_ONE_GRAPH))
def test_rules_are_of_ops(name: str) -> None:
    assert ops.get(name).name == name
