// SPDX-License-Identifier: Apache-2.0
#include "collective/network_stage.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace smddp {
namespace {

constexpr size_t kPage = 4096;
// A group's share of a process's staging: its ring in shared memory and, twice as long,
// that of contributions; the reducer's slots are about as much again.
constexpr size_t kGroupsInStaging = 4;

std::vector<double> WorkerNics(const Network& network, const Topology& topology) {
  std::vector<double> nics;
  for (size_t h = 0; h < topology.hosts(); ++h) {
    nics.push_back(network.NicOf(topology.host(h)[0]));
  }
  return nics;
}

}  // namespace

NetworkStage::NetworkStage(Network& network, const Topology& topology, uint64_t group,
                           size_t segment_bytes)
    : network_(network),
      topology_(topology),
      group_(group),
      told_(topology.hosts()),
      joined_(topology.hosts()) {
  ShardExchange::Shape shape;
  shape.me = topology.my_host();
  for (size_t h = 0; h < topology.hosts(); ++h) {
    shape.peers.push_back(topology.counterpart(h));
  }
  shape.first_reducer = network.first_reducer();
  shape.window = std::max<size_t>(kWindow / network.lanes(), 1);
  shape.segment_bytes = segment_bytes;
  shape.worker_nics = WorkerNics(network, topology);
  shape.reducer_nics = network.ReducerNics();
  for (size_t lane = 0; lane < network.lanes(); ++lane) {
    shape.stream = Stream(lane);
    NetworkLane& of = network.lane(lane);
    exchanges_.push_back(std::make_unique<ShardExchange>(
        shape, of.transport(), of.reducer(), [this](const Status& why) {
          network_.Post(Stream(0),
                        {FrameKind::kFailure, network_.process(), 0, 0, why.message()});
        }));
    WithLock(lane, [&] { of.Attach(shape.stream, exchanges_[lane].get()); });
  }
  for (size_t h = 0; h < topology.hosts(); ++h) {
    if (h == topology.my_host()) {
      told_[h] = joined_[h] = true;
    } else {
      network.Reach(topology.counterpart(h));
    }
  }
}

NetworkStage::~NetworkStage() { Close(); }

size_t NetworkStage::SegmentBytes(const Network& network, const Topology& topology,
                                  size_t staging_bytes) {
  const Shares shares =
      BalancedShares(WorkerNics(network, topology), network.ReducerNics());
  const double largest =
      *std::max_element(shares.fraction.begin(), shares.fraction.end());
  const auto wanted = static_cast<size_t>(
      static_cast<double>(network.shard_bytes() * topology.rails()) / largest);
  const size_t bound = staging_bytes / kGroupsInStaging / kWindow;
  return std::max(std::min(wanted, bound) / kPage * kPage, kPage);
}

template <typename Body>
void NetworkStage::WithLock(size_t lane, Body&& body) {
  const auto lock = network_.lane(lane).lane().Lock();
  body();
}

uint64_t NetworkStage::Stream(size_t lane) const {
  return Hash64().Add(group_).Add(topology_.my_index()).Add(lane).value();
}

bool NetworkStage::Ready() {
  if (ready_ || closed_) return ready_;
  Join();
  for (Mail& mail : network_.TakeMail(Stream(0))) {
    if (mail.kind != FrameKind::kJoin) {
      mail_.push_back(std::move(mail));
      continue;
    }
    for (size_t h = 0; h < topology_.hosts(); ++h) {
      if (h != topology_.my_host() && topology_.counterpart(h) == mail.from) {
        joined_[h] = true;
      }
    }
  }
  const auto all = [](const std::vector<bool>& flags) {
    return std::all_of(flags.begin(), flags.end(), [](bool flag) { return flag; });
  };
  if (!all(told_) || !all(joined_)) return false;
  ready_ = true;
  for (size_t lane = 0; lane < exchanges_.size(); ++lane) {
    WithLock(lane, [&] { exchanges_[lane]->Begin(); });
  }
  return true;
}

// Tells the hosts that can be reached by now that our side of the stream is there.
void NetworkStage::Join() {
  for (size_t h = 0; h < topology_.hosts(); ++h) {
    if (told_[h] || !network_.Reached(topology_.counterpart(h))) continue;
    Send(h, FrameKind::kJoin, 0, 0, {});
    told_[h] = true;
  }
}

std::optional<size_t> NetworkStage::Missing() const {
  for (size_t h = 0; h < topology_.hosts(); ++h) {
    if (!joined_[h]) return h;
  }
  return std::nullopt;
}

bool NetworkStage::CanPush() const {
  return exchanges_[next_ % exchanges_.size()]->CanPush();
}

std::byte* NetworkStage::Slot() const {
  return exchanges_[next_ % exchanges_.size()]->Slot(next_ / exchanges_.size());
}

uint64_t NetworkStage::Push(ShardExchange::Segment segment) {
  const size_t lane = next_ % exchanges_.size();
  WithLock(lane, [&] { exchanges_[lane]->Push(std::move(segment)); });
  return next_++;
}

bool NetworkStage::Done(uint64_t number) const {
  return exchanges_[number % exchanges_.size()]->completed() > number / exchanges_.size();
}

void NetworkStage::Keep(uint64_t first, uint64_t last) {
  const size_t lanes = exchanges_.size();
  for (size_t lane = 0; lane < lanes; ++lane) {
    WithLock(lane, [&] {
      exchanges_[lane]->Keep((first + lanes - 1 - lane) / lanes,
                             (last + lanes - 1 - lane) / lanes);
    });
  }
}

void NetworkStage::Close() {
  if (closed_) return;
  closed_ = true;
  for (size_t lane = 0; lane < exchanges_.size(); ++lane) {
    WithLock(lane, [&] {
      exchanges_[lane]->Close();
      network_.lane(lane).Detach(Stream(lane));
    });
  }
}

std::string NetworkStage::WaitsFor(uint64_t number) const {
  const size_t lane = number % exchanges_.size();
  const auto lock = network_.lane(lane).lane().Lock();
  return exchanges_[lane]->WaitsFor();
}

void NetworkStage::Send(size_t host, FrameKind kind, uint64_t segment, uint64_t value,
                        const std::string& text) {
  FrameHeader header;
  header.kind = kind;
  header.stream = Stream(0);
  header.segment = segment;
  header.value = value;
  network_.Send(topology_.counterpart(host), header, text);
}

void NetworkStage::Tell(FrameKind kind, uint64_t segment, uint64_t value,
                        const std::string& text) {
  for (size_t h = 0; h < topology_.hosts(); ++h) {
    if (h != topology_.my_host()) Send(h, kind, segment, value, text);
  }
}

NoticeBoard::Notice NetworkStage::NoticeOf(int process) const {
  const auto said = network_.NoticeOf(process);
  if (!said) return {};
  const auto& [stream, notice] = *said;
  // Of another group it is enough to know that it is another one.
  const uint64_t group = stream == Stream(0) ? group_ : 0;
  return {notice.value, notice.segment, group, notice.text};
}

std::deque<Mail> NetworkStage::TakeMail() {
  std::deque<Mail> mail = std::exchange(mail_, {});
  for (Mail& next : network_.TakeMail(Stream(0))) mail.push_back(std::move(next));
  return mail;
}

}  // namespace smddp
