// The parts of the extension module `_jitpy_runtime`. Each adds its types and functions to the module and
// returns 0, or -1 with a Python exception set.
#pragma once

#include <Python.h>

int init_guards(PyObject* module);      // guards.cpp
int init_switches(PyObject* module);    // switches.cpp
int init_dispatch(PyObject* module);    // dispatch.cpp
int init_hand_over(PyObject* module);   // hand_over.cpp
int init_executable(PyObject* module);  // executable.cpp
int init_differentiable(PyObject* module);  // differentiable.cpp
int init_launch(PyObject* module);      // cuda_launch.cpp
int init_random(PyObject* module);      // cuda_random.cpp
