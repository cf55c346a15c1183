// `Entry`: one compiled variant of a dispatcher.
#pragma once

#include <Python.h>

struct Entry {
  PyObject_HEAD PyObject* guard;  // GuardFunction-like, or None: always holds
  PyObject* native;               // its `native_guard` where that is a native evaluator, else null
  PyObject* check;                // its bound `check` otherwise
  PyObject* code;                 // takes all parameters positionally
  PyObject* payload;
  PyObject* function;  // made of `code` for the dispatcher's own globals and closure, once
  unsigned long long hits;
  unsigned long long frames;  // that the hook met in calls of this entry that turned it on
  char needs_hook;
};

extern PyTypeObject entry_type;

// One call, once bound: everything borrowed from the caller.
struct Bound {
  PyObject* const* params;
  Py_ssize_t n;
  PyObject* globals;
  PyObject* closure;  // tuple, None or null
};

// New tuple of `n` borrowed objects.
PyObject* pack(PyObject* const* objects, Py_ssize_t n);

// New reference; null with an exception set.
Entry* make_entry(PyObject* guard, PyObject* code, bool needs_hook, PyObject* payload);

// Whether the entry's guards hold: 1, 0, or -1 with an exception set.
int entry_holds(Entry* entry, const Bound& bound);
