// SPDX-License-Identifier: Apache-2.0
// All-reduces that were started and are not over, or whose end nobody asked for yet.
//
// Owned by the registry; XLA's threads and the engine's call it. A start returns at once
// and XLA goes on with the program; the call's done then asks for its end by the device
// and by where the result lies. Until a started call is over, the engine uses XLA's
// buffers. Therefore no failure reaches XLA before all that its run has started on the
// device is over: XLA ends a failed run, without any done, and takes the buffers back.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace smddp {

// One execution of a program on one device.
struct DeviceRun {
  int64_t device = 0;
  int64_t run_id = 0;

  auto operator<=>(const DeviceRun&) const = default;
};

class PendingCalls {
 public:
  // Called once with how something ended, from any thread and without locks.
  using Then = std::function<void(const Status&)>;
  using Addresses = std::vector<const void*>;

  // Starts a call whose result lies at `address`, and its arguments at `inputs`. Returns
  // what to call when it is over, or an error, with which nothing has begun.
  Result<Then> Begin(const DeviceRun& run, const void* address, const Addresses& inputs,
                     const std::string& label);
  // The done of the call that was started there: calls `then` when that is over, with an
  // error if there is none, or if its arguments have not stayed where they were.
  void End(const DeviceRun& run, const void* address, const Addresses& inputs,
           const std::string& label, Then then);
  // The run has failed: calls `then` with why, as soon as nothing that it started is
  // under way. It can start nothing more and has nothing left to end: that is the error.
  void Fail(const DeviceRun& run, const Status& why, Then then);

  // Calls that were begun and neither ended nor given up.
  size_t size() const;

 private:
  struct Started {
    DeviceRun run;
    Addresses inputs;
    bool over = false;
    Status how;
    Then then;  // Set once somebody waits for the end.
  };
  struct Runs {
    size_t under_way = 0;
    std::vector<std::function<void()>> failures;  // To tell when nothing is under way.
  };
  struct Failure {
    int64_t run_id = 0;
    Status why;
  };
  using Place = std::pair<int64_t, const void*>;

  void Over(const std::shared_ptr<Started>& started, const Status& how);
  // With mutex_ held: why the run has failed; ok if it has not.
  Status FailureOf(const DeviceRun& run) const;
  // With mutex_ held: drops what a failed run has started.
  void GiveUp(const DeviceRun& run);

  mutable std::mutex mutex_;
  std::map<Place, std::shared_ptr<Started>> started_;  // Until their done.
  std::map<DeviceRun, Runs> runs_;                     // With something under way.
  std::map<int64_t, Failure> failed_;                  // The latest failed run by device.
};

}  // namespace smddp
