// SPDX-License-Identifier: Apache-2.0
// How two processes prove to each other that they know the job's secret.
//
//   connector -> hello      version, who I am, a fresh nonce
//   listener  -> challenge  who I am, a fresh nonce
//   connector -> proof      HMAC over all of the above
//   listener  -> verdict    welcome, or why not; HMAC over all of the above and it
//
// Who connects proves itself first, so a stranger gets nothing that depends on the
// secret. Messages have fixed sizes, so no length comes from a stranger. Two state
// machines without sockets or clocks; owned by the greeter, used on its thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hmac.h"
#include "base/status.h"
#include "transport/greeter.h"

namespace smddp {

using Nonce = std::array<std::byte, 32>;

// Random, by the kernel.
Result<Nonce> MakeNonce();

// What both ends share: the bytes exchanged so far, which every HMAC covers, and the
// message that is being read.
class Handshake {
 public:
  // Where to read to next; empty when nothing more is expected.
  std::span<std::byte> room();
  // Whether the message is whole after `bytes` more.
  bool Took(size_t bytes);

 protected:
  explicit Handshake(std::string secret) : secret_(std::move(secret)) {}

  void Expect(size_t bytes);
  const std::vector<std::byte>& message() const { return message_; }
  void Append(std::span<const std::byte> bytes);
  // HMAC over the direction's label and all that was exchanged.
  Digest Mac(const char* label, std::span<const std::byte> more = {}) const;

 private:
  const std::string secret_;
  std::vector<std::byte> transcript_;
  std::vector<std::byte> message_;
  size_t filled_ = 0;
};

// The end that connected.
class ConnectorHandshake : public Handshake {
 public:
  // `me.lane` says what the connection is for.
  ConnectorHandshake(const Identity& me, std::string secret, const Nonce& nonce);

  const std::vector<std::byte>& hello() const { return hello_; }  // To send first.
  // Call when a message is whole: what to send then, nothing when all is done. Error:
  // the listener is no peer, or refuses us; a refusal has the listener's code.
  Result<std::vector<std::byte>> Next();

  bool done() const { return done_; }
  // Who listens; meaningful when done, until then only claimed.
  const Identity& listener() const { return listener_; }

 private:
  Result<std::vector<std::byte>> TakeChallenge();
  Status TakeVerdict();

  const std::vector<std::byte> hello_;
  Identity listener_;
  bool challenged_ = false;
  bool done_ = false;
};

// The end that listens.
class ListenerHandshake : public Handshake {
 public:
  ListenerHandshake(const Identity& me, std::string secret, const Nonce& nonce);

  // Call when a message is whole: what to send then, nothing once the proof is good.
  // Error: a stranger, to be told nothing.
  Result<std::vector<std::byte>> Next();
  // What to send when the proof was good.
  std::vector<std::byte> Verdict(const Status& admitted) const;

  bool greeted() const { return greeted_; }  // Its hello was well-formed.
  bool proved() const { return proved_; }
  const Identity& connector() const { return connector_; }

 private:
  const Identity me_;
  const Nonce nonce_;
  Identity connector_;
  bool greeted_ = false;
  bool proved_ = false;
};

}  // namespace smddp
