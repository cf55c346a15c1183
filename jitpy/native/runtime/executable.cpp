// `Executable`: a Plan (jitpy/runtime/plan.py) as a native callable. `executable(*inputs) -> tuple`.
#include <algorithm>
#include <functional>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

#include "executable.h"
#include "module.h"
#include "pool.h"
#include "steps.h"

namespace jitpy {
namespace {

using Kernel = void (*)(void* const* pointers, const int64_t* sizes);

// Kernels that touch at least this many elements let other Python threads run.
constexpr int64_t kReleaseGilElements = 32768;

// The bytes from a view's first element to past its last; 0 for an empty one. Throws where they do not fit an int64_t.
size_t extent_bytes(c10::IntArrayRef shape, c10::IntArrayRef stride, size_t itemsize) {
  int64_t last = 0;
  bool overflow = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    TORCH_CHECK(shape[i] >= 0, "Trying to create tensor with negative dimension ", shape[i], ": ", shape);
    if (shape[i] == 0) return 0;
    int64_t step;
    overflow |= __builtin_mul_overflow(shape[i] - 1, stride[i], &step) || __builtin_add_overflow(last, step, &last);
  }
  int64_t bytes;
  overflow |= __builtin_mul_overflow(last + 1, static_cast<int64_t>(itemsize), &bytes);
  TORCH_CHECK(!overflow && last >= 0, "sizes ", shape, " and strides ", stride, " need more memory than there can be");
  return bytes;
}

bool is_contiguous(c10::IntArrayRef shape, c10::IntArrayRef stride) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (stride[i] != expected) return false;
    expected *= std::max<int64_t>(shape[i], 1);
  }
  return true;
}

void set_shape(c10::TensorImpl* tensor, c10::IntArrayRef shape, c10::IntArrayRef stride, bool contiguous) {
  if (contiguous) {
    tensor->set_sizes_contiguous(shape);
  } else {
    tensor->set_sizes_and_strides(shape, stride);
  }
}

class AllocStep final : public Step {
 public:
  // `current`: the device is the plan's, which is the current one while the plan runs.
  AllocStep(int32_t slot, Sizes shape, Sizes stride, at::ScalarType dtype, at::Device device, bool current)
      : slot_(slot), shape_(std::move(shape)), stride_(std::move(stride)), dtype_(dtype), device_(device),
        current_(current),
        type_(c10::scalarTypeToTypeMeta(dtype)), static_(is_static(shape_) && is_static(stride_)) {
    if (static_) {
      fixed_shape_ = resolve(shape_, nullptr);
      fixed_stride_ = resolve(stride_, nullptr);
      fixed_bytes_ = extent_bytes(fixed_shape_, fixed_stride_, type_.itemsize());
      fixed_contiguous_ = is_contiguous(fixed_shape_, fixed_stride_);
    }
  }

  void run(Frame& frame) const override {
    if (static_) {
      frame.slots[slot_].set(make(fixed_shape_, fixed_stride_, fixed_bytes_, fixed_contiguous_));
    } else {
      Ints shape = resolve(shape_, frame.sizes), stride = resolve(stride_, frame.sizes);
      size_t bytes = extent_bytes(shape, stride, type_.itemsize());
      frame.slots[slot_].set(make(shape, stride, bytes, is_contiguous(shape, stride)));
    }
  }

  bool is_call() const override { return false; }

 private:
  at::Tensor make(c10::IntArrayRef shape, c10::IntArrayRef stride, size_t bytes, bool contiguous) const {
    if (!device_.is_cpu()) {
      ReleaseGil released;  // a device's allocator has a lock of its own, under which it may ask for the GIL
      return device_tensor(shape, stride, bytes, contiguous);
    }
    c10::Allocator* allocator = pool_allocator();
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes), allocator->allocate(bytes), allocator, true);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type_);
    set_shape(tensor.unsafeGetTensorImpl(), shape, stride, contiguous);
    return tensor;
  }

  // On a GPU what the operator does, without the dispatcher.
  at::Tensor device_tensor(c10::IntArrayRef shape, c10::IntArrayRef stride, size_t bytes, bool contiguous) const {
    if (!device_.is_cuda() || !current_) return at::empty_strided(shape, stride, at::TensorOptions(device_).dtype(dtype_));
    c10::Allocator* allocator = c10::GetAllocator(device_.type());
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes), allocator->allocate(bytes), allocator, true);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), type_);
    set_shape(tensor.unsafeGetTensorImpl(), shape, stride, contiguous);
    return tensor;
  }

  int32_t slot_;
  Sizes shape_, stride_;
  at::ScalarType dtype_;
  at::Device device_;
  bool current_;
  caffe2::TypeMeta type_;
  bool static_;
  Ints fixed_shape_, fixed_stride_;
  size_t fixed_bytes_ = 0;
  bool fixed_contiguous_ = false;
};

class KernelStep final : public Step {
 public:
  struct Pointer {
    int32_t slot;     // -1: an address in the workspace
    Size offset;      // bytes from its start
    bool input;       // read from the caller's tensor
    bool written;     // an input that the kernel writes
  };

  KernelStep(Kernel kernel, std::vector<Pointer> pointers, std::string name)
      : kernel_(kernel), pointers_(std::move(pointers)), name_(std::move(name)) {}

  void run(Frame& frame) const override {
    c10::SmallVector<void*, 16> addresses(pointers_.size());
    int64_t elements = 0;
    for (size_t i = 0; i < pointers_.size(); ++i) {
      const Pointer& pointer = pointers_[i];
      if (pointer.slot < 0) {
        addresses[i] = frame.workspace + pointer.offset.get(frame.sizes);
        continue;
      }
      Slot& slot = frame.slots[pointer.slot];
      if (slot.tensor.defined()) {
        elements += slot.tensor.unsafeGetTensorImpl()->numel();
        addresses[i] = address(slot.tensor, pointer);
      } else {
        TORCH_CHECK(slot.object != nullptr, "kernel ", name_, " reads an empty slot");
        addresses[i] = slot.number_address();
      }
    }
    if (elements < kReleaseGilElements) {
      launch(addresses.data(), frame.sizes);
    } else {
      {
        ReleaseGil released;
        launch(addresses.data(), frame.sizes);
      }
      if (PyErr_CheckSignals() < 0) throw python_error();
    }
    for (const Pointer& pointer : pointers_)
      if (pointer.written) bump_version(frame.slots[pointer.slot].tensor);
  }

  bool is_call() const override { return false; }

 private:
  void* address(const at::Tensor& tensor, const Pointer& pointer) const {
    static constexpr c10::DispatchKeySet not_plain(
        {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
         c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
         c10::DispatchKey::FuncTorchGradWrapper});
    TORCH_CHECK(!tensor.key_set().has_any(not_plain), "kernel ", name_, " reads slot ", pointer.slot,
                ", whose memory does not hold its values (a lazy conjugate or negative, or a wrapper)");
    // reading must not materialise a lazily copied input
    if (pointer.input && !pointer.written) return const_cast<void*>(tensor.const_data_ptr());
    return tensor.mutable_data_ptr();
  }

  void launch(void* const* pointers, const int64_t* sizes) const {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
    if (C10_UNLIKELY(callbacks.has_value())) {  // a profiler is on
      at::RecordFunction record(std::move(*callbacks));
      if (record.isActive()) record.before(name_);
      kernel_(pointers, sizes);
    } else {
      kernel_(pointers, sizes);
    }
  }

  static void bump_version(const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }

  Kernel kernel_;
  std::vector<Pointer> pointers_;
  std::string name_;
};

class ViewStep final : public Step {
 public:
  ViewStep(int32_t slot, int32_t base, Sizes shape, Sizes stride, Size offset, bool relative, bool plain)
      : slot_(slot), base_(base), shape_(std::move(shape)), stride_(std::move(stride)), offset_(offset),
        relative_(relative), plain_(plain) {}

  void run(Frame& frame) const override {
    const at::Tensor& base = frame.slots[base_].tensor;
    TORCH_CHECK(base.defined(), "a view is taken of slot ", base_, ", which holds no tensor");
    Ints shape = resolve(shape_, frame.sizes), stride = resolve(stride_, frame.sizes);
    int64_t offset = offset_.get(frame.sizes) + (relative_ ? base.storage_offset() : 0);
    if (plain_ && base.layout() == at::kStrided) {
      frame.slots[slot_].set(alias(base, shape, stride, offset));
    } else {
      frame.slots[slot_].set(base.as_strided(shape, stride, offset));
    }
  }

 private:
  // A view that autograd knows nothing of: for tensors that nothing outside the program can tell apart.
  static at::Tensor alias(const at::Tensor& base, c10::IntArrayRef shape, c10::IntArrayRef stride, int64_t offset) {
    size_t extent = extent_bytes(shape, stride, base.dtype().itemsize());
    size_t available = base.storage().nbytes();
    TORCH_CHECK(offset >= 0 && offset * base.dtype().itemsize() + extent <= available, "setStorage: sizes ", shape,
                ", strides ", stride, ", storage offset ", offset, " are out of bounds for storage of size ", available);
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), base.dtype());
    view.unsafeGetTensorImpl()->set_storage_offset(offset);
    view.unsafeGetTensorImpl()->set_sizes_and_strides(shape, stride);
    return view;
  }

  int32_t slot_, base_;
  Sizes shape_, stride_;
  Size offset_;
  bool relative_, plain_;
};

class CopyStep final : public Step {
 public:
  CopyStep(int32_t target, int32_t source) : target_(target), source_(source) {}

  void run(Frame& frame) const override {
    const at::Tensor& target = frame.slots[target_].tensor;
    const at::Tensor& source = frame.slots[source_].tensor;
    TORCH_CHECK(target.defined() && source.defined(), "copy_ needs tensors in slots ", target_, " and ", source_);
    std::optional<c10::impl::ForceDispatchKeyGuard> keys;
    std::optional<c10::AutoGradMode> no_grad;
    if (!frame.autograd) {
      // nothing needs a gradient here, so that a leaf changed under no_grad is changed under no_grad
      keys.emplace(frame.caller_keys);
      no_grad.emplace(false);
    }
    ReleaseGil released;
    target.copy_(source);
  }

 private:
  int32_t target_, source_;
};

// Sizes that depend on data: read, used, and checked.
class BindStep final : public Step {
 public:
  struct Symbol {
    int32_t number;
    SymbolPlace place;
    int64_t low, high;
  };
  struct Check {
    int32_t entry;
    PyObject* text;  // borrowed: see PlanReader::keep
  };

  BindStep(std::vector<Symbol> symbols, SizeFill fill, std::vector<Check> checks, int32_t n_symbols, PyObject* error)
      : symbols_(std::move(symbols)), fill_(std::move(fill)), checks_(std::move(checks)), n_symbols_(n_symbols),
        error_(error) {}

  void run(Frame& frame) const override {
    for (const Symbol& symbol : symbols_) {
      int64_t value;
      if (!symbol.place.read(frame, &value) || value < symbol.low || value > symbol.high) {
        PyErr_SetString(error_, "a number is out of range for a size");
        throw python_error();
      }
      frame.symbols[symbol.number] = value;
    }
    fill_.run(frame, n_symbols_);
    for (const Check& check : checks_) {
      if (frame.sizes[check.entry] != 0) continue;
      PyErr_SetObject(error_, check.text);
      throw python_error();
    }
  }

 private:
  std::vector<Symbol> symbols_;
  SizeFill fill_;
  std::vector<Check> checks_;
  int32_t n_symbols_;
  PyObject* error_;  // SizeCheckFailed, borrowed: see PlanReader::keep
};

class FreeStep final : public Step {
 public:
  explicit FreeStep(std::vector<int32_t> slots) : slots_(std::move(slots)) {}

  void run(Frame& frame) const override {
    for (int32_t slot : slots_) frame.slots[slot].clear();
  }

  bool is_call() const override { return false; }

 private:
  std::vector<int32_t> slots_;
};

bool flag(PyObject* object, const char* name) {
  int truth = PyObject_IsTrue(attribute(object, name).get());
  if (truth < 0) throw python_error();
  return truth != 0;
}

int64_t integer(PyObject* object, const char* name) {
  int64_t value = PyLong_AsLongLong(attribute(object, name).get());
  if (value == -1 && PyErr_Occurred()) throw python_error();
  return value;
}

}  // namespace

bool SymbolPlace::read(const Frame& frame, int64_t* value) const {
  const Slot& from = frame.slots[slot];
  if (dim < 0) {
    if (from.object == nullptr || !PyLong_Check(from.object))
      throw torch::TypeError("input " + std::to_string(slot) + " must be an int");
    int overflow;
    *value = PyLong_AsLongLongAndOverflow(from.object, &overflow);
    return overflow == 0;
  }
  if (!from.tensor.defined() || from.tensor.dim() <= dim)
    throw torch::TypeError("input " + std::to_string(slot) + " must be a tensor with more than " +
                           std::to_string(dim) + " dims");
  *value = stride ? from.tensor.stride(dim) : from.tensor.size(dim);
  return true;
}

void SizeFill::run(const Frame& frame, int32_t n_symbols) const {
  if (function != nullptr) {
    function(frame.symbols, frame.sizes);
    return;
  }
  if (python == nullptr) return;
  Ref symbols = checked(PyTuple_New(n_symbols));
  for (int32_t i = 0; i < n_symbols; ++i)
    PyTuple_SET_ITEM(symbols.get(), i, checked(PyLong_FromLongLong(frame.symbols[i])).release());
  Ref found = checked(PyObject_CallOneArg(python, symbols.get()));
  Ref values = checked(PySequence_Fast(found.get(), "plan: a size function returns a list"));
  TORCH_CHECK(PySequence_Fast_GET_SIZE(values.get()) == static_cast<Py_ssize_t>(entries.size()),
              "plan: a size function returned another number of sizes");
  for (size_t i = 0; i < entries.size(); ++i) {
    int64_t value = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(values.get(), i));
    if (value == -1 && PyErr_Occurred()) throw python_error();
    frame.sizes[entries[i]] = value;
  }
}

SymbolPlace PlanReader::symbol_place(PyObject* binding) const {
  SymbolPlace place{slot_attribute(binding, "slot"), -1, flag(binding, "stride")};
  if (attribute(binding, "dim").get() != Py_None) place.dim = static_cast<int32_t>(integer(binding, "dim"));
  return place;
}

SizeFill PlanReader::size_fill(PyObject* owner, const char* function, const char* entries) const {
  SizeFill fill;
  fill.function = reinterpret_cast<decltype(fill.function)>(integer(owner, function));
  Ref python = attribute(owner, (std::string(function) + "_py").c_str());
  if (fill.function == nullptr && python.get() != Py_None) fill.python = keep(python.get());
  Ref listed = attribute(owner, entries);
  if (listed.get() == Py_None) {
    for (int32_t i = 0; i < n_sizes; ++i) fill.entries.push_back(i);
  } else {
    Ref items = checked(PySequence_Fast(listed.get(), "plan: size entries must be a sequence"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
      long entry = PyLong_AsLong(PySequence_Fast_GET_ITEM(items.get(), i));
      if (entry == -1 && PyErr_Occurred()) throw python_error();
      TORCH_CHECK_VALUE(0 <= entry && entry < n_sizes, "plan: there is no size ", entry);
      fill.entries.push_back(static_cast<int32_t>(entry));
    }
  }
  return fill;
}

PlanReader::PlanReader(PyObject* plan) {
  module_ = checked(PyImport_ImportModule("jitpy.runtime.plan"));
  kept_ = checked(PyList_New(0));
  auto type = [this](const char* name) {
    return reinterpret_cast<PyTypeObject*>(keep(attribute(module_.get(), name).get()));
  };
  alloc_ = type("AllocStep");
  kernel_ = type("KernelStep");
  launch_ = type("LaunchStep");
  call_ = type("CallStep");
  view_ = type("ViewStep");
  copy_ = type("CopyStep");
  bind_ = type("BindStep");
  free_ = type("FreeStep");
  slot_ref_ = type("SlotRef");
  size_ref_ = type("SizeRef");
  workspace_ = type("Workspace");
  n_inputs = static_cast<int32_t>(integer(plan, "n_inputs"));
  n_slots = static_cast<int32_t>(integer(plan, "n_slots"));
  n_sizes = static_cast<int32_t>(integer(plan, "n_sizes"));
  n_symbols = std::max<int32_t>(static_cast<int32_t>(integer(plan, "n_symbols")),
                                static_cast<int32_t>(PyObject_Size(attribute(plan, "symbols").get())));
  autograd = flag(plan, "autograd");
  Ref where = attribute(plan, "device");
  if (!THPDevice_Check(where.get())) throw torch::TypeError("plan: its device is no torch.device");
  device = reinterpret_cast<THPDevice*>(where.get())->device;
  TORCH_CHECK_VALUE(!device.is_cuda() || device.has_index(), "plan: a CUDA device needs its index");
  TORCH_CHECK_VALUE(0 <= n_inputs && n_inputs <= n_slots && n_sizes >= 0, "plan: bad slot or size count");
  find_plain_views(plan);
}

PyObject* PlanReader::keep(PyObject* value) const {
  if (PyList_Append(kept_.get(), value) < 0) throw python_error();
  return value;
}

int32_t PlanReader::slot(PyObject* value) const {
  long number = PyLong_AsLong(value);
  if (number == -1 && PyErr_Occurred()) throw python_error();
  TORCH_CHECK_VALUE(0 <= number && number < n_slots, "plan: there is no slot ", number);
  return static_cast<int32_t>(number);
}

int32_t PlanReader::slot_attribute(PyObject* step, const char* name) const {
  return slot(attribute(step, name).get());
}

std::vector<int32_t> PlanReader::slots(PyObject* sequence) const {
  Ref items = checked(PySequence_Fast(sequence, "plan: slots must be a sequence"));
  std::vector<int32_t> result;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), i);
    result.push_back(item == Py_None ? -1 : slot(item));
  }
  return result;
}

Size PlanReader::size(PyObject* value) const {
  Size result;
  if (is_size_ref(value)) {
    int64_t entry = integer(value, "index");
    TORCH_CHECK_VALUE(0 <= entry && entry < n_sizes, "plan: there is no size ", entry);
    result.entry = static_cast<int32_t>(entry);
  } else {
    result.value = PyLong_AsLongLong(value);
    if (result.value == -1 && PyErr_Occurred()) throw python_error();
  }
  return result;
}

Sizes PlanReader::sizes(PyObject* sequence) const {
  Ref items = checked(PySequence_Fast(sequence, "plan: sizes must be a sequence"));
  Sizes result;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i)
    result.push_back(size(PySequence_Fast_GET_ITEM(items.get(), i)));
  return result;
}

bool PlanReader::has_refs(PyObject* value) const {
  if (is_slot_ref(value) || is_size_ref(value)) return true;
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      if (has_refs(PySequence_Fast_GET_ITEM(value, i))) return true;
  } else if (PyDict_CheckExact(value)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item))
      if (has_refs(item)) return true;
  } else if (PySlice_Check(value)) {
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    return has_refs(slice->start) || has_refs(slice->stop) || has_refs(slice->step);
  }
  return false;
}

void PlanReader::visit_slots(PyObject* value, const std::function<void(int32_t)>& visit) const {
  if (is_slot_ref(value)) {
    visit(slot_attribute(value, "slot"));
  } else if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      visit_slots(PySequence_Fast_GET_ITEM(value, i), visit);
  } else if (PyDict_CheckExact(value)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) visit_slots(item, visit);
  } else if (PySlice_Check(value)) {
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) visit_slots(part, visit);
  }
}

std::vector<int32_t> PlanReader::slots_read(PyObject* step) const {
  std::vector<int32_t> found;
  auto add = [&](int32_t slot) { found.push_back(slot); };
  if (Py_TYPE(step) == call_) {
    visit_slots(attribute(step, "args").get(), add);
    visit_slots(attribute(step, "kwargs").get(), add);
  } else if (Py_TYPE(step) == kernel_) {
    visit_slots(attribute(step, "pointers").get(), add);
  } else if (Py_TYPE(step) == launch_) {
    visit_slots(attribute(step, "arguments").get(), add);
  } else if (Py_TYPE(step) == view_) {
    add(slot_attribute(step, "base"));
  } else if (Py_TYPE(step) == copy_) {
    add(slot_attribute(step, "target"));
    add(slot_attribute(step, "source"));
  } else if (Py_TYPE(step) != alloc_ && Py_TYPE(step) != free_) {
    for (int32_t i = 0; i < n_slots; ++i) add(i);  // of what may read anything nothing is known
  }
  return found;
}

// A view needs the bookkeeping of autograd and version counters only where somebody can see it as a tensor object, and
// something else that shares its memory as well.
void PlanReader::find_plain_views(PyObject* plan) {
  visible_.assign(n_slots, false);
  for (int32_t i = 0; i < n_inputs; ++i) visible_[i] = true;
  for (int32_t i : slots(attribute(plan, "outputs").get())) {
    TORCH_CHECK_VALUE(i >= 0, "plan: an output is None");
    visible_[i] = true;
  }
  auto mark = [&](PyObject* value) { visit_slots(value, [&](int32_t number) { visible_[number] = true; }); };
  // `home[slot]`: the slot whose memory a view shows, where an AllocStep made it; else -1
  std::vector<int32_t> home(n_slots, -1), views;
  Ref steps = checked(PySequence_Fast(attribute(plan, "steps").get(), "plan: steps must be a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(steps.get()); ++i) {
    PyObject* step = PySequence_Fast_GET_ITEM(steps.get(), i);
    if (Py_TYPE(step) == call_) {
      mark(attribute(step, "args").get());
      mark(attribute(step, "kwargs").get());
      for (int32_t number : slots(attribute(step, "slots").get()))
        if (number >= 0) home[number] = -1;
    } else if (Py_TYPE(step) == copy_) {
      visible_[slot_attribute(step, "target")] = true;
    } else if (Py_TYPE(step) == alloc_) {
      int32_t number = slot_attribute(step, "slot");
      home[number] = number;
    } else if (Py_TYPE(step) == view_) {
      int32_t number = slot_attribute(step, "slot");
      home[number] = home[slot_attribute(step, "base")];
      views.push_back(number);
    }
  }
  plain_view.assign(n_slots, false);
  std::vector<int> seen(n_slots, 0);
  for (int32_t number : views)
    if (visible_[number] && home[number] >= 0) ++seen[home[number]];
  for (int32_t number : views) {
    int32_t owner = home[number];
    bool only_one = owner >= 0 && !visible_[owner] && seen[owner] == 1;
    plain_view[number] = !autograd && (!visible_[number] || only_one);
  }
}

std::unique_ptr<Step> PlanReader::bind_step(PyObject* value) const {
  auto bound = [](PyObject* owner, const char* name, int64_t open) {
    return attribute(owner, name).get() == Py_None ? open : integer(owner, name);
  };
  std::vector<BindStep::Symbol> symbols;
  Ref items = checked(PySequence_Fast(attribute(value, "symbols").get(), "BindStep: symbols must be a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), i);
    int32_t number = static_cast<int32_t>(integer(item, "number"));
    TORCH_CHECK_VALUE(0 <= number && number < n_symbols, "plan: there is no symbol ", number);
    symbols.push_back({number, symbol_place(attribute(item, "place").get()), bound(item, "low", INT64_MIN),
                       bound(item, "high", INT64_MAX)});
  }
  std::vector<BindStep::Check> checks;
  Ref found = checked(PySequence_Fast(attribute(value, "checks").get(), "BindStep: checks must be a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(found.get()); ++i) {
    PyObject *entry, *text;
    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(found.get(), i), "OO", &entry, &text)) throw python_error();
    long number = PyLong_AsLong(entry);
    if (number == -1 && PyErr_Occurred()) throw python_error();
    TORCH_CHECK_VALUE(0 <= number && number < n_sizes, "plan: there is no size ", number);
    checks.push_back({static_cast<int32_t>(number), keep(text)});
  }
  return std::make_unique<BindStep>(std::move(symbols), size_fill(value, "function", "entries"), std::move(checks),
                                    n_symbols, keep(attribute(module_.get(), "SizeCheckFailed").get()));
}

std::unique_ptr<Step> PlanReader::step(PyObject* value) const {
  PyTypeObject* type = Py_TYPE(value);
  if (type == alloc_) {
    Ref dtype = attribute(value, "dtype"), device = attribute(value, "device");
    if (!THPDtype_Check(dtype.get()) || !THPDevice_Check(device.get()))
      throw torch::TypeError("AllocStep: dtype must be a torch.dtype and device a torch.device");
    Sizes shape = sizes(attribute(value, "shape").get()), stride = sizes(attribute(value, "stride").get());
    TORCH_CHECK_VALUE(shape.size() == stride.size(), "AllocStep: shape and stride differ in length");
    at::Device on = reinterpret_cast<THPDevice*>(device.get())->device;
    return std::make_unique<AllocStep>(
        slot_attribute(value, "slot"), std::move(shape), std::move(stride),
        reinterpret_cast<THPDtype*>(dtype.get())->scalar_type, on, on == this->device);
  }
  if (type == kernel_) {
    Ref pointers = checked(PySequence_Fast(attribute(value, "pointers").get(), "KernelStep: pointers"));
    std::vector<int32_t> writes = slots(attribute(value, "writes").get());
    std::vector<KernelStep::Pointer> found;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(pointers.get()); ++i) {
      PyObject* pointer = PySequence_Fast_GET_ITEM(pointers.get(), i);
      if (is_workspace(pointer)) {
        found.push_back({-1, size(attribute(pointer, "offset").get()), false, false});
      } else if (is_slot_ref(pointer)) {
        int32_t number = slot_attribute(pointer, "slot");
        bool written = std::find(writes.begin(), writes.end(), number) != writes.end();
        found.push_back({number, Size(), number < n_inputs, written});
      } else {
        throw torch::TypeError("KernelStep: pointers must be SlotRef or Workspace");
      }
    }
    int64_t address = integer(value, "address");
    TORCH_CHECK_VALUE(address != 0, "KernelStep: the kernel's address is 0");
    Ref name = checked(PyObject_Str(attribute(value, "name").get()));
    const char* text = PyUnicode_AsUTF8(name.get());
    if (text == nullptr) throw python_error();
    return std::make_unique<KernelStep>(reinterpret_cast<Kernel>(address), std::move(found), text);
  }
  if (type == launch_) return make_launch(value, *this);
  if (type == call_) {
    auto call = make_operator_call(value, *this);
    return call ? std::move(call) : make_python_call(value, *this);
  }
  if (type == view_) {
    int32_t number = slot_attribute(value, "slot"), base = slot_attribute(value, "base");
    Sizes shape = sizes(attribute(value, "shape").get()), stride = sizes(attribute(value, "stride").get());
    TORCH_CHECK_VALUE(shape.size() == stride.size(), "ViewStep: shape and stride differ in length");
    return std::make_unique<ViewStep>(number, base, std::move(shape), std::move(stride),
                                      size(attribute(value, "offset").get()), flag(value, "relative"),
                                      plain_view[number]);
  }
  if (type == copy_)
    return std::make_unique<CopyStep>(slot_attribute(value, "target"), slot_attribute(value, "source"));
  if (type == bind_) return bind_step(value);
  if (type == free_) return std::make_unique<FreeStep>(slots(attribute(value, "slots").get()));
  throw torch::TypeError(std::string("plan: not a step: ") + type->tp_name);
}

namespace {

struct Program {
  bool autograd = false;
  bool has_calls = false;  // eager operators or Python: warnings, and autograd to be switched off
  int32_t n_inputs = 0, n_slots = 0, n_sizes = 0, n_symbols = 0;
  std::vector<SymbolPlace> symbols;
  SizeFill size_fill;
  Size workspace;
  at::Device device = at::kCPU;
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<std::vector<int32_t>> last_reads;  // per step: the inputs that no later step reads
  std::vector<int32_t> outputs;

  // `kept` receives the Python objects that the program points to.
  Program(PyObject* plan, Ref* kept) {
    PlanReader reader(plan);
    autograd = reader.autograd;
    n_inputs = reader.n_inputs;
    n_slots = reader.n_slots;
    n_sizes = reader.n_sizes;
    outputs = reader.slots(attribute(plan, "outputs").get());
    workspace = reader.size(attribute(plan, "workspace").get());
    device = reader.device;
    n_symbols = reader.n_symbols;
    size_fill = reader.size_fill(plan, "size_function", "size_entries");
    Ref bindings = checked(PySequence_Fast(attribute(plan, "symbols").get(), "plan: symbols must be a sequence"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(bindings.get()); ++i) {
      PyObject* binding = PySequence_Fast_GET_ITEM(bindings.get(), i);
      SymbolPlace symbol = reader.symbol_place(binding);
      TORCH_CHECK_VALUE(symbol.slot < n_inputs, "plan: a symbol is read from slot ", symbol.slot, ", no input");
      symbols.push_back(symbol);
    }
    Ref items = checked(PySequence_Fast(attribute(plan, "steps").get(), "plan: steps must be a sequence"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
      steps.push_back(reader.step(PySequence_Fast_GET_ITEM(items.get(), i)));
      has_calls |= steps.back()->is_call();
    }
    find_last_reads(reader, items.get());
    *kept = reader.take_kept();
  }

  // `load(frame)` fills the input slots, `take(frame)` reads the outputs. `owned`: the inputs are the program's own, to
  // be dropped when nothing reads them any more.
  template <class Load, class Take>
  void run(const Load& load, const Take& take, bool owned = false) const {
    c10::SmallVector<Slot, 16> slots;
    slots.resize(n_slots);
    c10::SmallVector<int64_t, 32> sizes(n_sizes);
    c10::SmallVector<int64_t, 16> values(n_symbols);
    Frame frame;
    frame.slots = slots.data();
    frame.sizes = sizes.data();
    frame.symbols = values.data();
    frame.autograd = autograd;
    std::optional<c10::DeviceGuard> on_device;
    if (device.is_cuda()) {
      on_device.emplace(device);
      frame.device = device.index();
    }
    load(frame);
    if (n_sizes != 0) fill_sizes(frame);
    size_t bytes = workspace_bytes(frame);
    Scratch scratch(device.is_cpu() ? bytes : 0);
    frame.workspace = scratch.data();
    c10::DataPtr device_scratch;
    if (!device.is_cpu() && bytes != 0) {
      device_scratch = device_memory(bytes);
      frame.workspace = static_cast<char*>(device_scratch.get());
    }
    // the graph holds autocast's casts as nodes already
    std::optional<c10::impl::ExcludeDispatchKeyGuard> recorded;
    if (has_calls) recorded.emplace(c10::autocast_dispatch_keyset);
    if (has_calls && !autograd) {
      // nothing needs a gradient here: operators skip autograd, but not the bookkeeping of views and versions
      at::AutoDispatchBelowAutograd below;
      run_steps(frame, owned);
    } else {
      run_steps(frame, owned);
    }
    take(frame);
  }

  void load_inputs(Frame& frame, PyObject* const* args) const {
    for (int32_t i = 0; i < n_inputs; ++i) {
      PyObject* value = args[i];
      if (THPVariable_Check(value)) {
        frame.slots[i].tensor = THPVariable_Unpack(value);
      } else if (PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value)) {
        Py_INCREF(value);
        frame.slots[i].object = value;
      } else {
        throw torch::TypeError("input " + std::to_string(i) + " must be a tensor or a number, not " +
                               Py_TYPE(value)->tp_name);
      }
    }
  }

  void fill_sizes(Frame& frame) const {
    for (size_t i = 0; i < symbols.size(); ++i)
      if (!symbols[i].read(frame, &frame.symbols[i])) {
        PyErr_SetString(PyExc_OverflowError, "Python int too large to convert to C long");
        throw python_error();
      }
    size_fill.run(frame, n_symbols);
  }

  size_t workspace_bytes(const Frame& frame) const {
    int64_t bytes = workspace.get(frame.sizes);
    TORCH_CHECK(bytes >= 0, "plan: the workspace has ", bytes, " bytes");
    return bytes;
  }

  c10::DataPtr device_memory(size_t bytes) const {
    ReleaseGil released;
    return c10::GetAllocator(device.type())->allocate(bytes);
  }

  void run_steps(Frame& frame, bool owned) const {
    for (size_t i = 0; i < steps.size(); ++i) {
      steps[i]->run(frame);
      if (!owned) continue;
      for (int32_t slot : last_reads[i]) frame.slots[slot].clear();
    }
  }

  void find_last_reads(const PlanReader& reader, PyObject* items) {
    std::vector<bool> read_later(n_slots, false);
    for (int32_t slot : outputs) read_later[slot] = true;
    last_reads.resize(steps.size());
    for (size_t i = steps.size(); i-- > 0;)
      for (int32_t slot : reader.slots_read(PySequence_Fast_GET_ITEM(items, i))) {
        if (slot < n_inputs && !read_later[slot]) last_reads[i].push_back(slot);
        read_later[slot] = true;
      }
  }

  Ref take_outputs(Frame& frame) const {
    Ref result = checked(PyTuple_New(outputs.size()));
    for (size_t i = 0; i < outputs.size(); ++i)
      PyTuple_SET_ITEM(result.get(), i, checked(frame.slots[outputs[i]].to_python()).release());
    return result;
  }
};

struct Executable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* weak_references;
  PyObject* plan;
  PyObject* kept;
  Program* program;
};

// As HANDLE_TH_ERRORS does it: warnings of operators become Python warnings.
template <class Load, class Take>
void run_program(const Program& program, const Load& load, const Take& take, bool owned = false) {
  if (!program.has_calls) {
    program.run(load, take, owned);
    return;
  }
  torch::PyWarningHandler handler;
  try {
    program.run(load, take, owned);
  } catch (...) {
    handler.set_in_exception();
    throw;
  }
}

PyObject* executable_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Program* program = reinterpret_cast<Executable*>(self)->program;
  Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count != program->n_inputs || (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0)) {
    PyErr_Format(PyExc_TypeError, "this executable takes %d positional arguments, got %zd%s", program->n_inputs, count,
                 kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0 ? " and keywords" : "");
    return nullptr;
  }
  try {
    Ref result;
    run_program(*program, [&](Frame& frame) { program->load_inputs(frame, args); },
                [&](Frame& frame) { result = program->take_outputs(frame); });
    return result.release();
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

PyObject* executable_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* plan;
  static const char* names[] = {"plan", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Executable", const_cast<char**>(names), &plan)) return nullptr;
  try {
    Ref kept;
    auto program = std::make_unique<Program>(plan, &kept);
    auto* self = reinterpret_cast<Executable*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->vectorcall = executable_call;
    Py_INCREF(plan);
    self->plan = plan;
    self->kept = kept.release();
    self->program = program.release();
    return reinterpret_cast<PyObject*>(self);
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

int executable_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Executable*>(object);
  Py_VISIT(self->plan);
  Py_VISIT(self->kept);
  return 0;
}

// Nothing is cleared here: the program needs its objects while anything may call it. Cycles through a plan are broken
// by the lists and functions in them.
void executable_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Executable*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  delete self->program;
  Py_CLEAR(self->kept);
  Py_CLEAR(self->plan);
  Py_TYPE(object)->tp_free(object);
}

PyObject* executable_steps_text(PyObject* self, PyObject*) {
  Ref module(PyImport_ImportModule("jitpy.runtime.executable"));
  if (!module) return nullptr;
  return PyObject_CallMethod(module.get(), "plan_text", "O", reinterpret_cast<Executable*>(self)->plan);
}

PyObject* executable_plan(PyObject* self, void*) {
  PyObject* plan = reinterpret_cast<Executable*>(self)->plan;
  Py_INCREF(plan);
  return plan;
}

PyMethodDef executable_methods[] = {
    {"steps_text", executable_steps_text, METH_NOARGS, "The program as readable text, one step per line."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef executable_getset[] = {
    {"plan", executable_plan, nullptr, "The Plan this was made of.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject executable_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* python_set_pool_limit(PyObject*, PyObject* value) {
  long long bytes = PyLong_AsLongLong(value);
  if (bytes == -1 && PyErr_Occurred()) return nullptr;
  if (bytes < 0) {
    PyErr_SetString(PyExc_ValueError, "set_pool_limit: bytes must not be negative");
    return nullptr;
  }
  pool_set_limit(bytes);
  Py_RETURN_NONE;
}

PyObject* python_pool_stats(PyObject*, PyObject*) {
  PoolStats stats = pool_stats();
  return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:K,s:K}", "limit", stats.limit, "cached_bytes", stats.cached_bytes,
                       "cached_blocks", stats.cached_blocks, "used_bytes", stats.used_bytes, "used_blocks",
                       stats.used_blocks, "hits", (unsigned long long)stats.hits, "misses",
                       (unsigned long long)stats.misses);
}

PyObject* python_empty_pool(PyObject*, PyObject*) {
  pool_empty();
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {
    {"set_pool_limit", python_set_pool_limit, METH_O, "Keep at most this many bytes of unused memory."},
    {"pool_stats", python_pool_stats, METH_NOARGS, "What the memory pool holds, as a dict."},
    {"empty_pool", python_empty_pool, METH_NOARGS, "Return all unused memory to the system."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool is_executable(PyObject* object) { return Py_TYPE(object) == &executable_type; }

void run_executable(PyObject* executable, Slots inputs, Slots& outputs) {
  const Program& program = *reinterpret_cast<Executable*>(executable)->program;
  if (static_cast<int32_t>(inputs.size()) != program.n_inputs)
    throw torch::TypeError("this executable takes " + std::to_string(program.n_inputs) + " inputs, got " +
                           std::to_string(inputs.size()));
  run_program(
      program, [&](Frame& frame) { std::move(inputs.begin(), inputs.end(), frame.slots); },
      [&](Frame& frame) {
        for (int32_t slot : program.outputs) {
          const Slot& from = frame.slots[slot];
          TORCH_CHECK(!from.empty(), "an output was never computed");
          outputs.emplace_back().share(from);
        }
      },
      true);
}

}  // namespace jitpy

int init_executable(PyObject* module) {
  using namespace jitpy;
  PyTypeObject& type = executable_type;
  type.tp_name = "_jitpy_runtime.Executable";
  type.tp_doc = "Executable(plan): a plan as a callable, executable(*inputs) -> tuple.";
  type.tp_basicsize = sizeof(Executable);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_new = executable_new;
  type.tp_dealloc = executable_dealloc;
  type.tp_traverse = executable_traverse;
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = offsetof(Executable, vectorcall);
  type.tp_weaklistoffset = offsetof(Executable, weak_references);
  type.tp_methods = executable_methods;
  type.tp_getset = executable_getset;
  if (PyType_Ready(&type) < 0) return -1;
  if (PyModule_AddFunctions(module, module_methods) < 0) return -1;
  Py_INCREF(&type);
  if (PyModule_AddObject(module, "Executable", reinterpret_cast<PyObject*>(&type)) < 0) {
    Py_DECREF(&type);
    return -1;
  }
  return 0;
}
