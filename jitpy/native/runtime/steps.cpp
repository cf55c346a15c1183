// The steps of a program that jitpy's own kernels and their memory need: allocate, run, view, copy, bind sizes, free.
#include <algorithm>

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>

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
  bool is_made_ahead() const override { return true; }

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
    if (!device_.is_cuda() || !current_) return empty_strided(shape, stride, at::TensorOptions(device_).dtype(dtype_));
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
    bool bumped;      // its version counter moves
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
      kernel_(addresses.data(), frame.sizes);
    } else {
      {
        ReleaseGil released;
        kernel_(addresses.data(), frame.sizes);
      }
      if (PyErr_CheckSignals() < 0) throw_python_error();
    }
    for (const Pointer& pointer : pointers_)
      if (pointer.bumped) bump_version(frame.slots[pointer.slot].tensor);
  }

  bool is_call() const override { return false; }
  const std::string* recorded_name() const override { return &name_; }

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

  bool is_made_ahead() const override { return plain_; }

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
  CopyStep(int32_t target, int32_t source, bool is_seen) : target_(target), source_(source), is_seen_(is_seen) {}

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
    } else if (!is_seen_) {
      no_grad.emplace(false);
    }
    ReleaseGil released;
    (is_seen_ ? target : target.variable_data()).copy_(source);
  }

 private:
  int32_t target_, source_;
  bool is_seen_;  // by autograd
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
        throw_python_error();
      }
      frame.symbols[symbol.number] = value;
    }
    fill_.run(frame, n_symbols_);
    for (const Check& check : checks_) {
      if (frame.sizes[check.entry] != 0) continue;
      PyErr_SetObject(error_, check.text);
      throw_python_error();
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

}  // namespace

bool SymbolPlace::read(const Frame& frame, int64_t* value) const {
  const Slot& from = frame.slots[slot];
  if (dim < 0) {
    if (from.object == nullptr || !PyLong_Check(from.object))
      throw_type_error("input " + std::to_string(slot) + " must be an int");
    int overflow;
    *value = PyLong_AsLongLongAndOverflow(from.object, &overflow);
    return overflow == 0;
  }
  if (!from.tensor.defined() || from.tensor.dim() <= dim)
    throw_type_error("input " + std::to_string(slot) + " must be a tensor with more than " +
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
  for (size_t i = 0; i < entries.size(); ++i)
    frame.sizes[entries[i]] = integer(PySequence_Fast_GET_ITEM(values.get(), i));
}

std::unique_ptr<Step> PlanReader::bind_step(PyObject* value) const {
  auto bound = [](PyObject* owner, const char* name, int64_t open) {
    return attribute(owner, name).get() == Py_None ? open : integer(owner, name);
  };
  std::vector<BindStep::Symbol> symbols;
  for_each(attribute(value, "symbols").get(), "BindStep: symbols must be a sequence", [&](PyObject* item) {
    int32_t number = static_cast<int32_t>(integer(item, "number"));
    TORCH_CHECK_VALUE(0 <= number && number < n_symbols, "plan: there is no symbol ", number);
    symbols.push_back({number, symbol_place(attribute(item, "place").get()), bound(item, "low", INT64_MIN),
                       bound(item, "high", INT64_MAX)});
  });
  std::vector<BindStep::Check> checks;
  for_each(attribute(value, "checks").get(), "BindStep: checks must be a sequence", [&](PyObject* item) {
    PyObject *entry, *text;
    if (!PyArg_ParseTuple(item, "OO", &entry, &text)) throw_python_error();
    checks.push_back({size_entry(entry), keep(text)});
  });
  return std::make_unique<BindStep>(std::move(symbols), size_fill(value, "function", "entries"), std::move(checks),
                                    n_symbols, keep(attribute(module_.get(), "SizeCheckFailed").get()));
}

std::unique_ptr<Step> PlanReader::step(PyObject* value) const {
  PyTypeObject* type = Py_TYPE(value);
  if (type == alloc_) {
    Ref dtype = attribute(value, "dtype"), device = attribute(value, "device");
    if (!THPDtype_Check(dtype.get()) || !THPDevice_Check(device.get()))
      throw_type_error("AllocStep: dtype must be a torch.dtype and device a torch.device");
    Sizes shape = sizes(attribute(value, "shape").get()), stride = sizes(attribute(value, "stride").get());
    TORCH_CHECK_VALUE(shape.size() == stride.size(), "AllocStep: shape and stride differ in length");
    at::Device on = reinterpret_cast<THPDevice*>(device.get())->device;
    return std::make_unique<AllocStep>(
        slot_attribute(value, "slot"), std::move(shape), std::move(stride),
        reinterpret_cast<THPDtype*>(dtype.get())->scalar_type, on, on == this->device);
  }
  if (type == kernel_) {
    std::vector<int32_t> writes = slots(attribute(value, "writes").get());
    std::vector<KernelStep::Pointer> found;
    for_each(attribute(value, "pointers").get(), "KernelStep: pointers", [&](PyObject* pointer) {
      if (is_workspace(pointer)) {
        found.push_back({-1, size(attribute(pointer, "offset").get()), false, false, false});
      } else if (is_slot_ref(pointer)) {
        int32_t number = slot_attribute(pointer, "slot");
        bool written = std::find(writes.begin(), writes.end(), number) != writes.end();
        bool again = std::any_of(found.begin(), found.end(), [&](const auto& p) { return p.slot == number; });
        found.push_back({number, Size(), number < n_inputs, written, written && !again && is_seen(number)});
      } else {
        throw_type_error("KernelStep: pointers must be SlotRef or Workspace");
      }
    });
    int64_t address = integer(value, "address");
    TORCH_CHECK_VALUE(address != 0, "KernelStep: the kernel's address is 0");
    Ref name = checked(PyObject_Str(attribute(value, "name").get()));
    const char* text = PyUnicode_AsUTF8(name.get());
    if (text == nullptr) throw_python_error();
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
  if (type == copy_) {
    int32_t target = slot_attribute(value, "target");
    return std::make_unique<CopyStep>(target, slot_attribute(value, "source"), is_seen(target));
  }
  if (type == bind_) return bind_step(value);
  if (type == free_) return std::make_unique<FreeStep>(slots(attribute(value, "slots").get()));
  throw_type_error(std::string("plan: not a step: ") + type->tp_name);
}

}  // namespace jitpy
