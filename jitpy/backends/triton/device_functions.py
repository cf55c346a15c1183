"""Functions that kernels call: combinations for reductions and scans, and arithmetic as torch has it.

Nobody imports this module. `helpers.py` reads its text, and a kernel's module has the functions that it uses.
"""
# mypy: ignore-errors

import triton
import triton.language as tl
from triton.language.extra import libdevice

from jitpy.ir.ops.philox import ANGLE

#: what compiles a kernel says which GPU it is for
MACHINE = tl.constexpr("cuda")
HOPPER = tl.constexpr(False)


@triton.jit
def combine_sum(a, b):
    return a + b


@triton.jit
def combine_two_sums(a, b, c, d):
    return a + c, b + d


@triton.jit
def combine_prod(a, b):
    return a * b


@triton.jit
def combine_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def combine_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def is_argmax(a, b):
    # whether the later of two is better: NaN is the best
    return (a > b) | ((a != a) & (b == b))


@triton.jit
def is_argmin(a, b):
    # whether the later of two is better: NaN is the best
    return (a < b) | ((a != a) & (b == b))


@triton.jit
def word(value):
    # 32 bits, and a mark that they are there
    return (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | (1 << 32)


@triton.jit
def half_word(value, HALF: tl.constexpr):
    return ((value.to(tl.int64, bitcast=True) >> (32 * HALF)) & 0xFFFFFFFF) | (1 << 32)


@triton.jit
def await_words(pointer, mask):
    words = tl.load(pointer, mask=mask, other=1 << 32, volatile=True)
    while tl.reduce(words >> 32, None, combine_min) == 0:
        words = tl.load(pointer, mask=mask, other=1 << 32, volatile=True)
    return words


@triton.jit
def of_word(word, DTYPE: tl.constexpr):
    return word.to(tl.int32).to(DTYPE, bitcast=True)


@triton.jit
def of_halves(low, high, DTYPE: tl.constexpr):
    return ((low & 0xFFFFFFFF) | (high << 32)).to(DTYPE, bitcast=True)


@triton.jit
def combine_moments(mean_a, square_a, count_a, mean_b, square_b, count_b):
    # means and sums of squared differences from them, of two sets (Chan, Golub, LeVeque)
    apart = mean_b - mean_a
    count = count_a + count_b
    share = count_b / count
    return mean_a + apart * share, square_a + square_b + apart * apart * count_a * share, count


@triton.jit
def floor_div_int(a, b):
    q = a // b
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def floor_mod_int(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def floor_mod(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def floor_div(a, b):
    # exact where the quotient is close to an integer
    r = libdevice.fmod(a, b)
    q = (a - r) / b
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
    whole = tl.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    plain = a / b
    return tl.where(b == 0, plain, tl.where(q != 0, whole, libdevice.copysign(plain * 0, plain)))


@triton.jit
def floor_div_f32(a, b):
    # exact where the quotient is close to an integer
    r = libdevice.fmod(a, b)
    q = tl.div_rn(a - r, b)
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
    whole = tl.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    plain = tl.div_rn(a, b)
    return tl.where(b == 0, plain, tl.where(q != 0, whole, libdevice.copysign(plain * 0, plain)))


@triton.jit
def erf_short(x):
    # a rational function, within 4e-7: for results of 16 bits
    z = tl.maximum(x, -4.0, propagate_nan=tl.PropagateNan.ALL)
    z = tl.minimum(z, 4.0, propagate_nan=tl.PropagateNan.ALL)
    s = z * z
    p = tl.fma(s, -2.72614225801306e-10, 2.77068142495902e-08)
    p = tl.fma(p, s, -2.10102402082508e-06)
    p = tl.fma(p, s, -5.69250639462346e-05)
    p = tl.fma(p, s, -7.34990630326855e-04)
    p = tl.fma(p, s, -2.95459980854025e-03)
    p = tl.fma(p, s, -1.60960333262415e-02)
    q = tl.fma(s, -1.45660718464996e-05, -2.13374055278905e-04)
    q = tl.fma(q, s, -1.68282697438203e-03)
    q = tl.fma(q, s, -7.37332916720468e-03)
    q = tl.fma(q, s, -1.42647390514189e-02)
    return libdevice.fast_dividef(z * p, q)


@triton.jit
def tanh_short(x):
    # by an exponential, near 0 by its series: within 5e-7, for results of 16 bits
    y = tl.abs(x)
    s = x * x
    large = 1.0 - libdevice.fast_dividef(2.0, 1.0 + libdevice.fast_expf(2.0 * y))
    small = tl.fma(tl.fma(tl.fma(s, -0.053968254, 0.13333333), s, -0.33333333), s * y, y)
    return libdevice.copysign(tl.where(y < 0.25, small, large), x)


@triton.jit
def again(x):
    # the same, of which the compiler does not know that it had it in a wider form
    if MACHINE == "cuda":
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
    return x


@triton.jit
def upper_half(x):
    # the number without the lower 16 bits, so that bfloat16 has it exactly
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def three_parts(x):
    # a float32 as the sum of three numbers that bfloat16 has exactly
    large = upper_half(x)
    rest = x - large
    middle = upper_half(rest)
    return large.to(tl.bfloat16), middle.to(tl.bfloat16), (rest - middle).to(tl.bfloat16)


@triton.jit
def has_unknown(x):
    # whether there is a NaN
    return tl.reduce(tl.reduce((x != x).to(tl.int32), 1, combine_max), 0, combine_max) > 0


@triton.jit
def let_next_begin():
    # the next launch may take its place on the chip: it waits for the results of this one
    if HOPPER:
        tl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], tl.int32, is_pure=False, pack=1)


@triton.jit
def await_results():
    # of the launch in front of this one, which may still run
    if HOPPER:
        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], tl.int32, is_pure=False, pack=1)


@triton.jit
def fetch(pointer, BYTES: tl.constexpr):
    # into the second level cache: one request of one thread, and nobody waits for it
    if HOPPER:
        tl.inline_asm_elementwise("{ .reg .pred first; .reg .b32 thread; .reg .b64 at; mov.u32 thread, %tid.x;"
                                  " setp.eq.u32 first, thread, 0; and.b64 at, $1, -16;"
                                  " @first cp.async.bulk.prefetch.L2.global [at], $2; mov.u32 $0, 0; }",
                                  "=r,l,r", [pointer.to(tl.int64), BYTES], tl.int32, is_pure=False, pack=1)


@triton.jit
def meet():
    # all programs of the cluster: what each does in front of this happens in front of what the others do behind it
    if MACHINE == "cuda":
        tl.inline_asm_elementwise("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; // $0",
                                  "=r", [], tl.int32, is_pure=False, pack=1)


@triton.jit
def hand_over():
    # what each program of the cluster has written, the others can read now
    meet()


@triton.jit
def await_readers():
    # what each program of the cluster has read, the others can write over now
    meet()


@triton.jit
def philox(seed, counter, stream):
    # Philox4x32-10: four numbers of 32 bits
    a, b = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c, d = stream, stream ^ stream
    k, m = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        first, second = a.to(tl.uint64) * 0xD2511F53, c.to(tl.uint64) * 0xCD9E8D57
        a, b = (second >> 32).to(tl.uint32) ^ b ^ k, second.to(tl.uint32)
        c, d = (first >> 32).to(tl.uint32) ^ d ^ m, first.to(tl.uint32)
        k, m = k + 0x9E3779B9, m + 0xBB67AE85
    return a, b, c, d


@triton.jit
def unit(number):
    # a number of 32 bits as one between 0 and 1, as curand has it
    return tl.fma(number.to(tl.float32), 2.0**-32, 2.0**-33)


@triton.jit
def is_below(number, limit):
    return unit(number) < limit


@triton.jit
def call_of(index, seed, offset, THREADS: tl.constexpr):
    # the four numbers of the call in which eager's kernel draws for an element, and which of them is its own
    at = index.to(tl.uint32)
    turn = at // THREADS
    a, b, c, d = philox(seed, (offset >> 2) + turn // 4, at % THREADS)
    return a, b, c, d, turn % 4


@triton.jit
def drawn_uniform(index, seed, offset, THREADS: tl.constexpr, SCALE: tl.constexpr, SHIFT: tl.constexpr):
    a, b, c, d, lane = call_of(index, seed, offset, THREADS)
    number = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return tl.fma(unit(number), SCALE, SHIFT)


@triton.jit
def drawn_normal(index, seed, offset, THREADS: tl.constexpr, SCALE: tl.constexpr, SHIFT: tl.constexpr):
    # Box and Muller, with curand's short functions
    a, b, c, d, lane = call_of(index, seed, offset, THREADS)
    angle = tl.fma(tl.where(lane < 2, b, d).to(tl.float32), ANGLE, ANGLE / 2)
    away = tl.sqrt_rn(libdevice.log(unit(tl.where(lane < 2, a, c))) * -2.0)
    return tl.fma(tl.where(lane % 2 == 0, libdevice.fast_sinf(angle), libdevice.fast_cosf(angle)) * away, SCALE, SHIFT)


@triton.jit
def drawn_below(index, seed, offset, THREADS: tl.constexpr, VECTOR: tl.constexpr, LIMIT: tl.constexpr):
    # whether the number that eager's kernel draws for an element is below the limit
    at = index.to(tl.uint32)
    turn = at // VECTOR // THREADS
    thread = at // VECTOR % THREADS
    if VECTOR == 1:
        lane, call = turn % 4, turn // 4
    elif VECTOR == 2:
        lane, call = at % 2, turn
    else:
        lane, call = at % 4, turn * (VECTOR // 4) + at // 4 % (VECTOR // 4)
    a, b, c, d = philox(seed, (offset >> 2) + call, thread)
    return is_below(tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d)), LIMIT)


@triton.jit
def drawn_below_by_fours(index, seed, offset, THREADS: tl.constexpr, VECTOR: tl.constexpr, LIMIT: tl.constexpr):
    # the same where each four neighbours have numbers of one call
    evens, _ = tl.split(tl.reshape(index, (index.numel // 2, 2)))
    firsts, _ = tl.split(tl.reshape(evens, (index.numel // 4, 2)))
    at = firsts.to(tl.uint32)
    call = at // VECTOR // THREADS * (VECTOR // 4) + at // 4 % (VECTOR // 4)
    a, b, c, d = philox(seed, (offset >> 2) + call, at // VECTOR % THREADS)
    first = tl.join(is_below(a, LIMIT).to(tl.int8), is_below(c, LIMIT).to(tl.int8))
    second = tl.join(is_below(b, LIMIT).to(tl.int8), is_below(d, LIMIT).to(tl.int8))
    return tl.reshape(tl.join(first, second), index.shape) != 0


@triton.jit
def round_float8(x, digits: tl.constexpr, least: tl.constexpr, largest: tl.constexpr, beyond: tl.constexpr):
    # by arithmetic: ptxas mixes up registers where a packed float of 8 bits is unpacked again
    bits = x.to(tl.int32, bitcast=True)
    cut: tl.constexpr = 23 - digits
    normal = (bits + ((1 << (cut - 1)) - 1) + ((bits >> cut) & 1)) & -(1 << cut)
    # numbers below the least normal one are multiples of a power of two
    magic: tl.constexpr = least * 1.5 * (1 << cut)
    tiny = (tl.abs(x) + magic) - magic
    found = tl.where(tl.abs(x) < least, tl.where(bits < 0, tiny * -1.0, tiny), normal.to(tl.float32, bitcast=True))
    found = tl.where(tl.abs(found) > largest, tl.where(bits < 0, -beyond, beyond), found)
    return tl.where(x != x, x, found)


@triton.jit
def to_float8e4nv(x):
    # too large numbers are NaN, as torch had it before 2.13
    return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(tl.float8e4nv)


@triton.jit
def to_float8e5(x):
    # too large numbers are infinities, as torch has it
    infinity = ((x < 0).to(tl.uint8) << 7) | 0x7C
    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(x) >= 61440.0, infinity, bits).to(tl.float8e5, bitcast=True)
