// SPDX-License-Identifier: Apache-2.0
// The agreement on reducers, with hosts as objects and messages in random order.
#include "comm/membership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace smddp {
namespace {

struct Message {
  FrameHeader header;
  std::vector<std::byte> payload;
};

// Hosts that talk over one queue per direction of each pair, in order as TCP keeps it.
class Hosts {
 public:
  Hosts(size_t hosts, size_t reducers) : completed(hosts), commits(hosts) {
    for (size_t h = 0; h < hosts; ++h) {
      Membership::Actions actions;
      actions.send = [this, h](size_t to, const FrameHeader& header,
                               std::span<const uint8_t> payload) {
        const auto bytes = std::as_bytes(payload);
        wires_[{h, to}].push_back({header, {bytes.begin(), bytes.end()}});
      };
      actions.prepare = [this, h] { return completed[h]; };
      actions.commit = [this, h](const Membership::Commit& commit) {
        commits[h].push_back(commit);
      };
      members.push_back(
          std::make_unique<Membership>(hosts, h, reducers, std::move(actions)));
    }
  }

  // Delivers one message of a random wire; false if there is none.
  bool Deliver(std::mt19937& random) {
    std::vector<std::pair<size_t, size_t>> busy;
    for (const auto& [wire, queue] : wires_) {
      if (!queue.empty()) busy.push_back(wire);
    }
    if (busy.empty()) return false;
    const auto wire = busy[random() % busy.size()];
    const Message message = std::move(wires_[wire].front());
    wires_[wire].pop_front();
    const Status status =
        members[wire.second]->Handle(wire.first, message.header, message.payload);
    EXPECT_TRUE(status.ok()) << status.message();
    return true;
  }
  void DeliverAll(std::mt19937& random) {
    while (Deliver(random)) {
    }
  }

  std::vector<uint64_t> completed;
  std::vector<std::vector<Membership::Commit>> commits;
  std::vector<std::unique_ptr<Membership>> members;

 private:
  std::map<std::pair<size_t, size_t>, std::deque<Message>> wires_;
};

TEST(MembershipTest, AllSwitchAtTheFirstSegmentThatSomebodyMisses) {
  std::mt19937 random(1);
  Hosts hosts(3, 2);
  for (auto& member : hosts.members) member->Begin();
  hosts.completed = {17, 12, 15};
  hosts.members[2]->Lost(1);
  hosts.DeliverAll(random);
  for (size_t h = 0; h < 3; ++h) {
    ASSERT_EQ(hosts.commits[h].size(), 1u);
    EXPECT_EQ(hosts.commits[h][0].epoch, 1u);
    EXPECT_EQ(hosts.commits[h][0].base, 12u);
    EXPECT_EQ(hosts.commits[h][0].set, (Membership::Set{1, 0}));
    EXPECT_FALSE(hosts.members[h]->frozen());
  }
}

TEST(MembershipTest, NobodyPushesBetweenPrepareAndCommit) {
  std::mt19937 random(1);
  Hosts hosts(2, 1);
  for (auto& member : hosts.members) member->Begin();
  hosts.members[0]->Lost(0);
  EXPECT_TRUE(hosts.members[0]->frozen());
  EXPECT_FALSE(hosts.members[1]->frozen());
  ASSERT_TRUE(hosts.Deliver(random));  // prepare
  EXPECT_TRUE(hosts.members[1]->frozen());
  ASSERT_TRUE(hosts.Deliver(random));  // prepared
  EXPECT_FALSE(hosts.members[0]->frozen());
  ASSERT_TRUE(hosts.Deliver(random));  // commit
  EXPECT_FALSE(hosts.members[1]->frozen());
}

TEST(MembershipTest, AReducerIsTakenBackOnceEveryHostReachesIt) {
  std::mt19937 random(1);
  Hosts hosts(3, 1);
  for (auto& member : hosts.members) member->Begin();
  for (auto& member : hosts.members) member->Lost(0);
  hosts.DeliverAll(random);
  hosts.members[0]->Connected(0);
  hosts.members[2]->Connected(0);
  hosts.DeliverAll(random);
  EXPECT_EQ(hosts.members[1]->set(), (Membership::Set{0}));
  hosts.members[1]->Connected(0);
  hosts.DeliverAll(random);
  for (auto& member : hosts.members) EXPECT_EQ(member->set(), (Membership::Set{1}));
}

// It knows nothing of what was pushed to it: the segments under way go to it again.
TEST(MembershipTest, AReducerThatWasAwayForAMomentBeginsANewEpoch) {
  std::mt19937 random(1);
  Hosts hosts(2, 1);
  for (auto& member : hosts.members) member->Begin();
  hosts.members[1]->Lost(0);
  hosts.members[1]->Connected(0);
  hosts.DeliverAll(random);
  for (auto& member : hosts.members) {
    EXPECT_GE(member->epoch(), 1u);
    EXPECT_EQ(member->set(), (Membership::Set{1}));
  }
}

TEST(MembershipTest, ALossBeforeTheBeginIsNotForgotten) {
  std::mt19937 random(1);
  Hosts hosts(2, 2);
  hosts.members[1]->Begin();
  hosts.members[1]->Lost(0);
  hosts.DeliverAll(random);
  EXPECT_EQ(hosts.members[0]->epoch(), 0u);
  hosts.members[0]->Begin();
  hosts.DeliverAll(random);
  for (auto& member : hosts.members) EXPECT_EQ(member->set(), (Membership::Set{0, 1}));
}

TEST(MembershipTest, HostsAgreeWhateverComesWhen) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const size_t count = 2 + random() % 4, reducers = 1 + random() % 3;
    Hosts hosts(count, reducers);
    for (auto& member : hosts.members) member->Begin();
    std::vector<Membership::Set> reached(count, Membership::Set(reducers, 1));
    for (int event = 0; event < 40; ++event) {
      const size_t h = random() % count, r = random() % reducers;
      reached[h][r] ^= 1;
      if (reached[h][r] == 1) {
        hosts.members[h]->Connected(r);
      } else {
        hosts.members[h]->Lost(r);
      }
      hosts.completed[h] += random() % 3;
      for (uint32_t n = random() % 6; n > 0; --n) hosts.Deliver(random);
    }
    hosts.DeliverAll(random);
    Membership::Set wanted(reducers, 1);
    for (const auto& set : reached) {
      for (size_t r = 0; r < reducers; ++r) wanted[r] &= set[r];
    }
    for (size_t h = 0; h < count; ++h) {
      EXPECT_EQ(hosts.members[h]->set(), wanted) << "seed " << seed;
      EXPECT_FALSE(hosts.members[h]->frozen());
      ASSERT_EQ(hosts.commits[h].size(), hosts.commits[0].size());
      for (size_t c = 0; c < hosts.commits[h].size(); ++c) {
        EXPECT_EQ(hosts.commits[h][c].base, hosts.commits[0][c].base);
        EXPECT_EQ(hosts.commits[h][c].set, hosts.commits[0][c].set);
      }
    }
  }
}

TEST(MembershipTest, FramesThatMakeNoSenseAreRefused) {
  Hosts hosts(2, 1);
  FrameHeader header;
  header.kind = FrameKind::kCommit;
  header.epoch = 1;
  EXPECT_FALSE(hosts.members[0]->Handle(1, header, {}).ok());  // Only the leader commits.
  EXPECT_FALSE(hosts.members[1]->Handle(0, header, {}).ok());  // No set.
  header.kind = FrameKind::kSuspect;
  header.value = 7;
  EXPECT_FALSE(hosts.members[0]->Handle(1, header, {}).ok());
  header.value = 0;
  EXPECT_FALSE(hosts.members[0]->Handle(9, header, {}).ok());
}

}  // namespace
}  // namespace smddp
