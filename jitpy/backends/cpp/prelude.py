"""The C++ that every generated file may use: types, conversions, math, threads. Only what a file mentions is put into
it."""

from __future__ import annotations

import functools
import platform
import re

import torch

from . import division

#: C++ types of what is computed in.
TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}

#: C++ types of what is in memory. Compilers do not vectorize loops that read or write `bool`.
STORAGE = {**TYPES, torch.bool: "uint8_t", torch.float16: "uint16_t", torch.bfloat16: "uint16_t",
           torch.float8_e4m3fn: "uint8_t", torch.float8_e5m2: "uint8_t"}

HEADER = """\
#include <cstdint>
typedef void (*Part)(int64_t begin, int64_t end, void* const* ptr, const int64_t* sz);
"""

#: Pieces by the name that calls them; a piece may call others.
PIECES: dict[str, str] = {}


def _piece(name: str, text: str) -> None:
    PIECES[name] = text.strip("\n") + "\n"


_piece(
    "whole",
    """
// A float as an integer. A compiler that knew `no_bits` would take (float)(int64_t)x for trunc(x), which differs for
// NaN, what is out of range, and below zero; and would convert such constants (also those that x is chosen from) by
// itself, to numbers that the processor's instructions do not give.
int32_t no_bits = 0;
static inline float opaque(float x) { return __builtin_bit_cast(float, __builtin_bit_cast(int32_t, x) | no_bits); }
static inline double opaque(double x) {
  return __builtin_bit_cast(double, __builtin_bit_cast(int64_t, x) | (int64_t)no_bits);
}
template <typename I, typename F> static inline I whole(F x) { return (I)opaque(x) | (I)no_bits; }
""",
)
_piece(
    "omp_get_thread_num",
    """
extern "C" int omp_get_thread_num(void) noexcept;
extern "C" int omp_get_num_threads(void) noexcept;
""",
)
_piece(
    "run_parts",
    """
// Calls part(begin, end) on slices of 0..n, on all threads if there is enough work.
static void run_parts(int64_t n, int64_t align, bool many, Part part, void* const* ptr, const int64_t* sz) {
  if (!many) {
    part(0, n, ptr, sz);
    return;
  }
#pragma omp parallel
  {
    const int64_t t = omp_get_thread_num(), threads = omp_get_num_threads();
    int64_t step = (n + threads - 1) / threads;
    step = (step + align - 1) / align * align;
    const int64_t begin = t * step, end = begin + step < n ? begin + step : n;
    if (begin < end) part(begin, end, ptr, sz);
  }
}
""",
)
_piece(
    "run_batch",
    """
// Calls part(begin, end) for each of `parts` sets of `operands` pointers, on slices of their counts: all threads do the
// same amount of the whole work.
static void run_batch(int64_t parts, int64_t operands, const int64_t* counts, bool many, Part part, void* const* ptr,
                      const int64_t* sz) {
  if (!many) {
    for (int64_t p = 0; p < parts; ++p) part(0, counts[p], ptr + p * operands, sz);
    return;
  }
  int64_t total = 0;
  for (int64_t p = 0; p < parts; ++p) total += (counts[p] + 63) / 64;
#pragma omp parallel
  {
    const int64_t t = omp_get_thread_num(), threads = omp_get_num_threads();
    int64_t first = total * t / threads, last = total * (t + 1) / threads;
    for (int64_t p = 0; p < parts && last > 0; ++p) {
      const int64_t blocks = (counts[p] + 63) / 64;
      const int64_t begin = (first < 0 ? 0 : first) * 64, end = last * 64 < counts[p] ? last * 64 : counts[p];
      if (begin < end) part(begin, end, ptr + p * operands, sz);
      first -= blocks;
      last -= blocks;
    }
  }
}
""",
)
_piece(
    "Scratch",
    """
// A buffer of this thread that lives as long as the thread.
struct Scratch {
  void* memory = nullptr;
  int64_t size = 0;
  ~Scratch() { __builtin_free(memory); }
  void* get(int64_t bytes) {
    if (bytes > size) {
      __builtin_free(memory);
      size = (bytes + 63) / 64 * 64;
      memory = aligned_alloc(64, size);
    }
    return memory;
  }
};
""",
)
_piece(
    "choose",
    """
// condition ? a : b in bits, of which GCC makes no branch.
template <class T, class Bits>
static inline T choose(bool condition, T a, T b) {
  const Bits mask = (Bits)-(Bits)condition;
  return __builtin_bit_cast(T, (Bits)((__builtin_bit_cast(Bits, a) & mask) | (__builtin_bit_cast(Bits, b) & ~mask)));
}
""",
)
_piece(
    "float_of_bf16",
    """
static inline float float_of_bf16(uint16_t x) { return __builtin_bit_cast(float, (uint32_t)x << 16); }
""",
)
_piece(
    "bf16_of_float",
    """
// To nearest, ties to even.
static inline uint16_t bf16_of_float(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (uint16_t)choose<uint32_t, uint32_t>(x != x, 0x7fc0, rounded);
}
""",
)
_piece(
    "float_of_f16",
    """
static inline float float_of_f16(uint16_t x) {
  const uint32_t bits = (uint32_t)(x & 0x7fff) << 13;
  const uint32_t scaled = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, bits) * 0x1p112f);
  const uint32_t special = bits >= 0x0f800000u ? 0x7f800000u : 0u;  // infinity, NaN
  return __builtin_bit_cast(float, scaled | special | (uint32_t)(x & 0x8000) << 16);
}
""",
)
_piece(
    "f16_of_float",
    """
// To nearest, ties to even.
static inline uint16_t f16_of_float(float x) {
  const uint32_t all = __builtin_bit_cast(uint32_t, x), bits = all & 0x7fffffff;
  const uint32_t normal = (bits + 0xc8000fffu + ((bits >> 13) & 1)) >> 13;
  const uint32_t small = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, bits) + 0.5f) - 0x3f000000u;
  const uint32_t large = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t result = bits >= 0x47800000u ? large : bits < 0x38800000u ? small : normal;
  return (uint16_t)(result | ((all >> 16) & 0x8000));
}
""",
)
_piece(
    "round_bf16",
    """
static inline float round_bf16(float x) { return float_of_bf16(bf16_of_float(x)); }
""",
)
_piece(
    "round_f16",
    """
// What is left of a float in 16 bits, to nearest, ties to even; too large becomes infinity.
static inline float round_f16(float x) {
  const float a = __builtin_fabsf(x);
  const uint32_t bits = __builtin_bit_cast(uint32_t, a);
  const float normal = __builtin_bit_cast(float, (bits + 0xfff + ((bits >> 13) & 1)) & 0xffffe000u);
  const float small = (a + 0.5f) - 0.5f;  // steps of 2 to the -24
  const float kept = a < 0x1p-14f ? small : normal > 65504.0f ? __builtin_inff() : normal;
  return x != x ? x : __builtin_copysignf(kept, x);
}
""",
)
_piece(
    "float_of_e4m3",
    """
static inline float float_of_e4m3(uint8_t x) {
  const uint32_t bits = x & 0x7f;
  const float normal = __builtin_bit_cast(float, (bits << 20) + 0x3c000000u), small = (float)(int)bits * 0x1p-9f;
  const uint32_t found = __builtin_bit_cast(uint32_t, bits < 8 ? small : normal);
  return __builtin_bit_cast(float, (bits == 0x7f ? 0x7fc00000u : found) | (uint32_t)(x & 0x80) << 24);
}
""",
)
_piece("float_of_e5m2", "static inline float float_of_e5m2(uint8_t x) { return float_of_f16((uint16_t)(x << 8)); }")
for _name, _dtype, _shift, _bias, _most in (("e4m3", torch.float8_e4m3fn, 20, 120, 0x43e80001),
                                            ("e5m2", torch.float8_e5m2, 21, 112, 0x47700000)):
    # larger numbers are what torch makes of them: that depends on its version
    _large = torch.tensor(1e9).to(_dtype).view(torch.uint8).item()
    _piece(
        f"{_name}_of_float",
        f"""
// To nearest, ties to even.
static inline uint8_t {_name}_of_float(float x) {{
  const uint32_t all = __builtin_bit_cast(uint32_t, x), bits = all & 0x7fffffff;
  const uint32_t ones = {(_bias + _shift + 1) << 23}u;
  const float sum = __builtin_bit_cast(float, bits) + __builtin_bit_cast(float, ones);
  const uint32_t small = __builtin_bit_cast(uint32_t, sum);
  const uint32_t normal = (bits - {_bias << 23}u + {(1 << (_shift - 1)) - 1}u + ((bits >> {_shift}) & 1)) >> {_shift};
  const uint32_t kept = bits < {(_bias + 1) << 23}u ? small - ones : normal;
  const uint32_t result = bits > 0x7f800000u ? 0x7fu : bits >= {_most}u ? {_large}u : kept;
  return (uint8_t)(result | (all >> 24 & 0x80));
}}
""",
    )
    _piece(f"round_{_name}",
           f"static inline float round_{_name}(float x) {{ return float_of_{_name}({_name}_of_float(x)); }}")
_piece(
    "widen_bf16",
    """
// N elements side by side, a multiple of 16.
template <int N> static inline void widen_bf16(const uint16_t* from, float* to) {
#if defined(__AVX512F__)
  typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
  typedef uint32_t Words __attribute__((vector_size(64), may_alias));
  for (int k = 0; k < N; k += 16)
    *(Words*)(to + k) = __builtin_convertvector(*(const Halves*)(from + k), Words) << 16;
#elif defined(__AVX2__)
  typedef short Halves __attribute__((vector_size(16), aligned(2), may_alias));
  typedef int Words __attribute__((vector_size(32), may_alias));
  for (int k = 0; k < N; k += 8)
    *(Words*)(to + k) = (Words)__builtin_ia32_pmovzxwd256(*(const Halves*)(from + k)) << 16;
#else
  for (int k = 0; k < N; ++k) to[k] = float_of_bf16(from[k]);
#endif
}
static __attribute__((noinline)) void widen_bf16(const uint16_t* from, float* to, int64_t n) {
  for (int64_t k = 0; k < n; ++k) to[k] = float_of_bf16(from[k]);
}
""",
)
_piece(
    "upper_halves",
    """
// The upper 16 bits of N words side by side, of floats that bfloat16 holds exactly; N is a multiple of 16.
template <int N> static inline void upper_halves(const float* from, uint16_t* to) {
#if defined(__AVX512F__)
  typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));
  typedef uint32_t Words __attribute__((vector_size(64), may_alias));
  for (int k = 0; k < N; k += 16)
    *(Halves*)(to + k) = __builtin_convertvector(*(const Words*)(from + k) >> 16, Halves);
#elif defined(__AVX2__)
  typedef uint32_t Words __attribute__((vector_size(32), may_alias));
  typedef int Signed __attribute__((vector_size(32)));
  typedef long long Quarters __attribute__((vector_size(32), aligned(2), may_alias));
  for (int k = 0; k < N; k += 16) {
    const Signed a = (Signed)(*(const Words*)(from + k) >> 16), b = (Signed)(*(const Words*)(from + k + 8) >> 16);
    *(Quarters*)(to + k) = __builtin_ia32_permdi256((Quarters)__builtin_ia32_packusdw256(a, b), 0xd8);
  }
#else
  for (int k = 0; k < N; ++k) to[k] = (uint16_t)(__builtin_bit_cast(uint32_t, from[k]) >> 16);
#endif
}
static __attribute__((noinline)) void upper_halves(const float* from, uint16_t* to, int64_t n) {
  for (int64_t k = 0; k < n; ++k) to[k] = (uint16_t)(__builtin_bit_cast(uint32_t, from[k]) >> 16);
}
""",
)
_piece(
    "narrow_bf16",
    """
// To nearest, ties to even: N floats, a multiple of 16, which are lost.
template <int N> static inline void narrow_bf16(float* from, uint16_t* to) {
#pragma omp simd
  for (int k = 0; k < N; ++k) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, from[k]);
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    from[k] = __builtin_bit_cast(float, from[k] != from[k] ? 0x7fc00000 : rounded);
  }
  upper_halves<N>(from, to);
}
static __attribute__((noinline)) void narrow_bf16(const float* from, uint16_t* to, int64_t n) {
  for (int64_t k = 0; k < n; ++k) to[k] = bf16_of_float(from[k]);
}
""",
)
_piece(
    "widen_f16",
    """
// N elements side by side, a multiple of 16.
template <int N> static inline void widen_f16(const uint16_t* from, float* to) {
#ifdef __F16C__
  typedef short Halves __attribute__((vector_size(16), aligned(2), may_alias));
  typedef float Floats __attribute__((vector_size(32), may_alias));
  for (int k = 0; k < N; k += 8) *(Floats*)(to + k) = __builtin_ia32_vcvtph2ps256(*(const Halves*)(from + k));
#else
  for (int k = 0; k < N; ++k) to[k] = float_of_f16(from[k]);
#endif
}
static __attribute__((noinline)) void widen_f16(const uint16_t* from, float* to, int64_t n) {
  for (int64_t k = 0; k < n; ++k) to[k] = float_of_f16(from[k]);
}
""",
)
_piece(
    "narrow_f16",
    """
// To nearest, ties to even: N floats, a multiple of 16.
template <int N> static inline void narrow_f16(const float* from, uint16_t* to) {
#ifdef __F16C__
  typedef short Halves __attribute__((vector_size(16), aligned(2), may_alias));
  typedef float Floats __attribute__((vector_size(32), may_alias));
  for (int k = 0; k < N; k += 8) *(Halves*)(to + k) = __builtin_ia32_vcvtps2ph256(*(const Floats*)(from + k), 0);
#else
  for (int k = 0; k < N; ++k) to[k] = f16_of_float(from[k]);
#endif
}
static __attribute__((noinline)) void narrow_f16(const float* from, uint16_t* to, int64_t n) {
  for (int64_t k = 0; k < n; ++k) to[k] = f16_of_float(from[k]);
}
""",
)
_piece(
    "floor_div",
    """
template <class T> static inline T floor_div(T a, T b) {
  const T q = a / b, r = a % b;
  return q - (T)((r != 0) & ((r < 0) != (b < 0)));
}
""",
)
_piece(
    "floor_mod",
    """
template <class T> static inline T floor_mod(T a, T b) {
  const T r = a % b;
  return (r != 0) & ((r < 0) != (b < 0)) ? (T)(r + b) : r;
}
""",
)
_piece(
    "fold_sum",
    """
// The sum of N lanes, pairwise; N is a power of two.
template <int N, class T> static inline T fold_sum(const T* a) {
  if constexpr (N == 1) {
    return a[0];
  } else {
    T b[N / 2];
#pragma omp simd
    for (int l = 0; l < N / 2; ++l) b[l] = a[l] + a[l + N / 2];
    return fold_sum<N / 2>(b);
  }
}
""",
)
_piece(
    "fold_prod",
    """
// The product of N lanes.
template <int N, class T> static inline T fold_prod(const T* a) {
  if constexpr (N == 1) {
    return a[0];
  } else {
    T b[N / 2];
#pragma omp simd
    for (int l = 0; l < N / 2; ++l) b[l] = a[l] * a[l + N / 2];
    return fold_prod<N / 2>(b);
  }
}
""",
)
_piece(
    "fold_max",
    """
// The largest of N lanes.
template <int N, class T> static inline T fold_max(const T* a) {
  if constexpr (N == 1) {
    return a[0];
  } else {
    T b[N / 2];
#pragma omp simd
    for (int l = 0; l < N / 2; ++l) b[l] = pick_max(a[l], a[l + N / 2]);
    return fold_max<N / 2>(b);
  }
}
""",
)
_piece(
    "fold_min",
    """
// The smallest of N lanes.
template <int N, class T> static inline T fold_min(const T* a) {
  if constexpr (N == 1) {
    return a[0];
  } else {
    T b[N / 2];
#pragma omp simd
    for (int l = 0; l < N / 2; ++l) b[l] = pick_min(a[l], a[l + N / 2]);
    return fold_min<N / 2>(b);
  }
}
""",
)
_piece(
    "fold_any",
    """
template <int N, class T> static inline T fold_any(const T* a) {
  T result = 0;
  for (int l = 0; l < N; ++l) result |= a[l];
  return result;
}
""",
)
_piece(
    "fold_all",
    """
template <int N, class T> static inline T fold_all(const T* a) {
  T result = 1;
  for (int l = 0; l < N; ++l) result &= a[l];
  return result;
}
""",
)
for _name, _sign in (("max", ">"), ("min", "<")):
    _piece(
        f"pick_{_name}",
        f"""
// The larger or smaller one; NaN if either is. Two choices: of one by (a > b) | (a != a) GCC makes branches.
template <class T> static inline T pick_{_name}(T a, T b) {{ const T c = a {_sign} b ? a : b; return a != a ? a : c; }}
""",
    )
    _piece(
        f"fold_arg{_name}",
        f"""
// The position of the largest or smallest of n lanes (NaN counts as that), the first one of equals.
template <class T, class P> static int64_t fold_arg{_name}(T* v, P* p, int n, P none) {{
  for (int l = 1; l < n; ++l) {{
    const bool better = (v[l] {_sign} v[0]) | ((v[l] != v[l]) & (v[0] == v[0]));
    const bool equal = (v[l] == v[0]) | ((v[l] != v[l]) & (v[0] != v[0]));
    if (better | (equal & (p[l] < p[0]))) {{ v[0] = v[l]; p[0] = p[l]; }}
  }}
  return p[0] == none ? 0 : (int64_t)p[0];
}}
""",
    )
_piece(
    "multiply_add",
    """
// a * b + c, rounded once where the machine can.
static inline float multiply_add(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
""",
)
_piece(
    "multiply_tile",
    """
// c = a b, or c + a b with ADD: N columns side by side, a multiple of 16; rows and steps of `a` are anywhere.
#ifdef __AVX512F__
enum { TILE_ROWS = 8, TILE_COLUMNS = 32 };
#else
enum { TILE_ROWS = 6, TILE_COLUMNS = 16 };
#endif
template <int R, int W, bool ADD>
static inline void multiply_part(const float* a, int64_t row, int64_t step, const float* b, int64_t n, float* c,
                                 int64_t inner) {
  float sums[R][W];
  for (int r = 0; r < R; ++r)
#pragma omp simd
    for (int j = 0; j < W; ++j) sums[r][j] = ADD ? c[r * n + j] : 0.0f;
  for (int64_t t = 0; t < inner; ++t)
    for (int r = 0; r < R; ++r) {
      const float x = a[r * row + t * step];
#pragma omp simd
      for (int j = 0; j < W; ++j) sums[r][j] = multiply_add(x, b[t * n + j], sums[r][j]);
    }
  for (int r = 0; r < R; ++r)
#pragma omp simd
    for (int j = 0; j < W; ++j) c[r * n + j] = sums[r][j];
}
template <int N, bool ADD>
static void multiply_tile(const float* a, int64_t row, int64_t step, const float* b, float* c, int64_t rows,
                          int64_t inner) {
  constexpr int W = N % TILE_COLUMNS ? 16 : TILE_COLUMNS;
  int64_t r = 0;
  for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
    for (int j = 0; j < N; j += W)
      multiply_part<TILE_ROWS, W, ADD>(a + r * row, row, step, b + j, N, c + r * N + j, inner);
  for (; r < rows; ++r)
    for (int j = 0; j < N; j += W) multiply_part<1, W, ADD>(a + r * row, row, step, b + j, N, c + r * N + j, inner);
}
""",
)
_piece(
    "exp_near_0_f32",
    """
// e to the r for |r| <= ln 2 / 2, a polynomial.
static inline float exp_near_0_f32(float r) {
  float p = 1.9875691500e-4f;
  p = multiply_add(p, r, 1.3981999507e-3f);
  p = multiply_add(p, r, 8.3334519073e-3f);
  p = multiply_add(p, r, 4.1665795894e-2f);
  p = multiply_add(p, r, 1.6666665459e-1f);
  p = multiply_add(p, r, 5.0000001201e-1f);
  return multiply_add(p * r, r, r) + 1.0f;
}
""",
)
_piece(
    "exp_f32",
    """
// e to the x, within 1 ulp: x = n ln 2 + r, a polynomial in r, and n added to the exponent in two halves.
static inline float exp_f32(float x) {
  x = x < -105.0f ? -105.0f : x > 89.0f ? 89.0f : x;
  const float n = __builtin_rintf(x * 1.44269504f);
  float r = multiply_add(n, -0.693359375f, x);
  r = multiply_add(n, 2.12194440e-4f, r);
  const float p = exp_near_0_f32(r);
  const int32_t whole = (int32_t)n, half = whole >> 1;
  const float scale1 = __builtin_bit_cast(float, (half + 127) << 23);
  // times zero where nothing is left: products that underflow made a masked softmax six times as slow
  const float scale2 = __builtin_bit_cast(float, (whole - half + 127) << 23 & ~((whole + 150) >> 31));
  return p * scale1 * scale2;
}
""",
)
_piece(
    "log_f32",
    """
// Natural logarithm, within 1 ulp: x = m 2^e with m in [2/3, 4/3], a polynomial in m - 1.
static inline float log_f32(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float a = tiny ? x * 8388608.0f : x;
  const int32_t e = (__builtin_bit_cast(int32_t, a) - 0x3f2aaaab) & (int32_t)0xff800000;
  const float m = __builtin_bit_cast(float, __builtin_bit_cast(int32_t, a) - e) - 1.0f;
  const float i = multiply_add((float)e, 1.19209290e-7f, tiny ? -23.0f : 0.0f);
  const float s = m * m;
  float r = -0.130310059f, t = 0.140869141f;
  r = multiply_add(r, s, -0.121483512f);
  t = multiply_add(t, s, 0.139814854f);
  r = multiply_add(r, s, -0.166846126f);
  t = multiply_add(t, s, 0.200120345f);
  r = multiply_add(r, s, -0.249996200f);
  r = multiply_add(t, m, r);
  r = multiply_add(r, m, 0.333331972f);
  r = multiply_add(r, m, -0.5f);
  r = multiply_add(r, s, m);
  r = multiply_add(i, 0.693147182f, r);
  r = x < 0 ? __builtin_nanf("") : r;
  r = x == 0 ? -__builtin_inff() : r;
  return (x != x) | (x > 3.40282347e+38f) ? x : r;
}
""",
)
_piece(
    "erf_f32",
    """
// Within 1 ulp: a polynomial near 0, 1 - exp(polynomial) beyond.
static inline float erf_f32(float x) {
  const float t = __builtin_fabsf(x), s = x * x;
  float far = multiply_add(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = multiply_add(-3.88396438e-3f, t, 2.42546219e-2f);
  far = multiply_add(far, s, u);
  far = multiply_add(far, t, -1.06777877e-1f);
  far = multiply_add(far, t, -6.34846687e-1f);
  far = multiply_add(far, t, -1.28717512e-1f);
  far = multiply_add(far, t, -t);
  // e to the far, which is negative: below -20 that makes no difference
  far = far < -20.0f ? -20.0f : far;
  const float n = __builtin_rintf(far * 1.44269504f);
  float r = multiply_add(n, -0.693359375f, far);
  r = multiply_add(n, 2.12194440e-4f, r);
  const float p = exp_near_0_f32(r) * __builtin_bit_cast(float, ((int32_t)n + 127) << 23);
  far = __builtin_copysignf(1.0f - p, x);
  float near = -5.96761703e-4f;
  near = multiply_add(near, s, 4.99119423e-3f);
  near = multiply_add(near, s, -2.67681349e-2f);
  near = multiply_add(near, s, 1.12819925e-1f);
  near = multiply_add(near, s, -3.76125336e-1f);
  near = multiply_add(near, s, 1.28379166e-1f);
  near = multiply_add(near, x, x);
  return t > 0.927734375f ? far : near;
}
""",
)
_piece(
    "index_error",
    """
// Set by a kernel that met an index out of range.
extern "C" { volatile int64_t index_error = 0; }
""",
)

PIECES.update(division.PIECES)

#: Functions of the math library, in float32 and float64. True: glibc's vector library has them.
_LIBM = {
    "exp": True,
    "log": True,
    "sin": True,
    "cos": True,
    "pow": True,
    "exp2": True,
    "expm1": True,
    "log2": True,
    "log10": True,
    "log1p": True,
    "tan": True,
    "asin": True,
    "acos": True,
    "atan": True,
    "sinh": True,
    "cosh": True,
    "tanh": True,
    "asinh": True,
    "acosh": True,
    "atanh": True,
    "erf": True,
    "erfc": True,
    "atan2": True,
    "hypot": True,
    "lgamma": False,
    "nextafter": False,
}
_OLD_VECTOR = {"exp", "log", "sin", "cos", "pow"}
_TWO_ARGUMENTS = {"pow", "atan2", "hypot", "nextafter"}


@functools.cache
def vector_functions() -> frozenset[str]:
    """The functions of which this machine's C library has vector versions."""
    name, version = platform.libc_ver()
    if name != "glibc" or platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers >= (2, 35):
        return frozenset(name for name, vector in _LIBM.items() if vector)
    return frozenset(_OLD_VECTOR) if numbers >= (2, 22) else frozenset()


def declaration(function: str, vector: bool) -> str:
    """The declaration of a function of the math library: `sinf`, `sin`, ..."""
    base = function[:-1] if function not in _LIBM and function.endswith("f") else function
    kind = "double" if function == base else "float"
    attribute = (
        '__attribute__((simd("notinbranch"), const)) '
        if vector and base in vector_functions()
        else "__attribute__((const)) "
    )
    arguments = f"{kind}, {kind}" if base in _TWO_ARGUMENTS else kind
    return f'extern "C" {attribute}{kind} {function}({arguments}) noexcept;\n'


_WORD = re.compile(r"[A-Za-z_]\w*")


def assemble(body: str, vector: bool) -> str:
    """A whole file: the header, the pieces that `body` needs, and `body`."""
    needed: dict[str, None] = {}

    def visit(text: str) -> None:
        for word in dict.fromkeys(_WORD.findall(text)):
            if word in PIECES and word not in needed:
                visit(_without(word, PIECES[word]))
                needed[word] = None

    visit(body)
    text = "".join(PIECES[name] for name in needed)
    words = set(_WORD.findall(body)) | set(_WORD.findall(text))
    libm = [name for base in _LIBM for name in (base, base + "f") if name in words]
    includes = "#include <cstdlib>\n" if "Scratch" in needed else ""
    return HEADER + includes + "".join(declaration(name, vector) for name in libm) + text + body


def _without(word: str, text: str) -> str:
    return " ".join(w for w in _WORD.findall(text) if w != word)
