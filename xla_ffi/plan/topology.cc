// SPDX-License-Identifier: Apache-2.0
#include "plan/topology.h"

#include <algorithm>
#include <unordered_map>

namespace smddp {

Topology::Topology(const std::vector<int>& processes,
                   const std::vector<std::string>& host_of, int me) {
  std::unordered_map<std::string, size_t> index_of;
  for (const int process : processes) {
    const auto [found, fresh] = index_of.emplace(host_of[process], hosts_.size());
    if (fresh) hosts_.emplace_back();
    std::vector<int>& host = hosts_[found->second];
    if (process == me) {
      my_host_ = found->second;
      my_index_ = host.size();
    }
    host.push_back(process);
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  rails_ = std::min_element(hosts_.begin(), hosts_.end(), fewer)->size();
}

size_t Topology::HostOf(int process) const {
  size_t index = 0;
  while (!std::binary_search(hosts_[index].begin(), hosts_[index].end(), process)) {
    ++index;
  }
  return index;
}

}  // namespace smddp
