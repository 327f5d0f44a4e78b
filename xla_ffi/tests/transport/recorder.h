// SPDX-License-Identifier: Apache-2.0
// A receiver that keeps what comes, and two transports joined by a socket.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/tcp_transport.h"
#include "transport/transport.h"

namespace smddp {

class Recorder : public Transport::Receiver {
 public:
  struct Frame {
    int peer;
    FrameHeader header;
    std::string bytes;
  };

  Result<std::byte*> Accept(int peer, const FrameHeader& header) override {
    if (accept) return accept(peer, header);
    return Room(header.payload);
  }

  Status Received(int peer, const FrameHeader& header,
                  std::span<const std::byte> control) override {
    std::string bytes(reinterpret_cast<const char*>(control.data()), control.size());
    if (IsData(header.kind)) bytes = rooms_.front(), rooms_.pop_front();
    frames.push_back({peer, header, std::move(bytes)});
    return received ? received(peer, header) : Status();
  }

  void Lost(int peer, const std::string& why) override {
    lost[peer] = why;
    if (on_lost) on_lost(peer);
  }

  // Memory for a payload; payloads come back in the order of their rooms.
  std::byte* Room(size_t bytes) {
    rooms_.emplace_back(bytes, '\0');
    return reinterpret_cast<std::byte*>(rooms_.back().data());
  }
  void DropRoom() { rooms_.pop_back(); }

  std::function<Result<std::byte*>(int, const FrameHeader&)> accept;
  std::function<Status(int, const FrameHeader&)> received;
  std::function<void(int)> on_lost;
  std::vector<Frame> frames;
  std::map<int, std::string> lost;

 private:
  std::deque<std::string> rooms_;
};

inline FrameHeader Header(FrameKind kind, uint64_t stream = 1, uint64_t segment = 0) {
  FrameHeader header;
  header.kind = kind;
  header.in = DType::kU8;
  header.stream = stream;
  header.segment = segment;
  return header;
}

inline std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Text of which every byte depends on its place and on `seed`.
inline std::string Pattern(size_t size, unsigned seed) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>((i * 2654435761u + seed * 40503u) >> 11);
  }
  return text;
}

// Two ends of a TCP connection over loopback, with small buffers on request.
inline std::pair<UniqueFd, UniqueFd> LoopbackPair(int buffer_bytes = 0) {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  UniqueFd connected(::socket(AF_INET, SOCK_STREAM, 0));
  for (const int fd : {listener.get(), connected.get()}) {
    if (buffer_bytes == 0) break;
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(int));
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(int));
  }
  EXPECT_EQ(::bind(listener.get(), raw, size), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), raw, &size), 0);
  EXPECT_EQ(::connect(connected.get(), raw, size), 0);
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
  const int on = 1;
  ::ioctl(connected.get(), FIONBIO, &on);
  return {std::move(connected), std::move(accepted)};
}

// One process's end: a transport and what it received.
struct End {
  explicit End(double silence_seconds = 30.0) {
    auto made = MakeTcpTransport({silence_seconds}, recorder);
    EXPECT_TRUE(made.ok()) << made.status().message();
    transport = std::move(*made);
  }
  const std::vector<Recorder::Frame>& frames() const { return recorder.frames; }

  Recorder recorder;
  std::unique_ptr<Transport> transport;
};

// Lets all ends make progress until `done`; false if that takes far too long.
inline bool Drive(std::initializer_list<End*> ends, const std::function<bool()>& done) {
  const Deadline deadline = Deadline::After(20);
  while (!done()) {
    if (deadline.Passed()) return false;
    bool moved = false;
    for (End* end : ends) moved |= end->transport->Progress();
    if (!moved) (*ends.begin())->transport->Wait(0.001);
  }
  return true;
}

}  // namespace smddp
