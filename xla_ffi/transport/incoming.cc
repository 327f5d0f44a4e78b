// SPDX-License-Identifier: Apache-2.0
#include "transport/incoming.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/tcp_socket.h"

namespace smddp {
namespace {

using std::chrono::milliseconds;

// Enough for two round trips over any network that a job would use.
constexpr milliseconds kLeastTime(250);
constexpr milliseconds kPauseWithoutDescriptors(100);
// Between them those under way have their turn.
constexpr int kAcceptsPerTurn = 16;

std::string Name(const Identity& who) {
  if (who.role == Identity::Role::kReducer) return "a reducer";
  return "rank " + std::to_string(who.process) + " of " + std::to_string(who.processes);
}

}  // namespace

Incoming::Incoming(UniqueFd listener, const Greeter::Options& options,
                   const Greeter::Events& events, std::atomic<uint64_t>& refused,
                   int epoll)
    : listener_(std::move(listener)),
      options_(options),
      events_(events),
      refused_(refused),
      epoll_(epoll),
      patience_(std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(options.handshake_seconds))) {
  epoll_event event = {};
  event.data.fd = listener_.get();
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_.get(), &event);
}

void Incoming::Serve(int fd) {
  if (fd == listener_.get()) return Accept(Clock::now());
  const auto place = std::ranges::find_if(
      pending_, [fd](const Pending& pending) { return pending.socket.get() == fd; });
  if (place != pending_.end()) Read(place);
}

Incoming::Clock::time_point Incoming::GivesWay(const Pending& pending) const {
  return pending.since + std::min<Clock::duration>(kLeastTime, patience_);
}

bool Incoming::MayAccept(Clock::time_point now) const {
  if (now < accept_after_) return false;
  if (pending_.size() < static_cast<size_t>(options_.pending)) return true;
  return now >= GivesWay(pending_.front());
}

void Incoming::WatchListener(bool watch) {
  if (watch == std::exchange(listener_watched_, watch)) return;
  epoll_event event = {};
  event.events = watch ? EPOLLIN : 0u;
  event.data.fd = listener_.get();
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_.get(), &event);
}

Incoming::Clock::time_point Incoming::Tick(Clock::time_point now) {
  while (!pending_.empty() && now >= pending_.front().since + patience_) {
    Refuse(pending_.begin(), kSilent, "did not finish the handshake in time");
  }
  WatchListener(MayAccept(now));
  Clock::time_point next = now + std::chrono::seconds(1);
  if (!pending_.empty()) next = std::min(next, pending_.front().since + patience_);
  if (listener_watched_) return next;
  if (now < accept_after_) return std::min(next, accept_after_);
  return std::min(next, GivesWay(pending_.front()));
}

void Incoming::Accept(Clock::time_point now) {
  for (int i = 0; i < kAcceptsPerTurn && MayAccept(now); ++i) {
    Address from;
    Result<UniqueFd> socket = AcceptFrom(listener_.get(), from);
    const Result<Nonce> nonce = MakeNonce();
    if (!socket.ok() || !nonce.ok()) {
      accept_after_ = now + kPauseWithoutDescriptors;
      return;
    }
    if (!socket->valid()) return;
    if (pending_.size() >= static_cast<size_t>(options_.pending)) {
      Refuse(pending_.begin(), kSilent, "gave way to others in the queue");
    }
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = socket->get();
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket->get(), &event);
    pending_.push_back({std::move(*socket), from.Text(),
                        ListenerHandshake(options_.me, options_.secret, *nonce), now});
  }
}

void Incoming::Read(Place place) {
  ListenerHandshake& handshake = place->handshake;
  const Result<size_t> bytes = ReadInto(place->socket.get(), handshake.room());
  if (!bytes.ok()) return Refuse(place, kSilent, bytes.status().message());
  if (!handshake.Took(*bytes)) return;
  const bool greeted = handshake.greeted();
  const auto reply = handshake.Next();
  if (!reply.ok()) {
    return Refuse(place, greeted ? kSecret : kGarbage, reply.status().message());
  }
  if (handshake.proved()) return Decide(place);
  const Status sent = SendWhole(place->socket.get(), *reply);
  if (!sent.ok()) Refuse(place, kSilent, sent.message());
}

Status Incoming::Judge(const Identity& who, Refusal& kind) const {
  kind = kOtherJob;
  if (options_.me.job != 0 && who.job != options_.me.job) {
    return Status(StatusCode::kMismatch, "belongs to another job");
  }
  kind = kTurnedAway;
  const bool worker = who.role == Identity::Role::kWorker;
  if ((worker && who.process >= who.processes) || who.lane >= who.lanes) {
    return Status(StatusCode::kInvalidArgument,
                  "there is no " + Name(who) + " with lane " + std::to_string(who.lane) +
                      " of " + std::to_string(who.lanes));
  }
  return events_.admit ? events_.admit(who) : Status();
}

void Incoming::Decide(Place place) {
  const Identity who = place->handshake.connector();
  Refusal kind;
  const Status admitted = Judge(who, kind);
  const Status sent = SendWhole(place->socket.get(), place->handshake.Verdict(admitted));
  if (!admitted.ok()) return Refuse(place, kind, Name(who) + ": " + admitted.message());
  if (!sent.ok()) return Refuse(place, kSilent, sent.message());
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, place->socket.get(), nullptr);
  UniqueFd socket = std::move(place->socket);
  pending_.erase(place);
  events_.on_peer(who, 0, std::move(socket));
}

void Incoming::Refuse(Place place, Refusal kind, const std::string& what) {
  ++refused_;
  if (!std::exchange(logged_[kind], true)) {
    LogWarning("refused a connection from " + place->address + ": " + what +
               " (more of this kind are counted, not logged)");
  }
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, place->socket.get(), nullptr);
  pending_.erase(place);
}

}  // namespace smddp
