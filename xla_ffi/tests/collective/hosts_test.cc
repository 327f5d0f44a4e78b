// SPDX-License-Identifier: Apache-2.0
// Several hosts: dedicated reducers that come and go, workers that die, wire types.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reducer/reducer_server.h"
#include "tests/collective/job.h"

namespace smddp {
namespace {

constexpr char kSecret[] = "of this test";

std::unique_ptr<ReducerServer> StartReducer(const std::string& listen = "127.0.0.1:0") {
  ReducerServer::Options options;
  options.listen = listen;
  options.secret = kSecret;
  options.threads = 2;
  Result<std::unique_ptr<ReducerServer>> server = ReducerServer::Start(options);
  // A port that was just given up may take a moment.
  for (int i = 0; i < 100 && !server.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    server = ReducerServer::Start(options);
  }
  EXPECT_TRUE(server.ok()) << server.status().message();
  return std::move(*server);
}

struct Reducers {
  explicit Reducers(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      servers.push_back(StartReducer());
      addresses.push_back(servers.back()->address());
    }
  }
  Settings For(Settings settings = SmallSettings()) const {
    settings.reducers = addresses;
    settings.secret = kSecret;
    return settings;
  }
  std::vector<std::unique_ptr<ReducerServer>> servers;
  std::vector<std::string> addresses;
};

float Value(int rank, size_t element, int64_t run) {
  return 0.1f * static_cast<float>((element * 7 + static_cast<size_t>(rank) * 13 +
                                    static_cast<size_t>(run) * 3) %
                                   101);
}

void Fill(const Job& job, int process, int64_t run, Buffers<float>& buffers) {
  for (int d = 0; d < job.devices(); ++d) {
    auto& tensor = buffers.in[static_cast<size_t>(d)][0];
    for (size_t e = 0; e < tensor.size(); ++e) {
      tensor[e] = Value(process * job.devices() + d, e, run);
    }
  }
}

// The sum in the order in which the stages make it: devices, processes, hosts.
std::vector<float> Sum(const Job& job, int hosts, size_t count, int64_t run) {
  std::vector<float> sum(count);
  const int each = job.processes() / hosts;
  for (size_t e = 0; e < count; ++e) {
    float of_all = 0;
    for (int h = 0; h < hosts; ++h) {
      float of_host = 0;
      for (int p = h * each; p < (h + 1) * each; ++p) {
        float of_process = Value(p * job.devices(), e, run);
        for (int d = 1; d < job.devices(); ++d) {
          of_process += Value(p * job.devices() + d, e, run);
        }
        of_host = p == h * each ? of_process : of_host + of_process;
      }
      of_all = h == 0 ? of_host : of_all + of_host;
    }
    sum[e] = of_all;
  }
  return sum;
}

// Every round is a program of its own.
uint64_t NextKey() {
  static uint64_t key = 1000;
  return ++key;
}

// `runs` all-reduces of `count` floats on every process, each checked to the last bit.
// `during(run)` is called on process 0's thread before it starts that run.
template <typename During>
void ReduceAndCheck(Job& job, int hosts, size_t count, int64_t runs, During&& during) {
  const uint64_t key = NextKey();
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, {count});
  job.EachProcess([&](int p) {
    OpInstance op = MakeOp(key);
    for (int64_t run = 0; run < runs; ++run) {
      if (p == 0) during(run);
      Buffers<float> buffers(job.devices(), {count});
      Fill(job, p, run, buffers);
      Submit(job, p, op, run, signature, buffers);
      buffers.left.wait();
      const std::vector<float> want = Sum(job, hosts, count, run);
      for (int d = 0; d < job.devices(); ++d) {
        ASSERT_TRUE(buffers.status[d].ok()) << buffers.status[d].message();
        ASSERT_EQ(buffers.out[d][0], want) << "run " << run << " on process " << p;
      }
    }
  });
}

struct Shape {
  Layout layout;
  size_t reducers;
};

class ReducersTest : public testing::TestWithParam<Shape> {};

TEST_P(ReducersTest, SumToTheSameBits) {
  const Reducers reducers(GetParam().reducers);
  Job job(GetParam().layout, reducers.For());
  for (const size_t count : {1, 700, 5000, 100'003}) {
    ReduceAndCheck(job, GetParam().layout.hosts, count, 3, [](int64_t) {});
  }
}

TEST_P(ReducersTest, OneThatDiesInMidStepIsSurvived) {
  Reducers reducers(GetParam().reducers);
  Job job(GetParam().layout, reducers.For());
  std::thread killer;
  ReduceAndCheck(job, GetParam().layout.hosts, 200'000, 12, [&](int64_t run) {
    if (run != 2) return;
    killer = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      reducers.servers[0].reset();
    });
  });
  killer.join();
}

TEST_P(ReducersTest, OneThatComesBackIsTaken) {
  Reducers reducers(GetParam().reducers);
  Job job(GetParam().layout, reducers.For());
  const int hosts = GetParam().layout.hosts;
  ReduceAndCheck(job, hosts, 50'000, 2, [](int64_t) {});
  reducers.servers[0].reset();
  ReduceAndCheck(job, hosts, 50'000, 2, [](int64_t) {});
  reducers.servers[0] = StartReducer(reducers.addresses[0]);
  const auto used = [&] { return reducers.servers[0]->stats().summed.segments > 0; };
  for (int i = 0; i < 200 && !used(); ++i) {
    ReduceAndCheck(job, hosts, 50'000, 1, [](int64_t) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(used());
  ReduceAndCheck(job, hosts, 50'000, 3, [](int64_t) {});
}

INSTANTIATE_TEST_SUITE_P(Shapes, ReducersTest,
                         testing::Values(Shape{{2, 1, 2}, 1}, Shape{{2, 2, 2}, 3},
                                         Shape{{4, 1, 4}, 2}, Shape{{4, 2, 2}, 2},
                                         Shape{{3, 1, 3, 2}, 2}),
                         [](const auto& info) {
                           const Layout& layout = info.param.layout;
                           return std::to_string(layout.processes) + "x" +
                                  std::to_string(layout.devices) + "on" +
                                  std::to_string(layout.hosts) + "by" +
                                  std::to_string(layout.lanes) + "with" +
                                  std::to_string(info.param.reducers);
                         });

TEST(HostsTest, AllReducersMayDieOneAfterTheOther) {
  Reducers reducers(3);
  Job job({3, 1, 3}, reducers.For());
  ReduceAndCheck(job, 3, 150'000, 10, [&](int64_t run) {
    if (run % 3 == 1) reducers.servers[static_cast<size_t>(run / 3)].reset();
  });
}

TEST(HostsTest, ALostWorkerIsNamedEverywhere) {
  const Reducers reducers(1);
  Job job({4, 1, 2}, reducers.For());
  const std::vector<size_t> counts = {300'000};
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, counts);
  ReduceAndCheck(job, 2, 1000, 1, [](int64_t) {});
  std::vector<OpInstance> ops(3, MakeOp(2));
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  for (int p = 0; p < 3; ++p) {
    buffers.push_back(std::make_unique<Buffers<float>>(1, counts));
    Submit(job, p, ops[static_cast<size_t>(p)], 1, signature, *buffers.back());
  }
  job.Kill(3);
  for (auto& each : buffers) {
    each->left.wait();
    EXPECT_FALSE(each->status[0].ok());
    EXPECT_NE(each->status[0].message().find("rank 3"), std::string::npos)
        << each->status[0].message();
  }
}

class LeavingTest : public testing::TestWithParam<int> {};

TEST_P(LeavingTest, AfterTheLastStepBreaksNothing) {
  Job job({4, 1, 4, GetParam()});
  const std::vector<size_t> counts = {200'000};
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, counts);
  job.EachProcess([&](int p) {
    OpInstance op = MakeOp(1);
    for (int64_t run = 0; run < 5; ++run) {
      Buffers<float> buffers(1, counts);
      Submit(job, p, op, run, signature, buffers);
      buffers.left.wait();
      EXPECT_TRUE(buffers.status[0].ok()) << buffers.status[0].message();
    }
    if (p != 0) job.engine(p).Disconnect("done");
  });
  OpInstance op = MakeOp(1);
  Buffers<float> more(1, counts);
  Submit(job, 0, op, 5, signature, more);
  ExpectError(more, StatusCode::kPeerLost, Words{"left the job: done"});
}

INSTANTIATE_TEST_SUITE_P(Lanes, LeavingTest, testing::Values(1, 2, 5));

TEST(HostsTest, AnAbsentWorkerIsNamedAtTheDeadline) {
  Settings settings = SmallSettings();
  settings.timeout_seconds = 2;
  Job job({3, 1, 3}, settings);
  ReduceAndCheck(job, 3, 1000, 1, [](int64_t) {});
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, {50'000});
  std::vector<OpInstance> ops(2, MakeOp(2));
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  for (int p = 0; p < 2; ++p) {
    buffers.push_back(std::make_unique<Buffers<float>>(1, std::vector<size_t>{50'000}));
    Submit(job, p, ops[static_cast<size_t>(p)], 1, signature, *buffers.back());
  }
  for (auto& each : buffers) {
    each->left.wait();
    const std::string& text = each->status[0].message();
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
    EXPECT_NE(text.find("has not reached it"), std::string::npos) << text;
  }
}

TEST(HostsTest, SettingsThatDisagreeAreNamed) {
  MapStore store;
  std::vector<Status> status(2);
  std::vector<std::thread> threads;
  for (int p = 0; p < 2; ++p) {
    threads.emplace_back([&, p] {
      Settings settings = SmallSettings();
      settings.host_id = "host" + std::to_string(p);
      settings.secret = "secret " + std::to_string(p);
      settings.timeout_seconds = 2;
      Engine engine(settings);
      status[static_cast<size_t>(p)] = engine.Connect(p, 2, store);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(status[1].message().find("SMDDP_SECRET of rank 1"), std::string::npos)
      << status[1].message();
  EXPECT_EQ(status[1].message().find("secret 1"), std::string::npos);
}

// A scatter and a gather move each byte over each NIC once: (n-1)/n of the whole.
TEST(HostsTest, ScattersAndGathersMoveNoByteTwice) {
  constexpr size_t kBlock = 100'000;
  for (const size_t reducers : {0, 2}) {
    const Reducers dedicated(reducers);
    Settings settings = SmallSettings();
    settings.shard_bytes = 16 << 10;  // Headers count little.
    Job job({4, 1, 4}, dedicated.For(settings));
    const auto scatter = std::make_shared<const Signature>(
        Signature::ReduceScatter(ReduceOp::kSum, DType::kF32, 4 * kBlock, "[400000]"));
    const auto gather = std::make_shared<const Signature>(
        Signature::AllGather(4 * kBlock * sizeof(float), "float32[400000]"));
    job.EachProcess([&](int p) {
      OpInstance op = MakeOp(1);
      Buffers<float> sums(1, {4 * kBlock});
      Fill(job, p, 1, sums);
      sums.out[0][0].assign(kBlock, 0);
      const uint64_t before = job.engine(p).stats().network.wire.bytes_sent;
      Submit(job, p, op, 1, scatter, sums);
      sums.left.wait();
      ASSERT_TRUE(sums.status[0].ok()) << sums.status[0].message();
      const std::vector<float> want = Sum(job, 4, 4 * kBlock, 1);
      const auto begin = want.begin() + p * static_cast<ptrdiff_t>(kBlock);
      ASSERT_TRUE(std::equal(begin, begin + kBlock, sums.out[0][0].begin()));

      OpInstance other = MakeOp(2);
      Buffers<float> blocks(1, {kBlock});
      blocks.in[0][0] = sums.out[0][0];
      blocks.out[0][0].assign(4 * kBlock, 0);
      Submit(job, p, other, 1, gather, blocks);
      blocks.left.wait();
      ASSERT_TRUE(blocks.status[0].ok()) << blocks.status[0].message();
      ASSERT_EQ(blocks.out[0][0], want);
      const auto sent =
          static_cast<double>(job.engine(p).stats().network.wire.bytes_sent - before);
      // Headers and the messages of the group come on top. What others still lack of the
      // gather may not have left yet.
      EXPECT_LT(sent, 1.05 * 2 * 3 * kBlock * sizeof(float));
    });
  }
}

// Each of the two hops rounds once to 8 bits of mantissa.
TEST(HostsTest, AWireTypeRoundsOncePerHop) {
  Job job({4, 2, 4});
  const size_t count = 40'000;
  const auto signature = std::make_shared<const Signature>(
      ReduceOp::kSum, DType::kF32, std::vector<size_t>{count},
      std::vector<std::string>{"[40000]"}, DType::kBF16);
  std::vector<std::vector<float>> results(4);
  job.EachProcess([&](int p) {
    OpInstance op = MakeOp(1);
    Buffers<float> buffers(2, {count});
    Fill(job, p, 1, buffers);
    Submit(job, p, op, 1, signature, buffers);
    buffers.left.wait();
    ASSERT_TRUE(buffers.status[0].ok()) << buffers.status[0].message();
    results[static_cast<size_t>(p)] = buffers.out[0][0];
  });
  bool rounded = false;
  for (size_t e = 0; e < count; ++e) {
    double sum = 0;
    for (int r = 0; r < 8; ++r) sum += static_cast<double>(Value(r, e, 1));
    const double u = 1.0 / 256;  // Half a unit in the last place of bfloat16.
    ASSERT_NEAR(results[0][e], sum, u * sum + u * sum * (1 + u) + 1e-6);
    rounded |= std::abs(results[0][e] - sum) > 1e-4 * sum;
  }
  EXPECT_TRUE(rounded) << "nothing was rounded: the wire type had no effect";
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

}  // namespace
}  // namespace smddp
