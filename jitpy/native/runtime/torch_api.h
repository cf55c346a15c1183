// The interface to torch's Python layer, operators and profiler, without their headers: reading those takes
// longer than compiling all else. torch_api.cpp is the one file that includes them, and it checks what is declared here.
#pragma once

#include <Python.h>

#include <initializer_list>
#include <string>
#include <typeinfo>

#include <ATen/core/TensorBody.h>
#include <c10/util/FunctionRef.h>

namespace c10 {
struct SafePyObject;
}

extern PyObject *THPVariableClass, *ParameterClass;
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);

namespace jitpy {

// How a Python tensor begins: torch's THPVariable.
struct TensorObject {
  PyObject_HEAD
  at::Tensor tensor;
};

// Whether an object that is no plain tensor is one. Throws python_error.
bool is_unusual_tensor(PyObject* object);

// Whether the object is a tensor, also of a subclass. Throws python_error.
inline bool is_tensor(PyObject* object) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return C10_LIKELY(type == THPVariableClass || type == ParameterClass) || is_unusual_tensor(object);
}

// The tensor in a Python tensor.
inline const at::Tensor& tensor_of(PyObject* object) { return reinterpret_cast<TensorObject*>(object)->tensor; }

// A new reference to the tensor's Python object.
inline PyObject* to_python(const at::Tensor& tensor) { return THPVariable_Wrap(tensor); }

// Throws torch's python_error: a Python exception is set.
[[noreturn]] void throw_python_error();
[[noreturn]] void throw_type_error(std::string message);

// In a `catch` block: whether a python_error was caught. Its Python exception is set again.
bool restore_python_error();
// In a `catch` block: keeps the Python exception of a python_error, for a thread that may lose its Python state.
void persist_python_error();
// In a `catch` block: sets the Python exception that stands for the C++ one.
void set_python_exception();

// Runs `body`. Warnings that it raises in C++ become Python warnings, as torch's HANDLE_TH_ERRORS makes them.
void with_python_warnings(c10::function_ref<void()> body);

// The Python object (borrowed) behind one of torch's handles.
PyObject* object_behind(const c10::SafePyObject& handle);

// at::empty_strided.
at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::TensorOptions& options);

// Runs a kernel. A profiler that is on sees it under this name.
void run_recorded(const std::string& name, c10::function_ref<void()> kernel);

// Whether autocast is on for a type of device, and the dtype it casts to.
std::pair<bool, at::ScalarType> autocast_of(c10::DeviceType device);

// Makes `type` the Python type of nodes of autograd's graph that have one of these C++ types.
void register_node_type(PyTypeObject& type, const char* name, std::initializer_list<const std::type_info*> nodes);

}  // namespace jitpy
