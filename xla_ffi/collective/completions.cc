// SPDX-License-Identifier: Apache-2.0
#include "collective/completions.h"

#include <utility>

namespace smddp {
namespace {

// How long a posted task may find every thread busy before one more is started.
constexpr auto kPatience = std::chrono::milliseconds(1);

}  // namespace

Completions::Completions(size_t threads, size_t max_threads) : max_threads_(max_threads) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < threads; ++i) AddThread();
  supervisor_ = Thread("smddp-tell", [this] { Supervise(); }, [](const Status&) {});
}

Completions::~Completions() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  supervise_.notify_all();
  supervisor_.Join();
  for (Thread& thread : threads_) thread.Join();
}

void Completions::AddThread() {
  ++idle_;  // Counted at once, so that the supervisor does not start two for one task.
  threads_.emplace_back("smddp-tell", [this] { Run(); }, [](const Status&) {});
}

void Completions::Post(std::function<void()> task) {
  bool all_busy;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    all_busy = idle_ < tasks_.size();
  }
  work_.notify_one();
  if (all_busy) supervise_.notify_one();
}

void Completions::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    --idle_;
    ++started_;
    lock.unlock();
    task();
    task = nullptr;  // Its captures go before we take the lock again.
    lock.lock();
    ++idle_;
  }
}

void Completions::Supervise() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    supervise_.wait(lock, [this] { return stopping_ || idle_ < tasks_.size(); });
    const uint64_t before = started_;
    const bool stop = supervise_.wait_for(lock, kPatience, [this] { return stopping_; });
    const bool standstill = started_ == before && idle_ < tasks_.size();
    if (!stop && standstill && threads_.size() < max_threads_) AddThread();
  }
}

}  // namespace smddp
