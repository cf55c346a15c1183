// The file that includes torch's largest headers: see torch_api.h.
#include "torch_api.h"

#include <cstddef>

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/python_arg_parser.h>

#include "operator_values.h"

namespace jitpy {

static_assert(offsetof(TensorObject, tensor) == offsetof(THPVariable, cdata), "a Python tensor holds its tensor elsewhere");
static_assert(std::is_same_v<decltype(TensorObject::tensor), decltype(THPVariable::cdata)>);

bool is_unusual_tensor(PyObject* object) { return THPVariable_Check(object); }

void throw_python_error() { throw python_error(); }

void throw_type_error(std::string message) { throw torch::TypeError(std::move(message)); }

bool restore_python_error() {
  try {
    throw;
  } catch (python_error& error) {
    error.restore();
    return true;
  } catch (...) {
    return false;
  }
}

void persist_python_error() {
  try {
    throw;
  } catch (python_error& error) {
    error.persist();
  } catch (...) {
  }
}

void set_python_exception() { torch::translate_exception_to_python(std::current_exception()); }

void with_python_warnings(c10::function_ref<void()> body) {
  torch::PyWarningHandler handler;
  try {
    body();
  } catch (...) {
    handler.set_in_exception();
    throw;
  }
}

PyObject* object_behind(const c10::SafePyObject& handle) { return handle.ptr(getPyInterpreter()); }

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::TensorOptions& options) {
  return at::empty_strided(sizes, strides, options);
}

void run_recorded(const std::string& name, c10::function_ref<void()> kernel) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (C10_LIKELY(!callbacks.has_value())) return kernel();
  at::RecordFunction record(std::move(*callbacks));
  if (record.isActive()) record.before(name);
  kernel();
}

std::pair<bool, at::ScalarType> autocast_of(c10::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

void register_node_type(PyTypeObject& type, const char* name, std::initializer_list<const std::type_info*> nodes) {
  torch::autograd::_initFunctionPyTypeObject(type, name, nullptr, nullptr);
  for (const std::type_info* node : nodes) torch::autograd::registerCppFunction(*node, &type);
}

c10::IValue to_ivalue(PyObject* object, const c10::TypePtr& type, std::optional<int32_t> length) {
  return torch::jit::toIValue(object, type, length);
}

PyObject* to_python(c10::IValue value) { return torch::jit::toPyObject(std::move(value)).release().ptr(); }

void with_numbers_as_tensors(bool enabled, c10::function_ref<void()> body) {
  torch::jit::ToIValueAllowNumbersAsTensors allowed(enabled);
  body();
}

bool takes_numbers_as_tensors(const std::string& operator_name) {
  return torch::should_allow_numbers_as_tensors(operator_name);
}

}  // namespace jitpy
