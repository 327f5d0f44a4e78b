// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/inbox.h"
#include "transport/outbox.h"

namespace smddp {
namespace {

using Clock = std::chrono::steady_clock;

// What the kernel may hold that is not on its way yet. More of it would only keep results
// waiting behind pushes.
constexpr int kUnsentBytes = 128 << 10;
constexpr int kEventsPerTurn = 64;

struct Peer {
  Peer(int peer, UniqueFd fd, Transport::Receiver& receiver)
      : id(peer), socket(std::move(fd)), inbox(peer, receiver) {}

  const int id;
  UniqueFd socket;
  Inbox inbox;
  Outbox outbox;
  bool closed = false;
  bool watches_room = false;  // EPOLLOUT is asked for.
  std::string broken;         // Why nothing can be sent; reported by the next Progress.
  Clock::time_point heard = Clock::now();
  Clock::time_point spoke = heard;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(const TcpOptions& options, Receiver& receiver, UniqueFd epoll,
               UniqueFd wake)
      : silence_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options.silence_seconds))),
        receiver_(receiver),
        epoll_(std::move(epoll)),
        wake_(std::move(wake)) {}
  ~TcpTransport() override;

  void AddPeer(int peer, UniqueFd socket) override;
  bool HasPeer(int peer) const override { return peers_.contains(peer); }
  void DropPeer(int peer) override;
  void Send(int peer, const FrameHeader& header,
            std::span<const std::byte> payload) override;
  void SendCopy(int peer, FrameHeader header,
                std::span<const std::byte> payload) override;
  void Forget(uint64_t stream, uint32_t epoch) override;
  bool Progress() override;
  bool Flushed() const override;
  Counters counters() const override { return counters_; }
  void Wait(double seconds) override;
  void Wake() override;
  void CloseInForkedChild() override {
    for (auto& [id, peer] : peers_) peer->socket.Reset();
  }

 private:
  Peer* Find(int id);
  void Serve(Peer& peer, uint32_t events);
  void Receive(Peer& peer);
  void Write(Peer& peer);
  void Break(Peer& peer, const Status& why);
  void ReportBroken();
  void Close(Peer& peer);
  void Lose(Peer& peer, const std::string& why);
  void CheckClocks(Clock::time_point now);

  const Clock::duration silence_;
  Receiver& receiver_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  std::unordered_map<int, std::unique_ptr<Peer>> peers_;
  // Closed while somebody further up the stack may still hold a reference.
  std::vector<std::unique_ptr<Peer>> buried_;
  bool any_broken_ = false;
  uint64_t lost_ = 0;
  Clock::time_point last_progress_ = Clock::now();
  Clock::time_point next_check_ = last_progress_;
  Counters counters_;
};

TcpTransport::~TcpTransport() {
  while (!peers_.empty()) Close(*peers_.begin()->second);
}

Peer* TcpTransport::Find(int id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

void TcpTransport::AddPeer(int id, UniqueFd socket) {
  DropPeer(id);
  auto peer = std::make_unique<Peer>(id, std::move(socket), receiver_);
  ::setsockopt(peer->socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes,
               sizeof(kUnsentBytes));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = peer.get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, peer->socket.get(), &event) != 0) {
    Break(*peer, SystemError("watching its socket"));
  }
  peers_.emplace(id, std::move(peer));
}

void TcpTransport::DropPeer(int id) {
  if (Peer* peer = Find(id)) Close(*peer);
}

void TcpTransport::Close(Peer& peer) {
  peer.closed = true;
  peer.inbox.Close();
  peer.outbox.Clear();
  // A child process may hold copies of the descriptor: closing ours alone would end
  // neither the watch nor the connection.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.socket.get(), nullptr);
  ::shutdown(peer.socket.get(), SHUT_RDWR);
  peer.socket.Reset();
  const auto found = peers_.find(peer.id);
  buried_.push_back(std::move(found->second));
  peers_.erase(found);
}

void TcpTransport::Lose(Peer& peer, const std::string& why) {
  ++lost_;
  Close(peer);
  receiver_.Lost(peer.id, why);
}

void TcpTransport::Send(int id, const FrameHeader& header,
                        std::span<const std::byte> payload) {
  Peer* peer = Find(id);
  if (peer == nullptr || !peer->broken.empty()) return;
  const bool first = peer->outbox.empty();
  peer->outbox.Add(header, payload);
  if (first) Write(*peer);
}

void TcpTransport::SendCopy(int id, FrameHeader header,
                            std::span<const std::byte> payload) {
  Peer* peer = Find(id);
  if (peer == nullptr || !peer->broken.empty()) return;
  const bool first = peer->outbox.empty();
  peer->outbox.AddCopy(header, payload);
  if (first) Write(*peer);
}

void TcpTransport::Forget(uint64_t stream, uint32_t epoch) {
  for (auto& [id, peer] : peers_) {
    peer->inbox.Forget(stream, epoch);
    peer->outbox.Forget(stream, epoch);
  }
}

void TcpTransport::Write(Peer& peer) {
  const uint64_t before = counters_.bytes_sent;
  const Status written = peer.outbox.Write(peer.socket.get(), counters_);
  if (!written.ok()) return Break(peer, written);
  if (counters_.bytes_sent != before) peer.spoke = Clock::now();
  const bool waits = !peer.outbox.empty();
  if (waits == peer.watches_room) return;
  epoll_event event = {};
  event.events = EPOLLIN | (waits ? EPOLLOUT : 0u);
  event.data.ptr = &peer;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, peer.socket.get(), &event) != 0) {
    return Break(peer, SystemError("watching its socket"));
  }
  peer.watches_room = waits;
}

// The caller of Send is not ready for Lost, and what the peer said last (a goodbye, say)
// is still to be read.
void TcpTransport::Break(Peer& peer, const Status& why) {
  peer.broken = "is gone: " + why.message();
  peer.outbox.Clear();
  any_broken_ = true;
  Wake();
}

void TcpTransport::ReportBroken() {
  if (!std::exchange(any_broken_, false)) return;
  std::vector<int> ids;
  for (const auto& [id, peer] : peers_) {
    if (!peer->broken.empty()) ids.push_back(id);
  }
  for (int id : ids) {
    Peer* peer = Find(id);
    if (peer == nullptr || peer->broken.empty()) continue;
    Result<bool> more = peer->inbox.Read(peer->socket.get(), counters_);
    if (peer->closed) continue;
    if (!more.ok()) {
      Lose(*peer, more.status().message());
    } else if (!*more) {
      Lose(*peer, peer->broken);
    } else {
      any_broken_ = true;
      Wake();
    }
  }
}

void TcpTransport::Receive(Peer& peer) {
  peer.heard = Clock::now();
  const Result<bool> read = peer.inbox.Read(peer.socket.get(), counters_);
  if (!read.ok() && !peer.closed) Lose(peer, read.status().message());
}

void TcpTransport::Serve(Peer& peer, uint32_t events) {
  if (!peer.closed && (events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) Receive(peer);
  if (!peer.closed && (events & EPOLLOUT) != 0) Write(peer);
}

bool TcpTransport::Progress() {
  buried_.clear();
  const auto moved = [this] {
    return counters_.frames_sent + counters_.frames_received + lost_;
  };
  const uint64_t before = moved();
  epoll_event events[kEventsPerTurn];
  const int count = ::epoll_wait(epoll_.get(), events, kEventsPerTurn, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr != nullptr) {
      Serve(*static_cast<Peer*>(events[i].data.ptr), events[i].events);
      continue;
    }
    eventfd_t wakes;
    ::eventfd_read(wake_.get(), &wakes);
  }
  ReportBroken();
  CheckClocks(Clock::now());
  return moved() != before;
}

void TcpTransport::CheckClocks(Clock::time_point now) {
  // If it was us who stood still (a debugger, SIGSTOP), nobody could be heard.
  const bool stood_still = now - last_progress_ > silence_ / 2;
  last_progress_ = now;
  if (stood_still) {
    for (auto& [id, peer] : peers_) peer->heard = now;
  }
  if (now < next_check_) return;
  next_check_ = now + silence_ / 8;
  std::vector<int> silent;
  for (auto& [id, peer] : peers_) {
    if (now - peer->heard > silence_) silent.push_back(id);
    // Frames that wait will do as well, once there is room.
    if (now - peer->spoke > silence_ / 4 && peer->outbox.empty()) SendCopy(id, {}, {});
  }
  const double seconds = std::chrono::duration<double>(silence_).count();
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%g", seconds);
  for (int id : silent) {
    Peer* peer = Find(id);
    if (peer == nullptr || now - peer->heard <= silence_) continue;
    Lose(*peer, std::string("has been silent for ") + limit +
                    " s: its process is frozen or its network is cut");
  }
}

bool TcpTransport::Flushed() const {
  return std::ranges::all_of(
      peers_, [](const auto& entry) { return entry.second->outbox.empty(); });
}

void TcpTransport::Wait(double seconds) {
  const double limit = std::chrono::duration<double>(silence_).count() / 8;
  const double milliseconds = std::ceil(std::min(seconds, limit) * 1000);
  epoll_event event;
  ::epoll_wait(epoll_.get(), &event, 1, static_cast<int>(milliseconds));
}

void TcpTransport::Wake() { ::eventfd_write(wake_.get(), 1); }

}  // namespace

Result<std::unique_ptr<Transport>> MakeTcpTransport(const TcpOptions& options,
                                                    Transport::Receiver& receiver) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return SystemError("epoll_create1 (file descriptors, ulimit -n)");
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SystemError("eventfd (file descriptors, ulimit -n)");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return SystemError("epoll_ctl");
  }
  return std::unique_ptr<Transport>(std::make_unique<TcpTransport>(
      options, receiver, std::move(epoll), std::move(wake)));
}

}  // namespace smddp
