// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_places.h"

#include <map>

#include "device/call.h"

namespace smddp {
namespace {

// Rails are groups of their own, also where CPU devices have the same numbers.
constexpr int64_t kRailDevice = int64_t{1} << 40;

}  // namespace

Result<GpuPlaces> GpuPlaces::Of(const Group& group,
                                const std::vector<std::string>& host_ids) {
  GpuPlaces places;
  places.my_process = group.processes()[group.my_index()];
  std::map<std::string, size_t> index_of;
  for (const Member& member : group.members()) {
    const std::string id =
        host_ids.empty() ? "" : host_ids[static_cast<size_t>(member.process)];
    const auto [found, fresh] = index_of.emplace(id, places.by_host.size());
    if (fresh) places.by_host.emplace_back();
    places.by_host[found->second].push_back(member);
    if (member.process == places.my_process) places.my_host = found->second;
  }
  for (const std::vector<Member>& host : places.by_host) {
    if (host.size() > device::kMaxRanks) {
      return Status(StatusCode::kInvalidArgument,
                    "a group has " + std::to_string(host.size()) +
                        " GPUs on one host and our kernels take " +
                        std::to_string(device::kMaxRanks) +
                        "; lower the program where it runs, which leaves this to XLA");
    }
    if (host.size() != places.by_host[0].size()) {
      return Status(StatusCode::kInvalidArgument,
                    "a group has " + std::to_string(places.by_host[0].size()) +
                        " GPUs on one host and " + std::to_string(host.size()) +
                        " on another one; lower the program where it runs, which "
                        "leaves this to XLA");
    }
  }
  return places;
}

Group GpuPlaces::Rail(size_t rank) const {
  std::vector<Member> members;
  for (const std::vector<Member>& host : by_host) {
    members.push_back({kRailDevice + host[rank].device, host[rank].process});
  }
  return Group(std::move(members), my_process);
}

}  // namespace smddp
