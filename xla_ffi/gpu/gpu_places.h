// SPDX-License-Identifier: Apache-2.0
// Where the GPUs of a group are: host by host, and on which rail.
//
// A plain value made by a pure function, the same on every process of a host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/group.h"

namespace smddp {

struct GpuPlaces {
  // `host_ids` by process, or empty in a job of one process. An error where the hosts
  // have unlike numbers of members, or more than their kernels take.
  static Result<GpuPlaces> Of(const Group& group,
                              const std::vector<std::string>& host_ids);

  size_t hosts() const { return by_host.size(); }
  // The members of this host; the index is a member's rank there.
  const std::vector<Member>& here() const { return by_host[my_host]; }
  int my_process = 0;
  size_t my_host = 0;
  std::vector<std::vector<Member>> by_host;  // In rank order; hosts by their first rank.

  // The `rank`-th GPU of every host, as a group of their own that reduces host memory.
  Group Rail(size_t rank) const;
};

}  // namespace smddp
