// SPDX-License-Identifier: Apache-2.0
#include "reduce/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "reduce/kernels.h"

namespace smddp {
namespace {

using reduce::CombineFn;
using reduce::Kernels;

// One block of the result is combined, then stored to every output while it is in
// the first-level cache; short enough that all streams advance page by page.
constexpr size_t kBlockBytes = 4096;
constexpr size_t kLineBytes = 64;

const Kernels& Best() {
  static const Kernels& best = *reduce::AvailableKernels()[0];
  return best;
}

const char* At(const void* array, size_t bytes) {
  return static_cast<const char*>(array) + bytes;
}

char* At(void* array, size_t bytes) { return static_cast<char*>(array) + bytes; }

// Length of the first block: the next ones then begin on a cache line of the output,
// since half-written lines cost a streaming store its point.
size_t FirstBlock(const void* output, size_t element_bytes, size_t block) {
  const size_t over = reinterpret_cast<uintptr_t>(output) % kLineBytes;
  return over % element_bytes == 0 ? block - over / element_bytes : block;
}

void Copy(const Kernels& kernels, size_t bytes, const void* input,
          std::span<void* const> outputs, Store store) {
  if (store == Store::kCached && outputs.size() == 1) {
    if (outputs[0] != input) kernels.copy(outputs[0], input, bytes);
    return;
  }
  size_t block = FirstBlock(outputs[0], 1, kBlockBytes);
  for (size_t begin = 0; begin < bytes; begin += block, block = kBlockBytes) {
    block = std::min(block, bytes - begin);
    for (void* output : outputs) {
      if (output == input) continue;
      if (store == Store::kStreaming) {
        kernels.stream(At(output, begin), At(input, begin), block);
      } else {
        std::memcpy(At(output, begin), At(input, begin), block);
      }
    }
  }
  if (store == Store::kStreaming) kernels.fence();
}

void CombineCached(CombineFn combine, size_t element_bytes,
                   std::span<const void* const> inputs, std::span<void* const> outputs,
                   size_t count) {
  const size_t block = kBlockBytes / element_bytes;
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t n = std::min(block, count - begin);
    void* first = At(outputs[0], begin * element_bytes);
    combine(inputs.data(), inputs.size(), begin, n, first);
    for (void* output : outputs.subspan(1)) {
      std::memcpy(At(output, begin * element_bytes), first, n * element_bytes);
    }
  }
}

void CombineStreaming(const Kernels& kernels, CombineFn combine, size_t element_bytes,
                      std::span<const void* const> inputs, std::span<void* const> outputs,
                      size_t count) {
  alignas(kLineBytes) char result[kBlockBytes];
  size_t n = FirstBlock(outputs[0], element_bytes, kBlockBytes / element_bytes);
  for (size_t begin = 0; begin < count; begin += n, n = kBlockBytes / element_bytes) {
    n = std::min(n, count - begin);
    combine(inputs.data(), inputs.size(), begin, n, result);
    for (void* output : outputs) {
      kernels.stream(At(output, begin * element_bytes), result, n * element_bytes);
    }
  }
  kernels.fence();
}

// Subnormal numbers and rounding as IEEE 754 has them, while it lives. XLA flushes
// subnormals to zero on its own threads; since the same collective may run on theirs or
// on ours, its bits must not depend on the thread.
class PlainArithmetic {
 public:
#if defined(__x86_64__)
  PlainArithmetic() : saved_(_mm_getcsr()) { _mm_setcsr(kDefaultControl); }
  ~PlainArithmetic() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kDefaultControl = 0x1f80;  // All exceptions masked.
  const unsigned saved_;
#elif defined(__aarch64__)
  PlainArithmetic() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~PlainArithmetic() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

// A sum of complex numbers is a sum of twice as many real ones.
DType RealPart(DType dtype) {
  if (dtype == DType::kC64) return DType::kF32;
  if (dtype == DType::kC128) return DType::kF64;
  return dtype;
}

}  // namespace

void Reduce(ReduceOp op, DType in, DType out, std::span<const void* const> inputs,
            std::span<void* const> outputs, size_t count, Store store) {
  if (count == 0 || inputs.empty() || outputs.empty()) return;
  const Kernels& kernels = Best();
  if (inputs.size() == 1 && in == out) {
    Copy(kernels, count * SizeOf(out), inputs[0], outputs, store);
    return;
  }
  if (op == ReduceOp::kSum && in == out) {
    count *= SizeOf(in) / SizeOf(RealPart(in));
    in = out = RealPart(in);
  }
  const CombineFn combine = kernels.combine(op, in, out);
  if (combine == nullptr) {
    // Callers check what a user asks for; whoever gets here has a bug.
    std::fprintf(stderr, "smddp: no %s from %s to %s\n", Name(op), Name(in), Name(out));
    std::abort();
  }
  const PlainArithmetic plain;
  if (store == Store::kCached) {
    CombineCached(combine, SizeOf(out), inputs, outputs, count);
  } else {
    CombineStreaming(kernels, combine, SizeOf(out), inputs, outputs, count);
  }
}

const char* ReduceInstructionSet() { return Best().name; }

}  // namespace smddp

namespace smddp::reduce {

#if defined(__x86_64__)
namespace {

// Asked of the processor: clang's __builtin_cpu_supports does not know this one. The
// check for AVX2 covers whether the system saves the wide registers.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace
#endif

const Kernels* const* AvailableKernels() {
  static const auto kAvailable = [] {
    std::array<const Kernels*, 4> available = {};
    size_t n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      available[n++] = &kAvx512Kernels;
    }
    if (__builtin_cpu_supports("avx2") && HasF16c()) {
      available[n++] = &kAvx2Kernels;
    }
#endif
    available[n] = &kGenericKernels;
    return available;
  }();
  return kAvailable.data();
}

}  // namespace smddp::reduce
