// The memory pool: blocks of freed outputs and of scratch memory, kept for the next call.
//
// A fresh 40 MB output costs ten thousand page faults, more than most kernels that fill it. The pool keeps
// such blocks, up to a bound, oldest out first. It is one object per process, never destroyed, so tensors may
// outlive the interpreter; it is safe to use from any thread, without the GIL, and on both sides of a fork.
#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>

namespace jitpy {

// Tensors smaller than this many bytes come from malloc, which serves them faster.
constexpr size_t kPooledTensorBytes = 64 << 10;

// The allocator of tensors, of any size: it is the one of their storages, which the user may resize. 64-byte aligned.
c10::Allocator* pool_allocator();

// Memory for `bytes` bytes, 64-byte aligned, uninitialised. Throws c10::Error where the system has none left.
void* pool_take(size_t bytes);

// Give back what pool_take returned.
void pool_give(void* data) noexcept;

// Keep at most this many bytes of unused blocks; returns surplus to the system now.
void pool_set_limit(size_t bytes);

// Return all unused blocks to the system.
void pool_empty();

struct PoolStats {
  size_t limit;          // bytes of unused blocks that may be kept
  size_t cached_bytes;   // bytes in unused blocks
  size_t cached_blocks;
  size_t used_bytes;     // bytes in blocks handed out
  size_t used_blocks;
  uint64_t hits;         // requests served from an unused block
  uint64_t misses;       // requests that went to the system
};

PoolStats pool_stats();

// Scratch memory for one call.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(size_t bytes) : data_(bytes == 0 ? nullptr : pool_take(bytes)) {}
  ~Scratch() {
    if (data_ != nullptr) pool_give(data_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace jitpy
