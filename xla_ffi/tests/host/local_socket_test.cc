// SPDX-License-Identifier: Apache-2.0
#include "host/local_socket.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "host/shared_memory.h"

namespace smddp {
namespace {

struct Pair {
  UniqueFd connected;
  UniqueFd accepted;
};

Pair Connect(const std::string& purpose) {
  const std::string name = "smddp-test-" + purpose + std::to_string(::getpid());
  auto listener = ListenLocal(name);
  EXPECT_TRUE(listener.ok()) << listener.status().message();
  auto connected = ConnectLocal(name);
  EXPECT_TRUE(connected.ok()) << connected.status().message();
  auto accepted = AcceptLocal(listener->get(), Deadline::After(5));
  EXPECT_TRUE(accepted.ok()) << accepted.status().message();
  return {std::move(*connected), std::move(*accepted)};
}

TEST(LocalSocketTest, CarriesMemoryThatBothSee) {
  Pair pair = Connect("memory");
  auto memory = SharedMemory::Create(8192);
  ASSERT_TRUE(memory.ok());
  const char word[] = "hello";
  ASSERT_TRUE(
      SendLocal(pair.connected.get(), std::as_bytes(std::span(word)), memory->fd()).ok());
  std::byte buffer[64];
  auto received = ReceiveLocal(pair.accepted.get(), buffer, Deadline::After(5));
  ASSERT_TRUE(received.ok() && received->has_value());
  EXPECT_EQ((*received)->size, sizeof(word));
  EXPECT_STREQ(reinterpret_cast<char*>(buffer), "hello");
  auto mapped = SharedMemory::Map(std::move((*received)->fd), 8192);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  memory->data()[5000] = std::byte{42};
  EXPECT_EQ(mapped->data()[5000], std::byte{42});
}

TEST(LocalSocketTest, ReportsTheEndOfThePeer) {
  Pair pair = Connect("end");
  pair.connected.Reset();
  std::byte buffer[8];
  auto received = ReceiveLocal(pair.accepted.get(), buffer, Deadline::After(5));
  ASSERT_TRUE(received.ok()) << received.status().message();
  EXPECT_FALSE(received->has_value());
}

TEST(LocalSocketTest, WaitsNoLongerThanTheDeadline) {
  Pair pair = Connect("deadline");
  std::byte buffer[8];
  auto received = ReceiveLocal(pair.accepted.get(), buffer, Deadline::After(0.05));
  EXPECT_EQ(received.status().code(), StatusCode::kDeadline);
}

TEST(LocalSocketTest, AFullQueueIsAnErrorAndNotAWait) {
  Pair pair = Connect("full");
  std::byte message[4096] = {};
  Status status;
  for (int i = 0; i < 10'000 && status.ok(); ++i) {
    status = SendLocal(pair.connected.get(), message);
  }
  EXPECT_EQ(status.code(), StatusCode::kSystem);
}

TEST(SharedMemoryTest, RefusesMemoryThatIsTooSmallOrNotSealed) {
  auto memory = SharedMemory::Create(4096);
  ASSERT_TRUE(memory.ok());
  auto larger = SharedMemory::Map(UniqueFd(::dup(memory->fd())), 8192);
  EXPECT_EQ(larger.status().code(), StatusCode::kInvalidArgument);
  UniqueFd plain(::memfd_create("plain", 0));
  ASSERT_EQ(::ftruncate(plain.get(), 4096), 0);
  auto unsealed = SharedMemory::Map(std::move(plain), 4096);
  EXPECT_EQ(unsealed.status().code(), StatusCode::kInvalidArgument);
}

TEST(SharedMemoryTest, CannotBeShrunk) {
  auto memory = SharedMemory::Create(8192);
  ASSERT_TRUE(memory.ok());
  EXPECT_NE(::ftruncate(memory->fd(), 0), 0);
}

}  // namespace
}  // namespace smddp
