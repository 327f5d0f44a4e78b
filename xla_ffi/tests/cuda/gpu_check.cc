// SPDX-License-Identifier: Apache-2.0
// What only a machine with a GPU can show: `make gpu-check` builds this and runs it.
//
// `gpu_check` runs everything and prints short tables; `gpu_check small` runs what
// compute-sanitizer is to watch. Exits with 0 where all is right, with 1 where something
// is not, with 77 where there is no GPU. Ranks are processes that share their memory by
// CUDA IPC, on as many GPUs as there are, or all on one. Other arguments are for the
// processes that it starts.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "tests/cuda/bandwidth.h"
#include "tests/cuda/correctness.h"
#include "tests/cuda/timing.h"
#include "tests/device/gpu_contract.h"

namespace smddp::device::testing {
namespace {

constexpr int kNoGpu = 77;
// A wait that takes longer has no end: nothing else runs on the GPU.
constexpr unsigned kSeconds = 600;
constexpr int kQueuedCalls = 500;
// What a rank adds in the checks of a lost one.
constexpr float kShare = 1.5f;

struct Place {
  uint32_t rank;
  uint32_t ranks;
  Shared* shared;
};

// The GPUs in words, and whether there is one.
int Describe() {
  CudaGpus& gpus = CudaGpus::OfThisProcess();
  std::printf("%s\n", gpus.Describe().c_str());
  const Status problem = gpus.Problem();
  if (problem.ok()) return 0;
  std::printf("gpu_check: %s: NOTHING WAS CHECKED ON A GPU\n", problem.message().c_str());
  return kNoGpu;
}

// What device/gpu.h promises.
int CheckGpus() {
  const std::vector<std::string> faults = CheckContract(CudaGpus::OfThisProcess());
  for (const std::string& fault : faults) std::fprintf(stderr, "%s\n", fault.c_str());
  std::printf("the GPU as device/gpu.h says: %s\n", faults.empty() ? "yes" : "NO");
  std::fflush(stdout);
  return faults.empty() ? 0 : 1;
}

int CheckRank(const Place& place, bool small) {
  Gpu& gpu = GpuOf(place.rank);
  Correctness me(
      gpu, JoinProcesses(*place.shared, gpu, place.rank, place.ranks, kCheckedHalfBytes));
  const size_t cases = Correctness::Cases().size();
  const size_t right = me.CountRight(small);
  const bool queued = me.CheckQueued(small ? 10 : kQueuedCalls);
  if (place.rank == 0) {
    std::printf("| %u processes on %u GPUs | %zu of %zu right | %s |\n", place.ranks,
                std::min<uint32_t>(place.ranks, CudaGpus::OfThisProcess().count()), right,
                cases, queued ? "right" : "WRONG");
    std::fflush(stdout);
  }
  place.shared->Meet();
  return right == cases && queued ? 0 : 1;
}

// The last rank is killed between two calls. The other one's kernel gives up when it is
// told to, and its GPU is as good as before.
int CheckLostRank(const Place& place) {
  Gpu& gpu = GpuOf(place.rank);
  const Group group =
      JoinProcesses(*place.shared, gpu, place.rank, place.ranks, kCheckedHalfBytes);
  Correctness me(gpu, group);
  me.Sum(kShare);
  const float sum = std::bit_cast<float>(me.SumBits());
  place.shared->Meet();
  if (place.rank != 0) raise(SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  me.Sum(kShare);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const bool waits = !me.queue().Done();
  std::atomic_ref(group.watch->abort).store(1, std::memory_order_release);
  const uint32_t bits = me.SumBits();
  const GaveUp gave_up = GaveUp::Unpack(group.watch->gave_up);
  const bool right = sum == 2 * kShare && waits && bits == ~uint32_t{0} &&
                     gave_up.call == 2 && gave_up.rank == 1;
  std::printf("a killed rank: its peer gives up and names it: %s\n",
              right ? "yes" : "NO");
  std::fflush(stdout);
  return CheckGpus() == 0 && right ? 0 : 1;
}

int TimeProcesses(const Place& place) {
  Gpu& gpu = GpuOf(place.rank);
  const std::vector<Timing> timings = TimeCalls(
      gpu, JoinProcesses(*place.shared, gpu, place.rank, place.ranks, kTimedHalfBytes),
      [&] { place.shared->Meet(); });
  if (place.rank == 0) {
    PrintTimings(std::to_string(place.ranks) + " GPUs", timings);
  }
  return 0;
}

int TimeStreams() {
  for (uint32_t ranks : {2, 4, 8}) {
    PrintTimings(std::to_string(ranks) + " streams of one GPU", TimeOnOneGpu(ranks));
  }
  return 0;
}

// A kernel that is watched may have to end before the next one of its process starts:
// only ranks in processes of their own can wait for each other.
bool RunSmall() {
  std::printf("| ranks | kernels | queued calls |\n|---|---|---|\n");
  std::fflush(stdout);
  return RunRanks("small-rank", {0, 0});
}

bool RunAll() {
  bool right = Run({"contract"}) == 0;
  std::printf("\n| ranks | kernels | queued calls |\n|---|---|---|\n");
  std::fflush(stdout);
  for (size_t ranks : {2, 4, 8}) {
    right = RunRanks("rank", std::vector<int>(ranks, 0)) && right;
  }
  std::printf("\n");
  std::fflush(stdout);
  right = RunRanks("lost-rank", {0, 128 + SIGKILL}) && right;
  right = Run({"bandwidth"}) == 0 && right;
  right = Run({"streams"}) == 0 && right;
  const size_t gpus = std::min<size_t>(Run({"count"}), kMaxRanks);
  if (gpus > 1) right = RunRanks("timed-rank", std::vector<int>(gpus, 0)) && right;
  return right;
}

// One of the processes that were started.
int RunPart(const std::string& what, char** arguments) {
  alarm(kSeconds);
  if (what == "describe") return Describe();
  if (what == "count") return CudaGpus::OfThisProcess().count();
  if (what == "contract") return CheckGpus();
  if (what == "streams") return TimeStreams();
  if (what == "bandwidth") return MeasureBandwidth(), 0;
  const Place place = {static_cast<uint32_t>(std::atoi(arguments[0])),
                       static_cast<uint32_t>(std::atoi(arguments[1])),
                       Shared::Map(std::atoi(arguments[2]))};
  if (what == "lost-rank") return CheckLostRank(place);
  if (what == "timed-rank") return TimeProcesses(place);
  return CheckRank(place, what == "small-rank");
}

int Main(const std::string& what, char** arguments) {
  if (!what.empty() && what != "small") return RunPart(what, arguments);
  if (const int code = Run({"describe"}); code != 0) return code;
  const bool right = what == "small" ? RunSmall() : RunAll();
  std::printf("\ngpu_check%s: %s\n", what.empty() ? "" : " small",
              right ? "all is right" : "NOT all is right");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace smddp::device::testing

int main(int argc, char** argv) {
  // Streams that wait for each other must not share one of the GPU's queues.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*replace=*/0);
  return smddp::device::testing::Main(argc > 1 ? argv[1] : "", argv + 2);
}
