"""Settings of every test run: jitpy's internal errors raise, and compiled kernels go to a folder of this run.

The folder is made by the first process and inherited by its workers, so that they share what they compile.
The native part takes long to build and is the same for every run: it stays in the user's own cache folder.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator

import pytest

os.environ["JITPY_RAISE"] = "1"
_OWNER = "JITPY_TEST_CACHE" not in os.environ
if _OWNER:
    os.environ["JITPY_TEST_CACHE"] = tempfile.mkdtemp(prefix="jitpy-tests-")
_USERS = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jitpy")
os.environ.setdefault("JITPY_NATIVE_DIR", os.environ.get("JITPY_CACHE_DIR") or _USERS)
os.environ["JITPY_CACHE_DIR"] = os.environ["JITPY_TEST_CACHE"]
# Test processes share the cores: threads that spin while they wait take them from others. Read as torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # the same examples in each run, and no judgement of how fast the machine is
    settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    # also in tests that switch JITPY_RAISE off, where users would see a warning and eager's result
    config.addinivalue_line("filterwarnings", "error:jitpy. internal error:UserWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`JITPY_TEST_SAMPLE=n` runs one test in n, chosen by a hash of the name (make sanitize)."""
    every = int(os.environ.get("JITPY_TEST_SAMPLE", "1"))
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % every == 0]


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # what was put aside goes with the process, in its usual order
    if _OWNER:
        shutil.rmtree(os.environ["JITPY_TEST_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def _earlier_objects_are_left_alone() -> None:
    """Tests that collect garbage look at the objects of their own file, not at all that were made before it."""
    gc.collect()
    gc.freeze()


def _seed() -> None:
    """The random state that each file is imported with and each test starts from; `JITPY_TEST_SEED=n` tries others."""
    import torch

    torch.manual_seed(int(os.environ.get("JITPY_TEST_SEED", "0")))


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):
        _seed()  # models and tensors that a file makes while it is imported


@pytest.fixture(autouse=True)
def _seeded() -> None:
    _seed()


@pytest.fixture(autouse=True)
def _modules_as_they_were() -> Iterator[None]:
    """torch.compile, where a test uses it, replaces methods of nn.Module for good: they are put back."""
    import torch

    kept = {name: torch.nn.Module.__dict__[name] for name in ("__init__", "__setstate__")}
    yield
    for name, method in kept.items():
        if torch.nn.Module.__dict__[name] is not method:
            setattr(torch.nn.Module, name, method)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names for callables: their text holds an address, and parallel workers must agree on the names of tests."""
    if callable(val) and not isinstance(val, type):
        return getattr(val, "__qualname__", None) or getattr(val, "__name__", None) or type(val).__name__
    return None
