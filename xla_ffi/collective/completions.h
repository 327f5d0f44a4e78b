// SPDX-License-Identifier: Apache-2.0
// Threads that run completion callbacks.
//
// Telling XLA that a result is there makes XLA run the rest of that device's program on
// the telling thread (measured, jax 0.10.2 and 0.12.0): it may compute for long, or
// block in one of XLA's own collectives until every other device has been told too. So
// no thread that others wait for may tell, and the number of tellers must grow while
// all of them are busy. Owned by the engine; Post may be called by any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "base/thread.h"

namespace smddp {

class Completions {
 public:
  // Starts with `threads` threads, grows to at most `max_threads`.
  Completions(size_t threads, size_t max_threads);
  // Runs what was posted, then joins.
  ~Completions();

  void Post(std::function<void()> task);

 private:
  void Run();
  void Supervise();
  void AddThread();  // With mutex_ held.

  const size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable supervise_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
  uint64_t started_ = 0;  // Tasks taken so far: tells progress from standstill.
  bool stopping_ = false;
  std::vector<Thread> threads_;
  Thread supervisor_;
};

}  // namespace smddp
