#include "pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

namespace jitpy {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kHugeFrom = 4 << 20;  // blocks of this size and up are made of huge pages where the system has them
// Programs that never use more than `kSmall` at a time may keep `kSpare` unused bytes beyond what they ever used: there
// fresh pages would cost more than the computation.
constexpr size_t kSmall = 64 << 20;
constexpr size_t kSpare = 8 << 20;
constexpr int kClasses = 320;

// Lies in the 64 bytes before the data.
struct alignas(64) Block {
  size_t capacity;  // mapped bytes, this header included
  int size_class;
  Block* next_in_class;  // most recently freed first
  Block* prev_in_class;
  Block* newer;  // all unused blocks by the time they were freed
  Block* older;

  void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }
};
static_assert(sizeof(Block) == 64);

// Size classes: whole pages up to eight, then eight steps in each power of two (at most 1/8 larger than asked for,
// and a page that is never touched costs nothing), and a page for the block itself, so that powers of two, the usual
// sizes, are classes of their own.
int class_of(size_t bytes, size_t* capacity) {
  size_t pages = bytes == 0 ? 1 : (bytes + kPage - 1) / kPage;
  if (pages <= 8) {
    *capacity = (pages + 1) * kPage;
    return static_cast<int>(pages) - 1;
  }
  int log2 = 63 - __builtin_clzll(pages);
  size_t step = size_t{1} << (log2 - 3);
  size_t steps = (pages + step - 1) / step;  // 8..16
  *capacity = (steps * step + 1) * kPage;
  return (log2 - 3) * 8 + static_cast<int>(steps) - 1;
}

Block* map_block(size_t capacity, int size_class) {
  constexpr int protection = PROT_READ | PROT_WRITE;
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  char* start;
  if (capacity < kHugeFrom) {
    void* mapped = mmap(nullptr, capacity, protection, flags, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    start = static_cast<char*>(mapped);
  } else {  // start at a huge page: reserve addresses for more than needed, map within, and return both ends
    size_t extended = capacity + kHugePage;
    void* reserved = mmap(nullptr, extended, PROT_NONE, flags | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return nullptr;
    char* low = static_cast<char*>(reserved);
    char* high = low + extended;
    start = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(low) + kHugePage - 1) / kHugePage * kHugePage);
    if (mmap(start, capacity, protection, flags | MAP_FIXED, -1, 0) == MAP_FAILED) {
      munmap(low, extended);
      return nullptr;
    }
    if (start != low) munmap(low, start - low);
    if (high != start + capacity) munmap(start + capacity, high - (start + capacity));
#ifdef MADV_HUGEPAGE
    madvise(start, capacity, MADV_HUGEPAGE);  // advice only: a refusal changes nothing but speed
#endif
  }
  Block* block = reinterpret_cast<Block*>(start);
  block->capacity = capacity;
  block->size_class = size_class;
  return block;
}

void unmap_chain(Block* block) noexcept {
  while (block != nullptr) {
    Block* next = block->older;
    munmap(block, block->capacity);
    block = next;
  }
}

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = create();
    return *pool;
  }

  void* take(size_t bytes) {
    TORCH_CHECK(bytes < (size_t{1} << 47), "not enough memory: you tried to allocate ", bytes, " bytes");
    size_t capacity;
    int size_class = class_of(bytes, &capacity);
    Block* surplus;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      // a block of the next class will do as well: sizes that vary a little share blocks
      for (int c = size_class; c <= size_class + 1; ++c) {
        if (Block* block = heads_[c]) {
          unlink(block);
          ++hits_;
          count_used(block);
          return block->data();
        }
      }
      ++misses_;
      // what other sizes left behind goes first where the program would hold more than it ever used at a time
      size_t wanted = used_bytes_ + capacity;
      most_used_ = std::max(most_used_, wanted);
      surplus = trim(std::max(most_used_ - wanted, most_used_ <= kSmall ? kSpare : 0));
    }
    unmap_chain(surplus);
    Block* block = map_block(capacity, size_class);
    if (block == nullptr) {
      empty();
      block = map_block(capacity, size_class);
      TORCH_CHECK(block != nullptr, "not enough memory: you tried to allocate ", bytes, " bytes");
    }
    std::lock_guard<std::mutex> hold(mutex_);
    count_used(block);
    return block->data();
  }

  void give(void* data) noexcept {
    Block* block = Block::of(data);
    Block* surplus;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      used_bytes_ -= block->capacity;
      --used_blocks_;
      link(block);
      surplus = trim(limit_);
    }
    unmap_chain(surplus);
  }

  void set_limit(size_t bytes) {
    Block* surplus;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      limit_ = bytes;
      most_used_ = used_bytes_;
      surplus = trim(limit_);
    }
    unmap_chain(surplus);
  }

  void empty() {
    Block* surplus;
    {
      std::lock_guard<std::mutex> hold(mutex_);
      surplus = trim(0);
    }
    unmap_chain(surplus);
  }

  PoolStats stats() {
    std::lock_guard<std::mutex> hold(mutex_);
    return {limit_, cached_bytes_, cached_blocks_, used_bytes_, used_blocks_, hits_, misses_};
  }

 private:
  static Pool* create() {
    Pool* pool = new Pool;
    // a fork while another thread holds the lock would leave the child with a lock that nobody releases
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); }, [] { get().mutex_.unlock(); });
    return pool;
  }

  void count_used(Block* block) {
    used_bytes_ += block->capacity;
    ++used_blocks_;
  }

  void link(Block* block) {
    Block*& head = heads_[block->size_class];
    block->prev_in_class = nullptr;
    block->next_in_class = head;
    if (head != nullptr) head->prev_in_class = block;
    head = block;
    block->newer = nullptr;
    block->older = newest_;
    if (newest_ != nullptr) newest_->newer = block;
    newest_ = block;
    if (oldest_ == nullptr) oldest_ = block;
    cached_bytes_ += block->capacity;
    ++cached_blocks_;
  }

  void unlink(Block* block) {
    if (block->prev_in_class != nullptr) block->prev_in_class->next_in_class = block->next_in_class;
    else heads_[block->size_class] = block->next_in_class;
    if (block->next_in_class != nullptr) block->next_in_class->prev_in_class = block->prev_in_class;
    if (block->newer != nullptr) block->newer->older = block->older;
    else newest_ = block->older;
    if (block->older != nullptr) block->older->newer = block->newer;
    else oldest_ = block->newer;
    cached_bytes_ -= block->capacity;
    --cached_blocks_;
  }

  // Takes the oldest unused blocks out until the rest fits; they come back chained through `older`, to be
  // unmapped by the caller without the lock.
  Block* trim(size_t limit) {
    Block* chain = nullptr;
    while (cached_bytes_ > limit) {
      Block* block = oldest_;
      unlink(block);
      block->older = chain;
      chain = block;
    }
    return chain;
  }

  std::mutex mutex_;
  std::array<Block*, kClasses> heads_{};
  Block* newest_ = nullptr;
  Block* oldest_ = nullptr;
  size_t limit_ = size_t{1} << 30;
  size_t cached_bytes_ = 0, cached_blocks_ = 0, used_bytes_ = 0, used_blocks_ = 0;
  size_t most_used_ = 0;  // the highest of `used_bytes_`, as far as blocks were mapped for it
  uint64_t hits_ = 0, misses_ = 0;
};

constexpr uintptr_t kAlignment = 64;

#ifdef __SANITIZE_ADDRESS__
// Each block for itself, and not a byte longer than asked for, so that the sanitizer sees what goes beyond it.
constexpr bool kPools = false;

void* small_block(size_t bytes) {
  void* data = nullptr;
  TORCH_CHECK(posix_memalign(&data, kAlignment, bytes) == 0, "not enough memory: you tried to allocate ", bytes, " bytes");
  return data;
}

void free_small(void* data) { std::free(data); }
#else
constexpr bool kPools = true;

// Small blocks: what malloc returned lies in the word before the data.
void* small_block(size_t bytes) {
  void* raw = std::malloc(bytes + sizeof(void*) + kAlignment - 1);
  TORCH_CHECK(raw != nullptr, "not enough memory: you tried to allocate ", bytes, " bytes");
  uintptr_t first = reinterpret_cast<uintptr_t>(raw) + sizeof(void*);
  void* data = reinterpret_cast<void*>((first + kAlignment - 1) & ~(kAlignment - 1));
  static_cast<void**>(data)[-1] = raw;
  return data;
}

void free_small(void* data) { std::free(static_cast<void**>(data)[-1]); }
#endif

void delete_pooled(void* data) {
  c10::profiledCPUMemoryReporter().Delete(data);
  Pool::get().give(data);
}

void delete_small(void* data) {
  c10::profiledCPUMemoryReporter().Delete(data);
  free_small(data);
}

// The context of its pointers is the data itself, which torch's lazy copies ask for.
class PoolAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, cpu};
    // malloc answers from a cache of the thread that posix_memalign, in torch's allocator, passes by: 15 ns, not 120
    bool pooled = kPools && bytes >= kPooledTensorBytes;
    void* data = pooled ? Pool::get().take(bytes) : small_block(bytes);
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, pooled ? &delete_pooled : &delete_small, cpu};
  }

  // raw_deleter stays nullptr: small and large blocks have different deleters

  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return pointer.get() == pointer.get_context();
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
};

}  // namespace

c10::Allocator* pool_allocator() {
  static auto* allocator = new PoolAllocator;
  return allocator;
}

void* pool_take(size_t bytes) {
  void* data = kPools ? Pool::get().take(bytes) : small_block(bytes);
  c10::profiledCPUMemoryReporter().New(data, bytes);
  return data;
}

void pool_give(void* data) noexcept {
  c10::profiledCPUMemoryReporter().Delete(data);
  kPools ? Pool::get().give(data) : free_small(data);
}

void pool_set_limit(size_t bytes) { Pool::get().set_limit(bytes); }
void pool_empty() { Pool::get().empty(); }
PoolStats pool_stats() { return Pool::get().stats(); }

}  // namespace jitpy
