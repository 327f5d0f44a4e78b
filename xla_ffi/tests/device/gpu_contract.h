// SPDX-License-Identifier: Apache-2.0
// What gpu.h promises, as checks that all GPUs must pass: those made of host memory in
// the unit tests, and real ones in gpu_check. So the tests' GPUs behave as real ones do.
//
// CheckContract() returns what is not as promised, one line each. It waits for work by
// words that the work writes, and leaves nothing behind on a stream.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/gpu.h"
#include "device/make_call.h"

namespace smddp::device::testing {

class Contract {
 public:
  explicit Contract(Gpus& gpus) : gpus_(gpus) {}

  std::vector<std::string> Check() {
    Expect(!gpus_.Get(-1).ok() && !gpus_.Get(1000).ok(), "there is no such GPU");
    Result<Gpu*> got = gpus_.Get(0);
    if (!Expect(got.ok(), "Get(0): " + got.status().message())) return faults_;
    gpu_ = *got;
    Expect(*gpus_.Get(0) == gpu_ && gpu_->ordinal() == 0, "the same GPU every time");
    first_ = Stream();
    second_ = Stream();
    words_ = reinterpret_cast<uint64_t*>(Host(kWords * sizeof(uint64_t)));
    if (!faults_.empty()) return faults_;
    CheckMemory();
    CheckHolds();
    CheckHostCalls();
    CheckFollow();
    CheckPeers();
    CheckKernels();
    CheckGivingUp();
    return faults_;
  }

 private:
  static constexpr size_t kBytes = 100003;  // Neither whole vectors nor whole pages.
  static constexpr size_t kWords = 64;
  static constexpr size_t kHalfBytes = size_t{1} << 20;
  static constexpr size_t kFlagBytes = (sizeof(Flags) + 255) / 256 * 256;

  // Two ranks of this process, on one GPU.
  struct Pair {
    Group groups[2];
    uint64_t number = 0;
  };

  bool Expect(bool holds, const std::string& what) {
    if (!holds) faults_.push_back("not as promised: " + what);
    return holds;
  }
  void Do(const Status& status) { Expect(status.ok(), status.message()); }
  template <class T>
  T Do(Result<T> result, T otherwise) {
    Do(result.status());
    return result.ok() ? *result : otherwise;
  }

  StreamHandle Stream() { return Do<StreamHandle>(gpu_->NewStream(), nullptr); }
  char* Host(size_t bytes) { return Do<char*>(gpu_->AllocateHost(bytes), nullptr); }
  char* Device(size_t bytes) { return Do<char*>(gpu_->Allocate(bytes), nullptr); }
  // A word of host memory that nothing has used yet.
  uint64_t* Word() { return &words_[used_words_++]; }

  static uint64_t Load(uint64_t* word) {
    return std::atomic_ref(*word).load(std::memory_order_acquire);
  }
  static void Store(uint64_t* word, uint64_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }

  // Whether the word comes up to `value` before all hope is lost.
  static bool Comes(uint64_t* word, uint64_t value) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (Load(word) < value) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }
  // Whether the word still has `value` after a while.
  static bool Stays(uint64_t* word, uint64_t value) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return Load(word) == value;
  }

  void Finish(StreamHandle stream) {
    uint64_t* const done = Word();
    Do(gpu_->Write(done, 1, stream));
    Expect(Comes(done, 1), "work on a stream comes to its end");
  }

  void CheckMemory() {
    char* const host = Host(kBytes);
    char* const device = Device(kBytes);
    char* const back = Host(kBytes);
    if (!faults_.empty()) return;
    std::vector<char> pattern(kBytes);
    for (size_t i = 0; i < kBytes; ++i) pattern[i] = static_cast<char>(i * 7 + i / 251);
    Expect(host[0] == 0 && std::memcmp(host, host + 1, kBytes - 1) == 0,
           "host memory is all zero");
    std::memcpy(back, pattern.data(), kBytes);
    Do(gpu_->Copy(back, device, kBytes, first_));
    Finish(first_);
    Expect(std::memcmp(back, host, kBytes) == 0, "memory of the GPU is all zero");
    std::memcpy(host, pattern.data(), kBytes);
    Do(gpu_->Copy(device, host, kBytes, first_));
    Do(gpu_->Copy(back + 1, device + 3, kBytes - 3, first_));
    Finish(first_);
    Expect(back[0] == 0 && std::memcmp(back + 1, pattern.data() + 3, kBytes - 3) == 0,
           "copies there and back, in the order of their stream");
  }

  void CheckHolds() {
    uint64_t* const word = Word();
    uint64_t* const done = Word();
    Store(word, 3);
    Do(gpu_->AwaitAtLeast(word, 3, first_));
    Do(gpu_->Write(done, 1, first_));
    Do(gpu_->AwaitAtLeast(word, 5, first_));
    Do(gpu_->Write(done, 2, first_));
    Expect(Comes(done, 1), "what is there already is not waited for");
    Expect(Stays(done, 1), "AwaitAtLeast() holds its stream up");
    Finish(second_);
    Store(word, 4);
    Expect(Stays(done, 1), "AwaitAtLeast() waits for all of the value");
    Store(word, 7);
    Expect(Comes(done, 2), "AwaitAtLeast() lets go at more than the value");
  }

  struct Gate {
    std::atomic<bool> open{false};
    std::atomic<int> calls{0};
  };

  void CheckHostCalls() {
    Gate gate;
    uint64_t* const done = Word();
    const auto pass = [](void* argument) {
      auto* const the_gate = static_cast<Gate*>(argument);
      while (!the_gate->open) std::this_thread::yield();
      ++the_gate->calls;
    };
    Do(gpu_->CallHost(pass, &gate, first_));
    Do(gpu_->CallHost(pass, &gate, first_));
    Do(gpu_->Write(done, 1, first_));
    Expect(Stays(done, 0), "CallHost() holds its stream up");
    gate.open = true;
    Expect(Comes(done, 1) && gate.calls == 2, "CallHost() calls each function once");
  }

  void CheckFollow() {
    uint64_t* const before = Word();
    uint64_t* const after = Word();
    uint64_t* const done = Word();
    Do(gpu_->AwaitAtLeast(before, 1, first_));
    Do(gpu_->Follow(second_, first_));
    Do(gpu_->AwaitAtLeast(after, 1, first_));
    Do(gpu_->Write(done, 1, second_));
    Expect(Stays(done, 0), "a stream waits for the one that it follows");
    Store(before, 1);
    Expect(Comes(done, 1), "but for nothing that came there later");
    Store(after, 1);
    Finish(first_);
  }

  void CheckPeers() {
    Do(gpu_->Reach(*gpu_));
    Do(gpu_->Reach(*gpu_));
    Result<Gpu*> other = gpus_.Get(1);
    if (other.ok() && gpu_->Reach(**other).ok()) Do(gpu_->Reach(**other));
    char* const memory = Device(kBytes);
    Do(gpu_->Export(memory).status());
  }

  Pair MakePair() {
    Pair pair;
    char* memory[2] = {Device(kFlagBytes + 2 * kHalfBytes),
                       Device(kFlagBytes + 2 * kHalfBytes)};
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Group& group = pair.groups[rank];
      group.rank = rank;
      group.ranks = 2;
      group.half_bytes = kHalfBytes;
      group.max_blocks = 8;  // Those of both must find room on the GPU.
      group.watch = reinterpret_cast<Watch*>(Host(sizeof(Watch)));
      for (uint32_t peer = 0; peer < 2; ++peer) {
        group.flags[peer] = reinterpret_cast<Flags*>(memory[peer]);
        group.staging[peer] = memory[peer] + kFlagBytes;
      }
    }
    return pair;
  }

  // Puts a sum of `tensor` on the stream of `rank`.
  void Sum(Pair& pair, uint32_t rank, uint64_t number, const Tensor& tensor) {
    auto call =
        MakeAllReduce(pair.groups[rank], number, Algorithm::kTwoShot, {}, {&tensor, 1});
    Do(call.status());
    if (!call.ok()) return;
    Do(gpu_->Reduce(ReduceOp::kSum, DType::kF32, DType::kF32, *call,
                    rank == 0 ? first_ : second_));
  }

  // A rank's array of 1, 2, 3, ..., and room for a sum.
  Tensor MakeTensor() {
    constexpr size_t kCount = kBytes / sizeof(float);
    char* const host = Host(kBytes);
    for (size_t i = 0; i < kCount; ++i) {
      reinterpret_cast<float*>(host)[i] = static_cast<float>(i + 1);
    }
    char* const from = Device(kBytes);
    Do(gpu_->Copy(from, host, kBytes, first_));
    Finish(first_);
    return {from, Device(kBytes), kCount};
  }

  // What is in the tensor's result, after all work of both streams.
  std::vector<float> ResultOf(const Tensor& tensor) {
    char* const host = Host(kBytes);
    Finish(second_);
    Do(gpu_->Copy(host, tensor.to, tensor.count * sizeof(float), first_));
    Finish(first_);
    const auto* const values = reinterpret_cast<const float*>(host);
    return {values, values + tensor.count};
  }

  void CheckKernels() {
    Pair pair = MakePair();
    const Tensor tensors[] = {MakeTensor(), MakeTensor()};
    if (!faults_.empty()) return;
    for (uint64_t number : {1, 2, 3}) {
      for (uint32_t rank : {0, 1}) Sum(pair, rank, number, tensors[rank]);
    }
    for (const Tensor& tensor : tensors) {
      const std::vector<float> result = ResultOf(tensor);
      bool right = true;
      for (size_t i = 0; i < result.size(); ++i) {
        right = right && result[i] == 2.0f * static_cast<float>(i + 1);
      }
      Expect(right, "a sum is right");
    }
    Expect(pair.groups[0].watch->gave_up == 0, "a sum is not given up");
    auto call = MakeAllReduce(pair.groups[0], 4, Algorithm::kTwoShot,
                              {DType::kS8, DType::kF64}, {&tensors[0], 1});
    Expect(!gpu_->Reduce(ReduceOp::kMax, DType::kS8, DType::kF64, *call, first_).ok() &&
               !gpu_->AllGather(DType::kS8, DType::kF64, *call, first_).ok(),
           "there is no such kernel");
  }

  // A rank never comes; afterwards another group is at its best.
  void CheckGivingUp() {
    Pair pair = MakePair();
    const Tensor tensor = MakeTensor();
    if (!faults_.empty()) return;
    uint64_t* const done = Word();
    Sum(pair, 0, 1, tensor);
    Do(gpu_->Write(done, 1, first_));
    Expect(Stays(done, 0), "a kernel waits for its peers");
    Watch* const watch = pair.groups[0].watch;
    Store(&watch->abort, 1);
    Expect(Comes(done, 1), "a kernel that is told to gives up");
    const GaveUp gave_up = GaveUp::Unpack(Load(&watch->gave_up));
    Expect(gave_up.call == 1 && gave_up.rank == 1, "and says which rank it missed");
    const std::vector<float> result = ResultOf(tensor);
    const std::vector<unsigned char> poison(result.size() * sizeof(float), 0xff);
    Expect(std::memcmp(result.data(), poison.data(), poison.size()) == 0,
           "and leaves no number that could be taken for a sum");
    CheckKernels();
  }

  Gpus& gpus_;
  Gpu* gpu_ = nullptr;
  StreamHandle first_ = nullptr;
  StreamHandle second_ = nullptr;
  uint64_t* words_ = nullptr;
  size_t used_words_ = 0;
  std::vector<std::string> faults_;
};

inline std::vector<std::string> CheckContract(Gpus& gpus) {
  return Contract(gpus).Check();
}

}  // namespace smddp::device::testing
