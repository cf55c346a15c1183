"""TorchScript's numbers of dtypes, and what of a scripted function is captured."""

from __future__ import annotations

import torch

from jitpy.frontend.models.tensors.scripted import DTYPES


def test_numbers_of_dtypes_are_torchs() -> None:
    for number, dtype in DTYPES.items():
        traced = torch.jit.trace(lambda dtype=dtype: torch.empty(1, dtype=dtype), (), check_trace=False)
        constants = [node.output().toIValue() for node in traced.graph.nodes() if node.kind() == "prim::Constant"]
        assert number in constants
        assert traced().dtype is dtype
