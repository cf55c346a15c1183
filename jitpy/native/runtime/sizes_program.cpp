#include "sizes_program.h"

#include <numeric>

namespace {

// An exact fraction in lowest terms with a positive denominator.
struct Fraction {
  int64_t num;
  int64_t den;
};

bool reduce(Fraction& f) {
  if (f.den == 1) return true;
  if (f.den == 0 || f.den == INT64_MIN || f.num == INT64_MIN) return false;
  if (f.den < 0) f = {-f.num, -f.den};
  const int64_t common = std::gcd(f.num, f.den);
  f = {f.num / common, f.den / common};
  return true;
}

bool multiply(Fraction a, Fraction b, Fraction& out) {
  if (__builtin_mul_overflow(a.num, b.num, &out.num) || __builtin_mul_overflow(a.den, b.den, &out.den)) return false;
  return reduce(out);
}

bool add(Fraction a, Fraction b, Fraction& out) {
  int64_t left, right;
  if (__builtin_mul_overflow(a.num, b.den, &left) || __builtin_mul_overflow(b.num, a.den, &right)) return false;
  if (__builtin_add_overflow(left, right, &out.num) || __builtin_mul_overflow(a.den, b.den, &out.den)) return false;
  return reduce(out);
}

// -1, 0, 1 into `out`.
bool compare(Fraction a, Fraction b, int& out) {
  int64_t left, right;
  if (__builtin_mul_overflow(a.num, b.den, &left) || __builtin_mul_overflow(b.num, a.den, &right)) return false;
  out = left < right ? -1 : left > right;
  return true;
}

int64_t floor_of(Fraction f) {
  const int64_t quotient = f.num / f.den;  // den > 0
  return quotient - (f.num % f.den != 0 && f.num < 0);
}

bool negate(Fraction a, Fraction& out) {
  if (a.num == INT64_MIN) return false;
  out = {-a.num, a.den};
  return true;
}

bool floor_divide(Fraction a, Fraction b, Fraction& out) {
  if (b.num == 0) return false;
  if (a.den == 1 && b.den == 1 && b.num > 0) {
    out = {floor_of({a.num, b.num}), 1};
    return true;
  }
  Fraction inverse{b.den, b.num}, quotient;
  if (!reduce(inverse) || !multiply(a, inverse, quotient)) return false;
  out = {floor_of(quotient), 1};
  return true;
}

bool modulo(Fraction a, Fraction b, Fraction& out) {
  Fraction quotient, product;
  return floor_divide(a, b, quotient) && multiply(quotient, b, product) && negate(product, product) &&
         add(a, product, out);
}

bool power(Fraction base, int64_t exponent, Fraction& out) {
  out = {1, 1};
  for (int64_t i = 0; i < exponent; i++)
    if (!multiply(out, base, out)) return false;
  return true;
}

constexpr int kMaxStack = 64;

}  // namespace

SizeVerdict run_size_program(const SizeProgram& program, const int64_t* symbols, int64_t* value) {
  using Op = SizeInstruction;
  Fraction stack[kMaxStack];
  int top = -1;
  int order = 0;
  for (const SizeInstruction& instruction : program) {
    bool ok = true;
    switch (instruction.op) {
      case Op::kConst:
      case Op::kSymbol:
        if (top + 1 >= kMaxStack) return SizeVerdict::kUnknown;
        stack[++top] = {instruction.op == Op::kConst ? instruction.arg : symbols[instruction.arg], 1};
        break;
      case Op::kAdd:
        top--;
        ok = add(stack[top], stack[top + 1], stack[top]);
        break;
      case Op::kMul:
        top--;
        ok = multiply(stack[top], stack[top + 1], stack[top]);
        break;
      case Op::kPower:
        ok = power(stack[top], instruction.arg, stack[top]);
        break;
      case Op::kInvert:
        stack[top] = {stack[top].den, stack[top].num};
        ok = stack[top].den != 0 && reduce(stack[top]);
        break;
      case Op::kFloor:
        stack[top] = {floor_of(stack[top]), 1};
        break;
      case Op::kCeiling:
        stack[top] = {floor_of(stack[top]) + (stack[top].den != 1), 1};  // in lowest terms: den 1 means an integer
        break;
      case Op::kFloorDiv:
        top--;
        ok = floor_divide(stack[top], stack[top + 1], stack[top]);
        break;
      case Op::kMod:
        top--;
        ok = modulo(stack[top], stack[top + 1], stack[top]);
        break;
      case Op::kMin:
      case Op::kMax:
        top--;
        ok = compare(stack[top + 1], stack[top], order);
        if (instruction.op == Op::kMin ? order < 0 : order > 0) stack[top] = stack[top + 1];
        break;
      case Op::kAbs:
        ok = stack[top].num >= 0 || negate(stack[top], stack[top]);
        break;
      case Op::kEq:
      case Op::kNe:
      case Op::kLt:
      case Op::kLe: {
        top--;
        ok = compare(stack[top], stack[top + 1], order);
        const bool holds = instruction.op == Op::kEq   ? order == 0
                           : instruction.op == Op::kNe ? order != 0
                           : instruction.op == Op::kLt ? order < 0
                                                       : order <= 0;
        stack[top] = {holds, 1};
        break;
      }
      case Op::kAnd:
        top--;
        stack[top] = {stack[top].num != 0 && stack[top + 1].num != 0, 1};
        break;
      case Op::kOr:
        top--;
        stack[top] = {stack[top].num != 0 || stack[top + 1].num != 0, 1};
        break;
      case Op::kNot:
        stack[top] = {stack[top].num == 0, 1};
        break;
    }
    if (!ok) return SizeVerdict::kUnknown;
  }
  if (value != nullptr) {
    if (top != 0 || stack[0].den != 1) return SizeVerdict::kUnknown;
    *value = stack[0].num;
  }
  return top == 0 && stack[0].num != 0 ? SizeVerdict::kTrue : SizeVerdict::kFalse;
}
