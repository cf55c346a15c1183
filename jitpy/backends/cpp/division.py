"""Remainders and rounded quotients of floats, exact, as C++: a vector at a time where GCC makes vectors.

`fmod` of the C library divides bit by bit. Where the quotient is below 2^23 (2^52), what is left of `a` behind `n * b`
is a multiple of the last place of `b` and no larger than `b`, whether `n` is the quotient rounded or off by one: so one
multiplication and addition, rounded once, tells it exactly. Vectors in which a quotient is larger go element by
element. GCC calls functions with the attribute `simd` for whole vectors, by names that the processor's ABI gives.
"""

from __future__ import annotations

_ONE = """
inline float magnitude(float x) { return __builtin_fabsf(x); }
inline double magnitude(double x) { return __builtin_fabs(x); }
inline float signed_as(float x, float y) { return __builtin_copysignf(x, y); }
inline double signed_as(double x, double y) { return __builtin_copysign(x, y); }
inline float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fused(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float rounded_down(float x) { return __builtin_floorf(x); }
inline double rounded_down(double x) { return __builtin_floor(x); }

// The remainder with the sign of `a`; `far` if the quotient is too large for this way.
template <class T> inline T near_mod(T a, T b, int& far) {
  constexpr T whole = sizeof(T) == 4 ? 0x1p23 : 0x1p52;  // from here on there are no fractions
  const T x = magnitude(a), y = magnitude(b), q = x / y;
  far = (q >= whole) & (y != 0) & (x < (T)__builtin_inf());
  const T n = q + whole - whole, left = fused(-n, y, x), r = left < 0 ? left + y : left;
  return signed_as(x < y ? x : r, a);
}
inline double any_mod(double a, double b) {
  int far;
  const double r = near_mod(a, b, far);
  return far ? __builtin_fmod(a, b) : r;
}
inline float any_mod(float a, float b) { return (float)any_mod((double)a, (double)b); }

// What the three functions make of the remainder `r`.
struct Mod {
  template <class T> static inline T of(T, T, T r) { return r; }
};
struct FloorMod {
  template <class T> static inline T of(T, T b, T r) { return (r != 0) & ((b < 0) != (r < 0)) ? r + b : r; }
};
struct FloorDiv {
  template <class T> static inline T of(T a, T b, T r) {
    const T even = (a - r) / b, q = (r != 0) & ((b < 0) != (r < 0)) ? even - 1 : even, ratio = a / b;
    const T whole = rounded_down(q), nearest = q - whole > (T)0.5 ? whole + 1 : whole;
    const T signed_zero = q == 0 ? signed_as((T)0, ratio) : nearest;
    return b == 0 ? ratio : signed_zero;
  }
};

template <class F, class T> inline T divided(T a, T b) { return F::of(a, b, any_mod(a, b)); }
template <class F, class T> __attribute__((noinline)) void divided_each(const T* a, const T* b, T* c, int lanes) {
  for (int l = 0; l < lanes; ++l) c[l] = divided<F>(a[l], b[l]);
}
template <class F, class T, class V> inline V divided_vector(V a, V b) {
  typedef V Lanes __attribute__((may_alias));
  constexpr int lanes = sizeof(V) / sizeof(T);
  alignas(V) T x[lanes], y[lanes], z[lanes];
  *(Lanes*)x = a;
  *(Lanes*)y = b;
  int any = 0;
#pragma omp simd reduction(|:any)
  for (int l = 0; l < lanes; ++l) {
    int far;
    const T r = near_mod(x[l], y[l], far);
    any |= far;
    z[l] = F::of(x[l], y[l], r);
  }
  if (__builtin_expect(any, 0)) divided_each<F>(x, y, z, lanes);
  return *(Lanes*)z;
}
"""

#: By letters of the ABI: what the compiler must be told of the processor, and the bytes of a vector.
_VECTORS = {"b": ("__AVX2__", 16), "d": ("__AVX2__", 32), "e": ("__AVX512F__", 64)}


def _function(name: str, rule: str, kind: str) -> str:
    """The function, and one for each width of vectors. It is defined beside its declaration, by an `asm` name: GCC
    would make vector functions of a definition by itself, without the way that few vectors take."""
    result = f"""#ifdef __AVX2__
extern "C" __attribute__((simd("notinbranch"), const, visibility("hidden"))) {kind} {name}({kind}, {kind}) noexcept;
extern "C" __attribute__((visibility("hidden"))) {kind} {name}_one({kind} a, {kind} b) noexcept __asm__("{name}");
extern "C" {kind} {name}_one({kind} a, {kind} b) noexcept {{ return divided<{rule}>(a, b); }}
#else
static inline {kind} {name}({kind} a, {kind} b) {{ return divided<{rule}>(a, b); }}
#endif
"""
    for letter, (macro, size) in _VECTORS.items():
        vector = f"{kind}_{size}"
        function = f"_ZGV{letter}N{size // (4 if kind == 'float' else 8)}vv_{name}"
        result += f"""#ifdef {macro}
typedef {kind} {vector} __attribute__((vector_size({size})));
extern "C" __attribute__((visibility("hidden"))) {vector} {function}({vector} a, {vector} b) noexcept {{
  return divided_vector<{rule}, {kind}>(a, b);
}}
#endif
"""
    return result


#: The pieces of the prelude: `near_mod` is what the others share.
PIECES = {"near_mod": _ONE}
for _name, _rule in {"fmod": "Mod", "floor_mod": "FloorMod", "floor_div": "FloorDiv"}.items():
    for _kind, _suffix in (("float", "f32"), ("double", "f64")):
        PIECES[f"{_name}_{_suffix}"] = "// near_mod\n" + _function(f"{_name}_{_suffix}", _rule, _kind)
