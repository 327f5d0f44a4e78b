// SPDX-License-Identifier: Apache-2.0
#include "collective/pending_calls.h"

#include <cstdio>

namespace smddp {
namespace {

Status Moved(const std::string& label, const void* address) {
  char where[32];
  std::snprintf(where, sizeof(where), "%p", address);
  return Status(StatusCode::kInternal,
                label + ": XLA has moved the buffers of the sum (" + where +
                    ") between psum_start and done: use smddp_jax.psum there, and "
                    "report this");
}

}  // namespace

Result<PendingCalls::Then> PendingCalls::Begin(const DeviceRun& run, const void* address,
                                               const Addresses& inputs,
                                               const std::string& label) {
  const std::lock_guard lock(mutex_);
  SMDDP_RETURN_IF_ERROR(FailureOf(run));
  auto& place = started_[{run.device, address}];
  // A run that XLA gave up for reasons of its own leaves calls without a done.
  if (place && (!place->over || place->run == run)) return Moved(label, address);
  place = std::make_shared<Started>();
  place->run = run;
  place->inputs = inputs;
  ++runs_[run].under_way;
  return Then([this, started = place](const Status& how) { Over(started, how); });
}

void PendingCalls::End(const DeviceRun& run, const void* address, const Addresses& inputs,
                       const std::string& label, Then then) {
  Status how;
  {
    const std::lock_guard lock(mutex_);
    const auto found = started_.find({run.device, address});
    if (found == started_.end() || found->second->run != run ||
        found->second->inputs != inputs) {
      how = FailureOf(run);
      if (how.ok()) how = Moved(label, address);
    } else {
      const std::shared_ptr<Started> started = std::move(found->second);
      started_.erase(found);
      if (!started->over) {
        started->then = std::move(then);
        return;
      }
      how = started->how;
    }
  }
  how.ok() ? then(how) : Fail(run, how, std::move(then));
}

void PendingCalls::Fail(const DeviceRun& run, const Status& why, Then then) {
  {
    const std::lock_guard lock(mutex_);
    if (FailureOf(run).ok()) failed_[run.device] = {run.run_id, why};
    const auto found = runs_.find(run);
    if (found != runs_.end()) {
      found->second.failures.push_back([why, then = std::move(then)] { then(why); });
      return;
    }
    GiveUp(run);
  }
  then(why);
}

void PendingCalls::Over(const std::shared_ptr<Started>& started, const Status& how) {
  const DeviceRun run = started->run;
  Then then;
  std::vector<std::function<void()>> failures;
  {
    const std::lock_guard lock(mutex_);
    started->over = true;
    started->how = how;
    then = std::move(started->then);
    const auto found = runs_.find(run);
    if (--found->second.under_way == 0) {
      failures = std::move(found->second.failures);
      runs_.erase(found);
      if (!failures.empty()) GiveUp(run);
    }
  }
  for (const auto& tell : failures) tell();
  if (then) how.ok() ? then(how) : Fail(run, how, std::move(then));
}

Status PendingCalls::FailureOf(const DeviceRun& run) const {
  const auto failed = failed_.find(run.device);
  const bool has = failed != failed_.end() && failed->second.run_id == run.run_id;
  return has ? failed->second.why : Status();
}

void PendingCalls::GiveUp(const DeviceRun& run) {
  std::erase_if(started_, [&](const auto& each) { return each.second->run == run; });
}

size_t PendingCalls::size() const {
  const std::lock_guard lock(mutex_);
  return started_.size();
}

}  // namespace smddp
