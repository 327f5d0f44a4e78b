// SPDX-License-Identifier: Apache-2.0
#include "host/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace smddp {
namespace {

constexpr int kType = SOCK_SEQPACKET | SOCK_CLOEXEC;

Result<std::pair<sockaddr_un, socklen_t>> AbstractAddress(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) {
    return Status(StatusCode::kInvalidArgument, "socket name too long: " + name);
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const size_t length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return std::pair{address, static_cast<socklen_t>(length)};
}

Result<ucred> PeerCredentials(int socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return SystemError("SO_PEERCRED");
  }
  return credentials;
}

Status CheckPeer(int socket) {
  Result<ucred> credentials = PeerCredentials(socket);
  SMDDP_RETURN_IF_ERROR(credentials.status());
  if (credentials->uid == ::geteuid()) return Status();
  return Status(StatusCode::kInvalidArgument,
                "process " + std::to_string(credentials->pid) + " of user " +
                    std::to_string(credentials->uid) +
                    " on the other end of a local socket is not ours (user " +
                    std::to_string(::geteuid()) + ")");
}

// True when `socket` is readable, false at the deadline.
Result<bool> WaitReadable(int socket, const Deadline& deadline) {
  pollfd wait = {socket, POLLIN, 0};
  for (;;) {
    const int timeout_ms = static_cast<int>(deadline.SecondsLeft() * 1000);
    const int ready = ::poll(&wait, 1, timeout_ms);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return SystemError("poll");
    if (ready == 0 && deadline.Passed()) return false;
  }
}

}  // namespace

Result<UniqueFd> ListenLocal(const std::string& name) {
  auto address = AbstractAddress(name);
  SMDDP_RETURN_IF_ERROR(address.status());
  UniqueFd socket(::socket(AF_UNIX, kType, 0));
  if (!socket.valid()) return SystemError("unix socket");
  const auto* raw = reinterpret_cast<const sockaddr*>(&address->first);
  if (::bind(socket.get(), raw, address->second) != 0) {
    return SystemError("binding the local socket " + name);
  }
  if (::listen(socket.get(), SOMAXCONN) != 0) return SystemError("listen");
  return socket;
}

Result<UniqueFd> ConnectLocal(const std::string& name) {
  auto address = AbstractAddress(name);
  SMDDP_RETURN_IF_ERROR(address.status());
  UniqueFd socket(::socket(AF_UNIX, kType, 0));
  if (!socket.valid()) return SystemError("unix socket");
  const auto* raw = reinterpret_cast<const sockaddr*>(&address->first);
  if (::connect(socket.get(), raw, address->second) != 0) {
    return SystemError("connecting to the local socket " + name);
  }
  SMDDP_RETURN_IF_ERROR(CheckPeer(socket.get()));
  return socket;
}

Result<UniqueFd> AcceptLocal(int listener, const Deadline& deadline) {
  Result<bool> ready = WaitReadable(listener, deadline);
  SMDDP_RETURN_IF_ERROR(ready.status());
  if (!*ready) return Status(StatusCode::kDeadline, "nobody connected in time");
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid()) return SystemError("accept");
  SMDDP_RETURN_IF_ERROR(CheckPeer(socket.get()));
  return socket;
}

Result<pid_t> PeerPid(int socket) {
  Result<ucred> credentials = PeerCredentials(socket);
  SMDDP_RETURN_IF_ERROR(credentials.status());
  return credentials->pid;
}

Status SendLocal(int socket, std::span<const std::byte> message, int fd) {
  iovec part = {const_cast<std::byte*>(message.data()), message.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* attached = CMSG_FIRSTHDR(&header);
    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(attached), &fd, sizeof(int));
  }
  while (::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno != EINTR) return SystemError("sending to a local process");
  }
  return Status();
}

Result<std::optional<LocalMessage>> ReceiveLocal(int socket, std::span<std::byte> buffer,
                                                 const Deadline& deadline) {
  Result<bool> ready = WaitReadable(socket, deadline);
  SMDDP_RETURN_IF_ERROR(ready.status());
  if (!*ready) return Status(StatusCode::kDeadline, "no message in time");
  iovec part = {buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (size < 0) {
    if (errno == ECONNRESET) return std::optional<LocalMessage>();
    return SystemError("receiving from a local process");
  }
  LocalMessage message;
  message.size = static_cast<size_t>(size);
  for (cmsghdr* attached = CMSG_FIRSTHDR(&header); attached != nullptr;
       attached = CMSG_NXTHDR(&header, attached)) {
    if (attached->cmsg_level == SOL_SOCKET && attached->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(attached), sizeof(int));
      message.fd = UniqueFd(fd);
    }
  }
  if (size == 0 && !message.fd.valid()) return std::optional<LocalMessage>();
  return std::optional<LocalMessage>(std::move(message));
}

}  // namespace smddp
