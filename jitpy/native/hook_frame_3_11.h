/* CPython 3.11: the layout of an interpreter frame, and who clears it. */
#ifndef JITPY_HOOK_FRAME_H
#define JITPY_HOOK_FRAME_H

#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

static inline PyObject *frame_code(_PyInterpreterFrame *frame) { return (PyObject *)frame->f_code; }

static inline PyObject *frame_function(_PyInterpreterFrame *frame) { return (PyObject *)frame->f_func; }

static inline PyObject **frame_locals(_PyInterpreterFrame *frame) { return frame->localsplus; }

/* Every evaluation function but the interpreter's own loop leaves the frame to its caller (_PyEval_Vector). */
static inline void frame_release(PyThreadState *Py_UNUSED(thread), _PyInterpreterFrame *Py_UNUSED(frame)) {}

/* Run the frame in the interpreter's own loop. */
static inline PyObject *frame_run(PyThreadState *thread, _PyInterpreterFrame *frame, int throwing) {
    return _PyEval_EvalFrameDefault(thread, frame, throwing);
}

#define code_get_extra _PyCode_GetExtra
#define code_set_extra _PyCode_SetExtra
#define request_extra_index _PyEval_RequestCodeExtraIndex

#endif
