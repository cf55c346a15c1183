/* The next item of an iterator over a list, tuple, dict or set, without taking it and without going through what is left.
 *
 * The layouts of CPython's iterators (Objects/{dict,set,list,tuple}object.c) are the same from 3.11 to 3.13. The
 * position of a dict's iterator counts as that of PyDict_Next.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

typedef struct {
    PyObject_HEAD
    PyObject *dict; /* NULL once it has come to its end */
    Py_ssize_t used; /* the dict's size when it was made; -1 once that has changed */
    Py_ssize_t position;
    PyObject *result;
    Py_ssize_t left;
} DictIterator;

typedef struct {
    PyObject_HEAD
    PyObject *set;
    Py_ssize_t used;
    Py_ssize_t position;
    Py_ssize_t left;
} SetIterator;

typedef struct {
    PyObject_HEAD
    Py_ssize_t index;
    PyObject *sequence; /* NULL once it has come to its end */
} SequenceIterator;

PyAPI_FUNC(int) _PySet_NextEntry(PyObject *set, Py_ssize_t *position, PyObject **key, Py_hash_t *hash);

/* New reference; NULL with StopIteration where there is none. */
static PyObject *peek_sequence(SequenceIterator *iterator, Py_ssize_t count) {
    PyObject *sequence = iterator->sequence;
    int is_list = Py_IS_TYPE(iterator, &PyListIter_Type);
    Py_ssize_t size = sequence == NULL ? 0 : is_list ? PyList_GET_SIZE(sequence) : PyTuple_GET_SIZE(sequence);
    if (sequence == NULL || count >= size - iterator->index) { /* the index is -1 at the end, from 3.13 on */
        PyErr_SetNone(PyExc_StopIteration);
        return NULL;
    }
    Py_ssize_t at = iterator->index + count;
    return Py_NewRef(is_list ? PyList_GET_ITEM(sequence, at) : PyTuple_GET_ITEM(sequence, at));
}

/* New reference; NULL with StopIteration where there is none. */
static PyObject *peek_dict(DictIterator *iterator, Py_ssize_t count) {
    if (iterator->dict == NULL) {
        PyErr_SetNone(PyExc_StopIteration);
        return NULL;
    }
    if (iterator->used != PyDict_Size(iterator->dict)) {
        PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
        return NULL;
    }
    Py_ssize_t position = iterator->position;
    PyObject *key = NULL, *value = NULL;
    for (Py_ssize_t i = 0; i <= count; i++) {
        if (!PyDict_Next(iterator->dict, &position, &key, &value)) {
            PyErr_SetNone(PyExc_StopIteration);
            return NULL;
        }
    }
    if (Py_IS_TYPE(iterator, &PyDictIterItem_Type)) {
        return PyTuple_Pack(2, key, value);
    }
    return Py_NewRef(Py_IS_TYPE(iterator, &PyDictIterKey_Type) ? key : value);
}

/* New reference; NULL with StopIteration where there is none. */
static PyObject *peek_set(SetIterator *iterator, Py_ssize_t count) {
    if (iterator->set == NULL) {
        PyErr_SetNone(PyExc_StopIteration);
        return NULL;
    }
    if (iterator->used != PySet_Size(iterator->set)) {
        PyErr_SetString(PyExc_RuntimeError, "Set changed size during iteration");
        return NULL;
    }
    Py_ssize_t position = iterator->position;
    PyObject *key = NULL;
    Py_hash_t hash;
    for (Py_ssize_t i = 0; i <= count; i++) {
        if (!_PySet_NextEntry(iterator->set, &position, &key, &hash)) {
            PyErr_SetNone(PyExc_StopIteration);
            return NULL;
        }
    }
    return Py_NewRef(key);
}

/* peek(iterator, count): the item behind `count` others. New reference. */
static PyObject *peek(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "peek(iterator, count)");
        return NULL;
    }
    Py_ssize_t count = PyLong_AsSsize_t(args[1]);
    if (count == -1 && PyErr_Occurred()) {
        return NULL;
    }
    PyTypeObject *type = Py_TYPE(args[0]);
    if (type == &PyListIter_Type || type == &PyTupleIter_Type) {
        return peek_sequence((SequenceIterator *)args[0], count);
    }
    if (type == &PyDictIterKey_Type || type == &PyDictIterValue_Type || type == &PyDictIterItem_Type) {
        return peek_dict((DictIterator *)args[0], count);
    }
    if (type == &PySetIter_Type) {
        return peek_set((SetIterator *)args[0], count);
    }
    PyErr_Format(PyExc_TypeError, "peek() of a %s", type->tp_name);
    return NULL;
}

static PyMethodDef methods[] = {
    {"peek", (PyCFunction)(void (*)(void))peek, METH_FASTCALL, "The item behind `count` others."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_jitpy_iterators", "Iterators read ahead.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__jitpy_iterators(void) { return PyModule_Create(&definition); }
