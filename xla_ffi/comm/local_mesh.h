// SPDX-License-Identifier: Apache-2.0
// The processes of one host that can talk to each other, and who of them is alive.
//
// Connect() joins every pair of processes of this host, which the roster names, by a
// local socket and maps every process's page. A watcher thread reads
// the sockets: it delivers messages and notices a death by end of file. Owned by the
// engine. Send, page and Lost may be called by any thread; the events come on the
// watcher thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "comm/roster.h"
#include "host/process_page.h"
#include "host/shared_memory.h"

namespace smddp {

// A message between two processes of a host. Fixed size, so that nothing on the socket
// decides how much we read.
struct MeshMessage {
  enum class Kind : uint32_t { kHello, kPage, kBlock, kGoodbye, kDevice, kDeviceFailure };

  Kind kind = Kind::kHello;
  int32_t process = 0;  // The sender.
  // kBlock: the group that the attached memory is for. kDevice, kDeviceFailure: likewise.
  uint64_t group = 0;
  uint64_t value = 0;  // kBlock: slot bytes on offer. kDevice: whose memory.
  // kHello: the receiver's nonce. kGoodbye, kDeviceFailure: the reason. kDevice: what
  // gpu/ puts there.
  char text[256] = {};

  void SetText(const std::string& words);
  std::string Text() const;
};

class LocalMesh {
 public:
  struct Events {
    // A kBlock message with the memory's descriptor.
    std::function<void(const MeshMessage&, UniqueFd)> on_block;
    // A kDevice or kDeviceFailure message.
    std::function<void(const MeshMessage&)> on_device = [](const MeshMessage&) {};
    // `why` completes "rank N ...": it died, or it left and said why.
    std::function<void(int process, std::string why)> on_lost;
  };

  // The socket under which the others of this host find us. Opened before our card, which
  // has the nonce, is out: nobody may look for it too early.
  static Result<UniqueFd> Listen(const std::string& nonce);
  // Collective over the processes of this host. `deadline` bounds the whole.
  static Result<std::unique_ptr<LocalMesh>> Connect(UniqueFd listener,
                                                    const Roster& roster,
                                                    const Deadline& deadline,
                                                    Events events);
  ~LocalMesh();

  int process() const { return process_; }
  // Processes of this host, ascending, with ourselves.
  const std::vector<int>& local_processes() const { return local_; }
  bool IsLocal(int process) const;

  ProcessPage& page(int process) const;
  ProcessPage& my_page() const { return page(process_); }

  Status Send(int process, MeshMessage message, int fd = -1);
  // Tells every peer that we leave on purpose, and why.
  void SayGoodbye(const std::string& reason);
  // Why `process` is gone, if it is.
  std::optional<std::string> Lost(int process) const;
  // "rank 1 (pid 4242 on node7)".
  std::string Describe(int process) const;

  // In a forked child: closes our ends, so that the child does not look like us to the
  // peers. Async-signal-safe.
  void CloseInForkedChild();

 private:
  struct Peer;

  LocalMesh(const Roster& roster, Events events);
  Status Join(UniqueFd listener, const Roster& roster, const Deadline& deadline);
  Status ExchangePages(const Deadline& deadline);
  Status SendRaw(const Peer& peer, MeshMessage message, int fd) const;
  Result<std::pair<MeshMessage, UniqueFd>> ReceiveRaw(int socket,
                                                      const Deadline& deadline) const;
  void Watch();
  bool HandleReadable(Peer& peer);  // False when the peer is gone.

  const int process_;
  const std::string host_name_;
  const Events events_;
  std::vector<int> local_;
  SharedMemory my_page_;
  std::unordered_map<int, std::unique_ptr<Peer>> peers_;
  mutable std::mutex lost_mutex_;
  std::unordered_map<int, std::string> lost_;
  UniqueFd stop_event_;
  std::atomic<bool> stopping_{false};
  Thread watcher_;
};

}  // namespace smddp
