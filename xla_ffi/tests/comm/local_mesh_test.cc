// SPDX-License-Identifier: Apache-2.0
#include "comm/local_mesh.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "tests/comm/map_store.h"

namespace smddp {
namespace {

struct Node {
  std::unique_ptr<LocalMesh> mesh;
  Status status;
  std::atomic<int> blocks{0};
  std::atomic<int> lost{0};
};

// Ranks are threads; `hosts[i]` is rank i's host id.
std::vector<std::unique_ptr<Node>> Connect(const std::vector<std::string>& hosts,
                                           const std::vector<Settings>& settings) {
  MapStore store;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < hosts.size(); ++i) nodes.push_back(std::make_unique<Node>());
  for (size_t i = 0; i < hosts.size(); ++i) {
    threads.emplace_back([&, i] {
      Node* node = nodes[i].get();
      LocalMesh::Events events;
      events.on_block = [node](const MeshMessage&, UniqueFd) { ++node->blocks; };
      events.on_lost = [node](int, std::string) { ++node->lost; };
      Settings mine = settings[i];
      mine.host_id = hosts[i];
      const Deadline deadline = Deadline::After(5);
      const std::string nonce = RandomNonce();
      auto listener = LocalMesh::Listen(nonce);
      ASSERT_TRUE(listener.ok()) << listener.status().message();
      auto roster = Roster::Meet(static_cast<int>(i), static_cast<int>(hosts.size()),
                                 nonce, mine, store, deadline);
      node->status = roster.status();
      if (!roster.ok()) return;
      auto mesh =
          LocalMesh::Connect(std::move(*listener), *roster, deadline, std::move(events));
      node->status = mesh.status();
      if (mesh.ok()) node->mesh = std::move(*mesh);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return nodes;
}

template <typename Condition>
bool Eventually(Condition&& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

TEST(LocalMeshTest, JoinsTheProcessesOfOneHost) {
  auto nodes = Connect({"a", "b", "a", "a"}, std::vector<Settings>(4));
  for (const auto& node : nodes) ASSERT_TRUE(node->status.ok()) << node->status.message();
  EXPECT_EQ(nodes[2]->mesh->local_processes(), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(nodes[1]->mesh->local_processes(), (std::vector<int>{1}));
  EXPECT_FALSE(nodes[1]->mesh->IsLocal(0));
  nodes[0]->mesh->my_page().board.Post({1, 2, 3, "here"});
  EXPECT_EQ(nodes[3]->mesh->page(0).board.Read().text, "here");

  auto memory = SharedMemory::Create(4096);
  MeshMessage message;
  message.kind = MeshMessage::Kind::kBlock;
  ASSERT_TRUE(nodes[0]->mesh->Send(2, message, memory->fd()).ok());
  EXPECT_TRUE(Eventually([&] { return nodes[2]->blocks.load() == 1; }));
}

TEST(LocalMeshTest, NoticesWhoIsGone) {
  auto nodes = Connect({"a", "a", "a"}, std::vector<Settings>(3));
  nodes[2]->mesh->SayGoodbye("all steps done");
  EXPECT_TRUE(Eventually([&] { return nodes[0]->lost == 1 && nodes[1]->lost == 1; }));
  EXPECT_NE(nodes[0]->mesh->Lost(2)->find("all steps done"), std::string::npos);
  nodes[1]->mesh.reset();  // No goodbye: as if killed.
  EXPECT_TRUE(Eventually([&] { return nodes[0]->lost == 2; }));
  EXPECT_NE(nodes[0]->mesh->Lost(1)->find("killed"), std::string::npos);
}

TEST(LocalMeshTest, RefusesUnlikeSettings) {
  std::vector<Settings> settings(2);
  settings[1].segment_bytes = 4096;
  auto nodes = Connect({"a", "a"}, settings);
  EXPECT_EQ(nodes[0]->status.code(), StatusCode::kMismatch);
  EXPECT_NE(nodes[0]->status.message().find("SMDDP_SEGMENT_BYTES"), std::string::npos);
}

TEST(LocalMeshTest, NamesTheProcessThatDoesNotCome) {
  MapStore store;
  Settings settings;
  settings.host_id = "a";
  auto roster = Roster::Meet(0, 2, RandomNonce(), settings, store, Deadline::After(0.05));
  EXPECT_EQ(roster.status().code(), StatusCode::kDeadline);
  EXPECT_NE(roster.status().message().find("rank 1"), std::string::npos);
}

TEST(GroupTest, OrdersMembersAndProcesses) {
  const Group group({{5, 1}, {4, 0}, {7, 1}}, 1);
  EXPECT_EQ(group.processes(), (std::vector<int>{0, 1}));
  EXPECT_EQ(group.my_index(), 1u);
  EXPECT_EQ(group.local_size(), 2u);
  EXPECT_EQ(group.LocalIndex(5), 0u);
  EXPECT_EQ(group.LocalIndex(7), 1u);
  EXPECT_EQ(group.LocalIndex(4), std::nullopt);
  EXPECT_EQ(group.id(), Group({{5, 1}, {4, 0}, {7, 1}}, 0).id());
  EXPECT_NE(group.id(), Group({{4, 0}, {5, 1}, {7, 1}}, 0).id());
}

}  // namespace
}  // namespace smddp
