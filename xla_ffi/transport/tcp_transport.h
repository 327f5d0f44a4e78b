// SPDX-License-Identifier: Apache-2.0
// Frames over TCP: non-blocking sockets, epoll, no thread and no spinning of its own.
//
// See Transport for who may call what.
#pragma once

#include <memory>

#include "transport/transport.h"

namespace smddp {

struct TcpOptions {
  // A peer from which nothing came for this long is lost. Heartbeats go out four times
  // as often.
  double silence_seconds = 30.0;
};

// Error: the process has no file descriptors left.
Result<std::unique_ptr<Transport>> MakeTcpTransport(const TcpOptions& options,
                                                    Transport::Receiver& receiver);

}  // namespace smddp
