// SPDX-License-Identifier: Apache-2.0
// The one engine of this process, and who it is in the job.
//
// The only global state of the native half: XLA's handlers have nowhere else to find
// the engine. Made at first use and never destroyed, because XLA may call handlers
// until the process ends. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "base/settings.h"
#include "base/status.h"
#include "collective/engine.h"
#include "collective/pending_calls.h"
#include "comm/kv_store.h"

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

 private:
  Registry() = default;

  PendingCalls pending_;
  std::mutex mutex_;
  Settings settings_;
  std::atomic<Engine*> engine_{nullptr};
  std::atomic<int> process_{0};
  std::atomic<int> processes_{1};
};

}  // namespace smddp
