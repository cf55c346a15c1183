"""The hook beside other users of the interpreter's evaluation function, and its interface for native code."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

import jitpy.frontend.hook as hook_module
from jitpy.frontend import hook
from jitpy.runtime import compiler

from .conftest import Replacements, active

PACKAGE = Path(hook_module.__file__).resolve().parents[2]
NATIVE = PACKAGE / "native"

LOOKUP = r"""
#include "hook_api.h"
static JitpyHookApi *api;
static PyObject *replacement, *seen;

static PyObject *lookup(PyObject *dispatcher, PyObject *func, PyObject *const *params, Py_ssize_t count) {
    if (PyLong_Check(params[0]) && PyLong_AsLong(params[0]) < 0) return NULL;
    if (params[0] == Py_None) { PyErr_SetString(PyExc_LookupError, "from the lookup"); return NULL; }
    PyObject *entry = Py_BuildValue("(OOnO)", dispatcher, func, count, params[count - 1]);
    if (entry == NULL || PyList_Append(seen, entry) < 0) { Py_XDECREF(entry); return NULL; }
    Py_DECREF(entry);
    return Py_NewRef(replacement);
}

static PyObject *start(PyObject *self, PyObject *args) {
    PyObject *capsule;
    if (!PyArg_ParseTuple(args, "OOO", &capsule, &replacement, &seen)) return NULL;
    Py_INCREF(replacement); Py_INCREF(seen);
    api = (JitpyHookApi *)PyCapsule_GetPointer(capsule, JITPY_HOOK_CAPSULE);
    if (api == NULL) return NULL;
    if (api->skip_code(PyFunction_GetCode(replacement)) < 0) return NULL;
    api->set_lookup(lookup);
    return PyLong_FromLong(api->version);
}

static PyObject *call(PyObject *self, PyObject *args) {
    PyObject *function, *argument;
    if (!PyArg_ParseTuple(args, "OO", &function, &argument)) return NULL;
    api->enter();
    PyObject *result = PyObject_CallOneArg(function, argument);
    api->leave();
    return result;
}

static PyObject *stop(PyObject *self, PyObject *args) {
    api->set_lookup(NULL);
    return PyBool_FromLong(api->is_active());
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, NULL}, {"call", call, METH_VARARGS, NULL}, {"stop", stop, METH_VARARGS, NULL}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "hook_lookup", NULL, -1, methods};
PyMODINIT_FUNC PyInit_hook_lookup(void) { return PyModule_Create(&definition); }
"""


def test_native_code_looks_up(native: Replacements) -> None:
    flags = ("-O1", f"-I{sysconfig.get_path('include')}", f"-I{NATIVE}")
    path = compiler.compile_text_cached(LOOKUP, flags, language="c")
    loader = importlib.machinery.ExtensionFileLoader("hook_lookup", str(path))
    spec = importlib.util.spec_from_file_location("hook_lookup", str(path), loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)

    def function(a, *args, **kw):
        return "original"

    def replacement(a, args, kw):
        return "replaced", a, args, kw

    def dispatcher(_function, _parameters):
        raise AssertionError("the C function is asked instead")

    seen: list[object] = []
    native.dispatch(function, dispatcher)
    assert module.start(hook.native_api(), replacement, seen) == 2
    try:
        assert module.call(function, 5) == ("replaced", 5, (), {})
        assert seen == [(dispatcher, function, 3, {})]
        assert module.call(function, -1) == "original"
        with pytest.raises(LookupError, match="from the lookup"):
            module.call(function, None)
        assert function(5) == "original"
        with active():
            assert function(7, 8, x=9) == ("replaced", 7, (8,), {"x": 9})
    finally:
        assert module.stop() is False
    with active(), pytest.raises(AssertionError, match="asked instead"):
        function(1)


def _run(body: str, *arguments: str) -> str:
    """Run a program in which `jitpy` is a package without its `__init__`; its output."""
    program = textwrap.dedent(
        f"""
        import sys, types
        for name in ("jitpy", "jitpy.frontend", "jitpy.runtime"):
            package = types.ModuleType(name)
            package.__path__ = [{str(PACKAGE)!r} + name[len("jitpy"):].replace(".", "/")]
            sys.modules[name] = package
        from jitpy.frontend import hook
        """
    ) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, *arguments, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_hook_does_not_import_torch() -> None:
    out = _run(
        """
        hook.select("native")
        if hasattr(sys, "monitoring"):
            hook.select("monitoring")
        print("torch" in sys.modules)
        """
    )
    assert out == "False\n"


def test_without_a_handler_or_provider() -> None:
    out = _run(
        """
        def unavailable():
            raise RuntimeError("no compiler found")

        name = hook.select("auto", unavailable)
        assert name == ("monitoring" if hasattr(sys, "monitoring") else "none"), name
        assert hook.why_not_native() == "no compiler found" and hook.native_api() is None
        try:
            hook.select("native", unavailable)
        except hook.HookUnavailable as error:
            print(error)
        hook.select("none")
        def function(): return "original"
        hook.set_eval_frame(lambda function, code: print("asked"))
        hook.enter()
        assert hook.is_active() and not hook.is_installed() and function() == "original"
        hook.leave()
        hook.skip_code(function.__code__)
        try:
            hook.leave()
        except RuntimeError as error:
            print(error)
        try:
            hook.select("best")
        except ValueError as error:
            print(error)
        """
    )
    assert out.splitlines() == [
        "no compiler found",
        "leave() without enter() in this thread",
        "unknown hook provider 'best'; there are: auto, native, monitoring, none",
    ]


def test_with_torch_compile_in_one_process() -> None:
    """Either inside the other, and with lifetimes that interleave."""
    out = _run(
        """
        import itertools
        import torch

        hook.select("native")
        def function(x): return ("original", x)
        def replacement(x): return ("replaced", x)
        hook.skip_code(replacement.__code__)
        own = function.__code__
        hook.set_eval_frame(lambda f, code: (lambda f, p: replacement) if code is own else None)

        graphs = []
        def backend(module, inputs):
            graphs.append(module)
            return module.forward

        @torch._dynamo.disable
        def ours(n):
            hook.enter()
            try:
                got = [function(n)]
                if n:
                    got.append(theirs(torch.ones(2), n - 1)[1])
                got.append(function(n))
                return got
            finally:
                hook.leave()

        @torch.compile(backend=backend)
        def theirs(x, n):
            y = x.sin() + 1
            got = ours(n)
            return y.cos(), got

        def check(n, got):
            assert got[0] == got[-1] == ("replaced", n), got
            if n:
                check(n - 1, got[1])

        for n in (0, 1, 3, 0, 2):
            check(n, ours(n))                                # jitpy outside
            value, got = theirs(torch.ones(2), n)            # torch.compile outside
            assert torch.equal(value, (torch.ones(2).sin() + 1).cos())
            check(n, got)
            assert function(n) == ("original", n) and not hook.is_installed()

        # Interleaved: their hook goes on below ours and off above it, and the reverse.
        from torch._C._dynamo.eval_frame import set_eval_frame
        def callback(frame, *rest): raise AssertionError("no new frame is expected")
        compiled = torch.compile(function, backend=backend)
        for _ in range(2):
            hook.enter()
            former = set_eval_frame(False)     # run-only mode: installs their evaluation function above ours
            hook.leave()
            function(1)
            hook.enter()
            function(2)
            set_eval_frame(former)
            function(3)
            hook.leave()
            former = set_eval_frame(False)
            hook.enter()
            assert function(4) == ("replaced", 4)
            set_eval_frame(former)
            hook.enter()
            assert function(5) == ("replaced", 5)
            hook.leave()
            hook.leave()
            assert function(6) == ("original", 6)
        hook.enter()
        assert function(7) == ("replaced", 7)
        hook.leave()
        assert not hook.is_installed()

        # However the two lie, a frame that is not replaced is asked about once (or not at all:
        # where theirs goes that was below ours, it takes ours along).
        def plain(x): return x
        hook.set_eval_frame(lambda f, code: (lambda f, p: asked.append(p)) if code is plain.__code__ else None)
        for moves in itertools.product(("enter", "leave", "on", "off"), repeat=5):
            asked, depth = [], 0
            for move in moves:
                if move == "enter":
                    hook.enter()
                    depth += 1
                elif move == "leave" and depth:
                    hook.leave()
                    depth -= 1
                elif move in ("on", "off"):
                    set_eval_frame(False if move == "on" else None)
                asked.clear()
                plain(move)
                assert asked in ([], [(move,)][:depth]), (moves, asked)
            set_eval_frame(None)
            for _ in range(depth):
                hook.leave()
        print(len(graphs) > 0)
        """
    )
    assert out == "True\n"
