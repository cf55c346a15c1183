// Relations between symbolic sizes, as a small stack program over exact fractions.
#pragma once

#include <cstdint>
#include <vector>

struct SizeInstruction {
  enum Op : uint8_t {
    kConst,   // push arg / 1
    kSymbol,  // push symbols[arg] / 1
    kAdd,
    kMul,
    kPower,  // arg: a natural exponent
    kInvert,
    kFloor,
    kCeiling,
    kFloorDiv,
    kMod,  // Python's: the sign of the divisor
    kMin,
    kMax,
    kAbs,
    kEq,  // comparisons and logic push 0 or 1
    kNe,
    kLt,
    kLe,
    kAnd,
    kOr,
    kNot,
  };
  Op op;
  int64_t arg;
};

using SizeProgram = std::vector<SizeInstruction>;

enum class SizeVerdict { kFalse, kTrue, kUnknown };

// `symbols` holds what the program's kSymbol instructions mention. kUnknown: an intermediate value left 64 bits, or a
// division by zero; the caller decides exactly by other means.
// `value` gets the integer that the program computes, which is unknown where it is none.
SizeVerdict run_size_program(const SizeProgram& program, const int64_t* symbols, int64_t* value = nullptr);
