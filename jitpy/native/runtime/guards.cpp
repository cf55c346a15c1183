// The guard evaluator: a tree of access paths, flattened in pre-order.
//
// `jitpy/runtime/guards.py` lowers a guard set to the tuples that `Guard(...)` takes. A node reads one value from its
// parent's value, then runs the checks on it; values live on a stack indexed by depth, so that a shared prefix is read
// once. Checks that need two values, or all size symbols, run after the tree. Node `end` is the index behind the node's
// subtree: a subtree that is known to be unchanged can be skipped as a whole.
//
// No user code runs here except getters reached by "attr" steps and `python` guards. An `Exception` raised while
// a value is read means that the guard does not hold; anything else (KeyboardInterrupt) is passed on.
#include "guards.h"

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "guard_program.h"
#include "guard_values.h"
#include "module.h"
#include "sizes_program.h"
#include "tensor_facts.h"

namespace {

PyObject* torch_device_globals;  // dict of torch.utils._device
PyObject* current_device_name;   // "CURRENT_DEVICE"

struct GuardObject {
  PyObject_HEAD Program* program;
};

extern PyTypeObject guard_type;

// 0 after clearing an `Exception`; -1 where something else was raised, which stays set.
int clear_exception() {
  if (!PyErr_Occurred()) return 0;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

// Whether the weak reference is alive and refers to the object.
bool refers_to(PyObject* weakref, PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = nullptr;
  if (PyWeakref_GetRef(weakref, &referent) < 0) PyErr_Clear();
  Py_XDECREF(referent);
  return referent == object;
#else
  return PyWeakref_GET_OBJECT(weakref) == object && object != Py_None;
#endif
}

// ---- evaluation ----

bool class_passes(ClassCheck& check) {
  auto* type = reinterpret_cast<PyTypeObject*>(check.cls.get());
#if PY_VERSION_HEX >= 0x030D0000
  const auto version = [&] { return type->tp_version_tag; };
#else
  const auto version = [&] { return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0; };
#endif
  const unsigned int now = version();
  if (now != 0 && now == check.version) return true;
  for (const auto& [name, expected] : check.names)
    if (_PyType_Lookup(type, name.get()) != expected.get()) return false;
  check.version = version();  // the lookups gave the class a version where it can have one
  return true;
}

// The default device is None or a torch.device in a module's dict. -1 with an exception set as in guard_evaluate.
int default_device_passes(PyObject* expected) {
  PyObject* found = PyDict_GetItemWithError(torch_device_globals, current_device_name);
  if (found == nullptr) return clear_exception();
  if (found == Py_None || expected == Py_None) return found == expected;
  PyObject* text = PyObject_Str(found);
  if (text == nullptr) return clear_exception();
  const int equal = PyUnicode_Compare(text, expected) == 0;
  Py_DECREF(text);
  return equal;
}

bool int_passes(PyObject* value, const Check& check, int64_t* symbols) {
  if (!PyLong_CheckExact(value)) return false;
  int overflow = 0;
  const long long found = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return false;
  if (!check.bind) return symbols[check.number] == found;
  symbols[check.number] = found;
  return found >= check.low && found <= check.high;
}

bool function_passes(PyObject* value, PyObject* expected) {
  if (!PyFunction_Check(value)) return false;
  auto* function = reinterpret_cast<PyFunctionObject*>(value);
  const auto is = [&](PyObject* found, Py_ssize_t i) {
    return (found == nullptr ? Py_None : found) == PyTuple_GET_ITEM(expected, i);
  };
  return is(function->func_code, 0) && is(function->func_defaults, 1) && is(function->func_kwdefaults, 2);
}

int check_passes(PyObject* value, const Check& check, int64_t* symbols) {
  PyObject* object = check.object.get();
  switch (check.kind) {
    case CheckKind::kType:
      return reinterpret_cast<PyObject*>(Py_TYPE(value)) == object;
    case CheckKind::kId:
      return value == object;
    case CheckKind::kWeakId:
      return refers_to(object, value);
    case CheckKind::kEq:
      return constants_equal(value, object);
    case CheckKind::kLen:
      return container_length(value) == check.number;
    case CheckKind::kKeys:
      return keys_equal(value, object);
    case CheckKind::kHasKey:
    case CheckKind::kNoKey: {
      if (!PyDict_Check(value)) return 0;
      const bool found = _PyDict_GetItem_KnownHash(value, object, check.number) != nullptr;
      if (!found && PyErr_Occurred()) return clear_exception();
      return found == (check.kind == CheckKind::kHasKey);
    }
    case CheckKind::kTensor:
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != object) return 0;
      return tensor_passes(value, *check.tensor, symbols);
    case CheckKind::kInt:
      return int_passes(value, check, symbols);
    case CheckKind::kFunction:
      return function_passes(value, object);
    case CheckKind::kEmpty:
      return PyCell_Check(value) && PyCell_GET(value) == nullptr;
  }
  return 0;
}

struct Frame {
  PyObject* const* params;
  Py_ssize_t n;
  PyObject* globals;
  PyObject* closure;
};

// New reference; null where the step cannot be made, with or without an exception set.
PyObject* read_node(const Node& node, PyObject* base, const Frame& frame) {
  switch (node.step) {
    case Step::kLocal:
      return node.index < frame.n ? Py_XNewRef(frame.params[node.index]) : nullptr;
    case Step::kClosure:
    case Step::kClosureCell: {
      if (frame.closure == nullptr || !PyTuple_Check(frame.closure)) return nullptr;
      if (node.index >= PyTuple_GET_SIZE(frame.closure)) return nullptr;
      PyObject* cell = PyTuple_GET_ITEM(frame.closure, node.index);
      if (node.step == Step::kClosureCell) return Py_NewRef(cell);
      return PyCell_Check(cell) ? Py_XNewRef(PyCell_GET(cell)) : nullptr;
    }
    case Step::kGlobals:
      return Py_XNewRef(frame.globals);
    case Step::kConst:
      return Py_NewRef(node.arg.get());
    case Step::kAttr:
      return PyObject_GetAttr(base, node.arg.get());
    case Step::kDict:
      return instance_dict(base);
    case Step::kItem:
      if (!PyDict_Check(base)) return nullptr;
      return Py_XNewRef(_PyDict_GetItem_KnownHash(base, node.arg.get(), node.hash));
    case Step::kIndex: {
      const bool is_list = PyList_Check(base);
      if (!is_list && !PyTuple_Check(base)) return nullptr;
      const Py_ssize_t size = Py_SIZE(base), i = node.index < 0 ? node.index + size : node.index;
      if (i < 0 || i >= size) return nullptr;
      return Py_NewRef(is_list ? PyList_GET_ITEM(base, i) : PyTuple_GET_ITEM(base, i));
    }
    case Step::kType:
      return Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(base)));
    case Step::kSlot: {
      PyObject* descriptor = node.arg.get();
      return Py_TYPE(descriptor)->tp_descr_get(descriptor, base, reinterpret_cast<PyObject*>(Py_TYPE(base)));
    }
    case Step::kCell:
      return PyCell_Check(base) ? Py_XNewRef(PyCell_GET(base)) : nullptr;
  }
  return nullptr;
}

bool all_distinct(const std::vector<int>& keeps, PyObject* const* kept) {
  const size_t n = keeps.size();
  if (n <= 12) {
    for (size_t i = 0; i < n; i++)
      for (size_t j = 0; j < i; j++)
        if (kept[keeps[i]] == kept[keeps[j]]) return false;
    return true;
  }
  size_t size = 32;
  while (size < 2 * n) size *= 2;
  std::vector<PyObject*> table(size, nullptr);
  for (const int keep : keeps) {
    size_t slot = (reinterpret_cast<uintptr_t>(kept[keep]) >> 4) & (size - 1);
    for (; table[slot] != nullptr; slot = (slot + 1) & (size - 1))
      if (table[slot] == kept[keep]) return false;
    table[slot] = kept[keep];
  }
  return true;
}

// Call `callable(*args)` and consume the arguments. 1, 0, -1 as guard_evaluate.
int ask_python(PyObject* callable, PyObject** args, size_t n) {
  PyObject* result = PyObject_Vectorcall(callable, args, n, nullptr);
  for (size_t i = 0; i < n; i++) Py_DECREF(args[i]);
  if (result == nullptr) return clear_exception();
  const int truth = PyObject_IsTrue(result);
  Py_DECREF(result);
  return truth < 0 ? clear_exception() : truth;
}

int ask_relation(const FinalCheck& check, const int64_t* symbols) {
  if (!check.program.empty()) {
    const SizeVerdict verdict = run_size_program(check.program, symbols);
    if (verdict != SizeVerdict::kUnknown) return verdict == SizeVerdict::kTrue;
  }
  std::vector<PyObject*> args;
  for (const int slot : check.symbols) {
    PyObject* number = PyLong_FromLongLong(symbols[slot]);
    if (number == nullptr) {
      for (PyObject* arg : args) Py_DECREF(arg);
      return clear_exception();
    }
    args.push_back(number);
  }
  return ask_python(check.object.get(), args.data(), args.size());
}

int final_passes(const FinalCheck& check, PyObject* const* kept, const int64_t* symbols) {
  switch (check.kind) {
    case FinalKind::kSame:
      return kept[check.keeps[0]] == kept[check.keeps[1]];
    case FinalKind::kDistinct:
      return all_distinct(check.keeps, kept);
    case FinalKind::kOverlap: {
      PyObject* value = kept[check.keeps[0]];
      for (const int keep : check.keeps)
        if (!is_tensor_class(reinterpret_cast<PyObject*>(Py_TYPE(kept[keep])))) return 0;
      for (size_t i = 1; i < check.keeps.size(); i++)
        if (storages_overlap(value, kept[check.keeps[i]])) return 0;
      return 1;
    }
    case FinalKind::kRelation:
      return ask_relation(check, symbols);
    case FinalKind::kPython: {
      PyObject* args[1] = {Py_NewRef(kept[check.keeps[0]])};
      return ask_python(check.object.get(), args, 1);
    }
  }
  return 0;
}

int evaluate_tree(const Program& program, const Frame& frame, PyObject** values, PyObject** kept, int64_t* symbols) {
  for (const Node& node : program.nodes) {
    PyObject* value = read_node(node, node.depth > 0 ? values[node.depth - 1] : nullptr, frame);
    if (value == nullptr) return clear_exception();
    Py_XSETREF(values[node.depth], value);
    if (node.keep >= 0) kept[node.keep] = Py_NewRef(value);
    for (int i = node.checks_begin; i < node.checks_end; i++) {
      const int passes = check_passes(value, program.checks[i], symbols);
      if (passes != 1) return passes;
    }
  }
  for (const FinalCheck& check : program.finals) {
    const int passes = final_passes(check, kept, symbols);
    if (passes != 1) return passes;
  }
  return 1;
}

constexpr int kStackValues = 64, kStackSymbols = 64;

int evaluate(Program& program, const Frame& frame) {
  for (const auto& [state, default_device] : program.states) {
    if (!state_passes(state)) return 0;
    const int passes = default_device_passes(default_device.get());
    if (passes != 1) return passes;
  }
  for (ClassCheck& check : program.classes)
    if (!class_passes(check)) return 0;
  PyObject* few_values[kStackValues];
  int64_t few_symbols[kStackSymbols];
  const int n_values = program.depths + program.keeps;
  std::unique_ptr<PyObject*[]> many_values;
  std::unique_ptr<int64_t[]> many_symbols;
  PyObject** values = few_values;
  int64_t* symbols = few_symbols;
  if (n_values > kStackValues) values = (many_values = std::make_unique<PyObject*[]>(n_values)).get();
  if (program.symbols > kStackSymbols) symbols = (many_symbols = std::make_unique<int64_t[]>(program.symbols)).get();
  std::memset(values, 0, sizeof(PyObject*) * n_values);
  std::optional<NoTorchFunction> no_overrides;
  if (program.runs_python) no_overrides.emplace();
  const int passes = evaluate_tree(program, frame, values, values + program.depths, symbols);
  // Dropping the last reference of a value may run its finalizer, which must not see our exception.
  if (passes < 0) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    for (int i = 0; i < n_values; i++) Py_XDECREF(values[i]);
    PyErr_Restore(type, error, traceback);
  } else {
    for (int i = 0; i < n_values; i++) Py_XDECREF(values[i]);
  }
  return passes;
}

// ---- the type ----

PyObject* guard_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  auto program = parse_program(args, kwargs);
  if (program == nullptr) return nullptr;
  auto* self = reinterpret_cast<GuardObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->program = program.release();
  return reinterpret_cast<PyObject*>(self);
}

int guard_traverse(PyObject* object, visitproc visit, void* arg) {
  const Program* program = reinterpret_cast<GuardObject*>(object)->program;
  if (program == nullptr) return 0;
  for (const Node& node : program->nodes) Py_VISIT(node.arg.get());
  for (const Check& check : program->checks) Py_VISIT(check.object.get());
  for (const FinalCheck& check : program->finals) Py_VISIT(check.object.get());
  for (const ClassCheck& check : program->classes) {
    Py_VISIT(check.cls.get());
    for (const auto& [name, found] : check.names) {
      Py_VISIT(name.get());
      Py_VISIT(found.get());
    }
  }
  return 0;
}

int guard_clear(PyObject* object) {
  auto* self = reinterpret_cast<GuardObject*>(object);
  Program* program = self->program;
  self->program = nullptr;
  delete program;
  return 0;
}

void guard_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  guard_clear(self);
  Py_TYPE(self)->tp_free(self);
}

PyObject* guard_check(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n < 2 || n > 3 || !PyTuple_Check(args[0]) || !PyDict_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "check(params: tuple, globals: dict, closure: tuple | None = None)");
    return nullptr;
  }
  PyObject* const* params = reinterpret_cast<PyTupleObject*>(args[0])->ob_item;
  const int passes = guard_evaluate(self, params, PyTuple_GET_SIZE(args[0]), args[1], n == 3 ? args[2] : nullptr);
  return passes < 0 ? nullptr : PyBool_FromLong(passes);
}

PyMethodDef guard_methods[] = {
    {"check", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guard_check)), METH_FASTCALL,
     "check(params, globals, closure=None) -> bool: whether every fact holds"},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject make_guard_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "_jitpy_runtime.Guard";
  type.tp_doc = "A guard set compiled to a tree of access paths; made by jitpy.runtime.guards.";
  type.tp_basicsize = sizeof(GuardObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_new = guard_new;
  type.tp_dealloc = guard_dealloc;
  type.tp_traverse = guard_traverse;
  type.tp_clear = guard_clear;
  type.tp_methods = guard_methods;
  return type;
}

PyTypeObject guard_type = make_guard_type();

PyObject* py_storages_overlap(PyObject*, PyObject* args) {
  PyObject *a, *b;
  if (!PyArg_ParseTuple(args, "OO:storages_overlap", &a, &b)) return nullptr;
  for (PyObject* object : {a, b}) {
    if (is_tensor_class(reinterpret_cast<PyObject*>(Py_TYPE(object)))) continue;
    PyErr_Format(PyExc_TypeError, "storages_overlap takes tensors, not %.200s", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  return PyBool_FromLong(storages_overlap(a, b));
}

PyMethodDef module_functions[] = {
    {"storages_overlap", py_storages_overlap, METH_VARARGS,
     "storages_overlap(a, b) -> bool: whether two tensors' storages share bytes"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool guard_check_exact(PyObject* object) { return Py_IS_TYPE(object, &guard_type); }

int guard_evaluate(PyObject* guard, PyObject* const* params, Py_ssize_t n, PyObject* globals, PyObject* closure) {
  Program* program = reinterpret_cast<GuardObject*>(guard)->program;
  if (program == nullptr) return 0;  // cleared by the garbage collector
  return evaluate(*program, {params, n, globals, closure});
}

int init_guards(PyObject* module) {
  if (init_guard_values() < 0) return -1;
  PyObject* device_module = PyImport_ImportModule("torch.utils._device");
  if (device_module == nullptr) return -1;
  torch_device_globals = Py_XNewRef(PyModule_GetDict(device_module));
  Py_DECREF(device_module);
  if ((current_device_name = PyUnicode_InternFromString("CURRENT_DEVICE")) == nullptr) return -1;
  if (PyModule_AddFunctions(module, module_functions) < 0) return -1;
  if (PyType_Ready(&guard_type) < 0) return -1;
  return PyModule_AddObjectRef(module, "Guard", reinterpret_cast<PyObject*>(&guard_type));
}
