// SPDX-License-Identifier: Apache-2.0
#include "ffi/collective_op.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace smddp {

xla::ffi::TypeId CollectiveOp::id = {};

CollectiveOp::CollectiveOp(CollectiveAttributes attributes)
    : attributes_(std::move(attributes)) {
  op_.key = static_cast<uint64_t>(attributes_.key);
  op_.label = attributes_.label;
}

Result<std::shared_ptr<const Group>> CollectiveOp::GroupOf(int64_t member,
                                                           const Place& place) {
  const std::lock_guard lock(mutex_);
  const auto known = groups_.find(member);
  if (known != groups_.end()) return known->second;
  std::span<const int64_t> rest(attributes_.groups);
  for (int64_t size : attributes_.group_sizes) {
    const auto group = rest.first(static_cast<size_t>(size));
    rest = rest.subspan(static_cast<size_t>(size));
    if (std::find(group.begin(), group.end(), member) == group.end()) continue;
    auto made = std::make_shared<const Group>(MembersOf(group, place), place.process);
    groups_.emplace(member, made);
    return std::shared_ptr<const Group>(made);
  }
  return Status(StatusCode::kInvalidArgument,
                op_.label + ": device " + std::to_string(member) +
                    " is in none of its replica groups; the program was lowered for "
                    "other devices than it runs on");
}

std::vector<Member> CollectiveOp::MembersOf(std::span<const int64_t> group,
                                            const Place& place) const {
  // An exported program knows no devices. Its partitions are dealt to the processes in
  // order, as jax.devices() is; handlers_cpu.cc checks that this is so here.
  const int64_t partitions = std::accumulate(attributes_.group_sizes.begin(),
                                             attributes_.group_sizes.end(), int64_t{0});
  const int64_t each = std::max<int64_t>(1, partitions / place.processes);
  std::vector<Member> members;
  for (int64_t id : group) {
    int64_t process = id / each;
    for (size_t i = 0; i < attributes_.devices.size(); ++i) {
      if (attributes_.devices[i] == id) process = attributes_.processes[i];
    }
    members.push_back({id, static_cast<int>(process)});
  }
  return members;
}

}  // namespace smddp
