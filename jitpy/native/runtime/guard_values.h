// Checks of single values, without running user code.
#pragma once

#include <Python.h>

// Look up the types that the functions below know. 0, or -1 with an exception set.
int init_guard_values();

// The dict in which the object's own attributes lie, materialised if need be. New reference, or null without an
// exception where the object has none. Type objects give their own dict.
PyObject* instance_dict(PyObject* object);

// Number of items of a built-in container, by the container's own code; -1 for anything else.
Py_ssize_t container_length(PyObject* object);

// Equality of constants: same types throughout, floats bit for bit. Objects of other types than the built-in
// constants, torch.Size and torch.device are equal if they are the same object.
bool constants_equal(PyObject* a, PyObject* b);

// Whether the dict (or object derived from one) has the keys in the tuple `expected`, in that order.
bool keys_equal(PyObject* dict, PyObject* expected);
