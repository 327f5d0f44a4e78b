// SPDX-License-Identifier: Apache-2.0
// What only a machine with a GPU can show: `make gpu-check` builds this and runs it.
//
// Ranks are processes that share their memory by CUDA IPC, on as many GPUs as there are,
// or all on one. Prints a short table; exits with 1 where a result is wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "device/launch.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/reduce/reference.h"

namespace smddp::device::testing {
namespace {

using smddp::testing::Bytes;
using smddp::testing::Expected;
using smddp::testing::FirstDifference;
using smddp::testing::RandomArray;

constexpr size_t kHalfBytes = size_t{4} << 20;
// A wait that takes longer has no end: nothing else runs on the GPU.
constexpr unsigned kSeconds = 300;

using smddp::testing::Case;

std::vector<Case> AllCases() {
  std::vector<Case> cases = smddp::testing::UncastCases();
  smddp::testing::AddCastCases(ReduceOp::kSum, cases);
  return cases;
}

// An array in GPU memory.
class GpuArray {
 public:
  explicit GpuArray(size_t size) : size_(size) {
    SMDDP_CHECK_CUDA(cudaMalloc(&data_, std::max<size_t>(size, 1)));
  }
  explicit GpuArray(const Bytes& value) : GpuArray(value.size()) {
    SMDDP_CHECK_CUDA(cudaMemcpy(data_, value.data(), size_, cudaMemcpyHostToDevice));
  }
  ~GpuArray() { cudaFree(data_); }
  GpuArray(const GpuArray&) = delete;

  void* data() const { return data_; }
  Bytes Value() const {
    Bytes value(size_);
    SMDDP_CHECK_CUDA(cudaMemcpy(value.data(), data_, size_, cudaMemcpyDeviceToHost));
    return value;
  }

 private:
  size_t size_;
  void* data_ = nullptr;
};

// One process's part in all checks. All processes make the same calls.
class Rank {
 public:
  explicit Rank(const Group& group) : group_(group) {
    SMDDP_CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  // Whether the kernels of `c` give what plain arithmetic gives, for several sizes.
  bool Check(const Case& c, bool small) {
    bool right = true;
    for (size_t count : {129, 1, 4096, 30011}) {
      if (small && count != 129) break;
      for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        right = CheckAllReduce(c, algorithm, count) && right;
      }
      if (c.in == c.out) right = CheckHalves(c, count) && right;
    }
    return right;
  }

  // Microseconds of one call of `bytes` among `calls` that follow each other.
  double TimeOf(size_t bytes, int calls) {
    const size_t count = bytes / sizeof(float);
    const GpuArray from(Bytes(bytes, 0));
    const GpuArray to(bytes);
    const Tensor tensor{from.data(), to.data(), count};
    const auto run = [&] {
      Enqueue(ReduceOp::kSum, {},
              MakeAllReduce(group_, ++number_, ChooseAllReduce(bytes), {}, {&tensor, 1}));
    };
    for (int i = 0; i < 10; ++i) run();
    Finish();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) run();
    Finish();
    const std::chrono::duration<double, std::micro> took =
        std::chrono::steady_clock::now() - start;
    return took.count() / calls;
  }

 private:
  bool CheckAllReduce(const Case& c, Algorithm algorithm, size_t count) {
    Prepare(c, count);
    const GpuArray from(inputs_[group_.rank]);
    const GpuArray to(count * SizeOf(c.out));
    const Tensor tensor{from.data(), to.data(), count};
    const Kind kind{c.in, c.out};
    Enqueue(c.op, kind, MakeAllReduce(group_, ++number_, algorithm, kind, {&tensor, 1}));
    return Matches(c, algorithm == Algorithm::kOneShot ? "one-shot" : "two-shot", to,
                   count);
  }

  bool CheckHalves(const Case& c, size_t count) {
    Prepare(c, count);
    const Kind there{c.in, PartialType(c.in, c.op)};
    const Kind back{there.out, c.out};
    const GpuArray from(inputs_[group_.rank]);
    const GpuArray to(count * SizeOf(c.out));
    const Tensor tensor{from.data(), to.data(), count};
    const GpuArray part(PartElements(there, {&tensor, 1}, group_.ranks, group_.rank) *
                        SizeOf(there.out));
    Enqueue(c.op, there,
            MakeReduceScatter(group_, ++number_, there, {&tensor, 1}, part.data()));
    auto gather = MakeAllGather(group_, ++number_, back, part.data(), {&tensor, 1});
    testing::Check(gather.status());
    testing::Check(LaunchAllGather(back.in, back.out, *gather, stream_));
    return Matches(c, "reduce-scatter and all-gather", to, count);
  }

  void Prepare(const Case& c, size_t count) {
    std::mt19937_64 random(count + static_cast<size_t>(c.in));
    inputs_.clear();
    for (uint32_t r = 0; r < group_.ranks; ++r) {
      inputs_.push_back(RandomArray(c.in, count, random));
    }
  }

  void Enqueue(ReduceOp op, const Kind& kind, Result<Call> call) {
    testing::Check(call.status());
    testing::Check(LaunchReduce(op, kind.in, kind.out, *call, stream_));
  }

  void Finish() {
    SMDDP_CHECK_CUDA(cudaStreamSynchronize(stream_));
    if (group_.watch->gave_up == 0) return;
    std::fprintf(stderr, "gpu_check: rank %u gave up a call\n", group_.rank);
    std::exit(2);
  }

  bool Matches(const Case& c, const char* what, const GpuArray& to, size_t count) {
    Finish();
    const Bytes expected = Expected(c.op, c.in, c.out, inputs_, count);
    const size_t same = FirstDifference(c.out, to.Value(), expected, count);
    if (same == count) return true;
    std::fprintf(stderr, "rank %u: %s %s of %zu %s to %s: element %zu is wrong\n",
                 group_.rank, what, Name(c.op), count, Name(c.in), Name(c.out), same);
    return false;
  }

  const Group group_;
  cudaStream_t stream_ = nullptr;
  uint64_t number_ = 0;
  std::vector<Bytes> inputs_;
};

// A rank's whole life in a process of its own. 0: all was right.
int RunRank(Shared& shared, uint32_t rank, uint32_t ranks, bool small) {
  alarm(kSeconds);
  int gpus = 0;
  SMDDP_CHECK_CUDA(cudaGetDeviceCount(&gpus));
  SMDDP_CHECK_CUDA(cudaSetDevice(static_cast<int>(rank) % gpus));
  const RankMemory memory(kHalfBytes);
  Rank me(MakeGroup(shared, memory, rank, ranks, kHalfBytes));
  const std::vector<Case> cases = AllCases();
  size_t right = 0;
  for (const Case& c : cases) right += me.Check(c, small) ? 1 : 0;
  const double time_4k = me.TimeOf(4096, small ? 1 : 200);
  const double time_1m = me.TimeOf(size_t{1} << 20, small ? 1 : 50);
  if (rank == 0) {
    std::printf("| %u processes on %u GPUs | %zu of %zu right | %.1f us | %.1f us |\n",
                ranks, std::min<uint32_t>(ranks, gpus), right, cases.size(), time_4k,
                time_1m);
    std::fflush(stdout);
  }
  shared.Meet();
  return right == cases.size() ? 0 : 1;
}

bool RunProcesses(uint32_t ranks, bool small) {
  Shared* const shared = Shared::Make(ranks);
  std::vector<pid_t> children;
  for (uint32_t r = 0; r < ranks; ++r) {
    const pid_t child = fork();
    if (child == 0) std::exit(RunRank(*shared, r, ranks, small));
    children.push_back(child);
  }
  bool right = true;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    right = right && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return right;
}

// Seconds that `enqueue` takes on the GPU, the best of several.
template <class Enqueue>
double BestSeconds(cudaStream_t stream, Enqueue enqueue) {
  cudaEvent_t start, end;
  SMDDP_CHECK_CUDA(cudaEventCreate(&start));
  SMDDP_CHECK_CUDA(cudaEventCreate(&end));
  float best = 1e9f;
  for (int i = 0; i < 20; ++i) {
    SMDDP_CHECK_CUDA(cudaEventRecord(start, stream));
    enqueue();
    SMDDP_CHECK_CUDA(cudaEventRecord(end, stream));
    SMDDP_CHECK_CUDA(cudaEventSynchronize(end));
    float milliseconds = 0;
    SMDDP_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, start, end));
    best = std::min(best, milliseconds);
  }
  return best / 1e3;
}

// A reduce-scatter of 8 ranks whose memory is all this GPU's and who never wait, beside a
// copy that moves as many bytes.
int MeasureBandwidth() {
  constexpr uint32_t kRanks = 8;
  constexpr size_t kBytes = size_t{256} << 20;
  const RankMemory memory(kBytes);
  // All ones: everybody has come to every meeting.
  SMDDP_CHECK_CUDA(cudaMemset(memory.data(), 0xff, offsetof(Flags, broken)));
  Group group;
  group.ranks = kRanks;
  group.half_bytes = kBytes;
  group.watch = memory.watch();
  for (uint32_t r = 0; r < kRanks; ++r) {
    Join(group, r, memory.data());
    // What I push to rank r lands in what I read as its contribution.
    group.staging[r] += r * (kBytes / kRanks);
  }

  const GpuArray from(Bytes(kBytes, 0));
  const GpuArray part(kBytes / kRanks);
  const Tensor tensor{from.data(), nullptr, kBytes / sizeof(float)};
  auto call = MakeReduceScatter(group, 1, {}, {&tensor, 1}, part.data());
  Check(call.status());
  // Rank 0 pushes all its parts and adds eight of one: read, written; read, written.
  const size_t moved = 2 * kBytes + kBytes + kBytes / kRanks;
  const GpuArray target(moved / 2);
  const GpuArray source(moved / 2);
  cudaStream_t stream = nullptr;
  SMDDP_CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const double kernel = BestSeconds(stream, [&] {
    Check(LaunchReduce(ReduceOp::kSum, DType::kF32, DType::kF32, *call, stream));
  });
  const double copy = BestSeconds(stream, [&] {
    SMDDP_CHECK_CUDA(cudaMemcpyAsync(target.data(), source.data(), moved / 2,
                                     cudaMemcpyDeviceToDevice, stream));
  });
  std::printf(
      "\nreduce-scatter of 256 MiB: %.0f GB/s; a copy of as many bytes: %.0f GB/s; "
      "%.0f %%\n",
      moved / kernel / 1e9, moved / copy / 1e9, 100 * copy / kernel);
  return 0;
}

// CUDA must not be touched in the parent of processes that use it.
int InAProcess(int (*function)()) {
  const pid_t child = fork();
  if (child == 0) std::exit(function());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

int CountGpus() {
  int gpus = 0;
  return cudaGetDeviceCount(&gpus) == cudaSuccess ? gpus : 0;
}

// `small`: two ranks and one size, for a run under compute-sanitizer.
int Main(bool small) {
  if (InAProcess(CountGpus) == 0) {
    std::printf("gpu_check: no GPU (or no driver): NOTHING WAS CHECKED\n");
    return 77;
  }
  std::printf("| ranks | kernels | 4 KiB | 1 MiB |\n|---|---|---|---|\n");
  std::fflush(stdout);
  bool right = true;
  for (uint32_t ranks : {2, 4, 8}) {
    if (!small || ranks == 2) right = RunProcesses(ranks, small) && right;
  }
  if (!small) right = InAProcess(MeasureBandwidth) == 0 && right;
  return right ? 0 : 1;
}

}  // namespace
}  // namespace smddp::device::testing

int main(int argc, char** argv) {
  return smddp::device::testing::Main(argc > 1 && std::string(argv[1]) == "small");
}
