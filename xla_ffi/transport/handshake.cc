// SPDX-License-Identifier: Apache-2.0
#include "transport/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "wire/little_endian.h"

namespace smddp {
namespace {

constexpr uint64_t kMagic = 0x786a7064646d73ull;  // "smddpjx".
constexpr uint32_t kVersion = 1;

constexpr size_t kIdentityBytes = 28;
constexpr size_t kNonceBytes = sizeof(Nonce);
// Magic, version, identity, nonce; of hello and challenge alike.
constexpr size_t kGreetingBytes = 8 + 4 + kIdentityBytes + kNonceBytes;
constexpr size_t kProofBytes = sizeof(Digest);
constexpr size_t kTextBytes = 256;
// Code, length of the text, text.
constexpr size_t kRulingBytes = 4 + 4 + kTextBytes;
constexpr size_t kVerdictBytes = kRulingBytes + sizeof(Digest);

constexpr char kConnectorLabel[] = "smddp connector";
constexpr char kListenerLabel[] = "smddp listener ";

Status Stranger(const std::string& what) { return Status(StatusCode::kMismatch, what); }

std::vector<std::byte> EncodeGreeting(const Identity& who, const Nonce& nonce) {
  std::vector<std::byte> bytes(kGreetingBytes);
  std::byte* to = bytes.data();
  StoreLittle(to, kMagic);
  StoreLittle(to + 8, kVersion);
  StoreLittle(to + 12, static_cast<uint32_t>(who.role));
  StoreLittle(to + 16, who.process);
  StoreLittle(to + 20, who.processes);
  StoreLittle(to + 24, who.lane);
  StoreLittle(to + 28, who.lanes);
  StoreLittle(to + 32, who.job);
  std::ranges::copy(nonce, to + 40);
  return bytes;
}

Result<Identity> DecodeGreeting(const std::vector<std::byte>& bytes) {
  const std::byte* from = bytes.data();
  if (LoadLittle<uint64_t>(from) != kMagic) return Stranger("is no process of smddp_jax");
  const auto version = LoadLittle<uint32_t>(from + 8);
  if (version != kVersion) {
    return Stranger("speaks version " + std::to_string(version) +
                    " of the handshake, not " + std::to_string(kVersion) +
                    ": install the same smddp_jax everywhere");
  }
  const auto role = LoadLittle<uint32_t>(from + 12);
  if (role > static_cast<uint32_t>(Identity::Role::kReducer)) {
    return Stranger("has the unknown role " + std::to_string(role));
  }
  Identity who;
  who.role = Identity::Role{role};
  who.process = LoadLittle<uint32_t>(from + 16);
  who.processes = LoadLittle<uint32_t>(from + 20);
  who.lane = LoadLittle<uint32_t>(from + 24);
  who.lanes = LoadLittle<uint32_t>(from + 28);
  who.job = LoadLittle<uint64_t>(from + 32);
  return who;
}

std::vector<std::byte> EncodeRuling(const Status& admitted) {
  std::vector<std::byte> bytes(kRulingBytes);
  const size_t length = std::min(admitted.message().size(), kTextBytes);
  StoreLittle(bytes.data(), static_cast<uint32_t>(admitted.code()));
  StoreLittle(bytes.data() + 4, static_cast<uint32_t>(length));
  std::memcpy(bytes.data() + 8, admitted.message().data(), length);
  return bytes;
}

Status DecodeRuling(std::span<const std::byte> bytes) {
  const auto code = LoadLittle<uint32_t>(bytes.data());
  const auto length = LoadLittle<uint32_t>(bytes.data() + 4);
  if (code > static_cast<uint32_t>(StatusCode::kInternal) || length > kTextBytes) {
    return Stranger("gave a verdict that makes no sense");
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + 8);
  return Status(StatusCode{static_cast<int>(code)}, std::string(text, length));
}

}  // namespace

Result<Nonce> MakeNonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return SystemError("getrandom");
  }
  return nonce;
}

std::span<std::byte> Handshake::room() { return std::span(message_).subspan(filled_); }

bool Handshake::Took(size_t bytes) {
  filled_ += bytes;
  return filled_ == message_.size();
}

void Handshake::Expect(size_t bytes) {
  message_.assign(bytes, std::byte{0});
  filled_ = 0;
}

void Handshake::Append(std::span<const std::byte> bytes) {
  transcript_.insert(transcript_.end(), bytes.begin(), bytes.end());
}

Digest Handshake::Mac(const char* label, std::span<const std::byte> more) const {
  const auto name = std::as_bytes(std::span(label, std::strlen(label)));
  std::vector<std::byte> text(name.begin(), name.end());
  text.insert(text.end(), transcript_.begin(), transcript_.end());
  text.insert(text.end(), more.begin(), more.end());
  return HmacSha256(std::as_bytes(std::span(secret_)), text);
}

ConnectorHandshake::ConnectorHandshake(const Identity& me, std::string secret,
                                       const Nonce& nonce)
    : Handshake(std::move(secret)), hello_(EncodeGreeting(me, nonce)) {
  Append(hello_);
  Expect(kGreetingBytes);
}

Result<std::vector<std::byte>> ConnectorHandshake::Next() {
  if (!challenged_) return TakeChallenge();
  SMDDP_RETURN_IF_ERROR(TakeVerdict());
  return std::vector<std::byte>();
}

Result<std::vector<std::byte>> ConnectorHandshake::TakeChallenge() {
  Result<Identity> who = DecodeGreeting(message());
  SMDDP_RETURN_IF_ERROR(who.status());
  challenged_ = true;
  listener_ = *who;
  Append(message());
  const Digest proof = Mac(kConnectorLabel);
  Append(proof);
  Expect(kVerdictBytes);
  return std::vector<std::byte>(proof.begin(), proof.end());
}

Status ConnectorHandshake::TakeVerdict() {
  const std::span<const std::byte> ruling = std::span(message()).first(kRulingBytes);
  const auto mac = std::span(message()).subspan(kRulingBytes);
  if (!EqualInConstantTime(mac, Mac(kListenerLabel, ruling))) {
    return Stranger("does not know the job's secret");
  }
  SMDDP_RETURN_IF_ERROR(DecodeRuling(ruling));
  done_ = true;
  Expect(0);
  return Status();
}

ListenerHandshake::ListenerHandshake(const Identity& me, std::string secret,
                                     const Nonce& nonce)
    : Handshake(std::move(secret)), me_(me), nonce_(nonce) {
  Expect(kGreetingBytes);
}

Result<std::vector<std::byte>> ListenerHandshake::Next() {
  if (!greeted_) {
    Result<Identity> who = DecodeGreeting(message());
    SMDDP_RETURN_IF_ERROR(who.status());
    greeted_ = true;
    connector_ = *who;
    Append(message());
    std::vector<std::byte> challenge = EncodeGreeting(me_, nonce_);
    Append(challenge);
    Expect(kProofBytes);
    return challenge;
  }
  if (!EqualInConstantTime(message(), Mac(kConnectorLabel))) {
    return Stranger("does not know the job's secret");
  }
  Append(message());
  Expect(0);
  proved_ = true;
  return std::vector<std::byte>();
}

std::vector<std::byte> ListenerHandshake::Verdict(const Status& admitted) const {
  std::vector<std::byte> bytes = EncodeRuling(admitted);
  const Digest mac = Mac(kListenerLabel, bytes);
  bytes.insert(bytes.end(), mac.begin(), mac.end());
  return bytes;
}

}  // namespace smddp
