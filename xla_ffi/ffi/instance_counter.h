// SPDX-License-Identifier: Apache-2.0
// Telling the calls of one program apart that were lowered as one, and where we are.
//
// Needs no header of XLA, so that module.cc can reach the registry without any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace smddp {

// Where this process stands in the job.
struct Place {
  int process = 0;
  int processes = 1;
};

// Which of the instances of one key in a program an op is. `count` is final once the
// program runs.
struct Instance {
  uint64_t index = 0;
  std::shared_ptr<const std::atomic<uint64_t>> count;  // Null: there is only one.
};

// Tells the instances of one key in one program apart. A jitted function that is called
// twice in a program is lowered once, so both calls carry one key; XLA loads them in
// one order on every process (measured, jax 0.10.2 and 0.12.0), so their index in that
// order names them. Lives in the registry; any thread.
class InstanceCounter {
 public:
  // The instance that is being loaded.
  Instance Next(uint64_t key);
  // Lowering emits `key`: what is loaded next is a new program.
  void Seal(uint64_t key);

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<std::atomic<uint64_t>>> loaded_;
};

}  // namespace smddp
