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
  void launch(CudaFunction function, const uint32_t grid[3], uint32_t threads, uint32_t shared, CudaStream stream,
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
};

}  // namespace jitpy
