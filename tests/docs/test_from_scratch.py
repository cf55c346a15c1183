"""examples/from_scratch.py, the JIT that docs/from-scratch.md explains: against eager, with its guards and breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import from_scratch
from examples.from_scratch import Layer, jit, model

ROOT = Path(__file__).parents[2]
SCALE = 2.0


def arithmetic(x: Any, y: Any) -> Any:
    return (-x / (y * y + 1) - 2).exp().tanh(), (1 - x).relu() + torch.exp(y) * 0.5


def loops(x: Any, n: int = 3) -> Any:
    k = 0
    for i in range(n):
        if i % 2 == 0:
            x = x + i
        k = k + i
    while k > 0:
        x = x * 0.5
        k -= 1
    return x


def products(x: Any, y: Any) -> Any:
    return (x @ y.T * SCALE).sum() + y.sum()


def inlined(x: Any) -> Any:
    return helper(helper(x, by=2.0), 3.0) + x.shape[0]


def helper(x: Any, by: float = 1.0) -> Any:
    return x + by


def two(*shapes: tuple[int, ...], grad: bool = False) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(shape).requires_grad_(grad) for shape in shapes)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "arithmetic": (arithmetic, ((3, 4), (3, 4))),
    "broadcast": (arithmetic, ((3, 1), (4,))),
    "no axes": (arithmetic, ((), (2,))),
    "loops": (loops, ((5,),)),
    "products": (products, ((3, 4), (5, 4))),
    "inlined": (inlined, ((2, 3),)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grad", [False, True])
def test_results_and_gradients(name: str, grad: bool) -> None:
    fn, shapes = CASES[name]
    fast = jit(fn)
    for _ in range(2):
        inputs = two(*shapes, grad=grad)
        found, expected = fast(*inputs), fn(*inputs)
        torch.testing.assert_close(found, expected)
        if grad:
            sums = [sum(one.sum() for one in (out if isinstance(out, tuple) else (out,))) for out in (found, expected)]
            torch.testing.assert_close(*(torch.autograd.grad(one, inputs) for one in sums))
    assert fast.reason is None and len(fast.variants) == 1


def test_only_results_with_a_history_require_grad() -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    assert [out.requires_grad for out in jit(lambda x, y: (x * 2, y * 2))(x, y)] == [True, False]


def test_guards() -> None:
    layer, x = Layer(4, 4), torch.randn(2, 4)
    fast = jit(model)
    calls = [lambda: None, lambda: setattr(layer, "scale", 0.25), lambda: setattr(layer, "weight", torch.eye(4))]
    for change in calls:
        change()
        torch.testing.assert_close(fast(layer, x), model(layer, x))
    assert len(fast.variants) == 3
    torch.testing.assert_close(fast(layer, x), model(layer, x))
    torch.testing.assert_close(fast(layer, torch.zeros(5, 4)), model(layer, torch.zeros(5, 4)))
    assert len(fast.variants) == 4


def test_zeros_with_a_sign_are_two_numbers() -> None:
    fast = jit(lambda x, k: x / (x * k))
    x = torch.ones(1)
    assert fast(x, 0.0).item() == float("inf") and fast(x, -0.0).item() == -float("inf")


def test_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, inputs = jit(products), two((3, 4), (5, 4))
    torch.testing.assert_close(fast(*inputs), products(*inputs))
    monkeypatch.setitem(products.__globals__, "SCALE", 4.0)
    torch.testing.assert_close(fast(*inputs), products(*inputs))
    assert len(fast.variants) == 2


def branch(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def writes(x: Any) -> Any:
    x += 1
    return x


def prints(x: Any) -> Any:
    print("called")
    return x + 1


@pytest.mark.parametrize(("fn", "reason"), [(branch, "gt of a tensor"), (writes, "in place"), (prints, "print")])
def test_breaks(fn: Callable[..., Any], reason: str) -> None:
    fast = jit(fn)
    torch.testing.assert_close(fast(torch.ones(3)), fn(torch.ones(3)))
    assert reason in fast.reason


def test_fusion() -> None:
    fast = jit(arithmetic)
    fast(*two((3, 4), (3, 4)))
    assert len(fast.variants[0].kernels) == 1 and fast.variants[0].kernels[0].count("= p_") == 2


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from_scratch.main()
    assert "2 variants" in capsys.readouterr().out


def test_the_page_quotes_the_file() -> None:
    """Each block of Python on the page is in the file, word for word."""
    text = (ROOT / "examples" / "from_scratch.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "from-scratch.md").read_text(), re.S)
    assert len(blocks) >= 7
    assert [block for block in blocks if block.rstrip() not in text] == []
