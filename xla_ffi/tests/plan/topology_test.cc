// SPDX-License-Identifier: Apache-2.0
#include "plan/topology.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace smddp {
namespace {

using Processes = std::vector<int>;

TEST(TopologyTest, HostsAreNumberedByTheirFirstProcess) {
  const std::vector<std::string> host_of = {"b", "a", "b", "a", "c", "a"};
  const Topology topology({0, 1, 2, 3, 4, 5}, host_of, 3);
  ASSERT_EQ(topology.hosts(), 3u);
  EXPECT_EQ(topology.host(0), (Processes{0, 2}));
  EXPECT_EQ(topology.host(1), (Processes{1, 3, 5}));
  EXPECT_EQ(topology.host(2), (Processes{4}));
  EXPECT_EQ(topology.my_host(), 1u);
  EXPECT_EQ(topology.my_index(), 1u);
  EXPECT_EQ(topology.mine(), (Processes{1, 3, 5}));
}

TEST(TopologyTest, RailsEndWhereTheSmallestHostDoes) {
  const std::vector<std::string> host_of = {"a", "a", "a", "b", "b"};
  for (const int me : {0, 1, 2, 3, 4}) {
    const Topology topology({0, 1, 2, 3, 4}, host_of, me);
    EXPECT_EQ(topology.rails(), 2u);
    EXPECT_EQ(topology.on_rail(), me != 2);
  }
  const Topology topology({0, 1, 2, 3, 4}, host_of, 4);
  EXPECT_EQ(topology.counterpart(0), 1);
  EXPECT_EQ(topology.counterpart(1), 4);
}

TEST(TopologyTest, AGroupMayLeaveProcessesOut) {
  const std::vector<std::string> host_of = {"a", "a", "b", "b", "c"};
  const Topology topology({1, 3}, host_of, 3);
  ASSERT_EQ(topology.hosts(), 2u);
  EXPECT_EQ(topology.rails(), 1u);
  EXPECT_EQ(topology.my_host(), 1u);
  EXPECT_EQ(topology.counterpart(0), 1);
}

TEST(TopologyTest, OneHost) {
  const Topology topology({0, 1, 2}, {"a", "a", "a"}, 2);
  EXPECT_EQ(topology.hosts(), 1u);
  EXPECT_EQ(topology.rails(), 3u);
  EXPECT_EQ(topology.my_index(), 2u);
}

}  // namespace
}  // namespace smddp
