// LaunchStep: a compiled Triton kernel, launched through the CUDA driver on torch's current stream.
#include <atomic>
#include <limits>
#include <mutex>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "cuda_driver.h"
#include "module.h"
#include "steps.h"

namespace jitpy {
namespace {

constexpr int kMaxDevices = 64;
constexpr uint64_t kDivisor = 16;  // what Triton's `tt.divisibility` says

// Machine code, loaded on each device where it is first launched.
class GpuFunction {
 public:
  GpuFunction(std::string code, std::string entry, LaunchShape shape, uint32_t extra)
      : shape(shape), extra(extra), code_(std::move(code)), entry_(std::move(entry)) {}

  // The device's context is the current one.
  CudaFunction on(int device) const {
    TORCH_CHECK(0 <= device && device < kMaxDevices, "no CUDA device has number ", device);
    CudaFunction function = loaded_[device].load(std::memory_order_acquire);
    if (C10_LIKELY(function != nullptr)) return function;
    std::lock_guard<std::mutex> held(lock_);
    function = loaded_[device].load(std::memory_order_relaxed);
    if (function == nullptr) {
      function = CudaDriver::get().load(code_.data(), entry_.c_str(), shape.shared);
      loaded_[device].store(function, std::memory_order_release);
    }
    return function;
  }

  const LaunchShape shape;
  const uint32_t extra;

 private:
  const std::string code_, entry_;
  mutable std::mutex lock_;
  mutable std::atomic<CudaFunction> loaded_[kMaxDevices] = {};
};

struct GpuFunctionObject {
  PyObject_HEAD
  GpuFunction* function;
};

PyTypeObject gpu_function_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

const GpuFunction* unpack(PyObject* object) {
  if (Py_TYPE(object) != &gpu_function_type)
    throw_type_error(std::string("a launch takes a GpuFunction, not ") + Py_TYPE(object)->tp_name);
  return reinterpret_cast<GpuFunctionObject*>(object)->function;
}

enum class Type : uint8_t { pointer, i8, i16, i32, i64, f32, f64 };

Type type_of(const std::string& name) {
  if (name[0] == '*') return Type::pointer;
  if (name == "i1" || name == "i8" || name == "u8") return Type::i8;
  if (name == "i16" || name == "u16") return Type::i16;
  if (name == "i32" || name == "u32") return Type::i32;
  if (name == "i64" || name == "u64") return Type::i64;
  if (name == "fp32") return Type::f32;
  if (name == "fp64") return Type::f64;
  TORCH_CHECK_VALUE(false, "LaunchStep: no launch passes a ", name);
}

// The value of one parameter of a kernel.
struct Parameter {
  Type type;
  bool divisible;

  // Do the facts that the kernel was compiled for hold?
  bool takes(const uint64_t& cell) const {
    if (divisible && cell % kDivisor != 0) return false;
    return fits(static_cast<int64_t>(cell));
  }

  bool fits(int64_t value) const {
    switch (type) {
      case Type::i8: return value == static_cast<int8_t>(value) || value == static_cast<uint8_t>(value);
      case Type::i16: return value == static_cast<int16_t>(value) || value == static_cast<uint16_t>(value);
      case Type::i32: return value == static_cast<int32_t>(value);
      default: return true;
    }
  }
};

// A kernel with what it takes, and the grid it runs over.
struct Variant {
  const GpuFunction* function = nullptr;
  PyObject* make = nullptr;  // called for the function when it is first needed; borrowed: see PlanReader::keep
  std::vector<Parameter> parameters;
  Sizes grid;
};

struct Argument {
  enum class Kind : uint8_t { slot, workspace, size, integer, real };
  Kind kind;
  int32_t slot = -1;
  bool input = false;    // the caller's tensor
  bool written = false;  // an input that the kernel writes
  bool bumped = false;   // its version counter moves
  Size size;             // an offset, or a number
  double real = 0;
};

class LaunchStep final : public Step {
 public:
  LaunchStep(Variant usual, Variant general, std::vector<Argument> arguments, std::string name)
      : usual_(std::move(usual)), general_(std::move(general)), arguments_(std::move(arguments)),
        name_(std::move(name)) {}

  void run(Frame& frame) const override {
    size_t count = arguments_.size();
    c10::SmallVector<uint64_t, 24> cells(count);
    bool holds = true;
    for (size_t i = 0; i < count; ++i) {
      cells[i] = value(frame, arguments_[i], usual_.parameters[i].type);
      holds = holds && usual_.parameters[i].takes(cells[i]);
    }
    const Variant& variant = holds ? usual_ : general_;
    if (C10_UNLIKELY(!holds)) {
      for (size_t i = 0; i < count; ++i) {
        // numbers may have other types in the general kernel
        cells[i] = value(frame, arguments_[i], general_.parameters[i].type);
        if (!general_.parameters[i].fits(static_cast<int64_t>(cells[i]))) {
          PyErr_Format(PyExc_OverflowError, "kernel %s: %lld is too large for its index type", name_.c_str(),
                       static_cast<long long>(cells[i]));
          throw_python_error();
        }
      }
    }
    uint32_t grid[3] = {1, 1, 1};
    for (size_t i = 0; i < variant.grid.size(); ++i) {
      int64_t blocks = variant.grid[i].get(frame.sizes);
      if (blocks <= 0) return;
      TORCH_CHECK(blocks <= (i == 0 ? 0x7fffffff : 65535), "kernel ", name_, ": a grid of ", blocks,
                  " blocks in dimension ", i, " is too large");
      grid[i] = static_cast<uint32_t>(blocks);
    }
    const GpuFunction* function = function_of(variant);
    const CudaDriver& driver = CudaDriver::get();
    CudaStream stream = frame.stream();
    uint64_t none = 0;
    c10::SmallVector<void*, 28> parameters;
    for (uint64_t& cell : cells) parameters.push_back(&cell);
    for (uint32_t i = 0; i < function->extra; ++i) parameters.push_back(&none);
    {
      ReleaseGil released;  // a launch may wait for a full queue, which a callback in need of the GIL may hold up
      driver.need_context(frame.device);
      CudaFunction handle = function->on(frame.device);
      driver.launch(handle, grid, function->shape, stream, parameters.data());
    }
    for (const Argument& argument : arguments_)
      if (argument.bumped) {
        const at::Tensor& tensor = frame.slots[argument.slot].tensor;
        if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
      }
  }

  bool is_call() const override { return false; }
  const std::string* recorded_name() const override { return &name_; }

 private:
  uint64_t value(Frame& frame, const Argument& argument, Type type) const {
    switch (argument.kind) {
      case Argument::Kind::workspace:
        return reinterpret_cast<uint64_t>(frame.workspace + argument.size.get(frame.sizes));
      case Argument::Kind::size:
      case Argument::Kind::integer:
        return number(argument.size.get(frame.sizes), type);
      case Argument::Kind::real:
        return real(argument.real, type);
      case Argument::Kind::slot:
        break;
    }
    Slot& slot = frame.slots[argument.slot];
    if (slot.tensor.defined()) {
      if (type != Type::pointer) throw_type_error("kernel " + name_ + " takes a number, not a tensor");
      return address(slot.tensor, argument, frame.device);
    }
    TORCH_CHECK(slot.object != nullptr, "kernel ", name_, " reads an empty slot");
    if (type == Type::pointer) throw_type_error("kernel " + name_ + " takes a tensor, not a number");
    void* found = slot.number_address();
    return PyFloat_Check(slot.object) ? real(*static_cast<double*>(found), type)
                                      : number(*static_cast<int64_t*>(found), type);
  }

  static uint64_t number(int64_t value, Type type) {
    if (type == Type::f32 || type == Type::f64) return real(static_cast<double>(value), type);
    return static_cast<uint64_t>(value);
  }

  // A float for an integer parameter would be cut off silently: a plan does not say so.
  static uint64_t real(double value, Type type) {
    uint64_t cell = 0;
    if (type == Type::f32) {
      float narrow = static_cast<float>(value);
      memcpy(&cell, &narrow, sizeof narrow);
    } else {
      TORCH_CHECK(type == Type::f64, "LaunchStep: a float for a parameter that is none");
      memcpy(&cell, &value, sizeof value);
    }
    return cell;
  }

  uint64_t address(const at::Tensor& tensor, const Argument& argument, int device) const {
    static constexpr c10::DispatchKeySet not_plain(
        {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
         c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
         c10::DispatchKey::FuncTorchGradWrapper});
    TORCH_CHECK(!tensor.key_set().has_any(not_plain), "kernel ", name_, " reads slot ", argument.slot,
                ", whose memory does not hold its values (a lazy conjugate or negative, or a wrapper)");
    TORCH_CHECK(tensor.is_cuda() && tensor.get_device() == device, "kernel ", name_, " runs on cuda:", device,
                ", but slot ", argument.slot, " is on ", tensor.device());
    // reading must not materialise a lazily copied input
    const void* data = argument.input && !argument.written ? tensor.const_data_ptr() : tensor.mutable_data_ptr();
    return reinterpret_cast<uint64_t>(data);
  }

  const GpuFunction* function_of(const Variant& variant) const {
    if (C10_LIKELY(variant.function != nullptr)) return variant.function;
    return unpack(checked(PyObject_CallNoArgs(variant.make)).get());  // whoever makes it keeps it
  }

  Variant usual_, general_;
  std::vector<Argument> arguments_;
  std::string name_;
};

Variant read_variant(PyObject* kernel, PyObject* function, PyObject* grid, const PlanReader& reader) {
  Variant variant;
  if (Py_TYPE(function) == &gpu_function_type) {
    variant.function = unpack(reader.keep(function));
  } else {
    variant.make = reader.keep(function);
  }
  variant.grid = reader.sizes(grid);
  TORCH_CHECK_VALUE(1 <= variant.grid.size() && variant.grid.size() <= 3, "LaunchStep: a grid has 1 to 3 sizes");
  Ref divisible = attribute(kernel, "divisible");
  for_each(attribute(kernel, "parameters").get(), "GpuKernel: parameters", [&](PyObject* item) {
    PyObject *name, *kind;
    if (!PyArg_ParseTuple(item, "UU", &name, &kind)) throw_python_error();
    int is_divisible = PySequence_Contains(divisible.get(), name);
    if (is_divisible < 0) throw_python_error();
    const char* text = PyUnicode_AsUTF8(kind);
    if (text == nullptr) throw_python_error();
    variant.parameters.push_back({type_of(text), is_divisible != 0});
  });
  return variant;
}

Argument read_argument(PyObject* value, const std::vector<int32_t>& writes, const PlanReader& reader) {
  Argument argument;
  if (reader.is_slot_ref(value)) {
    argument.kind = Argument::Kind::slot;
    argument.slot = reader.slot_attribute(value, "slot");
    argument.input = argument.slot < reader.n_inputs;
    argument.written = std::find(writes.begin(), writes.end(), argument.slot) != writes.end();
    argument.bumped = argument.written && reader.is_seen(argument.slot);
  } else if (reader.is_workspace(value)) {
    argument.kind = Argument::Kind::workspace;
    argument.size = reader.size(attribute(value, "offset").get());
  } else if (PyFloat_Check(value)) {
    argument.kind = Argument::Kind::real;
    argument.real = PyFloat_AS_DOUBLE(value);
  } else {
    argument.kind = reader.is_size_ref(value) ? Argument::Kind::size : Argument::Kind::integer;
    argument.size = reader.size(value);
  }
  return argument;
}

PyObject* gpu_function_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* code;
  const char* entry;
  LaunchShape shape;
  unsigned extra;
  int overlaps = 0;
  static const char* names[] = {"code",    "entry",    "threads", "shared", "extra_parameters",
                                "cluster", "overlaps", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SsIII|Ip:GpuFunction", const_cast<char**>(names), &code, &entry,
                                   &shape.threads, &shape.shared, &extra, &shape.cluster, &overlaps))
    return nullptr;
  shape.overlaps = overlaps != 0;
  auto* self = reinterpret_cast<GpuFunctionObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->function = new GpuFunction(std::string(PyBytes_AS_STRING(code), PyBytes_GET_SIZE(code)), entry, shape, extra);
  return reinterpret_cast<PyObject*>(self);
}

void gpu_function_dealloc(PyObject* object) {
  delete reinterpret_cast<GpuFunctionObject*>(object)->function;
  Py_TYPE(object)->tp_free(object);
}

PyObject* gpu_function_load(PyObject* object, PyObject* number) {
  long device = PyLong_AsLong(number);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  try {
    ReleaseGil released;
    CudaDriver::get().need_context(static_cast<int>(device));
    unpack(object)->on(static_cast<int>(device));
  } catch (const std::exception&) {
    set_python_exception();
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef gpu_function_methods[] = {
    {"load", gpu_function_load, METH_O, "Load the code on the CUDA device of this number, which is the current one."},
    {nullptr, nullptr, 0, nullptr},
};

// addresses(inputs, device, skip) -> bytes: where the tensors of a tuple have their memory, 8 bytes each, 0 for what is
// no tensor and for the positions in `skip`; None where a tensor is on another device. The CPU is device -1.
PyObject* python_addresses(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "addresses(inputs: tuple, device: int, skip: tuple)");
    return nullptr;
  }
  long device = PyLong_AsLong(args[1]);
  if (device < 0 && PyErr_Occurred()) return nullptr;
  Py_ssize_t size = PyTuple_GET_SIZE(args[0]);
  try {
    Ref result = checked(PyBytes_FromStringAndSize(nullptr, size * sizeof(uint64_t)));
    auto* cells = reinterpret_cast<char*>(PyBytes_AS_STRING(result.get()));
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* item = PyTuple_GET_ITEM(args[0], i);
      uint64_t address = 0;
      if (is_tensor(item)) {
        const at::Tensor& tensor = tensor_of(item);
        if (!(device < 0 ? tensor.is_cpu() : tensor.is_cuda()) || tensor.get_device() != device) Py_RETURN_NONE;
        address = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
      }
      memcpy(cells + i * sizeof address, &address, sizeof address);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[2]); ++i) {
      Py_ssize_t position = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[2], i));
      if (position == -1 && PyErr_Occurred()) return nullptr;
      TORCH_CHECK_VALUE(0 <= position && position < size, "addresses: no input ", position);
      memset(cells + position * sizeof(uint64_t), 0, sizeof(uint64_t));
    }
    return result.release();
  } catch (const std::exception&) {
    set_python_exception();
    return nullptr;
  }
}

PyMethodDef launch_methods[] = {
    {"addresses", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(python_addresses)), METH_FASTCALL,
     "addresses(inputs, device, skip) -> bytes with the addresses of tensors, or None for those of another device."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void* current_cuda_stream(int device) {
  // the default stream's number, 0, is its handle as well
  static const c10::impl::DeviceGuardImplInterface* guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  if (C10_LIKELY(guard->getStream(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device))).id() == 0))
    return nullptr;
  // torch's C++ function for others is in a library that a build for CPUs has not; its Python one is everywhere
  static PyObject* getter = [] {
    Ref module = checked(PyImport_ImportModule("torch._C"));
    return attribute(module.get(), "_cuda_getCurrentRawStream").release();
  }();
  Ref number = checked(PyLong_FromLong(device));
  Ref stream = checked(PyObject_CallOneArg(getter, number.get()));
  void* handle = PyLong_AsVoidPtr(stream.get());
  if (handle == nullptr && PyErr_Occurred()) throw_python_error();
  return handle;
}

std::unique_ptr<Step> make_launch(PyObject* step, const PlanReader& reader) {
  PyObject *usual, *general;
  Ref functions = attribute(step, "functions"), kernel = attribute(step, "kernel"), grid = attribute(step, "grid");
  TORCH_CHECK_VALUE(PyTuple_CheckExact(functions.get()), "LaunchStep: its kernel has not been compiled");
  if (!PyArg_ParseTuple(functions.get(), "OO", &usual, &general)) throw_python_error();
  Variant first = read_variant(kernel.get(), usual, grid.get(), reader);
  Ref general_kernel = attribute(step, "general"), general_grid = attribute(step, "general_grid");
  if (general_kernel.get() == Py_None)
    general_kernel = checked(PyObject_CallMethod(kernel.get(), "without_facts", nullptr));
  if (general_grid.get() == Py_None) general_grid = std::move(grid);
  Variant second = read_variant(general_kernel.get(), general, general_grid.get(), reader);
  std::vector<int32_t> writes = reader.slots(attribute(step, "writes").get());
  std::vector<Argument> arguments;
  for_each(attribute(step, "arguments").get(), "LaunchStep: arguments", [&](PyObject* value) {
    Argument made = read_argument(value, writes, reader);
    if (made.bumped)
      made.bumped = std::none_of(arguments.begin(), arguments.end(),
                                 [&](const Argument& one) { return one.bumped && one.slot == made.slot; });
    arguments.push_back(std::move(made));
  });
  TORCH_CHECK_VALUE(arguments.size() == first.parameters.size() && arguments.size() == second.parameters.size(),
                    "LaunchStep: as many arguments as the kernel has parameters");
  Ref name = checked(PyObject_Str(attribute(step, "name").get()));
  const char* text = PyUnicode_AsUTF8(name.get());
  if (text == nullptr) throw_python_error();
  return std::make_unique<LaunchStep>(std::move(first), std::move(second), std::move(arguments), text);
}

}  // namespace jitpy

int init_launch(PyObject* module) {
  using namespace jitpy;
  PyTypeObject& type = gpu_function_type;
  type.tp_name = "_jitpy_runtime.GpuFunction";
  type.tp_doc = "GpuFunction(code, entry, threads, shared, extra_parameters, cluster=1, overlaps=False): a kernel as machine "
                "code for launches.";
  type.tp_basicsize = sizeof(GpuFunctionObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_new = gpu_function_new;
  type.tp_dealloc = gpu_function_dealloc;
  type.tp_methods = gpu_function_methods;
  if (PyType_Ready(&type) < 0) return -1;
  if (PyModule_AddFunctions(module, launch_methods) < 0) return -1;
  Py_INCREF(&type);
  if (PyModule_AddObject(module, "GpuFunction", reinterpret_cast<PyObject*>(&type)) < 0) {
    Py_DECREF(&type);
    return -1;
  }
  return 0;
}
