// SPDX-License-Identifier: Apache-2.0
// Carries frames between this process and its peers on other hosts.
//
// The one interface that a network has to fill. Owned by a Lane, whose lock guards
// every method but Wait and Wake. Peers come in as sockets whose other end has proved
// who it is (transport/greeter.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "wire/frame.h"

namespace smddp {

class Transport {
 public:
  static constexpr uint32_t kAllEpochs = 0xffffffff;

  // What the owner does with what arrives. Called by Progress only; may call Send,
  // DropPeer and Forget.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    // Where the payload of a kPush or kResult goes: header.payload bytes that stay valid
    // until Received or Forget(header.stream). Null reads it and throws it away, without
    // Received. An error means that the peer breaks the protocol: it is dropped.
    virtual Result<std::byte*> Accept(int peer, const FrameHeader& header) = 0;
    // A whole frame is there. `control` is the payload of the other kinds. An error
    // drops the peer.
    virtual Status Received(int peer, const FrameHeader& header,
                            std::span<const std::byte> control) = 0;
    // The peer is gone; nothing more comes from it or goes to it. `why` completes
    // "rank N ...": "is gone: ...", "left the job: ...", "broke the protocol: ...".
    virtual void Lost(int peer, const std::string& why) = 0;
  };

  struct Counters {
    uint64_t bytes_sent = 0;  // Headers and payloads, as given to the network.
    uint64_t bytes_received = 0;
    uint64_t frames_sent = 0;
    uint64_t frames_received = 0;
  };

  virtual ~Transport() = default;

  // A peer that was dropped or lost may be added again.
  virtual void AddPeer(int peer, UniqueFd socket) = 0;
  virtual bool HasPeer(int peer) const = 0;
  // Closes the connection; no Lost follows.
  virtual void DropPeer(int peer) = 0;

  // Sends a frame to a peer, in order, without blocking; tries at once if nothing waits
  // before it. `payload` (header.payload bytes) stays valid until it is sent or
  // Forget(header.stream). Dropped silently if the peer is not there.
  virtual void Send(int peer, const FrameHeader& header,
                    std::span<const std::byte> payload) = 0;
  // The same with a payload that is copied.
  virtual void SendCopy(int peer, FrameHeader header,
                        std::span<const std::byte> payload) = 0;

  // Cuts every tie with the memory of a stream's kPush and kResult frames of epochs
  // before `epoch`: those that wait to be sent are removed, one that is half sent is
  // finished from a copy, payloads that are half received are thrown away.
  virtual void Forget(uint64_t stream, uint32_t epoch = kAllEpochs) = 0;

  // Sends and receives what can be now; reports peers that are silent for too long and
  // those that closed. Returns whether a frame moved.
  virtual bool Progress() = 0;
  // Whether all that was given to Send has been handed to the network.
  virtual bool Flushed() const = 0;
  virtual Counters counters() const = 0;

  // Sleeps until something can move, at most `seconds`. Without the lock; one thread.
  virtual void Wait(double seconds) = 0;
  // Ends a Wait. Any thread.
  virtual void Wake() = 0;

  // In a forked child: closes its copies of the sockets, so that the peers still see the
  // parent's end. Async-signal-safe, without the lock; nothing else may follow.
  virtual void CloseInForkedChild() = 0;
};

}  // namespace smddp
