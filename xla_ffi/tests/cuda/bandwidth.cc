// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/bandwidth.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

#include "tests/cuda/gpu_ranks.h"

namespace smddp::device::testing {
namespace {

constexpr uint32_t kRanks = 8;
constexpr size_t kBytes = size_t{256} << 20;
// Rank 0 pushes all its parts and adds eight of one: read, written; read, written.
constexpr size_t kMoved = 2 * kBytes + kBytes + kBytes / kRanks;
constexpr int kTimes = 20;

void CheckCuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  Check(Status(StatusCode::kSystem, cudaGetErrorString(error)));
}

// Seconds that `enqueue` takes on the GPU, the best of several.
template <class Enqueue>
double BestSeconds(cudaStream_t stream, Enqueue enqueue) {
  cudaEvent_t start, end;
  CheckCuda(cudaEventCreate(&start));
  CheckCuda(cudaEventCreate(&end));
  float best = 1e9f;
  for (int i = 0; i < kTimes; ++i) {
    CheckCuda(cudaEventRecord(start, stream));
    enqueue();
    CheckCuda(cudaEventRecord(end, stream));
    CheckCuda(cudaEventSynchronize(end));
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, start, end));
    best = std::min(best, milliseconds);
  }
  return best / 1e3;
}

// A group of one GPU's whose ranks have come to every meeting that there will be.
Group MakePatientGroup(Gpu& gpu, Queue& queue) {
  const RankMemory memory(gpu, kBytes);
  char* const ones = Check(gpu.AllocateHost(sizeof(Flags)));
  std::memset(ones, 0xff, sizeof(Flags));
  Check(gpu.Copy(memory.data(), ones, offsetof(Flags, broken), queue.stream()));
  queue.Finish();
  Group group = GroupOf(memory, 0, kRanks, kBytes);
  for (uint32_t r = 0; r < kRanks; ++r) {
    Join(group, r, memory.data());
    // What I push to rank r lands in what I read as its contribution.
    group.staging[r] += r * (kBytes / kRanks);
  }
  return group;
}

}  // namespace

void MeasureBandwidth() {
  Gpu& gpu = GpuOf(0);
  Queue queue(gpu);
  const auto stream = static_cast<cudaStream_t>(queue.stream());
  const Group group = MakePatientGroup(gpu, queue);
  char* const from = Check(gpu.Allocate(kBytes));
  char* const part = Check(gpu.Allocate(kBytes / kRanks));
  char* const source = Check(gpu.Allocate(kMoved / 2));
  char* const target = Check(gpu.Allocate(kMoved / 2));
  const double copy = BestSeconds(stream, [&] {
    CheckCuda(
        cudaMemcpyAsync(target, source, kMoved / 2, cudaMemcpyDeviceToDevice, stream));
  });
  std::printf(
      "\n| reduce-scatter of 256 MiB among 8 | GB/s | a copy of as many bytes | "
      "of the copy's (wanted: 90 %% or more) |\n|---|---|---|---|\n");
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor tensor{from, nullptr, kBytes / SizeOf(dtype)};
    const Call call =
        Check(MakeReduceScatter(group, 1, {dtype, dtype}, {&tensor, 1}, part));
    const double kernel = BestSeconds(
        stream, [&] { Check(gpu.Reduce(ReduceOp::kSum, dtype, dtype, call, stream)); });
    std::printf("| %s | %.0f | %.0f | %.0f %% |\n", Name(dtype), kMoved / kernel / 1e9,
                kMoved / copy / 1e9, 100 * copy / kernel);
  }
  std::fflush(stdout);
}

}  // namespace smddp::device::testing
