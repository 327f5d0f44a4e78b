// SPDX-License-Identifier: Apache-2.0
// The kernels in plain C++ over 16-byte compiler vectors: SSE2 on x86-64, NEON on
// aarch64. No streaming stores: those have no portable form, and are only a hint.
#include <cstddef>
#include <cstdint>

#include "reduce/kernels.h"

namespace smddp::reduce {
namespace {

constexpr size_t kVectorBytes = 16;

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Words __attribute__((vector_size(16)));
typedef uint16_t Shorts __attribute__((vector_size(8)));

inline Words WidenShorts(const char* from) {
  Shorts shorts;
  __builtin_memcpy(&shorts, from, sizeof shorts);
  return __builtin_convertvector(shorts, Words);
}

// float16 has 5 bits of exponent (bias 15) and 10 of mantissa: shifted left by 13
// they sit where float32 has its own (bias 127). Signs are put aside meanwhile, so
// that signed comparisons order the bits as magnitudes.
constexpr int32_t kRebias = (127 - 15) << 23;
constexpr int32_t kHalfInfinity = 0x1f << 23;  // exponent of inf and NaN, shifted

inline Floats WidenHalf(const char* from) {
  const Words bits = WidenShorts(from);
  const Words magnitude = (bits & 0x7fff) << 13;
  const Words normal = magnitude + kRebias;
  const Words special = normal + kRebias;  // exponent 31 becomes 255
  const Words quieted = magnitude > kHalfInfinity ? special | 0x400000 : special;
  // A subnormal is mantissa * 2^-24: give it an implied one, and take that off again.
  const Words one = Words{} + ((127 - 14) << 23);
  const Words subnormal = (Words)((Floats)(magnitude + one) - (Floats)one);
  Words result = magnitude >= kHalfInfinity ? quieted : normal;
  result = magnitude < (1 << 23) ? subnormal : result;
  return (Floats)(result | ((bits & 0x8000) << 16));
}

inline void NarrowHalf(char* to, Floats v) {
  const Words bits = (Words)v;
  const Words magnitude = bits & 0x7fffffff;
  // Nearest even: add just under half a unit, and one more if the kept part is odd.
  // A carry runs into the exponent, at the far end into infinity, as it should.
  const Words normal = (magnitude - kRebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 leaves float32 just the bits that a subnormal float16 has, rounded.
  const Words magic = Words{} + (126 << 23);
  const Words subnormal = (Words)((Floats)magnitude + (Floats)magic) - magic;
  const Words nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  Words result = magnitude < ((127 - 14) << 23) ? subnormal : normal;
  result = magnitude >= ((127 + 16) << 23) ? Words{} + 0x7c00 : result;
  result = magnitude > (0xff << 23) ? nan : result;
  const Shorts half = __builtin_convertvector(result | ((bits >> 16) & 0x8000), Shorts);
  __builtin_memcpy(to, &half, sizeof half);
}

inline void StreamVector(char* to, const char* from) {
  __builtin_memcpy(to, from, kVectorBytes);
}

void Fence() {}

}  // namespace
}  // namespace smddp::reduce

#include "reduce/kernels.inc.h"

namespace smddp::reduce {

const Kernels kGenericKernels = {"generic", FindCombine, Copy, Stream, Fence};

}  // namespace smddp::reduce
