"""`jitpy.explain`: what the report says, and that it runs the function once, for real."""

from __future__ import annotations

import contextvars
import html.parser
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import jitpy
from jitpy.engine import all_engines
from jitpy.explain.pages import graph_breaks_page
from jitpy.frontend import hook


@pytest.fixture(autouse=True)
def _fresh() -> None:
    jitpy.reset()


def with_break(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    y = (x + 1).sin()
    log.append(1)
    jitpy.graph_break("half way")
    return y.softmax(-1) * 2


def test_report_of_a_break() -> None:
    log: list[int] = []
    x = torch.randn(4, 5)
    report = jitpy.explain(with_break)(x, log)
    torch.testing.assert_close(report.result, with_break(x, []))
    assert log == [1]
    assert report.graph_count == len(report.graphs) == 2
    assert report.graph_break_count == 1 and report.op_count == 4
    (record,) = report.break_reasons
    assert record.reason.id == "user" and "half way" in record.detail
    assert record.filename == __file__ and record.source_line == 'jitpy.graph_break("half way")'
    assert record.line == with_break.__code__.co_firstlineno + 3
    assert [frame.is_resume for frame in report.frames] == [False, True]
    assert len(report.kernels) == 2 and report.kernels[0].ops == ["aten.add.Tensor", "aten.sin.default"]
    assert report.kernels[0].bytes_read == report.kernels[0].bytes_written == 80
    assert any("log" in effect for effect in report.side_effects)
    assert len(report.guards) == 2 and "tensor_is" in report.guards[0]
    assert {"trace", "passes", "backend", "guards", "total"} <= set(report.compile_times)
    text = str(report)
    for part in ("half way", "test_explain.py", "[user]", "docs/graph_breaks.md#user", "kernel0", "guards:", "sin"):
        assert part in text


def test_report_as_plain_data() -> None:
    report = jitpy.explain(with_break)(torch.randn(4, 5), [])
    data = json.loads(json.dumps(report.to_dict()))
    assert data["graph_count"] == 2 and data["break_reasons"][0]["id"] == "user"
    assert data["frames"][0]["kernels"][0]["ops"] == ["aten.add.Tensor", "aten.sin.default"]
    assert "break" in data["frames"][0] and data["frames"][1]["break"] is None


class _Rows(html.parser.HTMLParser):
    """The tags that are open, which a page must close again, and the class of each row of source by its line number."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.kinds: dict[int, str] = {}
        self.text = ""
        self._row = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "col"):
            self.open.append(tag)
        if tag == "tr":
            self._row = dict(attrs).get("class") or ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.text[-200:]

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1:] == ["td"] and data.isdigit():
            self.kinds.setdefault(int(data), self._row)


def test_report_as_a_page(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() if len(x) < 9 else x.cos()  # <lines> of the program are text
        jitpy.graph_break("<b>half & half</b>")
        return y * 2

    report = jitpy.explain(fn)(torch.randn(4))
    page = report.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    rows = _Rows()
    rows.feed(page)
    assert not rows.open
    first = fn.__code__.co_firstlineno
    assert [rows.kinds[first + i] for i in range(4)] == ["", "graph", "break", "graph"]
    for part in ("<lines> of", "<b>half & half</b>", "What to do: Remove the call.", "tensor_is", "aten.sin"):
        assert part in rows.text
    assert "No graph breaks" in jitpy.explain(torch.relu)(torch.randn(3)).to_html()


def test_eager_operations_and_refused_fusions_have_reasons() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x * 2) @ w
        return torch.linalg.svdvals(y.sin())

    report = jitpy.explain(fn)(torch.randn(4, 4), torch.randn(4, 4))
    eager = dict(report.frames[0].eager)
    assert any("svd" in op for op in eager) and any("mm" in op or "matmul" in op for op in eager)
    assert all(why for why in eager.values())
    assert "eager operations:" in str(report)


def test_specialised_sizes_are_listed() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        total = x * 0
        for _ in range(x.shape[0]):
            total = total + x
        return total

    report = jitpy.explain(fn, dynamic=True)(torch.ones(3))
    assert report.specialized and "specialised:" in str(report)
    assert "test_explain.py" in report.specialized[0]


def test_explain_leaves_the_jitted_function_alone() -> None:
    fn = jitpy.jit(lambda x: x + 1, backend="eager")
    x = torch.ones(2)
    report = jitpy.explain(fn)(x)
    assert report.options.backend == "eager" and len(fn.entries) == 0
    assert jitpy.explain(fn, backend="codegen")(x).options.backend == "codegen"
    with pytest.raises(TypeError, match="fullgraph"):
        jitpy.explain(fn, full=True)
    with pytest.raises(TypeError, match="callable"):
        jitpy.explain(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("jitted", [False, True])
def test_explain_of_modules_methods_and_callables(jitted: bool) -> None:
    layer = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)
    for fn in (layer, layer.forward, torch.nn.functional.relu, torch.sin):
        called = jitpy.jit(fn, backend="eager") if jitted else fn
        report = jitpy.explain(called)(x)
        assert report.graph_count == 1 and report.graph_break_count == 0 and report.op_count == 1
        torch.testing.assert_close(report.result, fn(x))


def test_frames_that_are_not_captured_are_breaks() -> None:
    def numbers(x: torch.Tensor) -> Any:
        yield x + 1

    report = jitpy.explain(numbers)(torch.ones(1))
    assert [record.reason.id for record in report.break_reasons] == ["generator"]
    assert next(report.result).item() == 2


# -- frames below -------------------------------------------------------------------------------------------


def scaled(t: torch.Tensor) -> torch.Tensor:
    return (t + 1).sin() * 2


def counted(n: int) -> int:
    return n + 1


def through_c(xs: list[torch.Tensor]) -> Any:
    total = xs[0] + 1
    run = contextvars.Context().run
    return total, [run(scaled, x) for x in xs]


def names() -> list[str]:
    return [one.name for engine in all_engines() for one in engine.variants]


@pytest.mark.skipif(hook.provider_name() == "none", reason="no frame hook here")
def test_functions_called_from_c_are_compiled() -> None:
    xs = [torch.randn(3) for _ in range(4)]
    expected = through_c(xs)
    fast = jitpy.jit(through_c, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(fast(xs), expected)
    assert names().count("scaled") == 1
    assert not hook.is_installed()
    report = jitpy.explain(through_c)(xs)
    assert "scaled" in [frame.name for frame in report.frames]
    # the report's engine has taken nothing away
    torch.testing.assert_close(fast(xs), expected)


@pytest.mark.skipif(hook.provider_name() == "none", reason="no frame hook here")
def test_functions_without_tensors_are_left_alone() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x + 1
        return y, contextvars.Context().run(counted, 49)

    fast = jitpy.jit(fn, backend="eager")
    for _ in range(2):
        y, last = fast(torch.ones(1))
        assert y.item() == 2 and last == 50
    assert "counted" not in names()


@pytest.mark.skipif(hook.provider_name() == "none", reason="no frame hook here")
def test_exceptions_from_below_pass_and_the_hook_goes() -> None:
    def failing(t: torch.Tensor) -> torch.Tensor:
        u = t + 1
        raise KeyError("below")
        return u

    def fn(x: torch.Tensor) -> Any:
        y = x + 1
        return contextvars.Context().run(failing, y)

    fast = jitpy.jit(fn, backend="eager")
    for _ in range(2):
        with pytest.raises(KeyError, match="below"):
            fast(torch.ones(1))
        assert not hook.is_installed() and not hook.is_active()


# -- the page of reasons ------------------------------------------------------------------------------------


def test_page_of_graph_breaks_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "graph_breaks.md"
    assert page.read_text() == graph_breaks_page(), "python -m jitpy.explain.pages > docs/graph_breaks.md"


def test_kernels_of_a_graph_that_needs_gradients() -> None:
    """Those of the forward half and those of the backward half, which has not run yet."""
    x = torch.randn(8, 16, requires_grad=True)
    report = jitpy.explain(lambda x: (x.sin() * 2).softmax(-1))(x)
    ops = [op for kernel in report.kernels for op in kernel.ops]
    assert "aten.sin.default" in ops and "aten._softmax_backward_data.default" in ops
    assert report.left_to_eager == [] and "left to eager" not in str(report)
    (grad,) = torch.autograd.grad(report.result.square().sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad((x.sin() * 2).softmax(-1).square().sum(), x)[0])


def test_graphs_without_kernels_are_counted_and_logged_once() -> None:
    x = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    lines: list[str] = []
    before = jitpy.logs.set_sink(lines.append)
    jitpy.logs.enable("fusion")
    try:
        report = jitpy.explain(lambda x: (x * x.conj()).real.sin())(x)
    finally:
        jitpy.logs.disable("fusion")
        jitpy.logs.set_sink(before)
    assert len(report.left_to_eager) == 1 and "1 left to eager kernels" in report.headline()
    (line,) = [line for line in lines if "is left to eager kernels" in line]
    assert report.left_to_eager[0].split(": ", 1)[1] in line and "\n" not in line
    assert report.to_dict()["frames"][0]["left_to_eager"] == report.left_to_eager
