// SPDX-License-Identifier: Apache-2.0
// Which processes of a group sit on which host, and who carries what to the network.
//
// Pure functions over plain values: the same on every rank. Rail r joins the r-th process
// of every host; each rail carries its part of every segment, so a process talks to one
// process per other host and not to all of them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace smddp {

class Topology {
 public:
  // `processes`: of the group, ascending. `host_of[p]`: the host id of process p. Hosts
  // are numbered by their first process.
  Topology(const std::vector<int>& processes, const std::vector<std::string>& host_of,
           int me);

  size_t hosts() const { return hosts_.size(); }
  size_t rails() const { return rails_; }  // The smallest host's number of processes.
  // Processes of a host, ascending.
  const std::vector<int>& host(size_t index) const { return hosts_[index]; }
  const std::vector<int>& mine() const { return hosts_[my_host_]; }
  size_t my_host() const { return my_host_; }
  size_t my_index() const { return my_index_; }  // Of `me` in mine().
  bool on_rail() const { return my_index_ < rails_; }
  // The index of the host of a process of the group.
  size_t HostOf(int process) const;
  // Who of host `host` is on our rail.
  int counterpart(size_t host) const { return hosts_[host][my_index_]; }

 private:
  std::vector<std::vector<int>> hosts_;
  size_t rails_ = 0;
  size_t my_host_ = 0;
  size_t my_index_ = 0;
};

}  // namespace smddp
