// SPDX-License-Identifier: Apache-2.0
#include "host/segment_exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/process_page.h"
#include "host/shared_memory.h"

namespace smddp {
namespace {

constexpr size_t kSlotBytes = 4096;

// Members of one group as threads. They share one mapping of each block, so that
// ThreadSanitizer sees every access of the protocol.
struct Members {
  Members(size_t members, size_t slots) {
    std::vector<std::byte*> starts;
    for (size_t i = 0; i < members; ++i) {
      auto block = SharedMemory::Create(SegmentExchange::BlockBytes(slots, kSlotBytes));
      EXPECT_TRUE(block.ok()) << block.status().message();
      blocks.push_back(std::move(*block));
      starts.push_back(blocks.back().data());
    }
    for (size_t me = 0; me < members; ++me) {
      exchanges.push_back(std::make_unique<SegmentExchange>(
          SegmentExchange::Shape{members, slots, kSlotBytes}, me, starts));
    }
  }
  SegmentExchange* operator[](size_t member) { return exchanges[member].get(); }

  std::vector<SharedMemory> blocks;
  std::vector<std::unique_ptr<SegmentExchange>> exchanges;
};

TEST(SegmentExchangeTest, ASlotIsFreeOnceAllHaveConsumedIt) {
  Members members(2, 3);
  EXPECT_TRUE(members[0]->SlotFree(2));
  EXPECT_FALSE(members[0]->SlotFree(3));
  members[0]->SetConsumed(0);
  EXPECT_FALSE(members[0]->SlotFree(3));
  members[1]->SetConsumed(0);
  EXPECT_TRUE(members[0]->SlotFree(3));
  EXPECT_FALSE(members[1]->SlotFree(4));
}

TEST(SegmentExchangeTest, TheLogHoldsWhatSomeMemberStillNeeds) {
  Members members(2, 2);
  OrderEntry entry;
  uint64_t published = 0;
  for (; members[0]->CanPublish(); ++published) {
    entry.tag = 100 + published;
    members[0]->Publish(entry);
  }
  EXPECT_GT(published, 16u);
  EXPECT_EQ(members[1]->Published(), published);
  EXPECT_EQ(members[1]->Entry(5).tag, 105u);
  members[0]->Taken(0);
  EXPECT_FALSE(members[0]->CanPublish());
  members[1]->Taken(0);
  EXPECT_TRUE(members[0]->CanPublish());
}

TEST(SegmentExchangeTest, TheFirstFailureIsKept) {
  Members members(2, 2);
  EXPECT_EQ(members[0]->Failure(1), "");
  members[1]->SetFailure("first");
  members[1]->SetFailure("second");
  EXPECT_EQ(members[0]->Failure(1), "first");
}

// Every member runs ahead as far as the slots allow; every word must be the round's.
TEST(SegmentExchangeTest, SegmentsNeverMix) {
  constexpr size_t kMembers = 3;
  constexpr uint64_t kRounds = 400;
  Members members(kMembers, 2);
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (size_t me = 0; me < kMembers; ++me) {
    threads.emplace_back([&, me] {
      SegmentExchange& exchange = *members[me];
      const auto word = [&](size_t member, uint64_t segment) -> uint64_t& {
        return *reinterpret_cast<uint64_t*>(exchange.Slot(member, segment));
      };
      for (uint64_t segment = 0; segment < kRounds; ++segment) {
        while (!exchange.SlotFree(segment)) std::this_thread::yield();
        word(me, segment) = segment * 10 + me;
        exchange.SetStaged(segment);
        while (!exchange.AllStaged(segment)) std::this_thread::yield();
        for (size_t i = 0; i < kMembers; ++i) {
          if (word(i, segment) != segment * 10 + i) ++wrong;
        }
        exchange.SetReduced(segment);
        exchange.SetConsumed(segment);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
}

TEST(DoorbellTest, NoRingIsLost) {
  Doorbell bell;
  std::atomic<uint64_t> posted{0};
  constexpr uint64_t kRounds = 20'000;
  std::thread sleeper([&] {
    for (uint64_t seen = 0; seen < kRounds;) {
      // A lost ring would cost ten seconds, and the test its time limit.
      bell.Wait(10.0, [&] { return posted.load() > seen; });
      seen = posted.load();
    }
  });
  for (uint64_t i = 1; i <= kRounds; ++i) {
    posted.store(i);
    bell.Ring();
  }
  sleeper.join();
  EXPECT_EQ(posted.load(), kRounds);
}

TEST(NoticeBoardTest, ShowsTheLatestNotice) {
  NoticeBoard board;
  EXPECT_EQ(board.Read().op, 0u);
  board.Post({7, 9, 8, std::string(2000, 'x')});
  EXPECT_EQ(board.Read().op, 7u);
  EXPECT_EQ(board.Read().step, 9u);
  EXPECT_EQ(board.Read().group, 8u);
  EXPECT_LT(board.Read().text.size(), 2000u);
  board.Post({});
  EXPECT_EQ(board.Read().text, "");
}

}  // namespace
}  // namespace smddp
