"""Decompositions, index maps, reduction loops, functional forms and errors of the op table, against eager."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import sympy
import torch
from torch.utils._pytree import tree_leaves, tree_map

from jitpy.ir import Graph, Node, NotCovered, SizeEnv, TensorSpec, ops
from jitpy.ir.builder import Builder
from jitpy.ir.interpret import interpret
from jitpy.ir.op import Op
from jitpy.ir.ops import table
from jitpy.ir.ops.functional import check_write
from jitpy.ir.ops.schemas import schema_facts
from tests.ir.op_samples import spec_of, specs_of
from tests.ops.test_gradient_ops import OPS as GRADIENT_OPS


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


X = normal(4, 6, 8)
IMAGE = normal(2, 6, 5, 3)
LOGITS = normal(7, 5)
TARGET = torch.tensor([0, 4, -100, 2, 2, 1, 3])

#: Arguments for each decomposition, in float64.
CASES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "aten.softmax.int": [((X, -1), {}), ((X, 0), {}), ((X, 1, torch.float32), {})],
    "aten.log_softmax.int": [((X, -1), {}), ((X * 50, 1), {})],
    "aten._softmax.default": [((X, -1, False), {})],
    "aten._log_softmax.default": [((X, -1, False), {})],
    "aten._safe_softmax.default": [((X.index_fill(1, torch.tensor([0, 3]), -math.inf), -1), {}), ((X * 30, 1), {})],
    "aten.logsumexp.default": [
        ((X, [1]), {}),
        ((X * 100, [0, 2], True), {}),
        ((torch.full((3, 4), -math.inf), [1]), {}),
    ],
    "aten.mean.default": [((X,), {})],
    "aten.mean.dim": [((X, [1]), {}), ((X, [0, -1], True), {}), ((X, None), {}), ((X, [2]), {"dtype": torch.float32})],
    "aten.max.dim": [((X, 1), {}), ((X, -1, True), {})],
    "aten.min.dim": [((X, 1), {})],
    "aten.aminmax.default": [((X,), {}), ((X,), {"dim": 1, "keepdim": True})],
    "aten.count_nonzero.default": [((X.relu(),), {}), ((X.relu(), 1), {})],
    "aten.count_nonzero.dim_IntList": [((X.relu(), [0, 1]), {})],
    "aten.linalg_vector_norm.default": [((X,), {}), ((X, 1, [1], True), {}), ((X, math.inf, [0]), {})],
    "aten.norm.Scalar": [((X,), {}), ((X, 1), {})],
    "aten.norm.ScalarOpt_dim": [((X, None, [1]), {}), ((X, 2, [0, 1], True), {})],
    "aten.layer_norm.default": [
        ((X, [8], normal(8), normal(8)), {}),
        ((X, [6, 8]), {}),
        ((X + 100, [8], None, None, 1e-3), {}),
    ],
    "aten.native_layer_norm.default": [((X, [8], normal(8), normal(8), 1e-5), {}), ((X, [6, 8], None, None, 1e-5), {})],
    "aten.rms_norm.default": [((X, [8], normal(8), 1e-6), {}), ((X, [8]), {})],
    "aten.group_norm.default": [((IMAGE, 3, normal(6), normal(6)), {}), ((normal(3, 6), 2), {})],
    "aten.batch_norm.default": [
        ((IMAGE, normal(6), normal(6), normal(6), normal(6).exp(), False, 0.1, 1e-5, False), {}),
        ((normal(5, 6), None, None, normal(6), normal(6).exp(), False, 0.1, 1e-5, False), {}),
    ],
    "aten.native_batch_norm.default": [
        ((IMAGE, normal(6), normal(6), normal(6), normal(6).exp(), False, 0.1, 1e-5), {}),
        ((normal(5, 6), None, None, normal(6), normal(6).exp(), False, 0.1, 1e-5), {}),
    ],
    "aten.matmul.default": [
        ((X, X.mT), {}),
        ((X, normal(8, 3)), {}),
        ((X, normal(8)), {}),
        ((normal(6), X), {}),
        ((normal(8), normal(8)), {}),
        ((normal(3, 1, 2, 8), normal(5, 8, 4)), {}),
        ((normal(2, 8), normal(8, 4)), {}),
    ],
    "aten.outer.default": [((normal(3), normal(5)), {})],
    "aten.stack.default": [(([normal(2, 3), normal(2, 3)], 1), {}), (([normal(2), normal(2), normal(2)], -1), {})],
    "aten.pad.default": [((X, [1, 2]), {}), ((X, [0, 1, 2, 0], "constant", 3.5), {})],
    "aten.one_hot.default": [((torch.tensor([[0, 2], [1, 1]]), 4), {})],
    "aten.glu.default": [((X,), {}), ((X, 1), {})],
    "aten.scaled_dot_product_attention.default": [
        ((normal(2, 3, 4, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 8)), {}),
        ((normal(2, 3, 4, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 8), normal(4, 5)), {"scale": 0.5}),
    ],
    "aten.mse_loss.default": [((X, X + 1), {}), ((X, X.flip(0), 0), {}), ((X, X.flip(0), 2), {})],
    "aten.l1_loss.default": [((X, X.flip(0)), {}), ((X, X.flip(0), 0), {})],
    "aten.smooth_l1_loss.default": [((X, X.flip(0)), {}), ((X, X.flip(0), 0, 0.5), {}), ((X, X.flip(0), 1, 0.0), {})],
    "aten.cross_entropy_loss.default": [
        ((LOGITS, TARGET), {}),
        ((LOGITS, TARGET, None, 0), {}),
        ((LOGITS, TARGET.relu(), None, 2, 2), {}),
        ((LOGITS, TARGET, normal(5).exp()), {}),
        ((LOGITS[0], torch.tensor(3)), {}),
        ((LOGITS, torch.full((7,), -100)), {}),
    ],
    "aten.nll_loss_nd.default": [
        ((LOGITS.log_softmax(1), TARGET), {}),
        ((LOGITS.log_softmax(1), TARGET, normal(5).exp(), 2), {}),
    ],
    "aten.nll_loss.default": [((LOGITS.log_softmax(1), TARGET, None, 0), {})],
    "aten._native_batch_norm_legit_functional.default": [
        ((IMAGE, normal(6), normal(6), normal(6), normal(6).exp(), True, 0.1, 1e-5), {}),
        ((normal(5, 6), None, None, normal(6), normal(6).exp(), True, 0.3, 1e-3), {}),
    ],
    "aten._native_batch_norm_legit.no_stats": [((IMAGE, normal(6), normal(6), True, 0.1, 1e-5), {})],
    "aten.native_dropout_backward.default": [((X, X > 0, 1.25), {})],
    "ir.masked": [((X, X > 0.5, 0.1), {}), ((X.mT, X.mT > 0, 0.75), {}), ((X, (X > 0).mT.contiguous().mT, 0.5), {})],
    "ir.in_layout_of": [((X, X + 1), {}), ((X.mT, X.mT + 1), {})],
    "aten._fused_rms_norm.default": [((X, [8], normal(8), 1e-6), {}), ((X, [6, 8], None, None), {})],
}
for _base in ("var", "std", "var_mean", "std_mean"):
    CASES[f"aten.{_base}.correction"] = [((X, [1]), {}), ((X, [0, 2]), {"correction": 0, "keepdim": True}), ((X,), {})]
    CASES[f"aten.{_base}.default"] = [((X,), {}), ((X, False), {})]
    CASES[f"aten.{_base}.dim"] = [((X, [1]), {}), ((X, [0], False, True), {})]


def decomposed(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Graph, list[torch.Tensor]]:
    graph = Graph()
    tensors: list[torch.Tensor] = []

    def node_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return graph.add_input(spec_of(value))
        return value

    op = ops.get(name)
    result = op.decompose(Builder(graph), *tree_map(node_of, args), **tree_map(node_of, kwargs))
    graph.outputs = list(result) if isinstance(result, tuple) else [result]
    want = ops.infer(op, graph.sizes, specs_of(args), specs_of(kwargs))
    for node, spec in zip(graph.outputs, want if isinstance(want, tuple) else (want,), strict=True):
        assert (node.tensor.shape, node.tensor.dtype) == (spec.shape, spec.dtype)
    return graph, tensors


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    if not value.is_floating_point():
        assert torch.equal(value, exact)
        return 0.0
    finite = exact.isfinite()
    torch.testing.assert_close(value.double()[~finite], exact.double()[~finite], equal_nan=True)
    return (value.double() - exact.double())[finite].abs().max().item() if finite.any() else 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(CASES))
def test_decomposition(name: str, dtype: torch.dtype) -> None:
    """No further from the float64 result than eager is (twice its error, and a rounding)."""
    op = ops.get(name)
    ran = 0
    for case, options in CASES[name]:

        def convert(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        args, kwargs = tree_map(convert, case), tree_map(convert, options)
        exact_args = tree_map(
            lambda v: (
                v.double()
                if isinstance(v, torch.Tensor) and v.is_floating_point()
                else torch.float64
                if v is torch.float32
                else v
            ),
            (args, kwargs),
        )
        try:
            eager, exact = op.target(*args, **kwargs), op.target(*exact_args[0], **exact_args[1])
        except (RuntimeError, NotImplementedError):
            continue
        graph, tensors = decomposed(name, args, kwargs)
        for got, reference, truth in zip(
            interpret(graph, tensors), tree_leaves(eager), tree_leaves(exact), strict=True
        ):
            assert got.dtype is reference.dtype and got.shape == reference.shape
            rounding = (
                torch.finfo(got.dtype).eps * max(1.0, error(truth, torch.zeros_like(truth)))
                if got.is_floating_point() and truth.isfinite().any()
                else 0.0
            )
            if name in ("aten.max.dim", "aten.min.dim") and not got.is_floating_point():
                truth = reference  # ties of rounded values
            # on small samples one rounding more or less is a factor of a few either way
                assert error(got, truth) <= 4 * error(reference, truth) + rounding
        ran += 1
    assert ran


def test_every_decomposition_is_tested() -> None:
    """Those of gradients in `tests/ops/test_gradient_ops.py`."""
    known = {"aten._fused_rms_norm_backward.default", *CASES} | {f"aten.{name}.default" for name in GRADIENT_OPS}
    assert {n for n in ops.defined_names() if ops.get(n).decompose is not None} <= known


def test_decompositions_of_symbolic_sizes() -> None:
    for name in (
        "aten.softmax.int",
        "aten.layer_norm.default",
        "aten.mean.dim",
        "aten.matmul.default",
        "aten.var.correction",
    ):
        graph = Graph()
        batch = graph.sizes.new_symbol(5, "batch")
        shape = (batch, 6, 8)
        x = graph.add_input(TensorSpec(torch.float32, shape, (48, 8, 1)))
        weight = graph.add_input(TensorSpec(torch.float32, (8, 3), (3, 1)))
        args = {"aten.softmax.int": (x, -1), "aten.layer_norm.default": (x, [8]), "aten.matmul.default": (x, weight)}
        result = ops.get(name).decompose(Builder(graph), *args.get(name, (x, [0, 2])))
        graph.outputs = [result]
        want = ops.infer(ops.get(name), SizeEnv(), args.get(name, (x, [0, 2])))
        assert result.tensor.shape == want.shape
        assert not graph.sizes.relations


# -- Index maps ----------------------------------------------------------------------------------------------------

V = torch.arange(4 * 6 * 1 * 5).reshape(4, 6, 1, 5)
VIEWS: list[tuple[str, tuple[Any, ...]]] = [
    ("view.default", ([24, 5],)),
    ("view.default", ([2, 2, 3, 10],)),
    ("reshape.default", ([-1],)),
    ("reshape.default", ([6, 4, 5],)),
    ("flatten.using_ints", (1, -1)),
    ("flatten.using_ints", (2, 2)),
    ("unflatten.int", (1, [2, -1])),
    ("ravel.default", ()),
    ("view_as.default", (torch.zeros(8, 15),)),
    ("reshape_as.default", (torch.zeros(8, 15),)),
    ("_unsafe_view.default", ([120],)),
    ("unsqueeze.default", (-1,)),
    ("unsqueeze.default", (0,)),
    ("squeeze.default", ()),
    ("squeeze.dim", (2,)),
    ("squeeze.dims", ([2, 1],)),
    ("permute.default", ([3, 0, -2, 1],)),
    ("transpose.int", (0, -1)),
    ("swapaxes.default", (1, 2)),
    ("swapdims.default", (1, 2)),
    ("mT.default", ()),
    ("movedim.int", (0, 2)),
    ("movedim.intlist", ([0, 1], [2, 0])),
    ("moveaxis.int", (3, 0)),
    ("moveaxis.intlist", ([3], [0])),
    ("expand.default", ([2, 4, -1, 7, 5],)),
    ("broadcast_to.default", ([4, 6, 3, 5],)),
    ("expand_as.default", (torch.zeros(4, 6, 2, 5),)),
    ("select.int", (1, -2)),
    ("select.int", (0, 3)),
    ("slice.Tensor", (1, 1, -1, 2)),
    ("slice.Tensor", (3, -4)),
    ("slice.Tensor", (0, None, 2)),
    ("narrow.default", (1, 2, 3)),
    ("diagonal.default", (1, 0, 1)),
    ("diagonal.default", (-1, 3, 1)),
    ("unfold.default", (1, 3, 2)),
    ("as_strided.default", ([5, 1, 4, 6], [1, 9, 30, 5])),
    ("as_strided.default", ([4, 6, 1, 5], [30, 5, 1, 1], 0)),
    ("alias.default", ()),
    ("detach.default", ()),
    ("flip.default", ([1, 3],)),
    ("roll.default", ([2, -1], [1, 3])),
    ("repeat.default", ([2, 1, 1, 3, 2],)),
    ("split.Tensor", (4, 1)),
    ("split.sizes", ([1, 5], 1)),
    ("split_with_sizes.default", ([2, 2], 0)),
    ("chunk.default", (2, 3)),
    ("unbind.int", (1,)),
]


@pytest.mark.parametrize(("name", "args"), VIEWS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(VIEWS)])
def test_index_map(name: str, args: tuple[Any, ...]) -> None:
    op = ops.get(f"aten.{name}")
    results = op.target(V, *args)
    several = isinstance(results, (tuple, list))
    for k, result in enumerate(results if several else [results]):
        extra = {"output": k} if several else {}
        for position in itertools.product(*map(range, result.shape)):
            source = op.index(position, spec_of(V), *specs_of(args), **extra)
            assert V[tuple(source)] == result[position], (position, source)


@pytest.mark.parametrize(("name", "args"), [("t.default", ()), ("numpy_T.default", ())])
def test_index_map_of_matrices(name: str, args: tuple[Any, ...]) -> None:
    matrix = torch.arange(6).reshape(2, 3)
    op = ops.get(f"aten.{name}")
    result = op.target(matrix, *args)
    for position in itertools.product(range(3), range(2)):
        assert matrix[op.index(position, spec_of(matrix), *args)] == result[position]


def test_every_index_map_is_tested() -> None:
    tested = {f"aten.{n}" for n, _ in VIEWS} | {"aten.t.default", "aten.numpy_T.default"}
    assert {n for n in ops.defined_names() if ops.get(n).index is not None} == tested


def test_index_maps_of_symbolic_sizes() -> None:
    """Splitting and merging known axes next to a symbolic one leaves the symbolic one alone."""
    env = SizeEnv()
    batch, i, j = env.new_symbol(4, "batch"), sympy.Symbol("i", integer=True), sympy.Symbol("j", integer=True)
    x = TensorSpec(torch.float32, (batch, 6, 8), (48, 8, 1))
    index = ops.get("aten.view.default").index((i, j), x, [batch, 48])
    assert index[0] == i
    index = ops.get("aten.view.default").index((i, j), x, [batch * 6, 8])
    assert index[2] == j


# -- Elements from indices -----------------------------------------------------------------------------------------


def test_elements() -> None:
    from tests.ir.test_ops_scalar import Elements

    def at(name: str, position: tuple[int, ...], *args: Any) -> Any:
        return ops.get(name).element(Elements(), [torch.tensor(p) for p in position], *args)

    assert [at("aten.arange.default", (k,), 4) for k in range(4)] == [0, 1, 2, 3]
    assert [at("aten.arange.start_step", (k,), 3, 12, 4) for k in range(3)] == [3, 7, 11]
    for rows, diagonal in itertools.product((3, 4), (-1, 0, 2)):
        x = torch.arange(1, rows * 4 + 1).reshape(rows, 4)
        for name in ("tril", "triu"):
            want = getattr(torch, name)(x, diagonal)
            for i, j in itertools.product(range(rows), range(4)):
                assert at(f"aten.{name}.default", (i, j), x[i, j], diagonal) == want[i, j]
    assert [[bool(at("aten.eye.default", (i, j), 2)) for j in range(2)] for i in range(2)] == [
        [True, False],
        [False, True],
    ]
    for name, args, want in (
        ("aten.zeros.default", ([2],), 0),
        ("aten.ones_like.default", (None,), 1),
        ("aten.full.default", ([2], 2.5), 2.5),
        ("aten.new_full.default", (None, [2], 3), 3),
    ):
        assert ops.get(name).fill(*args) == want


# -- Reduction loops -----------------------------------------------------------------------------------------------

COMBINE = {
    "sum": torch.sum,
    "prod": torch.prod,
    "max": torch.amax,
    "min": torch.amin,
    "any": torch.any,
    "all": torch.all,
}


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("sum.default", (), {}),
        ("sum.dim_IntList", ([0, -1], True), {}),
        ("sum.dim_IntList", ([1],), {"dtype": torch.float64}),
        ("prod.default", (), {}),
        ("prod.dim_int", (1, True), {}),
        ("amax.default", ([0, 1],), {}),
        ("amin.default", (), {}),
        ("max.default", (), {}),
        ("min.default", (), {}),
        ("any.default", (), {}),
        ("any.dim", (1,), {}),
        ("any.dims", ([0, 2],), {}),
        ("all.default", (), {}),
        ("all.dim", (-1, True), {}),
        ("all.dims", ([1],), {}),
        ("argmax.default", (), {}),
        ("argmax.default", (1, True), {}),
        ("argmin.default", (0,), {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_reduction_loop(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, (2, 3, 4)).to(dtype)
    op = ops.get(f"aten.{name}")
    try:
        want = op.target(x, *args, **kwargs)
        loop = op.reduction(spec_of(x), *args, **kwargs)
        spec = ops.infer(op, SizeEnv(), (spec_of(x), *args), kwargs)
    except (RuntimeError, NotImplementedError, NotCovered):
        assert name.startswith("arg") and dtype is torch.bool
        return
    value = x.to(loop.dtype)
    if loop.combine.startswith("arg"):
        pick = getattr(torch, loop.combine)
        result = pick(value.reshape(-1) if loop.flat else value, 0 if loop.flat else loop.dims[0], loop.keepdim)
    else:
        result = value
        for axis in sorted(loop.dims, reverse=True):
            result = COMBINE[loop.combine](result, axis, loop.keepdim)
    torch.testing.assert_close(result.to(spec.dtype), want)


def test_scan_loop() -> None:
    loop = ops.get("aten.cumsum.default").scan(spec_of(torch.ones(2, 3, dtype=torch.bfloat16)), -1)
    assert (loop.combine, loop.dims, loop.dtype) == ("sum", (1,), torch.float32)


# -- Functional forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "functional", "mutated", "keeps"),
    [
        ("add_.Tensor", "add.Tensor", (0,), True),
        ("add.out", "add.Tensor", (3,), False),
        ("relu_.default", "relu.default", (0,), True),
        ("masked_fill_.Scalar", "masked_fill.Scalar", (0,), True),
        ("index_put_.default", "index_put.default", (0,), True),
        ("zero_.default", "zero.default", (0,), True),
        ("fill_.Scalar", "fill.Scalar", (0,), True),
        ("__iand__.Tensor", "__and__.Tensor", (0,), True),
        ("dropout_.default", "dropout.default", (0,), True),
        ("max.dim_max", "max.dim", (3, 4), False),
        ("squeeze_.dim", "squeeze.dim", (0,), True),
        ("bernoulli_.float", "bernoulli.p", (0,), True),
        ("normal_.default", "normal_functional.default", (0,), True),
        ("_native_batch_norm_legit.default", "_native_batch_norm_legit_functional.default", (3, 4), True),
    ],
)
def test_functional_form(name: str, functional: str, mutated: tuple[int, ...], keeps: bool) -> None:
    facts = schema_facts(ops.get(f"aten.{name}").target)  # type: ignore[arg-type]
    assert (str(facts.functional), not facts.outs) == (f"aten.{functional}", keeps)
    assert tuple(facts.position[written] for written in facts.mutated) == mutated
    assert facts.inplace_view == (name == "squeeze_.dim")


def test_functional_form_of_overloads_without_one() -> None:
    for name in ("aten.set_.source_Tensor", "aten.resize_.default", "aten.add.Tensor"):
        with pytest.raises(NotCovered):
            ops.functional_of(ops.get(name).target)  # type: ignore[arg-type]


def test_every_pointwise_op_in_place_has_its_functional_form() -> None:
    for name in ops.defined_names():
        base, overload = name.removeprefix("aten.").rsplit(".", 1)
        packet = getattr(torch.ops.aten, f"{base}_", None)
        if packet is None or overload not in packet.overloads() or base.startswith("__"):
            continue
        found = ops.functional_of(getattr(packet, overload))
        assert str(found).startswith(f"aten.{base}.")


@pytest.mark.parametrize(
    ("target", "value"), itertools.product([torch.int64, torch.float32, torch.bool, torch.bfloat16], repeat=2)
)
def test_write_conversion(target: torch.dtype, value: torch.dtype) -> None:
    x = torch.ones(2, dtype=target)
    try:
        x.add_(torch.ones(2, dtype=value))
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error)):
            check_write(target, torch.promote_types(target, value))
    else:
        check_write(target, torch.promote_types(target, value))


# -- Errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add.Tensor", (normal(2, 3), normal(4))),
        ("view.default", (normal(4, 6), [5, -1])),
        ("view.default", (normal(4, 6).t(), [24])),
        ("mm.default", (normal(2, 3), normal(2, 3))),
        ("bmm.default", (normal(2, 3), normal(2, 3))),
        ("linear.default", (X, normal(3, 7))),
        ("matmul.default", (X, normal(3, 3))),
        ("softmax.int", (X, 3)),
        ("permute.default", (X, [0, 0, 1])),
        ("transpose.int", (X, 0, 5)),
        ("select.int", (X, 0, 9)),
        ("expand.default", (X, [4, 6, 9])),
        ("cat.default", ([X, normal(2, 2)], 0)),
        ("squeeze.dim", (X, 4)),
        ("layer_norm.default", (X, [7])),
        ("unsqueeze.default", (X, 9)),
        ("sub.Tensor", (X > 0, X > 0)),
        ("amax.default", (normal(0, 2), [0])),
        ("mean.default", (torch.arange(3),)),
        ("bitwise_and.Tensor", (X, X)),
        ("stack.default", ([X, X[:2]], 0)),
        ("chunk.default", (X, 0, 0)),
        ("gather.default", (X, 0, torch.zeros(1, 9, 1, dtype=torch.int64))),
        ("embedding.default", (normal(3, 4), normal(2))),
        ("sum.dim_IntList", (X, [0, 0])),
        ("split_with_sizes.default", (X, [1, 1], 0)),
        ("dropout.default", (X, 1.5, True)),
        ("pow.Tensor_Scalar", (torch.arange(3), -1)),
        ("clamp.default", (X,)),
        ("narrow.default", (X, 0, 3, 4)),
        ("group_norm.default", (IMAGE, 4)),
        ("conv2d.default", (IMAGE, normal(4, 5, 3, 3))),
        ("baddbmm.default", (X, X, X)),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_errors_are_eagers(name: str, args: tuple[Any, ...]) -> None:
    op = ops.get(f"aten.{name}")
    with pytest.raises((RuntimeError, IndexError, TypeError, ValueError)) as eager:
        op.target(*args)
    with pytest.raises(eager.type) as ours:
        ops.infer(op, SizeEnv(), specs_of(args))
    assert str(ours.value) and ours.type is eager.type


def test_results_that_depend_on_data_are_refused() -> None:
    x = spec_of(normal(3))
    for name, args in (
        ("item.default", (spec_of(normal()),)),
        ("tensor_split.tensor_indices_or_sections", (x, spec_of(torch.tensor([1])))),
    ):
        with pytest.raises(NotCovered):
            ops.infer(ops.get(f"aten.{name}"), SizeEnv(), args)


def test_names() -> None:
    add = ops.get("aten.add.Tensor")
    assert add is ops.get(torch.ops.aten.add.Tensor) and add.kind == "pointwise" and add.is_pure
    assert ops.get("aten.relu") is ops.get(torch.ops.aten.relu) is ops.get("aten.relu.default")
    assert ops.get("aten.cumsum_.default").is_pure is False
    assert ops.get("aten.bernoulli.default").is_random and ops.get("aten.diagonal.default").is_view
    for name in ("aten.no_such_op.default", "nonsense"):
        with pytest.raises(KeyError):
            ops.get(name)
    with pytest.raises(TypeError):
        ops.get(3)


def test_nodes_and_keywords() -> None:
    graph = Graph()
    x = graph.add_input(spec_of(torch.ones(2, 3, 4)), "x")
    assert isinstance(x, Node)
    op = ops.get("aten.flatten.using_ints")
    assert ops.infer(op, graph.sizes, (x,), {"start_dim": 1}).shape == (2, 12)
    assert ops.normalize(op, (x,), {"end_dim": 1}) == ((x, 0, 1), {})
    assert ops.infer(ops.get("aten.cat.default"), graph.sizes, ([x, x],), {"dim": 1}).shape == (2, 6, 4)


def test_grad_flags() -> None:
    x = spec_of(torch.ones(2, 3, requires_grad=True))
    env = SizeEnv()

    def flag(name: str, *args: Any, grad: bool = True) -> Any:
        result = ops.infer(ops.get(name), env, args, grad_enabled=grad)
        return tuple(r.requires_grad for r in result) if isinstance(result, tuple) else result.requires_grad

    assert flag("aten.add.Tensor", x, 1) and not flag("aten.add.Tensor", x, 1, grad=False)
    assert (
        not flag("aten.detach.default", x)
        and not flag("aten.gt.Scalar", x, 0)
        and not flag("aten.zeros_like.default", x)
    )
    assert flag("aten.max.dim", x, 0) == (True, False)
    assert flag("aten.native_layer_norm.default", x, [3], None, None, 1e-5) == (True, False, False)
    assert not flag("aten.view.default", x, [6], grad=False) and flag("aten.view.default", x, [6])
    assert flag("aten.to.dtype", x, torch.float32, grad=False) and not flag("aten.to.dtype", x, torch.int64)


def test_nothing_of_torchs_compiler_is_imported() -> None:
    import subprocess
    import sys

    code = (
        "import sys, torch; from jitpy.ir import SizeEnv, TensorSpec, ops\n"
        "env = SizeEnv(); n = env.new_symbol(4, 'n')\n"
        "for shape, stride in (((4, 6), (6, 1)), ((n, 6), (6, 1))):\n"
        "    x = TensorSpec(torch.float32, shape, stride)\n"
        "    for name, args in (('cumsum', (1,)), ('sort', ()), ('trace', ()), ('geqrf', ())):\n"
        "        ops.infer(ops.get(f'aten.{name}.default'), env, (x, *args))\n"
        "sys.exit(any(m.startswith(('torch._dynamo', 'torch._inductor')) for m in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_declared_facts_are_about_ops_that_exist() -> None:
    """A wrong name would be silent: nothing asks for it."""
    missing = []
    for name in table._DECLARED:
        _, base, *overload = name.split(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is None or overload and overload[0] not in packet.overloads():
            missing.append(name)
    assert missing == []
    known = {field.name for field in dataclasses.fields(Op)}
    assert all(facts.keys() <= known for facts in table._DECLARED.values())
