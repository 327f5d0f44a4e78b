// SPDX-License-Identifier: Apache-2.0
// Message sockets between processes of one host, which can carry a file descriptor.
//
// Abstract unix sockets of type SOCK_SEQPACKET: they have no file, keep message borders
// and report end of file when the peer's process ends, however it ends. Only processes
// of the same user are talked to (SO_PEERCRED). Free functions; a socket may be used by
// one sender and one receiver at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace smddp {

// Listens under an abstract name (without the leading NUL byte).
Result<UniqueFd> ListenLocal(const std::string& name);

// Both check that the peer's process belongs to our user.
Result<UniqueFd> ConnectLocal(const std::string& name);
Result<UniqueFd> AcceptLocal(int listener, const Deadline& deadline);

// Process id of the other end.
Result<pid_t> PeerPid(int socket);

// Sends one message, with `fd` attached unless it is negative. Never blocks: a peer
// whose queue is full is reported as an error.
Status SendLocal(int socket, std::span<const std::byte> message, int fd = -1);

struct LocalMessage {
  size_t size = 0;
  UniqueFd fd;  // Invalid if none was attached.
};

// Receives one message into `buffer`, waiting until `deadline`. No value means that the
// peer closed its end.
Result<std::optional<LocalMessage>> ReceiveLocal(int socket, std::span<std::byte> buffer,
                                                 const Deadline& deadline);

}  // namespace smddp
