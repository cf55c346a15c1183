// The CUDA driver, found at run time: nothing of CUDA is needed to build or to link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace jitpy {

using CudaFunction = void*;
using CudaStream = void*;

// How blocks become one launch.
struct LaunchShape {
  uint32_t threads = 0, shared = 0;
  // Blocks, one after another, that run at the same time on neighbouring multiprocessors and may meet. From compute
  // capability 9.0 on, as all that follows; 1: every block for itself.
  uint32_t cluster = 1;
  // The blocks may begin before the launch in front of them has ended; the code waits for its results itself.
  bool overlaps = false;
};

// The entry points of libcuda.so.1. Thread-safe; the context of the calling thread is what the calls work on.
class CudaDriver {
 public:
  // The process's driver. Throws c10::Error where there is none that works.
  static const CudaDriver& get();

  // A thread that never used CUDA has no context: gives it the device's primary one, which torch uses as well.
  void need_context(int device) const;

  // Loads machine code into the current context, and finds a kernel in it that may use `shared` bytes of dynamic
  // shared memory. Never unloaded: a CUDA graph that a user captured may launch it at any time later.
  CudaFunction load(const void* code, const char* entry, uint32_t shared) const;

  // Blocks of the grid are not 0.
  void launch(CudaFunction function, const uint32_t grid[3], const LaunchShape& shape, CudaStream stream,
              void** parameters) const;

 private:
  CudaDriver();
  void check(int result, const char* what) const;

  int (*init_)(unsigned);
  int (*get_error_string_)(int, const char**);
  int (*get_error_name_)(int, const char**);
  int (*device_get_)(int*, int);
  int (*primary_retain_)(void**, int);
  int (*context_get_)(void**);
  int (*context_set_)(void*);
  int (*module_load_)(void**, const void*);
  int (*module_function_)(void**, void*, const char*);
  int (*function_set_)(void*, int, int);
  int (*launch_)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  // With attributes; null in drivers that are older than those.
  int (*launch_with_)(const struct LaunchConfig*, void*, void**, void**);
};

}  // namespace jitpy
