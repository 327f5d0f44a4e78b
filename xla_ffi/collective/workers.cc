// SPDX-License-Identifier: Apache-2.0
#include "collective/workers.h"

#include <utility>

namespace smddp {

Workers::Workers(size_t threads) {
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back("smddp-work", [this] { Run(); }, [](const Status&) {});
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (Thread& thread : threads_) thread.Join();
}

void Workers::Enqueue(std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_all();
}

void Workers::Start(size_t count, Task task, std::function<void()> done) {
  auto job = std::make_shared<Job>();
  job->task = std::move(task);
  job->done = std::move(done);
  job->count = count;
  job->left.store(count);
  Enqueue(std::move(job));
}

void Workers::ParallelFor(size_t count, const Task& task) {
  if (count <= 1 || threads_.empty()) {
    for (size_t i = 0; i < count; ++i) task(i);
    return;
  }
  auto job = std::make_shared<Job>();
  job->task = task;
  job->count = count;
  job->left.store(count);
  Enqueue(job);
  Work(*job);
  // Each task still running is short and waits for nothing.
  for (size_t left = job->left.load(); left != 0; left = job->left.load()) {
    job->left.wait(left);
  }
}

void Workers::Work(Job& job) {
  for (;;) {
    const size_t index = job.next.fetch_add(1);
    if (index >= job.count) return;
    job.task(index);
    if (job.left.fetch_sub(1) == 1) {
      job.left.notify_all();
      if (job.done) job.done();
      return;
    }
  }
}

void Workers::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::shared_ptr<Job> job = jobs_.front();
    if (job->next.load() >= job->count) {
      jobs_.pop_front();
      continue;
    }
    lock.unlock();
    Work(*job);
    job.reset();
    lock.lock();
  }
}

}  // namespace smddp
