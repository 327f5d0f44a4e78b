// SPDX-License-Identifier: Apache-2.0
#include "comm/local_mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"
#include "host/local_socket.h"

namespace smddp {
namespace {

std::string RandomNonce() {
  unsigned char bytes[16];
  // 16 bytes never block and never come short once the kernel is up (getrandom(2)).
  if (::getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return {};
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "this host";
}

void SetText(MeshMessage& message, const std::string& text) {
  const size_t size = std::min(text.size(), sizeof(message.text) - 1);
  std::memcpy(message.text, text.data(), size);
  message.text[size] = '\0';
}

std::string TextOf(const MeshMessage& message) {
  return std::string(message.text, strnlen(message.text, sizeof(message.text)));
}

std::string SocketName(const std::string& nonce) { return "smddp-" + nonce; }
std::string Key(int process) { return "smddp/meet/" + std::to_string(process); }

// What a process tells the others over the key-value store.
struct Card {
  std::string nonce;
  std::string segment_bytes;
  std::string host_id;  // Last: it may hold spaces.

  std::string Encode() const { return nonce + " " + segment_bytes + " " + host_id; }
  static Result<Card> Decode(const std::string& text) {
    const size_t first = text.find(' ');
    const size_t second = first == std::string::npos ? first : text.find(' ', first + 1);
    if (second == std::string::npos) {
      return Status(StatusCode::kInternal, "a malformed bootstrap entry: " + text);
    }
    return Card{text.substr(0, first), text.substr(first + 1, second - first - 1),
                text.substr(second + 1)};
  }
};

}  // namespace

struct LocalMesh::Peer {
  int process = 0;
  UniqueFd socket;
  pid_t pid = 0;
  SharedMemory page;
  bool gone = false;  // Watcher thread only.
  std::string goodbye;
};

LocalMesh::LocalMesh(int process, Events events)
    : process_(process), events_(std::move(events)) {}

LocalMesh::~LocalMesh() {
  stopping_.store(true);
  if (watcher_.running()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written =
        ::write(stop_event_.get(), &one, sizeof(one));
    watcher_.Join();
  }
}

Result<std::unique_ptr<LocalMesh>> LocalMesh::Connect(int process, int processes,
                                                      const Settings& settings,
                                                      KeyValueStore& store,
                                                      const Deadline& deadline,
                                                      Events events) {
  std::unique_ptr<LocalMesh> mesh(new LocalMesh(process, std::move(events)));
  SMDDP_RETURN_IF_ERROR(mesh->Meet(processes, settings, store, deadline));
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

Status LocalMesh::Meet(int processes, const Settings& settings, KeyValueStore& store,
                       const Deadline& deadline) {
  auto page = SharedMemory::Create(sizeof(ProcessPage));
  SMDDP_RETURN_IF_ERROR(page.status());
  my_page_ = std::move(*page);
  const Card mine = {RandomNonce(), std::to_string(settings.segment_bytes),
                     settings.host_id};
  auto listener = ListenLocal(SocketName(mine.nonce));
  SMDDP_RETURN_IF_ERROR(listener.status());
  SMDDP_RETURN_IF_ERROR(store.Set(Key(process_), mine.Encode()));

  std::unordered_map<int, std::string> nonces;
  for (int other = 0; other < processes; ++other) {
    if (other == process_) {
      local_.push_back(other);
      continue;
    }
    auto text = store.Get(Key(other), deadline);
    if (!text.ok()) {
      return Status(text.status().code(),
                    "rank " + std::to_string(process_) + " waited for rank " +
                        std::to_string(other) + " to start and join: " +
                        text.status().message() + ". Is that process running?");
    }
    auto card = Card::Decode(*text);
    SMDDP_RETURN_IF_ERROR(card.status());
    if (card->segment_bytes != mine.segment_bytes) {
      return Status(StatusCode::kMismatch,
                    "SMDDP_SEGMENT_BYTES is " + mine.segment_bytes + " on rank " +
                        std::to_string(process_) + " and " + card->segment_bytes +
                        " on rank " + std::to_string(other) +
                        "; set it to one value everywhere");
    }
    if (card->host_id != mine.host_id) continue;
    local_.push_back(other);
    nonces.emplace(other, card->nonce);
  }
  return Join(std::move(*listener), mine.nonce, nonces, deadline);
}

// Of each pair the higher process connects. Its hello carries the listener's nonce,
// which only a process that read the job's key-value store can know.
Status LocalMesh::Join(UniqueFd listener, const std::string& nonce,
                       const std::unordered_map<int, std::string>& nonces,
                       const Deadline& deadline) {
  size_t expected = 0;
  for (const auto& [other, other_nonce] : nonces) {
    if (other > process_) {
      ++expected;
      continue;
    }
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
    SetText(hello, other_nonce);
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
    const bool known = hello.ok() && hello->first.kind == MeshMessage::Kind::kHello &&
                       TextOf(hello->first) == nonce &&
                       nonces.contains(hello->first.process) &&
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
  SetText(message, reason);
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
    text += " (pid " + std::to_string(found->second->pid) + " on " + HostName() + ")";
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
  if (message.kind == MeshMessage::Kind::kGoodbye) {
    peer.goodbye = TextOf(message);
    return false;
  }
  return true;
}

}  // namespace smddp
