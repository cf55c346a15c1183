/* The frame hook's interface for other native code.
 *
 * The module `_jitpy_hook` holds a PyCapsule named JITPY_HOOK_CAPSULE in its attribute `api`; its pointer is a
 * JitpyHookApi that lives as long as the process. All functions need the GIL.
 */
#ifndef JITPY_HOOK_API_H
#define JITPY_HOOK_API_H

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

#define JITPY_HOOK_API_VERSION 2
#define JITPY_HOOK_CAPSULE "jitpy_hook_api"

/* What should run instead of a frame?
 *
 * dispatcher: the object that the handler returned for the frame's code (borrowed, alive during the call).
 * func: the function called (borrowed). params: its parameters as CPython bound them, in the order of co_varnames
 * (positional, keyword-only, *args tuple, **kw dict), borrowed; none is NULL.
 * Returns a new reference to a callable that takes exactly these parameters positionally; or NULL without an exception:
 * run the frame as it is; or NULL with an exception: it is raised by the call. The hook is off in this thread meanwhile. */
typedef PyObject *(*jitpy_hook_lookup)(PyObject *dispatcher, PyObject *func, PyObject *const *params, Py_ssize_t nparams);

typedef struct {
    int version; /* JITPY_HOOK_API_VERSION */
    /* A jitted call that needs the hook starts in this thread; calls nest. */
    void (*enter)(void);
    /* The call ends, in the same thread, also when it raised. Leaves a pending exception alone. */
    void (*leave)(void);
    /* Is any call between enter and leave in this thread? */
    int (*is_active)(void);
    /* Never look at frames of this code object again. 0, or -1 with an exception. */
    int (*skip_code)(PyObject *code);
    /* Replaces calling the dispatcher object; NULL goes back to that. */
    void (*set_lookup)(jitpy_hook_lookup lookup);
    /* How many frames were met so far in this thread, between enter and leave. */
    unsigned long long (*frames)(void);
} JitpyHookApi;

#ifdef __cplusplus
}
#endif
#endif
