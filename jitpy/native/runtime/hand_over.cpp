// `run_to_end`: calls a resume function, and those that it hands over to. The arguments are the function's own: it may
// let them go while it runs, as a frame does with its variables. `jitpy/frontend/codegen/hand_over.py` has the same in
// pure Python, where arguments live until the function returns.
#include "module.h"

#include <algorithm>
#include <vector>

namespace {

PyObject* tail_call_type;  // what a resume function returns instead of calling the next one
PyObject* left_half_way;   // generator -> whether closing it runs code of its own

constexpr Py_ssize_t kShort = 64;  // containers with more items are not looked into
constexpr size_t kMost = 256;      // nor are more objects below one argument

int add(PyObject* item, void* found) {
  auto* objects = static_cast<std::vector<PyObject*>*>(found);
  if (objects->size() < kMost && !PyType_Check(item)) objects->push_back(item);
  return 0;
}

// Whether an object takes others with it when it goes: an iterator, a short container, or an instance that only one
// other holds.
bool takes_others(PyObject* item) {
  if (PyTuple_CheckExact(item) || PyList_CheckExact(item)) return Py_SIZE(item) <= kShort;
  if (PyDict_CheckExact(item)) return PyDict_GET_SIZE(item) <= kShort && Py_REFCNT(item) == 1;
  return PyIter_Check(item) || (PyType_HasFeature(Py_TYPE(item), Py_TPFLAGS_HEAPTYPE) && Py_REFCNT(item) == 1);
}

// Whether an object is the exit of an open block `with`: it takes the block's generator to its end.
bool is_exit(PyObject* object) {
  PyObject* function = PyMethod_Check(object) ? PyMethod_GET_FUNCTION(object) : nullptr;
  return function != nullptr && PyFunction_Check(function) &&
         PyUnicode_CompareWithASCIIString(reinterpret_cast<PyFunctionObject*>(function)->func_name, "__exit__") == 0;
}

// Whether code of the program's runs when an object goes that nobody else holds: its `__del__`, the rest of a generator,
// or those of what goes with it. -1 with an exception set.
int end_is_noticed(PyObject* argument) {
  std::vector<PyObject*> objects{argument};  // borrowed: no code runs meanwhile
  std::vector<PyObject*> generators;
  for (size_t i = 0; i < objects.size(); i++) {
    PyObject* item = objects[i];
    PyTypeObject* type = Py_TYPE(item);
    if (PyGen_CheckExact(item)) {
      if (!is_exit(argument)) generators.push_back(item);
    } else if (type->tp_finalize != nullptr && (i == 0 || Py_REFCNT(item) == 1)) {
      PyObject* function = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__del__");
      const bool own = function != nullptr && PyFunction_Check(function);
      Py_XDECREF(function);
      PyErr_Clear();
      if (own) return 1;
    }
    if (type->tp_traverse != nullptr && (i == 0 || takes_others(item))) type->tp_traverse(item, add, &objects);
  }
  int answer = 0;
  for (PyObject*& generator : generators) Py_INCREF(generator);
  for (PyObject*& generator : generators) {
    PyObject* runs = answer != 0 ? nullptr : PyObject_CallOneArg(left_half_way, generator);
    if (answer == 0) answer = runs == nullptr ? -1 : runs == Py_True;
    Py_XDECREF(runs);
    Py_DECREF(generator);
  }
  return answer;
}

// The references of one call, the innermost of its thread.
class Arguments {
 public:
  // Takes over the items of a tuple that nobody else sees, and copies those of any other.
  explicit Arguments(PyObject* tuple) : outer_(innermost) {
    const bool own = Py_REFCNT(tuple) == 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
      items_.push_back(Py_NewRef(PyTuple_GET_ITEM(tuple, i)));
      if (own) {
        PyObject* former = PyTuple_GET_ITEM(tuple, i);
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(Py_None));
        Py_DECREF(former);
      }
    }
    innermost = this;
  }
  ~Arguments() {
    innermost = outer_;
    for (PyObject* item : items_) Py_DECREF(item);
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  // The called frame holds its own references by now.
  static void let_go() {
    if (innermost == nullptr) return;
    for (PyObject*& item : innermost->items_) {
      PyObject* former = item;
      item = Py_NewRef(Py_None);
      Py_DECREF(former);
    }
  }

  PyObject* const* items() const { return items_.data(); }
  Py_ssize_t size() const { return static_cast<Py_ssize_t>(items_.size()); }

  // Whether nobody else holds an object.
  bool holds_alone(PyObject* item) const {
    return Py_REFCNT(item) == std::count(items_.begin(), items_.end(), item);
  }

 private:
  static thread_local Arguments* innermost;
  std::vector<PyObject*> items_;
  Arguments* outer_;
};

thread_local Arguments* Arguments::innermost = nullptr;

// Items: the exception that is to come or None, the function, its arguments.
PyObject* call(const Arguments& given) {
  PyObject* const* arguments = given.items() + 2;
  const Py_ssize_t n = given.size() - 2;
  PyObject* function = Py_NewRef(given.items()[1]);
  PyObject* plainly = PyObject_GetAttrString(function, "plainly");  // makes the same as plain Python
  PyErr_Clear();
  int noticed = 0;
  for (Py_ssize_t i = 0; i < n && noticed == 0 && plainly != nullptr; i++)
    if (Py_TYPE(arguments[i])->tp_traverse != nullptr && given.holds_alone(arguments[i]))
      noticed = end_is_noticed(arguments[i]);
  if (noticed != 0) Py_SETREF(function, noticed < 0 ? nullptr : PyObject_CallNoArgs(plainly));
  Py_XDECREF(plainly);
  if (function == nullptr) return nullptr;
  PyObject* result = PyObject_Vectorcall(function, arguments, n, nullptr);
  Py_DECREF(function);
  return result;
}

PyObject* run_to_end(PyObject*, PyObject* given) {
  if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) < 2) {
    PyErr_SetString(PyExc_TypeError, "run_to_end: the argument must be a tuple (exception, function, ...)");
    return nullptr;
  }
  PyObject* expected = Py_NewRef(Py_None);
  PyObject* result = nullptr;
  for (PyObject* next = given; next != nullptr; next = result) {
    if (PyTuple_GET_ITEM(next, 0) != Py_None) Py_SETREF(expected, Py_NewRef(PyTuple_GET_ITEM(next, 0)));
    Arguments arguments(next);
    if (next != given) Py_DECREF(next);
    result = call(arguments);
    if (result == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(result)) != tail_call_type) break;
  }
  if (result != nullptr && expected != Py_None) {
    PyErr_Format(PyExc_AssertionError, "jitpy: the program should have raised %R; it returned %R", expected, result);
    Py_CLEAR(result);
  }
  Py_DECREF(expected);
  return result;
}

PyObject* let_go(PyObject*, PyObject*) {
  Arguments::let_go();
  Py_RETURN_NONE;
}

PyObject* set_hand_over(PyObject*, PyObject* args) {
  PyObject *type, *function;
  if (!PyArg_ParseTuple(args, "OO:set_hand_over", &type, &function)) return nullptr;
  Py_XSETREF(tail_call_type, Py_NewRef(type));
  Py_XSETREF(left_half_way, Py_NewRef(function));
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"run_to_end", run_to_end, METH_O,
     "run_to_end((expected, function, *arguments)): call a resume function, and those that it hands over to"},
    {"let_go", let_go, METH_NOARGS, "Drop the references to the arguments of the innermost `run_to_end`"},
    {"set_hand_over", set_hand_over, METH_VARARGS,
     "set_hand_over(TailCall, left_half_way): what `run_to_end` needs to know"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int init_hand_over(PyObject* module) { return PyModule_AddFunctions(module, functions); }
