// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX2 with F16C. Compiled with -mavx2 -mf16c; run only where
// reduce.cc has found both.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "reduce/kernels.h"

namespace smddp::reduce {
namespace {

constexpr size_t kVectorBytes = 32;

inline __m256i WidenShorts(const char* from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline __m256 WidenHalf(const char* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline void NarrowHalf(char* to, __m256 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

inline void StreamVector(char* to, const char* from) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

void Fence() { _mm_sfence(); }

}  // namespace
}  // namespace smddp::reduce

#include "reduce/kernels.inc.h"

namespace smddp::reduce {

const Kernels kAvx2Kernels = {"avx2", FindCombine, Copy, Stream, Fence};

}  // namespace smddp::reduce
