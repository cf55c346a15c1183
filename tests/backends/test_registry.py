"""The registry of backends, the eager backend, and the bridge to backends that take fx graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st

from jitpy import config
from jitpy.backends import registry
from jitpy.backends.eager import plan_graph
from jitpy.backends.registry import get_backend, list_backends, register_backend
from jitpy.backends.size_table import SizeTable
from jitpy.errors import BackendError
from jitpy.ir import Graph, Mutation, NotCovered, ScalarSpec, TensorSpec, contiguous_spec
from jitpy.ir.builder import Builder
from jitpy.ir.interpret import interpret
from jitpy.ir.sizes import floordiv
from jitpy.runtime.plan import CallStep, CopyStep, FreeStep, SizeRef, SymbolBinding
from tests.ir.random_graphs import clones, random_graph, same_bits, sharing

F32 = contiguous_spec(torch.float32, (2, 3))


def sample(requires_grad: bool = False, dynamic: bool = False) -> Graph:
    """`y` receives `y + sin(x)`; returns a product and a view, which share nothing."""
    graph = Graph()
    n = graph.sizes.new_symbol(4, "x", 0) if dynamic else 4
    x = graph.add_input(contiguous_spec(torch.float32, (n, 5)).with_(requires_grad=requires_grad), "x")
    y = graph.add_input(contiguous_spec(torch.float32, (n, 5)), "y")
    b = Builder(graph)
    sine = b.call("aten.sin.default", x)
    parts = b.call("aten.split.Tensor", sine, 2, 1)
    product = b.call("aten.mul.Tensor", b.getitem(parts, 0), b.getitem(parts, 1))
    graph.outputs = [product, b.call("aten.reshape.default", sine, [n * 5])]
    graph.mutations = [Mutation(1, b.call("aten.add.Tensor", y, sine))]
    return graph


@pytest.fixture
def names() -> Any:
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


# -- registry

def test_names(names: Any) -> None:
    assert {"codegen", "eager", "inductor"} <= set(list_backends())
    fn = register_backend("mine", lambda module, inputs: module.forward)
    assert callable(fn) and "mine" in list_backends()

    @register_backend("graphs", takes_graph=True)
    def compile_graph(graph: Graph, options: dict[str, Any]) -> Any:
        return lambda *inputs: interpret(graph, inputs)

    graph = sample()
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    for name in ("mine", "graphs", "eager"):
        mine, theirs = y.clone(), y.clone()
        assert torch.equal(get_backend(name)(graph, {})(x, mine)[0], interpret(graph, [x, theirs])[0])
        assert torch.equal(mine, theirs)


def test_wrong_names_and_types(names: Any) -> None:
    with pytest.raises(ValueError, match="unknown backend 'nope'; the backends are: .*codegen, .*eager, .*inductor, "):
        get_backend("nope")
    with pytest.raises(TypeError, match="codegen"):
        get_backend(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callable"):
        register_backend("mine", 3)
    with pytest.raises(TypeError, match="name"):
        register_backend("", lambda module, inputs: module)
    with pytest.raises(ValueError, match="comes with jitpy"):
        register_backend("eager", lambda module, inputs: module)


# -- eager

@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_eager_runs_random_graphs(seed: int, grad: bool, dynamic: bool) -> None:
    graph, inputs = random_graph(seed, grad=grad, dynamic=dynamic)
    mine, theirs = clones(inputs), clones(inputs)
    expected = list(interpret(graph, mine))
    found = list(get_backend("eager")(graph, {})(*theirs))
    for a, b in zip(expected + mine, found + theirs, strict=True):
        assert same_bits(a, b), str(graph)
    assert sharing(expected + mine) == sharing(found + theirs), str(graph)


def test_the_plan_frees_slots_and_drops_unread_parts() -> None:
    plan = plan_graph(sample())
    split = next(s for s in plan.steps if isinstance(s, CallStep) and s.multiple)
    assert split.slots.count(None) == 1 and not plan.symbols and not plan.n_sizes
    freed = {slot for s in plan.steps if isinstance(s, FreeStep) for slot in s.slots}
    assert freed == set(range(2, plan.n_slots)) - set(plan.outputs)
    assert [s for s in plan.steps if isinstance(s, CopyStep)][0].target == 1


def test_under_autograd_nothing_is_freed_and_gradients_flow() -> None:
    graph = sample(requires_grad=True)
    plan = plan_graph(graph)
    assert plan.autograd and not any(isinstance(s, FreeStep) for s in plan.steps)
    results = []
    value = torch.randn(4, 5)
    for run in (lambda *i: interpret(graph, i), get_backend("eager")(graph, {})):
        x, y = value.clone().requires_grad_(), torch.ones(4, 5)
        product, flat = run(x, y)
        assert y.requires_grad  # the copy-back is recorded
        (product.sum() + flat.pow(2).sum() + y.sum()).backward()
        results.append(x.grad)
    assert torch.equal(*results)


def test_grad_mode_of_each_op() -> None:
    graph = Graph()
    x = graph.add_input(F32.with_(requires_grad=True), "x")
    off = Builder(graph, grad_enabled=False).call("aten.exp.default", x)
    graph.outputs = [off, Builder(graph).call("aten.mul.Tensor", x, off)]
    compiled = get_backend("eager")(graph, {})
    x = torch.randn(2, 3, requires_grad=True)
    first, second = compiled(x)
    assert not first.requires_grad and second.requires_grad and torch.is_grad_enabled()


def test_symbolic_sizes() -> None:
    graph = sample(dynamic=True)
    plan = plan_graph(graph)
    assert plan.symbols == (SymbolBinding(0, 0),) and plan.n_sizes == 1
    assert plan.size_function_py is not None and plan.size_function_py((7,)) == [35]
    compiled = get_backend("eager")(graph, {})
    for rows in (4, 7):
        x, y = torch.randn(rows, 5), torch.zeros(rows, 5)
        product, flat = compiled(x, y)
        assert torch.equal(flat, x.sin().reshape(-1)) and torch.equal(y, x.sin())


def test_a_view_of_an_input_shares_its_version() -> None:
    graph = Graph()
    x = graph.add_input(F32, "x")
    graph.outputs = [Builder(graph).call("aten.view.default", x, [6])]
    value = torch.zeros(2, 3)
    view, = get_backend("eager")(graph, {})(value)
    before = view._version
    value.add_(1)
    assert view._version == before + 1 and view._base is value


def test_two_inputs_swap_and_one_is_transposed_onto_itself() -> None:
    graph = Graph()
    x, y = graph.add_input(F32, "x"), graph.add_input(F32, "y")
    z = graph.add_input(contiguous_spec(torch.float32, (2, 2)), "z")
    graph.mutations = [Mutation(0, y), Mutation(1, x), Mutation(2, Builder(graph).call("aten.t.default", z))]
    for run in (get_backend("eager")(graph, {}), graph.to_fx(), lambda *i: interpret(graph, i)):
        a, b, c = torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([[1., 2.], [3., 4.]])
        run(a, b, c)
        assert a.sum() == 6 and b.sum() == 0 and c.tolist() == [[1, 3], [2, 4]]


def test_constants_numbers_and_whole_sequences() -> None:
    graph = Graph()
    x = graph.add_input(F32, "x")
    k = graph.add_input(ScalarSpec(int, graph.sizes.new_symbol(3, "k")), "k")
    b = Builder(graph)
    constant = b.constant(torch.arange(3.0))
    parts = b.call("aten.unbind.int", x, 0)
    whole = b.call("aten.stack.default", [b.getitem(parts, 1), b.getitem(parts, 0), b.getitem(parts, 1)])
    graph.outputs = [b.call("aten.add.Tensor", whole, constant), constant, k, x]
    value = torch.randn(2, 3)
    total, same, number, back = get_backend("eager")(graph, {})(value, 5)
    assert torch.equal(total, value[[1, 0, 1]] + torch.arange(3.0)) and number == 5 and back is value
    assert same is constant.args[0]


def test_size_table() -> None:
    graph = Graph()
    n, m = graph.sizes.new_symbol(6, "x", 0), graph.sizes.new_symbol(2, "k")
    graph.add_input(TensorSpec(torch.float32, (n, 3), (m, 1)), "x")
    table = SizeTable(graph)
    assert table.ref(4) == 4 and table.ref(n * 3) == SizeRef(0) and table.ref(floordiv(n, 4) + m) == SizeRef(1)
    assert table.refs((n * 3, [7, n])) == (SizeRef(0), [7, SizeRef(2)])
    assert table.symbols == (SymbolBinding(0, 0), SymbolBinding(0, 0, stride=True)) and len(table) == 3
    function = table.python_function()
    assert function is not None and function((9, 2)) == [27, 4, 9]
    text = table.c_functions("sizes")
    assert text.startswith('extern "C" void sizes(const int64_t* symbols, int64_t* table) {')
    assert "table[2] = symbols[0];" in text
    with pytest.raises(NotCovered, match="s2"):
        table.ref(graph.sizes.new_symbol(3, "y", 0))


# -- bridge

def test_an_fx_backend_gets_examples_like_the_inputs() -> None:
    seen: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        seen.append((module, inputs))
        return module.forward

    graph = Graph()
    strided = TensorSpec(torch.float16, (2, 3), (1, 2), requires_grad=True, offset=4)
    x = graph.add_input(strided, "x")
    graph.outputs = [Builder(graph).call("aten.exp.default", x)]
    compiled = get_backend(backend)(graph, {})
    (module, (example,)), = seen
    assert isinstance(module, torch.fx.GraphModule) and not example.any()
    assert example.is_leaf and example.stride() == (1, 2) and example.storage_offset() == 4 and example.requires_grad
    assert example.dtype is torch.float16
    value = torch.ones(2, 3).half()
    assert torch.equal(compiled(value)[0], value.exp())


def test_a_backend_may_specialise_on_sizes() -> None:
    shapes: list[torch.Size] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        expected = inputs[0].shape
        shapes.append(expected)

        def run(x: torch.Tensor, y: torch.Tensor) -> Any:
            assert x.shape == expected
            return list(module(x, y))

        return run

    compiled = get_backend(backend)(sample(dynamic=True), {"dynamic": "never"})
    for rows in (4, 7, 4):
        x, y = torch.randn(rows, 5), torch.zeros(rows, 5)
        assert torch.equal(compiled(x, y)[1], x.sin().reshape(-1)) and torch.equal(y, x.sin())
    assert shapes == [(4, 5), (7, 5)]


def test_past_the_limit_new_sizes_run_eagerly() -> None:
    compiled_for: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled_for.append(len(inputs[0]))
        return module

    with config.patch(recompile_limit=2):
        compiled = get_backend(backend)(sample(dynamic=True), {"dynamic": "never"})
    with pytest.warns(UserWarning, match="2 combinations of the sizes and numbers s0") as caught:
        for rows in (4, 5, 6, 7, 4):
            x, y = torch.randn(rows, 5), torch.zeros(rows, 5)
            assert torch.equal(compiled(x, y)[1], x.sin().reshape(-1)) and torch.equal(y, x.sin())
    assert compiled_for == [4, 5] and len(caught) == 1


def test_grad_mode_and_autocast_around_a_users_backend() -> None:
    graph = Graph()
    x = graph.add_input(F32.with_(requires_grad=True), "x")
    y = graph.add_input(contiguous_spec(torch.float32, (3, 2)), "y")
    product = Builder(graph, grad_enabled=False).call("aten.mm.default", x, y)
    graph.outputs = [product]
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2)
    compiled = get_backend(lambda module, inputs: module)(graph, {})
    with torch.autocast("cpu", torch.bfloat16):
        for run in (compiled, lambda *i: interpret(graph, i)):
            assert run(a, b)[0].dtype is torch.float32  # a cast would be a node of the graph
        assert torch.mm(a, b).dtype is torch.bfloat16
    with pytest.raises(RuntimeError):
        compiled(a, torch.randn(5, 5))  # fails where the module has switched grad mode off
    assert torch.is_grad_enabled()


def test_results_are_made_a_tuple() -> None:
    graph = Graph()
    graph.outputs = [Builder(graph).call("aten.exp.default", graph.add_input(F32, "x"))]
    x = torch.ones(2, 3)
    for wrap in (lambda t: t, lambda t: [t], lambda t: (t,)):
        found = get_backend(lambda module, inputs, wrap=wrap: lambda x: wrap(x.exp()))(graph, {})(x)
        assert isinstance(found, tuple) and torch.equal(found[0], x.exp())
    with pytest.raises(BackendError, match="1 results to a function that returns 2"):
        get_backend(lambda module, inputs: lambda x: (x, x))(graph, {"fullgraph": True})(x)
    with pytest.raises(BackendError, match="not a callable"):
        get_backend(lambda module, inputs: 3)(graph, {})


@pytest.mark.slow
def test_inductor() -> None:
    for requires_grad in (False, True):
        graph = sample(requires_grad, dynamic=True)
        compiled = get_backend("inductor")(graph, {})
        for rows in (4, 6):
            gradients = []
            value = torch.randn(rows, 5)
            for run in (lambda *i, graph=graph: interpret(graph, i), compiled):
                x, y = value.clone().requires_grad_(requires_grad), torch.ones(rows, 5)
                product, flat = run(x, y)
                gradients.append((product, flat, y))
                if requires_grad:
                    (product.sum() + flat.pow(2).sum() + y.sum()).backward()
                    gradients[-1] += (x.grad,)
            torch.testing.assert_close(*gradients)
