// SPDX-License-Identifier: Apache-2.0
// The one place where a Status becomes an XLA error; JAX raises it as JaxRuntimeError.
#pragma once

#include "base/status.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {

xla::ffi::Error ToError(const Status& status);

}  // namespace smddp
