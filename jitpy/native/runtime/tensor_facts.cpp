// The only part of guards that includes torch's headers.
#include "tensor_facts.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>

#include "torch_api.h"

using jitpy::tensor_of;

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

// Whether the tensor requires grad as wanted (a view does if its base does, perhaps since today), and autograd takes it
// for what its keys say. Eager raises where a tensor made in inference mode, which counts no versions, got the keys of
// another one (`.data = ...`), and where a view that autograd restricts is read behind a write to what it shows.
static bool autograd_passes(const c10::TensorImpl* impl, bool requires_grad, bool is_inference) {
  if (impl->version_counter().enabled() == is_inference) return false;
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl->autograd_meta());
  if (meta == nullptr) return !requires_grad;
  if (!meta->is_view_) return (meta->requires_grad_ || meta->grad_fn_) == requires_grad;
  if (meta->requires_grad() != requires_grad) return false;
  const auto* view = static_cast<const torch::autograd::DifferentiableViewMeta*>(meta);
  return !requires_grad || !view->has_bw_view() ||
         view->get_creation_meta() == torch::autograd::CreationMeta::DEFAULT ||
         view->get_attr_version() == impl->version_counter().current_version() ||
         (!view->grad_fn_ && !view->get_backward_view().base_.requires_grad());  // a leaf
}

int tensor_passes(PyObject* object, const TensorCheck& check, int64_t* symbols) {
  const at::Tensor& tensor = tensor_of(object);
  if (!tensor.defined()) return 0;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set().raw_repr() != check.dispatch_keys) return 0;
  if (static_cast<int16_t>(c10::typeMetaToScalarType(impl->dtype())) != check.dtype) return 0;
  // Layouts and subclasses with sizes or devices of their own may run Python or throw.
  try {
    const at::Device device = impl->device();
    if (static_cast<int16_t>(device.type()) != check.device_type) return 0;
    if (static_cast<int16_t>(device.index()) != check.device_index) return 0;
    if (impl->is_inference() != check.is_inference) return 0;
    if (!autograd_passes(impl, check.requires_grad, check.is_inference)) return 0;
    return layout_passes(tensor, check, symbols);
  } catch (const std::exception&) {
    if (!jitpy::restore_python_error()) return 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear();
    return 0;
  }
}

static bool is_plain(const c10::TensorImpl* impl) {
  return !impl->is_python_dispatch() && impl->layout() == c10::kStrided && !impl->has_symbolic_sizes_strides() &&
         !impl->key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Functionalize,
                                                       c10::DispatchKey::FuncTorchGradWrapper}));
}

bool restamp_tensor(PyObject* object, TensorStamp* stamp) {
  const at::Tensor& tensor = tensor_of(object);
  if (!tensor.defined() || !is_plain(tensor.unsafeGetTensorImpl())) return false;
  stamp->object = object;
  stamp->impl = tensor.unsafeGetTensorImpl();
  stamp->autograd = tensor.unsafeGetTensorImpl()->autograd_meta();
  return true;
}

bool make_tensor_stamp(PyObject* object, const TensorCheck& check, int numbers, TensorStamp* out) {
  if (!check.all_exact || check.sizes.size() > INT16_MAX) return false;
  *out = {object, Py_TYPE(object), nullptr, nullptr, check.dispatch_keys, numbers, static_cast<int16_t>(check.sizes.size()), check.dtype,
          check.device_type, check.device_index, check.requires_grad, check.is_inference};
  return restamp_tensor(object, out);
}

// Get the parts of a tensor that are compared below into the cache. Addresses of freed tensors do no harm.
static void prefetch(const TensorStamp& stamp) {
  __builtin_prefetch(stamp.object);
  const auto* impl = static_cast<const char*>(stamp.impl);
  for (size_t line = 0; line < sizeof(c10::TensorImpl); line += 64) __builtin_prefetch(impl + line);
  __builtin_prefetch(stamp.autograd);
}

static bool same_numbers(const int64_t* a, const int64_t* b, int n) {
  for (int i = 0; i < n; i++)
    if (a[i] != b[i]) return false;
  return true;
}

static bool is_as_stamped(const TensorStamp& stamp, const int64_t* numbers) {
  if (Py_TYPE(stamp.object) != stamp.type) return false;
  c10::TensorImpl* impl = tensor_of(stamp.object).unsafeGetTensorImpl();
  if (impl->key_set().raw_repr() != stamp.dispatch_keys) return false;
  if (static_cast<int16_t>(c10::typeMetaToScalarType(impl->dtype())) != stamp.dtype) return false;
  const at::Device device = impl->device();
  if (static_cast<int16_t>(device.type()) != stamp.device_type) return false;
  if (static_cast<int16_t>(device.index()) != stamp.device_index) return false;
  if (!autograd_passes(impl, stamp.requires_grad, stamp.is_inference)) return false;
  const auto sizes = impl->sizes();
  if (static_cast<int16_t>(sizes.size()) != stamp.ndim) return false;
  return same_numbers(sizes.data(), numbers, stamp.ndim) &&
         same_numbers(impl->strides().data(), numbers + stamp.ndim, stamp.ndim);
}

size_t differing_tensor(const TensorStamp* stamps, const int64_t* numbers, size_t begin, size_t end) {
  constexpr size_t kAhead = 4;
  for (size_t i = begin; i < end; i++) {
    prefetch(stamps[std::min(i + kAhead, end - 1)]);
    if (!is_as_stamped(stamps[i], numbers + stamps[i].numbers)) return i;
  }
  return end;
}

NoTorchFunction::NoTorchFunction() : before_(static_cast<int>(at::impl::PythonTorchFunctionTLS::get_disabled_state())) {
  at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
}

NoTorchFunction::~NoTorchFunction() {
  at::impl::PythonTorchFunctionTLS::set_disabled_state(static_cast<at::impl::TorchFunctionDisabledState>(before_));
}

// Whether `torch.autograd.forward_ad` has a level open. What Python knows of it: it makes the tensors with tangents.
static bool may_have_tangents() {
  static PyObject* const name = PyUnicode_InternFromString("_current_level");
  static PyObject* const module = PyImport_ImportModule("torch.autograd.forward_ad");
  PyObject* const level = module == nullptr ? nullptr : PyDict_GetItemWithError(PyModule_GetDict(module), name);
  if (level == nullptr) PyErr_Clear();
  return level != nullptr && PyLong_CheckExact(level) && PyLong_AsLong(level) >= 0;
}

bool state_passes(const StateCheck& check) {
  if (at::GradMode::is_enabled() != check.grad_enabled) return false;
  if (c10::InferenceMode::is_enabled() != check.inference_mode) return false;
  if (at::impl::PythonTorchFunctionTLS::stack_len() != check.function_modes) return false;
  if (c10::impl::TorchDispatchModeTLS::stack_len() != check.dispatch_modes) return false;
  const auto asked = at::impl::PythonTorchFunctionTLS::get_disabled_state();
  if ((asked == at::impl::TorchFunctionDisabledState::ENABLED) != check.asks_classes) return false;
  if (at::tracer::impl::is_dispatch_enabled()) return false;  // torch.jit.trace has to see each operation
  if (at::globalContext().deterministicAlgorithms() != check.deterministic) return false;
  if (may_have_tangents() != check.forward_ad) return false;
  if (static_cast<int16_t>(c10::get_default_dtype_as_scalartype()) != check.default_dtype) return false;
  for (const auto& autocast : check.autocast) {
    const auto device = static_cast<at::DeviceType>(autocast.device_type);
    const auto [enabled, dtype] = jitpy::autocast_of(device);
    if (enabled != autocast.enabled || static_cast<int16_t>(dtype) != autocast.dtype) return false;
  }
  return true;
}

bool attention_passes(const AttentionCheck& check) {
  if (check.asked == 0) return true;
  const at::Context& torch = at::globalContext();
  const unsigned allowed = torch.userEnabledFlashSDP() | torch.userEnabledMemEfficientSDP() << 1 |
                           torch.userEnabledMathSDP() << 2 | torch.userEnabledCuDNNSDP() << 3 |
                           torch.userEnabledOverrideableSDP() << 4;
  return (allowed & check.asked) == check.allowed;
}

bool storages_overlap(PyObject* first, PyObject* second) {
  const at::Tensor& a = tensor_of(first);
  const at::Tensor& b = tensor_of(second);
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
