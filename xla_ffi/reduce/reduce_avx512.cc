// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX-512 (F, BW, DQ, VL). Compiled with those flags; run only where
// reduce.cc has found all four.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "reduce/kernels.h"

namespace smddp::reduce {
namespace {

constexpr size_t kVectorBytes = 64;

// With masks of ones: the plain forms make g++ 12 warn of its own header.
inline __m512i WidenShorts(const char* from) {
  return _mm512_maskz_cvtepu16_epi32(
      0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline __m512 WidenHalf(const char* from) {
  return _mm512_maskz_cvtph_ps(
      0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline void NarrowHalf(char* to, __m512 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT));
}

inline void StreamVector(char* to, const char* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}

void Fence() { _mm_sfence(); }

}  // namespace
}  // namespace smddp::reduce

#include "reduce/kernels.inc.h"

namespace smddp::reduce {

const Kernels kAvx512Kernels = {"avx512", FindCombine, Copy, Stream, Fence};

}  // namespace smddp::reduce
