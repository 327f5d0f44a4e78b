// SPDX-License-Identifier: Apache-2.0
// Threads that do the memory work of the collectives.
//
// Jobs are sets of independent tasks; the threads take tasks of the oldest job first.
// Owned by the engine. Any thread may call Start and ParallelFor; tasks must not throw
// and must not wait for other tasks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/thread.h"

namespace smddp {

class Workers {
 public:
  using Task = std::function<void(size_t index)>;

  explicit Workers(size_t threads);
  ~Workers();

  size_t size() const { return threads_.size(); }

  // Runs task(0) ... task(count - 1) on the workers; the one that finishes the last
  // task then calls `done`. Returns at once.
  void Start(size_t count, Task task, std::function<void()> done);

  // The same, but works along and returns when all are done. For threads of ours only.
  void ParallelFor(size_t count, const Task& task);

 private:
  struct Job {
    Task task;
    std::function<void()> done;
    size_t count = 0;
    std::atomic<size_t> next{0};
    std::atomic<size_t> left{0};
  };

  void Run();
  // Takes tasks until none is left to take.
  static void Work(Job& job);
  void Enqueue(std::shared_ptr<Job> job);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool stopping_ = false;
  std::vector<Thread> threads_;
};

}  // namespace smddp
