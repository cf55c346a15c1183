/* The native frame hook (PEP 523): replaces Python frames while a jitted call runs in their thread.
 *
 * Per code object there is one state, in its code-extra slot: unseen (NULL), skipped, or a dispatcher object that the
 * handler returned for it. A frame with a dispatcher is looked up with its parameters; the callable found takes them all
 * positionally and runs in place of the frame.
 *
 * The evaluation function is installed only while some thread is between enter and leave, because it turns off the
 * interpreter's inlining of Python calls for the whole process. What was installed before is called for every frame that
 * is not replaced.
 */
#define PY_SSIZE_T_CLEAN
#include "hook_api.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#include "hook_frame_3_11.h"
#elif PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
#include "hook_frame_3_12.h"
#elif PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000
#include "hook_frame_3_13.h"
#else
#error "the frame hook knows the frame layouts of CPython 3.11, 3.12 and 3.13 only"
#endif

/* A code object's state; freed with the code object. */
typedef struct {
    PyObject *dispatcher; /* owned; NULL: the code is skipped */
} CodeState;

/* All code that is skipped and never had a dispatcher shares this one. */
static CodeState skipped = {NULL};

static Py_ssize_t extra_index = -1;
static PyObject *handler = NULL; /* owned; NULL: new code objects are left alone */
static jitpy_hook_lookup native_lookup = NULL;

static int active_calls = 0;                       /* calls between enter and leave, in all threads */
static _PyFrameEvalFunction previous_eval = NULL;  /* what was installed when we were installed */
static _PyFrameEvalFunction buried_by = NULL;      /* who installed itself above us, and may still call us */

typedef struct {
    int depth;                         /* calls between enter and leave in this thread */
    int busy;                          /* the handler or a lookup runs: the hook is off */
    _PyInterpreterFrame *forwarded;    /* the frame that is being handed to previous_eval */
    unsigned long long frames;         /* frames that were met between enter and leave */
} Thread;

static __thread Thread local __attribute__((tls_model("initial-exec")));

/* ---- the evaluation function ---- */

static PyObject *hook_eval(PyThreadState *thread, _PyInterpreterFrame *frame, int throwing);
static void uninstall(PyInterpreterState *interpreter);

static PyObject *forward(PyThreadState *thread, _PyInterpreterFrame *frame, int throwing) {
    _PyFrameEvalFunction next = previous_eval;
    if (next == NULL || next == _PyEval_EvalFrameDefault) {
        return frame_run(thread, frame, throwing);
    }
    _PyInterpreterFrame *outer = local.forwarded;
    local.forwarded = frame;
    PyObject *result = next(thread, frame, throwing);
    local.forwarded = outer;
    return result;
}

static inline int is_traced(PyThreadState *thread) {
    return thread->tracing > 0 || thread->c_tracefunc != NULL || thread->c_profilefunc != NULL;
}

static inline Py_ssize_t parameter_count(PyCodeObject *code) {
    return (Py_ssize_t)code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
           ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* Can a frame of this code be replaced at all? Not generators and coroutines, whose frame outlives the call, nor class
 * and module bodies, whose locals are a namespace. */
static inline int is_replaceable(PyCodeObject *code) {
    const int suspended = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    const int function = CO_OPTIMIZED | CO_NEWLOCALS;
    return (code->co_flags & suspended) == 0 && (code->co_flags & function) == function;
}

static inline CodeState *code_state(PyObject *code) {
    void *state = NULL;
    code_get_extra(code, extra_index, &state);
    return (CodeState *)state;
}

/* Steals dispatcher. 0, or -1 with an exception. */
static int set_dispatcher(PyObject *code, PyObject *dispatcher) {
    CodeState *state = code_state(code);
    if (state != NULL && state != &skipped) {
        PyObject *former = state->dispatcher;
        state->dispatcher = dispatcher;
        Py_XDECREF(former);
        return 0;
    }
    CodeState *made = &skipped;
    if (dispatcher != NULL) {
        made = PyMem_Malloc(sizeof(CodeState));
        if (made == NULL) {
            Py_DECREF(dispatcher);
            PyErr_NoMemory();
            return -1;
        }
        made->dispatcher = dispatcher;
    }
    if (made == state) {
        return 0;
    }
    if (code_set_extra(code, extra_index, made) < 0) {
        if (made != &skipped) {
            PyMem_Free(made);
            Py_DECREF(dispatcher);
        }
        return -1;
    }
    return 0;
}

/* The interpreter calls this with a dying code object's state, and with the former one when it is set. */
static void free_state(void *pointer) {
    CodeState *state = pointer;
    if (state == NULL || state == &skipped) {
        return;
    }
    PyObject *dispatcher = state->dispatcher;
    PyMem_Free(state);
    Py_XDECREF(dispatcher);
}

/* Ask the handler about a code object that is met for the first time. 0, or -1 with an exception. */
static int classify(PyObject *function, PyObject *code) {
    if (!is_replaceable((PyCodeObject *)code)) {
        return set_dispatcher(code, NULL);
    }
    PyObject *asked = Py_NewRef(handler);
    PyObject *answer = PyObject_CallFunctionObjArgs(asked, function, code, NULL);
    Py_DECREF(asked);
    if (answer == NULL) {
        return -1;
    }
    if (answer == Py_None) {
        Py_DECREF(answer);
        answer = NULL;
    }
    return set_dispatcher(code, answer);
}

/* New reference to what runs instead of the frame, or NULL (run it, unless an exception is set). */
static PyObject *look_up(PyObject *dispatcher, PyObject *function, PyObject *const *parameters, Py_ssize_t count) {
    if (native_lookup != NULL) {
        return native_lookup(dispatcher, function, parameters, count);
    }
    PyObject *packed = PyTuple_New(count);
    if (packed == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(packed, i, Py_NewRef(parameters[i]));
    }
    PyObject *found = PyObject_CallFunctionObjArgs(dispatcher, function, packed, NULL);
    Py_DECREF(packed);
    if (found == Py_None) {
        Py_DECREF(found);
        return NULL;
    }
    return found;
}

/* A Python function's own frame counts for the recursion limit, as the replaced one would have; native callables that
 * come back here must not recurse without a limit. The frame holds the parameters during the call. */
static inline PyObject *call(PyObject *replacement, PyObject *const *parameters, Py_ssize_t count) {
    if (PyFunction_Check(replacement)) {
        return PyObject_Vectorcall(replacement, parameters, (size_t)count, NULL);
    }
    if (Py_EnterRecursiveCall(" in a compiled function")) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(replacement, parameters, (size_t)count, NULL);
    Py_LeaveRecursiveCall();
    return result;
}

static PyObject *hook_eval(PyThreadState *thread, _PyInterpreterFrame *frame, int throwing) {
    /* Two hooks that were installed and removed in an interleaved order may each have the other as predecessor. A frame
     * that comes back before it ran has been seen by both. */
    if (frame == local.forwarded) {
        return frame_run(thread, frame, throwing);
    }
    if (local.depth == 0) {
        if (active_calls == 0) {
            /* Somebody who was installed above us has put us back after the last jitted call ended. */
            uninstall(thread->interp);
        }
        return forward(thread, frame, throwing);
    }
    local.frames++;
    if (local.busy || throwing || is_traced(thread) || frame->owner != FRAME_OWNED_BY_THREAD || frame->frame_obj != NULL) {
        return forward(thread, frame, throwing);
    }
    PyObject *code = frame_code(frame);
    PyObject *function = frame_function(frame);
    if (!PyCode_Check(code) || function == NULL || !PyFunction_Check(function)) {
        return forward(thread, frame, throwing);
    }

    CodeState *state = code_state(code);
    if (state == NULL) {
        if (handler == NULL) {
            return forward(thread, frame, throwing);
        }
        local.busy = 1;
        int failed = classify(function, code);
        local.busy = 0;
        if (failed) {
            frame_release(thread, frame);
            return NULL;
        }
        state = code_state(code);
    }
    if (state == NULL || state->dispatcher == NULL) {
        return forward(thread, frame, throwing);
    }

    Py_ssize_t count = parameter_count((PyCodeObject *)code);
    PyObject **parameters = frame_locals(frame);
    PyObject *dispatcher = Py_NewRef(state->dispatcher); /* the lookup may forget the code */
    local.busy = 1;
    PyObject *replacement = look_up(dispatcher, function, parameters, count);
    local.busy = 0;
    Py_DECREF(dispatcher);
    if (replacement == NULL) {
        if (!PyErr_Occurred()) {
            return forward(thread, frame, throwing);
        }
        frame_release(thread, frame);
        return NULL;
    }
    PyObject *result = call(replacement, parameters, count);
    Py_DECREF(replacement);
    frame_release(thread, frame);
    return result;
}

/* ---- installing ---- */

static void install(PyInterpreterState *interpreter) {
    _PyFrameEvalFunction present = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (present == hook_eval) {
        buried_by = NULL;
        return;
    }
    if (present == buried_by) {
        return; /* it was installed above us and hands its frames down to us */
    }
    buried_by = NULL;
    previous_eval = present;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, hook_eval);
}

static void uninstall(PyInterpreterState *interpreter) {
    _PyFrameEvalFunction present = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (present == hook_eval) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_eval);
        buried_by = NULL;
    } else if (present != _PyEval_EvalFrameDefault && present != previous_eval) {
        buried_by = present;
    }
}

static void api_enter(void) {
    local.depth++;
    active_calls++;
    install(PyThreadState_Get()->interp);
}

static void api_leave(void) {
    if (local.depth == 0) {
        return;
    }
    local.depth--;
    if (--active_calls == 0) {
        uninstall(PyThreadState_Get()->interp);
    }
}

static int api_is_active(void) { return local.depth > 0; }

/* Turn the hook off in this thread, and on again: calls that enter meanwhile have it on. */
static int suspend(void) {
    int depth = local.depth;
    if (depth > 0) {
        local.depth = 0;
        active_calls -= depth;
        if (active_calls == 0) {
            uninstall(PyThreadState_Get()->interp);
        }
    }
    return depth;
}

static void resume(int depth) {
    if (depth > 0) {
        local.depth += depth;
        active_calls += depth;
        install(PyThreadState_Get()->interp);
    }
}

static int api_skip_code(PyObject *code) {
    if (!PyCode_Check(code)) {
        PyErr_Format(PyExc_TypeError, "expected a code object, not %.100s", Py_TYPE(code)->tp_name);
        return -1;
    }
    return set_dispatcher(code, NULL);
}

static void api_set_lookup(jitpy_hook_lookup lookup) { native_lookup = lookup; }

static unsigned long long api_frames(void) { return local.frames; }

static JitpyHookApi api = {
    JITPY_HOOK_API_VERSION, api_enter, api_leave, api_is_active, api_skip_code, api_set_lookup, api_frames,
};

/* ---- the Python module ---- */

static PyObject *hook_set_eval_frame(PyObject *Py_UNUSED(module), PyObject *next) {
    if (next != Py_None && !PyCallable_Check(next)) {
        return PyErr_Format(PyExc_TypeError, "the handler must be callable or None, not %.100s", Py_TYPE(next)->tp_name);
    }
    PyObject *former = handler;
    handler = next == Py_None ? NULL : Py_NewRef(next);
    return former == NULL ? Py_NewRef(Py_None) : former;
}

static PyObject *hook_enter(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    api_enter();
    Py_RETURN_NONE;
}

static PyObject *hook_leave(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    if (local.depth == 0) {
        PyErr_SetString(PyExc_RuntimeError, "leave() without enter() in this thread");
        return NULL;
    }
    api_leave();
    Py_RETURN_NONE;
}

static PyObject *hook_suspend(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyLong_FromLong(suspend());
}

static PyObject *hook_resume(PyObject *Py_UNUSED(module), PyObject *calls) {
    long depth = PyLong_AsLong(calls);
    if (depth == -1 && PyErr_Occurred()) {
        return NULL;
    }
    resume((int)depth);
    Py_RETURN_NONE;
}

static PyObject *hook_is_active(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(local.depth > 0);
}

static PyObject *hook_is_installed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyThreadState_Get()->interp) == hook_eval);
}

static PyObject *hook_skip_code(PyObject *Py_UNUSED(module), PyObject *code) {
    if (api_skip_code(code) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *hook_forget_code(PyObject *Py_UNUSED(module), PyObject *code) {
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "expected a code object, not %.100s", Py_TYPE(code)->tp_name);
    }
    CodeState *state = code_state(code);
    if (state == NULL) {
        Py_RETURN_NONE;
    }
    /* The dispatcher must go after the slot is empty: its destructor may run Python code that meets this code object. */
    PyObject *former = NULL;
    if (state != &skipped) {
        former = state->dispatcher;
        state->dispatcher = NULL;
    }
    int failed = code_set_extra(code, extra_index, NULL) < 0;
    Py_XDECREF(former);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *hook_code_state(PyObject *Py_UNUSED(module), PyObject *code) {
    if (!PyCode_Check(code)) {
        return PyErr_Format(PyExc_TypeError, "expected a code object, not %.100s", Py_TYPE(code)->tp_name);
    }
    CodeState *state = code_state(code);
    if (state == NULL) {
        Py_RETURN_NONE;
    }
    return state->dispatcher == NULL ? PyUnicode_FromString("skip") : Py_NewRef(state->dispatcher);
}

static PyMethodDef methods[] = {
    {"set_eval_frame", hook_set_eval_frame, METH_O, "Set the handler of new code objects; returns the former one."},
    {"enter", hook_enter, METH_NOARGS, "A jitted call that needs the hook starts in this thread."},
    {"leave", hook_leave, METH_NOARGS, "The jitted call ends."},
    {"suspend", hook_suspend, METH_NOARGS, "Turn the hook off in this thread; returns what `resume` takes."},
    {"resume", hook_resume, METH_O, "Turn the hook on again, as it was at `suspend`."},
    {"is_active", hook_is_active, METH_NOARGS, "Is this thread between enter and leave?"},
    {"is_installed", hook_is_installed, METH_NOARGS, "Is the evaluation function the interpreter's present one?"},
    {"skip_code", hook_skip_code, METH_O, "Never look at frames of this code object again."},
    {"forget_code", hook_forget_code, METH_O, "Ask the handler again when a frame of this code object is met."},
    {"code_state", hook_code_state, METH_O, "None (unseen), 'skip', or the dispatcher of a code object."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_jitpy_hook", "The native frame hook.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__jitpy_hook(void) {
    if (extra_index < 0) {
        extra_index = request_extra_index(free_state);
        if (extra_index < 0) {
            PyErr_SetString(PyExc_ImportError, "the interpreter has no free code-extra slot");
            return NULL;
        }
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(&api, JITPY_HOOK_CAPSULE, NULL);
    if (capsule == NULL || PyModule_AddObject(module, "api", capsule) < 0) {
        Py_XDECREF(capsule);
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
