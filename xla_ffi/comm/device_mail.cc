// SPDX-License-Identifier: Apache-2.0
#include "comm/device_mail.h"

#include <algorithm>
#include <chrono>

namespace smddp {
namespace {

// A wake-up may come just before a wait for it: look again now and then.
constexpr auto kLook = std::chrono::milliseconds(50);

}  // namespace

void DeviceMail::Put(const MeshMessage& message) {
  {
    const std::lock_guard lock(mutex_);
    if (message.kind == MeshMessage::Kind::kDeviceFailure) {
      failures_.try_emplace(message.group, Failure{message.process, message.Text()});
      news_.fetch_add(1);
    } else {
      messages_.insert_or_assign({message.group, message.process, message.value},
                                 message);
    }
  }
  changed_.notify_all();
}

void DeviceMail::NoteLoss() {
  news_.fetch_add(1);
  changed_.notify_all();
}

Result<MeshMessage> DeviceMail::Await(uint64_t group, int process, uint64_t value,
                                      const LocalMesh& mesh, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const auto failed = failures_.find(group); failed != failures_.end()) {
      return Status(StatusCode::kAborted, mesh.Describe(failed->second.process) +
                                              " reported: " + failed->second.why);
    }
    const auto found = messages_.find({group, process, value});
    if (found != messages_.end()) return found->second;
    if (const auto lost = mesh.Lost(process)) {
      return Status(StatusCode::kPeerLost, mesh.Describe(process) + " " + *lost);
    }
    if (deadline.Passed()) {
      return Status(StatusCode::kDeadline, mesh.Describe(process) +
                                               " did not offer memory of its GPUs "
                                               "in time");
    }
    changed_.wait_until(lock, std::min(deadline.at(), Deadline::Clock::now() + kLook));
  }
}

std::optional<DeviceMail::Failure> DeviceMail::FailureOf(uint64_t group) const {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(group);
  if (found == failures_.end()) return std::nullopt;
  return found->second;
}

}  // namespace smddp
