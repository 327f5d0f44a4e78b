// SPDX-License-Identifier: Apache-2.0
#include "comm/group.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace smddp {

Group::Group(std::vector<Member> members, int my_process) : members_(std::move(members)) {
  Hash64 hash;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    hash.Add(static_cast<uint64_t>(member.device))
        .Add(static_cast<uint64_t>(member.process));
    processes_.push_back(member.process);
    if (member.process == my_process) {
      local_.emplace(member.device, local_.size());
      positions_.push_back(i);
    }
  }
  id_ = hash.value();
  std::sort(processes_.begin(), processes_.end());
  processes_.erase(std::unique(processes_.begin(), processes_.end()), processes_.end());
  const auto me = std::lower_bound(processes_.begin(), processes_.end(), my_process);
  my_index_ = static_cast<size_t>(me - processes_.begin());
}

std::optional<size_t> Group::LocalIndex(int64_t device) const {
  const auto found = local_.find(device);
  if (found == local_.end()) return std::nullopt;
  return found->second;
}

std::string Group::Describe() const {
  std::string text = std::to_string(members_.size()) + " devices of ranks {";
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (i == 16) return text + ", ...}";
    if (i > 0) text += ", ";
    text += std::to_string(processes_[i]);
  }
  return text + "}";
}

}  // namespace smddp
