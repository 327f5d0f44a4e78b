// SPDX-License-Identifier: Apache-2.0
// Ranks on real GPUs, for gpu_check: their memory, their peers', their streams.
//
// All through device/gpu.h, as the engine does it. What fails ends the process with a
// message.
#pragma once

#include <atomic>
#include <cstring>

#include "device/cuda_gpus.h"
#include "device/make_call.h"
#include "tests/cuda/processes.h"

namespace smddp::device::testing {

// A stream, and the wait for its end.
class Queue {
 public:
  explicit Queue(Gpu& gpu)
      : gpu_(&gpu),
        stream_(Check(gpu.NewStream())),
        word_(reinterpret_cast<uint64_t*>(Check(gpu.AllocateHost(sizeof(uint64_t))))) {}

  StreamHandle stream() const { return stream_; }

  // Returns when all that was put there is done.
  void Finish() {
    Mark();
    while (!Done()) {
    }
  }
  // The same in two steps.
  void Mark() { Check(gpu_->Write(word_, ++marks_, stream_)); }
  bool Done() const {
    return std::atomic_ref(*word_).load(std::memory_order_acquire) == marks_;
  }

 private:
  Gpu* gpu_;
  StreamHandle stream_;
  uint64_t* word_;
  uint64_t marks_ = 0;
};

// Flags and staging of one rank, in one allocation.
class RankMemory {
 public:
  static constexpr size_t kFlagBytes = (sizeof(Flags) + 255) / 256 * 256;

  RankMemory(Gpu& gpu, size_t half_bytes)
      : data_(Check(gpu.Allocate(kFlagBytes + 2 * half_bytes))),
        watch_(reinterpret_cast<Watch*>(Check(gpu.AllocateHost(sizeof(Watch))))) {}
  char* data() const { return data_; }
  Watch* watch() const { return watch_; }

 private:
  char* data_;  // Both live as long as the process.
  Watch* watch_;
};

inline void Join(Group& group, uint32_t rank, char* memory) {
  group.flags[rank] = reinterpret_cast<Flags*>(memory);
  group.staging[rank] = memory + RankMemory::kFlagBytes;
}

inline Group GroupOf(const RankMemory& mine, uint32_t rank, uint32_t ranks,
                     size_t half_bytes) {
  Group group;
  group.rank = rank;
  group.ranks = ranks;
  group.half_bytes = half_bytes;
  group.watch = mine.watch();
  Join(group, rank, mine.data());
  return group;
}

// One rank's group, its peers being other processes; returns once all have mapped all.
inline Group JoinProcesses(Shared& shared, Gpu& gpu, uint32_t rank, uint32_t ranks,
                           size_t half_bytes) {
  const RankMemory mine(gpu, half_bytes);
  Group group = GroupOf(mine, rank, ranks, half_bytes);
  shared.handles[rank] = Check(gpu.Export(mine.data()));
  shared.Meet();
  for (uint32_t r = 0; r < ranks; ++r) {
    if (r != rank) Join(group, r, Check(gpu.Import(shared.handles[r])));
  }
  shared.Meet();
  return group;
}

// The groups of ranks that are all on one GPU of this process.
inline std::vector<Group> MakeGroups(Gpu& gpu, uint32_t ranks, size_t half_bytes) {
  std::vector<RankMemory> memories;
  for (uint32_t r = 0; r < ranks; ++r) memories.emplace_back(gpu, half_bytes);
  std::vector<Group> groups;
  for (uint32_t me = 0; me < ranks; ++me) {
    groups.push_back(GroupOf(memories[me], me, ranks, half_bytes));
    for (uint32_t r = 0; r < ranks; ++r) Join(groups[me], r, memories[r].data());
  }
  return groups;
}

// The GPU of a rank, one for each while there are enough.
inline Gpu& GpuOf(uint32_t rank) {
  CudaGpus& gpus = CudaGpus::OfThisProcess();
  return *Check(gpus.Get(static_cast<int>(rank) % gpus.count()));
}

}  // namespace smddp::device::testing
