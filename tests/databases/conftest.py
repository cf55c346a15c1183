"""What a run of the databases showed, printed at its end (also with `-n`):

    JITPY_TEST_ALL=1 python -m pytest tests/databases

    operators: 697 tests passed, 0 failed; of 41,000 calls 39,000 captured whole and equal, 2,000 equal with ...

JITPY_TEST_RESULTS names a file to which each test adds a line of JSON as it ends: its id, outcome, seconds, calls by
what came of them, and the error. Tests of which the file has a line are not run again, so that a run that was stopped
goes on; what is printed in the end is the whole file.
"""

from __future__ import annotations

import collections
import json
import os
import platform
from typing import Any

import pytest
import torch

from tests.databases.comparing import ALL, Tally

_RESULTS = os.environ.get("JITPY_TEST_RESULTS")
_WORKER = "PYTEST_XDIST_WORKER" in os.environ

#: What the tests of a function are about.
_KINDS = {
    "test_op_db.py::test_like_eager": "operators",
    "test_op_db.py::test_compiled": "operators, compiled",
    "test_module_db.py::test_like_eager": "modules",
}

_lines: list[dict[str, Any]] = []


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """The test's calls by what came of them; its report carries them to the process that sums up."""
    found = Tally()
    request.node.user_properties.append(("calls", found.calls))
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    done = {line["test"] for line in _read()}
    for item in items:
        if item.nodeid in done:
            item.add_marker(pytest.mark.skip("in the file of results"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _WORKER or _kind(report.nodeid) is None or report.when != "call":
        return
    calls = dict(report.user_properties).get("calls", {})
    line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 1), "calls": calls,
            "error": str(report.longrepr)[-2000:] if report.failed else ""}
    _lines.append(line)
    if _RESULTS:
        with open(_RESULTS, "a") as out:
            out.write(json.dumps(line) + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = _read() or _lines
    outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    calls: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for line in lines:
        kind = _kind(line["test"]) or ""
        outcomes[kind][line["outcome"]] += 1
        calls[kind].update(line["calls"])
    if outcomes:
        samples = "all samples" if ALL else "first samples"
        terminalreporter.section(f"{samples} on torch {torch.__version__}, Python {platform.python_version()}")
    for kind, found in outcomes.items():
        terminalreporter.write_line(
            f"{kind}: {found['passed']:,} tests passed, {found['failed']:,} failed; of {calls[kind].total():,} calls "
            + ", ".join(f"{count:,} {what}" for what, count in sorted(calls[kind].items())))


def _kind(test: str) -> str | None:
    return _KINDS.get(test.partition("[")[0].rpartition("/")[2])


def _read() -> list[dict[str, Any]]:
    if not _RESULTS or not os.path.exists(_RESULTS):
        return []
    with open(_RESULTS) as lines:
        return [json.loads(line) for line in lines]
