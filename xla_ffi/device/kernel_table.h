// SPDX-License-Identifier: Apache-2.0
// Which kernel does what: the one list of operators and element types, for both machines.
//
// `Kernel<Op, In, Out>::kFunction`, a `Function`, is what the caller makes of an entry.
// An operator's entries are found by a function of their own, so that each can be
// compiled apart. All return nullptr where there is no such kernel. Pure functions.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/element.h"
#include "device/kernels.h"

namespace smddp::device {

template <template <class, class, class> class Kernel>
using FunctionOf = typename Kernel<Sum, float, float>::Function;

template <template <class, class, class> class Kernel, class Op>
FunctionOf<Kernel> FindFloat(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return Kernel<Op, Float16, Float16>::kFunction;
    case DType::kBF16:
      return Kernel<Op, Bfloat16, Bfloat16>::kFunction;
    case DType::kF32:
      return Kernel<Op, float, float>::kFunction;
    case DType::kF64:
      return Kernel<Op, double, double>::kFunction;
    default:
      return nullptr;
  }
}

// Sums are cast where partial results travel in another type than the user's.
template <template <class, class, class> class Kernel>
FunctionOf<Kernel> FindSum(DType in, DType out) {
  if (in == DType::kF16 && out == DType::kF32) {
    return Kernel<Sum, Float16, float>::kFunction;
  }
  if (in == DType::kBF16 && out == DType::kF32) {
    return Kernel<Sum, Bfloat16, float>::kFunction;
  }
  if (in == DType::kF32 && out == DType::kF16) {
    return Kernel<Sum, float, Float16>::kFunction;
  }
  if (in == DType::kF32 && out == DType::kBF16) {
    return Kernel<Sum, float, Bfloat16>::kFunction;
  }
  if (in != out) return nullptr;
  switch (in) {
    case DType::kS8:
    case DType::kU8:
      return Kernel<Sum, uint8_t, uint8_t>::kFunction;
    case DType::kS16:
    case DType::kU16:
      return Kernel<Sum, uint16_t, uint16_t>::kFunction;
    case DType::kS32:
    case DType::kU32:
      return Kernel<Sum, uint32_t, uint32_t>::kFunction;
    case DType::kS64:
    case DType::kU64:
      return Kernel<Sum, uint64_t, uint64_t>::kFunction;
    default:
      return FindFloat<Kernel, Sum>(in);
  }
}

template <template <class, class, class> class Kernel, class Op>
FunctionOf<Kernel> FindExtremum(DType in, DType out) {
  if (in != out) return nullptr;
  switch (in) {
    case DType::kS8:
      return Kernel<Op, int8_t, int8_t>::kFunction;
    case DType::kS16:
      return Kernel<Op, int16_t, int16_t>::kFunction;
    case DType::kS32:
      return Kernel<Op, int32_t, int32_t>::kFunction;
    case DType::kS64:
      return Kernel<Op, int64_t, int64_t>::kFunction;
    case DType::kU8:
      return Kernel<Op, uint8_t, uint8_t>::kFunction;
    case DType::kU16:
      return Kernel<Op, uint16_t, uint16_t>::kFunction;
    case DType::kU32:
      return Kernel<Op, uint32_t, uint32_t>::kFunction;
    case DType::kU64:
      return Kernel<Op, uint64_t, uint64_t>::kFunction;
    default:
      return FindFloat<Kernel, Op>(in);
  }
}

// Of `scaled` values, or of bytes that nobody looks at. Partial results, which alone are
// scaled or cast, are float32, or float64 where the user's are.
template <template <class, class, class> class Kernel>
FunctionOf<Kernel> FindGather(DType in, DType out, bool scaled) {
  if (in == out && !scaled) return Kernel<Gather, uint32_t, uint32_t>::kFunction;
  if (in == DType::kF64 && out == in) return Kernel<Gather, double, double>::kFunction;
  if (in != DType::kF32) return nullptr;
  switch (out) {
    case DType::kF16:
      return Kernel<Gather, float, Float16>::kFunction;
    case DType::kBF16:
      return Kernel<Gather, float, Bfloat16>::kFunction;
    case DType::kF32:
      return Kernel<Gather, float, float>::kFunction;
    default:
      return nullptr;
  }
}

}  // namespace smddp::device
