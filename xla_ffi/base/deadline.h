// SPDX-License-Identifier: Apache-2.0
// A point on the steady clock by which something must have happened.
//
// A plain value; any thread may read it.
#pragma once

#include <algorithm>
#include <chrono>

namespace smddp {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline After(double seconds) {
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(seconds)));
  }

  bool Passed() const { return Clock::now() >= at_; }
  double SecondsLeft() const {
    return std::max(0.0, std::chrono::duration<double>(at_ - Clock::now()).count());
  }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace smddp
