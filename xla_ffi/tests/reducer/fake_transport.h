// SPDX-License-Identifier: Apache-2.0
// A transport that keeps what is sent until a test takes it.
//
// Payloads are read when they are taken, not when they are sent: whoever reuses their
// memory too early is found out. One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "transport/transport.h"

namespace smddp::testing {

class FakeTransport final : public Transport {
 public:
  struct Frame {
    int peer = 0;
    FrameHeader header;
    std::vector<uint8_t> payload;
  };

  // The oldest frame to `peer`, or to anybody.
  std::optional<Frame> Take(std::optional<int> peer = std::nullopt) {
    const auto found =
        std::find_if(waiting_.begin(), waiting_.end(),
                     [&](const Waiting& frame) { return !peer || frame.peer == *peer; });
    if (found == waiting_.end()) return std::nullopt;
    Frame frame{found->peer, found->header, {}};
    const auto* bytes = reinterpret_cast<const uint8_t*>(found->payload.data());
    frame.payload.assign(bytes, bytes + found->payload.size());
    waiting_.erase(found);
    return frame;
  }
  size_t waiting() const { return waiting_.size(); }
  // Streams that were forgotten, oldest first.
  const std::vector<uint64_t>& forgotten() const { return forgotten_; }

  void Send(int peer, const FrameHeader& header,
            std::span<const std::byte> payload) override {
    EXPECT_EQ(header.payload, payload.size());
    waiting_.push_back({peer, header, payload});
  }
  void Forget(uint64_t stream, uint32_t epoch) override {
    forgotten_.push_back(stream);
    std::erase_if(waiting_, [&](const Waiting& frame) {
      return frame.header.stream == stream && frame.header.epoch < epoch;
    });
  }

  // What a Reducer has no use for.
  void AddPeer(int, UniqueFd) override { ADD_FAILURE(); }
  bool HasPeer(int) const override { return true; }
  void DropPeer(int) override { ADD_FAILURE(); }
  void SendCopy(int, FrameHeader, std::span<const std::byte>) override { ADD_FAILURE(); }
  bool Progress() override { return false; }
  void CloseInForkedChild() override { ADD_FAILURE(); }
  bool Flushed() const override { return waiting_.empty(); }
  Counters counters() const override { return {}; }
  void Wait(double) override {}
  void Wake() override {}

 private:
  struct Waiting {
    int peer;
    FrameHeader header;
    std::span<const std::byte> payload;
  };

  std::deque<Waiting> waiting_;
  std::vector<uint64_t> forgotten_;
};

}  // namespace smddp::testing
