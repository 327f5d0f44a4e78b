// SPDX-License-Identifier: Apache-2.0
// What a reduction must give, one element at a time in plain arithmetic, and arrays
// to feed it. Slow on purpose: it shares nothing with the kernels it judges.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "base/dtype.h"

namespace smddp::testing {

using Bytes = std::vector<uint8_t>;

// A binary floating-point format of 16 bits.
struct Narrow {
  int mantissa_bits;
  int exponent_bits;

  int Bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int TopExponent() const { return (1 << exponent_bits) - 1; }

  float Decode(uint16_t bits) const {
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int exponent = (bits >> mantissa_bits) & TopExponent();
    double value = 0;
    if (exponent == TopExponent()) {
      value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                            : std::numeric_limits<double>::infinity();
    } else {
      const int implied = exponent == 0 ? 0 : 1 << mantissa_bits;
      value =
          std::ldexp(mantissa + implied, std::max(exponent, 1) - Bias() - mantissa_bits);
    }
    return static_cast<float>(bits >> 15 != 0 ? -value : value);
  }

  // To the nearest multiple of the value's quantum, ties to an even multiple.
  uint16_t Encode(float value) const {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const auto infinity = static_cast<uint16_t>(TopExponent() << mantissa_bits);
    if (std::isnan(value)) return sign | infinity | 1;
    const double magnitude = std::fabs(static_cast<double>(value));
    if (magnitude == 0) return sign;
    if (std::isinf(magnitude)) return sign | infinity;
    const int exponent = std::max(std::ilogb(magnitude), 1 - Bias());
    const double steps = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    // A carry out of the mantissa lands in the exponent, where it belongs.
    const int bits = static_cast<int>(steps) + ((exponent + Bias() - 1) << mantissa_bits);
    return sign | static_cast<uint16_t>(std::min<int>(bits, infinity));
  }
};

constexpr Narrow kFloat16 = {10, 5};
constexpr Narrow kBfloat16 = {7, 8};

template <class T>
T Get(const Bytes& bytes, size_t e) {
  T value;
  std::memcpy(&value, bytes.data() + e * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void Put(Bytes& bytes, size_t e, T value) {
  std::memcpy(bytes.data() + e * sizeof(T), &value, sizeof(T));
}

template <class T>
T Apply(ReduceOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (op == ReduceOp::kSum) {
      return static_cast<T>(
          static_cast<U>(static_cast<U>(a) + uint64_t{static_cast<U>(b)}));
    }
  } else {
    if (op == ReduceOp::kSum || std::isnan(a) || std::isnan(b)) return a + b;
    if (a == b && std::signbit(a) != std::signbit(b)) {
      return op == ReduceOp::kMax ? T{0} : -T{0};
    }
  }
  return op == ReduceOp::kMax ? std::max(a, b) : std::min(a, b);
}

// Calls f with a value of the type that holds elements of `dtype` in arithmetic.
template <class F>
auto WithLane(DType dtype, F f) {
  switch (dtype) {
    case DType::kS8:
      return f(int8_t{});
    case DType::kS16:
      return f(int16_t{});
    case DType::kS32:
      return f(int32_t{});
    case DType::kS64:
      return f(int64_t{});
    case DType::kU8:
      return f(uint8_t{});
    case DType::kU16:
      return f(uint16_t{});
    case DType::kU32:
      return f(uint32_t{});
    case DType::kU64:
      return f(uint64_t{});
    case DType::kF64:
    case DType::kC128:
      return f(double{});
    default:
      return f(float{});
  }
}

inline bool IsComplex(DType d) { return d == DType::kC64 || d == DType::kC128; }
inline bool IsNarrow(DType d) { return d == DType::kF16 || d == DType::kBF16; }
inline bool IsFloat(DType d) { return d >= DType::kF16; }
inline const Narrow& Format(DType d) { return d == DType::kF16 ? kFloat16 : kBfloat16; }
// Numbers per element: a complex element is two of them.
inline size_t Parts(DType d) { return IsComplex(d) ? 2 : 1; }

// A reduction from one element type to another.
struct Case {
  ReduceOp op;
  DType in;
  DType out;
};

// Every reduction that keeps its type.
inline std::vector<Case> UncastCases() {
  std::vector<Case> cases;
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    for (int d = 0; d <= static_cast<int>(DType::kC128); ++d) {
      const auto dtype = static_cast<DType>(d);
      if (op == ReduceOp::kSum || !IsComplex(dtype)) cases.push_back({op, dtype, dtype});
    }
  }
  return cases;
}

// Adds those of `op` that change it.
inline void AddCastCases(ReduceOp op, std::vector<Case>& cases) {
  for (DType narrow : {DType::kF16, DType::kBF16}) {
    cases.push_back({op, narrow, DType::kF32});
    cases.push_back({op, DType::kF32, narrow});
  }
}

template <class T>
T GetAs(DType dtype, const Bytes& bytes, size_t e) {
  if (!IsNarrow(dtype)) return Get<T>(bytes, e);
  return static_cast<T>(Format(dtype).Decode(Get<uint16_t>(bytes, e)));
}

template <class T>
void PutAs(DType dtype, Bytes& bytes, size_t e, T value) {
  if (!IsNarrow(dtype)) return Put<T>(bytes, e, value);
  Put<uint16_t>(bytes, e, Format(dtype).Encode(static_cast<float>(value)));
}

inline Bytes Expected(ReduceOp op, DType in, DType out, const std::vector<Bytes>& inputs,
                      size_t count) {
  Bytes result(count * SizeOf(out));
  WithLane(in, [&]<class T>(T) {
    for (size_t e = 0; e < count * Parts(in); ++e) {
      T value = GetAs<T>(in, inputs[0], e);
      for (size_t i = 1; i < inputs.size(); ++i) {
        value = Apply<T>(op, value, GetAs<T>(in, inputs[i], e));
      }
      PutAs<T>(out, result, e, value);
    }
  });
  return result;
}

// Random elements; floats have infinities, NaNs, zeros of both signs, subnormals and
// values near the largest one among them.
inline Bytes RandomArray(DType dtype, size_t count, std::mt19937_64& random) {
  Bytes bytes(count * SizeOf(dtype));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  if (!IsFloat(dtype)) return bytes;
  WithLane(dtype, [&]<class T>(T) {
    std::normal_distribution<double> normal(0, 100);
    for (size_t e = 0; e < count * Parts(dtype); ++e) {
      // One in eight keeps its random bits.
      if (random() % 8 == 0) continue;
      const uint64_t kind = random() % 64;
      const double special[] = {0.0, -0.0, std::numeric_limits<double>::infinity(),
                                -std::numeric_limits<double>::infinity()};
      PutAs<T>(dtype, bytes, e,
               static_cast<T>(kind < 4 ? special[kind] : normal(random)));
    }
  });
  return bytes;
}

// The first element where two results differ, or `count`. Any NaN equals any NaN.
inline size_t FirstDifference(DType dtype, const Bytes& a, const Bytes& b, size_t count) {
  if (a == b) return count;
  const size_t part = SizeOf(dtype) / Parts(dtype);
  for (size_t e = 0; e < count * Parts(dtype); ++e) {
    if (std::memcmp(a.data() + e * part, b.data() + e * part, part) == 0) continue;
    const bool both_nan =
        IsFloat(dtype) && WithLane(dtype, [&]<class T>(T) {
          return std::isnan(static_cast<double>(GetAs<T>(dtype, a, e))) &&
                 std::isnan(static_cast<double>(GetAs<T>(dtype, b, e)));
        });
    if (!both_nan) return e / Parts(dtype);
  }
  return count;
}

}  // namespace smddp::testing
