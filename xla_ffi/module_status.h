// SPDX-License-Identifier: Apache-2.0
// The one place where a Status becomes a Python exception. Module code only, with the
// GIL or without.
#pragma once

#include <stdexcept>

#include "base/status.h"

namespace smddp {

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

}  // namespace smddp
