// SPDX-License-Identifier: Apache-2.0
// The members of one collective: devices in rank order, and the processes they are in.
//
// Immutable after construction, shared by every call of the group, readable from any
// thread. The same member list gives the same id on every process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace smddp {

struct Member {
  int64_t device = 0;  // Global device id.
  int process = 0;
  bool operator==(const Member&) const = default;
};

class Group {
 public:
  Group(std::vector<Member> members, int my_process);

  uint64_t id() const { return id_; }
  const std::vector<Member>& members() const { return members_; }
  // Processes with at least one member, ascending; contributions are combined in this
  // order after each process has combined its own devices in rank order.
  const std::vector<int>& processes() const { return processes_; }
  size_t my_index() const { return my_index_; }  // Of this process in processes().
  size_t local_size() const { return local_.size(); }
  // Position of a local device among the local members, in rank order.
  std::optional<size_t> LocalIndex(int64_t device) const;
  // Where local member `index` stands in members().
  size_t LocalPosition(size_t index) const { return positions_[index]; }
  bool one_process() const { return processes_.size() == 1; }

  // "8 devices of ranks 0-3", for messages.
  std::string Describe() const;

 private:
  std::vector<Member> members_;
  std::vector<int> processes_;
  std::unordered_map<int64_t, size_t> local_;
  std::vector<size_t> positions_;  // Of the local members in members_.
  size_t my_index_ = 0;
  uint64_t id_ = 0;
};

}  // namespace smddp
