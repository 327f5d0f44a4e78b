// SPDX-License-Identifier: Apache-2.0
// The kernels on host threads: a rank's blocks, and the threads of each, are threads of
// this process, so that ThreadSanitizer sees every access that the protocol orders.
//
// A rank's calls run one after the other as on a CUDA stream: all its threads leave one
// before any enters the next.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/call.h"
#include "device/kernels.h"
#include "tests/reduce/reference.h"

namespace smddp::device::testing {

// Returns to all `threads` once all have come: whether all of them said yes.
class Barrier {
 public:
  explicit Barrier(uint32_t threads) : threads_(threads) {}

  bool Meet(bool yes) {
    std::unique_lock lock(mutex_);
    all_yes_ = all_yes_ && yes;
    const uint64_t round = round_;
    if (++come_ == threads_) {
      result_ = std::exchange(all_yes_, true);
      come_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    return result_;
  }

 private:
  const uint32_t threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t come_ = 0;
  uint64_t round_ = 0;
  bool all_yes_ = true;
  bool result_ = true;
};

class HostExecution {
 public:
  HostExecution(uint32_t block, uint32_t blocks, uint32_t thread_in_block,
                uint32_t threads_in_block, Barrier& barrier)
      : block_(block),
        blocks_(blocks),
        thread_in_block_(thread_in_block),
        threads_in_block_(threads_in_block),
        barrier_(barrier) {}

  uint32_t block() const { return block_; }
  uint32_t thread() const { return block_ * threads_in_block_ + thread_in_block_; }
  uint32_t threads() const { return blocks_ * threads_in_block_; }
  uint32_t thread_in_block() const { return thread_in_block_; }
  uint32_t threads_in_block() const { return threads_in_block_; }

  bool AllOfBlock(bool ok) const { return barrier_.Meet(ok); }

  static uint64_t LoadRelaxed(uint64_t* word) {
    return std::atomic_ref(*word).load(std::memory_order_relaxed);
  }
  static uint64_t LoadAcquire(uint64_t* word) {
    return std::atomic_ref(*word).load(std::memory_order_acquire);
  }
  static void StoreRelease(uint64_t* word, uint64_t value) {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  static void Pause() { std::this_thread::yield(); }

  static Vector LoadVector(const char* from) {
    return *reinterpret_cast<const Vector*>(from);
  }
  static void StoreVector(char* to, const Vector& v) {
    *reinterpret_cast<Vector*>(to) = v;
  }

  static float ToFloat(Float16 element) {
    return smddp::testing::kFloat16.Decode(element.bits);
  }
  static float ToFloat(Bfloat16 element) {
    return smddp::testing::kBfloat16.Decode(element.bits);
  }
  template <class T>
  static T FromFloat(float value) {
    constexpr bool kHalf = std::is_same_v<T, Float16>;
    const auto& format = kHalf ? smddp::testing::kFloat16 : smddp::testing::kBfloat16;
    return T{format.Encode(value)};
  }

 private:
  const uint32_t block_;
  const uint32_t blocks_;
  const uint32_t thread_in_block_;
  const uint32_t threads_in_block_;
  Barrier& barrier_;
};

using HostFunction = void (*)(const HostExecution&, const Call&);

// For kernel_table.h.
template <class Op, class In, class Out>
struct HostKernel {
  using Function = HostFunction;
  static constexpr Function kFunction = Run<Op, In, Out, HostExecution>;
};

struct Launch {
  HostFunction function;
  Call call;
};

// One rank's calls in order. The destructor waits for the end of the last one.
class Stream {
 public:
  Stream(std::vector<Launch> launches, uint32_t threads_in_block)
      : launches_(std::move(launches)) {
    uint32_t blocks = 0;
    for (const Launch& launch : launches_) blocks = std::max(blocks, launch.call.blocks);
    all_ = std::make_unique<Barrier>(blocks * threads_in_block);
    for (uint32_t b = 0; b < blocks; ++b) {
      blocks_.push_back(std::make_unique<Barrier>(threads_in_block));
    }
    for (uint32_t b = 0; b < blocks; ++b) {
      for (uint32_t t = 0; t < threads_in_block; ++t) {
        threads_.emplace_back([=, this] { RunThread(b, t, threads_in_block); });
      }
    }
  }

 private:
  void RunThread(uint32_t block, uint32_t thread, uint32_t threads_in_block) {
    for (const Launch& launch : launches_) {
      const uint32_t blocks = launch.call.blocks;
      if (block < blocks) {
        launch.function(
            HostExecution(block, blocks, thread, threads_in_block, *blocks_[block]),
            launch.call);
      }
      all_->Meet(true);
    }
  }

  const std::vector<Launch> launches_;
  std::unique_ptr<Barrier> all_;
  std::vector<std::unique_ptr<Barrier>> blocks_;
  std::vector<std::jthread> threads_;
};

}  // namespace smddp::device::testing
