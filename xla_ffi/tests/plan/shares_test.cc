// SPDX-License-Identifier: Apache-2.0
#include "plan/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace smddp {
namespace {

std::vector<double> Nics(size_t count, double nic = 1) {
  return std::vector<double>(count, nic);
}

TEST(BalancedSharesTest, EqualNicsGiveTheClosedFormula) {
  for (size_t n = 2; n <= 16; ++n) {
    for (size_t k = 0; k <= 20; ++k) {
      const Shares shares = BalancedShares(Nics(n), Nics(k));
      ASSERT_EQ(shares.fraction.size(), n + k);
      const double d = static_cast<double>(n * n + k * n) - 2.0 * k;
      const double dedicated = k > n ? 1.0 / k : 2.0 * (n - 1) / d;
      const double colocated = k > n ? 0.0 : static_cast<double>(n - k) / d;
      const double time = k > n ? 1.0 : 2.0 * n * (n - 1) / d;
      for (size_t j = 0; j < k; ++j) ASSERT_NEAR(shares.fraction[j], dedicated, 1e-12);
      for (size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(shares.fraction[k + i], colocated, 1e-12) << n << " hosts, " << k;
      }
      ASSERT_NEAR(shares.seconds_per_byte, time, 1e-12) << n << " hosts, " << k;
      if (k >= n) {
        ASSERT_EQ(shares.fraction.back(), 0);
      }
    }
  }
}

TEST(BalancedSharesTest, OneHostNeedsNoNetwork) {
  for (size_t k : {0u, 1u, 3u}) {
    const Shares shares = BalancedShares({2.0}, Nics(k));
    ASSERT_EQ(shares.fraction.size(), k + 1);
    EXPECT_EQ(shares.fraction.back(), 1);
    EXPECT_EQ(shares.seconds_per_byte, 0);
  }
}

TEST(BalancedSharesTest, TheUnitOfTheNicsDoesNotMatter) {
  for (double nic : {0.1, 0.3, 0.7, 1.1, 1e9}) {
    for (size_t n = 2; n <= 24; ++n) {
      const Shares ones = BalancedShares(Nics(n), Nics(n));
      const Shares others = BalancedShares(Nics(n, nic), Nics(n, nic));
      for (size_t i = 0; i < 2 * n; ++i) {
        ASSERT_NEAR(ones.fraction[i], others.fraction[i], 1e-12);
      }
      // What is nought in exact arithmetic is nought, whatever rounding leaves.
      ASSERT_EQ(others.fraction[n], 0) << n << " hosts of " << nic;
    }
  }
}

// When the host of each reducer is done.
std::vector<double> TimesOf(const Shares& shares, const std::vector<double>& workers,
                            const std::vector<double>& reducers) {
  std::vector<double> times;
  const double n = static_cast<double>(workers.size());
  for (size_t j = 0; j < reducers.size(); ++j) {
    times.push_back(n * shares.fraction[j] / reducers[j]);
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    const double share = shares.fraction[reducers.size() + i];
    times.push_back((1 + (n - 2) * share) / workers[i]);
  }
  return times;
}

// What any shares need at least: nobody can do better, by bisection over the time.
double SmallestTime(const std::vector<double>& workers,
                    const std::vector<double>& reducers) {
  const double n = static_cast<double>(workers.size());
  const double floor = 1 / *std::min_element(workers.begin(), workers.end());
  double low = floor;
  double high = 2 * n / *std::min_element(workers.begin(), workers.end());
  const auto enough = [&](double time) {
    double room = 0;
    for (double nic : reducers) room += time * nic / n;
    for (double nic : workers) room += n == 2 ? 1 : (time * nic - 1) / (n - 2);
    return room >= 1;
  };
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

std::vector<double> RandomNics(std::mt19937& random, size_t count) {
  std::vector<double> nics(count);
  for (double& nic : nics) nic = std::exp(static_cast<double>(random() % 1000) / 250 - 2);
  return nics;
}

TEST(BalancedSharesTest, UnequalNicsFinishTogetherAndAsEarlyAsCanBe) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<double> workers = RandomNics(random, 2 + random() % 12);
    const std::vector<double> reducers = RandomNics(random, random() % 8);
    const Shares shares = BalancedShares(workers, reducers);
    ASSERT_NEAR(std::accumulate(shares.fraction.begin(), shares.fraction.end(), 0.0), 1,
                1e-12);
    const std::vector<double> times = TimesOf(shares, workers, reducers);
    const double time = *std::max_element(times.begin(), times.end());
    ASSERT_NEAR(shares.seconds_per_byte, time, 1e-9 * time);
    ASSERT_NEAR(time, SmallestTime(workers, reducers), 1e-6 * time);
    if (workers.size() == 2) continue;
    // All that have a share end at once.
    double together = 0;
    for (size_t i = 0; i < shares.fraction.size(); ++i) {
      ASSERT_TRUE(shares.fraction[i] == 0 || shares.fraction[i] >= 1e-9);
      if (shares.fraction[i] == 0) continue;
      if (together == 0) together = times[i];
      ASSERT_NEAR(times[i], together, 1e-6 * together);
    }
  }
}

TEST(BalancedSharesTest, OfTwoHostsTheSlowerOneSetsTheTime) {
  const Shares shares = BalancedShares({4, 1}, {0.5});
  EXPECT_NEAR(shares.fraction[0], 0.25, 1e-12);
  EXPECT_NEAR(shares.fraction[1], 0.375, 1e-12);
  EXPECT_NEAR(shares.fraction[2], 0.375, 1e-12);
  EXPECT_NEAR(shares.seconds_per_byte, 1, 1e-12);
}

Shares Fractions(std::vector<double> fraction) { return {std::move(fraction), 1.0}; }

TEST(ShardsOfTest, EveryElementOnceInOrderOnBordersWithinOneUnit) {
  std::mt19937 random(4);
  for (int round = 0; round < 3000; ++round) {
    const Shares shares = BalancedShares(RandomNics(random, 1 + random() % 9),
                                         RandomNics(random, random() % 9));
    const size_t align = 1 + random() % 70;
    const size_t elements = random() % 20000;
    const auto shards = ShardsOf(shares, random(), elements, align, 0);
    std::vector<size_t> sizes(shares.fraction.size(), 0);
    size_t next = 0;
    size_t reducer = 0;
    for (const Shard& shard : shards) {
      ASSERT_EQ(shard.range.offset, next);
      ASSERT_EQ(shard.range.offset % align, 0u);
      ASSERT_GT(shard.range.size, 0u);
      ASSERT_TRUE(next == 0 || shard.reducer > reducer);
      reducer = shard.reducer;
      next = shard.range.end();
      sizes[reducer] = shard.range.size;
    }
    ASSERT_EQ(next, elements);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const double share = shares.fraction[i] * elements;
      ASSERT_LE(std::abs(sizes[i] - share), align + 1e-6) << "reducer " << i;
      if (shares.fraction[i] == 0) {
        ASSERT_EQ(sizes[i], 0u);
      }
    }
  }
}

// Sums over many segments of equal size. `unit`: what goes to one reducer at once.
void ExpectTotalsNearShares(const Shares& shares, size_t elements, size_t align,
                            size_t whole, size_t unit) {
  constexpr int kSegments = 1000;
  std::vector<double> totals(shares.fraction.size(), 0);
  for (uint64_t segment = 17; segment < 17 + kSegments; ++segment) {
    for (const Shard& shard : ShardsOf(shares, segment, elements, align, whole)) {
      totals[shard.reducer] += static_cast<double>(shard.range.size);
    }
  }
  for (size_t i = 0; i < totals.size(); ++i) {
    const double share = shares.fraction[i] * kSegments * static_cast<double>(elements);
    EXPECT_NEAR(totals[i], share, 5.0 * static_cast<double>(unit)) << "reducer " << i;
  }
}

TEST(ShardsOfTest, NobodyGainsOverManySegments) {
  for (size_t n : {2u, 3u, 4u, 5u, 8u, 16u}) {
    for (size_t k : {0u, 1u, 3u, 20u}) {
      const Shares shares = BalancedShares(Nics(n), Nics(k));
      ExpectTotalsNearShares(shares, 100 * 64, 64, 0, 64);
      ExpectTotalsNearShares(shares, 3 * 64, 64, 0, 64);
      ExpectTotalsNearShares(shares, 1000, 64, 1000, 1000);
    }
  }
  ExpectTotalsNearShares(Fractions({0.7, 0, 0.2, 0.1}), 7 * 16, 16, 0, 16);
  ExpectTotalsNearShares(Fractions({0.7, 0, 0.2, 0.1}), 50, 16, 64, 50);
}

TEST(ShardsOfTest, SmallSegmentsStayWhole) {
  const Shares shares = Fractions({0, 0.5, 0, 0.5, 0});
  bool seen[5] = {};
  for (uint64_t segment = 0; segment < 8; ++segment) {
    const auto shards = ShardsOf(shares, segment, 100, 16, 100);
    ASSERT_EQ(shards.size(), 1u);
    EXPECT_EQ(shards[0].range, (Range{0, 100}));
    seen[shards[0].reducer] = true;
    EXPECT_EQ(ShardsOf(shares, segment, 101, 16, 100).size(), 2u);
  }
  EXPECT_TRUE(seen[1] && seen[3]);
  EXPECT_FALSE(seen[0] || seen[2] || seen[4]);
}

TEST(ShardsOfTest, EdgesOfSize) {
  const Shares shares = BalancedShares(Nics(3), Nics(1));
  EXPECT_TRUE(ShardsOf(shares, 0, 0, 16, 0).empty());
  EXPECT_EQ(ShardsOf(shares, 5, 1, 16, 0).size(), 1u);
  const size_t huge = (size_t{1} << 40) + 3;
  const auto shards = ShardsOf(shares, 7, huge, 16, 0);
  ASSERT_EQ(shards.size(), 4u);
  EXPECT_EQ(shards.back().range.end(), huge);
  EXPECT_EQ(ShardsOf(BalancedShares({1}, {}), 9, 77, 16, 0),
            (std::vector<Shard>{{0, {0, 77}}}));
}

}  // namespace
}  // namespace smddp
