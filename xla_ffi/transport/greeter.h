// SPDX-License-Identifier: Apache-2.0
// Meets peers on other hosts: listens, connects, and lets both ends prove the job's
// secret before a connection is used for anything else.
//
// HMAC-SHA256 challenge and response in both directions; the secret never travels. What
// comes from a stranger is read into a fixed small buffer, a limited number at a time,
// until a deadline, on the greeter's own thread: it can cost the job neither memory nor
// time. Owned by collective/network.h or reducer/reducer_server.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/address.h"

namespace smddp {

// Who is at one end of a connection. Both ends prove theirs.
struct Identity {
  enum class Role : uint32_t { kWorker = 0, kReducer = 1 };

  Role role = Role::kWorker;
  uint32_t process = 0;    // Worker: its rank. Reducer: 0.
  uint32_t processes = 0;  // Worker: of its job.
  uint32_t lane = 0;       // What the connection is for; the connecting end says so.
  uint32_t lanes = 0;
  uint64_t job = 0;  // Reducer that listens: 0, it takes the connecting worker's.

  bool operator==(const Identity&) const = default;
};

class Greeter {
 public:
  struct Options {
    Identity me;         // `lane` is ignored.
    std::string secret;  // Not empty.
    double handshake_seconds = 5.0;
    // Handshakes under way at once. More wait in the kernel's queue, until the oldest of
    // these has had a quarter of a second and gives way.
    int pending = 64;
  };
  struct Events {
    // Asked when a peer that connected to us has proved the secret. Not ok: it is told
    // the message and refused (a reducer that serves another job, a rank of two).
    std::function<Status(const Identity& peer)> admit;
    // A connection is ready. `token`: of Connect, or 0 if the peer connected to us. The
    // socket is non-blocking with TCP_NODELAY.
    std::function<void(const Identity& peer, uint64_t token, UniqueFd socket)> on_peer;
    // Connect's deadline passed, or the peer's admit() refused us for good: with
    // kInvalidArgument; after any other refusal we try again. Names address, reason and
    // remedy.
    std::function<void(uint64_t token, const Status& why)> on_failed;
  };

  // Binds to `address` (port 0: any) and listens. All events come on the greeter's
  // thread.
  static Result<std::unique_ptr<Greeter>> Start(const Address& address, Options options,
                                                Events events);
  ~Greeter();

  // Where we listen, with the port.
  const Address& address() const { return address_; }

  // Connects to a peer, trying again with growing pauses (0.05 s to 1 s) until it is met
  // or `seconds` have passed. `seconds` <= 0: until Cancel. `name` is for messages:
  // "rank 3 at 10.0.0.4:4000". The listener must have the role and process of `expected`,
  // and its job unless one of them is 0. Any thread, also from an event.
  void Connect(uint64_t token, const std::string& address, const Identity& expected,
               uint32_t lane, const std::string& name, double seconds);
  // Gives a Connect up; no event follows for it, and one that is under way is waited for.
  // Any thread but from an event, and without a lock that an event takes.
  void Cancel(uint64_t token);
  // Refused connections so far: strangers, other jobs, handshakes that timed out. The
  // first of each kind is logged.
  uint64_t refused() const { return refused_.load(); }

 private:
  class Loop;
  Greeter();

  Address address_;
  std::atomic<uint64_t> refused_{0};
  std::unique_ptr<Loop> loop_;
};

}  // namespace smddp
