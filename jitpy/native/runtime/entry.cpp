#include "entry.h"

#include <structmember.h>

#include "guards.h"

namespace {

int entry_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Entry*>(object);
  Py_VISIT(self->guard);
  Py_VISIT(self->native);
  Py_VISIT(self->check);
  Py_VISIT(self->code);
  Py_VISIT(self->payload);
  Py_VISIT(self->function);
  return 0;
}

int entry_clear(PyObject* object) {
  auto* self = reinterpret_cast<Entry*>(object);
  Py_CLEAR(self->guard);
  Py_CLEAR(self->native);
  Py_CLEAR(self->check);
  Py_CLEAR(self->code);
  Py_CLEAR(self->payload);
  Py_CLEAR(self->function);
  return 0;
}

void entry_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  entry_clear(self);
  Py_TYPE(self)->tp_free(self);
}

PyObject* entry_repr(PyObject* object) {
  auto* self = reinterpret_cast<Entry*>(object);
  if (self->code == nullptr) return PyUnicode_FromString("<Entry>");
  return PyUnicode_FromFormat("<Entry %U, %llu hits>", reinterpret_cast<PyCodeObject*>(self->code)->co_qualname,
                              self->hits);
}

PyMemberDef entry_members[] = {
    {"guard", T_OBJECT, offsetof(Entry, guard), READONLY, "what must hold for this variant"},
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "the compiled variant"},
    {"payload", T_OBJECT, offsetof(Entry, payload), READONLY, "whatever add_entry was given"},
    {"needs_hook", T_BOOL, offsetof(Entry, needs_hook), 0, "whether the frame hook is on during the call"},
    {"frames", T_ULONGLONG, offsetof(Entry, frames), READONLY, "frames that the hook met in calls that turned it on"},
    {"hits", T_ULONGLONG, offsetof(Entry, hits), READONLY, "calls that this variant served"},
    {nullptr, 0, 0, 0, nullptr},
};

PyTypeObject make_entry_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "_jitpy_runtime.Entry";
  type.tp_doc = "One compiled variant of a dispatcher.";
  type.tp_basicsize = sizeof(Entry);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  type.tp_dealloc = entry_dealloc;
  type.tp_free = PyObject_GC_Del;
  type.tp_traverse = entry_traverse;
  type.tp_clear = entry_clear;
  type.tp_members = entry_members;
  type.tp_repr = entry_repr;
  return type;
}

}  // namespace

PyTypeObject entry_type = make_entry_type();

Entry* make_entry(PyObject* guard, PyObject* code, bool needs_hook, PyObject* payload) {
  PyObject *native = nullptr, *check = nullptr;
  if (guard != Py_None) {
    native = PyObject_GetAttrString(guard, "native_guard");
    if (native == nullptr && !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
    PyErr_Clear();
    if (native != nullptr && !guard_check_exact(native)) Py_CLEAR(native);
    if (native == nullptr && (check = PyObject_GetAttrString(guard, "check")) == nullptr) return nullptr;
  }
  auto* entry = PyObject_GC_New(Entry, &entry_type);
  if (entry == nullptr) {
    Py_XDECREF(native);
    Py_XDECREF(check);
    return nullptr;
  }
  entry->guard = Py_NewRef(guard);
  entry->native = native;
  entry->check = check;
  entry->code = Py_NewRef(code);
  entry->payload = Py_NewRef(payload);
  entry->function = nullptr;
  entry->hits = entry->frames = 0;
  entry->needs_hook = needs_hook;
  PyObject_GC_Track(entry);
  return entry;
}

PyObject* pack(PyObject* const* objects, Py_ssize_t n) {
  PyObject* tuple = PyTuple_New(n);
  for (Py_ssize_t i = 0; tuple != nullptr && i < n; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(objects[i]));
  return tuple;
}

int entry_holds(Entry* entry, const Bound& bound) {
  if (entry->native != nullptr)
    return guard_evaluate(entry->native, bound.params, bound.n, bound.globals, bound.closure);
  if (entry->check == nullptr) return 1;
  PyObject* params = pack(bound.params, bound.n);
  if (params == nullptr) return -1;
  PyObject* args[] = {params, bound.globals, bound.closure == nullptr ? Py_None : bound.closure};
  PyObject* result = PyObject_Vectorcall(entry->check, args, 3, nullptr);
  Py_DECREF(params);
  if (result == nullptr) return -1;
  const int holds = PyObject_IsTrue(result);
  Py_DECREF(result);
  return holds;
}
