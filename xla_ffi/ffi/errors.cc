// SPDX-License-Identifier: Apache-2.0
#include "ffi/errors.h"

#include <string>

namespace smddp {

xla::ffi::Error ToError(const Status& status) {
  using xla::ffi::ErrorCode;
  if (status.ok()) return xla::ffi::Error::Success();
  const auto code = [&] {
    switch (status.code()) {
      case StatusCode::kInvalidArgument:
      case StatusCode::kMismatch:
        return ErrorCode::kInvalidArgument;
      case StatusCode::kPeerLost:
        return ErrorCode::kUnavailable;
      case StatusCode::kDeadline:
        return ErrorCode::kDeadlineExceeded;
      case StatusCode::kAborted:
        return ErrorCode::kAborted;
      default:
        return ErrorCode::kInternal;
    }
  }();
  return xla::ffi::Error(
      code, "smddp_jax: " + std::string(Name(status.code())) + ": " + status.message());
}

}  // namespace smddp
