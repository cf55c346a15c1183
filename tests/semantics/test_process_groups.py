"""What code for many processes asks in each call: whether there are any."""

from __future__ import annotations

import pathlib

import pytest
import torch
import torch.distributed as dist

import jitpy


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")
@pytest.mark.parametrize("backend", ["codegen", "eager"])
def test_groups_that_come_and_go(tmp_path: pathlib.Path, backend: str) -> None:
    def mean(x: torch.Tensor) -> torch.Tensor:
        y = x.exp().mean()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(y)
            y = y / dist.get_world_size() + 1
        return y * 2

    assert not dist.is_initialized()
    jitted, x = jitpy.jit(mean, backend=backend), torch.randn(4)
    report = jitpy.explain(mean)(x)
    assert report.graph_break_count == 0, report
    for _ in range(2):
        torch.testing.assert_close(jitted(x), mean(x))
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/{_}", rank=0, world_size=1)
        try:
            torch.testing.assert_close(jitted(x), mean(x))
            torch.testing.assert_close(jitted(x), x.exp().mean() * 2 + 2)
        finally:
            dist.destroy_process_group()
    torch.testing.assert_close(jitted(x), x.exp().mean() * 2)
