// SPDX-License-Identifier: Apache-2.0
// The execution policy of a GPU, and so the list of what a policy must have: who this
// thread is, the meeting of a block's threads, memory accesses of all ranks' memory, and
// conversions of 16-bit floats.
//
// One per thread, on its stack. For nvcc alone; tests/device/host_execution.h is the
// other policy, with host threads.
#pragma once

#include <cuda/atomic>

#include "device/element.h"
#include "device/unit.h"

namespace smddp::device {

#define SMDDP_GPU __device__ __forceinline__

class CudaExecution {
  using Word = cuda::atomic_ref<uint64_t, cuda::thread_scope_system>;

 public:
  // Of this rank's blocks and threads.
  SMDDP_GPU uint32_t block() const { return blockIdx.x; }
  SMDDP_GPU uint32_t thread() const { return blockIdx.x * blockDim.x + threadIdx.x; }
  SMDDP_GPU uint32_t threads() const { return gridDim.x * blockDim.x; }
  SMDDP_GPU uint32_t thread_in_block() const { return threadIdx.x; }
  SMDDP_GPU uint32_t threads_in_block() const { return blockDim.x; }

  // Whether `ok` on all threads of the block; they see what the others wrote before.
  SMDDP_GPU bool AllOfBlock(bool ok) const { return __syncthreads_and(ok) != 0; }

  // Between ranks and with the host.
  SMDDP_GPU static uint64_t LoadRelaxed(uint64_t* word) {
    return Word(*word).load(cuda::memory_order_relaxed);
  }
  SMDDP_GPU static uint64_t LoadAcquire(uint64_t* word) {
    return Word(*word).load(cuda::memory_order_acquire);
  }
  SMDDP_GPU static void StoreRelease(uint64_t* word, uint64_t value) {
    Word(*word).store(value, cuda::memory_order_release);
  }
  SMDDP_GPU static void Pause() { __nanosleep(40); }

  // All 16 bytes at once. Never the read-only path: peers write this memory.
  SMDDP_GPU static Vector LoadVector(const char* from) {
    Vector v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
  }
  SMDDP_GPU static void StoreVector(char* to, const Vector& v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(v.words[0]), "r"(v.words[1]),
                   "r"(v.words[2]), "r"(v.words[3])
                 : "memory");
  }

  SMDDP_GPU static float ToFloat(Bfloat16 element) {
    return __uint_as_float(uint32_t{element.bits} << 16);
  }
  SMDDP_GPU static float ToFloat(Float16 element) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element.bits));
    return value;
  }
  template <class T>
  SMDDP_GPU static T FromFloat(float value) {
    T element;
    if constexpr (std::is_same_v<T, Float16>) {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(element.bits) : "f"(value));
    } else {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(element.bits) : "f"(value));
    }
    return element;
  }
};

#undef SMDDP_GPU

}  // namespace smddp::device
