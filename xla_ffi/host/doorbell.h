// SPDX-License-Identifier: Apache-2.0
// A doorbell in shared memory: one process sleeps on it, any other rings it.
//
// Lives in the page that its owner shares with its peers. The owner's progress thread
// is the only one that waits. A ringer first publishes what it has to say, then rings; a
// sleeper first announces that it sleeps, then looks once more. So either the sleeper
// sees the news or the ringer sees the sleeper, provided that news is published and
// looked at with sequentially consistent operations or under one mutex.
#pragma once

#include <atomic>
#include <cstdint>

namespace smddp {

class Doorbell {
 public:
  // Wakes the owner if it sleeps; costs one load otherwise.
  void Ring();

  // Sleeps until somebody rings or `seconds` have passed. `has_news` is asked after
  // the sleep was announced; if it returns true there is no sleep.
  template <typename HasNews>
  void Wait(double seconds, HasNews&& has_news) {
    const uint32_t seen = rings_.load(std::memory_order_acquire);
    asleep_.store(1, std::memory_order_seq_cst);
    if (!has_news()) Sleep(seen, seconds);
    asleep_.store(0, std::memory_order_relaxed);
  }

 private:
  void Sleep(uint32_t seen, double seconds);

  // std::atomic of a lock-free type has the same layout and meaning in every process.
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> asleep_{0};
};

}  // namespace smddp
