// SPDX-License-Identifier: Apache-2.0
// Status and Result<T>: how native code says that something went wrong.
//
// Plain values, owned by whoever holds them and safe to copy between threads.
// They cross threads and hot paths instead of exceptions; `ffi/` turns them into
// `ffi::Error`, `module_status.h` into Python exceptions, each in one place.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace smddp {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // The caller gave us something we cannot take.
  kMismatch,         // Two ranks disagree about one collective.
  kPeerLost,         // A process died or closed its connection.
  kDeadline,         // A wait reached its deadline.
  kAborted,          // Stopped on purpose: shutdown, a signal, an earlier error.
  kSystem,           // A system call failed; the message has errno's text.
  kInternal,         // A broken invariant of ours.
};

constexpr const char* Name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kMismatch:
      return "mismatch";
    case StatusCode::kPeerLost:
      return "peer lost";
    case StatusCode::kDeadline:
      return "deadline exceeded";
    case StatusCode::kAborted:
      return "aborted";
    case StatusCode::kSystem:
      return "system error";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

class [[nodiscard]] Status {
 public:
  Status() = default;  // Ok.
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// Status of a failed system call: "what: strerror(errno)". Call it at once,
// before anything can change errno.
Status SystemError(const std::string& what);

// A value or the Status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT
  Result(Status status) : status_(std::move(status)) {}  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

#define SMDDP_RETURN_IF_ERROR(expression)                                      \
  do {                                                                         \
    if (::smddp::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

}  // namespace smddp
