// The only part of guards that includes torch's headers (and so the only one that is slow to build).
#include "tensor_facts.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

int parse_dtype(PyObject* dtype, int16_t* out) {
  if (!THPDtype_Check(dtype)) {
    PyErr_Format(PyExc_TypeError, "expected a torch.dtype, not %.200s", Py_TYPE(dtype)->tp_name);
    return -1;
  }
  *out = static_cast<int16_t>(reinterpret_cast<THPDtype*>(dtype)->scalar_type);
  return 0;
}

int parse_device(PyObject* device, int16_t* type, int16_t* index) {
  if (!THPDevice_Check(device)) {
    PyErr_Format(PyExc_TypeError, "expected a torch.device, not %.200s", Py_TYPE(device)->tp_name);
    return -1;
  }
  const at::Device& found = reinterpret_cast<THPDevice*>(device)->device;
  *type = static_cast<int16_t>(found.type());
  *index = static_cast<int16_t>(found.index());
  return 0;
}

int parse_device_type(const char* name, int16_t* type) {
  try {
    *type = static_cast<int16_t>(c10::Device(name).type());
    return 0;
  } catch (const std::exception&) {
    PyErr_Format(PyExc_ValueError, "unknown device type '%s'", name);
    return -1;
  }
}

int is_tensor_class(PyObject* cls) {
  if (!PyType_Check(cls)) return 0;
  auto* tensor_class = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  return tensor_class != nullptr && PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(cls), tensor_class->tp_base);
}

static inline bool dim_passes(const DimCheck& dim, int64_t found, int64_t* symbols) {
  switch (dim.kind) {
    case DimCheck::kExact:
      return found == dim.value;
    case DimCheck::kBind:
      symbols[dim.slot] = found;
      return found >= dim.low && found <= dim.high;
    case DimCheck::kSame:
      return found == symbols[dim.slot];
    case DimCheck::kStore:
      symbols[dim.slot] = found;
      return true;
  }
  return false;
}

static int layout_passes(const at::Tensor& tensor, const TensorCheck& check, int64_t* symbols) {
  const size_t ndim = check.sizes.size();
  const auto sizes = tensor.sizes();
  if (sizes.size() != ndim) return 0;
  const auto strides = tensor.strides();
  if (check.all_exact) {
    for (size_t i = 0; i < ndim; i++)
      if (sizes[i] != check.sizes[i] || strides[i] != check.strides[i]) return 0;
    return 1;
  }
  for (size_t i = 0; i < ndim; i++)
    if (!dim_passes(check.dims[i], sizes[i], symbols)) return 0;
  for (size_t i = 0; i < ndim; i++)
    if (!dim_passes(check.dims[ndim + i], strides[i], symbols)) return 0;
  return 1;
}

int tensor_passes(PyObject* object, const TensorCheck& check, int64_t* symbols) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (!tensor.defined()) return 0;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set().raw_repr() != check.dispatch_keys) return 0;
  if (static_cast<int16_t>(c10::typeMetaToScalarType(impl->dtype())) != check.dtype) return 0;
  // Layouts and subclasses with sizes or devices of their own may run Python or throw.
  try {
    const at::Device device = impl->device();
    if (static_cast<int16_t>(device.type()) != check.device_type) return 0;
    if (static_cast<int16_t>(device.index()) != check.device_index) return 0;
    if (tensor.requires_grad() != check.requires_grad) return 0;
    if (impl->is_inference() != check.is_inference) return 0;
    return layout_passes(tensor, check, symbols);
  } catch (python_error& error) {
    error.restore();
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear();
    return 0;
  } catch (const std::exception&) {
    return 0;
  }
}

NoTorchFunction::NoTorchFunction() : before_(static_cast<int>(at::impl::PythonTorchFunctionTLS::get_disabled_state())) {
  at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
}

NoTorchFunction::~NoTorchFunction() {
  at::impl::PythonTorchFunctionTLS::set_disabled_state(static_cast<at::impl::TorchFunctionDisabledState>(before_));
}

bool state_passes(const StateCheck& check) {
  if (at::GradMode::is_enabled() != check.grad_enabled) return false;
  if (c10::InferenceMode::is_enabled() != check.inference_mode) return false;
  if (at::impl::PythonTorchFunctionTLS::stack_len() != check.function_modes) return false;
  if (c10::impl::TorchDispatchModeTLS::stack_len() != check.dispatch_modes) return false;
  if (at::globalContext().deterministicAlgorithms() != check.deterministic) return false;
  if (static_cast<int16_t>(c10::get_default_dtype_as_scalartype()) != check.default_dtype) return false;
  for (const auto& autocast : check.autocast) {
    const auto device = static_cast<at::DeviceType>(autocast.device_type);
    if (at::autocast::is_autocast_enabled(device) != autocast.enabled) return false;
    if (static_cast<int16_t>(at::autocast::get_autocast_dtype(device)) != autocast.dtype) return false;
  }
  return true;
}

bool storages_overlap(PyObject* first, PyObject* second) {
  const at::Tensor& a = THPVariable_Unpack(first);
  const at::Tensor& b = THPVariable_Unpack(second);
  if (!a.has_storage() || !b.has_storage()) return true;
  const c10::StorageImpl* x = a.storage().unsafeGetStorageImpl();
  const c10::StorageImpl* y = b.storage().unsafeGetStorageImpl();
  if (x == y) return true;
  if (x->device() != y->device()) return false;
  try {
    const auto* x_data = static_cast<const char*>(x->data());
    const auto* y_data = static_cast<const char*>(y->data());
    return x_data != nullptr && y_data != nullptr && x_data < y_data + y->nbytes() && y_data < x_data + x->nbytes();
  } catch (const std::exception&) {
    return true;
  }
}
