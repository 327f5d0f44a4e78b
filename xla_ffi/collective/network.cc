// SPDX-License-Identifier: Apache-2.0
#include "collective/network.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/log.h"

namespace smddp {
namespace {

constexpr size_t kMaxLanes = 256;

// Of a connection that we asked for: which peer, which lane. Never 0.
uint64_t Token(int peer, size_t lane) {
  return (static_cast<uint64_t>(peer) + 1) * kMaxLanes + lane;
}
int PeerOf(uint64_t token) { return static_cast<int>(token / kMaxLanes) - 1; }
size_t LaneOf(uint64_t token) { return token % kMaxLanes; }

}  // namespace

Network::Network(const Roster& roster, const Settings& settings, Events events)
    : roster_(roster),
      settings_(settings),
      events_(std::move(events)),
      nic_speeds_(*this, roster_, settings.reducers.size()),
      weights_(settings.weights),
      addresses_(static_cast<size_t>(roster.processes())),
      reducer_lanes_(settings.reducers.size()),
      reducer_warned_(settings.reducers.size()) {}

Network::~Network() { Stop(); }

void Network::Stop() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  // The threads of both use the other: all stop before anything goes.
  for (auto& lane : lanes_) lane->lane().Stop();
  greeter_.reset();
}

bool Network::Awaits(int process) {
  const std::lock_guard lock(mutex_);
  return awaited_.contains({process, 0});
}

Identity Network::Me() const {
  Identity me;
  me.role = Identity::Role::kWorker;
  me.process = static_cast<uint32_t>(roster_.process());
  me.processes = static_cast<uint32_t>(roster_.processes());
  me.lanes = static_cast<uint32_t>(lanes());
  me.job = job_;
  return me;
}

std::string Network::Name(int peer) const {
  if (peer < first_reducer()) {
    return Describe(peer) + " at " + addresses_[static_cast<size_t>(peer)];
  }
  return "reducer " + settings_.reducers[static_cast<size_t>(peer - first_reducer())];
}

void Network::ConnectReducer(size_t reducer, size_t lane, double seconds) {
  Identity expected;
  expected.role = Identity::Role::kReducer;
  const int peer = first_reducer() + static_cast<int>(reducer);
  greeter_->Connect(Token(peer, lane), settings_.reducers[reducer], expected,
                    static_cast<uint32_t>(lane), Name(peer), seconds);
}

void Network::Reach(int process) {
  if (!reached_for_.insert(process).second) return;
  if (process > roster_.process()) return;  // Of each pair the higher one connects.
  Identity expected = Me();
  expected.process = static_cast<uint32_t>(process);
  for (size_t lane = 0; lane < lanes(); ++lane) {
    greeter_->Connect(Token(process, lane), addresses_[static_cast<size_t>(process)],
                      expected, static_cast<uint32_t>(lane), Name(process),
                      settings_.timeout_seconds);
  }
}

bool Network::Reached(int process) {
  for (auto& lane : lanes_) {
    const auto lock = lane->lane().Lock();
    if (!lane->transport().HasPeer(process)) return false;
  }
  return true;
}

Status Network::Admit(const Identity& peer) const {
  const auto process = static_cast<int>(peer.process);
  if (peer.role == Identity::Role::kWorker && process > roster_.process() &&
      process < roster_.processes() && !roster_.OnMyHost(process) &&
      peer.lanes == lanes() && peer.lane < lanes()) {
    return Status();
  }
  return Status(StatusCode::kInvalidArgument,
                "rank " + std::to_string(roster_.process()) +
                    " expects no connection of rank " + std::to_string(process) +
                    " for lane " + std::to_string(peer.lane));
}

void Network::OnPeer(const Identity& peer, uint64_t token, UniqueFd socket) {
  const int number = token == 0 ? static_cast<int>(peer.process) : PeerOf(token);
  const size_t index = token == 0 ? peer.lane : LaneOf(token);
  {
    const auto lock = lane(index).lane().Lock();
    lane(index).AddPeer(number, std::move(socket));
  }
  {
    const std::lock_guard lock(mutex_);
    if (number >= first_reducer()) {
      const auto r = static_cast<size_t>(number - first_reducer());
      if (++reducer_lanes_[r] == lanes() && reducer_warned_[r]) {
        LogWarning(Name(number) + " is back and gets its share again");
        reducer_warned_[r] = false;
      }
    }
    awaited_.erase({number, index});
    changed_.notify_all();
  }
  events_.wake();
}

void Network::OnFailed(uint64_t token, const Status& why) {
  const int peer = PeerOf(token);
  if (peer < first_reducer()) {
    events_.on_lost(peer, "cannot be reached: " + why.message());
  }
  const std::lock_guard lock(mutex_);
  if (met_) {
    if (peer >= first_reducer() && roster_.process() == 0) {
      LogWarning(Name(peer) + " is not used any more: " + why.message());
    }
    return;
  }
  meeting_failed_ = why;
  changed_.notify_all();
}

void Network::OnLost(size_t lane, int peer, const std::string& why) {
  nic_speeds_.Lost(peer, why);
  if (peer < first_reducer()) {
    events_.on_lost(peer, why);
    return;
  }
  const auto r = static_cast<size_t>(peer - first_reducer());
  {
    const std::lock_guard lock(mutex_);
    --reducer_lanes_[r];
    if (leaving_) return;
    // One warning in the whole job.
    if (!reducer_warned_[r] && roster_.process() == 0) {
      LogWarning(Name(peer) + " " + why + "; the other reducers take its share over");
      reducer_warned_[r] = true;
    }
  }
  ConnectReducer(r, lane, /*seconds=*/0);
}

void Network::Send(int process, FrameHeader header, const std::string& text) {
  const size_t size = std::min(text.size(), kControlBytes);
  header.payload = static_cast<uint32_t>(size);
  const auto lock = lane(0).lane().Lock();
  lane(0).transport().SendCopy(process, header,
                               std::as_bytes(std::span(text.data(), size)));
}

void Network::Post(uint64_t stream, Mail mail) {
  const std::lock_guard lock(mutex_);
  if (mail.kind == FrameKind::kNotice) {
    // Also for groups that are not ours: their members may wait for us in vain.
    notices_.insert_or_assign(mail.from, std::pair(stream, std::move(mail)));
    return;
  }
  mail_[stream].push_back(std::move(mail));
}

std::optional<std::pair<uint64_t, Mail>> Network::NoticeOf(int process) {
  const std::lock_guard lock(mutex_);
  const auto found = notices_.find(process);
  if (found == notices_.end()) return std::nullopt;
  return found->second;
}

std::deque<Mail> Network::TakeMail(uint64_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = mail_.find(stream);
  if (found == mail_.end()) return {};
  return std::exchange(found->second, {});
}

double Network::NicOf(int process) const {
  if (weights_.empty()) return 1.0;
  const std::vector<int> hosts = roster_.hosts();
  for (size_t h = 0; h < hosts.size(); ++h) {
    if (roster_.card(hosts[h]).host_id == roster_.card(process).host_id) {
      return weights_[h];
    }
  }
  return 1.0;
}

std::vector<double> Network::ReducerNics() const {
  const size_t count = settings_.reducers.size();
  if (weights_.empty()) return std::vector<double>(count, 1.0);
  return {weights_.end() - static_cast<ptrdiff_t>(count), weights_.end()};
}

void Network::Leave(const std::string& reason, double seconds) {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  FrameHeader goodbye;
  goodbye.kind = FrameKind::kGoodbye;
  goodbye.payload = static_cast<uint32_t>(std::min(reason.size(), kControlBytes));
  const auto text = std::as_bytes(std::span(reason.data(), goodbye.payload));
  const int peers = first_reducer() + static_cast<int>(settings_.reducers.size());
  for (auto& lane : lanes_) {
    const auto lock = lane->lane().Lock();
    for (int peer = 0; peer < peers; ++peer) {
      if (lane->transport().HasPeer(peer))
        lane->transport().SendCopy(peer, goodbye, text);
    }
  }
  const Deadline deadline = Deadline::After(seconds);
  for (auto& lane : lanes_) lane->lane().Flush(deadline.SecondsLeft());
}

Network::Counters Network::counters() {
  Counters sum;
  for (auto& lane : lanes_) {
    const auto lock = lane->lane().Lock();
    const Transport::Counters wire = lane->transport().counters();
    sum.wire.bytes_sent += wire.bytes_sent;
    sum.wire.bytes_received += wire.bytes_received;
    sum.wire.frames_sent += wire.frames_sent;
    sum.wire.frames_received += wire.frames_received;
    const Reducer::Counters& reduced = lane->reducer().counters();
    sum.reduced.segments += reduced.segments;
    sum.reduced.bytes_summed += reduced.bytes_summed;
    sum.reduced.seconds += reduced.seconds;
    sum.reduced.staging_bytes += reduced.staging_bytes;
    sum.reduced.stale += reduced.stale;
  }
  if (greeter_) sum.refused = greeter_->refused();
  return sum;
}

}  // namespace smddp
