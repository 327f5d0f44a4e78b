// SPDX-License-Identifier: Apache-2.0
#include "transport/outgoing.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "transport/tcp_socket.h"

namespace smddp {
namespace {

constexpr std::chrono::milliseconds kFirstPause(50);
constexpr std::chrono::milliseconds kLongestPause(1000);

Outgoing::Clock::duration Duration(double seconds) {
  return std::chrono::duration_cast<Outgoing::Clock::duration>(
      std::chrono::duration<double>(seconds));
}

std::string Name(const Identity& who) {
  if (who.role == Identity::Role::kReducer) return "a reducer";
  return "rank " + std::to_string(who.process);
}

std::string Seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", seconds);
  return text;
}

}  // namespace

Outgoing::Outgoing(Target target, const Greeter::Options& options, int epoll)
    : target_(std::move(target)),
      options_(options),
      epoll_(epoll),
      give_up_(target_.seconds > 0 ? Clock::now() + Duration(target_.seconds)
                                   : Clock::time_point::max()),
      pause_(kFirstPause) {}

Outgoing::~Outgoing() { CloseSocket(); }

void Outgoing::CloseSocket() {
  // By hand: a child process that holds a copy would keep it watched.
  if (socket_.valid()) Watch(EPOLL_CTL_DEL, 0);
  socket_.Reset();
}

UniqueFd Outgoing::TakeSocket() {
  Watch(EPOLL_CTL_DEL, 0);
  return std::move(socket_);
}

Outgoing::Clock::time_point Outgoing::next() const { return std::min(until_, give_up_); }

bool Outgoing::Move(Clock::time_point now) {
  if (socket_.valid()) {
    const Status advanced = Advance();
    if (outcome_) return true;
    if (!advanced.ok()) {
      Retry(advanced, now);
    } else if (now >= until_) {
      Retry(Status(StatusCode::kDeadline,
                   "no answer within " + Seconds(options_.handshake_seconds)),
            now);
    }
  }
  if (now >= give_up_) {
    GiveUp();
    return true;
  }
  if (!socket_.valid() && now >= until_) {
    const Status begun = Begin();
    // Looking a name up may have taken long.
    until_ = Clock::now() + Duration(options_.handshake_seconds);
    if (!begun.ok()) Retry(begun, Clock::now());
  }
  return false;
}

Status Outgoing::Begin() {
  const Result<Address> address = ResolveAddress(target_.address);
  SMDDP_RETURN_IF_ERROR(address.status());
  const Result<Nonce> nonce = MakeNonce();
  SMDDP_RETURN_IF_ERROR(nonce.status());
  Result<UniqueFd> socket = BeginConnect(*address);
  SMDDP_RETURN_IF_ERROR(socket.status());
  Identity me = options_.me;
  me.lane = target_.lane;
  handshake_.emplace(me, options_.secret, *nonce);
  socket_ = std::move(*socket);
  connected_ = false;
  Watch(EPOLL_CTL_ADD, EPOLLOUT);
  return Status();
}

// Ok: it goes on, or `outcome_` is there.
Status Outgoing::Advance() {
  if (!connected_) {
    const Result<bool> connected = FinishConnect(socket_.get());
    SMDDP_RETURN_IF_ERROR(connected.status());
    if (!*connected) return Status();
    connected_ = true;
    Watch(EPOLL_CTL_MOD, EPOLLIN);
    return SendWhole(socket_.get(), handshake_->hello());
  }
  const Result<size_t> bytes = ReadInto(socket_.get(), handshake_->room());
  SMDDP_RETURN_IF_ERROR(bytes.status());
  if (!handshake_->Took(*bytes)) return Status();
  const auto reply = handshake_->Next();
  if (reply.status().code() == StatusCode::kInvalidArgument) {
    outcome_ = Status(StatusCode::kInvalidArgument,
                      target_.name + " refused us: " + reply.status().message());
    return Status();
  }
  SMDDP_RETURN_IF_ERROR(reply.status());
  if (!handshake_->done()) {
    SMDDP_RETURN_IF_ERROR(CheckListener());
    return SendWhole(socket_.get(), *reply);
  }
  outcome_ = Status();
  return Status();
}

Status Outgoing::CheckListener() const {
  const Identity& found = handshake_->listener();
  const Identity& expected = target_.expected;
  if (found.role != expected.role || found.process != expected.process) {
    return Status(StatusCode::kMismatch,
                  "there is " + Name(found) + ", not " + Name(expected));
  }
  if (found.job != 0 && expected.job != 0 && found.job != expected.job) {
    return Status(StatusCode::kMismatch, "it belongs to another job");
  }
  return Status();
}

void Outgoing::Watch(int operation, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = socket_.get();
  ::epoll_ctl(epoll_, operation, socket_.get(), &event);
}

void Outgoing::Retry(const Status& why, Clock::time_point now) {
  last_failure_ = why.message();
  CloseSocket();
  until_ = now + pause_;
  pause_ = std::min<Clock::duration>(2 * pause_, kLongestPause);
}

void Outgoing::GiveUp() {
  outcome_ = Status(
      StatusCode::kDeadline,
      "no connection to " + target_.name + " within " + Seconds(target_.seconds) + ": " +
          last_failure_ +
          "; check that it runs with the same SMDDP_SECRET, that its address is right "
          "(SMDDP_INTERFACE, SMDDP_PORT) and that no firewall is between");
}

}  // namespace smddp
