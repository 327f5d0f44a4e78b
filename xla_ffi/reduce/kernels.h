// SPDX-License-Identifier: Apache-2.0
// The instruction sets behind Reduce(), one table each. Internal to reduce/: only
// reduce.cc and its test include this.
//
// The tables are constants and their functions hold no state: any thread may call
// them. Every table gives the same bits (a NaN stays a NaN, its payload is free).
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace smddp::reduce {

// out[e] = inputs[0][begin + e] op inputs[1][begin + e] op ... for e in [0, count).
// `out` may be one of the inputs at `begin`, where both have the same element size.
using CombineFn = void (*)(const void* const* inputs, size_t input_count, size_t begin,
                           size_t count, void* out);

struct Kernels {
  const char* name;
  // nullptr where there is no such reduction.
  CombineFn (*combine)(ReduceOp op, DType in, DType out);
  // Copies from where nobody reads again soon to where somebody does: the source is
  // fetched past the caches.
  void (*copy)(void* to, const void* from, size_t bytes);
  // Copies past the caches; other threads see the bytes after fence().
  void (*stream)(void* to, const void* from, size_t bytes);
  void (*fence)();
};

extern const Kernels kGenericKernels;
extern const Kernels kAvx2Kernels;    // x86-64 only
extern const Kernels kAvx512Kernels;  // x86-64 only

// The tables that this machine can run, the best one first, ended by nullptr.
const Kernels* const* AvailableKernels();

}  // namespace smddp::reduce
