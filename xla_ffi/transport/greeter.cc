// SPDX-License-Identifier: Apache-2.0
#include "transport/greeter.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "transport/incoming.h"
#include "transport/outgoing.h"
#include "transport/tcp_socket.h"

namespace smddp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kEventsPerTurn = 64;

int MillisecondsUntil(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now());
  return static_cast<int>(std::max<std::chrono::milliseconds::rep>(0, left.count()));
}

}  // namespace

class Greeter::Loop {
 public:
  Loop(UniqueFd listener, UniqueFd epoll, UniqueFd wake, Options options, Events events,
       std::atomic<uint64_t>& refused);
  ~Loop();

  void Start();
  void Connect(uint64_t token, Outgoing::Target target);
  void Cancel(uint64_t token);

 private:
  using Live = std::map<uint64_t, std::shared_ptr<Outgoing>>;

  void Run();
  void Serve();
  Clock::time_point MoveOutgoing();
  void Tell(uint64_t token, const std::shared_ptr<Outgoing>& ended);
  void FailAll(const Status& why);
  void Wake() { ::eventfd_write(wake_.get(), 1); }

  const UniqueFd epoll_;
  const UniqueFd wake_;
  const Options options_;
  const Events events_;
  Incoming incoming_;  // Used by the thread only.
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;
  Live live_;                        // The thread alone uses what it points to.
  std::optional<uint64_t> telling_;  // An event for this token is under way.
  std::condition_variable told_;

  Thread thread_;
};

Greeter::Loop::Loop(UniqueFd listener, UniqueFd epoll, UniqueFd wake, Options options,
                    Events events, std::atomic<uint64_t>& refused)
    : epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      options_(std::move(options)),
      events_(std::move(events)),
      incoming_(std::move(listener), options_, events_, refused, epoll_.get()) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = wake_.get();
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
}

Greeter::Loop::~Loop() {
  stopping_ = true;
  Wake();
  thread_.Join();
}

void Greeter::Loop::Start() {
  thread_ = Thread(
      "smddp-greeter", [this] { Run(); }, [this](const Status& why) { FailAll(why); });
}

void Greeter::Loop::Run() {
  while (!stopping_) {
    const Clock::time_point next = std::min(incoming_.Tick(Clock::now()), MoveOutgoing());
    epoll_event events[kEventsPerTurn];
    const int count =
        ::epoll_wait(epoll_.get(), events, kEventsPerTurn, MillisecondsUntil(next));
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd != wake_.get()) {
        incoming_.Serve(events[i].data.fd);
        continue;
      }
      eventfd_t wakes;
      ::eventfd_read(wake_.get(), &wakes);
    }
  }
}

// There are few, and a look at one that is not ready costs next to nothing.
Clock::time_point Greeter::Loop::MoveOutgoing() {
  Live live;
  {
    std::lock_guard lock(mutex_);
    live = live_;
  }
  const Clock::time_point now = Clock::now();
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [token, outgoing] : live) {
    if (outgoing->Move(now)) {
      Tell(token, outgoing);
    } else {
      next = std::min(next, outgoing->next());
    }
  }
  return next;
}

void Greeter::Loop::Tell(uint64_t token, const std::shared_ptr<Outgoing>& ended) {
  {
    std::lock_guard lock(mutex_);
    const auto found = live_.find(token);
    if (found == live_.end() || found->second != ended) return;  // Cancelled.
    live_.erase(found);
    telling_ = token;
  }
  if (ended->outcome().ok()) {
    events_.on_peer(ended->peer(), token, ended->TakeSocket());
  } else {
    events_.on_failed(token, ended->outcome());
  }
  std::lock_guard lock(mutex_);
  telling_.reset();
  told_.notify_all();
}

void Greeter::Loop::FailAll(const Status& why) {
  Live live;
  {
    std::lock_guard lock(mutex_);
    live.swap(live_);
    telling_.reset();
    told_.notify_all();
  }
  for (const auto& [token, outgoing] : live) events_.on_failed(token, why);
}

void Greeter::Loop::Connect(uint64_t token, Outgoing::Target target) {
  auto outgoing = std::make_shared<Outgoing>(std::move(target), options_, epoll_.get());
  {
    std::lock_guard lock(mutex_);
    live_.insert_or_assign(token, std::move(outgoing));
  }
  Wake();
}

void Greeter::Loop::Cancel(uint64_t token) {
  std::unique_lock lock(mutex_);
  live_.erase(token);
  told_.wait(lock, [&] { return telling_ != token; });
}

Greeter::Greeter() = default;
Greeter::~Greeter() = default;

Result<std::unique_ptr<Greeter>> Greeter::Start(const Address& address, Options options,
                                                Events events) {
  if (options.secret.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "the job's secret is empty: set SMDDP_SECRET");
  }
  std::unique_ptr<Greeter> greeter(new Greeter());
  greeter->address_ = address;
  Result<UniqueFd> listener = ListenOn(greeter->address_);
  SMDDP_RETURN_IF_ERROR(listener.status());
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return SystemError("epoll_create1 (file descriptors, ulimit -n)");
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SystemError("eventfd (file descriptors, ulimit -n)");
  greeter->loop_ =
      std::make_unique<Loop>(std::move(*listener), std::move(epoll), std::move(wake),
                             std::move(options), std::move(events), greeter->refused_);
  greeter->loop_->Start();
  return greeter;
}

void Greeter::Connect(uint64_t token, const std::string& address,
                      const Identity& expected, uint32_t lane, const std::string& name,
                      double seconds) {
  loop_->Connect(token, {address, expected, lane, name, seconds});
}

void Greeter::Cancel(uint64_t token) { loop_->Cancel(token); }

}  // namespace smddp
