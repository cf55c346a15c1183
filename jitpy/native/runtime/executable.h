// The interface of executables for the autograd node: a call without Python objects in between.
#pragma once

#include "frame.h"

namespace jitpy {

using Slots = c10::SmallVector<Slot, 8>;

// Is it a native Executable?
bool is_executable(PyObject* object);

// Runs a native executable on values that are moved in, so that each is freed when nothing reads it any more; appends
// the outputs. With the GIL held. Throws python_error or a C++ exception.
void run_executable(PyObject* executable, Slots inputs, Slots& outputs);

}  // namespace jitpy
