"""What graphs call their inputs."""

import pytest

from jitpy.frontend.guards.source import (
    ClosureCellSource,
    GlobalsSource,
    LocalSource,
    attr,
    cell_contents,
    index,
    instance_dict,
    item,
    short_name,
)

SELF = LocalSource(0, "self")
TARGET = cell_contents(ClosureCellSource(0, "target"))


def in_module(base, *path):
    for kind, name in zip(path[::2], path[1::2], strict=True):
        base = item(item(instance_dict(base), kind), name)
    return base


@pytest.mark.parametrize(("source", "name"), [
    (LocalSource(0, "x"), "x"),
    (item(LocalSource(1, "kwargs"), "mask"), "mask"),
    (index(LocalSource(1, "args"), 0), "args.0"),
    (index(attr(item(GlobalsSource(), "a"), "w"), 0), "a.w.0"),
    (in_module(SELF, "_modules", "layers", "_modules", "0", "_parameters", "weight"), "layers.0.weight"),
    (in_module(TARGET, "_buffers", "mean"), "mean"),
    (SELF, "self"),
])
def test_short_name(source, name):
    assert short_name(source) == name
