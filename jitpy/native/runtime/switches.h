// The switches that make calls of dispatchers run their originals.
#pragma once

#include <Python.h>

// Whether this thread is tracing or compiling. `thread_local` would look for an initializer at each read.
extern __thread bool compiling;

// Whether everything runs as plain Python: by `config.enabled`, or by torch.compiler.set_stance.
bool turned_off();
