// SPDX-License-Identifier: Apache-2.0
// Where the local devices of one execution meet.
//
// Owned by the engine; any thread may call it. Devices of one execution are joined by
// XLA's run id, which is equal on all devices of a process for one launch, plus how
// often the collective was reached in that run (a loop reaches it many times).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collective/call.h"

namespace smddp {

// One collective of one compiled program in this process, shared by its local devices.
struct OpInstance {
  uint64_t key = 0;  // Which one, the same on every process (from the lowered text).
  std::string label;

  struct Reached {
    int64_t run_id = 0;  // Of the latest run; any value, growing from run to run.
    uint64_t in_run = 0;
    bool before = false;
  };
  std::unordered_map<int64_t, Reached> reached;  // By device; the rendezvous' lock.
};

class Rendezvous {
 public:
  explicit Rendezvous(double timeout_seconds) : timeout_seconds_(timeout_seconds) {}

  // Adds a device's part. Returns the whole call once the last local member is there,
  // nothing before.
  Result<std::unique_ptr<Call>> Join(OpInstance& op, int64_t run_id, int64_t device,
                                     const std::shared_ptr<const Group>& group,
                                     const std::shared_ptr<const Signature>& signature,
                                     Participant participant);

  // Calls that some local device never joined until the deadline; with `all`, every
  // incomplete call. Their missing participants have no `done`.
  std::vector<std::unique_ptr<Call>> TakeOverdue(bool all);

  bool empty() const;

 private:
  struct Pending {
    std::unique_ptr<Call> call;
    size_t missing = 0;
  };
  // Instance, group, run, how often in the run.
  using Execution = std::tuple<const OpInstance*, uint64_t, int64_t, uint64_t>;
  // Key and device: what executions are counted by, alike on every process.
  using Counted = std::pair<uint64_t, int64_t>;
  struct Steps {
    uint64_t next = 0;
    std::shared_ptr<const Group> group;  // Of the latest step.
    int64_t run_id = 0;                  // Its run, and the instance that it reached.
    const OpInstance* op = nullptr;
  };

  // Counts one more step of a device; not ok if it cannot be told which.
  Status Count(const OpInstance& op, int64_t run_id, int64_t device,
               const std::shared_ptr<const Group>& group, Call& call, bool first);

  const double timeout_seconds_;
  mutable std::mutex mutex_;
  std::map<Execution, Pending> pending_;
  std::map<Counted, Steps> steps_;
};

}  // namespace smddp
