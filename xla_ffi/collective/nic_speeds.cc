// SPDX-License-Identifier: Apache-2.0
#include "collective/nic_speeds.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "collective/network.h"
#include "transport/probe.h"

namespace smddp {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Bursts grow until one takes long enough for latency, a shaper's allowance and a late
// thread to matter little. A slow link has its figure within a second.
constexpr size_t kFirstBurst = size_t{64} << 10;
constexpr size_t kLargestBurst = size_t{32} << 20;
constexpr double kLongEnoughSeconds = 0.1;
constexpr char kKeys[] = "smddp/nic/";

std::string ThreeDigits(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g", value);
  return text;
}

std::string Text(const std::vector<double>& weights) {
  std::string text;
  for (const double weight : weights) {
    text += (text.empty() ? "" : ",") + ThreeDigits(weight);
  }
  return text;
}

}  // namespace

std::vector<double> RelativeSpeeds(const std::vector<double>& speeds) {
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  std::vector<double> relative;
  for (const double speed : speeds) {
    relative.push_back(std::strtod(ThreeDigits(speed / fastest).c_str(), nullptr));
  }
  return relative;
}

Result<std::vector<double>> NicSpeeds::Measure(KeyValueStore& store,
                                               const Deadline& deadline) {
  const size_t hosts = roster_.hosts().size();
  std::vector<double> speeds(hosts);
  for (size_t stride = 1; 2 * stride <= hosts; stride *= 2) {
    SMDDP_RETURN_IF_ERROR(MeasureRing(stride, speeds, store, deadline));
  }
  SMDDP_RETURN_IF_ERROR(MeasureReducers(speeds, store, deadline));
  std::vector<double> weights = RelativeSpeeds(speeds);
  if (roster_.process() == 0) {
    const double fastest = *std::max_element(speeds.begin(), speeds.end());
    LogInfo("SMDDP_WEIGHTS=measure found " + Text(weights) + ", where 1 is " +
            ThreeDigits(fastest / 1e6) + " MB/s");
  }
  return weights;
}

// Reading what all have found is also the barrier before the next ring.
Status NicSpeeds::MeasureRing(size_t stride, std::vector<double>& speeds,
                              KeyValueStore& store, const Deadline& deadline) {
  const std::vector<int> hosts = roster_.hosts();
  const auto next = [&](size_t host) { return (host + stride) % hosts.size(); };
  const auto link = [&](size_t host) {
    return std::to_string(stride) + "/" + std::to_string(host);
  };
  for (size_t h = 0; h < hosts.size(); ++h) {
    if (hosts[h] != roster_.process()) continue;
    SMDDP_RETURN_IF_ERROR(Publish(link(h), hosts[next(h)], store, deadline));
  }
  for (size_t h = 0; h < hosts.size(); ++h) {
    const auto speed = Read(link(h), hosts[h], store, deadline);
    SMDDP_RETURN_IF_ERROR(speed.status());
    for (const size_t end : {h, next(h)}) speeds[end] = std::max(speeds[end], *speed);
  }
  return Status();
}

Status NicSpeeds::MeasureReducers(std::vector<double>& speeds, KeyValueStore& store,
                                  const Deadline& deadline) {
  const auto fastest = std::max_element(speeds.begin(), speeds.end()) - speeds.begin();
  const int from = roster_.hosts()[static_cast<size_t>(fastest)];
  const auto link = [](size_t reducer) { return "reducer/" + std::to_string(reducer); };
  for (size_t r = 0; r < reducers_ && from == roster_.process(); ++r) {
    const int peer = network_.first_reducer() + static_cast<int>(r);
    SMDDP_RETURN_IF_ERROR(Publish(link(r), peer, store, deadline));
  }
  for (size_t r = 0; r < reducers_; ++r) {
    const auto speed = Read(link(r), from, store, deadline);
    SMDDP_RETURN_IF_ERROR(speed.status());
    speeds.push_back(*speed);
  }
  return Status();
}

Status NicSpeeds::Publish(const std::string& link, int peer, KeyValueStore& store,
                          const Deadline& deadline) {
  const auto speed = SpeedTo(peer, deadline);
  // In place of a figure the others read why there is none.
  const std::string text = speed.ok() ? std::to_string(*speed) : speed.status().message();
  const Status told = store.Set(kKeys + link, text);
  return speed.ok() ? told : speed.status();
}

Result<double> NicSpeeds::Read(const std::string& link, int from, KeyValueStore& store,
                               const Deadline& deadline) const {
  const auto text = store.Get(kKeys + link, deadline);
  if (!text.ok()) {
    return Status(text.status().code(),
                  network_.Describe(from) +
                      " did not tell how fast its links are (SMDDP_WEIGHTS=measure): " +
                      text.status().message());
  }
  const double speed = std::strtod(text->c_str(), nullptr);
  if (speed > 0) return speed;
  return Status(StatusCode::kPeerLost, *text);
}

Result<double> NicSpeeds::SpeedTo(int peer, const Deadline& deadline) {
  {
    const std::lock_guard lock(mutex_);
    peer_ = peer;
    lost_.reset();
  }
  if (!network_.Reached(peer)) return Failure("is gone");
  for (size_t bytes = kFirstBurst;; bytes *= 2) {
    const auto start = Clock::now();
    SMDDP_RETURN_IF_ERROR(CarryBurst(bytes, deadline));
    const double seconds = Seconds(Clock::now() - start).count();
    if (seconds >= kLongEnoughSeconds || bytes >= kLargestBurst) {
      return static_cast<double>(bytes) / seconds;
    }
  }
}

Status NicSpeeds::CarryBurst(size_t bytes, const Deadline& deadline) {
  const size_t lanes = network_.lanes();
  {
    const std::lock_guard lock(mutex_);
    ++burst_;
    answers_ = 0;
  }
  for (size_t i = 0; i < lanes; ++i) {
    const auto lock = network_.lane(i).lane().Lock();
    SendProbe(network_.lane(i).transport(), peer_, bytes / lanes, burst_);
  }
  std::unique_lock lock(mutex_);
  const bool ended = changed_.wait_until(lock, deadline.at(),
                                         [&] { return lost_ || answers_ == lanes; });
  if (lost_) return Failure(*lost_);
  return ended ? Status() : Failure("did not answer in time");
}

void NicSpeeds::Answered(int peer, uint64_t burst) {
  const std::lock_guard lock(mutex_);
  if (peer != peer_ || burst != burst_) return;
  ++answers_;
  changed_.notify_all();
}

void NicSpeeds::Lost(int peer, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (peer != peer_) return;
  lost_ = why;
  changed_.notify_all();
}

Status NicSpeeds::Failure(const std::string& why) const {
  return Status(StatusCode::kPeerLost, network_.Name(peer_) + " " + why + ", while " +
                                           network_.Describe(roster_.process()) +
                                           " measured the link to it "
                                           "(SMDDP_WEIGHTS=measure)");
}

}  // namespace smddp
