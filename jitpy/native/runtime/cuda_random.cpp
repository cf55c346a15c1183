// The state of torch's CUDA generators, read as eager's kernels read it. The library that has them is found at run
// time: a build of torch for CPUs has none.
#include <dlfcn.h>

#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/PhiloxCudaState.h>
#include <c10/core/DeviceGuard.h>

#include "module.h"
#include "torch_api.h"

namespace jitpy {
namespace {

// at::CUDAGeneratorImpl::philox_cuda_state(uint64_t increment), as the compiler sees it
using PhiloxCudaState = at::PhiloxCudaState (*)(c10::GeneratorImpl*, uint64_t);

PhiloxCudaState find_philox() {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<PhiloxCudaState>(dlsym(library, "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm"));
}

PhiloxCudaState philox() {
  static const PhiloxCudaState found = find_philox();
  return found;
}

PyObject* has_philox(PyObject*, PyObject*) { return PyBool_FromLong(philox() != nullptr); }

PyObject* philox_state(PyObject*, PyObject* args) {
  int device;
  unsigned long long increment;
  if (!PyArg_ParseTuple(args, "iK", &device, &increment)) return nullptr;
  try {
    TORCH_CHECK(philox() != nullptr, "this build of torch has no CUDA generators");
    c10::Device place(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    c10::DeviceGuard guard(place);
    at::Generator generator = at::globalContext().defaultGenerator(place);
    at::PhiloxCudaState state;
    {
      std::lock_guard<std::mutex> held(generator.mutex());
      state = philox()(generator.unsafeGetGeneratorImpl(), increment);
    }
    return Py_BuildValue("iLLK", static_cast<int>(state.captured_), static_cast<long long>(state.seed_.val),
                         static_cast<long long>(state.offset_.val),
                         static_cast<unsigned long long>(state.offset_intragraph_));
  } catch (const std::exception&) {
    set_python_exception();
    return nullptr;
  }
}

PyMethodDef random_methods[] = {
    {"has_philox", has_philox, METH_NOARGS, "has_philox() -> bool: whether philox_state can be called"},
    {"philox_state", philox_state, METH_VARARGS,
     "philox_state(device, increment) -> (captured, seed, offset, skipped): the default generator's state, which goes on "
     "by `increment`. While a CUDA graph is captured, seed and offset are addresses, and `skipped` is to be added."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace
}  // namespace jitpy

int init_random(PyObject* module) { return PyModule_AddFunctions(module, jitpy::random_methods); }
