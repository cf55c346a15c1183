/* CPython 3.12: the layout of an interpreter frame. The evaluation function must clear and pop the frame, but the
 * interpreter exports no function for it. */
#ifndef JITPY_HOOK_FRAME_H
#define JITPY_HOOK_FRAME_H

#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

static inline PyObject *frame_code(_PyInterpreterFrame *frame) { return (PyObject *)frame->f_code; }

static inline PyObject *frame_function(_PyInterpreterFrame *frame) { return frame->f_funcobj; }

static inline PyObject **frame_locals(_PyInterpreterFrame *frame) { return frame->localsplus; }

/* The frame is the last of its thread's data stack. If it is also the first of its chunk, the chunk goes with it:
 * chunks come from the arena allocator, which is public. */
static inline void stack_pop(PyThreadState *thread, PyObject **base) {
    _PyStackChunk *chunk = thread->datastack_chunk;
    if (base != &chunk->data[0]) {
        thread->datastack_top = base;
        return;
    }
    _PyStackChunk *previous = chunk->previous;
    thread->datastack_top = &previous->data[previous->top];
    thread->datastack_chunk = previous;
    thread->datastack_limit = (PyObject **)((char *)previous + previous->size);
    PyObjectArenaAllocator arena;
    PyObject_GetArenaAllocator(&arena);
    arena.free(arena.ctx, chunk, chunk->size);
}

/* A frame that has not run holds its parameters, its function and its code, and has no frame object. */
static inline void frame_release(PyThreadState *thread, _PyInterpreterFrame *frame) {
    for (int i = 0; i < frame->stacktop; i++) {
        Py_CLEAR(frame->localsplus[i]);
    }
    Py_CLEAR(frame->f_locals);
    PyCodeObject *code = frame->f_code;
    Py_DECREF(frame->f_funcobj);
    Py_DECREF(code);
    stack_pop(thread, (PyObject **)frame);
}

/* Run the frame in the interpreter's own loop.
 *
 * With any evaluation function installed each Python call takes two of 1500 units of C recursion, so that plain recursion
 * would end at a depth of 750, below the default limit of 1000. The units are given back as long as the limit for Python
 * frames bounds the depth to what 3.13 allows (10000 units on the same C stack). */
static inline PyObject *frame_run(PyThreadState *thread, _PyInterpreterFrame *frame, int throwing) {
    const int units = 2, deepest = 4000;
    if (thread->py_recursion_limit > deepest) {
        return _PyEval_EvalFrameDefault(thread, frame, throwing);
    }
    thread->c_recursion_remaining += units;
    PyObject *result = _PyEval_EvalFrameDefault(thread, frame, throwing);
    thread->c_recursion_remaining -= units;
    return result;
}

#define code_get_extra PyUnstable_Code_GetExtra
#define code_set_extra PyUnstable_Code_SetExtra
#define request_extra_index PyUnstable_Eval_RequestCodeExtraIndex

#endif
