"""Walks over nested arguments."""

from __future__ import annotations

import torch

from jitpy.ir.trees import tree_leaves, tree_map

NESTED = (1, [2.5, None], {"a": slice(3, None, 4), "b": ()}, torch.Size([5, 6]))


def test_leaves_in_order() -> None:
    assert list(tree_leaves(NESTED)) == [1, 2.5, None, 3, None, 4, 5, 6]
    assert list(tree_leaves("text")) == ["text"] and list(tree_leaves({})) == []


def test_maps_keep_the_form() -> None:
    found = tree_map(lambda leaf: leaf if leaf is None else -leaf, NESTED)
    assert found == (-1, [-2.5, None], {"a": slice(-3, None, -4), "b": ()}, (-5, -6))
    assert tree_map(lambda leaf: leaf, NESTED) is not NESTED


def test_results_with_names_are_tuples() -> None:
    values, places = tree_map(lambda leaf: leaf.tolist(), torch.tensor([3.0, 7.0]).sort(descending=True))
    assert (values, places) == ([7.0, 3.0], [1, 0])
