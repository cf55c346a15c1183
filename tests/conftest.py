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
from pathlib import Path

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


#: `--fast` (make test-fast) runs these subjects whole, and of every other folder one file in 12 with one test in 4
FAST = ("ir", "passes", "schedule", "api", "test_architecture.py")
#: subjects that need other libraries, devices or processes: no part of the sample
NOT_FAST = ("databases", "gpu", "libraries", "neighbours", "robustness")
ROOT = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="some subjects whole, and a sample of each other one")


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that the sample leaves out are not even imported."""
    subject = next(iter(collection_path.relative_to(ROOT).parts), "")
    if not config.getoption("--fast") or subject in FAST or collection_path.suffix != ".py":
        return subject in NOT_FAST and config.getoption("--fast") or None
    beside = sorted((path.name for path in collection_path.parent.glob("test_*.py")), key=_hash)
    return collection_path.name not in beside[: 1 + len(beside) // 12]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`JITPY_TEST_SAMPLE=n` runs one test in n, chosen by a hash of the name (make sanitize)."""
    every = int(os.environ.get("JITPY_TEST_SAMPLE", "1"))
    items[:] = [item for item in items if _hash(item.nodeid) % every == 0]
    if config.getoption("--fast"):
        whole = {item for item in items if item.path.relative_to(ROOT).parts[0] in FAST}
        items[:] = [item for item in items if item in whole or _hash(item.nodeid) % 4 == 0]


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

    seed = int(os.environ.get("JITPY_TEST_SEED", "0"))
    torch.default_generator.manual_seed(seed)  # quick: `torch.manual_seed` prints the stack for each kind of device
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


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
