/* CPython 3.13: the layout of an interpreter frame. The evaluation function must clear and pop the frame. */
#ifndef JITPY_HOOK_FRAME_H
#define JITPY_HOOK_FRAME_H

#define Py_BUILD_CORE
#include <internal/pycore_ceval.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

static inline PyObject *frame_code(_PyInterpreterFrame *frame) { return frame->f_executable; }

static inline PyObject *frame_function(_PyInterpreterFrame *frame) { return frame->f_funcobj; }

static inline PyObject **frame_locals(_PyInterpreterFrame *frame) { return frame->localsplus; }

static inline void frame_release(PyThreadState *thread, _PyInterpreterFrame *frame) {
    _PyEval_FrameClearAndPop(thread, frame);
}

/* Run the frame in the interpreter's own loop. */
static inline PyObject *frame_run(PyThreadState *thread, _PyInterpreterFrame *frame, int throwing) {
    return _PyEval_EvalFrameDefault(thread, frame, throwing);
}

#define code_get_extra PyUnstable_Code_GetExtra
#define code_set_extra PyUnstable_Code_SetExtra
#define request_extra_index PyUnstable_Eval_RequestCodeExtraIndex

#endif
