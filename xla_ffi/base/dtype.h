// SPDX-License-Identifier: Apache-2.0
// Element types, reduction operators and collectives that the engine knows.
//
// Plain enums. Their values cross process borders (shared memory, wire), so a new
// one is added at the end and none is ever renumbered.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smddp {

enum class DType : uint8_t {
  kS8 = 0,
  kS16 = 1,
  kS32 = 2,
  kS64 = 3,
  kU8 = 4,
  kU16 = 5,
  kU32 = 6,
  kU64 = 7,
  kF16 = 8,
  kBF16 = 9,
  kF32 = 10,
  kF64 = 11,
  kC64 = 12,
  kC128 = 13,
};

enum class ReduceOp : uint8_t { kSum = 0, kMax = 1, kMin = 2 };

enum class Collective : uint8_t { kAllReduce = 0, kReduceScatter = 1, kAllGather = 2 };

constexpr size_t SizeOf(DType dtype) {
  constexpr size_t kSizes[] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  return kSizes[static_cast<size_t>(dtype)];
}

constexpr const char* Name(DType dtype) {
  constexpr const char* kNames[] = {
      "int8",   "int16",   "int32",    "int64",   "uint8",   "uint16",    "uint32",
      "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};
  return kNames[static_cast<size_t>(dtype)];
}

constexpr const char* Name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "max", "min"};
  return kNames[static_cast<size_t>(op)];
}

// The type in which partial results of `dtype` travel between two stages of one
// reduction: sums of 16-bit floats stay in f32 until the one rounding at the end.
constexpr DType PartialType(DType dtype, ReduceOp op) {
  const bool narrow = dtype == DType::kF16 || dtype == DType::kBF16;
  return narrow && op == ReduceOp::kSum ? DType::kF32 : dtype;
}

}  // namespace smddp
