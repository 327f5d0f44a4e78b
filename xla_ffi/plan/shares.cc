// SPDX-License-Identifier: Apache-2.0
#include "plan/shares.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace smddp {
namespace {

// Rounding leaves crumbs where exact arithmetic has zero; nobody gets a shard for those.
constexpr double kCrumb = 1e-9;

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// A worker host of n sends its contribution to all shards but its own, and the sum over
// its own to n - 1 others; it receives as much. In units of S, with share x:
double WorkerLoad(double n, double x) { return 1 + (n - 2) * x; }
// A dedicated host receives n contributions to its share y and sends n sums.
double DedicatedLoad(double n, double y) { return n * y; }

// The time at which NICs that all stop together have taken what there is. A worker takes
// a share only from the time on at which its own contribution is out, so workers come in
// one by one, the fastest first. n > 2.
double TimeToTakeAll(std::vector<double> worker_nics, double dedicated) {
  const double n = static_cast<double>(worker_nics.size());
  std::sort(worker_nics.begin(), worker_nics.end(), std::greater<>());
  double active = 0;
  double active_nics = 0;
  double time = dedicated > 0 ? n / dedicated : std::numeric_limits<double>::infinity();
  for (const double nic : worker_nics) {
    if (time * nic <= 1) break;
    active += 1;
    active_nics += nic;
    // Solves (time * active_nics - active) / (n - 2) + time * dedicated / n = 1.
    time = (n - 2 + active) * n / (active_nics * n + dedicated * (n - 2));
  }
  return time;
}

// Dedicated ones first, then workers; not yet rounded off.
std::vector<double> RawFractions(const std::vector<double>& worker_nics,
                                 const std::vector<double>& reducer_nics) {
  const double n = static_cast<double>(worker_nics.size());
  const double dedicated = Sum(reducer_nics);
  std::vector<double> fraction;
  if (worker_nics.size() == 2) {
    // A worker's load is the same whatever its share: dedicated ones take what they can
    // in the time that the slower worker needs anyway, the workers halve the rest.
    const double slower = std::min(worker_nics[0], worker_nics[1]);
    const double taken = std::min(1.0, dedicated / slower / n);
    for (const double nic : reducer_nics) fraction.push_back(taken * nic / dedicated);
    fraction.insert(fraction.end(), 2, (1 - taken) / n);
    return fraction;
  }
  const double time = TimeToTakeAll(worker_nics, dedicated);
  for (const double nic : reducer_nics) fraction.push_back(time * nic / n);
  for (const double nic : worker_nics) {
    fraction.push_back(std::max(0.0, (time * nic - 1) / (n - 2)));
  }
  return fraction;
}

double SlowestNic(const std::vector<double>& worker_nics,
                  const std::vector<double>& reducer_nics,
                  const std::vector<double>& fraction) {
  const double n = static_cast<double>(worker_nics.size());
  const size_t k = reducer_nics.size();
  double slowest = 0;
  for (size_t j = 0; j < k; ++j) {
    slowest = std::max(slowest, DedicatedLoad(n, fraction[j]) / reducer_nics[j]);
  }
  for (size_t i = 0; i < worker_nics.size(); ++i) {
    slowest = std::max(slowest, WorkerLoad(n, fraction[k + i]) / worker_nics[i]);
  }
  return slowest;
}

// Evenly spread over [0, 1) for any run of consecutive numbers: multiples of the golden
// ratio.
double Phase(uint64_t segment) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  return static_cast<double>((segment * kGolden) >> 11) * 0x1p-53;
}

}  // namespace

Shares BalancedShares(const std::vector<double>& worker_nics,
                      const std::vector<double>& reducer_nics) {
  Shares shares;
  if (worker_nics.size() == 1) {
    shares.fraction.assign(reducer_nics.size(), 0.0);
    shares.fraction.push_back(1.0);
    return shares;
  }
  shares.fraction = RawFractions(worker_nics, reducer_nics);
  for (double& fraction : shares.fraction) {
    if (fraction < kCrumb) fraction = 0;
  }
  const double all = Sum(shares.fraction);
  for (double& fraction : shares.fraction) fraction /= all;
  shares.seconds_per_byte = SlowestNic(worker_nics, reducer_nics, shares.fraction);
  return shares;
}

std::vector<Shard> ShardsOf(const Shares& shares, uint64_t segment, size_t elements,
                            size_t align, size_t whole) {
  if (elements <= whole) align = elements;  // One unit, which goes to somebody.
  std::vector<Shard> shards;
  if (elements == 0) return shards;
  size_t last = shares.fraction.size() - 1;
  while (shares.fraction[last] == 0) --last;
  const double units = static_cast<double>(elements) / static_cast<double>(align);
  const double phase = Phase(segment);
  double before = 0;
  size_t begin = 0;
  for (size_t reducer = 0; reducer <= last; ++reducer) {
    before += shares.fraction[reducer];
    // Borders are rounded up or down all together, in proportion to what they would lose.
    const auto border = static_cast<size_t>(units * before + phase) * align;
    const size_t end = reducer == last ? elements : std::min(border, elements);
    if (end > begin) shards.push_back({reducer, {begin, end - begin}});
    begin = end;
  }
  return shards;
}

}  // namespace smddp
