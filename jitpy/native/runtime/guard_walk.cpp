#include "guard_walk.h"

#include "guard_values.h"
#include "tensor_facts.h"

// 0 after clearing an `Exception`; -1 where something else was raised, which stays set.
int clear_exception() {
  if (!PyErr_Occurred()) return 0;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}

namespace {

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
    PyObject* wanted = PyTuple_GET_ITEM(expected, i);
    return (found == nullptr ? Py_None : found) == wanted || wanted == Py_Ellipsis;
  };
  if (!is(function->func_code, 0) || !is(function->func_defaults, 1) || !is(function->func_kwdefaults, 2)) return false;
  static PyObject* const mark = PyUnicode_InternFromString("_dynamo_marked_constant");
  PyObject* marked = function->func_dict == nullptr ? nullptr : PyDict_GetItemWithError(function->func_dict, mark);
  return (marked == Py_True) == (PyTuple_GET_ITEM(expected, 3) == Py_True);
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
    case CheckKind::kWeakType:
      return reinterpret_cast<PyObject*>(Py_TYPE(value)) == referent(object);
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

// Item `i` of a list or tuple, counted from the end where it is negative: a new reference, or null.
PyObject* sequence_item(PyObject* base, int64_t i) {
  const bool is_list = PyList_Check(base);
  if (!is_list && !PyTuple_Check(base)) return nullptr;
  if (i < 0) i += Py_SIZE(base);
  if (i < 0 || i >= Py_SIZE(base)) return nullptr;
  return Py_NewRef(is_list ? PyList_GET_ITEM(base, i) : PyTuple_GET_ITEM(base, i));
}

PyObject* chosen_item(const Choice& choice, const Kept& kept, const int64_t* symbols) {
  int64_t place;
  PyObject* container = kept.get(choice.keep);
  if (container == nullptr || run_size_program(choice.place, symbols, &place) == SizeVerdict::kUnknown) return nullptr;
  return sequence_item(container, place);
}

}  // namespace

PyObject* read_root(const Node& node, const Frame& frame) {
  switch (node.step) {
    case Step::kLocal:
      return node.index < frame.n ? frame.params[node.index] : nullptr;
    case Step::kClosure:
    case Step::kClosureCell: {
      if (frame.closure == nullptr || !PyTuple_Check(frame.closure)) return nullptr;
      if (node.index >= PyTuple_GET_SIZE(frame.closure)) return nullptr;
      PyObject* cell = PyTuple_GET_ITEM(frame.closure, node.index);
      if (node.step == Step::kClosureCell) return cell;
      return PyCell_Check(cell) ? PyCell_GET(cell) : nullptr;
    }
    case Step::kGlobals:
      return frame.globals;
    case Step::kConst:
      return node.arg.get();
    case Step::kWeakConst:
      return referent(node.arg.get());
    default:
      return nullptr;
  }
}

PyObject* read_node(const Node& node, PyObject* base, const Frame& frame) {
  switch (node.step) {
    case Step::kLocal:
    case Step::kClosure:
    case Step::kClosureCell:
    case Step::kGlobals:
    case Step::kConst:
    case Step::kWeakConst:
      return Py_XNewRef(read_root(node, frame));
    case Step::kAttr:
      return PyObject_GetAttr(base, node.arg.get());
    case Step::kDict:
      return instance_dict(base);
    case Step::kItem:
      if (!PyDict_Check(base)) return nullptr;
      return Py_XNewRef(_PyDict_GetItem_KnownHash(base, node.arg.get(), node.hash));
    case Step::kIndex:
      return sequence_item(base, node.index);
    case Step::kType:
      return Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(base)));
    case Step::kSlot: {
      PyObject* descriptor = node.arg.get();
      return Py_TYPE(descriptor)->tp_descr_get(descriptor, base, reinterpret_cast<PyObject*>(Py_TYPE(base)));
    }
    case Step::kCell:
      return PyCell_Check(base) ? Py_XNewRef(PyCell_GET(base)) : nullptr;
    case Step::kIndexBy:
      return nullptr;  // see walk_nodes
  }
  return nullptr;
}

int checks_pass(const Program& program, const Node& node, PyObject* value, int64_t* symbols) {
  for (int i = node.checks_begin; i < node.checks_end; i++) {
    const int passes = check_passes(value, program.checks[i], symbols);
    if (passes != 1) return passes;
  }
  return 1;
}

Kept::~Kept() { drop_all(values_.data(), values_.size()); }

void Kept::put(int slot, PyObject* borrowed) {
  if (values_.empty()) values_.resize(n_);
  Py_XSETREF(values_[slot], Py_NewRef(borrowed));
}

void drop_all(PyObject* const* objects, size_t n) {
  if (n == 0) return;
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  for (size_t i = 0; i < n; i++) Py_XDECREF(objects[i]);
  PyErr_Restore(type, error, traceback);
}

int walk_nodes(const Program& program, int begin, int end, const Frame& frame, PyObject** values, Kept& kept,
               int64_t* symbols) {
  for (int i = begin; i < end; i++) {
    const Node& node = program.nodes[i];
    program.walked++;
    PyObject* value = node.step == Step::kIndexBy
                          ? chosen_item(program.choices[node.index], kept, symbols)
                          : read_node(node, node.depth > 0 ? values[node.depth - 1] : nullptr, frame);
    if (value == nullptr) return clear_exception();
    Py_XSETREF(values[node.depth], value);
    if (node.keep >= 0) kept.put(node.keep, value);
    const int passes = checks_pass(program, node, value, symbols);
    if (passes != 1) return passes;
  }
  return 1;
}
