// SPDX-License-Identifier: Apache-2.0
// Frames that wait to be sent over one socket.
//
// A result or a word about the stream lets others go on, so both go before the pushes
// that nobody has begun to send. Owned by a peer of TcpTransport, under its lane's lock.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"
#include "wire/frame.h"

namespace smddp {

class Outbox {
 public:
  // `payload` stays valid until the frame is sent or its stream forgotten.
  void Add(const FrameHeader& header, std::span<const std::byte> payload);
  void AddCopy(const FrameHeader& header, std::span<const std::byte> payload);

  // Gives the socket what it takes, at most about a turn's bytes. Error: the connection
  // is over.
  Status Write(int socket, Transport::Counters& counters);

  // See Transport::Forget.
  void Forget(uint64_t stream, uint32_t epoch);

  bool empty() const { return !current_ && urgent_.empty() && pushes_.empty(); }
  void Clear();

 private:
  struct Frame {
    Frame(const FrameHeader& header, std::span<const std::byte> bytes);
    size_t size() const { return kHeaderBytes + payload.size(); }
    void Copy();  // Makes the payload our own.

    FrameKind kind;
    uint64_t stream;
    uint32_t epoch;
    std::array<std::byte, kHeaderBytes> head;
    std::span<const std::byte> payload;
    std::vector<std::byte> copy;  // What `payload` points to, if it is ours.
  };
  // What one system call takes.
  struct Batch {
    static constexpr int kMostParts = 16;
    bool full() const { return count + 2 > kMostParts; }
    void Add(const Frame& frame, size_t sent);
    void Add(std::span<const std::byte> part);

    std::array<iovec, kMostParts> parts;
    int count = 0;
    size_t bytes = 0;
  };

  std::deque<Frame>& QueueOf(FrameKind kind);
  Batch NextBatch() const;
  void Sent(size_t bytes, Transport::Counters& counters);

  std::optional<Frame> current_;  // Partly sent.
  size_t sent_ = 0;               // Bytes of `current_`.
  std::deque<Frame> urgent_;
  std::deque<Frame> pushes_;  // And probes, and the kOpen of their streams, in order.
};

}  // namespace smddp
