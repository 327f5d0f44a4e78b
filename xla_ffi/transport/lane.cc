// SPDX-License-Identifier: Apache-2.0
#include "transport/lane.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/deadline.h"

namespace smddp {
namespace {

// The transport wakes earlier whenever it has something to do.
constexpr double kIdleSeconds = 1.0;
// About what a thread needs to wake up.
constexpr double kHandoverSeconds = 100e-6;

}  // namespace

Lane::Lane(std::string name, std::unique_ptr<Transport> transport,
           std::function<void()> after, std::function<void(Status)> failed)
    : name_(std::move(name)),
      after_(std::move(after)),
      failed_(std::move(failed)),
      transport_(std::move(transport)) {}

Lane::~Lane() { Stop(); }

void Lane::Start() {
  thread_ = Thread(name_, [this] { Run(); }, failed_);
}

std::unique_lock<std::mutex> Lane::Lock() {
  wanted_.fetch_add(1);
  std::unique_lock lock(mutex_);
  wanted_.fetch_sub(1);
  return lock;
}

void Lane::Run() {
  while (!stopping_) {
    transport_->Wait(kIdleSeconds);
    // A busy lane would take the lock again before one who sleeps on it can wake up.
    const Deadline patience = Deadline::After(kHandoverSeconds);
    while (wanted_ > 0 && !patience.Passed()) std::this_thread::yield();
    bool moved = false;
    {
      std::lock_guard lock(mutex_);
      moved = transport_->Progress();
    }
    if (moved) after_();
  }
}

bool Lane::Flush(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  for (;;) {
    {
      auto lock = Lock();
      if (transport_->Flushed()) return true;
    }
    if (deadline.Passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Lane::Stop() {
  stopping_ = true;
  transport_->Wake();
  thread_.Join();
}

}  // namespace smddp
