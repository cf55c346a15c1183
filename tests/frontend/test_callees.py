"""The callee table: each family has a place in the order, and everyday callables are answered by the family meant."""

import enum
import math

import pytest
import torch

import jitpy
from jitpy.engine import Engine
from jitpy.frontend.interpreter import callees


class Plain:
    pass


class Enumerated(enum.Enum):
    A = 1




def test_each_family_of_the_order_is_registered() -> None:
    assert Engine is not None  # its import loads the models
    assert list(callees._families) and set(callees._families) == set(callees.ORDER)


@pytest.mark.parametrize(
    ("obj", "family"),
    [
        (len, "model"),
        (torch.sin, "torch operation"),
        (torch.is_grad_enabled, "model"),
        (torch.is_inference_mode_enabled, "torch state"),
        (float.is_integer, "constant"),
        (float.conjugate, "constant"),
        (sum, "body"),
        (Enumerated, "__call__"),
        (torch.Tensor.size, "torch operation"),
        (torch.ops.higher_order.run_with_rng_state, "operator"),
        (torch.autograd.graph.register_multi_grad_hook, "skipped"),
    ],
)
def test_the_first_family_that_knows_a_callable(obj: object, family: str) -> None:
    found = callees.lookup(obj)
    assert found is not None and found.family.name == family


def test_what_the_program_makes_has_no_model_unless_it_says_so() -> None:
    assert callees.lookup(lambda x: x) is None
    assert callees.lookup(Plain) is None
    assert callees.lookup(jitpy.disable(lambda x: x)).family.name == "disabled"  # type: ignore[union-attr]
    assert callees.lookup(jitpy.allow_in_graph(lambda x: x)).family.name == "allowed"  # type: ignore[union-attr]


def test_later_families_answer_where_the_first_declines() -> None:
    assert [model.family.name for model in callees.models_of(math.gcd)][:4] == [
        "number of numpy's", "model", "constant", "body"]


def test_a_callable_that_cannot_be_hashed_is_looked_up_by_its_class() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> int:
            return 1

    assert callees.lookup(Unhashable()).family.name == "__call__"  # type: ignore[union-attr]
