// SPDX-License-Identifier: Apache-2.0
// The one engine of this process, the one for its GPUs, and who it is in the job.
//
// The only global state of the native half: XLA's handlers have nowhere else to find
// the engines. Made at first use and never destroyed, because XLA may call handlers
// until the process ends. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "collective/engine.h"
#include "collective/pending_calls.h"
#include "comm/kv_store.h"
#include "device/gpu.h"
#include "gpu/gpu_engine.h"

namespace smddp {

// Where this process stands in the job.
struct Place {
  int process = 0;
  int processes = 1;
};

class Registry {
 public:
  static Registry& Get();

  // Made with what Configure last said.
  Engine& engine();
  // Null until something needed the engine: what only looks must not start threads.
  Engine* engine_if_any() const { return engine_.load(); }
  PendingCalls& pending() { return pending_; }
  Place place() const { return {process_.load(), processes_.load()}; }

  // Sets what the engine will be made with. An error if it runs already.
  Status Configure(const Settings& settings);
  Status Connect(int process, int processes, KeyValueStore& store);

  // Who has the GPUs; what has begun to use one stays with it.
  void UseGpus(device::Gpus& gpus);
  // The global device id of each local ordinal. Again with the same ids is fine.
  void NameGpus(std::map<int, int64_t> ids);
  // Not ok where nobody has GPUs.
  Result<GpuEngine*> gpu_engine();
  GpuEngine* gpu_engine_if_any() const { return gpu_engine_.load(); }
  // See gpu/trial.h.
  Status TryGpus(std::vector<int> ordinals);

  // Of both engines.
  void Disconnect(const std::string& reason);
  void Abort(const std::string& reason);
  bool Drain(double seconds);
  uint64_t calls() const;
  uint64_t in_flight() const;

 private:
  Registry() = default;

  PendingCalls pending_;
  std::mutex mutex_;
  Settings settings_;
  std::atomic<Engine*> engine_{nullptr};
  std::mutex gpus_mutex_;
  device::Gpus* gpus_ = nullptr;
  std::map<int, int64_t> gpu_ids_;
  std::atomic<GpuEngine*> gpu_engine_{nullptr};
  std::atomic<int> process_{0};
  std::atomic<int> processes_{1};
};

}  // namespace smddp
