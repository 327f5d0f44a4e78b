// SPDX-License-Identifier: Apache-2.0
#include "collective/nic_speeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collective/network.h"
#include "reducer/reducer_server.h"
#include "tests/comm/map_store.h"

namespace smddp {
namespace {

constexpr char kSecret[] = "of this test";

Settings Measuring(int lanes = 1) {
  Settings settings;
  settings.measure_weights = true;
  settings.connections = lanes;
  settings.secret = kSecret;
  return settings;
}

std::unique_ptr<ReducerServer> StartReducer() {
  ReducerServer::Options options;
  options.listen = "127.0.0.1:0";
  options.secret = kSecret;
  auto server = ReducerServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return std::move(*server);
}

// Keeps to itself what its process finds.
class SecretiveStore : public KeyValueStore {
 public:
  explicit SecretiveStore(KeyValueStore& store) : store_(store) {}
  Status Set(const std::string& key, const std::string& value) override {
    return key.starts_with("smddp/nic/") ? Status() : store_.Set(key, value);
  }
  Result<std::string> Get(const std::string& key, const Deadline& deadline) override {
    return store_.Get(key, deadline);
  }

 private:
  KeyValueStore& store_;
};

// The networks of a job's processes, which are dealt to hosts in blocks.
class Networks {
 public:
  // `secretive`: a process that tells nobody what it finds.
  Networks(int processes, int hosts, Settings settings, double seconds = 30,
           int secretive = -1)
      : statuses(static_cast<size_t>(processes)),
        networks(static_cast<size_t>(processes)) {
    SecretiveStore keeps(store_);
    std::vector<std::thread> threads;
    for (int p = 0; p < processes; ++p) {
      settings.host_id = "host" + std::to_string(p * hosts / processes);
      KeyValueStore* store = &store_;
      if (p == secretive) store = &keeps;
      threads.emplace_back([this, p, processes, settings, seconds, store] {
        Start(p, processes, settings, seconds, *store);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ~Networks() {
    for (auto& network : networks) {
      if (network) network->Leave("the test is over", 1);
    }
  }

  std::vector<double> WeightsOf(size_t process) const {
    std::vector<double> weights;
    for (size_t p = 0; p < networks.size(); ++p) {
      weights.push_back(networks[process]->NicOf(static_cast<int>(p)));
    }
    for (const double nic : networks[process]->ReducerNics()) weights.push_back(nic);
    return weights;
  }

  std::vector<Status> statuses;
  std::vector<std::unique_ptr<Network>> networks;

 private:
  void Start(int process, int processes, const Settings& settings, double seconds,
             KeyValueStore& store) {
    const auto p = static_cast<size_t>(process);
    const Deadline deadline = Deadline::After(seconds);
    auto roster =
        Roster::Meet(process, processes, RandomNonce(), settings, store, deadline);
    statuses[p] = roster.status();
    if (!roster.ok()) return;
    Network::Events events = {[](int, const std::string&) {}, [] {}};
    auto network = Network::Start(*roster, settings, store, deadline, std::move(events));
    statuses[p] = network.status();
    if (network.ok()) networks[p] = std::move(*network);
  }

  MapStore store_;
};

struct Shape {
  int processes;
  int hosts;
  int lanes;
  size_t reducers;
};

class NicSpeedsTest : public testing::TestWithParam<Shape> {};

TEST_P(NicSpeedsTest, AllProcessesFindTheSame) {
  const Shape& shape = GetParam();
  Settings settings = Measuring(shape.lanes);
  std::vector<std::unique_ptr<ReducerServer>> servers;
  for (size_t r = 0; r < shape.reducers; ++r) {
    servers.push_back(StartReducer());
    settings.reducers.push_back(servers.back()->address());
  }
  const Networks job(shape.processes, shape.hosts, settings);
  for (const Status& status : job.statuses) ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<double> weights = job.WeightsOf(0);
  ASSERT_EQ(weights.size(), static_cast<size_t>(shape.processes) + shape.reducers);
  EXPECT_EQ(*std::max_element(weights.begin(), weights.end()), 1);
  EXPECT_GT(*std::min_element(weights.begin(), weights.end()), 0);
  for (size_t p = 1; p < job.networks.size(); ++p) {
    EXPECT_EQ(job.WeightsOf(p), weights) << "rank " << p;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, NicSpeedsTest,
                         testing::Values(Shape{2, 2, 1, 0}, Shape{4, 2, 1, 1},
                                         Shape{3, 3, 3, 2}, Shape{5, 5, 1, 0}),
                         [](const auto& info) {
                           return std::to_string(info.param.processes) + "on" +
                                  std::to_string(info.param.hosts) + "by" +
                                  std::to_string(info.param.lanes) + "with" +
                                  std::to_string(info.param.reducers);
                         });

TEST(NicSpeedsErrorTest, WhoTellsNothingIsNamedEverywhere) {
  const Networks job(3, 3, Measuring(), /*seconds=*/2, /*secretive=*/2);
  for (const Status& status : job.statuses) {
    EXPECT_EQ(status.code(), StatusCode::kDeadline);
    EXPECT_TRUE(status.message().starts_with("rank 2 (on ")) << status.message();
    EXPECT_NE(status.message().find("SMDDP_WEIGHTS=measure"), std::string::npos);
  }
}

TEST(RelativeSpeedsTest, AreInProportionToTheFastestWithThreeDigits) {
  EXPECT_EQ(RelativeSpeeds({1.2e8, 2.4e8, 0.4e8, 2.4e8, 1.0}),
            (std::vector<double>{0.5, 1, 0.167, 1, 4.17e-9}));
}

}  // namespace
}  // namespace smddp
