// SPDX-License-Identifier: Apache-2.0
// Reads frames from one socket and hands them to the receiver.
//
// Payloads of segments go straight to where the receiver wants them; the small buffer
// takes what comes after, so that one system call moves a payload and the next header.
// Owned by a peer of TcpTransport, under its lane's lock.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "transport/transport.h"
#include "wire/frame.h"

namespace smddp {

class Inbox {
 public:
  Inbox(int peer, Transport::Receiver& receiver) : peer_(peer), receiver_(receiver) {}

  // Reads what is there, at most about a turn's bytes; true if there may be more. Error:
  // the connection is over; the message completes "rank N ...".
  Result<bool> Read(int socket, Transport::Counters& counters);

  // See Transport::Forget.
  void Forget(uint64_t stream, uint32_t epoch);

  // Nothing more is delivered; may be called by the receiver from within Read.
  void Close() { closed_ = true; }

 private:
  struct Target {
    std::array<iovec, 2> parts;  // The rest of a payload, the buffer.
    int count = 0;
    size_t payload = 0;  // Bytes of the first part, if it is a payload's.
    size_t bytes = 0;
  };

  size_t buffered() const { return end_ - begin_; }
  size_t missing() const { return header_.payload - got_; }
  Target NextTarget();
  Status Parse(Transport::Counters& counters);
  void TakePayload();
  Status BeginFrame();
  Status Deliver();
  Status Ended(int error) const;

  const int peer_;
  Transport::Receiver& receiver_;
  bool closed_ = false;
  std::optional<std::string> farewell_;  // The peer said goodbye, in these words.

  FrameHeader header_;
  bool in_payload_ = false;           // Of the frame that `header_` began.
  std::byte* destination_ = nullptr;  // Where it goes; null: it is thrown away.
  size_t got_ = 0;                    // Bytes of it.
  std::array<std::byte, kControlBytes> control_;

  std::array<std::byte, size_t{16} << 10> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace smddp
