#include "cuda_driver.h"

#include <dlfcn.h>

#include <c10/util/Exception.h>

namespace jitpy {
namespace {

// Of cuda.h: CUfunction_attribute.
constexpr int kMaxDynamicSharedBytes = 8;
// The resources that every kernel may use without asking.
constexpr uint32_t kFreeSharedBytes = 48 << 10;
constexpr int kOutOfMemory = 2;
// Of cuda.h: CUlaunchAttributeID.
constexpr int kClusterDimension = 4, kOverlapsStream = 6;


template <typename Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  TORCH_CHECK(*function != nullptr, "the CUDA driver has no ", name);
}

}  // namespace

// Of cuda.h: CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  int padding;
  uint32_t value[16];
};

struct LaunchConfig {
  uint32_t grid[3], block[3], shared;
  CudaStream stream;
  const LaunchAttribute* attributes;
  uint32_t count;
};

const CudaDriver& CudaDriver::get() {
  static const CudaDriver driver;
  return driver;
}

CudaDriver::CudaDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "no CUDA driver: ", dlerror());
  find(library, "cuInit", &init_);
  find(library, "cuGetErrorString", &get_error_string_);
  find(library, "cuGetErrorName", &get_error_name_);
  find(library, "cuDeviceGet", &device_get_);
  find(library, "cuDevicePrimaryCtxRetain", &primary_retain_);
  find(library, "cuCtxGetCurrent", &context_get_);
  find(library, "cuCtxSetCurrent", &context_set_);
  find(library, "cuModuleLoadData", &module_load_);
  find(library, "cuModuleGetFunction", &module_function_);
  find(library, "cuFuncSetAttribute", &function_set_);
  find(library, "cuLaunchKernel", &launch_);
  launch_with_ = reinterpret_cast<decltype(launch_with_)>(dlsym(library, "cuLaunchKernelEx"));
  check(init_(0), "cuInit");
}

void CudaDriver::check(int result, const char* what) const {
  if (C10_LIKELY(result == 0)) return;
  const char *name = nullptr, *text = nullptr;
  get_error_name_(result, &name);
  get_error_string_(result, &text);
  std::string message = std::string("CUDA error: ") + (text ? text : "unknown") + " (" + what + ": " +
                        (name ? name : std::to_string(result).c_str()) + ")";
  TORCH_CHECK_WITH(OutOfMemoryError, result != kOutOfMemory, message);
  TORCH_CHECK(false, message);
}

void CudaDriver::need_context(int device) const {
  void* context = nullptr;
  check(context_get_(&context), "cuCtxGetCurrent");
  if (C10_LIKELY(context != nullptr)) return;
  int handle;
  check(device_get_(&handle, device), "cuDeviceGet");
  // torch keeps the primary context alive; one more reference a thread does no harm
  check(primary_retain_(&context, handle), "cuDevicePrimaryCtxRetain");
  check(context_set_(context), "cuCtxSetCurrent");
}

CudaFunction CudaDriver::load(const void* code, const char* entry, uint32_t shared) const {
  void *module, *function;
  check(module_load_(&module, code), "cuModuleLoadData");
  check(module_function_(&function, module, entry), "cuModuleGetFunction");
  if (shared > kFreeSharedBytes)
    check(function_set_(function, kMaxDynamicSharedBytes, static_cast<int>(shared)), "cuFuncSetAttribute");
  return function;
}

void CudaDriver::launch(CudaFunction function, const uint32_t grid[3], const LaunchShape& shape, CudaStream stream,
                        void** parameters) const {
  if (C10_LIKELY(shape.cluster == 1 && !shape.overlaps)) {
    check(launch_(function, grid[0], grid[1], grid[2], shape.threads, 1, 1, shape.shared, stream, parameters, nullptr),
          "cuLaunchKernel");
    return;
  }
  TORCH_CHECK(launch_with_ != nullptr, "the CUDA driver has no cuLaunchKernelEx");
  LaunchAttribute attributes[2] = {};
  uint32_t count = 0;
  if (shape.cluster > 1) attributes[count++] = {kClusterDimension, 0, {shape.cluster, 1, 1}};
  if (shape.overlaps) attributes[count++] = {kOverlapsStream, 0, {1}};
  LaunchConfig config = {{grid[0], grid[1], grid[2]}, {shape.threads, 1, 1}, shape.shared, stream, attributes, count};
  check(launch_with_(&config, function, parameters, nullptr), "cuLaunchKernelEx");
}

}  // namespace jitpy
