// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace smddp {
namespace {

constexpr int kFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

sockaddr* Raw(Address& address) { return reinterpret_cast<sockaddr*>(&address.storage); }

const sockaddr* Raw(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

void SendWithoutDelay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Status CannotListen(const Address& address) {
  const int error = errno;
  const char* remedy = "";
  if (error == EADDRINUSE) {
    remedy =
        "; another process listens there: end it, or set SMDDP_PORT to 0 or to a "
        "free port";
  } else if (error == EADDRNOTAVAIL) {
    remedy = "; this host has no such address: set SMDDP_INTERFACE to one of its own";
  } else if (error == EACCES) {
    remedy = "; ports below 1024 need privileges: choose a higher SMDDP_PORT";
  }
  errno = error;
  const Status why = SystemError("cannot listen on " + address.Text());
  return Status(why.code(), why.message() + remedy);
}

Result<Address> LocalAddress(int socket) {
  Address address;
  address.size = sizeof(address.storage);
  if (::getsockname(socket, Raw(address), &address.size) != 0) {
    return SystemError("getsockname");
  }
  return address;
}

}  // namespace

Result<UniqueFd> ListenOn(Address& address) {
  UniqueFd socket(::socket(address.storage.ss_family, kFlags, 0));
  if (!socket.valid()) return SystemError("socket");
  // Connections of the last job that linger in TIME_WAIT must not block the port.
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(socket.get(), Raw(address), address.size) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return CannotListen(address);
  }
  Result<Address> bound = LocalAddress(socket.get());
  SMDDP_RETURN_IF_ERROR(bound.status());
  address = *bound;
  return socket;
}

Result<UniqueFd> AcceptFrom(int listener, Address& peer) {
  peer.size = sizeof(peer.storage);
  UniqueFd socket(
      ::accept4(listener, Raw(peer), &peer.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.valid()) {
    SendWithoutDelay(socket.get());
    return socket;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return SystemError("accepting a connection");
    default:  // Nobody there, or somebody who is gone already.
      return UniqueFd();
  }
}

Result<UniqueFd> BeginConnect(const Address& peer) {
  UniqueFd socket(::socket(peer.storage.ss_family, kFlags, 0));
  if (!socket.valid()) return SystemError("socket");
  SendWithoutDelay(socket.get());
  if (::connect(socket.get(), Raw(peer), peer.size) != 0 && errno != EINPROGRESS) {
    return SystemError("connecting");
  }
  return socket;
}

Result<bool> FinishConnect(int socket) {
  socklen_t size = sizeof(int);
  int error = 0;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    return SystemError("SO_ERROR");
  }
  if (error != 0) {
    errno = error;
    return SystemError("connecting");
  }
  Address peer;
  peer.size = sizeof(peer.storage);
  if (::getpeername(socket, Raw(peer), &peer.size) != 0) return false;
  // On one host, the port that the kernel chose for us may be the one we connect to.
  Result<Address> local = LocalAddress(socket);
  SMDDP_RETURN_IF_ERROR(local.status());
  if (local->Text() != peer.Text()) return true;
  return Status(StatusCode::kSystem, "connecting: nobody listens there");
}

Result<size_t> ReadInto(int socket, std::span<std::byte> room) {
  const ssize_t read = ::recv(socket, room.data(), room.size(), MSG_DONTWAIT);
  if (read > 0) return static_cast<size_t>(read);
  if (read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return size_t{0};
  }
  return Status(StatusCode::kPeerLost, "closed the connection during the handshake");
}

Status SendWhole(int socket, std::span<const std::byte> message) {
  const ssize_t sent =
      ::send(socket, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(message.size())) return Status();
  return Status(StatusCode::kPeerLost, "closed the connection during the handshake");
}

}  // namespace smddp
