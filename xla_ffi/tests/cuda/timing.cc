// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/timing.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>

namespace smddp::device::testing {
namespace {

constexpr size_t kSmallest = size_t{1} << 10;
constexpr size_t kLargest = size_t{4} << 20;
constexpr int kCalls = 100;
constexpr int kRounds = 5;

// Ranks that share a GPU share its multiprocessors: a kernel that waits for one that has
// no room would wait forever.
uint32_t BlocksOfOneGpu(uint32_t ranks) {
  int multiprocessors = 0;
  const cudaError_t error = cudaDeviceGetAttribute(
      &multiprocessors, cudaDevAttrMultiProcessorCount, /*device=*/0);
  Check(error == cudaSuccess ? Status()
                             : Status(StatusCode::kSystem, cudaGetErrorString(error)));
  return std::min(static_cast<uint32_t>(multiprocessors) / ranks, kMaxBlocks);
}

}  // namespace

std::vector<Timing> TimeCalls(Gpu& gpu, const Group& group,
                              const std::function<void()>& meet) {
  Queue queue(gpu);
  char* const from = Check(gpu.Allocate(kLargest));
  char* const to = Check(gpu.Allocate(kLargest));
  uint64_t number = 0;
  // The best of several rounds.
  const auto time = [&](Algorithm algorithm, size_t bytes) {
    const Tensor tensor{from, to, bytes / sizeof(float)};
    double best = 1e9;
    for (int round = 0; round < kRounds; ++round) {
      meet();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) {
        const Call call =
            Check(MakeAllReduce(group, ++number, algorithm, {}, {&tensor, 1}));
        Check(gpu.Reduce(ReduceOp::kSum, DType::kF32, DType::kF32, call, queue.stream()));
      }
      queue.Finish();
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      best = std::min(best, took.count() / kCalls);
    }
    return best;
  };
  std::vector<Timing> timings;
  for (size_t bytes = kSmallest; bytes <= kLargest; bytes *= 2) {
    timings.push_back(
        {bytes, time(Algorithm::kOneShot, bytes), time(Algorithm::kTwoShot, bytes)});
  }
  return timings;
}

std::vector<Timing> TimeOnOneGpu(uint32_t ranks) {
  Gpu& gpu = GpuOf(0);
  std::vector<Group> groups = MakeGroups(gpu, ranks, kTimedHalfBytes);
  std::barrier<> barrier(ranks);
  std::vector<std::vector<Timing>> timings(ranks);
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < ranks; ++r) {
    groups[r].max_blocks = BlocksOfOneGpu(ranks);
    threads.emplace_back([&, r] {
      timings[r] = TimeCalls(gpu, groups[r], [&] { barrier.arrive_and_wait(); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return timings[0];
}

void PrintTimings(const std::string& where, const std::vector<Timing>& timings) {
  std::printf("\n| float32 sums, %s | one-shot | two-shot |\n|---|---|---|\n",
              where.c_str());
  size_t ends = 0;
  for (const Timing& timing : timings) {
    std::printf("| %zu KiB | %.1f us | %.1f us |\n", timing.bytes >> 10, timing.one_shot,
                timing.two_shot);
    const bool first_ones = ends == 0 || ends * 2 == timing.bytes;
    if (first_ones && timing.one_shot <= timing.two_shot) ends = timing.bytes;
  }
  std::printf("One-shot is the faster one up to %zu KiB; kOneShotBytes says %zu KiB.\n",
              ends >> 10, kOneShotBytes >> 10);
  std::fflush(stdout);
}

}  // namespace smddp::device::testing
