#include "switches.h"

#include "module.h"

__thread bool compiling;

namespace {

bool dispatch_enabled = true;

// ---- torch.compiler.set_stance ----

// Whether the stance is "force_eager". It is a global variable of a module of torch's compiler, which most processes never
// load: read again only where the dict of all modules, or the globals of that one, have another version.
struct Stance {
  PyObject* modules = nullptr;  // borrowed: lives as long as the interpreter
  PyObject* globals = nullptr;
  uint64_t modules_version = 0, globals_version = 0;
  bool eager = false;
} stance;

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
uint64_t version_of(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

bool read_stance() {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  stance.modules = PyImport_GetModuleDict();
  stance.modules_version = version_of(stance.modules);
  stance.eager = false;
  PyObject* module = PyDict_GetItemString(stance.modules, "torch._dynamo.eval_frame");
  PyObject* globals = module != nullptr && PyModule_Check(module) ? PyModule_GetDict(module) : nullptr;
  Py_XINCREF(globals);
  Py_XSETREF(stance.globals, globals);
  if (globals != nullptr) {
    stance.globals_version = version_of(globals);
    PyObject* chosen = PyDict_GetItemString(globals, "_stance");
    PyObject* name = chosen != nullptr ? PyObject_GetAttrString(chosen, "stance") : nullptr;
    stance.eager = name != nullptr && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "force_eager") == 0;
    Py_XDECREF(name);
  }
  PyErr_Restore(type, error, traceback);
  return stance.eager;
}

// ---- marks of torch.compiler on functions ----

// The tables in which it notes what programs say of functions. `look()` returns them, or None while they do not exist,
// and forgets what was compiled before a mark was made.
struct Marks {
  PyObject* look = nullptr;         // callable, or null
  PyObject* substitutes = nullptr;  // dict
  PyObject* allowed = nullptr;      // set
  uint64_t version = 0;             // of `substitutes`
  uint64_t content = 0;             // of `allowed`
} marks;

// A number that tells what is in a set of a few ids; sets have no version.
uint64_t content_of(PyObject* ids) {
  const auto* set = reinterpret_cast<PySetObject*>(ids);
  uint64_t sum = static_cast<uint64_t>(set->used);
  for (Py_ssize_t i = 0; set->used != 0 && i <= set->mask; i++) {
    if (set->table[i].key == nullptr || !PyLong_CheckExact(set->table[i].key)) continue;  // empty, or taken out
    const uint64_t mixed = static_cast<uint64_t>(set->table[i].hash) * 0x9E3779B97F4A7C15u;
    sum += mixed ^ (mixed >> 29);
  }
  return sum;
}

void note_marks() {
  marks.version = version_of(marks.substitutes);
  marks.content = content_of(marks.allowed);
}

void look_at_marks() {
  if (marks.look == nullptr || compiling) return;
  if (marks.substitutes != nullptr) note_marks();
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  compiling = true;
  PyObject* tables = PyObject_CallNoArgs(marks.look);
  compiling = false;
  PyObject *substitutes, *allowed;
  if (tables == nullptr) {
    PyErr_WriteUnraisable(marks.look);
  } else if (tables != Py_None && PyArg_ParseTuple(tables, "O!O!", &PyDict_Type, &substitutes, &PySet_Type, &allowed)) {
    Py_XSETREF(marks.substitutes, Py_NewRef(substitutes));
    Py_XSETREF(marks.allowed, Py_NewRef(allowed));
    note_marks();
  }
  Py_XDECREF(tables);
  PyErr_Restore(type, error, traceback);
}

// ---- module functions ----

PyObject* set_enabled(PyObject*, PyObject* flag) {
  const int enabled = PyObject_IsTrue(flag);
  if (enabled < 0) return nullptr;
  const bool before = dispatch_enabled;
  dispatch_enabled = enabled;
  return PyBool_FromLong(before);
}

PyObject* set_compiling(PyObject*, PyObject* flag) {
  const int marked = PyObject_IsTrue(flag);
  if (marked < 0) return nullptr;
  const bool before = compiling;
  compiling = marked;
  return PyBool_FromLong(before);
}

PyObject* is_compiling(PyObject*, PyObject*) { return PyBool_FromLong(compiling); }

PyObject* set_marks_function(PyObject*, PyObject* look) {
  Py_XSETREF(marks.look, Py_NewRef(look));
  Py_CLEAR(marks.substitutes);
  Py_CLEAR(marks.allowed);
  Py_RETURN_NONE;
}

PyMethodDef module_functions[] = {
    {"set_enabled", set_enabled, METH_O,
     "set_enabled(flag) -> bool: the switch for all dispatchers; returns what it was"},
    {"set_compiling", set_compiling, METH_O, "set_compiling(flag) -> bool: this thread's mark; returns what it was"},
    {"is_compiling", is_compiling, METH_NOARGS, "is_compiling() -> bool: whether this thread is marked as compiling"},
    {"set_marks_function", set_marks_function, METH_O,
     "set_marks_function(look): what is called where a program may have marked a function for torch.compiler"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool turned_off() {
  if (!dispatch_enabled) return true;
  if (stance.modules != nullptr && version_of(stance.modules) == stance.modules_version) {
    if (stance.globals == nullptr) return stance.eager;
    if (version_of(stance.globals) == stance.globals_version && marks.substitutes != nullptr &&
        version_of(marks.substitutes) == marks.version && content_of(marks.allowed) == marks.content)
      return stance.eager;
  }
  const bool eager = read_stance();
  if (stance.globals != nullptr) look_at_marks();
  return eager;
}

int init_switches(PyObject* module) { return PyModule_AddFunctions(module, module_functions); }
