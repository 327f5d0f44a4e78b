// SPDX-License-Identifier: Apache-2.0
// TCP sockets as the greeter uses them: non-blocking, closed on exec, without delay.
//
// Free functions; a socket may be used by one thread at a time.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/address.h"

namespace smddp {

// Binds and listens; fills in the port if it was 0. Error: names address and remedy.
Result<UniqueFd> ListenOn(Address& address);

// Invalid, without an error, if nobody waits.
Result<UniqueFd> AcceptFrom(int listener, Address& peer);

// The socket becomes writable when it is connected or when that failed.
Result<UniqueFd> BeginConnect(const Address& peer);
// Whether it is connected; false: not yet.
Result<bool> FinishConnect(int socket);

// Reads what is there, 0 bytes if nothing is. Error: the other end closed.
Result<size_t> ReadInto(int socket, std::span<std::byte> room);

// Sends a message that is far smaller than the buffer of a fresh socket.
Status SendWhole(int socket, std::span<const std::byte> message);

}  // namespace smddp
