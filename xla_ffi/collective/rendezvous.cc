// SPDX-License-Identifier: Apache-2.0
#include "collective/rendezvous.h"

#include <utility>

#include "base/hash.h"

namespace smddp {

Result<std::unique_ptr<Call>> Rendezvous::Join(
    OpInstance& op, int64_t run_id, int64_t device,
    const std::shared_ptr<const Group>& group,
    const std::shared_ptr<const Signature>& signature, Participant participant) {
  const auto index = group->LocalIndex(device);
  if (!index) {
    return Status(StatusCode::kInvalidArgument,
                  op.label + ": device " + std::to_string(device) +
                      " is not a local member of the group of " + group->Describe());
  }
  const std::lock_guard lock(mutex_);
  OpInstance::Reached& reached = op.reached[device];
  // Counting executions is only sound while each device runs its launches in order.
  if (reached.before && run_id < reached.run_id && !group->one_process()) {
    return Status(StatusCode::kInternal,
                  op.label + ": device " + std::to_string(device) +
                      " went back from run " + std::to_string(reached.run_id) +
                      " to run " + std::to_string(run_id) +
                      "; programs that share a collective across processes must be "
                      "launched from one thread");
  }
  const bool same_run = reached.before && run_id == reached.run_id;
  reached = {run_id, same_run ? reached.in_run + 1 : 0, true};

  const Execution execution{&op, group->id(), run_id, reached.in_run};
  auto [found, first] = pending_.try_emplace(execution);
  Pending& pending = found->second;
  if (first) {
    pending.missing = group->local_size();
    pending.call = std::make_unique<Call>();
    Call& call = *pending.call;
    call.group = group;
    call.signature = signature;
    call.label = op.label;
    call.op = op.key;
    call.deadline = Deadline::After(timeout_seconds_);
    call.local.resize(group->local_size());
  }
  if (Status counted = Count(op, run_id, device, group, *pending.call, first);
      !counted.ok()) {
    if (first) pending_.erase(found);
    return counted;
  }
  pending.call->local[*index] = std::move(participant);
  if (--pending.missing > 0) return std::unique_ptr<Call>();
  std::unique_ptr<Call> call = std::move(pending.call);
  pending_.erase(found);
  call->last = *index;
  return call;
}

Status Rendezvous::Count(const OpInstance& op, int64_t run_id, int64_t device,
                         const std::shared_ptr<const Group>& group, Call& call,
                         bool first) {
  Steps& steps = steps_[Counted{op.key, device}];
  // Their order may differ between processes: refuse rather than pair them wrongly.
  if (steps.op != nullptr && steps.op != &op && steps.run_id == run_id &&
      !group->one_process()) {
    return Status(StatusCode::kInternal,
                  op.label +
                      ": two calls of one jitted function in one program cannot "
                      "be told apart; mark it jax.jit(..., inline=True)");
  }
  if (first) {
    call.step = steps.next;
    call.tag = Hash64().Add(call.op).Add(call.step).value();
    if (steps.group && steps.group->id() != group->id()) {
      call.before = steps.group->Describe();
    }
  } else if (call.step != steps.next && !group->one_process()) {
    return Status(StatusCode::kInternal, op.label + ": device " + std::to_string(device) +
                                             " is at step " + std::to_string(steps.next) +
                                             " and another device of its group at " +
                                             std::to_string(call.step));
  }
  ++steps.next;
  steps.group = group;
  steps.run_id = run_id;
  steps.op = &op;
  return Status();
}

std::vector<std::unique_ptr<Call>> Rendezvous::TakeOverdue(bool all) {
  std::vector<std::unique_ptr<Call>> overdue;
  const std::lock_guard lock(mutex_);
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (all || it->second.call->deadline.Passed()) {
      overdue.push_back(std::move(it->second.call));
      it = pending_.erase(it);
    } else {
      ++it;
    }
  }
  return overdue;
}

bool Rendezvous::empty() const {
  const std::lock_guard lock(mutex_);
  return pending_.empty();
}

}  // namespace smddp
