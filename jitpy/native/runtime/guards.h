// Evaluating a compiled guard set from native code.
#pragma once

#include <Python.h>

// Whether `object` is a native guard evaluator (`_jitpy_runtime.Guard`).
bool guard_check_exact(PyObject* object);

// Evaluate a native guard (borrowed; the caller keeps it alive). `params` are `n` borrowed values, `globals` is a
// borrowed dict, `closure` a borrowed tuple of cells or None/null. 1: all hold; 0: some fact does not hold;
// -1: a guard raised something that is no `Exception` (KeyboardInterrupt, ...), which is set.
int guard_evaluate(PyObject* guard, PyObject* const* params, Py_ssize_t n, PyObject* globals, PyObject* closure);
