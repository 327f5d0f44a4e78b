// SPDX-License-Identifier: Apache-2.0
#include "comm/local_mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"
#include "host/local_socket.h"

namespace smddp {
namespace {

std::string SocketName(const std::string& nonce) { return "smddp-" + nonce; }

}  // namespace

void MeshMessage::SetText(const std::string& words) {
  const size_t size = std::min(words.size(), sizeof(text) - 1);
  std::memcpy(text, words.data(), size);
  text[size] = '\0';
}

std::string MeshMessage::Text() const {
  return std::string(text, strnlen(text, sizeof(text)));
}

struct LocalMesh::Peer {
  int process = 0;
  UniqueFd socket;
  pid_t pid = 0;
  SharedMemory page;
  bool gone = false;  // Watcher thread only.
  std::string goodbye;
};

LocalMesh::LocalMesh(const Roster& roster, Events events)
    : process_(roster.process()),
      host_name_(roster.mine().host_name),
      events_(std::move(events)) {
  for (int p = 0; p < roster.processes(); ++p) {
    if (roster.OnMyHost(p)) local_.push_back(p);
  }
}

LocalMesh::~LocalMesh() {
  stopping_.store(true);
  if (watcher_.running()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written =
        ::write(stop_event_.get(), &one, sizeof(one));
    watcher_.Join();
  }
}

Result<UniqueFd> LocalMesh::Listen(const std::string& nonce) {
  return ListenLocal(SocketName(nonce));
}

Result<std::unique_ptr<LocalMesh>> LocalMesh::Connect(UniqueFd listener,
                                                      const Roster& roster,
                                                      const Deadline& deadline,
                                                      Events events) {
  std::unique_ptr<LocalMesh> mesh(new LocalMesh(roster, std::move(events)));
  auto page = SharedMemory::Create(sizeof(ProcessPage));
  SMDDP_RETURN_IF_ERROR(page.status());
  mesh->my_page_ = std::move(*page);
  SMDDP_RETURN_IF_ERROR(mesh->Join(std::move(listener), roster, deadline));
  mesh->stop_event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!mesh->stop_event_.valid()) return SystemError("eventfd");
  LocalMesh* raw = mesh.get();
  mesh->watcher_ = Thread(
      "smddp-watch", [raw] { raw->Watch(); },
      [raw](const Status& status) {
        for (auto& [other, peer] : raw->peers_) {
          raw->events_.on_lost(other, "cannot be watched: " + status.message());
        }
      });
  return mesh;
}

// Of each pair the higher process connects. Its hello carries the listener's nonce,
// which only a process that read the job's key-value store can know.
Status LocalMesh::Join(UniqueFd listener, const Roster& roster,
                       const Deadline& deadline) {
  size_t expected = 0;
  for (int other : local_) {
    if (other == process_) continue;
    if (other > process_) {
      ++expected;
      continue;
    }
    const std::string& other_nonce = roster.card(other).nonce;
    auto socket = ConnectLocal(SocketName(other_nonce));
    if (!socket.ok()) {
      return Status(socket.status().code(),
                    "rank " + std::to_string(process_) + " cannot reach rank " +
                        std::to_string(other) + ": " + socket.status().message());
    }
    auto peer = std::make_unique<Peer>();
    peer->process = other;
    peer->socket = std::move(*socket);
    MeshMessage hello;
    hello.SetText(other_nonce);
    SMDDP_RETURN_IF_ERROR(SendRaw(*peer, hello, -1));
    peers_.emplace(other, std::move(peer));
  }
  while (expected > 0) {
    auto socket = AcceptLocal(listener.get(), deadline);
    if (!socket.ok()) {
      if (socket.status().code() == StatusCode::kInvalidArgument) {
        LogWarning("refused a local connection: " + socket.status().message());
        continue;
      }
      return Status(
          socket.status().code(),
          "rank " + std::to_string(process_) + " still waits for " +
              std::to_string(expected) +
              " process(es) of this host to connect: " + socket.status().message());
    }
    // A stranger that connects and says nothing may not hold up the others for long.
    auto hello = ReceiveRaw(socket->get(), Deadline::After(5.0));
    const bool known =
        hello.ok() && hello->first.kind == MeshMessage::Kind::kHello &&
        hello->first.Text() == roster.mine().nonce && hello->first.process > process_ &&
        std::binary_search(local_.begin(), local_.end(), hello->first.process) &&
        !peers_.contains(hello->first.process);
    if (!known) {
      LogWarning("refused a local connection that is not of this job");
      continue;
    }
    auto peer = std::make_unique<Peer>();
    peer->process = hello->first.process;
    peer->socket = std::move(*socket);
    peers_.emplace(peer->process, std::move(peer));
    --expected;
  }
  return ExchangePages(deadline);
}

Status LocalMesh::ExchangePages(const Deadline& deadline) {
  MeshMessage offer;
  offer.kind = MeshMessage::Kind::kPage;
  for (auto& [other, peer] : peers_) {
    SMDDP_RETURN_IF_ERROR(SendRaw(*peer, offer, my_page_.fd()));
  }
  for (auto& [other, peer] : peers_) {
    auto pid = PeerPid(peer->socket.get());
    SMDDP_RETURN_IF_ERROR(pid.status());
    peer->pid = *pid;
    auto received = ReceiveRaw(peer->socket.get(), deadline);
    SMDDP_RETURN_IF_ERROR(received.status());
    if (received->first.kind != MeshMessage::Kind::kPage) {
      return Status(StatusCode::kInternal, "unexpected message from " + Describe(other));
    }
    auto page = SharedMemory::Map(std::move(received->second), sizeof(ProcessPage));
    SMDDP_RETURN_IF_ERROR(page.status());
    peer->page = std::move(*page);
  }
  return Status();
}

bool LocalMesh::IsLocal(int process) const {
  return process == process_ || peers_.contains(process);
}

ProcessPage& LocalMesh::page(int process) const {
  std::byte* data =
      process == process_ ? my_page_.data() : peers_.at(process)->page.data();
  return *reinterpret_cast<ProcessPage*>(data);
}

Status LocalMesh::SendRaw(const Peer& peer, MeshMessage message, int fd) const {
  message.process = process_;
  return SendLocal(peer.socket.get(), std::as_bytes(std::span(&message, 1)), fd);
}

Result<std::pair<MeshMessage, UniqueFd>> LocalMesh::ReceiveRaw(
    int socket, const Deadline& deadline) const {
  MeshMessage message;
  auto received =
      ReceiveLocal(socket, std::as_writable_bytes(std::span(&message, 1)), deadline);
  SMDDP_RETURN_IF_ERROR(received.status());
  if (!received->has_value()) {
    return Status(StatusCode::kPeerLost, "the peer closed its connection");
  }
  if ((*received)->size != sizeof(message)) {
    return Status(StatusCode::kInternal, "a message of wrong size from a local peer");
  }
  return std::pair{message, std::move((*received)->fd)};
}

Status LocalMesh::Send(int process, MeshMessage message, int fd) {
  const auto found = peers_.find(process);
  if (found == peers_.end()) {
    return Status(StatusCode::kInternal,
                  "rank " + std::to_string(process) + " is not on this host");
  }
  return SendRaw(*found->second, message, fd);
}

void LocalMesh::SayGoodbye(const std::string& reason) {
  MeshMessage message;
  message.kind = MeshMessage::Kind::kGoodbye;
  message.SetText(reason);
  for (auto& [other, peer] : peers_) {
    // A peer that is gone already needs no goodbye.
    [[maybe_unused]] const Status sent = SendRaw(*peer, message, -1);
  }
}

std::optional<std::string> LocalMesh::Lost(int process) const {
  const std::lock_guard lock(lost_mutex_);
  const auto found = lost_.find(process);
  if (found == lost_.end()) return std::nullopt;
  return found->second;
}

std::string LocalMesh::Describe(int process) const {
  std::string text = "rank " + std::to_string(process);
  const auto found = peers_.find(process);
  if (found != peers_.end()) {
    text += " (pid " + std::to_string(found->second->pid) + " on " + host_name_ + ")";
  }
  return text;
}

void LocalMesh::CloseInForkedChild() {
  for (auto& [other, peer] : peers_) peer->socket.Reset();
}

void LocalMesh::Watch() {
  while (!stopping_.load()) {
    std::vector<pollfd> waits = {{stop_event_.get(), POLLIN, 0}};
    std::vector<Peer*> order;
    for (auto& [other, peer] : peers_) {
      if (peer->gone) continue;
      waits.push_back({peer->socket.get(), POLLIN, 0});
      order.push_back(peer.get());
    }
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;  // EINTR.
    for (size_t i = 0; i < order.size(); ++i) {
      if (waits[i + 1].revents == 0 || HandleReadable(*order[i])) continue;
      Peer& peer = *order[i];
      peer.gone = true;
      const std::string why = peer.goodbye.empty()
                                  ? "is gone: its process ended or was killed"
                                  : "left the job: " + peer.goodbye;
      {
        const std::lock_guard lock(lost_mutex_);
        lost_.emplace(peer.process, why);
      }
      events_.on_lost(peer.process, why);
    }
  }
}

bool LocalMesh::HandleReadable(Peer& peer) {
  auto received = ReceiveRaw(peer.socket.get(), Deadline::After(0));
  if (!received.ok()) return received.status().code() == StatusCode::kDeadline;
  auto& [message, fd] = *received;
  if (message.process != peer.process) return true;  // Not what this socket is for.
  if (message.kind == MeshMessage::Kind::kBlock) events_.on_block(message, std::move(fd));
  if (message.kind == MeshMessage::Kind::kDevice ||
      message.kind == MeshMessage::Kind::kDeviceFailure) {
    events_.on_device(message);
  }
  if (message.kind == MeshMessage::Kind::kGoodbye) {
    peer.goodbye = message.Text();
    return false;
  }
  return true;
}

}  // namespace smddp
