// SPDX-License-Identifier: Apache-2.0
// A process's rank in a group on real GPUs, for gpu_check: its memory, its peers' by CUDA
// IPC, its stream, and a guard that ends its waits.
//
// The processes of a group are forks of one that has not touched CUDA; they meet in a
// block of memory that they share. Whatever fails ends the process with a message.
#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/make_call.h"

namespace smddp::device::testing {

inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_check: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}
#define SMDDP_CHECK_CUDA(call) ::smddp::device::testing::Check((call), #call)

inline void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_check: %s\n", status.message().c_str());
  std::exit(2);
}

// What the processes of a group share.
struct Shared {
  pthread_barrier_t barrier;
  cudaIpcMemHandle_t handles[kMaxRanks];

  static Shared* Make(uint32_t ranks) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    auto* shared = static_cast<Shared*>(memory);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, ranks);
    return shared;
  }
  void Meet() { pthread_barrier_wait(&barrier); }
};

// Flags and staging of one rank, in one allocation.
class RankMemory {
 public:
  static constexpr size_t kFlagBytes = (sizeof(Flags) + 255) / 256 * 256;

  explicit RankMemory(size_t half_bytes) {
    SMDDP_CHECK_CUDA(cudaMalloc(&data_, kFlagBytes + 2 * half_bytes));
    SMDDP_CHECK_CUDA(cudaMemset(data_, 0, kFlagBytes));
    SMDDP_CHECK_CUDA(cudaDeviceSynchronize());
    SMDDP_CHECK_CUDA(cudaHostAlloc(&watch_, sizeof(Watch), cudaHostAllocMapped));
    *static_cast<Watch*>(watch_) = Watch{};
  }
  char* data() const { return static_cast<char*>(data_); }
  Watch* watch() const { return static_cast<Watch*>(watch_); }

 private:
  void* data_ = nullptr;  // Both live as long as the process.
  void* watch_ = nullptr;
};

inline void Join(Group& group, uint32_t rank, char* memory) {
  group.flags[rank] = reinterpret_cast<Flags*>(memory);
  group.staging[rank] = memory + RankMemory::kFlagBytes;
}

// This process's rank; returns once all have mapped all memory.
inline Group MakeGroup(Shared& shared, const RankMemory& mine, uint32_t rank,
                       uint32_t ranks, size_t half_bytes) {
  SMDDP_CHECK_CUDA(cudaIpcGetMemHandle(&shared.handles[rank], mine.data()));
  shared.Meet();
  Group group;
  group.rank = rank;
  group.ranks = ranks;
  group.half_bytes = half_bytes;
  group.watch = mine.watch();
  for (uint32_t r = 0; r < ranks; ++r) {
    void* memory = mine.data();
    if (r != rank) {
      SMDDP_CHECK_CUDA(cudaIpcOpenMemHandle(&memory, shared.handles[r],
                                            cudaIpcMemLazyEnablePeerAccess));
    }
    Join(group, r, static_cast<char*>(memory));
  }
  shared.Meet();
  return group;
}

}  // namespace smddp::device::testing
