// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cerrno>
#include <system_error>

namespace smddp {

Status SystemError(const std::string& what) {
  const int error = errno;
  return Status(StatusCode::kSystem,
                what + ": " + std::generic_category().message(error));
}

}  // namespace smddp
