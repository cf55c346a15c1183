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

#include "module.h"
#include "sizes_program.h"
#include "tensor_facts.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

// ---- small access helpers -------------------------------------------------------------------------------------------

// A held reference, for vectors.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* borrowed) : object_(Py_XNewRef(borrowed)) {}
  Ref(Ref&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Ref(const Ref&) = delete;
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_ = nullptr;
};

PyTypeObject* deque_type;         // collections.deque
PyTypeObject* torch_size_type;    // torch.Size
PyTypeObject* torch_device_type;  // torch.device
PyObject* torch_device_globals;   // dict of torch.utils._device
PyObject* current_device_name;    // "CURRENT_DEVICE"

// 0 after clearing an `Exception`; -1 where something else was raised, which stays set.
int clear_exception() {
  if (!PyErr_Occurred()) return 0;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

// The dict in which the object's own attributes lie, materialised if need be. New reference, or null without an exception
// where the object has none. Type objects give their own dict.
PyObject* instance_dict(PyObject* object) {
  if (PyType_Check(object)) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyType_GetDict(reinterpret_cast<PyTypeObject*>(object));
#else
    return Py_XNewRef(reinterpret_cast<PyTypeObject*>(object)->tp_dict);
#endif
  }
  PyObject* dict = PyObject_GenericGetDict(object, nullptr);
  if (dict == nullptr) PyErr_Clear();
  return dict;
}

// Number of items of a built-in container, by the container's own code; -1 for anything else.
Py_ssize_t container_length(PyObject* object) {
  if (PyList_Check(object) || PyTuple_Check(object)) return Py_SIZE(object);
  if (PyDict_Check(object)) return PyDict_GET_SIZE(object);
  if (PyAnySet_Check(object)) return PySet_GET_SIZE(object);
  if (PyObject_TypeCheck(object, deque_type)) return deque_type->tp_as_sequence->sq_length(object);
  return -1;
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof(double)) == 0; }

// Equality of constants: same types throughout, floats bit for bit, no user code. Objects of other types than the ones below
// are equal if they are the same object.
bool constants_equal(PyObject* a, PyObject* b) {
  if (a == b) return true;
  PyTypeObject* type = Py_TYPE(a);
  if (type != Py_TYPE(b)) return false;
  if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type || type == torch_device_type) {
    const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal == 1;
  }
  if (type == &PyFloat_Type) return same_bits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  if (type == &PyComplex_Type) {
    const Py_complex x = reinterpret_cast<PyComplexObject*>(a)->cval, y = reinterpret_cast<PyComplexObject*>(b)->cval;
    return same_bits(x.real, y.real) && same_bits(x.imag, y.imag);
  }
  if (type == &PyTuple_Type || type == torch_size_type) {
    const Py_ssize_t n = PyTuple_GET_SIZE(a);
    if (n != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < n; i++)
      if (!constants_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    return true;
  }
  if (type == &PyFrozenSet_Type) {
    if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b)) return false;
    PyObject *x, *y;
    Py_ssize_t i = 0, j;
    Py_hash_t hash;
    while (_PySet_NextEntry(a, &i, &x, &hash)) {
      bool found = false;
      j = 0;
      while (!found && _PySet_NextEntry(b, &j, &y, &hash)) found = constants_equal(x, y);
      if (!found) return false;
    }
    return true;
  }
  if (type == &PySlice_Type) {
    auto *x = reinterpret_cast<PySliceObject*>(a), *y = reinterpret_cast<PySliceObject*>(b);
    return constants_equal(x->start, y->start) && constants_equal(x->stop, y->stop) && constants_equal(x->step, y->step);
  }
  return false;
}

bool keys_equal(PyObject* dict, PyObject* expected) {
  if (!PyDict_CheckExact(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return false;
  PyObject* key;
  Py_ssize_t position = 0, i = 0;
  while (PyDict_Next(dict, &position, &key, nullptr))
    if (!constants_equal(key, PyTuple_GET_ITEM(expected, i++))) return false;
  return true;
}

// Borrowed referent, or null where it died.
PyObject* referent(PyObject* weakref) {
  PyObject* object = PyWeakref_GET_OBJECT(weakref);
  return object == Py_None ? nullptr : object;
}

// ---- the program ------------------------------------------------------------------------------------------------------

enum class Step : uint8_t { kLocal, kClosure, kClosureCell, kGlobals, kConst, kAttr, kDict, kItem, kIndex, kType, kSlot, kCell };
constexpr const char* kStepNames[] = {"local", "closure", "closure_cell", "globals", "const", "attr",
                                      "dict",  "item",    "index",        "type",    "slot",  "cell"};

enum class CheckKind : uint8_t { kType, kId, kWeakId, kEq, kLen, kKeys, kHasKey, kNoKey, kTensor, kInt, kFunction, kEmpty };
constexpr const char* kCheckNames[] = {"type",   "id",    "weak_id", "eq",  "len",      "keys",
                                       "haskey", "nokey", "tensor",  "int", "function", "empty"};

enum class FinalKind : uint8_t { kSame, kDistinct, kOverlap, kRelation, kPython };
constexpr const char* kFinalNames[] = {"same", "distinct", "overlap", "relation", "python"};

struct Node {
  Step step;
  int depth;  // 0 for roots
  int end;    // index of the first node behind this subtree
  int keep;   // slot in which the value is kept for the final checks, or -1
  Py_ssize_t index;
  Ref arg;
  Py_hash_t hash;
  int checks_begin, checks_end;
};

struct Check {
  CheckKind kind;
  Py_ssize_t number;  // len: items; haskey, nokey: the key's hash; int: symbol slot
  bool bind;          // int: first mention of the symbol
  int64_t low, high;  // int: range where it binds
  Ref object;
  std::unique_ptr<TensorCheck> tensor;
};

struct ClassCheck {
  Ref cls;
  unsigned int version = 0;  // tp_version_tag at the last full check that held; 0: none
  std::vector<std::pair<Ref, Ref>> names;  // (name, found), null where no class defines it
};

struct FinalCheck {
  FinalKind kind;
  std::vector<int> keeps;    // same: two; distinct: all; overlap: value, then the others; python: one
  std::vector<int> symbols;  // relation: slots of the arguments of `object`
  SizeProgram program;       // relation: may be empty
  Ref object;                // relation, python: callable
};

struct Program {
  std::vector<Node> nodes;
  std::vector<Check> checks;
  std::vector<ClassCheck> classes;
  std::vector<FinalCheck> finals;
  std::vector<std::pair<StateCheck, Ref>> states;  // the second: the default device, None or a str
  int depths = 0, keeps = 0, symbols = 0;
};

struct GuardObject {
  PyObject_HEAD
  Program* program;
};

extern PyTypeObject guard_type;

// ---- evaluation -----------------------------------------------------------------------------------------------------

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
      return value == referent(object);
    case CheckKind::kEq:
      return constants_equal(value, object);
    case CheckKind::kLen:
      return container_length(value) == check.number;
    case CheckKind::kKeys:
      return keys_equal(value, object);
    case CheckKind::kHasKey:
    case CheckKind::kNoKey: {
      if (!PyDict_CheckExact(value)) return 0;
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
      if (!PyDict_CheckExact(base)) return nullptr;
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

// ---- building from Python tuples ----------------------------------------------------------------------------------------

int name_index(PyObject* name, const char* const* names, int n, const char* what) {
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return -1;
  for (int i = 0; i < n; i++)
    if (std::strcmp(text, names[i]) == 0) return i;
  PyErr_Format(PyExc_ValueError, "unknown %s '%s'", what, text);
  return -1;
}

// ("bind", slot, low, high) | ("same", slot) | ("store", slot) | int
bool parse_dim(PyObject* entry, DimCheck& dim) {
  dim = {DimCheck::kExact, 0, 0, INT64_MIN, INT64_MAX};
  if (PyLong_Check(entry)) {
    dim.value = PyLong_AsLongLong(entry);
    return !(dim.value == -1 && PyErr_Occurred());
  }
  const char* kind;
  long long low = INT64_MIN, high = INT64_MAX;
  if (!PyArg_ParseTuple(entry, "si|LL", &kind, &dim.slot, &low, &high)) return false;
  dim.kind = kind[0] == 'b' ? DimCheck::kBind : kind[1] == 'a' ? DimCheck::kSame : DimCheck::kStore;
  dim.low = low;
  dim.high = high;
  return true;
}

// (dtype, device, requires_grad, dispatch_keys, is_inference, shape entries, stride entries)
std::unique_ptr<TensorCheck> parse_tensor(PyObject* spec) {
  PyObject *dtype, *device, *keys, *shape, *stride;
  int requires_grad, is_inference;
  if (!PyArg_ParseTuple(spec, "OOpOpO!O!", &dtype, &device, &requires_grad, &keys, &is_inference, &PyTuple_Type, &shape,
                        &PyTuple_Type, &stride))
    return nullptr;
  auto check = std::make_unique<TensorCheck>();
  check->requires_grad = requires_grad;
  check->is_inference = is_inference;
  check->dispatch_keys = PyLong_AsUnsignedLongLongMask(keys);
  if (PyErr_Occurred()) return nullptr;
  if (parse_dtype(dtype, &check->dtype) < 0) return nullptr;
  if (parse_device(device, &check->device_type, &check->device_index) < 0) return nullptr;
  check->all_exact = true;
  for (PyObject* entries : {shape, stride}) {
    auto& numbers = entries == shape ? check->sizes : check->strides;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
      DimCheck dim;
      if (!parse_dim(PyTuple_GET_ITEM(entries, i), dim)) return nullptr;
      check->all_exact = check->all_exact && dim.kind == DimCheck::kExact;
      numbers.push_back(dim.value);
      check->dims.push_back(dim);
    }
  }
  if (check->sizes.size() != check->strides.size()) {
    PyErr_SetString(PyExc_ValueError, "a tensor guard needs as many strides as sizes");
    return nullptr;
  }
  return check;
}

// (kind, argument): the argument as the kinds below read it.
bool parse_check(PyObject* entry, Check& check) {
  PyObject *name, *arg;
  if (!PyArg_ParseTuple(entry, "OO", &name, &arg)) return false;
  const int kind = name_index(name, kCheckNames, std::size(kCheckNames), "guard kind");
  if (kind < 0) return false;
  check = {static_cast<CheckKind>(kind), 0, false, INT64_MIN, INT64_MAX, Ref(arg), nullptr};
  switch (check.kind) {
    case CheckKind::kLen:
      check.number = PyLong_AsSsize_t(arg);
      return !PyErr_Occurred();
    case CheckKind::kKeys:
    case CheckKind::kFunction:
      if (PyTuple_Check(arg) && (check.kind == CheckKind::kKeys || PyTuple_GET_SIZE(arg) == 3)) return true;
      PyErr_SetString(PyExc_TypeError, "this guard takes a tuple");
      return false;
    case CheckKind::kWeakId:
      if (PyWeakref_Check(arg)) return true;
      PyErr_SetString(PyExc_TypeError, "a weak_id guard takes a weak reference");
      return false;
    case CheckKind::kHasKey:
    case CheckKind::kNoKey:
      check.number = PyObject_Hash(arg);
      return check.number != -1;
    case CheckKind::kInt: {  // (slot, bind, low, high)
      int bind;
      long long low, high;
      if (!PyArg_ParseTuple(arg, "npLL", &check.number, &bind, &low, &high)) return false;
      check.bind = bind;
      check.low = low;
      check.high = high;
      return true;
    }
    case CheckKind::kTensor: {  // (class, spec)
      PyObject *cls, *spec;
      if (!PyArg_ParseTuple(arg, "OO!", &cls, &PyTuple_Type, &spec)) return false;
      if (!is_tensor_class(cls)) {
        PyErr_SetString(PyExc_TypeError, "a tensor guard's class must derive from torch.Tensor");
        return false;
      }
      check.object = Ref(cls);
      check.tensor = parse_tensor(spec);
      return check.tensor != nullptr;
    }
    default:
      return true;
  }
}

// (step, argument, depth, end, keep, (checks...))
bool parse_node(PyObject* entry, Program& program) {
  PyObject *name, *arg, *checks;
  Node node{};
  if (!PyArg_ParseTuple(entry, "OOiiiO!", &name, &arg, &node.depth, &node.end, &node.keep, &PyTuple_Type, &checks)) return false;
  const int step = name_index(name, kStepNames, std::size(kStepNames), "access step");
  if (step < 0) return false;
  node.step = static_cast<Step>(step);
  node.arg = Ref(arg);
  const bool indexed = node.step == Step::kIndex || node.step <= Step::kClosureCell;
  if (indexed) {
    node.index = PyLong_AsSsize_t(arg);
    if (node.index == -1 && PyErr_Occurred()) return false;
  }
  if (node.step == Step::kItem && (node.hash = PyObject_Hash(arg)) == -1) return false;
  if (node.step == Step::kSlot && Py_TYPE(arg)->tp_descr_get == nullptr) {
    PyErr_SetString(PyExc_TypeError, "a slot step takes a descriptor");
    return false;
  }
  if (node.step == Step::kAttr && !PyUnicode_Check(arg)) {
    PyErr_SetString(PyExc_TypeError, "an attr step takes a name");
    return false;
  }
  node.checks_begin = static_cast<int>(program.checks.size());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(checks); i++) {
    Check check;
    if (!parse_check(PyTuple_GET_ITEM(checks, i), check)) return false;
    program.checks.push_back(std::move(check));
  }
  node.checks_end = static_cast<int>(program.checks.size());
  program.depths = std::max(program.depths, node.depth + 1);
  program.keeps = std::max(program.keeps, node.keep + 1);
  program.nodes.push_back(std::move(node));
  return true;
}

constexpr const char* kSizeOps[] = {"const", "symbol", "add", "mul", "power", "invert", "floor", "ceiling", "mod", "min",
                                    "max",   "abs",    "eq",  "ne",  "lt",    "le",     "and",   "or",      "not"};

bool parse_ints(PyObject* tuple, std::vector<int>& out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    const long number = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
    if (number == -1 && PyErr_Occurred()) return false;
    out.push_back(static_cast<int>(number));
  }
  return true;
}

// (kind, (keeps or symbol slots), callable or None, ((op, arg), ...))
bool parse_final(PyObject* entry, Program& program) {
  PyObject *name, *slots, *callable, *instructions;
  if (!PyArg_ParseTuple(entry, "OO!OO!", &name, &PyTuple_Type, &slots, &callable, &PyTuple_Type, &instructions)) return false;
  const int kind = name_index(name, kFinalNames, std::size(kFinalNames), "guard kind");
  if (kind < 0) return false;
  FinalCheck check;
  check.kind = static_cast<FinalKind>(kind);
  check.object = Ref(callable);
  if (!parse_ints(slots, check.kind == FinalKind::kRelation ? check.symbols : check.keeps)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(instructions); i++) {
    PyObject* op;
    long long arg;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(instructions, i), "OL", &op, &arg)) return false;
    const int code = name_index(op, kSizeOps, std::size(kSizeOps), "size operation");
    if (code < 0) return false;
    check.program.push_back({static_cast<SizeInstruction::Op>(code), arg});
  }
  program.finals.push_back(std::move(check));
  return true;
}

// (grad, inference, default dtype, ((device, enabled, dtype)...), deterministic, default device, function modes, dispatch modes)
bool parse_state(PyObject* spec, Program& program) {
  PyObject *dtype, *autocast, *default_device;
  int grad, inference, deterministic;
  long long function_modes, dispatch_modes;
  if (!PyArg_ParseTuple(spec, "ppOO!pOLL", &grad, &inference, &dtype, &PyTuple_Type, &autocast, &deterministic,
                        &default_device, &function_modes, &dispatch_modes))
    return false;
  StateCheck check;
  check.grad_enabled = grad;
  check.inference_mode = inference;
  check.deterministic = deterministic;
  check.function_modes = function_modes;
  check.dispatch_modes = dispatch_modes;
  if (parse_dtype(dtype, &check.default_dtype) < 0) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(autocast); i++) {
    const char* name;
    int enabled;
    PyObject* found;
    StateCheck::Autocast entry;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(autocast, i), "spO", &name, &enabled, &found)) return false;
    if (parse_device_type(name, &entry.device_type) < 0 || parse_dtype(found, &entry.dtype) < 0) return false;
    entry.enabled = enabled;
    check.autocast.push_back(entry);
  }
  if (default_device != Py_None && !PyUnicode_Check(default_device)) {
    PyErr_SetString(PyExc_TypeError, "the default device is None or a str");
    return false;
  }
  program.states.emplace_back(std::move(check), Ref(default_device));
  return true;
}

// (class, ((name, found) | (name,), ...))
bool parse_class(PyObject* entry, Program& program) {
  PyObject *cls, *names;
  if (!PyArg_ParseTuple(entry, "O!O!", &PyType_Type, &cls, &PyTuple_Type, &names)) return false;
  ClassCheck check;
  check.cls = Ref(cls);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
    PyObject *name, *found = nullptr;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(names, i), "U|O", &name, &found)) return false;
    PyObject* interned = Py_NewRef(name);
    PyUnicode_InternInPlace(&interned);
    check.names.emplace_back(Ref(interned), Ref(found));
    Py_DECREF(interned);
  }
  program.classes.push_back(std::move(check));
  return true;
}

bool valid(const Program& program) {
  for (const FinalCheck& check : program.finals) {
    for (const int keep : check.keeps)
      if (keep < 0 || keep >= program.keeps) return false;
    for (const int slot : check.symbols)
      if (slot < 0 || slot >= program.symbols) return false;
    for (const auto& instruction : check.program)
      if (instruction.op == SizeInstruction::kSymbol && (instruction.arg < 0 || instruction.arg >= program.symbols)) return false;
  }
  int depth = -1;
  for (const Node& node : program.nodes) {
    if (node.depth < 0 || node.depth > depth + 1) return false;
    if ((node.depth == 0) != (node.step <= Step::kConst)) return false;
    depth = node.depth;
  }
  for (const Check& check : program.checks) {
    if (check.kind == CheckKind::kInt && (check.number < 0 || check.number >= program.symbols)) return false;
    if (check.tensor == nullptr) continue;
    for (const auto& dim : check.tensor->dims)
      if (dim.slot < 0 || (dim.kind != DimCheck::kExact && dim.slot >= program.symbols)) return false;
  }
  return true;
}

bool parse_all(PyObject* tuple, Program& program, bool (*parse)(PyObject*, Program&)) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
    if (!parse(PyTuple_GET_ITEM(tuple, i), program)) return false;
  return true;
}

PyObject* guard_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"nodes", "finals", "states", "classes", "symbols", nullptr};
  PyObject *nodes, *finals, *states, *classes;
  int symbols;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!i", const_cast<char**>(names), &PyTuple_Type, &nodes, &PyTuple_Type,
                                   &finals, &PyTuple_Type, &states, &PyTuple_Type, &classes, &symbols))
    return nullptr;
  auto program = std::make_unique<Program>();
  program->symbols = symbols;
  if (!parse_all(nodes, *program, parse_node) || !parse_all(finals, *program, parse_final)) return nullptr;
  if (!parse_all(classes, *program, parse_class) || !parse_all(states, *program, parse_state)) return nullptr;
  if (!valid(*program)) {
    PyErr_SetString(PyExc_ValueError, "the guard program mentions a slot that nothing fills");
    return nullptr;
  }
  auto* self = reinterpret_cast<GuardObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->program = program.release();
  return reinterpret_cast<PyObject*>(self);
}

// ---- the type -----------------------------------------------------------------------------------------------------------

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

PyTypeObject* import_type(const char* module_name, const char* name) {
  PyObject* module = PyImport_ImportModule(module_name);
  if (module == nullptr) return nullptr;
  PyObject* type = PyObject_GetAttrString(module, name);
  Py_DECREF(module);
  if (type != nullptr && !PyType_Check(type)) {
    PyErr_Format(PyExc_TypeError, "%s.%s is no type", module_name, name);
    Py_CLEAR(type);
  }
  return reinterpret_cast<PyTypeObject*>(type);
}

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
    {"storages_overlap", py_storages_overlap, METH_VARARGS, "storages_overlap(a, b) -> bool: whether two tensors' storages share bytes"},
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
  if ((deque_type = import_type("collections", "deque")) == nullptr) return -1;
  if ((torch_size_type = import_type("torch", "Size")) == nullptr) return -1;
  if ((torch_device_type = import_type("torch", "device")) == nullptr) return -1;
  PyObject* device_module = PyImport_ImportModule("torch.utils._device");
  if (device_module == nullptr) return -1;
  torch_device_globals = Py_XNewRef(PyModule_GetDict(device_module));
  Py_DECREF(device_module);
  if ((current_device_name = PyUnicode_InternFromString("CURRENT_DEVICE")) == nullptr) return -1;
  if (PyModule_AddFunctions(module, module_functions) < 0) return -1;
  if (PyType_Ready(&guard_type) < 0) return -1;
  return PyModule_AddObjectRef(module, "Guard", reinterpret_cast<PyObject*>(&guard_type));
}
