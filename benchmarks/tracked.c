/* Counts the bytes that a process has allocated, whoever asks: malloc and its relatives, and anonymous mappings of the
   program (glibc maps large blocks for malloc by an internal name, so that these count once). Preloaded by
   benchmarks/tracked.py. */

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

static _Atomic int64_t current, highest;

static void add(int64_t bytes) {
  const int64_t now = atomic_fetch_add(&current, bytes) + bytes;
  int64_t seen = atomic_load(&highest);
  while (now > seen && !atomic_compare_exchange_weak(&highest, &seen, now)) {
  }
}

int64_t tracked_current(void) { return atomic_load(&current); }
int64_t tracked_peak(void) { return atomic_load(&highest); }
void tracked_restart(void) { atomic_store(&highest, atomic_load(&current)); }

static void* counted(void* block) {
  if (block) add((int64_t)malloc_usable_size(block));
  return block;
}

void* malloc(size_t size) { return counted(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return counted(__libc_calloc(count, size)); }
void* memalign(size_t align, size_t size) { return counted(__libc_memalign(align, size)); }
void* aligned_alloc(size_t align, size_t size) { return counted(__libc_memalign(align, size)); }

int posix_memalign(void** result, size_t align, size_t size) {
  void* block = counted(__libc_memalign(align, size));
  if (!block) return ENOMEM;
  *result = block;
  return 0;
}

void* realloc(void* old, size_t size) {
  const int64_t before = old ? (int64_t)malloc_usable_size(old) : 0;
  void* block = __libc_realloc(old, size);
  if (block || !size) add((block ? (int64_t)malloc_usable_size(block) : 0) - before);
  return block;
}

void free(void* block) {
  if (!block) return;
  add(-(int64_t)malloc_usable_size(block));
  __libc_free(block);
}

/* Mappings, as ranges that may be given back in parts. */
enum { RANGES = 4096 };
static struct { uintptr_t begin, end; } ranges[RANGES];
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void lock(void) {
  while (atomic_flag_test_and_set(&busy)) {
  }
}

static void put(uintptr_t begin, uintptr_t end) {
  for (int k = 0; begin < end && k < RANGES; ++k) {
    if (ranges[k].begin == ranges[k].end) {
      ranges[k].begin = begin;
      ranges[k].end = end;
      add((int64_t)(end - begin));
      return;
    }
  }
}

static void drop(uintptr_t begin, uintptr_t end) {
  for (int k = 0; k < RANGES; ++k) {
    const uintptr_t b = ranges[k].begin, e = ranges[k].end;
    if (b >= end || e <= begin) continue;
    ranges[k].begin = ranges[k].end = 0;
    add(-(int64_t)(e - b));
    put(b, begin);
    put(end, e);
  }
}

void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
  void* mapped = (void*)syscall(SYS_mmap, address, size, protection, flags, file, offset);
  if (mapped != MAP_FAILED && (flags & MAP_ANONYMOUS) && (protection & PROT_WRITE)) {
    lock();
    put((uintptr_t)mapped, (uintptr_t)mapped + size);
    atomic_flag_clear(&busy);
  }
  return mapped;
}

void* mmap64(void* address, size_t size, int protection, int flags, int file, off_t offset) {
  return mmap(address, size, protection, flags, file, offset);
}

int munmap(void* address, size_t size) {
  lock();
  drop((uintptr_t)address, (uintptr_t)address + (size + 4095) / 4096 * 4096);
  atomic_flag_clear(&busy);
  return (int)syscall(SYS_munmap, address, size);
}
