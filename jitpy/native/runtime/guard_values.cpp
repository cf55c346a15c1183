#include "guard_values.h"

#include <cstring>

namespace {

PyTypeObject* deque_type;         // collections.deque
PyTypeObject* torch_size_type;    // torch.Size
PyTypeObject* torch_device_type;  // torch.device

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

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof(double)) == 0; }

}  // namespace

int init_guard_values() {
  if ((deque_type = import_type("collections", "deque")) == nullptr) return -1;
  if ((torch_size_type = import_type("torch", "Size")) == nullptr) return -1;
  return (torch_device_type = import_type("torch", "device")) == nullptr ? -1 : 0;
}

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

Py_ssize_t container_length(PyObject* object) {
  if (PyList_Check(object) || PyTuple_Check(object)) return Py_SIZE(object);
  if (PyDict_Check(object)) return PyDict_GET_SIZE(object);
  if (PyAnySet_Check(object)) return PySet_GET_SIZE(object);
  if (PyObject_TypeCheck(object, deque_type)) return deque_type->tp_as_sequence->sq_length(object);
  return -1;
}

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
    PyObject* items = PySequence_Tuple(a);
    PyObject* others = items == nullptr ? nullptr : PySequence_Tuple(b);
    if (others == nullptr) PyErr_Clear();
    bool equal = others != nullptr;
    for (Py_ssize_t i = 0; equal && i < PyTuple_GET_SIZE(items); i++) {
      bool found = false;
      for (Py_ssize_t j = 0; !found && j < PyTuple_GET_SIZE(others); j++)
        found = constants_equal(PyTuple_GET_ITEM(items, i), PyTuple_GET_ITEM(others, j));
      equal = found;
    }
    Py_XDECREF(items);
    Py_XDECREF(others);
    return equal;
  }
  if (type == &PySlice_Type) {
    auto *x = reinterpret_cast<PySliceObject*>(a), *y = reinterpret_cast<PySliceObject*>(b);
    return constants_equal(x->start, y->start) && constants_equal(x->stop, y->stop) &&
           constants_equal(x->step, y->step);
  }
  return false;
}

bool keys_equal(PyObject* dict, PyObject* expected) {
  if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return false;
  PyObject* key;
  Py_ssize_t position = 0, i = 0;
  if (PyObject_TypeCheck(dict, &PyODict_Type) && PyDict_GET_SIZE(dict) > 1) {  // has an order of its own
    PyObject* keys = PyODict_Type.tp_iter(dict);
    bool equal = keys != nullptr;
    while (equal && (key = PyIter_Next(keys)) != nullptr) {
      equal = i < PyTuple_GET_SIZE(expected) && constants_equal(key, PyTuple_GET_ITEM(expected, i++));
      Py_DECREF(key);
    }
    Py_XDECREF(keys);
    PyErr_Clear();
    return equal && i == PyTuple_GET_SIZE(expected);
  }
  while (PyDict_Next(dict, &position, &key, nullptr))
    if (!constants_equal(key, PyTuple_GET_ITEM(expected, i++))) return false;
  return true;
}
