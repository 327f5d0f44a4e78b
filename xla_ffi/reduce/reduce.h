// SPDX-License-Identifier: Apache-2.0
// N-ary elementwise reduction over memory: the arithmetic of every collective.
//
// A pure function with no state: any thread may call it, on any ranges that no
// other thread writes. The instruction set is chosen once per process.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace smddp {

// How results are stored. Streaming stores go past the caches: right for a large
// output that nobody reads soon, wrong for one that is read back at once.
enum class Store { kCached, kStreaming };

// outputs[j][e] = inputs[0][e] op inputs[1][e] op ... for e in [0, count), combined
// in the order of `inputs`, for every j. One input means a copy.
//
// `in` is the inputs' element type, `out` the outputs'. They are equal, or `in` is
// float16/bfloat16 and `out` float32, or the other way round. 16-bit floats are
// accumulated in float32 and rounded once (to nearest even). Integers wrap. Max and
// min return NaN if any input is NaN; they do not exist for complex types.
//
// An output may be the very same array as an input of the same element size;
// arrays may not overlap otherwise. No alignment is required.
void Reduce(ReduceOp op, DType in, DType out, std::span<const void* const> inputs,
            std::span<void* const> outputs, size_t count, Store store);

// "avx512", "avx2" or "generic": what Reduce uses on this machine.
const char* ReduceInstructionSet();

}  // namespace smddp
